//! What the tree knows of whole directories: snapshots, kept in step with the changes made here.

use std::time::Duration;

use base::{Attr, FileKind, Name, RemotePath};
use tokio::time::Instant;

use super::{Asked, Tree};
use crate::Ino;
use crate::config::Timeout;
use crate::inode::Inode;
use crate::numbers::ROOT_NUMBER;
use crate::snapshot::{Order, Snapshot, Told, Whole};

/// How old a listing is, and what it tells of.
struct Age {
    asked: Asked,
    first_at: Instant,
    newest: i64,
}

impl Age {
    fn of(snapshot: &Snapshot) -> Age {
        let (asked, first_at) = (snapshot.asked(), snapshot.first_at());
        Age { asked, first_at, newest: snapshot.newest() }
    }

    /// Whether the listing counts still, which is of the directory `dir`.
    fn counts(&self, dir: &Inode, dirs: Timeout) -> bool {
        let lifetime = dir.state().listing_lifetime(self.asked, self.newest, dirs);
        Instant::now() < self.first_at + lifetime
    }

    /// The same of a directory without a node, with what the one that it is in tells of it.
    fn counts_ahead(&self, dir: Option<&Attr>, dirs: Timeout) -> bool {
        let mtime = dir.map(|attr| attr.mtime.secs.max(self.newest));
        let lifetime = mtime.map_or(dirs.min, |mtime| dirs.at_age(mtime));
        Instant::now() < self.first_at + lifetime
    }
}

impl Tree {
    /// The last snapshot of `dir`, if there is one.
    pub(crate) fn snapshot(&mut self, dir: Ino) -> Option<&Snapshot> {
        if !self.snapshots.has(dir)
            && self.snapshots.any_ahead()
            && let Some(path) = self.path(dir)
            && let Some(snapshot) = self.snapshots.take_ahead(&path)
        {
            self.learn_directory(dir, snapshot);
        }
        self.snapshots.get(dir)
    }

    /// The whole listing of `dir`, if it counts still. Tells too whether it had been fetched ahead,
    /// for nobody so far, and if so whether in time.
    pub(crate) fn whole(&mut self, dir: Ino, dirs: Timeout) -> (Option<Whole>, Option<bool>) {
        let Some(snapshot) = self.snapshot(dir) else { return (None, None) };
        let age = Age::of(snapshot);
        let counts = self.get(dir).is_some_and(|dir| age.counts(&dir, dirs));
        let whole = counts.then(|| self.snapshot(dir)?.whole()).flatten();
        let in_time = whole.is_some();
        (whole, self.snapshots.use_ahead(dir).then_some(in_time))
    }

    /// Whether a listing of what is at `path` is kept that counts still; any that is kept, without
    /// a time-out.
    pub(crate) fn lists_well(&mut self, path: &RemotePath, dirs: Option<Timeout>) -> bool {
        let dir = self.find(path);
        let listing = match dir {
            Some(dir) => self.snapshot(dir),
            None => self.snapshots.get_ahead(path),
        };
        let Some(age) = listing.map(Age::of) else { return false };
        let Some(dirs) = dirs else { return true };
        match dir.and_then(|dir| self.get(dir)) {
            Some(dir) => age.counts(&dir, dirs),
            None => age.counts_ahead(self.listed_at(path).as_ref(), dirs),
        }
    }

    /// What the listing of the directory above tells of what is at `path`.
    fn listed_at(&mut self, path: &RemotePath) -> Option<Attr> {
        let (above, name) = (path.parent()?, path.file_name()?);
        match self.lists(&above)?.told(&name)? {
            Told::Present { attr, .. } => Some(attr),
            Told::Absent(_) | Told::Unlisted(_) => None,
        }
    }

    /// Takes over a listing of `dir`, but for the names that were changed here since it began.
    pub(crate) fn learn_directory(&mut self, dir: Ino, mut snapshot: Snapshot) {
        let Asked { tick, .. } = snapshot.asked();
        if !self.nodes.contains(dir) || !self.paths_unchanged_since(tick) {
            return;
        }
        // A failed attempt does not tell more than what is known.
        let newer = |known: &Snapshot| known.is_complete() && !snapshot.is_complete();
        if self.snapshots.get(dir).is_some_and(newer) {
            return;
        }
        let Some(changed) = self.changes.since(dir, tick) else { return };
        for name in changed {
            snapshot.doubt(name);
        }
        self.snapshots.insert(dir, snapshot);
    }

    /// Takes over a listing of what is at `path`.
    pub(crate) fn learn_directory_at(&mut self, path: RemotePath, snapshot: Snapshot) {
        let Asked { tick, .. } = snapshot.asked();
        if !self.lost.counts(&path, tick) {
            return;
        }
        if let Some(dir) = self.find(&path) {
            self.learn_directory(dir, snapshot);
        } else if self.paths_unchanged_since(tick) {
            self.snapshots.insert_ahead(path, snapshot);
        }
    }

