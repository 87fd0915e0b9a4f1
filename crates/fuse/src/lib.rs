//! The Linux kernel's FUSE protocol on `/dev/fuse` or through io_uring: mount, session, typed
//! requests and replies, interrupts, notifications, passthrough.
//!
//! Implement [`Filesystem`], create a [`Mount`], then call [`Session::start`] and [`Session::run`];
//! `examples/hello.rs` is a complete file system. Usable by itself: of its sibling crates it needs
//! only `base`, for attributes, entries, locks, error numbers, read data and in-place tasks.
//!
//! What distinguishes it: it honours interrupts, so a blocked caller can always be ended; it runs
//! each operation on the thread that read the request until the operation has to wait; it sends
//! read data without joining its chunks; it undoes replies that could not be delivered.
//!
//! Deliberately not here: inodes and their counts, handles, caches, deadlines, permissions (the
//! file system's); the kernel's write-back cache; CUSE, DAX, `FUSE_NOTIFY_RETRIEVE`.

#![deny(unsafe_code)]

pub mod abi;
#[allow(unsafe_code, reason = "close_range(2) has no safe interface")]
mod apart;
mod attr;
mod caller;
#[allow(unsafe_code, reason = "the runtime cannot see that a channel keeps its descriptor")]
mod channel;
mod directory;
mod error;
pub mod filesystem;
mod mount;
mod notify;
mod open;
mod operation;
#[allow(unsafe_code, reason = "ioctl(2) has no safe interface")]
mod passthrough;
pub mod request;
#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )),
    path = "no_ring.rs"
)]
mod ring;
mod session;

pub use apart::spawn_apart;
pub use attr::{SetAttr, SetTime};
pub use caller::Caller;
pub use channel::{Channel, Device};
pub use directory::DirSink;
pub use error::{Error, Result};
pub use filesystem::Filesystem;
pub use mount::{AccessTime, Mount, MountOptions, Visibility, unmount};
pub use notify::Notifier;
pub use open::{OpenReply, Opened};
pub use operation::{
    Context, CopyFileRange, Create, ForgetItems, Init, LockRequest, Open, Operation, Read, Write,
};
pub use passthrough::{BackingId, Passthrough};
pub use ring::DEFAULT_DEPTH;
pub use session::{
    Cause, Config, Counters, End, Finished, Negotiated, OperationCounts, Session, Started, Stopper,
};
