//! Changes of others at the server that are repeated for processes of this machine, which watch
//! directories of the mount with inotify(7).
//!
//! The kernel reports to them only what is done through the mount. So a [`Repeat`] repeats these
//! changes through the mount. The requests that the kernel sends for that are answered from what is
//! known here, without the server. This module selects the changes, and has these answers. None of
//! them changes anything here but the count of lookups.
//!
//! The server has to watch what a local process watches, and nothing reports that one does. So with
//! a [`Repeat`] each directory that is looked up is watched, and after a loss of watches those are
//! that a process watches. In a union, a change may be hidden by another source: what becomes of it
//! there is decided where the changes are repeated.

use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Event, FileKind, Name, RemotePath, Result, WatchedChange};
use tokio::time::Instant;

use crate::inode::Inode;
use crate::prefetch::start;
use crate::shared::Shared;
use crate::{Entry, Ino, Stat, Vfs, name};

/// Pause between two attempts to watch again what was watched before a loss.
const PAUSE: Duration = Duration::from_secs(1);

/// Attempts while the server is reachable.
const MAX_ATTEMPTS: usize = 10;

/// Reports that are applied at a time: fewer than those after which the watch of an unused
/// directory ends.
const MAX_PART: usize = 250;

/// A change at the server that was not made through this mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignChange {
    /// The directory.
    pub dir: Ino,
    /// Its path.
    pub path: RemotePath,
    /// Its inode number.
    pub dir_number: u64,
    /// The entry.
    pub name: Name,
    /// Its inode number, if the kernel may know it.
    pub number: Option<u64>,
    /// What happened to it.
    pub event: Event,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// See [`WatchedChange::cookie`].
    pub cookie: u32,
    /// See [`WatchedChange::source`].
    pub source: u64,
}

/// Repeats the changes of others for the local processes that watch the mount.
pub trait Repeat: Send + Sync {
    /// Repeats these changes. Must not block.
    fn repeat(&self, changes: Vec<ForeignChange>);

    /// Whether a process watches the file or directory with this inode number; true if that is not
    /// known. Must not block.
    fn is_watched(&self, number: u64) -> bool;

    /// Finds out what is watched. May block.
    fn find_watchers(&self);
}

impl Vfs {
    /// From now on the changes of others are repeated. Must be called once, before the first
    /// operation. Has an effect with [`Consistency::Watch`](crate::Consistency) only.
    pub fn set_repeat(&self, repeat: Arc<dyn Repeat>) {
        self.tree().expect_own_reports();
        // Set once, by the owner of the file system.
        let _ = self.repeat.set(repeat);
    }

    /// Whether `name` in `parent` leads to a file now, as far as that is known without a request: a
    /// local process may have created it again since its removal was reported.
    pub fn has_valid_name(&self, parent: Ino, name_bytes: &[u8]) -> bool {
        let name = name(name_bytes);
        name.is_ok_and(|name| self.tree().valid_child(parent, &name, Instant::now()).is_some())
    }

    /// The directory `name` in `parent`, if it is known. Counts one lookup of it.
    pub fn known_directory(&self, parent: Ino, name_bytes: &[u8]) -> Option<Entry> {
        let (name, now) = (name(name_bytes).ok()?, Instant::now());
        let (inode, attr, until) = {
            let mut tree = self.tree();
            let inode = tree.child(parent, &name)?;
            let attr = inode.state().last_attr().filter(|_| inode.kind == FileKind::Directory)?;
            let until = tree.valid_child(parent, &name, now).map_or(now, |(_, until)| until);
            tree.add_lookup(inode.ino);
            (inode, attr, until)
        };
        self.entry_until(&inode, &attr, until).inspect_err(|_| self.forget(inode.ino, 1)).ok()
    }

