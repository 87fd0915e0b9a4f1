//! Which reports are of changes that were not made through this mount.

use std::collections::HashSet;

use base::{Event, FileKind, Name, WatchedChange};
use tokio::time::Instant;

use super::Tree;
use crate::Ino;
use crate::own_changes::{Direction, OwnChanges};
use crate::repeat::ForeignChange;

impl Tree {
    /// From now on it is remembered which reports the changes through this mount will cause.
    pub(crate) fn expect_own_reports(&mut self) {
        self.own_changes = Some(OwnChanges::default());
    }

    /// `name` is being exchanged with another one: it is reported to disappear, too. Must be
    /// followed by [`Tree::end_exchange`].
    pub(crate) fn begin_exchange(&mut self, dir: Ino, name: &Name) {
        if let Some(own_changes) = &mut self.own_changes {
            own_changes.begin(dir, name, Direction::Disappears);
        }
    }

    /// The exchange has ended. Returns the reports that turn out to be of changes of others.
    pub(crate) fn end_exchange(
        &mut self,
        dir: Ino,
        name: &Name,
        has_succeeded: bool,
    ) -> Vec<ForeignChange> {
        let own = self.own_changes.as_mut();
        own.map_or_else(Vec::new, |own| own.end(dir, name, Direction::Disappears, has_succeeded))
    }

    /// These changes are going to be applied. Directories below which a process watches something,
    /// as `is_watched` says of inode numbers, are in use: the watches below would end with theirs.
    pub(crate) fn note_watched_below(
        &mut self,
        changes: &[WatchedChange],
        is_watched: impl Fn(u64) -> bool,
    ) {
        let dirs = changes.iter().filter_map(|change| self.watched_dir(change.watch));
        let dirs: HashSet<Ino> =
            dirs.filter(|dir| self.is_about_to_end(*dir, changes.len())).collect();
        for dir in dirs {
            let is_watched_below = self.watched_dirs_within(dir).into_iter().any(|below| {
                self.nodes.get(below).is_some_and(|node| is_watched(node.inode.number))
            });
            if is_watched_below {
                self.note_dir_use(dir);
            }
        }
    }

    /// The reported change, if it was not made through this mount. A directory that a process
    /// watches, as `is_watched` says of inode numbers, is in use.
    pub(crate) fn foreign_change(
        &mut self,
        change: &WatchedChange,
        is_watched: impl Fn(u64) -> bool,
    ) -> Option<ForeignChange> {
        let WatchedChange { watch, event, name, is_dir, cookie, source } = change;
        let (dir, name) = (self.watched_dir(*watch)?, name.as_ref()?);
        let dir_number = self.number(dir);
        if is_watched(dir_number) {
            self.note_dir_use(dir);
        }
        let is_own = self.is_own_change(dir, name, *event, *source);
        let number = self.child(dir, name).map(|child| child.number);
        let (path, name) = (self.path(dir)?, name.clone());
        let (event, is_dir, cookie, source) = (*event, *is_dir, *cookie, *source);
        let change =
            ForeignChange { dir, path, dir_number, name, number, event, is_dir, cookie, source };
        if !is_own {
            return Some(change);
        }
        if let Some((own, direction)) = self.own_changes.as_mut().zip(direction(event)) {
            own.keep_undecided(direction, change);
        }
        None
    }

    fn is_own_change(&mut self, dir: Ino, name: &Name, event: Event, source: u64) -> bool {
        let child = self.child(dir, name);
        let Some(own) = &mut self.own_changes else { return false };
        match direction(event) {
            Some(direction) => own.take(dir, name, direction, source),
            None => {
                own.is_removal_expected(dir, name, source)
                    || child.is_some_and(|child| child.state().is_quiet_time(Instant::now()))
            }
        }
    }

    /// The directories whose inode numbers are `wanted`.
    pub(crate) fn directories(&mut self, wanted: impl Fn(u64) -> bool) -> Vec<Ino> {
        let inodes = self.nodes.iter_mut().map(|node| &node.inode);
        let dirs = inodes.filter(|inode| inode.kind == FileKind::Directory);
        dirs.filter(|dir| wanted(dir.number)).map(|dir| dir.ino).collect()
    }
}

/// What happens to the name; `None` if it leads to the same file as before.
fn direction(event: Event) -> Option<Direction> {
    match event {
        Event::Created | Event::MovedHere => Some(Direction::Appears),
        Event::Removed | Event::MovedAway => Some(Direction::Disappears),
        Event::Modified | Event::Attributes | Event::Written | Event::Ended => None,
    }
}
