//! The store from outside: what it keeps, what it survives, and that it never returns other bytes
//! than were stored.
//!
//! Some tests start processes that compete, or are killed: this program again, configured by its
//! environment ([`processes::child`]).

mod blocks;
mod bounds;
mod contents;
mod damage;
mod foreign;
mod full_disk;
mod kills;
mod model;
mod names;
mod processes;
mod world;
