//! Open files: a handle at the file's primary gateway, and the state needed when that is lost or
//! closed.
//!
//! The table is bounded by the gateways, which bound their handles. Of a file's locks the one on
//! its unsynced changes is taken before the one on its primary. The latter is held while the file
//! moves to another gateway, and while a lock or a change is recorded, which ends all moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Access, Attr, Fh, Mutex, OpenFlags, OwnedFh, Result};

use crate::member::Member;
use crate::open_paths::{PathGuard, Version};
use crate::recent_changes::{ChangeKind, RecentChanges};
use crate::stripes::Stripes;

/// A handle at a gateway; closed there when this is dropped.
pub(crate) struct Handle {
    pub(crate) member: Arc<Member>,
    lent: OwnedFh,
}

impl Handle {
    pub(crate) fn new(member: &Arc<Member>, fh: Fh) -> Handle {
        Handle { member: member.clone(), lent: OwnedFh::new(member.remote.clone(), fh) }
    }

    pub(crate) fn fh(&self) -> Fh {
        self.lent.fh()
    }

    /// Closes it, and returns the gateway's answer.
    pub(crate) async fn finish(&self) -> Result<()> {
        self.lent.finish().await
    }
}

struct Primary {
    handle: Arc<Handle>,
    /// The version in its last answer, and [`OpenPath::settled`](crate::open_paths::OpenPath) when
    /// that was requested.
    version: Version,
    settled: Option<u64>,
}

/// Changes through this file that may not be on the server's disk.
#[derive(Default)]
struct Unsynced {
    begun: u64,
    synced: u64,
    /// The file is counted in the gateway's `unsynced`.
    counted: bool,
}

/// An open file.
pub(crate) struct File {
    pub(crate) flags: OpenFlags,
    /// Handles at further gateways that show the same version.
    pub(crate) stripes: Stripes,
    /// Held while the file is reopened after a loss; other callers that need the handle wait for
    /// it.
    pub(crate) reopen_lock: tokio::sync::Mutex<()>,
    primary: Mutex<Primary>,
    unsynced: Mutex<Unsynced>,
    changed: AtomicBool,
    /// A lock was set through it: locks do not move to another gateway.
    locked: AtomicBool,
    recent: Arc<RecentChanges>,
    /// Behind the handles, so that the path stays with its primary until they are closed.
    pub(crate) open_path: PathGuard,
}

impl File {
    pub(crate) fn new(
        handle: Handle,
        (attr, settled): (&Attr, Option<u64>),
        open_path: PathGuard,
        flags: OpenFlags,
        recent: &Arc<RecentChanges>,
    ) -> File {
        File {
            flags,
            stripes: Stripes::default(),
            reopen_lock: tokio::sync::Mutex::default(),
            primary: Mutex::new(Primary {
                handle: Arc::new(handle),
                version: Version::of(attr),
                settled,
            }),
            unsynced: Mutex::default(),
            changed: AtomicBool::new(flags.truncate),
            locked: AtomicBool::new(false),
            recent: recent.clone(),
            open_path,
        }
    }

    /// The handle for all requests that may not go through a stripe.
    pub(crate) fn primary(&self) -> Arc<Handle> {
        self.primary.lock().handle.clone()
    }

    /// Whether the path's primary gateway is that of this handle.
    pub(crate) fn is_primary(&self, handle: &Handle) -> bool {
        self.open_path.primary() == Some(handle.member.index)
    }

    pub(crate) fn version(&self) -> Version {
        self.primary.lock().version
    }

    /// Records that `handle`, if it is still the primary, showed these attributes, requested when
    /// these changes were `settled`.
    pub(crate) fn note_attr(&self, handle: &Arc<Handle>, attr: &Attr, settled: Option<u64>) {
        let mut primary = self.primary.lock();
        if Arc::ptr_eq(&primary.handle, handle) {
            (primary.version, primary.settled) = (Version::of(attr), settled);
        }
        drop(primary);
        self.open_path.note_shown(attr);
    }

    /// Makes another handle the primary, if the file may still move. Returns whether it has.
    pub(crate) fn move_to(&self, handle: Arc<Handle>) -> bool {
        let mut primary = self.primary.lock();
        if !self.may_move() {
            return false;
        }
        self.open_path.set_primary(handle.member.index);
        let left = std::mem::replace(&mut primary.handle, handle);
        // Closed without the lock.
        drop(primary);
        drop(left);
        true
    }

    /// Whether requests through it may go to another gateway: there is no change from this mount
    /// that the others may not show yet.
    pub(crate) fn may_move(&self) -> bool {
        self.flags.access == Access::Read
            && !self.open_path.has_writers()
            && !self.changed.load(Ordering::SeqCst)
            && !self.locked.load(Ordering::SeqCst)
            && (self.recent.is_empty()
                || self.open_path.name().is_some_and(|name| self.recent.get(&name).is_none()))
    }

    /// A lock is about to be set through it. From now on the file does not move.
    pub(crate) fn note_lock(&self) {
        let _primary = self.primary.lock();
        self.locked.store(true, Ordering::SeqCst);
    }

    /// Records a change through it that is about to be sent. From now on the file does not move.
    pub(crate) fn begin_change(&self) {
        let mut unsynced = self.unsynced.lock();
        let primary = {
            let primary = self.primary.lock();
            self.changed.store(true, Ordering::SeqCst);
            primary.handle.clone()
        };
        self.open_path.begin_change(primary.member.index);
        unsynced.begun += 1;
        if !std::mem::replace(&mut unsynced.counted, true) {
            primary.member.epoch.begin_unsynced();
        }
    }

    /// The number of changes begun so far, for [`File::synced`].
    pub(crate) fn changes_begun(&self) -> u64 {
        self.unsynced.lock().begun
    }

    /// The first `changes` changes are on the server's disk.
    pub(crate) fn synced(&self, changes: u64) {
        let mut unsynced = self.unsynced.lock();
        unsynced.synced = unsynced.synced.max(changes);
        if unsynced.synced == unsynced.begun {
            self.clear_unsynced(&mut unsynced);
        }
    }

    fn clear_unsynced(&self, unsynced: &mut Unsynced) {
        if std::mem::take(&mut unsynced.counted) {
            self.primary().member.epoch.end_unsynced();
        }
    }

    /// Its handle is lost.
    pub(crate) fn handle_lost(&self) {
        let mut unsynced = self.unsynced.lock();
        if unsynced.counted {
            self.primary().member.epoch.note_lost_handle();
        }
        self.clear_unsynced(&mut unsynced);
    }

    /// Its handle is about to be finished. Its caller may open the file again.
    pub(crate) fn begin_finish(&self) {
        if self.unsynced.lock().counted {
            self.primary().member.epoch.note_finished();
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.clear_unsynced(&mut self.unsynced.lock());
        if self.changed.load(Ordering::SeqCst)
            && let Some(name) = self.open_path.name()
        {
            let primary = self.primary.lock();
            let gateway = primary.handle.member.index;
            match self.open_path.used_primary().filter(|primary| *primary != gateway) {
                // The file was reopened there after this handle was lost.
                Some(other) => self.recent.note(&name, other, ChangeKind::Content),
                // Other open files of the path may have changed it since.
                None if self.open_path.is_settled_since(primary.settled) => {
                    self.recent.note_version(&name, gateway, primary.version);
                    self.open_path.note_recorded(primary.settled);
                }
                None => self.recent.note(&name, gateway, ChangeKind::Content),
            }
        }
    }
}
