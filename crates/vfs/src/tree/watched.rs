//! The directories of the tree that the server watches, and what its reports outdate.
//!
//! The watch of a directory is of an inode at the server, and the tree knows paths; so a directory
//! is watched only below watched directories, whose reports say that a path leads elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::{Attr, Event, FileKind, Name, RemotePath, WatchId, WatchedChange};
use tokio::time::Instant;

use super::Tree;
use crate::Ino;
use crate::compact_instant::CompactInstant;
use crate::cover::Cover;
use crate::dir_cache::Lookup;
use crate::inode::Inode;

/// See the [module](self).
#[derive(Default)]
pub(super) struct WatchedDirs {
    /// The inodes have covers.
    is_on: bool,
    by_watch: HashMap<WatchId, Ino>,
    by_dir: HashMap<Ino, WatchId>,
    /// Watches that the server has and that are not used any more.
    unused: Vec<WatchId>,
    /// Watches whose end was requested. An answer that was sent before may still name one.
    ended: HashSet<WatchId>,
}

/// What the kernel has to be told because of a report.
#[derive(Default)]
pub(crate) struct Outdated {
    /// Names that may lead elsewhere.
    pub(crate) names: Vec<(Ino, Name)>,
    /// Inodes whose attributes are outdated.
    pub(crate) attributes: Vec<Ino>,
    /// Open files whose content may be another one.
    pub(crate) contents: Vec<Arc<Inode>>,
    /// Open files whose content may be another one, or the report is of a local change.
    pub(crate) doubtful_contents: Vec<Arc<Inode>>,
    /// Reports that mean something only when the local change of the name has ended.
    pub(crate) deferred: Vec<WatchedChange>,
    /// Directories that are not watched any more, since nothing has used them for many reports.
    pub(crate) unused: Vec<Ino>,
    /// All directories whose watches have ended: further reports of them are not applied.
    pub(crate) ended: Vec<Ino>,
}

impl Tree {
    /// From now on directories may be watched. Called before any inode exists but the root.
    pub(crate) fn keep_covers(&mut self) {
        self.watched.is_on = true;
        if let Some(root) = self.get(Ino::ROOT) {
            let (mut state, cover) = (root.state(), Arc::<Cover>::default());
            state.set_parent_cover(Some(cover.clone()));
            state.set_own_cover(cover);
        }
    }

    /// A new inode.
    pub(super) fn provide_cover(&self, inode: &Inode) {
        if self.watched.is_on && inode.kind == FileKind::Directory {
            inode.state().set_own_cover(Arc::default());
        }
    }

    /// The names of `inode` have changed.
    pub(super) fn update_cover(&mut self, inode: &Inode) {
        if !self.watched.is_on {
            return;
        }
        let name = self.first_name(inode.ino);
        if name.is_none() {
            // Its watch may be that of the directory that has its path now.
            self.end_watches_within(inode.ino);
        }
        let parent = name.and_then(|(dir, _)| self.cover(dir));
        inode.state().set_parent_cover(parent);
    }

    fn cover(&self, dir: Ino) -> Option<Arc<Cover>> {
        let node = self.nodes.get(dir).filter(|_| self.watched.is_on)?;
        node.inode.state().own_cover().cloned()
    }

    /// Whether all changes of the names in `dir` since `at` were reported.
    pub(super) fn covers_names(&self, dir: Ino, at: Instant) -> bool {
        self.cover(dir).is_some_and(|cover| {
            cover.note_use();
            cover.includes(at)
        })
    }

    /// Whether the listing of `dir`, which is in use, is from before its watch and should be
    /// requested again. Returns true once.
    pub(crate) fn wants_covered_listing(&self, dir: Ino) -> bool {
        let listing = self.dir_cache.peek(dir);
        let cover = self.cover(dir).zip(listing);
        cover.is_some_and(|(cover, listing)| {
            cover.note_use();
            cover.wants_refresh(listing.stamp().at)
        })
    }

    /// Whether all changes of an entry of `dir` without a node since `at` were reported.
    pub(crate) fn covers_entry(&self, dir: Ino, attr: &Attr, at: Instant) -> bool {
        attr.has_one_name() && !attr.is_dir() && self.covers_names(dir, at)
    }

    /// Whether a watch of `dir` has ended since a name in it led to `inode`.
    pub(super) fn has_lapsed_since(&self, dir: Ino, inode: &Inode) -> bool {
        self.cover(dir).is_some_and(|cover| {
            cover.note_use();
            let lapsed = cover.lapsed();
            lapsed != CompactInstant::NEVER && inode.state().name_validated_at() <= lapsed
        })
    }

    /// Whether `dir` should be watched and is not.
    pub(crate) fn needs_watch(&self, dir: Ino) -> bool {
        self.watched.is_on && !self.watched.by_dir.contains_key(&dir) && self.nodes.contains(dir)
    }

