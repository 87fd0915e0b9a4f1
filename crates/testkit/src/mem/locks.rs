//! Locks of a [`MemRemote`](super::MemRemote). Owners of all its users are different owners.

use base::{
    Errno, Fh, Lock, LockFamily, LockKind, LockOwner, LockRange, LockedRanges, Remote, Result,
    until,
};

use super::{MemRemote, State};
use crate::tree::Ino;

/// What one owner has locked in one file.
#[derive(Debug)]
pub(super) struct Held {
    ino: Ino,
    owner: LockOwner,
    ranges: LockedRanges,
    /// The handles through which it has set locks.
    handles: Vec<Fh>,
}

/// A lock that was set; undone unless its caller gets the reply.
struct SetLock<'a> {
    remote: &'a MemRemote,
    held: (Ino, LockOwner, LockRange),
    before: Option<LockedRanges>,
}

impl Drop for SetLock<'_> {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        let (ino, owner, range) = self.held;
        let mut state = self.remote.state.lock();
        if let Some(held) = state.locks.iter_mut().find(|it| (it.ino, it.owner) == (ino, owner)) {
            held.ranges.set(range, None);
            before.iter().for_each(|(range, kind)| held.ranges.set(range, Some(kind)));
        }
        state.end_locks(|held| held.ranges.is_empty());
        drop(state);
        self.remote.unlocked.notify_waiters();
    }
}

impl State {
    pub(super) fn conflict(&self, ino: Ino, lock: Lock) -> Option<(LockRange, LockKind)> {
        let Lock { owner, range, kind } = lock;
        let others = self.locks.iter().filter(|held| {
            held.ino == ino && held.owner != owner && held.owner.family == owner.family
        });
        others.filter_map(|held| held.ranges.conflict(range, kind)).next()
    }

    /// Sets a lock; returns what it has replaced.
    fn lock(&mut self, fh: Fh, lock: Lock) -> Result<(Ino, LockedRanges)> {
        let Lock { owner, range, kind } = lock;
        let file = self.file(fh)?;
        let permitted = match kind {
            LockKind::Read => file.access.reads(),
            LockKind::Write => file.access.writes(),
        };
        if owner.family == LockFamily::Posix && !permitted {
            return Err(Errno::EBADF);
        }
        if self.conflict(file.ino, lock).is_some() {
            // flock(2) removes the old lock first when it converts one.
            if owner.family == LockFamily::Flock {
                self.unlock(fh, owner, LockRange::WHOLE)?;
            }
            return Err(Errno::EAGAIN);
        }
        let known = self.locks.iter().position(|it| (it.ino, it.owner) == (file.ino, owner));
        let at = known.unwrap_or_else(|| {
            let (ranges, handles) = Default::default();
            self.locks.push(Held { ino: file.ino, owner, ranges, handles });
            self.locks.len() - 1
        });
        let held = &mut self.locks[at];
        let before = held.ranges.within(range);
        held.ranges.set(range, Some(kind));
        if !held.handles.contains(&fh) {
            held.handles.push(fh);
        }
        Ok((file.ino, before))
    }

    pub(super) fn unlock(&mut self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        let ino = self.file(fh)?.ino;
        for held in self.locks.iter_mut().filter(|it| (it.ino, it.owner) == (ino, owner)) {
            held.ranges.set(range, None);
        }
        self.end_locks(|held| held.ranges.is_empty());
        Ok(())
    }

    fn end_locks(&mut self, ended: impl Fn(&Held) -> bool) {
        self.locks.retain(|held| !ended(held));
    }

    /// A handle is closed.
    pub(super) fn end_locks_of(&mut self, fh: Fh) {
        for held in &mut self.locks {
            held.handles.retain(|used| *used != fh);
        }
        self.end_locks(|held| held.handles.is_empty());
    }
}

impl MemRemote {
    /// All locks end, as if the server had ended the session of each client.
    pub fn end_locks(&self) {
        self.state.lock().end_locks(|_| true);
        self.unlocked.notify_waiters();
    }

    /// The number of ranges that are locked.
    pub fn locked_ranges(&self) -> usize {
        self.state.lock().locks.iter().map(|held| held.ranges.len()).sum()
    }

    /// Whether files can be locked; initially they can.
    pub fn set_has_locks(&self, has_locks: bool) {
        self.pace.lock().without_locks = !has_locks;
    }

    pub(super) fn check_locks(&self) -> Result<()> {
        if self.has_locks() { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    pub(super) async fn set_lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        self.check_locks()?;
        let attempt = || {
            let mut state = self.state.lock();
            let before = state.locks.len();
            let set = state.lock(fh, lock);
            if state.locks.len() < before {
                self.unlocked.notify_waiters();
            }
            Some(set).filter(|set| !wait || *set != Err(Errno::EAGAIN))
        };
        let (ino, before) = match until(&self.unlocked, attempt).await {
            Ok(replaced) => replaced,
            Err(errno) => {
                self.answer_arrives().await;
                return Err(errno);
            }
        };
        let held = (ino, lock.owner, lock.range);
        let mut set = SetLock { remote: self, held, before: Some(before) };
        self.answer_arrives().await;
        set.before = None;
        Ok(())
    }
}
