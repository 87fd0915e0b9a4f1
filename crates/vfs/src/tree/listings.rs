//! The listings of the tree's directories in the directory cache, kept in step with local changes.

use std::time::Duration;

use base::{Attr, FileKind, Name, RemotePath};
use tokio::time::Instant;

use super::{RequestStamp, Tree};
use crate::Ino;
use crate::config::Timeout;
use crate::cover::MAX_AGE;
use crate::dir_cache::{CachedEntry, CachedListing, DirCache, FullListing, Lookup};
use crate::inode::Inode;
use crate::numbers::ROOT_NUMBER;

/// What decides how long a listing is valid.
struct ListingAge {
    stamp: RequestStamp,
    first_batch_at: Instant,
    newest_mtime: i64,
}

impl ListingAge {
    fn of(listing: &CachedListing) -> ListingAge {
        let (stamp, first_batch_at) = (listing.stamp(), listing.first_batch_at());
        ListingAge { stamp, first_batch_at, newest_mtime: listing.newest_mtime() }
    }

    /// Whether the listing, of the directory `dir`, is valid.
    fn is_valid(&self, dir: &Inode, dirs: Timeout) -> bool {
        let lifetime = dir.state().listing_lifetime(self.stamp, self.newest_mtime, dirs);
        Instant::now() < self.first_batch_at + lifetime
    }

    /// Whether the listing is valid, for a directory without a node whose attributes in its
    /// parent's listing are `dir`.
    fn is_valid_without_node(&self, dir: Option<&Attr>, dirs: Timeout) -> bool {
        let mtime = dir.map(|attr| attr.mtime.secs.max(self.newest_mtime));
        let lifetime = mtime.map_or(dirs.min, |mtime| dirs.at_age(mtime));
        Instant::now() < self.first_batch_at + lifetime
    }
}

/// Directories that are known to have locked files. Beyond it they begin anew, which costs an
/// invalidation of the kernel's names.
const MAX_LOCKED_DIRS: usize = 4096;

impl Tree {
    /// The cached listing of `dir`. One that was cached by path is assigned to the node.
    pub(crate) fn listing(&mut self, dir: Ino) -> Option<&CachedListing> {
        if !self.dir_cache.contains(dir)
            && self.dir_cache.has_any_by_path()
            && let Some(path) = self.path(dir)
            && let Some(listing) = self.dir_cache.take_by_path(&path)
        {
            self.insert_listing(dir, listing);
        }
        self.dir_cache.get(dir)
    }

    /// The full listing of `dir`, if it is valid. If it was prefetched and this is its first use,
    /// also returns whether it is in time.
    pub(crate) fn full_listing(
        &mut self,
        dir: Ino,
        dirs: Timeout,
    ) -> (Option<FullListing>, Option<bool>) {
        let Some(listing) = self.listing(dir) else { return (None, None) };
        let age = ListingAge::of(listing);
        let is_valid = self.get(dir).is_some_and(|dir| age.is_valid(&dir, dirs));
        let full_listing = is_valid.then(|| self.listing(dir)?.full()).flatten();
        let in_time = full_listing.is_some();
        (full_listing, self.dir_cache.take_prefetched(dir).then_some(in_time))
    }

    /// Whether a valid listing of the directory at `path` is cached; without a time-out, whether
    /// any is.
    pub(crate) fn has_valid_listing(&mut self, path: &RemotePath, dirs: Option<Timeout>) -> bool {
        let dir = self.find(path);
        let listing = match dir {
            Some(dir) => self.listing(dir),
            None => self.dir_cache.get_by_path(path),
        };
        let Some(age) = listing.map(ListingAge::of) else { return false };
        let Some(dirs) = dirs else { return true };
        match dir.and_then(|dir| self.get(dir)) {
            Some(dir) => age.is_valid(&dir, dirs),
            None => age.is_valid_without_node(self.listed_attr_at(path).as_ref(), dirs),
        }
    }

    /// The attributes of the directory at `path` in the listing of its parent.
    fn listed_attr_at(&mut self, path: &RemotePath) -> Option<Attr> {
        let (above, name) = (path.parent()?, path.file_name()?);
        match self.listing_at(&above)?.lookup(&name)? {
            Lookup::Present { attr, .. } => Some(attr),
            Lookup::Absent(_) | Lookup::NotListed(_) => None,
        }
    }