    /// The directory that is watched as `watch`.
    pub(super) fn watched_dir(&self, watch: WatchId) -> Option<Ino> {
        self.watched.by_watch.get(&watch).copied()
    }

    /// The number of watched directories.
    pub(crate) fn watched_dirs(&self) -> usize {
        self.watched.by_dir.len()
    }

    /// The root, and the directories on the way to `dir`, and `dir`.
    pub(crate) fn way_to(&self, dir: Ino) -> Vec<Ino> {
        let mut way: Vec<Ino> = self.links_up(dir).map(|link| link.parent).collect();
        way.reverse();
        way.push(dir);
        way
    }

    /// The server watches the directory that was at `path` at `seq`. Returns whether it is `dir`;
    /// if not, the watch is not used.
    pub(crate) fn begin_watch(
        &mut self,
        dir: Ino,
        path: &RemotePath,
        seq: u64,
        watch: WatchId,
    ) -> bool {
        let is_there = self.path(dir).as_ref() == Some(path) && self.path_unchanged_since(dir, seq);
        let parent_is_watched =
            dir == Ino::ROOT || self.watched.by_dir.contains_key(&self.parent(dir));
        let used_by = self.watched.by_watch.get(&watch).copied();
        let has_ended = self.watched.ended.contains(&watch);
        let is_free = used_by.is_none_or(|it| it == dir);
        if !is_there || !parent_is_watched || !is_free || has_ended {
            if used_by.is_none() && !has_ended {
                self.watched.unused.push(watch);
            }
            return false;
        }
        self.watched.unused.retain(|unused| *unused != watch);
        if used_by.is_none() {
            let before = self.watched.by_dir.insert(dir, watch);
            self.watched.by_watch.insert(watch, dir);
            if let Some(before) = before {
                self.watched.by_watch.remove(&before);
            }
            if let Some(cover) = self.cover(dir) {
                cover.begin(Instant::now());
            }
        }
        true
    }

    /// `dir` is not watched any more, and nothing that its watch covered is valid.
    pub(crate) fn end_watch_of(&mut self, dir: Ino) {
        if let Some(watch) = self.watched.by_dir.remove(&dir) {
            self.watched.by_watch.remove(&watch);
            self.watched.unused.push(watch);
            self.lose_cover(dir);
        }
    }

    fn lose_cover(&mut self, dir: Ino) {
        if let Some(cover) = self.cover(dir) {
            cover.end(Instant::now());
        }
        self.dir_cache.remove(dir);
    }

    /// Returns the directories whose watches have ended.
    fn end_watches_within(&mut self, dir: Ino) -> Vec<Ino> {
        if self.nodes.get(dir).is_none_or(|node| node.inode.kind != FileKind::Directory) {
            return Vec::new();
        }
        let ended = self.watched_dirs_within(dir);
        ended.iter().for_each(|below| self.end_watch_of(*below));
        ended
    }

    /// `dir`, if it is watched, and the watched directories below it.
    pub(super) fn watched_dirs_within(&self, dir: Ino) -> Vec<Ino> {
        let watched = self.watched.by_dir.keys().copied();
        watched.filter(|below| self.is_within(*below, dir)).collect()
    }

    /// The directory is in use.
    pub(super) fn note_dir_use(&self, dir: Ino) {
        if let Some(cover) = self.cover(dir) {
            cover.note_use();
        }
    }

    /// Whether the watch of `dir` would end with this number of reports.
    pub(super) fn is_about_to_end(&self, dir: Ino, reports: usize) -> bool {
        self.cover(dir).is_some_and(|cover| cover.is_about_to_end(reports))
    }

    /// Reports of this connection were lost: none of its watches covers anything. If the connection
    /// `is_alive`, the server still has them. Returns the names in the root.
    pub(crate) fn lose_watches(&mut self, connection: u64, is_alive: bool) -> Vec<Name> {
        self.change_counter.advance();
        let watched: Vec<(Ino, WatchId)> = self.watched.by_dir.drain().collect();
        for (dir, watch) in watched {
            if watch.connection == connection {
                self.watched.by_watch.remove(&watch);
                self.watched.unused.extend(is_alive.then_some(watch));
                self.lose_cover(dir);
            } else {
                self.watched.by_dir.insert(dir, watch);
            }
        }
        // A directory is watched only below watched ones.
        let is_watched = |dir: &Ino| self.watched.by_dir.contains_key(dir);
        let is_cut_off = |dir: &Ino| !self.way_to(*dir).iter().all(is_watched);
        let cut_off: Vec<Ino> = self.watched.by_dir.keys().copied().filter(is_cut_off).collect();
        cut_off.into_iter().for_each(|dir| self.end_watch_of(dir));
        self.names_in_root()
    }

    /// The names in the root.
    pub(super) fn names_in_root(&mut self) -> Vec<Name> {
        let links = self.nodes.iter_mut().flat_map(|node| node.links.iter());
        links.filter(|link| link.parent == Ino::ROOT).map(|link| link.name.clone()).collect()
    }

