//! Copies between remotes in memory, with faults, and directories of this machine.

mod choice;
mod deletion;
mod digests;
mod durable;
mod faults;
mod hostile;
mod kit;
mod links;
mod real;
mod resume;
mod roundtrip;
mod rsync;
mod seeing;
mod setid;
mod together;
mod unseen;
