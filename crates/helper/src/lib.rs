//! An SFTP server: version 3 with OpenSSH's extensions, over system calls.
//!
//! It serves one client over two byte streams, as `sftp-server` does, with the rights of its
//! process.
//!
//! Invariants:
//! 1. Requests take effect as if they were executed one after the other (`schedule.rs`); requests
//!    that do not affect each other may be executed at the same time. Exceptions: a request that
//!    only reads and hangs may see later changes, a part of a long copy may be visible before its
//!    end, requests for other file systems may overtake one that hangs, and all requests one that
//!    waits for another process's lease on a file or truncates a large one.
//! 2. A request that may wait for a disk, a network or a lease never delays the requests that do
//!    not depend on it: it is executed by a thread of the pool. All others are executed by the
//!    thread that has read them (`session.rs`).
//! 3. Memory is bounded, whatever the client sends: requests in flight, the length of each, open
//!    handles and locks are limited. At the limit of requests in flight, no more are read. Requests
//!    for file systems that hang have a limit of their own, beyond which they are refused.
//! 4. With a root, no path leads out of it: the kernel resolves each path below it, symbolic links
//!    and `..` included (`paths.rs`).
//! 5. With `read_only`, no request that could change a file is executed, and no lock is set that
//!    excludes readers.
//! 6. A request that waits for a lock claims nothing and takes no thread of the pool (`locks.rs`).
//!    All locks end with the session, when no change of the file is in progress, although requests
//!    for other file systems may hang. The threads of these remain, and nothing waits for them.
//! 7. Nothing listens before the client asks for it, and nothing does after the first connection
//!    has ended. The other connections have the same options (`direct.rs`).
#![forbid(unsafe_code)]

mod attributes;
mod digests;
mod direct;
mod directory;
mod handles;
mod locks;
mod lost_locks;
mod operations;
mod options;
mod paths;
mod schedule;
mod server;
mod service_thread;
mod session;
mod status;
mod watches;

pub use options::Options;
pub use session::{Error, serve};
