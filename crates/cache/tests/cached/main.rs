//! The promises of [`cache::Cached`], over a remote in memory that counts requests.

mod changing;
mod close_to_open;
mod conformance;
mod damage;
mod digests;
mod fetching;
mod identity;
mod immutable;
mod model;
mod offline;
mod stage;
mod together;
