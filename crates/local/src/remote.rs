//! [`Local`] as a [`Remote`]: every operation on a blocking thread, in the order of its handle.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DirEntry, Errno, Fh, FileKind, Location, Lock,
    LockKind, LockOwner, LockRange, OpenFlags, Opened, Remote, RemotePath, RenameMode, Result,
    Seek, SetXattr, StatVfs,
};
use bytes::Bytes;
use rustix::fs::{copy_file_range, fstat, fsync};
use tokio::sync::{Mutex, Notify};

use crate::attr::{attr, errno};
use crate::cached_attr::lstat_cached;
use crate::file::{Exclusive, File, Shared, close};
use crate::listing::Listing;
use crate::local::Local;
use crate::locks::{LockUndo, Locks, lock_pause};
use crate::root::Root;
use crate::{holes, names, open, setattr, xattr};

/// Longest copy in one call, in bytes, so that a cancelled one ends soon: about 30 ms in memory. A
/// multiple of every block size, as sharing blocks requires.
const COPY_MAX_BYTES: u64 = 64 << 20;

impl Local {
    /// Runs a call about `path` of the root.
    async fn on_path<T: Send + 'static>(
        &self,
        path: &RemotePath,
        call: impl FnOnce(&Root, &RemotePath) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (root, path) = (self.root.clone(), path.clone());
        self.pool.run(move || call(&root, &path)).await
    }

    /// Runs a call that does not change an open file.
    async fn reading<T: Send + 'static>(
        &self,
        file: Arc<File>,
        call: impl FnOnce(&File) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let guard = file.shared().await;
        self.pool.run(move || with(file, guard, |file| call(file))).await
    }

    /// Runs a call that changes an open file, or has to come after all changes.
    async fn changing(
        &self,
        fh: Fh,
        call: impl FnOnce(&File) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let file = self.files.get(fh.0)?;
        let guard = file.exclusive().await;
        self.pool.run(move || with(file, guard, |file| call(file))).await
    }

    /// Queues for the locks of both files before any other caller can queue for one of them.
    async fn lock_both(&self, from: &Arc<File>, to: &Arc<File>) -> (Shared, Exclusive) {
        let mut both = pin!(async { tokio::join!(from.shared(), to.exclusive()) });
        // Both queue in the first poll.
        poll_fn(|context| {
            let _pair_guard = self.pair_lock.lock();
            both.as_mut().poll(context)
        })
        .await
    }
}

