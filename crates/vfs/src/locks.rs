//! Locks that the remote holds: `fcntl(2)` and `flock(2)` between machines.
//!
//! A lock is also a point of consistency, as in NFS: what another holder wrote before its unlock is
//! visible after a lock, so that databases work. So a lock is answered only when the attributes
//! were requested behind it, and when the kernel has dropped the pages that are not known to be of
//! this content. An unlock is sent when all writes before it are at the server. A database also
//! relies on names beside the locked file (a journal): so the cached names of its directory are
//! validated again, too.
//!
//! The kernel keeps no record of such locks. It reports an owner's close (FLUSH), which ends the
//! owner's `fcntl` locks of the file, and the last close of an open file (RELEASE), which ends what
//! was set through it. Both ends happen in tasks of their own, which no signal interrupts.
//!
//! Invariants:
//! 1. A dropped call leaves the locks as they were before it.
//! 2. An owner is in the table before its first request is sent, so that a close finds it.
//!
//! The lock of the table is held for a few instructions, and no other one is taken inside it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{
    Attr, Errno, Fh, Lock, LockFamily, LockKind, LockOwner, LockRange, LockedRanges, Mutex, Result,
    until,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::config::{Consistency, PageCache};
use crate::inode::Inode;
use crate::open::OpenFile;
use crate::shared::Shared;
use crate::tree::RequestStamp;
use crate::{Handle, Ino, Vfs};

/// How long a request for a lock that does not wait is delayed if the holder's file is being
/// closed. The kernel reports the last close of a file after close(2) has returned.
const CLOSING: Duration = Duration::from_millis(100);

/// An owner of locks in a file.
struct Holder {
    owner: LockOwner,
    ranges: LockedRanges,
    /// The open files through which it has requested locks.
    files: Vec<u64>,
    /// One of its descriptors was closed since.
    is_closing: bool,
    /// Dropping it ends the task that waits for the loss of a lock.
    _watch: Option<oneshot::Sender<()>>,
}

impl Holder {
    fn note_file(&mut self, file: u64) {
        if !self.files.contains(&file) {
            self.files.push(file);
        }
    }
}

/// All owners of locks of a mount, by file.
#[derive(Default)]
pub(crate) struct FileLocks {
    holders: Mutex<HashMap<Ino, Vec<Holder>>>,
    /// A lock was requested.
    used: AtomicBool,
    /// Notified when an owner has unlocked all of a file.
    ended: Notify,
}

impl FileLocks {
    fn with<T>(&self, ino: Ino, owner: LockOwner, body: impl FnOnce(&mut Holder) -> T) -> T {
        let mut table = self.holders.lock();
        let holders = table.entry(ino).or_default();
        let at = holders.iter().position(|holder| holder.owner == owner).unwrap_or_else(|| {
            let (ranges, files, is_closing) = Default::default();
            holders.push(Holder { owner, ranges, files, is_closing, _watch: None });
            holders.len() - 1
        });
        body(&mut holders[at])
    }

    /// The owners of locks in `ino` that are `wanted`.
    fn owners(&self, ino: Ino, wanted: impl Fn(&mut Holder) -> bool) -> Vec<LockOwner> {
        let mut table = self.holders.lock();
        let Some(holders) = table.get_mut(&ino) else { return Vec::new() };
        holders.iter_mut().filter_map(|it| wanted(it).then_some(it.owner)).collect()
    }

    /// An owner has unlocked a range.
    fn remove(&self, ino: Ino, owner: LockOwner, range: LockRange) {
        let mut ended = Vec::new();
        let mut table = self.holders.lock();
        if let Some(holders) = table.get_mut(&ino) {
            for holder in holders.iter_mut().filter(|holder| holder.owner == owner) {
                holder.ranges.set(range, None);
            }
            let is_over = |holder: &mut Holder| {
                holder.owner == owner && (range == LockRange::WHOLE || holder.ranges.is_empty())
            };
            ended.extend(holders.extract_if(.., is_over));
            if holders.is_empty() {
                table.remove(&ino);
            }
        }
        drop(table);
        if !ended.is_empty() {
            self.ended.notify_waiters();
        }
    }

    /// Whether any lock was requested on this mount.
    pub(crate) fn are_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
}

