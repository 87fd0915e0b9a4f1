//! [`Filesystem`]: the trait to implement.
//!
//! # The contract about cancellation
//!
//! When a signal ends the caller of a request, or requests its end while the server is silent, the
//! session **drops the future** of the operation and answers `EINTR`; other signals have no effect.
//! It also drops the futures that are left when the session has ended. So:
//!
//! 1. An operation whose result the kernel returns later (a lookup counted by `lookup`, `mkdir`,
//!    `mknod`, `symlink`, `link`, `create`; a handle of `open`, `opendir`, `create`) takes effect
//!    **in the poll that returns it**. A future dropped earlier has counted no lookup and left no
//!    handle open.
//! 2. The session undoes a result that could not be delivered because the kernel had cancelled the
//!    request: `forget(ino, 1)` for an entry, `release` or `releasedir` for a handle.
//! 3. An entry pushed to a [`DirSink`] counts as soon as it is pushed; see there.
//! 4. `release`, `releasedir` and `forget` are never cancelled by a signal.
//!
//! # The contract about threads
//!
//! Operations run concurrently. Each is first polled by a thread that reads from the kernel, so
//! none may block; it has to wait asynchronously.
//!
//! # Errors
//!
//! An [`Errno`] is returned to the caller unchanged. After `ENOSYS` the kernel does not send that
//! request again for the life of the mount: for `open`, `opendir`, `flush`, `fsync`, `fsyncdir`,
//! `access` and `release` this means success; `create` falls back to `mknod` and `open`, `statx` to
//! `getattr`, and `lseek`, `copy_file_range` to the kernel's own implementation; extended attributes
//! become `EOPNOTSUPP`, and `link` becomes `EPERM` (Linux 6.14). A panic is answered with `EIO`.
//!
//! # What has no method
//!
//! `tmpfile`, `poll`, `bmap`, `ioctl` and `syncfs`. After `ENOSYS`, `O_TMPFILE` is `EOPNOTSUPP`, a
//! file is always ready for poll(2), and syncfs(2) writes what the kernel has cached.

use std::future::Future;
use std::time::Duration;

use base::{Data, Entry, Errno, LockKind, LockRange, LookupResult, Result, Stat, StatVfs};
use bytes::Bytes;

use crate::attr::SetAttr;
use crate::directory::DirSink;
use crate::open::Opened;
use crate::operation::{Context, CopyFileRange, Create, LockRequest, Open, Read, Write};
use crate::session::{Finished, Started};

/// Operations that return `ENOSYS` unless they are implemented.
macro_rules! operations {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $($(#[$doc])*
        fn $name(&self, $($argument: $kind),*) -> impl Future<Output = Result<$result>> + Send {
            std::future::ready(Err(Errno::ENOSYS))
        })*
    };
}

