//! [`Filesystem`]: what has to be implemented to be mounted.
//!
//! # The contract about cancellation
//!
//! When a signal ends the caller of a request, or requests its end while the server is silent, the
//! session **drops the future** of the operation and answers `EINTR`; other signals have no effect.
//! It also drops the futures that are left when the session has ended. So:
//!
//! 1. An operation that gives the kernel something which it will give back later (a look-up
//!    counted by `lookup`, `mkdir`, `mknod`, `symlink`, `link`, `create`, `tmpfile`; a handle of
//!    `open`, `opendir`, `create`, `tmpfile`) takes effect **in the same poll in which it
//!    returns**. A future that is dropped earlier has counted nothing and left no handle open.
//! 2. What was returned but could not be delivered, since the kernel had given up the request,
//!    is undone by the session: `forget(ino, 1)` for an entry, `release` or `releasedir` for a
//!    handle.
//! 3. An entry pushed to a [`PlusSink`] counts as soon as it is pushed; see there.
//! 4. `release`, `releasedir` and `forget` are never cancelled by a signal.
//!
//! # The contract about threads
//!
//! Operations run concurrently. Each is first polled by a thread that reads from the kernel, so
//! none may block. What takes long waits as a future does.
//!
//! # Errors
//!
//! An [`Errno`] goes to the caller as it is. To `ENOSYS` the kernel reacts by not
//! asking that again for the life of the mount: for `open`, `opendir`, `flush`, `fsync`,
//! `fsyncdir`, `access` and `release` that means success, for `create` it falls back to `mknod`
//! and `open`, for `statx` to `getattr`, for `lseek`, `copy_file_range`, `poll` to what it can do
//! itself, and for extended attributes to `EOPNOTSUPP`. A panic is answered with `EIO`.

use std::future::Future;
use std::time::Duration;

use base::{Data, Errno, Result};
use bytes::Bytes;

use crate::attr::{AttrReply, Entry, SetAttr, Statfs, StatxReply};
use crate::directory::{DirSink, PlusSink};
use crate::open::Opened;
use crate::operation::{
    Context, CopyFileRange, Create, Ioctl, Lock, LockRequest, Open, Read, Release, Write,
};
use crate::session::Started;

/// What an `ioctl` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// What `ioctl(2)` returns.
    pub result: i32,
    /// What is copied to the caller; not more than was asked for.
    pub data: Vec<u8>,
}

/// The answer of a default method.
fn unsupported<T: Send>() -> impl Future<Output = Result<T>> + Send {
    std::future::ready(Err(Errno::ENOSYS))
}