    /// The node at `path`, if there is one.
    pub(crate) fn find(&self, path: &RemotePath) -> Option<Ino> {
        path.names().try_fold(Ino::ROOT, |dir, name| {
            let name = Name::new(name).ok()?;
            self.nodes.find(dir, &name).map(|(node, _)| node.inode.ino)
        })
    }

    /// Whether a listing of what is at `path` is kept.
    pub(crate) fn lists(&mut self, path: &RemotePath) -> Option<&Snapshot> {
        match self.find(path) {
            Some(dir) => self.snapshot(dir),
            None => self.snapshots.get_ahead(path),
        }
    }

    /// The directories in what is known of the one at `path`, in this order, and whether they are
    /// there still.
    pub(crate) fn directories(&mut self, path: &RemotePath, order: Order) -> Vec<(Name, bool)> {
        let mut names = self.lists(path).map(Snapshot::directories).unwrap_or_default();
        match order {
            Order::Listing => {}
            Order::Name => {
                names.sort_by(|(one, _), (other, _)| one.as_bytes().cmp(other.as_bytes()))
            }
            Order::Number => {
                let number = self.numbers_in(path);
                names.sort_by_cached_key(|(name, _)| number(name));
            }
        }
        names
    }

    /// Sees to it that the listing of `path` knows the order of the inode numbers.
    pub(crate) fn order_by_number(&mut self, path: &RemotePath) {
        let Some(listed) = self.lists(path).and_then(Snapshot::unnumbered) else { return };
        let number = self.numbers_in(path);
        let numbers: Vec<u64> = listed.iter().map(|found| number(&found.name)).collect();
        drop(number);
        if let Some(listing) = self.lists(path) {
            listing.set_numbers(&numbers);
        }
    }