    /// Whether there are watches to be ended at the server.
    pub(crate) fn has_unused_watches(&self) -> bool {
        !self.watched.unused.is_empty()
    }

    /// Watches to be ended at the server, which does not use their numbers again.
    pub(crate) fn take_unused_watches(&mut self) -> Vec<WatchId> {
        let unused = std::mem::take(&mut self.watched.unused);
        self.watched.ended.extend(unused.iter().copied());
        unused
    }

    /// No watch is being started or ended: no answer can name one that has ended.
    pub(crate) fn forget_ended_watches(&mut self) {
        self.watched.ended = HashSet::new();
    }

    /// The server has reported a change, which may be a local one.
    pub(crate) fn note_reported_change(&mut self, change: &WatchedChange, out: &mut Outdated) {
        let Some(dir) = self.watched_dir(change.watch) else { return };
        if self.cover(dir).is_some_and(|cover| cover.note_report()) {
            out.ended.extend(self.end_watches_within(dir));
            out.unused.push(dir);
            return;
        }
        match (&change.name, change.event) {
            (_, Event::Ended) => out.ended.extend(self.end_watches_within(dir)),
            (None, _) => self.note_outdated_directory(dir, out),
            (Some(name), Event::Modified | Event::Attributes | Event::Written) => {
                self.note_modified(dir, name, out);
            }
            (Some(name), event) => {
                let child = self.child(dir, name);
                if event == Event::Created && self.is_being_bound(change) {
                    // It may be a local change, which may also fail.
                    out.deferred.push(change.clone());
                    return;
                }
                let is_own = match event {
                    // If the name was reported before, it may be another file.
                    Event::Created => child.as_ref().is_some_and(|child| {
                        let state = child.state();
                        state.is_quiet_time(Instant::now()) && !state.is_name_outdated()
                    }),
                    Event::Removed | Event::MovedAway => {
                        child.is_none() && self.is_removed_here(dir, name)
                    }
                    // The file and its name may have been known for long.
                    _ => false,
                };
                self.note_outdated_directory(dir, out);
                if is_own {
                    return;
                }
                if change.is_dir
                    && let Some(child) = &child
                {
                    out.ended.extend(self.end_watches_within(child.ino));
                }
                self.note_outdated_name(dir, name, out);
            }
        }
    }

    /// Whether a local change is in flight that binds the name in `change` to a file.
    pub(crate) fn is_being_bound(&self, change: &WatchedChange) -> bool {
        let dir = self.watched_dir(change.watch);
        dir.zip(change.name.as_ref()).is_some_and(|(dir, name)| self.changes.is_binding(dir, name))
    }

    /// Whether `name` in `dir` was removed through this mount.
    fn is_removed_here(&self, dir: Ino, name: &Name) -> bool {
        let listed = self.dir_cache.peek(dir).and_then(|listing| listing.lookup(name));
        matches!(listed, Some(Lookup::Absent(_)))
    }

    fn note_outdated_name(&mut self, dir: Ino, name: &Name, out: &mut Outdated) {
        let seq = self.change_counter.advance();
        self.changes.note(dir, name, seq);
        self.dir_cache.invalidate_name(dir, name);
        self.renew_name(dir, name, Instant::now());
        if let Some(child) = self.child(dir, name) {
            let mut state = child.state();
            state.note_reported_change(seq);
            state.note_reported_name();
            out.attributes.extend(state.drop_kernel_attr().then_some(child.ino));
        }
        out.names.push((dir, name.clone()));
    }

    fn note_outdated_directory(&mut self, dir: Ino, out: &mut Outdated) {
        let seq = self.change_counter.advance();
        let Some(inode) = self.get(dir) else { return };
        let mut state = inode.state();
        if !state.is_quiet_time(Instant::now()) {
            state.note_reported_change(seq);
            out.attributes.extend(state.drop_kernel_attr().then_some(dir));
        }
    }

    fn note_modified(&mut self, dir: Ino, name: &Name, out: &mut Outdated) {
        let child = self.child(dir, name);
        if let Some(child) = &child {
            let state = child.state();
            if state.is_quiet_time(Instant::now()) {
                // Its attributes have a short time-out, and no open keeps outdated pages. But no
                // later report makes an open descriptor show the change.
                if !state.open.is_empty() {
                    out.doubtful_contents.push(child.clone());
                }
                return;
            }
        }
        let seq = self.change_counter.advance();
        self.dir_cache.invalidate_name(dir, name);
        let Some(child) = child else {
            // An answer that was requested before is not cached.
            self.changes.note(dir, name, seq);
            return;
        };
        let is_open = {
            let mut state = child.state();
            state.note_reported_change(seq);
            out.attributes.extend(state.drop_kernel_attr().then_some(child.ino));
            !state.open.is_empty()
        };
        if is_open {
            out.contents.push(child);
        }
    }
}