/// A file system to mount. The [module](self) has the rules. Methods that are not implemented
/// return `ENOSYS`, unless stated otherwise.
///
/// Inodes are identified by node id: `ino`, 1 for the root. Names are bytes without `/` and NUL,
/// never empty.
#[allow(unused_variables)] // Of the default methods.
pub trait Filesystem: Send + Sync + 'static {
    /// Called once, before the first request is read.
    fn init(&self, started: &Started) {}

    /// Called once, after the last operation has ended or was dropped; outstanding data is saved
    /// here. The mount point is already unmounted, unless that failed. If the session was stopped,
    /// programs may still use the mount: `flush`, `fsync`, `release`, `releasedir`, `fsyncdir`,
    /// `forget` and writes of mapped pages may be called until this returns, and are dropped then.
    fn destroy(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Time without a reply from the back end that has `ino` while operations wait for it; zero
    /// while it replies. A caller that handles a signal that requests its end gets `EINTR` after a
    /// second of silence.
    /// By default the silence is unknown, and the age of the signal decides.
    fn silent_for(&self, _ino: u64) -> Duration {
        Duration::MAX
    }

    /// Whether a request of the thread `pid`, which has just arrived, is to be
    /// [recorded](Filesystem::record). Called for each request; must not wait.
    fn is_recording(&self, pid: u32) -> bool {
        false
    }

    /// Records a request that has ended. Must not wait.
    fn record(&self, finished: &Finished<'_>) {}

    /// Returns `count` lookups of `ino`. Must not wait. By default nothing happens.
    fn forget(&self, ino: u64, count: u64) {}

    /// Opens a file. By default every open succeeds, with handle 0.
    fn open(
        &self,
        ctx: &Context,
        ino: u64,
        open: &Open,
    ) -> impl Future<Output = Result<Opened>> + Send {
        std::future::ready(Ok(Opened::default()))
    }

    /// The last close of an open file. Its error is not reported to any caller. By default `Ok`.
    fn release(&self, ino: u64, fh: u64) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Opens a directory. By default every open succeeds, with handle 0.
    fn opendir(&self, ino: u64) -> impl Future<Output = Result<Opened>> + Send {
        std::future::ready(Ok(Opened::default()))
    }

    /// The last close of an open directory. By default `Ok`.
    fn releasedir(&self, fh: u64) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Statistics of the file system. By default none; names have up to 255 bytes.
    fn statfs(&self, ino: u64) -> impl Future<Output = Result<StatVfs>> + Send {
        let (block_size, fragment_size, name_max) = (512, 512, 255);
        std::future::ready(Ok(StatVfs {
            block_size,
            fragment_size,
            name_max,
            ..StatVfs::default()
        }))
    }

    operations! {
        /// Looks up a name. A name that does not exist is `ENOENT`, or [`LookupResult::Absent`],
        /// which the kernel caches.
        fn lookup(ctx: &Context, parent: u64, name: &[u8]) -> LookupResult;

        /// Attributes.
        fn getattr(ctx: &Context, ino: u64) -> Stat;

        /// Changes the given attributes and returns the new ones.
        fn setattr(ctx: &Context, ino: u64, change: &SetAttr) -> Stat;

        /// Attributes, for a caller that may want the time of birth.
        fn statx(ino: u64) -> Stat;

        /// The target of a symbolic link.
        fn readlink(ino: u64) -> Vec<u8>;

        /// Creates a symbolic link.
        fn symlink(parent: u64, name: &[u8], target: &[u8]) -> Entry;

        /// Creates a file or a node. `mode` is file type and permissions, before the umask;
        /// `device` is major and minor number.
        fn mknod(
            ctx: &Context,
            parent: u64,
            name: &[u8],
            mode: u32,
            umask: u32,
            device: (u32, u32)
        ) -> Entry;

        /// Creates a directory. `mode` is that before the umask.
        fn mkdir(ctx: &Context, parent: u64, name: &[u8], mode: u32, umask: u32) -> Entry;

        /// Removes a name, except that of a directory.
        fn unlink(ctx: &Context, parent: u64, name: &[u8]) -> ();

        /// Removes an empty directory.
        fn rmdir(ctx: &Context, parent: u64, name: &[u8]) -> ();

        /// Renames; `flags` are those of `renameat2(2)`. An unsupported flag is `EINVAL`.
        fn rename(
            ctx: &Context,
            parent: u64,
            name: &[u8],
            new_parent: u64,
            new_name: &[u8],
            flags: u32
        ) -> ();

        /// Creates a hard link to `ino`. Counts a lookup like every entry.
        fn link(ino: u64, new_parent: u64, new_name: &[u8]) -> Entry;

        /// Creates a file unless it exists (then `EEXIST` with `O_EXCL`), and opens it.
        fn create(parent: u64, name: &[u8], create: &Create) -> (Entry, Opened);

        /// Reads. Data beyond the requested length is cut off.
        fn read(ino: u64, read: &Read) -> Data;

        /// Writes, and returns the number of bytes. A large `data` keeps one of the session's few
        /// receive buffers; a file system that keeps it for long has to copy it.
        fn write(ino: u64, write: &Write, data: Bytes) -> u32;

        /// A close of one of the descriptors of an open file.
        fn flush(ctx: &Context, fh: u64, lock_owner: u64) -> ();

        /// Makes written data durable.
        fn fsync(fh: u64) -> ();

        /// Lists from `offset` on: zero, or the `next_offset` of an earlier entry. An empty listing
        /// is the end. If the sink [has lookups](DirSink::is_plus), the kernel wants the entries
        /// looked up, too; only with [`Config::readdirplus`](crate::Config::readdirplus).
        fn readdir(ino: u64, fh: u64, offset: u64, sink: &mut DirSink) -> ();

        /// Makes the entries of a directory durable.
        fn fsyncdir(ino: u64) -> ();

        /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
        fn setxattr(ino: u64, name: &[u8], value: &[u8], flags: u32) -> ();

        /// The value of an extended attribute. The session checks it against `size`, that of the
        /// caller's buffer; zero if the caller wants to know the length.
        fn getxattr(ino: u64, name: &[u8], size: u32) -> Vec<u8>;

        /// The names of the extended attributes, each terminated by NUL. The session checks them
        /// against the caller's buffer size.
        fn listxattr(ino: u64) -> Vec<u8>;

        /// Removes an extended attribute.
        fn removexattr(ino: u64, name: &[u8]) -> ();

        /// Whether the caller has the access `mask` (`R_OK`, `W_OK`, `X_OK`). Not called with
        /// `default_permissions`.
        fn access(ino: u64, mask: u32) -> ();

        /// A lock that conflicts with the requested one, if there is one. Only with
        /// [`Config::posix_locks`](crate::Config::posix_locks).
        fn getlk(request: &LockRequest) -> Option<(LockRange, LockKind)>;

        /// Sets a lock. On a conflict waits if requested, otherwise returns `EAGAIN`. Only with
        /// [`Config::posix_locks`](crate::Config::posix_locks) or
        /// [`Config::flock_locks`](crate::Config::flock_locks).
        fn setlk(request: &LockRequest) -> ();

        /// Reserves or frees a range; `mode` is that of `fallocate(2)`.
        fn fallocate(ctx: &Context, ino: u64, fh: u64, offset: u64, len: u64, mode: i32) -> ();

        /// Finds data or a hole; `whence` is `SEEK_DATA` or `SEEK_HOLE`.
        fn lseek(fh: u64, offset: i64, whence: u32) -> u64;

        /// Copies between two files, and returns the number of bytes.
        fn copy_file_range(ctx: &Context, copy: &CopyFileRange) -> u64;
    }
}