    /// The regular file `name` in `parent`, if a local process has it open, or `is_watched`. Counts
    /// one lookup of it. All its time-outs are zero.
    ///
    /// # Errors
    /// `EBUSY` if a local process changes it, or its attributes are not known.
    pub fn known_file(
        &self,
        parent: Ino,
        name_bytes: &[u8],
        is_watched: bool,
    ) -> Result<Option<Entry>> {
        let name = name(name_bytes)?;
        let (inode, attr) = {
            let mut tree = self.tree();
            let child = tree.child(parent, &name).filter(|child| child.kind == FileKind::Regular);
            let Some(inode) = child else { return Ok(None) };
            if inode.state().open.is_empty() && !is_watched {
                return Ok(None);
            }
            let attr = inode.attr_at_rest().ok_or(Errno::EBUSY)?;
            tree.add_lookup(inode.ino);
            (inode, attr)
        };
        let entry = self.entry_until(&inode, &attr, Instant::now());
        let Entry { ino, stat, .. } = entry.inspect_err(|_| self.forget(inode.ino, 1))?;
        let ttl = Duration::ZERO;
        Ok(Some(Entry { ino, stat: Stat { ttl, ..stat }, ttl }))
    }

    /// The attributes of `ino`, which may be outdated, with a time-out of zero. `None` for a file
    /// that a local process changes.
    pub fn known_stat(&self, ino: Ino) -> Option<Stat> {
        let inode = self.inode(ino).ok()?;
        let attr = match inode.kind {
            FileKind::Regular => inode.attr_at_rest()?,
            _ => inode.state().last_attr()?,
        };
        let stat = self.stat(&inode, &attr).ok()?;
        Some(Stat { ttl: Duration::ZERO, ..stat })
    }
}

impl Inode {
    /// The attributes, however old, if no local process changes the file.
    fn attr_at_rest(&self) -> Option<base::Attr> {
        let is_written = self.writes.dirty_bytes() > 0;
        self.state().attr_at_rest(Instant::now()).filter(|_| !is_written)
    }
}

impl Shared {
    /// A directory was looked up: a process may be going to watch it.
    pub(crate) fn note_directory_lookup(self: &Arc<Shared>, dir: Ino) {
        if self.repeat.get().is_some() {
            // Such a process may not use it again.
            self.begin_to_watch(dir, true);
        }
    }

    /// Applies reports, and then repeats those that are not of changes through this mount: the
    /// processes that watch find them applied.
    pub(crate) fn apply_and_repeat(self: &Arc<Shared>, changes: &[WatchedChange]) {
        let Some(repeat) = self.repeat.get() else { return self.apply_reports(changes) };
        // The use of a directory by these processes is noted for each part.
        for part in changes.chunks(MAX_PART) {
            let foreign: Vec<_> = {
                let mut tree = self.tree();
                let is_watched = |number| repeat.is_watched(number);
                tree.note_watched_below(part, is_watched);
                part.iter().filter_map(|change| tree.foreign_change(change, is_watched)).collect()
            };
            self.apply_reports(part);
            if !foreign.is_empty() {
                repeat.repeat(foreign);
            }
        }
        // A source has got or lost a directory that others still have.
        if self.config.is_union && changes.iter().any(|change| change.event == Event::Ended) {
            self.watch_again();
        }
    }

    /// Watches were lost, or have ended: what local processes watch is watched again, although
    /// nothing uses it.
    pub(crate) fn watch_again(self: &Arc<Shared>) {
        let Some(repeat) = self.repeat.get().cloned() else { return };
        if !self.watching.begin_watching_again() {
            return;
        }
        start(self, move |shared| async move {
            loop {
                let requests = shared.watching.watching_again_requests();
                shared.watch_what_is_watched(&repeat).await;
                if shared.watching.end_watching_again(requests) {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    async fn watch_what_is_watched(self: &Arc<Shared>, repeat: &Arc<dyn Repeat>) {
        let finder = repeat.clone();
        if tokio::task::spawn_blocking(move || finder.find_watchers()).await.is_err() {
            return;
        }
        let mut dirs = self.tree().directories(|number| repeat.is_watched(number));
        let mut attempts = 0;
        while attempts < MAX_ATTEMPTS {
            if let Some(watches) = self.connected_watches().await {
                for dir in &dirs {
                    self.watch_way_to(&watches, *dir).await;
                }
            }
            dirs.retain(|dir| self.tree().needs_watch(*dir));
            if dirs.is_empty() {
                return;
            }
            attempts += usize::from(!self.remote.is_disconnected());
            tokio::time::sleep(PAUSE).await;
        }
    }
}
