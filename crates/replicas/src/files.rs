//! Open files: a handle at the file's home, and what is to be known when that is lost or closed.
//!
//! The table is bounded by the gateways, which give only so many handles. Of a file's locks the one
//! on its unsynced changes is taken before the one on its home.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Access, Attr, Fh, OpenFlags, OwnedFh, Result};

use crate::lanes::Lanes;
use crate::member::Member;
use crate::names::{Held, Version};
use crate::recent::{Extent, Recent};

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

    /// Gives it back, and returns what the gateway answers.
    pub(crate) async fn finish(&self) -> Result<()> {
        self.lent.finish().await
    }
}

struct Home {
    handle: Arc<Handle>,
    /// The version that it showed last, and how many changes had begun when it was asked.
    version: Version,
    changes: u64,
}

/// Changes through this file that may not be on the server's disk.
#[derive(Default)]
struct Unsynced {
    begun: u64,
    synced: u64,
    /// It is among those that the gateway is known to have unsynced changes of.
    counted: bool,
}

/// An open file.
pub(crate) struct File {
    pub(crate) flags: OpenFlags,
    /// Further gateways that show the same.
    pub(crate) lanes: Lanes,
    /// Held by whoever opens it anew after a loss; those who wait for that queue here.
    pub(crate) moving: tokio::sync::Mutex<()>,
    home: Mutex<Home>,
    unsynced: Mutex<Unsynced>,
    changed: AtomicBool,
    recent: Arc<Recent>,
    /// Behind the handles, so that the path stays with its home until they are closed.
    pub(crate) named: Held,
}

impl File {
    pub(crate) fn new(
        handle: Handle,
        attr: &Attr,
        named: Held,
        flags: OpenFlags,
        recent: &Arc<Recent>,
    ) -> File {
        File {
            flags,
            lanes: Lanes::default(),
            moving: tokio::sync::Mutex::default(),
            home: Mutex::new(Home {
                handle: Arc::new(handle),
                version: Version::of(attr),
                changes: 0,
            }),
            unsynced: Mutex::default(),
            changed: AtomicBool::new(flags.truncate),
            recent: recent.clone(),
            named,
        }
    }

    fn lock_home(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_unsynced(&self) -> MutexGuard<'_, Unsynced> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle for all that is not known to be the same elsewhere.
    pub(crate) fn home(&self) -> Arc<Handle> {
        self.lock_home().handle.clone()
    }

    /// Whether all that is asked about the path goes where this handle is.
    pub(crate) fn is_home(&self, handle: &Handle) -> bool {
        self.named.home() == Some(handle.member.index)
    }

    pub(crate) fn version(&self) -> Version {
        self.lock_home().version
    }

    /// `handle`, if it is still the home, showed these attributes, for which it was asked when so
    /// many `changes` had begun.
    pub(crate) fn showed(&self, handle: &Arc<Handle>, attr: &Attr, changes: u64) {
        let mut home = self.lock_home();
        if Arc::ptr_eq(&home.handle, handle) {
            (home.version, home.changes) = (Version::of(attr), changes);
        }
        drop(home);
        self.named.shown(attr);
    }

    /// Another handle is the home from now on.
    pub(crate) fn move_to(&self, handle: Arc<Handle>) {
        self.named.set_home(handle.member.index);
        let left = std::mem::replace(&mut self.lock_home().handle, handle);
        // Closed without the lock.
        drop(left);
    }

    /// Whether what is asked through it may be asked through another gateway: nothing was changed
    /// here that the others may not show yet.
    pub(crate) fn may_move(&self) -> bool {
        self.flags.access == Access::Read
            && !self.named.is_written()
            && !self.changed.load(Ordering::SeqCst)
            && (self.recent.is_empty()
                || self.named.name().is_some_and(|name| self.recent.of(&name).is_none()))
    }

    /// A change through it is about to be sent.
    pub(crate) fn begin_change(&self) {
        self.changed.store(true, Ordering::SeqCst);
        let mut unsynced = self.lock_unsynced();
        let home = self.home();
        self.named.changed_through(home.member.index);
        unsynced.begun += 1;
        if !std::mem::replace(&mut unsynced.counted, true) {
            home.member.unsynced.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Changes so far, for [`File::synced`].
    pub(crate) fn changes_begun(&self) -> u64 {
        self.lock_unsynced().begun
    }

    /// The first `changes` of them are on the server's disk.
    pub(crate) fn synced(&self, changes: u64) {
        let mut unsynced = self.lock_unsynced();
        unsynced.synced = unsynced.synced.max(changes);
        if unsynced.synced == unsynced.begun {
            self.not_counted(&mut unsynced);
        }
    }

    fn not_counted(&self, unsynced: &mut Unsynced) -> bool {
        let counted = std::mem::take(&mut unsynced.counted);
        if counted {
            self.home().member.unsynced.fetch_sub(1, Ordering::SeqCst);
        }
        counted
    }

    /// Its handle is lost.
    pub(crate) fn lost(&self) {
        let in_doubt = self.not_counted(&mut self.lock_unsynced());
        if in_doubt {
            self.home().member.run.doubt();
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.not_counted(&mut self.lock_unsynced());
        if self.changed.load(Ordering::SeqCst)
            && let Some(name) = self.named.name()
        {
            let begun = self.lock_unsynced().begun;
            let home = self.lock_home();
            let gateway = home.handle.member.index;
            match self.named.home().filter(|home| *home != gateway) {
                // It was opened anew there after this one was lost.
                Some(other) => self.recent.note(&name, other, Extent::Inside),
                None if home.changes == begun => {
                    self.recent.note_version(&name, gateway, home.version);
                }
                None => self.recent.note(&name, gateway, Extent::Inside),
            }
        }
    }
}