/// A file system to mount. The [module](self) tells the rules; a method that is not implemented
/// answers `ENOSYS`, unless it says otherwise.
///
/// Inodes are named by node id: `ino`, 1 for the root. Names are bytes without `/` and NUL, never
/// empty.
#[allow(unused_variables)] // Of the default methods.
pub trait Filesystem: Send + Sync + 'static {
    /// Called once, before the first request is read.
    fn init(&self, started: &Started) {}

    /// Called once, after the last operation has ended or was dropped; what is still to be saved is
    /// saved here. The mount is out of the tree of files by then, unless that failed. Where the
    /// session was stopped, programs may use it still: `flush`, `fsync`, `release`, `releasedir`,
    /// `fsyncdir`, `forget` and writes of mapped pages may be called until this returns, and are
    /// dropped then.
    fn destroy(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The time for which what answers the operations has been silent although they wait for it;
    /// zero while it answers. A caller whose end is only requested by a signal that it handles gets
    /// `EINTR` after a second of silence. By default it is not known, and the age of the signal
    /// decides.
    fn silent_for(&self) -> Duration {
        Duration::MAX
    }

    /// Looks up a name. An absent one is `ENOENT`, or an [`Entry::negative`] that the kernel
    /// remembers.
    fn lookup(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
    ) -> impl Future<Output = Result<Entry>> + Send {
        unsupported()
    }

    /// Takes back `count` look-ups of `ino`. Waits for nothing. By default nothing happens.
    fn forget(&self, ino: u64, count: u64) {}

    /// Attributes, of the open file `fh` if that is given.
    fn getattr(
        &self,
        ctx: &Context,
        ino: u64,
        fh: Option<u64>,
    ) -> impl Future<Output = Result<AttrReply>> + Send {
        unsupported()
    }

    /// Changes attributes, all that are given, and answers the new ones.
    fn setattr(
        &self,
        ctx: &Context,
        ino: u64,
        change: &SetAttr,
    ) -> impl Future<Output = Result<AttrReply>> + Send {
        unsupported()
    }

    /// Attributes with the time of birth; `flags` are those of `statx(2)`, `mask` its
    /// `STATX_*` bits.
    fn statx(
        &self,
        ctx: &Context,
        ino: u64,
        fh: Option<u64>,
        flags: u32,
        mask: u32,
    ) -> impl Future<Output = Result<StatxReply>> + Send {
        unsupported()
    }

    /// The target of a symbolic link.
    fn readlink(&self, ctx: &Context, ino: u64) -> impl Future<Output = Result<Vec<u8>>> + Send {
        unsupported()
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> impl Future<Output = Result<Entry>> + Send {
        unsupported()
    }

    /// Makes a file or a node. `mode` is kind and permissions, the umask already applied.
    fn mknod(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> impl Future<Output = Result<Entry>> + Send {
        unsupported()
    }

    /// Makes a directory.
    fn mkdir(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> impl Future<Output = Result<Entry>> + Send {
        unsupported()
    }

    /// Removes a name that is no directory's.
    fn unlink(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Removes an empty directory.
    fn rmdir(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Renames; `flags` are those of `renameat2(2)`. One that is not served is `EINVAL`.
    fn rename(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Gives `ino` another name. Counts a look-up like every entry.
    fn link(
        &self,
        ctx: &Context,
        ino: u64,
        new_parent: u64,
        new_name: &[u8],
    ) -> impl Future<Output = Result<Entry>> + Send {
        unsupported()
    }

    /// Opens a file. By default every open succeeds, with handle 0.
    fn open(
        &self,
        ctx: &Context,
        ino: u64,
        open: &Open,
    ) -> impl Future<Output = Result<Opened>> + Send {
        std::future::ready(Ok(Opened::default()))
    }

    /// Makes a file unless it is there (`EEXIST` then with `O_EXCL`), and opens it.
    fn create(
        &self,
        ctx: &Context,
        parent: u64,
        name: &[u8],
        create: &Create,
    ) -> impl Future<Output = Result<(Entry, Opened)>> + Send {
        unsupported()
    }

    /// Makes a file without a name, and opens it (`O_TMPFILE`).
    fn tmpfile(
        &self,
        ctx: &Context,
        parent: u64,
        create: &Create,
    ) -> impl Future<Output = Result<(Entry, Opened)>> + Send {
        unsupported()
    }

    /// Reads. What is more than was asked for is cut off.
    fn read(
        &self,
        ctx: &Context,
        ino: u64,
        read: &Read,
    ) -> impl Future<Output = Result<Data>> + Send {
        unsupported()
    }

    /// Writes, and answers how many bytes. A large `data` holds one of the session's few receive
    /// buffers; who keeps it for long copies it.
    fn write(
        &self,
        ctx: &Context,
        ino: u64,
        write: &Write,
        data: Bytes,
    ) -> impl Future<Output = Result<u32>> + Send {
        unsupported()
    }

    /// A close of one of the descriptors of an open file.
    fn flush(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        lock_owner: u64,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// The last close of an open file. Its error goes to nobody. By default `Ok`.
    fn release(
        &self,
        ctx: &Context,
        ino: u64,
        release: &Release,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Makes what was written durable.
    fn fsync(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        datasync: bool,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Opens a directory. By default every open succeeds, with handle 0.
    fn opendir(
        &self,
        ctx: &Context,
        ino: u64,
        flags: i32,
    ) -> impl Future<Output = Result<Opened>> + Send {
        std::future::ready(Ok(Opened::default()))
    }

    /// Lists, from `offset` on: zero, or the `next_offset` of an entry listed before. An empty
    /// listing is the end.
    fn readdir(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Lists and looks up. `ENOSYS` is **not** followed by `readdir`: who does not implement it
    /// switches [`Config::readdirplus`](crate::Config::readdirplus) off.
    fn readdirplus(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        offset: u64,
        sink: &mut PlusSink,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// The last close of an open directory. By default `Ok`.
    fn releasedir(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        flags: i32,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Makes the entries of a directory durable.
    fn fsyncdir(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        datasync: bool,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Figures of the file system. By default [`Statfs::default`].
    fn statfs(&self, ctx: &Context, ino: u64) -> impl Future<Output = Result<Statfs>> + Send {
        std::future::ready(Ok(Statfs::default()))
    }

    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    fn setxattr(
        &self,
        ctx: &Context,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// The value of an extended attribute. The session compares it with the caller's room.
    fn getxattr(
        &self,
        ctx: &Context,
        ino: u64,
        name: &[u8],
    ) -> impl Future<Output = Result<Vec<u8>>> + Send {
        unsupported()
    }

    /// The names of the extended attributes, each with a NUL behind it. The session compares them
    /// with the caller's room.
    fn listxattr(&self, ctx: &Context, ino: u64) -> impl Future<Output = Result<Vec<u8>>> + Send {
        unsupported()
    }

    /// Removes an extended attribute.
    fn removexattr(
        &self,
        ctx: &Context,
        ino: u64,
        name: &[u8],
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Whether the caller may do what `mask` (`R_OK`, `W_OK`, `X_OK`) says. Not asked with
    /// `default_permissions`.
    fn access(
        &self,
        ctx: &Context,
        ino: u64,
        mask: u32,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// The lock that stands against the one asked for, or that one with
    /// [`LockKind::Unlock`](crate::LockKind::Unlock). Only with
    /// [`Config::posix_locks`](crate::Config::posix_locks).
    fn getlk(
        &self,
        ctx: &Context,
        ino: u64,
        request: &LockRequest,
    ) -> impl Future<Output = Result<Lock>> + Send {
        unsupported()
    }

    /// Sets a lock, waiting for it if that is asked for; else `EAGAIN` when another stands
    /// against it. Only with [`Config::posix_locks`](crate::Config::posix_locks) or
    /// [`Config::flock_locks`](crate::Config::flock_locks).
    fn setlk(
        &self,
        ctx: &Context,
        ino: u64,
        request: &LockRequest,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// The block of the device behind a block of the file. Only for mounts of block devices.
    fn bmap(
        &self,
        ctx: &Context,
        ino: u64,
        block: u64,
        blocksize: u32,
    ) -> impl Future<Output = Result<u64>> + Send {
        unsupported()
    }

    /// A restricted `ioctl(2)`. By default `ENOTTY`.
    fn ioctl(
        &self,
        ctx: &Context,
        ino: u64,
        ioctl: &Ioctl,
        data: &[u8],
    ) -> impl Future<Output = Result<IoctlReply>> + Send {
        std::future::ready(Err(Errno::ENOTTY))
    }

    /// The events of `poll(2)` that hold now. `events` are those asked for; notification of later
    /// ones is not served.
    fn poll(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        events: u32,
    ) -> impl Future<Output = Result<u32>> + Send {
        unsupported()
    }

    /// Reserves or frees a range; `mode` is that of `fallocate(2)`.
    fn fallocate(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }

    /// Finds data or a hole; `whence` is `SEEK_DATA` or `SEEK_HOLE`.
    fn lseek(
        &self,
        ctx: &Context,
        ino: u64,
        fh: u64,
        offset: i64,
        whence: u32,
    ) -> impl Future<Output = Result<u64>> + Send {
        unsupported()
    }

    /// Copies between two files, and answers how many bytes.
    fn copy_file_range(
        &self,
        ctx: &Context,
        ino: u64,
        copy: &CopyFileRange,
    ) -> impl Future<Output = Result<u64>> + Send {
        unsupported()
    }

    /// Makes everything durable (`syncfs(2)`). The kernel asks this of privileged mounts only.
    fn syncfs(&self, ctx: &Context, ino: u64) -> impl Future<Output = Result<()>> + Send {
        unsupported()
    }
}
