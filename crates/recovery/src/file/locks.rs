//! The locks of an open file across a lost connection.
//!
//! The server ends the locks of a session with it. So this remembers what each owner has locked
//! ([`OwnerLocks`]), and sets it again when the file is reopened: after its handles were opened,
//! and before a change is replayed or a caller continues ([`reclaim`]).
//!
//! There is no grace period at the server: between the loss and the reopening another owner may
//! take the lock. An owner's locks are *lost* if one of them cannot be set again, or if the file
//! cannot be reopened. From then on every call through the handles that were open fails with `EIO`,
//! and changes that wait are not replayed, until the owner has unlocked all of the file or those
//! handles are closed. So an owner never continues without its lock, though another one may have
//! had it at the same time.
//!
//! The server may not have noticed the loss yet, and still hold the locks for the former session. A
//! lock that is held is therefore requested for [`RECLAIM_LIMIT`].
//!
//! A lock is recorded in the poll that returns it, and removed in the poll that sends its unlock;
//! both only in phase `Open`. `flock(2)` removes the old lock when a conversion fails, also one that
//! then waits: so does the poll that returns this. While a file has locks, no flush closes a handle
//! of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{
    Errno, Fh, Lock, LockFamily, LockKind, LockOwner, LockRange, LockedRanges, OnDrop, Result,
    until,
};
use tokio::time::Instant;

use super::{FileState, Handle, OpenFile, Phase};
use crate::{Core, RetryPolicy};

/// How long a lock is requested again that another owner has, which may be the former session: a
/// little longer than the lease that `host` has promised to the server. Usually the server gets the
/// end of the connection, and has ended that session already.
const RECLAIM_LIMIT: Duration = Duration::from_secs(50);

/// Time between two attempts.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(100);

/// What one owner has locked in a file.
pub(crate) struct OwnerLocks {
    owner: LockOwner,
    ranges: LockedRanges,
    /// The numbers of the handles through which it was locked.
    handles: Vec<u64>,
    /// Another owner may have had it in the meantime.
    is_lost: bool,
}

impl FileState {
    fn owner_locks(&mut self, owner: LockOwner) -> Option<&mut OwnerLocks> {
        self.locks.iter_mut().find(|held| held.owner == owner)
    }

    /// Whether a lock is held or requested.
    pub(crate) fn has_locks(&self) -> bool {
        !self.locks.is_empty() || self.lock_calls > 0
    }

    /// Whether such a lock replaces one of `flock(2)` that is of the other kind.
    fn converts(&self, owner: LockOwner, kind: LockKind) -> bool {
        let mut held = self.locks.iter().filter(|held| held.owner == owner);
        owner.family == LockFamily::Flock
            && held.any(|held| held.ranges.iter().any(|(_, before)| before != kind))
    }

    /// Whether the calls of this handle must fail.
    pub(crate) fn has_lost_lock(&self, number: u64) -> bool {
        self.locks.iter().any(|held| held.is_lost)
            && self.inner_handles.get(&number).is_some_and(|inner| inner.had_locks)
    }

    /// Whether a lock of this file was lost.
    pub(crate) fn has_any_lost_lock(&self) -> bool {
        self.locks.iter().any(|held| held.is_lost)
    }

    fn record(&mut self, number: u64, owner: LockOwner, range: LockRange, kind: LockKind) {
        if self.owner_locks(owner).is_none() {
            let (ranges, handles) = Default::default();
            self.locks.push(OwnerLocks { owner, ranges, handles, is_lost: false });
        }
        if let Some(held) = self.owner_locks(owner) {
            held.ranges.set(range, Some(kind));
            if !held.handles.contains(&number) {
                held.handles.push(number);
            }
        }
    }

    /// Removes what was unlocked. Returns whether the locks of this owner were lost: then the
    /// server has none of them.
    fn remove(&mut self, owner: LockOwner, range: LockRange) -> bool {
        let Some(held) = self.owner_locks(owner) else { return false };
        held.ranges.set(range, None);
        let was_lost = held.is_lost;
        self.locks.retain(|held| !held.ranges.is_empty());
        was_lost
    }