#[async_trait]
impl Remote for Local {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        if let Some(seen) = self.device.and_then(|device| lstat_cached(&self.root, path, device)) {
            return seen;
        }
        self.on_path(path, names::lstat).await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.on_path(path, names::readlink).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let dir = self.on_path(path, names::opendir).await?;
        Ok(Dh(self.listings.add(Arc::new(Mutex::new(Listing::new(dir))))))
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let listing = Arc::clone(&*self.listings.get(dh.0)?);
        let mut listing = tokio::task::unconstrained(listing.lock_owned()).await;
        let read = move || {
            listing.fill_batch()?;
            Ok(listing)
        };
        // If this future is dropped, the batch stays for the next call.
        Ok(self.pool.run(read).await?.ready.take())
    }

    fn closedir(&self, dh: Dh) {
        self.listings.remove(dh.0);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let pool = self.pool.clone();
        let open = move |root: &Root, path: &RemotePath| {
            let (fd, attr) = open::open(root, path, flags)?;
            Ok((File::new(fd, pool), attr))
        };
        let (file, attr) = self.on_path(path, open).await?;
        Ok(Opened { fh: Fh(self.files.add(file)), attr })
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        let file = self.files.get(fh.0)?;
        self.reading(file, |file| attr(&fstat(file).map_err(errno)?)).await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.files.get(fh.0)?;
        if let Some(cached) = file.read_cached(offset, len) {
            return cached;
        }
        self.reading(file, move |file| file.read(offset, len)).await
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        self.changing(fh, move |file| file.write(offset, &data)).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        let file = self.files.get(fh.0)?;
        // Later writes need not wait for the disk.
        drop(file.shared().await);
        self.pool.run(move || fsync(&*file).map_err(errno)).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.on_path(path, names::fsyncdir).await
    }

    fn close(&self, fh: Fh) {
        self.files.remove(fh.0);
        self.end_locks(fh);
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        let file = self.files.remove(fh.0).ok_or(Errno::EBADF)?;
        self.end_locks(fh);
        drop(file.exclusive().await);
        // If another operation still uses the descriptor, the last one closes it.
        match Arc::into_inner(file).and_then(File::into_descriptor) {
            None => Ok(()),
            Some(fd) => self.pool.run(|| close(fd)).await,
        }
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        self.changing(fh, File::close_duplicate).await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.on_path(path, move |root, path| setattr::by_path(root, path, &change)).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.changing(fh, move |file| setattr::set_opened(file, &change)).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.on_path(path, move |root, path| names::mkdir(root, path, perm)).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.on_path(path, names::rmdir).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.on_path(path, names::unlink).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        let target = target.to_vec();
        self.on_path(path, move |root, path| names::symlink(root, &target, path)).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        let new = new.clone();
        self.on_path(existing, move |root, existing| names::link(root, existing, &new)).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        let to = to.clone();
        self.on_path(from, move |root, from| names::rename(root, from, &to, mode)).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.on_path(path, names::statvfs).await
    }

    /// Copies up to 64 MiB, and only between file systems of one kind.
    async fn copy(
        &self,
        (from, from_offset): (Fh, u64),
        (to, to_offset): (Fh, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.files.get(from.0)?, self.files.get(to.0)?);
        let guards = match from == to {
            true => (None, target.exclusive().await),
            false => {
                let (shared, exclusive) = self.lock_both(&source, &target).await;
                (Some(shared), exclusive)
            }
        };
        let copy = move || {
            with((source, target), guards, |(source, target)| {
                copy_range((source, from_offset), (target, to_offset), len.min(COPY_MAX_BYTES))
            })
        };
        self.pool.run(copy).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        self.on_path(path, move |root, path| names::mknod(root, path, kind, perm, device)).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        self.changing(fh, move |file| holes::fallocate(file, how, offset, len)).await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        let file = self.files.get(fh.0)?;
        self.reading(file, move |file| holes::seek(file, offset, what)).await
    }

    fn may_exceed_sftp(&self) -> bool {
        true
    }

    fn may_be_lost(&self) -> bool {
        false
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        let name = name.to_vec();
        self.on_path(path, move |root, path| xattr::get_xattr(&root.open_path(path)?, &name)).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.on_path(path, |root, path| xattr::list_xattrs(&root.open_path(path)?)).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        let name = name.to_vec();
        self.on_path(path, move |root, path| {
            xattr::set_xattr(&root.open_path(path)?, &name, &value, mode)
        })
        .await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        let name = name.to_vec();
        self.on_path(path, move |root, path| xattr::remove_xattr(&root.open_path(path)?, &name))
            .await
    }

    async fn locate(&self, path: &RemotePath) -> Result<Vec<Location>> {
        self.lstat(path).await?;
        Ok(vec![self.location.clone()])
    }

    fn has_locks(&self) -> bool {
        true
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        for attempts in 1.. {
            // Before the attempt, so that no unlock is missed.
            let mut unlocked = pin!(self.unlocked.notified());
            unlocked.as_mut().enable();
            match self.try_lock(fh, lock).await {
                Err(Errno::EAGAIN) if wait => {}
                set => return set,
            }
            let _ = tokio::time::timeout(lock_pause(attempts), unlocked).await;
        }
        unreachable!("attempts are not limited")
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        let (locks, unlocked) = (self.locks.clone(), self.unlocked.clone());
        self.changing(fh, move |file| {
            let done = locks.unlock(file, owner, range);
            unlocked.notify_waiters();
            done
        })
        .await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        let (file, locks) = (self.files.get(fh.0)?, self.locks.clone());
        self.reading(file, move |file| locks.test(file, lock)).await
    }
}

/// A lock that was set for a caller. If the caller has gone, the lock is undone.
struct SetLock {
    locks: Arc<Locks>,
    unlocked: Arc<Notify>,
    undo: Option<LockUndo>,
}

impl Drop for SetLock {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.locks.undo(&undo);
            self.unlocked.notify_waiters();
        }
    }
}

impl Local {
    async fn try_lock(&self, fh: Fh, lock: Lock) -> Result<()> {
        let file = self.files.get(fh.0)?;
        let guard = file.exclusive().await;
        let (locks, unlocked) = (self.locks.clone(), self.unlocked.clone());
        let set = move || {
            let undo = Some(with(file, guard, |file| locks.set(fh.0, file, lock))?);
            Ok(SetLock { locks, unlocked, undo })
        };
        let mut set = self.pool.run(set).await?;
        // Closed in the meantime, which may not have ended this lock.
        self.files.get(fh.0)?;
        set.undo = None;
        Ok(())
    }

    /// The handle was removed from the table.
    fn end_locks(&self, fh: Fh) {
        if self.locks.is_empty() {
            return;
        }
        let (locks, unlocked) = (self.locks.clone(), self.unlocked.clone());
        self.pool.run_detached(move || {
            locks.close(fh.0);
            unlocked.notify_waiters();
        });
    }
}

/// Calls with open files, and drops them before `guard`, which holds their locks. So the last
/// reference to a file is that of [`Local::finish`], which waits for the lock and reports the error
/// of the close.
fn with<F, G, T>(files: F, guard: G, call: impl FnOnce(&F) -> T) -> T {
    let result = call(&files);
    drop(files);
    drop(guard);
    result
}

fn copy_range(from: (&File, u64), to: (&File, u64), len: u64) -> Result<u64> {
    use rustix::io::Errno as Native;
    let (mut from_offset, mut to_offset) = (from.1, to.1);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    loop {
        let (at, goal) = (Some(&mut from_offset), Some(&mut to_offset));
        match copy_file_range(from.0, at, to.0, goal, len) {
            Ok(count) => return Ok(count as u64),
            Err(Native::INTR) => {}
            // Not supported between these two files, or not at all: the caller can read and write.
            Err(Native::XDEV | Native::NOSYS | Native::OPNOTSUPP) => return Err(Errno::EOPNOTSUPP),
            Err(error) => return Err(errno(error)),
        }
    }
}