    /// Caches a listing of `dir`, except for the names that were changed locally since its request.
    pub(crate) fn insert_listing(&mut self, dir: Ino, mut listing: CachedListing) {
        let RequestStamp { seq, .. } = listing.stamp();
        if !self.nodes.contains(dir) || !self.paths_unchanged_since(seq) {
            return;
        }
        if self.locked_dirs.get(&dir).is_some_and(|locked_at| listing.stamp().at < *locked_at) {
            return;
        }
        // A failed attempt does not replace a complete listing.
        let newer = |known: &CachedListing| known.is_complete() && !listing.is_complete();
        if self.dir_cache.get(dir).is_some_and(newer) {
            return;
        }
        let Some(changed) = self.changes.changed_since(dir, seq) else { return };
        for name in changed {
            listing.invalidate_name(name);
        }
        self.dir_cache.insert(dir, listing);
    }

    /// Caches a listing of the directory at `path`.
    pub(crate) fn insert_listing_at(&mut self, path: RemotePath, listing: CachedListing) {
        let RequestStamp { seq, .. } = listing.stamp();
        if !self.forgotten_changes.is_valid(&path, seq) {
            return;
        }
        if let Some(dir) = self.find(&path) {
            self.insert_listing(dir, listing);
        } else if self.paths_unchanged_since(seq) {
            self.dir_cache.insert_by_path(path, listing);
        }
    }

    /// A file in `dir` was locked at `now`: its names from before are not valid any more. Returns
    /// whether it is the first one.
    pub(crate) fn expire_names_in(&mut self, dir: Ino, now: Instant) -> bool {
        // Also one that was cached by path.
        self.listing(dir);
        self.dir_cache.remove(dir);
        if self.locked_dirs.len() >= MAX_LOCKED_DIRS {
            self.locked_dirs.clear();
        }
        self.locked_dirs.insert(dir, now).is_none()
    }

    /// Whether a file in `dir` was locked.
    pub(crate) fn has_locked_files(&self, dir: Ino) -> bool {
        self.locked_dirs.contains_key(&dir)
    }

    /// The node at `path`, if there is one.
    pub(crate) fn find(&self, path: &RemotePath) -> Option<Ino> {
        path.names().try_fold(Ino::ROOT, |dir, name| {
            let name = Name::new(name).ok()?;
            self.nodes.find(dir, &name).map(|(node, _)| node.inode.ino)
        })
    }

    /// The cached listing of the directory at `path`.
    pub(crate) fn listing_at(&mut self, path: &RemotePath) -> Option<&CachedListing> {
        match self.find(path) {
            Some(dir) => self.listing(dir),
            None => self.dir_cache.get_by_path(path),
        }
    }

    /// Computes the order by inode number for the cached listing of `path`.
    pub(crate) fn ensure_number_order(&mut self, path: &RemotePath) {
        let Some(listed) =
            self.listing_at(path).and_then(CachedListing::entries_without_number_order)
        else {
            return;
        };
        let number = self.expected_numbers_in(path);
        let numbers: Vec<u64> = listed.iter().map(&number).collect();
        drop(number);
        if let Some(listing) = self.listing_at(path) {
            listing.set_number_order(&numbers);
        }
    }

