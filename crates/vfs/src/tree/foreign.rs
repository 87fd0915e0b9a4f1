//! Which reports are of changes that were not made through this mount.

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

    /// The reported change, if it was not made through this mount. A directory that a process
    /// watches, as `is_watched` says of inode numbers, is in use.
    pub(crate) fn foreign_change(
        &mut self,
        change: &WatchedChange,
        is_watched: impl Fn(u64) -> bool,
    ) -> Option<ForeignChange> {
        let WatchedChange { watch, event, name, is_dir, cookie } = change;
        let (dir, name) = (self.watched_dir(*watch)?, name.as_ref()?);
        let dir_number = self.number(dir);
        if is_watched(dir_number) {
            // Notes the use.
            self.covers_names(dir, Instant::now());
        }
        if self.is_own_change(dir, name, *event) {
            return None;
        }
        let number = self.child(dir, name).map(|child| child.number);
        let (path, name) = (self.path(dir)?, name.clone());
        let (event, is_dir, cookie) = (*event, *is_dir, *cookie);
        Some(ForeignChange { dir, path, dir_number, name, number, event, is_dir, cookie })
    }

    fn is_own_change(&mut self, dir: Ino, name: &Name, event: Event) -> bool {
        let child = self.child(dir, name);
        let Some(own) = &mut self.own_changes else { return false };
        match event {
            Event::Created | Event::MovedHere => own.take(dir, name, Direction::Appears),
            Event::Removed | Event::MovedAway => own.take(dir, name, Direction::Disappears),
            Event::Modified | Event::Attributes | Event::Written | Event::Ended => {
                own.is_removal_expected(dir, name)
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