/// A lock that was set for a caller that has not got the answer. If it is dropped, what was locked
/// before is restored.
struct Granted<'a> {
    shared: &'a Arc<Shared>,
    file: &'a Arc<OpenFile>,
    fh: Fh,
    owner: LockOwner,
    range: LockRange,
    is_answered: bool,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let (shared, file) = (self.shared.clone(), self.file.clone());
        let Granted { fh, owner, range, .. } = *self;
        let ino = file.inode.ino;
        let before = shared.locks.with(ino, owner, |holder| holder.ranges.within(range));
        detach(async move {
            for (range, kind) in before.iter() {
                let _ = shared.remote.lock(fh, Lock::new(owner, range, kind), false).await;
            }
            for gap in before.gaps(range) {
                let _ = shared.remote.unlock(fh, owner, gap).await;
            }
            drop(file);
        });
    }
}

/// Runs a task that no caller waits for. Not background work: it must not end with the mount's last
/// file. Without a runtime the mount has ended, and with it all its locks.
fn detach(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(task);
    }
}

impl Vfs {
    /// Sets a lock through an open file, for an owner. With `wait`, waits until it is free.
    ///
    /// # Errors
    /// Those of [`Remote::lock`](base::Remote::lock).
    pub async fn lock(
        &self,
        handle: Handle,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
        wait: bool,
    ) -> Result<()> {
        let file = self.files.get(handle.0)?;
        let inode = &file.inode;
        inode.writes.drained().await;
        let fh = file.fh().await?;
        self.locks.used.store(true, Ordering::Relaxed);
        self.locks.with(inode.ino, owner, |holder| {
            holder.is_closing = false;
            holder.note_file(file.number);
        });
        let lock = Lock { owner, range, kind };
        let (granted, stamp, attr) = self.request_lock(&file, fh, lock, wait).await?;
        self.revalidate_locked(inode, &attr?, stamp).await;
        let watch = self.locks.with(inode.ino, owner, |holder| {
            holder.ranges.set(range, Some(kind));
            // Another thread of the process may have unlocked what it had, and removed the owner.
            holder.note_file(file.number);
            holder._watch.is_none().then(|| {
                let (watch, ended) = oneshot::channel();
                holder._watch = Some(watch);
                ended
            })
        });
        granted.answered();
        if let Some(ended) = watch {
            self.watch_lock(inode.clone(), fh, ended);
        }
        Ok(())
    }

    /// Requests a lock, and, behind it, the attributes of the file.
    async fn request_lock<'a>(
        &'a self,
        file: &'a Arc<OpenFile>,
        fh: Fh,
        lock: Lock,
        wait: bool,
    ) -> Result<(Granted<'a>, RequestStamp, Result<Attr>)> {
        let (ino, Lock { owner, range, .. }) = (file.inode.ino, lock);
        let granted =
            || Granted { shared: &self.shared, file, fh, owner, range, is_answered: false };
        let at_once = async |stamp| {
            // Both in one round trip. The lock takes effect first, since it is polled first.
            let locking = async { self.remote.lock(fh, lock, false).await.map(|()| granted()) };
            let (granted, attr) = tokio::join!(locking, self.remote.fstat(fh));
            Ok((granted?, stamp, attr))
        };
        let first = at_once(self.stamp_request()).await;
        if !matches!(first, Err(Errno::EAGAIN)) {
            return first;
        }
        if !wait {
            return match self.holder_has_closed(ino, owner).await {
                true => at_once(self.stamp_request()).await,
                false => first,
            };
        }
        self.remote.lock(fh, lock, true).await?;
        let granted = granted();
        let stamp = self.stamp_request();
        let attr = self.remote.fstat(fh).await;
        Ok((granted, stamp, attr))
    }

    /// Waits for a holder of `flock` whose file is being closed, for a moment. Returns whether it
    /// is over.
    async fn holder_has_closed(&self, ino: Ino, owner: LockOwner) -> bool {
        if owner.family != LockFamily::Flock {
            return false;
        }
        let is_closing = || {
            let others = |holder: &mut Holder| holder.is_closing && holder.owner != owner;
            !self.locks.owners(ino, others).is_empty()
        };
        if !is_closing() {
            return false;
        }
        let deadline = Instant::now() + CLOSING;
        let closed = until(&self.locks.ended, || (!is_closing()).then_some(()));
        tokio::time::timeout_at(deadline, closed).await.is_ok()
    }

    /// A lock was set, and the file has these attributes since: nothing older is shown from now on.
    async fn revalidate_locked(&self, inode: &Arc<Inode>, attr: &Attr, stamp: RequestStamp) {
        if self.config.consistency == Consistency::Immutable {
            return;
        }
        self.record_attr_by_handle(inode, attr, stamp, Instant::now());
        let keeps_pages = {
            let mut state = inode.state();
            let is_unchanged = state.unchanged_since(stamp.seq);
            if !is_unchanged {
                // It is being written locally: no validator names the content of the pages.
                state.invalidate_pages_and_size();
            }
            is_unchanged
                && state.validate_pages(attr, false, Instant::now())
                && !state.may_drop_pages()
        };
        let is_first = {
            let mut tree = self.tree();
            let dir = tree.used_name(inode.ino).map(|(dir, _)| dir);
            dir.is_some_and(|dir| tree.expire_names_in(dir, Instant::now()))
        };
        let Some(kernel) = self.invalidate.get() else { return };
        if is_first {
            // The kernel gets no time-outs for its names from now on, but has some from before.
            kernel.names(&[]);
        }
        if !keeps_pages {
            if self.config.page_cache != PageCache::Never {
                kernel.content_dropped(inode.ino).await;
            }
            inode.state().note_pages_gone();
        }
    }

    /// Drops the pages of a file when a lock on it was lost: the next read then fails.
    fn watch_lock(&self, inode: Arc<Inode>, fh: Fh, ended: oneshot::Receiver<()>) {
        let shared = self.shared.clone();
        self.background.start(async move {
            let is_lost = tokio::select! {
                biased;
                _ = ended => false,
                () = shared.remote.lost_lock(fh) => true,
            };
            if is_lost {
                shared.drop_pages(&inode);
            }
        });
    }

    /// Removes what an owner has locked in a range, when all writes are at the server.
    pub async fn unlock(&self, handle: Handle, owner: LockOwner, range: LockRange) -> Result<()> {
        let file = self.files.get(handle.0)?;
        file.inode.writes.drained().await;
        let unlocked = self.remote.unlock(file.fh().await?, owner, range).await;
        self.locks.remove(file.inode.ino, owner, range);
        unlocked
    }

    /// A lock of another owner that excludes this one.
    pub async fn test_lock(
        &self,
        handle: Handle,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<(LockRange, LockKind)>> {
        let file = self.files.get(handle.0)?;
        self.remote.test_lock(file.fh().await?, Lock { owner, range, kind }).await
    }
}

