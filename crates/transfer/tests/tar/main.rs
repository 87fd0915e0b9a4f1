//! Streams by `tar`, with this machine's shell as the server's.
#![allow(
    unreachable_pub,
    reason = "in a test binary, `pub` says what a module offers to the others"
)]

mod archive;
mod busybox;
mod by_name;
mod damaged;
mod hostile;
mod interrupted;
mod listing;
mod plain;
mod round_trip;
mod shell;
mod silent;
mod strategy;
mod trees;
mod xattrs;