    /// The handle with this number is closed, with the locks that were set through no other one.
    pub(super) fn remove_locks_of(&mut self, number: u64) {
        for held in &mut self.locks {
            held.handles.retain(|handle| *handle != number);
        }
        self.locks.retain(|held| !held.handles.is_empty());
    }

    /// The locks of this owner, or of all, are lost.
    pub(crate) fn lose_locks(&mut self, owner: Option<LockOwner>) -> bool {
        let mut is_new = false;
        for held in self.locks.iter_mut().filter(|held| owner.is_none_or(|it| it == held.owner)) {
            is_new |= !std::mem::replace(&mut held.is_lost, true);
        }
        if is_new {
            self.inner_handles.values_mut().for_each(|inner| inner.had_locks = true);
        }
        is_new
    }

    /// The inner handles through which these locks can be set again.
    fn lockable(&self, held: &OwnerLocks) -> Vec<(Arc<Handle>, Fh)> {
        let usable = |number: &u64| {
            let inner = self.inner_handles.get(number)?;
            // Not upgraded only to be dropped here: as the last one, it would lock the file.
            let handle = inner.refused.is_none().then(|| inner.handle.upgrade())??;
            Some((handle, inner.fh))
        };
        held.handles.iter().filter_map(usable).collect()
    }
}

fn permits(handle: &Handle, owner: LockOwner, kind: LockKind) -> bool {
    let access = handle.flags.access;
    owner.family == LockFamily::Flock
        || match kind {
            LockKind::Read => access.reads(),
            LockKind::Write => access.writes(),
        }
}

impl Core {
    /// Sets a lock. After a loss the request is repeated: the server has ended what the former
    /// session had locked.
    pub(crate) async fn lock(self: &Arc<Core>, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        let Lock { owner, range, kind } = lock;
        let handle = self.files.handle(fh)?;
        let file = &handle.file;
        self.wait_for_queue(file).await?;
        // No flush closes the file meanwhile.
        file.lock().lock_calls += 1;
        let _call = OnDrop(|| file.lock().lock_calls -= 1);
        // The epoch in which the last request was sent.
        let epoch = AtomicU64::new(0);
        loop {
            let converts = {
                let mut state = file.lock();
                if state.owner_locks(owner).is_some_and(|held| held.is_lost) {
                    return Err(Errno::EIO);
                }
                state.converts(owner, kind)
            };
            let locked = self.retry_with_handles([&handle], |[fh]| {
                epoch.store(file.lock().epoch, Ordering::Relaxed);
                // If it would wait, there is no reply that shows the end of the old lock.
                self.inner.lock(fh, lock, wait && !converts)
            });
            let locked = locked.await;
            match locked {
                Err(Errno::EAGAIN) if converts => {
                    file.lock().remove(owner, LockRange::WHOLE);
                    if !wait {
                        return Err(Errno::EAGAIN);
                    }
                    continue;
                }
                // A retry has a deadline for the server, but not for the lock.
                Err(Errno::ETIMEDOUT) if wait && !self.connection.is_disconnected() => continue,
                locked => locked?,
            }
            let mut state = file.lock();
            // Otherwise it may have been set in a session that has ended.
            if state.epoch == epoch.load(Ordering::Relaxed) && state.phase == Phase::Open {
                state.record(handle.number, owner, range, kind);
                return Ok(());
            }
        }
    }