/// The end of an owner's locks at a close. It is requested even if the caller stops waiting.
pub(crate) struct LocksOfClose {
    shared: Arc<Shared>,
    file: Arc<OpenFile>,
    owners: Vec<LockOwner>,
}

impl LocksOfClose {
    /// Returns when the locks have ended at the remote.
    pub(crate) async fn end(mut self) {
        if let Some(ended) = self.start() {
            let _ = ended.await;
        }
    }

    fn start(&mut self) -> Option<oneshot::Receiver<()>> {
        let owners = std::mem::take(&mut self.owners);
        if owners.is_empty() {
            return None;
        }
        let (shared, file) = (self.shared.clone(), self.file.clone());
        let (done, ended) = oneshot::channel();
        detach(async move {
            file.inode.writes.drained().await;
            for owner in owners {
                if let Some(fh) = file.remote.opened() {
                    // If it fails, the connection is lost or the file is gone, and the lock with
                    // it.
                    let _ = shared.remote.unlock(fh, owner, LockRange::WHOLE).await;
                }
                shared.locks.remove(file.inode.ino, owner, LockRange::WHOLE);
            }
            // The handle is closed after that.
            drop(file);
            let _ = done.send(());
        });
        Some(ended)
    }
}

impl Drop for LocksOfClose {
    fn drop(&mut self) {
        self.start();
    }
}

impl Vfs {
    /// A descriptor of `file` is being closed by the process with this number as a lock owner.
    pub(crate) fn locks_of_close(&self, file: &Arc<OpenFile>, number: Option<u64>) -> LocksOfClose {
        let closing = |holder: &mut Holder| {
            holder.is_closing |= holder.files.contains(&file.number);
            holder.owner.family == LockFamily::Posix && Some(holder.owner.number) == number
        };
        self.ending(file, closing)
    }

    /// The last descriptor of `file` was closed.
    pub(crate) fn end_locks_of_released(&self, file: &Arc<OpenFile>) {
        drop(self.ending(file, |holder| holder.files.contains(&file.number)));
    }

    fn ending(
        &self,
        file: &Arc<OpenFile>,
        is_ending: impl Fn(&mut Holder) -> bool,
    ) -> LocksOfClose {
        let owners = match self.locks.are_used() {
            true => self.locks.owners(file.inode.ino, is_ending),
            false => Vec::new(),
        };
        LocksOfClose { shared: self.shared.clone(), file: file.clone(), owners }
    }

    /// Whether a file in this directory was locked: then its names have no time-outs in the kernel.
    pub(crate) fn has_locked_files(&self, dir: Ino) -> bool {
        self.locks.are_used() && self.tree().has_locked_files(dir)
    }
}

impl Granted<'_> {
    fn answered(mut self) {
        self.is_answered = true;
    }
}
