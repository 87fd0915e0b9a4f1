//! The store from outside: what it keeps, what it survives, and that it never gives back other
//! bytes than it was given.
//!
//! Some tests kill, or let compete, processes of their own: this program again, told by its
//! environment what to do ([`processes::child`]).

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
