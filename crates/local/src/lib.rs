//! A directory of this machine as a [`base::Remote`], by native system calls.
//!
//! Invariants:
//! 1. No name leads out. Everything begins at a descriptor of the root (`root`); directories on
//!    the way are opened by `openat2`, beneath it and through no symbolic link, and the last name
//!    is never followed. So the root may be renamed, and links may be planted.
//! 2. No system call that could wait for a disk or a network is made on the runtime's own threads
//!    (`threads`): below the root may be NFS or FUSE. What is made there answers from memory or
//!    not at all (`file`: content in the page cache; `glance`: attributes of what is cached and on
//!    a disk).
//! 3. What is on its way through one handle keeps its order, also when nobody waits for it any
//!    more: the system call itself holds the handle's turn, not the future.
//! 4. A device or a FIFO is never opened to be used, and nothing waits for the other end of one.
//!
//! Every open file is a descriptor of this process, so `RLIMIT_NOFILE` bounds them (`EMFILE`).
//!
//! Errors are the system's own. Permissions are those of this process, and its umask takes from
//! what is made.
#![forbid(unsafe_code)]

mod attr;
mod error;
mod file;
mod glance;
mod listing;
mod local;
mod mountpoint;
mod names;
mod open;
mod remote;
mod root;
mod setattr;
mod threads;

pub use error::Error;
pub use local::Local;