    /// The inode numbers of names in the directory at `path`, or those that they would get.
    pub(crate) fn numbers_in(&self, path: &RemotePath) -> impl Fn(&Name) -> u64 + use<'_> {
        let below = |(dir, number): (Option<Ino>, u64), name: &Name| match dir
            .and_then(|dir| self.child(dir, name))
        {
            Some(inode) => (Some(inode.ino), inode.number),
            None => (None, self.numbers.expected(number, name)),
        };
        let names = path.names().filter_map(|name| Name::new(name).ok());
        let dir = names.fold((Some(Ino::ROOT), ROOT_NUMBER), |dir, name| below(dir, &name));
        move |name| below(dir, name).1
    }

    /// The directory `dir` at `path` has just been made here, and is empty.
    pub(crate) fn made_directory(&mut self, dir: Ino, path: &RemotePath, asked: Asked) {
        self.snapshots.take_ahead(path);
        self.learn_directory(dir, Snapshot::of_made(asked, Instant::now()));
    }

    /// For how long a name that the snapshot of `dir` leaves out is taken for absent still, where
    /// one that was asked for is for `negative`.
    pub(crate) fn absent_for(&self, dir: Ino, negative: Duration, now: Instant) -> Duration {
        let believed = self.nodes.get(dir).is_some_and(|node| !node.hides_names);
        let snapshot = self.snapshots.peek(dir).filter(|_| believed);
        snapshot.map_or(Duration::ZERO, |snapshot| snapshot.absent_for(negative, now))
    }

    /// The snapshot of `dir` has answered for a name that it leaves out, and counts for so long
    /// still out of `lifetime`. Whether it is time to list `dir` anew.
    pub(crate) fn search(&mut self, dir: Ino, left: Duration, lifetime: Duration) -> bool {
        self.snapshots.search(dir, left, lifetime)
    }

    /// A change made here in `dir` is over.
    pub(crate) fn changed_here(&mut self, dir: Ino) {
        self.snapshots.changed(dir);
    }

    /// `name` was removed here, by a change that is on its way still.
    pub(crate) fn removed(&mut self, dir: Ino, name: &Name) {
        let child = self.child(dir, name).filter(|child| child.kind == FileKind::Directory);
        if let Some(child) = child
            && let Some(path) = self.path(child.ino)
        {
            // Before its node is gone, and while its path is known.
            self.lose(path);
            if let Some(node) = self.nodes.get_mut(child.ino) {
                node.removed_here = true;
            }
        }
        if !self.changes.others_change(dir, name) {
            self.snapshots.gone(dir, name, Instant::now());
        }
    }

    /// The server has told of `name` what was asked when `asked`; nothing was changed here since.
    pub(crate) fn told(&mut self, dir: Ino, name: &Name, attr: &Attr, asked: Asked) {
        if self.changes.unchanged_since(dir, name, asked.tick) {
            self.snapshots.seen(dir, name, attr, asked);
        }
    }

    /// Whether what was asked of `name` has not been changed here since, as far as can be told.
    pub(crate) fn still(&self, dir: Ino, name: &Name, asked: Asked) -> bool {
        let tick = asked.tick;
        self.name_unchanged_since(dir, name, tick)
            && self.paths_unchanged_since(tick)
            && (self.lost.none_since(tick)
                || self.path(dir).is_some_and(|path| self.lost.counts(&path, tick)))
    }

    /// The server has told of `name` when it was asked (`None`: it is not there). If the snapshot
    /// of the directory says the contrary, it does so no longer.
    pub(crate) fn correct(&mut self, dir: Ino, name: &Name, told: Option<&Attr>, asked: Asked) {
        let listed = self.snapshot(dir).and_then(|snapshot| snapshot.told(name));
        match (listed, told) {
            (Some(Told::Absent(_)), Some(attr)) => self.told(dir, name, attr, asked),
            (Some(Told::Unlisted(_)), Some(attr)) => {
                self.told(dir, name, attr, asked);
                if let Some(node) = self.nodes.get_mut(dir) {
                    node.hides_names = true;
                }
            }
            (Some(Told::Unlisted(_)), None) => self.snapshots.confirm(dir),
            (Some(Told::Present { .. }), None) => self.snapshots.doubt(dir, name),
            _ => {}
        }
    }

    /// What is known of the names of `ino` is not true any longer.
    pub(crate) fn doubt_names(&mut self, ino: Ino) {
        for (dir, name) in self.names(ino) {
            self.snapshots.doubt(dir, &name);
        }
    }

    /// The first name of `ino`, and the directory that it is in.
    pub(crate) fn name(&self, ino: Ino) -> Option<(Ino, Name)> {
        let link = self.nodes.get(ino)?.links.first()?;
        Some((link.parent, link.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::Timestamp;

    use super::*;
    use crate::name_changes::Puts;
    use crate::tree::Room;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn path(text: &str) -> RemotePath {
        RemotePath::parse(text.as_bytes()).unwrap()
    }

    /// A directory with a name in it that was changed here.
    fn changed(tree: &mut Tree, text: &str) -> Ino {
        let time = Timestamp::default();
        let kind = FileKind::Directory;
        let attr = Attr { kind, perm: 0o755, size: 0, uid: 0, gid: 0, atime: time, mtime: time };
        let dir = tree.see(Ino::ROOT, &name(text), &attr, Instant::now()).inode().ino;
        tree.begin_name(dir, &name("x"), Puts::Nothing);
        tree.end_name(dir, &name("x"), Puts::Nothing);
        dir
    }

    fn asked(tree: &Tree) -> Asked {
        Asked { tick: tree.ticks.now(), at: Instant::now() }
    }

    /// Whether a listing that was asked for then is kept when it comes.
    fn keeps(tree: &mut Tree, text: &str, asked: Asked) -> bool {
        let listing = Snapshot::new(Vec::new(), true, asked, Instant::now());
        tree.learn_directory_at(path(text), listing);
        tree.lists(&path(text)).is_some()
    }

    #[test]
    fn a_directory_that_is_forgotten_spoils_what_was_asked_about_it_alone() {
        for removed in [false, true] {
            let mut tree = Tree::new(Arc::default(), Room::default());
            let before = asked(&tree);
            let (dir, other) = (changed(&mut tree, "d"), changed(&mut tree, "e"));
            assert!(keeps(&mut tree, "f", before));
            if removed {
                tree.removed(Ino::ROOT, &name("d"));
                tree.unbind(Ino::ROOT, &name("d"));
            }
            let then = asked(&tree);
            tree.forget(dir, 1);
            assert!(tree.lists(&path("f")).is_some());
            assert!(keeps(&mut tree, "g", before));
            assert!(!keeps(&mut tree, "d", before), "removed: {removed}");
            let later = if removed { then } else { asked(&tree) };
            assert!(keeps(&mut tree, "d", later), "removed: {removed}");
            assert!(tree.still(other, &name("y"), before));
            let again = changed(&mut tree, "d");
            assert!(!tree.still(again, &name("y"), before), "removed: {removed}");
        }
    }

    #[test]
    fn a_directory_that_was_replaced_elsewhere_spoils_what_was_asked_about_any() {
        let mut tree = Tree::new(Arc::default(), Room::default());
        let before = asked(&tree);
        let dir = changed(&mut tree, "d");
        assert!(keeps(&mut tree, "f", before));
        tree.orphan(dir);
        tree.forget(dir, 1);
        assert!(tree.lists(&path("f")).is_none() && !keeps(&mut tree, "g", before));
        let later = asked(&tree);
        assert!(keeps(&mut tree, "g", later));
    }
}