    /// The inode numbers of names in the directory at `path`, or those that they would get.
    fn expected_numbers_in(&self, path: &RemotePath) -> impl Fn(&CachedEntry) -> u64 + use<'_> {
        let below = |(dir, number): (Option<Ino>, u64), name: &Name| match dir
            .and_then(|dir| self.child(dir, name))
        {
            Some(inode) => (Some(inode.ino), inode.number),
            None => (None, self.numbers.expected(number, name)),
        };
        let names = path.names().filter_map(|name| Name::new(name).ok());
        let dir = names.fold((Some(Ino::ROOT), ROOT_NUMBER), |dir, name| below(dir, &name));
        move |entry| match entry.attr.get().id() {
            Some(id) => self.numbers.of_remote(id),
            None => below(dir, &entry.name).1,
        }
    }

    /// The directory `dir` at `path` was just created by this mount, and is empty.
    pub(crate) fn insert_created_directory(
        &mut self,
        dir: Ino,
        path: &RemotePath,
        stamp: RequestStamp,
    ) {
        self.dir_cache.take_by_path(path);
        self.insert_listing(dir, CachedListing::of_created(stamp, Instant::now()));
    }

    /// How much longer a name that is not in the cached listing of `dir` is taken to be absent, if
    /// an absent name is cached for `negative`.
    pub(crate) fn absence_lifetime(&self, dir: Ino, negative: Duration, now: Instant) -> Duration {
        let is_trusted = self.nodes.get(dir).is_some_and(|node| !node.hides_names);
        let listing = self.dir_cache.peek(dir).filter(|_| is_trusted);
        if let Some(listing) = listing.filter(|listing| self.covers_names(dir, listing.stamp().at))
        {
            return MAX_AGE.saturating_sub(now.saturating_duration_since(listing.first_batch_at()));
        }
        listing.map_or(Duration::ZERO, |listing| listing.absence_lifetime(negative, now))
    }

    /// The cached listing of `dir` has answered for a name that is not in it; that answer is valid
    /// for `left` out of `lifetime`. Returns whether to refresh the listing.
    pub(crate) fn note_search(&mut self, dir: Ino, left: Duration, lifetime: Duration) -> bool {
        self.dir_cache.note_search(dir, left, lifetime)
    }

    /// `name` was removed by a local change that is still in flight.
    pub(crate) fn record_removal(&mut self, dir: Ino, name: &Name) {
        let child = self.child(dir, name).filter(|child| child.kind == FileKind::Directory);
        if let Some(child) = child
            && let Some(path) = self.path(child.ino)
        {
            // Before the node is removed, and while its path is known.
            self.forget_changes(path);
            if let Some(node) = self.nodes.get_mut(child.ino) {
                node.removed_here = true;
            }
        }
        if !self.changes.has_other_changes(dir, name) {
            self.dir_cache.set_absent(dir, name, Instant::now());
        }
    }

    /// Caches the answer that `name` exists, unless the name was changed locally since the request.
    pub(crate) fn record_present(
        &mut self,
        dir: Ino,
        name: &Name,
        attr: &Attr,
        stamp: RequestStamp,
    ) {
        if self.changes.unchanged_since(dir, name, stamp.seq) {
            self.dir_cache.set_present(dir, name, attr, stamp);
        }
    }

    /// Whether `name` in `dir` was not changed locally since the request, as far as is recorded.
    pub(crate) fn is_current(&self, dir: Ino, name: &Name, stamp: RequestStamp) -> bool {
        let seq = stamp.seq;
        self.name_unchanged_since(dir, name, seq)
            && self.paths_unchanged_since(seq)
            && (self.forgotten_changes.none_since(seq)
                || self.path(dir).is_some_and(|path| self.forgotten_changes.is_valid(&path, seq)))
    }

    /// The server has returned `reply` for `name` (`None`: it is absent). If the cached listing of
    /// the directory contradicts that, the entry is overridden or invalidated.
    pub(crate) fn reconcile_listing(
        &mut self,
        dir: Ino,
        name: &Name,
        lookup: Option<&Attr>,
        stamp: RequestStamp,
    ) {
        let listed = self.listing(dir).and_then(|listing| listing.lookup(name));
        match (listed, lookup) {
            (Some(Lookup::Absent(_)), Some(attr)) => self.record_present(dir, name, attr, stamp),
            (Some(Lookup::NotListed(_)), Some(attr)) => {
                self.record_present(dir, name, attr, stamp);
                if let Some(node) = self.nodes.get_mut(dir) {
                    node.hides_names = true;
                }
            }
            (Some(Lookup::NotListed(_)), None) => self.dir_cache.confirm_absence(dir),
            (Some(Lookup::Present { .. }), None) => self.dir_cache.invalidate_name(dir, name),
            _ => {}
        }
    }

    /// The server has no `name` in `dir`. Invalidates it in the cached listing, and in those that
    /// were requested before.
    pub(crate) fn note_absent(&mut self, dir: Ino, name: &Name) {
        let seq = self.change_counter.advance();
        self.changes.note(dir, name, seq);
        self.dir_cache.invalidate_name(dir, name);
    }

    /// Invalidates the names of `ino` in cached listings.
    pub(crate) fn invalidate_names(&mut self, ino: Ino) {
        for (dir, name) in self.names(ino) {
            self.dir_cache.invalidate_name(dir, &name);
        }
    }

    /// The first name of `ino`, and its directory.
    pub(crate) fn first_name(&self, ino: Ino) -> Option<(Ino, Name)> {
        let link = self.nodes.get(ino)?.links.first()?;
        Some((link.parent, link.name.clone()))
    }

    /// The name of `ino` that was looked up last, and its directory: that of [`Tree::path`].
    pub(crate) fn used_name(&self, ino: Ino) -> Option<(Ino, Name)> {
        let link = self.nodes.get(ino)?.links.used()?;
        Some((link.parent, link.name.clone()))
    }

    /// The number of names in the directory cache, and their bytes.
    pub(crate) fn dir_cache_size(&self) -> (usize, usize) {
        self.dir_cache.size()
    }

    /// Invalidates all answers of the remote, including those to requests in flight. Nodes keep
    /// their names and numbers. Returns the names in the root.
    pub(crate) fn invalidate_all(&mut self) -> Vec<Name> {
        let (seq, now) = (self.change_counter.advance(), Instant::now());
        // Answers by path, for a name, and about a directory without a node; see invariant 5.
        self.last_move_seq = seq;
        self.changes.invalidate_all(seq);
        self.forgotten_changes.note_all(seq);
        self.dir_cache = DirCache::with_max_bytes(self.budget.dir_cache_bytes());
        for node in self.nodes.iter_mut() {
            node.hides_names = false;
            let mut state = node.inode.state();
            state.note_change(seq);
            state.forget_created_here();
            state.invalidate_pages();
            drop(state);
            for link in node.links.iter_mut() {
                link.valid_until = now.into();
            }
        }
        self.names_in_root()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::Timestamp;

    use super::*;
    use crate::name_changes::BoundTo;
    use crate::tree::InodeBudget;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn path(text: &str) -> RemotePath {
        RemotePath::parse(text.as_bytes()).unwrap()
    }

    /// A directory with a name in it that was changed locally.
    fn changed(tree: &mut Tree, text: &str) -> Ino {
        let time = Timestamp::default();
        let kind = FileKind::Directory;
        let attr = Attr {
            kind,
            perm: 0o755,
            size: 0,
            uid: 0,
            gid: 0,
            atime: time,
            mtime: time,
            inode: None,
        };
        let dir = tree.record_lookup(Ino::ROOT, &name(text), &attr, Instant::now()).ino;
        tree.begin_name_change(dir, &name("x"), BoundTo::Nothing);
        tree.end_name_change(dir, &name("x"), BoundTo::Nothing, true);
        dir
    }

    fn stamp(tree: &Tree) -> RequestStamp {
        RequestStamp { seq: tree.change_counter.now(), at: Instant::now() }
    }

    /// Whether a listing that was requested at `stamp` is kept when it arrives.
    fn keeps(tree: &mut Tree, text: &str, stamp: RequestStamp) -> bool {
        let listing = CachedListing::new(Vec::new(), true, stamp, Instant::now());
        tree.insert_listing_at(path(text), listing);
        tree.listing_at(&path(text)).is_some()
    }

    #[test]
    fn a_forgotten_directory_invalidates_earlier_requests_about_itself_only() {
        for removed in [false, true] {
            let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
            let before = stamp(&tree);
            let (dir, other) = (changed(&mut tree, "d"), changed(&mut tree, "e"));
            assert!(keeps(&mut tree, "f", before));
            if removed {
                tree.record_removal(Ino::ROOT, &name("d"));
                tree.unbind(Ino::ROOT, &name("d"));
            }
            let then = stamp(&tree);
            tree.forget(dir, 1);
            assert!(tree.listing_at(&path("f")).is_some());
            assert!(keeps(&mut tree, "g", before));
            assert!(!keeps(&mut tree, "d", before), "removed: {removed}");
            let later = if removed { then } else { stamp(&tree) };
            assert!(keeps(&mut tree, "d", later), "removed: {removed}");
            assert!(tree.is_current(other, &name("y"), before));
            let again = changed(&mut tree, "d");
            assert!(!tree.is_current(again, &name("y"), before), "removed: {removed}");
        }
    }

    #[test]
    fn a_forgotten_directory_has_no_locked_files() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        let dir = changed(&mut tree, "d");
        assert!(tree.expire_names_in(dir, Instant::now()) && tree.has_locked_files(dir));
        tree.forget(dir, 1);
        assert!(tree.locked_dirs.is_empty());
    }

    #[test]
    fn a_directory_replaced_remotely_invalidates_earlier_requests_about_all() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        let before = stamp(&tree);
        let dir = changed(&mut tree, "d");
        assert!(keeps(&mut tree, "f", before));
        tree.orphan(dir);
        tree.forget(dir, 1);
        assert!(tree.listing_at(&path("f")).is_none() && !keeps(&mut tree, "g", before));
        let later = stamp(&tree);
        assert!(keeps(&mut tree, "g", later));
    }
}