    pub(crate) async fn unlock(
        self: &Arc<Core>,
        fh: Fh,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<()> {
        let handle = self.files.handle(fh)?;
        let file = &handle.file;
        let of_lost = {
            let mut state = file.lock();
            let has_lost = state.has_lost_lock(handle.number) || state.phase == Phase::Dead;
            has_lost.then(|| {
                let was_lost = state.remove(owner, range);
                let inner = state.inner_handles.get(&handle.number);
                inner.map(|inner| inner.fh).filter(|_| !was_lost && state.phase == Phase::Open)
            })
        };
        if let Some(inner) = of_lost {
            // The handle refuses all other calls; those of another owner may be held.
            return match inner {
                Some(fh) => self.inner.unlock(fh, owner, range).await,
                None => Ok(()),
            };
        }
        self.wait_for_queue(file).await?;
        let unlocked = self.retry_with_handles([&handle], |[fh]| {
            file.lock().remove(owner, range);
            self.inner.unlock(fh, owner, range)
        });
        let unlocked = unlocked.await;
        if unlocked.is_err() {
            // It is not set again, or unlocked as soon as it is.
            file.lock().remove(owner, range);
        }
        unlocked
    }

    /// Returns when a lock on the file was lost.
    pub(crate) async fn lost_lock(&self, fh: Fh) {
        let Ok(handle) = self.files.handle(fh) else { return std::future::pending().await };
        let (file, number) = (handle.file.clone(), handle.number);
        // The caller may close it.
        drop(handle);
        until(&file.attempt_ended, || file.lock().has_lost_lock(number).then_some(())).await;
    }
}

/// The file was reopened: sets its locks again. An error means another loss.
pub(crate) async fn reclaim(core: &Arc<Core>, file: &OpenFile) -> Result<()> {
    let owners: Vec<LockOwner> = {
        let state = file.lock();
        let held = state.locks.iter().filter(|held| !held.is_lost);
        held.map(|held| held.owner).collect()
    };
    let limit = match core.retry_policy() {
        RetryPolicy::Hard => RECLAIM_LIMIT,
        RetryPolicy::Soft(limit) => limit.min(RECLAIM_LIMIT),
        RetryPolicy::None => Duration::ZERO,
    };
    let deadline = Instant::now() + limit;
    for owner in owners {
        match reclaim_for(core, file, owner, deadline).await {
            Ok(()) => {}
            Err(errno) if errno.is_loss() || errno == Errno::ESTALE => return Err(errno),
            Err(errno) => {
                let lost = file.lock().lose_locks(Some(owner));
                if lost {
                    let why = match errno {
                        Errno::EAGAIN => "another holds it now".to_owned(),
                        errno => errno.to_string(),
                    };
                    let (name, path) = (&core.config.name, file.shown_path());
                    tracing::warn!("{name}: {path}: a lock was lost with the connection: {why}");
                }
            }
        }
    }
    Ok(())
}

async fn reclaim_for(
    core: &Core,
    file: &OpenFile,
    owner: LockOwner,
    deadline: Instant,
) -> Result<()> {
    let inner = &*core.inner;
    let (ranges, handles) = {
        let mut state = file.lock();
        let Some(held) = state.owner_locks(owner) else { return Ok(()) };
        let ranges = held.ranges.clone();
        let held = state.locks.iter().find(|held| held.owner == owner);
        (ranges, held.map_or_else(Vec::new, |held| state.lockable(held)))
    };
    let mut used = Vec::new();
    for (range, kind) in ranges.iter() {
        let permitted = handles.iter().filter(|(handle, _)| permits(handle, owner, kind));
        let mut is_set = false;
        for (handle, fh) in permitted {
            let set = loop {
                match inner.lock(*fh, Lock::new(owner, range, kind), false).await {
                    Err(Errno::EAGAIN) if Instant::now() < deadline => {
                        tokio::time::sleep(RECLAIM_INTERVAL).await;
                    }
                    set => break set,
                }
            };
            if let Err(errno) = set {
                // All or nothing.
                inner.unlock(*fh, owner, LockRange::WHOLE).await?;
                return Err(errno);
            }
            is_set = true;
            used.push(handle.number);
        }
        if !is_set {
            if let Some((_, fh)) = handles.first() {
                inner.unlock(*fh, owner, LockRange::WHOLE).await?;
            }
            return Err(Errno::ENOLCK);
        }
    }
    // Unlocked in the meantime, by a call that has given up.
    let now = {
        let mut state = file.lock();
        let held = state.owner_locks(owner);
        held.map_or_else(LockedRanges::default, |held| {
            held.handles.retain(|handle| used.contains(handle));
            held.ranges.clone()
        })
    };
    if let Some((_, fh)) = handles.first() {
        for (range, _) in ranges.iter() {
            for gap in now.gaps(range) {
                inner.unlock(*fh, owner, gap).await?;
            }
        }
    }
    Ok(())
}
