//! The types that all crates of sshoal share: [`Remote`], handle guards, paths, attributes, entries,
//! errno, a mutex, the in-place [`task`]s that run operations, and their [`metrics`].
//!
//! This crate does no I/O (but [`polling`] reads the load of the machine), and knows neither FUSE
//! nor SFTP nor ssh.
#![forbid(unsafe_code)]

pub mod attr;
pub mod entry;
pub mod errno;
pub mod guard;
pub mod hash;
mod join;
pub mod lifetime;
pub mod lock;
pub mod metrics;
pub mod mutex;
pub mod notify;
mod on_drop;
pub mod path;
pub mod polling;
pub mod printable;
pub mod processor;
pub mod remote;
pub mod shell;
mod small_set;
pub mod table;
pub mod task;
pub mod watch;

pub use attr::{Attr, AttrChange, ChangeId, FileId, FileKind, InodeAttr, StatVfs, Timestamp};
pub use entry::{Entry, Ino, LookupResult, Stat};
pub use errno::{Errno, Result};
pub use guard::{DirGuard, Guard, OpenGuard, OpenHandle, OwnedDh, OwnedFh};
pub use hash::stable_hash;
pub use join::join_in_order;
pub use lifetime::{Lifetime, Owner};
pub use lock::{Lock, LockFamily, LockKind, LockOwner, LockRange, LockedRanges};
pub use mutex::Mutex;
pub use notify::until;
pub use on_drop::OnDrop;
pub use path::{InvalidName, Name, RemotePath};
pub use printable::printable;
pub use remote::{
    Access, Allocation, Create, Data, Dh, DigestEffort, DigestKind, DirEntry, Fh, Location,
    OpenFlags, Opened, Remote, RenameMode, Seek, SetXattr, Window,
};
pub use small_set::SmallSet;
pub use table::Table;
pub use watch::{Changes, Event, WatchId, WatchedChange, Watches};
