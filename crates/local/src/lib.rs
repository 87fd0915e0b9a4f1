//! A local directory as a [`base::Remote`], by native system calls.
//!
//! Invariants:
//! 1. No name leads out. Every path starts at a descriptor of the root (`root`); its directories
//!    are opened by `openat2`, beneath the root and through no symbolic link, and the last name is
//!    never followed. So the root may be renamed, and links may be planted.
//! 2. A system call that could wait for a disk or a network never runs on the runtime's own threads
//!    (`blocking`): NFS or FUSE may be mounted below the root. A call on those threads is answered
//!    from memory or not at all (`file`: content in the page cache; `cached_attr`: cached
//!    attributes on a local file system).
//! 3. Operations on one handle keep their order, also when their futures are dropped: the system
//!    call holds the handle's lock, not the future.
//! 4. A device or a FIFO is never opened for I/O, and no call waits for the other end of one.
//!
//! Every open file is a descriptor of this process, so `RLIMIT_NOFILE` bounds them (`EMFILE`).
//!
//! Errors are the system's. Permissions are those of this process, and its umask applies to new
//! entries.
#![deny(unsafe_code)]

mod attr;
mod blocking;
mod cached_attr;
mod error;
mod file;
mod holes;
mod listing;
mod listxattrat;
mod local;
mod locks;
mod mountpoint;
mod names;
mod open;
mod remote;
mod root;
mod setattr;
mod xattr;

pub use attr::{attr, errno, to_statvfs};
pub use error::Error;
pub use file::close;
pub use holes::{fallocate, seek};
pub use local::Local;
pub use locks::{LockUndo, Locks, lock_pause};
pub use names::make_node;
pub use root::open_beneath;
pub use setattr::{set_opened, set_pinned, set_pinned_nowait};
pub use xattr::{get_xattr, list_xattrs, may_have_xattrs, remove_xattr, set_xattr};
