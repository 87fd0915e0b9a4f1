//! The inodes that the kernel knows, and their names.
//!
//! Definitions. A *node* is an inode with its bookkeeping, identified by its [`Ino`], FUSE's node
//! id, which is never reused. A *binding*, or [`Link`], says that a name in a directory leads to a
//! node. A node without bindings is an *orphan*: its file was unlinked or replaced, and it lives on
//! for its open handles.
//!
//! Invariants:
//! 1. The root always exists.
//! 2. A node exists exactly as long as the kernel counts lookups of it, names are bound below it, or
//!    writes through a released open file are in flight (counted as a lookup).
//! 3. If there are more nodes than the budget allows, the kernel is requested to forget some
//!    ([`evict`]).
//! 4. A directory has at most one binding, so every node that is not an orphan has a path. A file
//!    has several if its names were linked through this mount, or if the remote tells files apart.
//!    Its path is by the name that was looked up last. The kernel gets such names with a time-out
//!    of zero, so it looks one up right before it uses it.
//! 5. The [`ChangeCounter`] increases with every change made through this mount. An answer whose
//!    request was stamped with `seq` may be cached, for a name or an inode, only if that was not
//!    changed since `seq` and is not being changed now.
//!
//! One mutex guards the tree (`Shared::tree`); nothing waits while holding it. An inode's own state
//! (`Inode::state`) may be locked inside it, never the other way round.

mod evict;
mod foreign;
mod forgotten_changes;
mod listings;
mod nodes;
mod watched;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Attr, Errno, FileId, FileKind, Name, RemotePath};
use tokio::time::Instant;

use crate::Ino;
use crate::compact_instant::CompactInstant;
use crate::dir_cache::DirCache;
use crate::inode::Inode;
use crate::name_changes::{BoundTo, NameChanges};
use crate::numbers::{Numbers, ROOT_NUMBER};
use crate::own_changes::{Direction, OwnChanges};
use crate::repeat::ForeignChange;
use forgotten_changes::ForgottenChanges;
use nodes::{Link, Nodes};
use watched::WatchedDirs;

pub(crate) use evict::InodeBudget;
pub(crate) use watched::Outdated;

/// The longest time in which the kernel walks a path again after `ESTALE`.
const WALK_AGAIN: Duration = Duration::from_millis(100);

/// The longest time in which an open follows that walk: its lookups wait for the server.
const OPEN_AGAIN: Duration = Duration::from_secs(10);

/// Counts the changes made through this mount; see invariant 5.
#[derive(Default)]
pub(crate) struct ChangeCounter(AtomicU64);

impl ChangeCounter {
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// A new sequence number, for a change that begins or ends now.
    pub(crate) fn advance(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// When a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestStamp {
    /// The last change counted before it; see invariant 5.
    pub(crate) seq: u64,
    /// The answer was true at this time or later.
    pub(crate) at: Instant,
}

/// See the [module](self).
pub(crate) struct Tree {
    nodes: Nodes,
    numbers: Numbers,
    /// The nodes of files that had several names when one of them was looked up.
    linked: HashMap<FileId, Ino>,
    change_counter: Arc<ChangeCounter>,
    /// Sequence number of the last change of a directory's path.
    last_move_seq: u64,
    /// The names that renames of directories in flight change.
    moving: Vec<(Ino, Name)>,
    changes: NameChanges,
    dir_cache: DirCache,
    forgotten_changes: ForgottenChanges,
    /// Directories with files that were locked, and when last: names from before are not valid.
    locked_dirs: HashMap<Ino, Instant>,
    /// When the kernel last used a name that leads to another file by now.
    used_lost_name_at: Option<Instant>,
    /// When an open was last sent back to the lookup, since its file had been replaced or removed.
    sent_back_at: Option<Instant>,
    watched: WatchedDirs,
    /// Only if the changes of others are repeated.
    own_changes: Option<OwnChanges>,
    budget: InodeBudget,
}

impl Tree {
    pub(crate) fn new(change_counter: Arc<ChangeCounter>, budget: InodeBudget) -> Tree {
        Tree {
            nodes: Nodes::new(ROOT_NUMBER),
            numbers: Numbers::default(),
            linked: HashMap::new(),
            change_counter,
            last_move_seq: 0,
            moving: Vec::new(),
            changes: NameChanges::default(),
            dir_cache: DirCache::with_max_bytes(budget.dir_cache_bytes()),
            forgotten_changes: ForgottenChanges::default(),
            locked_dirs: HashMap::new(),
            used_lost_name_at: None,
            sent_back_at: None,
            watched: WatchedDirs::default(),
            own_changes: None,
            budget,
        }
    }

    /// The remote shows files of several servers. If one `is_another` file when it begins or ceases
    /// to have an identity, it may come from another server. Called before any inode exists but the
    /// root.
    pub(crate) fn show_union(&mut self, is_another: bool) {
        self.numbers.hash_all();
        self.nodes.is_union = is_another;
    }

    /// Changes the bound of the memory for nodes and listings.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget.set_bytes(bytes);
        self.dir_cache.set_max_bytes(self.budget.dir_cache_bytes());
    }

    /// The number of nodes, including the root.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.nodes.get(ino).map(|node| node.inode.clone())
    }

    /// The path of a node; `None` for an orphan and for nodes below one.
    pub(crate) fn path(&self, ino: Ino) -> Option<RemotePath> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let link = self.nodes.get(at)?.links.used()?;
            debug_assert!(names.len() < self.nodes.len(), "a directory is below itself");
            names.push(&link.name);
            at = link.parent;
        }
        Some(RemotePath::from_names(names.into_iter().rev()))
    }

    /// The names on the path of a node, the last one first; fewer for an orphan and for nodes below
    /// one.
    fn links_up(&self, ino: Ino) -> impl Iterator<Item = &Link> {
        let link = |ino: Ino| self.nodes.get(ino)?.links.used();
        std::iter::successors(link(ino), move |below| link(below.parent))
    }

    /// Whether a node is the directory `dir`, or below it.
    pub(crate) fn is_within(&self, ino: Ino, dir: Ino) -> bool {
        ino == dir || self.links_up(ino).any(|link| link.parent == dir)
    }

    /// Whether no name on the path of a node was changed locally since `seq`, and none is being
    /// changed. Other directories may have been renamed.
    pub(crate) fn path_unchanged_since(&self, ino: Ino, seq: u64) -> bool {
        self.links_up(ino).all(|link| self.name_unchanged_since(link.parent, &link.name, seq))
    }

    /// Whether a name on the path of a node is being changed.
    pub(crate) fn is_path_changing(&self, ino: Ino) -> bool {
        !self.path_unchanged_since(ino, self.change_counter.now())
    }

    /// Whether a rename of a directory on the path of a node was sent and is not answered.
    pub(crate) fn is_moving(&self, ino: Ino) -> bool {
        let moves = |link: &Link| self.moving.iter().any(|(dir, name)| link.is(*dir, name));
        !self.moving.is_empty() && self.links_up(ino).any(moves)
    }

    /// Whether any name in `dir`, or in a directory below it, is being changed.
    pub(crate) fn has_changes_below(&self, dir: Ino) -> bool {
        self.changes.dirs_in_flight().any(|changing| self.is_within(changing, dir))
    }

    /// Whether `path`, which led to `ino` at `seq` by this name in this directory, may have led to
    /// another file since, or may do so now, because of a local change. That the name was absent
    /// for a while, since the file had another name, does not matter.
    pub(crate) fn may_have_led_elsewhere_since(
        &self,
        path: &RemotePath,
        (dir, name): &(Ino, Name),
        ino: Ino,
        seq: u64,
    ) -> bool {
        let (mut dir, mut name, mut ino) = (*dir, name, ino);
        if self.path(dir) != path.parent() {
            return true;
        }
        loop {
            if self.changes.may_be_other_since(dir, name, ino, seq) {
                return true;
            }
            if dir == Ino::ROOT {
                return false;
            }
            let Some(link) = self.nodes.get(dir).and_then(|node| node.links.first()) else {
                return true;
            };
            (dir, name, ino) = (link.parent, &link.name, dir);
        }
    }

    /// Whether `path` is one of the paths of a node.
    pub(crate) fn has_path(&self, ino: Ino, path: &RemotePath) -> bool {
        self.path(ino).as_ref() == Some(path) || self.paths(ino).contains(path)
    }

    /// Whether a node has exactly one path.
    pub(crate) fn has_one_path(&self, ino: Ino) -> bool {
        let Some(node) = self.nodes.get(ino).filter(|node| node.links.len() == 1) else {
            return false;
        };
        self.links_up(node.inode.ino).last().is_some_and(|link| link.parent == Ino::ROOT)
    }

    /// All paths of a node.
    pub(crate) fn paths(&self, ino: Ino) -> Vec<RemotePath> {
        let links = self.nodes.get(ino).into_iter().flat_map(|node| node.links.iter());
        links.filter_map(|link| Some(self.path(link.parent)?.join(&link.name))).collect()
    }

    /// The inode number of `name`, or the one that it would get with these attributes.
    pub(crate) fn expected_number(&self, parent: Ino, name: &Name, attr: Option<&Attr>) -> u64 {
        match (attr.and_then(Attr::id), self.child(parent, name)) {
            (Some(id), _) => self.numbers.of_remote(id),
            (None, Some(inode)) => inode.number,
            (None, None) => self.numbers.expected(self.number(parent), name),
        }
    }

    /// The parent of the directory `dir`; the root is its own parent.
    pub(crate) fn parent(&self, dir: Ino) -> Ino {
        let first = self.nodes.get(dir).and_then(|node| node.links.first());
        first.map_or(Ino::ROOT, |link| link.parent)
    }

    /// `st_ino` of a node.
    pub(crate) fn number(&self, ino: Ino) -> u64 {
        self.nodes.get(ino).map_or(0, |node| node.inode.number)
    }

    /// The node that `name` is bound to.
    pub(crate) fn child(&self, parent: Ino, name: &Name) -> Option<Arc<Inode>> {
        self.nodes.find(parent, name).map(|(node, _)| node.inode.clone())
    }

    /// The node that `name` is bound to, if the binding is valid, and until when it is.
    pub(crate) fn valid_child(
        &self,
        parent: Ino,
        name: &Name,
        now: Instant,
    ) -> Option<(Arc<Inode>, Instant)> {
        let (node, link) = self.nodes.find(parent, name)?;
        let until = link.valid_until.instant()?;
        let since = self.locked_dirs.get(&parent).copied().max(self.validates_names_since(now));
        if let Some(since) = since
            && node.inode.state().validated_at().is_none_or(|at| at < since)
        {
            return None;
        }
        if now >= until || self.has_lapsed_since(parent, &node.inode) {
            return None;
        }
        Some((node.inode.clone(), until))
    }

    /// Whether `name` in `dir` was not changed locally since `seq`, and is not being changed.
    pub(crate) fn name_unchanged_since(&self, dir: Ino, name: &Name, seq: u64) -> bool {
        self.nodes.contains(dir) && self.changes.unchanged_since(dir, name, seq)
    }

    /// Whether any name in `dir` may have been changed locally since `seq`, or is being changed.
    pub(crate) fn any_name_changed_since(&self, dir: Ino, seq: u64) -> bool {
        self.changes.any_changed_since(dir, seq)
    }

    /// The node that `name` is bound to, and the sequence number of the binding.
    pub(crate) fn child_since(&self, parent: Ino, name: &Name) -> Option<(Arc<Inode>, u64)> {
        self.nodes.find(parent, name).map(|(node, link)| (node.inode.clone(), link.since))
    }

    /// Whether no directory was moved locally since `seq`, and none is being moved.
    pub(crate) fn paths_unchanged_since(&self, seq: u64) -> bool {
        self.moving.is_empty() && self.last_move_seq <= seq
    }

    /// A rename of a directory, which changes `name` in `dir`, is about to be sent. Must be
    /// followed by [`Tree::end_move`].
    pub(crate) fn begin_move(&mut self, dir: Ino, name: &Name) {
        self.last_move_seq = self.change_counter.advance();
        self.moving.push((dir, name.clone()));
        self.dir_cache.clear_by_path();
    }

    /// A rename of a directory has ended, successfully or not.
    pub(crate) fn end_move(&mut self, dir: Ino, name: &Name) {
        self.last_move_seq = self.change_counter.advance();
        let ended = self.moving.iter().position(|moving| moving.0 == dir && moving.1 == *name);
        ended.map(|at| self.moving.swap_remove(at));
    }

    /// A change of `name` in `dir` begins. Must be followed by [`Tree::end_name_change`].
    pub(crate) fn begin_name_change(&mut self, dir: Ino, name: &Name, bound_to: BoundTo) {
        self.changes.begin(dir, name, bound_to, self.change_counter.advance());
        if let Some(own_changes) = &mut self.own_changes {
            own_changes.begin(dir, name, direction(bound_to));
        }
        self.dir_cache.begin_change(dir);
        self.dir_cache.invalidate_name(dir, name);
    }

    /// A change of `name` in `dir` has ended. Returns the reports that turn out to be of changes of
    /// others.
    pub(crate) fn end_name_change(
        &mut self,
        dir: Ino,
        name: &Name,
        bound_to: BoundTo,
        has_succeeded: bool,
    ) -> Vec<ForeignChange> {
        let seq = self.change_counter.advance();
        let own = self.own_changes.as_mut();
        let foreign =
            own.map_or_else(Vec::new, |own| own.end(dir, name, direction(bound_to), has_succeeded));
        self.changes.end(dir, name, bound_to, seq);
        self.dir_cache.end_change(dir);
        match self.nodes.get(dir) {
            // A change of its names changes the directory's own attributes.
            Some(node) => {
                let mut state = node.inode.state();
                state.note_change(seq);
                state.expect_new_mtime();
            }
            None => self.changes.forget(dir),
        }
        foreign
    }

    /// Binds `name` to a node for `attr`, valid until `valid_until`, and counts one lookup of it.
    /// Returns the node that had the name, that of another name of the file, or a new one.
    ///
    /// A node of another file under this name was replaced on the server and loses the name.
    pub(crate) fn record_lookup(
        &mut self,
        parent: Ino,
        name: &Name,
        attr: &Attr,
        valid_until: Instant,
    ) -> Arc<Inode> {
        if let Some(known) = self.child(parent, name) {
            if known.may_be(attr) {
                self.note_linked(known.ino, attr);
                self.renew_name(parent, name, valid_until);
                self.note_used(known.ino, parent, name);
                self.add_lookup(known.ino);
                return known;
            }
            self.unbind(parent, name);
        }
        if let Some(known) = self.linked_node(attr) {
            self.add_name(known.ino, parent, name, valid_until);
            self.note_used(known.ino, parent, name);
            self.add_lookup(known.ino);
            return known;
        }
        let number = match attr.id() {
            Some(id) => self.numbers.take_remote(id),
            None => self.numbers.take(self.number(parent), name),
        };
        let inode = self.nodes.insert(number, attr.kind);
        self.provide_cover(&inode);
        if let Some(node) = self.nodes.get_mut(inode.ino) {
            node.has_remote_number = attr.id().is_some();
        }
        self.note_linked(inode.ino, attr);
        self.add_name(inode.ino, parent, name, valid_until);
        self.evict_if_full();
        inode
    }

    /// The node of the names of the file `attr`, if several were found.
    fn linked_node(&self, attr: &Attr) -> Option<Arc<Inode>> {
        self.get(*self.linked.get(&linked_id(attr)?)?)
    }

    /// A name of the file `attr` leads to `ino`. If the file has several, further ones will lead to
    /// the same node.
    pub(crate) fn note_linked(&mut self, ino: Ino, attr: &Attr) {
        if let Some(id) = linked_id(attr)
            && self.linked_node(attr).is_none()
        {
            self.linked.insert(id, ino);
        }
    }

    /// Names of the file of `inode` no longer lead to this node.
    fn forget_linked(&mut self, inode: &Inode) {
        let id = inode.state().last_attr().and_then(|attr| attr.id());
        if let Some(id) = id.filter(|id| self.linked.get(id) == Some(&inode.ino)) {
            self.linked.remove(&id);
        }
    }

    /// Whether another name of the file `attr` leads to another node than `inode`, which nothing
    /// uses: another machine has made one of the names since the other was looked up.
    pub(crate) fn is_duplicate(&self, inode: &Inode, attr: &Attr) -> bool {
        let is_other = |node: Arc<Inode>| node.ino != inode.ino && node.may_be(attr);
        self.linked_node(attr).is_some_and(is_other) && inode.is_unused()
    }

    /// Extends the validity of `name`, which is bound to `known`, to `valid_until` at least, and
    /// counts one lookup. Returns until when the name is valid. Needs no search by name.
    pub(crate) fn renew_lookup(
        &mut self,
        known: &Inode,
        parent: Ino,
        name: &Name,
        valid_until: Instant,
    ) -> Instant {
        let link = self.nodes.get_mut(known.ino).and_then(|node| node.links.get_mut(parent, name));
        let until = link.and_then(|link| {
            link.valid_until = link.valid_until.max(valid_until.into());
            link.valid_until.instant()
        });
        self.note_used(known.ino, parent, name);
        self.add_lookup(known.ino);
        until.unwrap_or(valid_until)
    }

    /// The kernel uses `name`, which is bound to `ino`.
    pub(crate) fn note_used(&mut self, ino: Ino, parent: Ino, name: &Name) {
        if let Some(node) = self.nodes.get_mut(ino) {
            node.links.note_used(parent, name);
        }
    }

    /// Makes `name` a further name of `ino`.
    pub(crate) fn bind(&mut self, ino: Ino, parent: Ino, name: &Name, valid_until: Instant) {
        self.unbind(parent, name);
        self.add_name(ino, parent, name, valid_until);
    }

    /// Sets until when `name` is valid.
    pub(crate) fn renew_name(&mut self, parent: Ino, name: &Name, valid_until: Instant) {
        if let Some(link) = self.nodes.find_mut(parent, name) {
            link.valid_until = valid_until.into();
        }
    }

    /// Removes `name`. Returns the node that had it.
    pub(crate) fn unbind(&mut self, parent: Ino, name: &Name) -> Option<Arc<Inode>> {
        let ino = self.nodes.unbind(parent, name)?;
        let parent_number = self.number(parent);
        self.numbers.unbind(parent_number, name);
        let inode = self.get(ino);
        if let Some(inode) = &inode {
            self.keep_number(inode);
            self.update_cover(inode);
        }
        if let Some(node) = self.nodes.get_mut(parent) {
            node.children -= 1;
        }
        self.collect(parent);
        inode
    }

    /// Removes `name` because of a local change. Returns the node that had it. If the name `was_gone`
    /// before that, the node may have another name at the server.
    pub(crate) fn remove_name(
        &mut self,
        parent: Ino,
        name: &Name,
        was_gone: bool,
    ) -> Option<Arc<Inode>> {
        let inode = self.unbind(parent, name)?;
        if let Some(node) = self.nodes.get_mut(inode.ino) {
            node.removed_here = !was_gone && node.links.first().is_none();
        }
        Some(inode)
    }

    /// Whether the last name of a node was removed by a local change: the kernel opens it by a
    /// descriptor, and not by a name that it takes for that of the node.
    pub(crate) fn was_removed_here(&self, ino: Ino) -> bool {
        self.nodes.get(ino).is_some_and(|node| node.removed_here)
    }

    /// The kernel has used `ino` by a name that leads to another file by now. After the error
    /// returned here, the kernel walks the path once more, and not a third time: so what it finds
    /// then must not be from a cache that may be outdated, too.
    pub(crate) fn note_lost_name(&mut self, ino: Ino) -> Errno {
        if !self.was_removed_here(ino) {
            self.used_lost_name_at = Some(Instant::now());
        }
        Errno::ESTALE
    }

    /// Whether a walk at `now` may follow [`Tree::note_lost_name`], and needs names that were
    /// validated after it.
    pub(crate) fn validates_names_since(&self, now: Instant) -> Option<Instant> {
        self.used_lost_name_at.filter(|at| now.saturating_duration_since(*at) < WALK_AGAIN)
    }

    /// Removes all names of `ino`, because it was replaced on the server. A later name of its file
    /// is that of another node.
    pub(crate) fn orphan(&mut self, ino: Ino) {
        for (parent, name) in self.names(ino) {
            self.dir_cache.invalidate_name(parent, &name);
            self.unbind(parent, &name);
        }
        if let Some(inode) = self.get(ino) {
            self.forget_linked(&inode);
        }
    }

    /// The file of `ino` was replaced on the server, as an open of it has found. Returns the error of
    /// that open.
    pub(crate) fn note_replaced(&mut self, ino: Ino) -> Errno {
        self.orphan(ino);
        self.send_back()
    }

    /// The error that makes the kernel look a name up again, after an open of it. It does so once.
    pub(crate) fn send_back(&mut self) -> Errno {
        self.sent_back_at = Some(Instant::now());
        Errno::ESTALE
    }

    /// Whether an open may be the second one after [`Tree::send_back`]: its `ESTALE` would reach
    /// the application.
    pub(crate) fn may_open_again(&self) -> bool {
        self.sent_back_at.is_some_and(|at| at.elapsed() < OPEN_AGAIN)
    }

    /// Moves the name `from` to `to`; a file that had the name `to` loses it. Returns the moved
    /// node and the replaced one.
    pub(crate) fn rename(
        &mut self,
        from: (Ino, &Name),
        to: (Ino, &Name),
    ) -> (Option<Arc<Inode>>, Option<Arc<Inode>>) {
        let moved = self.child(from.0, from.1);
        let target = self.child(to.0, to.1);
        if let (Some(moved), Some(target)) = (&moved, &target)
            && moved.ino == target.ino
        {
            // Two names of one file: rename(2) leaves both.
            return (Some(moved.clone()), None);
        }
        let replaced = self.remove_name(to.0, to.1, false);
        let Some((node, link)) = self.nodes.find(from.0, from.1) else { return (None, replaced) };
        let (ino, valid_until) = (node.inode.ino, link.valid_until);
        // An answer to an earlier request uses the old names.
        self.change_counter.advance();
        // The new name first, so that the node's directories always have a reason to exist.
        self.add_name(ino, to.0, to.1, valid_until);
        self.note_used(ino, to.0, to.1);
        self.unbind(from.0, from.1);
        (moved, replaced)
    }

    /// Exchanges two names. Returns the nodes that had them.
    pub(crate) fn exchange(
        &mut self,
        one: (Ino, &Name),
        other: (Ino, &Name),
    ) -> [Option<Arc<Inode>>; 2] {
        let nodes = [one, other].map(|(dir, name)| {
            let (node, link) = self.nodes.find(dir, name)?;
            Some((node.inode.clone(), link.valid_until))
        });
        let inodes = nodes.clone().map(|node| node.map(|(inode, _)| inode));
        if let [Some(one), Some(other)] = &inodes
            && one.ino == other.ino
        {
            // Two names of one file.
            return inodes;
        }
        // An answer to an earlier request uses the old names.
        self.change_counter.advance();
        // The directories are in use by the caller, so they outlive the moment without the names.
        [one, other].into_iter().for_each(|(dir, name)| drop(self.unbind(dir, name)));
        for (node, (dir, name)) in nodes.into_iter().zip([other, one]) {
            if let Some((inode, valid_until)) = node {
                self.add_name(inode.ino, dir, name, valid_until);
                self.note_used(inode.ino, dir, name);
            }
        }
        inodes
    }

    /// The kernel has dropped `count` lookups of `ino`.
    pub(crate) fn forget(&mut self, ino: Ino, count: u64) {
        if let Some(node) = self.nodes.get_mut(ino) {
            if count > node.nlookup {
                tracing::warn!(
                    ino = ino.0,
                    count,
                    had = node.nlookup,
                    "more forgets than look-ups"
                );
            }
            node.nlookup = node.nlookup.saturating_sub(count);
            self.collect(ino);
        }
    }

    /// Counts one more lookup of `ino`.
    pub(crate) fn add_lookup(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get_mut(ino) else { return };
        node.nlookup += 1;
        self.budget.mark_used(node);
    }

    fn add_name(
        &mut self,
        ino: Ino,
        parent: Ino,
        name: &Name,
        valid_until: impl Into<CompactInstant>,
    ) {
        let (since, valid_until) = (self.change_counter.now(), valid_until.into());
        self.nodes.bind(ino, Link { parent, name: name.clone(), valid_until, since });
        if let Some(dir) = self.nodes.get_mut(parent) {
            dir.children += 1;
        }
        if let Some(node) = self.nodes.get_mut(ino) {
            node.removed_here = false;
        }
        if let Some(inode) = self.get(ino) {
            self.keep_number(&inode);
            self.update_cover(&inode);
            self.expire_several_names(&inode);
        }
    }

    /// Makes the kernel look up the names of a file each time, if they are several.
    fn expire_several_names(&self, inode: &Inode) {
        let Some(node) = self.nodes.get(inode.ino).filter(|node| node.links.len() > 1) else {
            return;
        };
        if !inode.set_several_names() {
            for link in node.links.iter() {
                // If it is refused, the kernel has so much to do that the time-out is soon over.
                let _ = self.kernel().is_none_or(|kernel| kernel.name(link.parent, &link.name));
            }
        }
    }

    /// All names of a node, with their directories.
    fn names(&self, ino: Ino) -> Vec<(Ino, Name)> {
        let links = self.nodes.get(ino).into_iter().flat_map(|node| node.links.iter());
        links.map(|link| (link.parent, link.name.clone())).collect()
    }

    /// Makes the first name of an inode keep its number after the kernel has forgotten the inode.
    fn keep_number(&mut self, inode: &Inode) {
        if self.nodes.get(inode.ino).is_some_and(|node| node.has_remote_number) {
            return;
        }
        if let Some((parent, name)) = self.first_name(inode.ino) {
            let parent_number = self.number(parent);
            self.numbers.bind(parent_number, &name, inode.number);
        }
    }

    /// Removes `ino` if nothing needs it, and then each node that only it needed.
    fn collect(&mut self, mut ino: Ino) {
        loop {
            let Some(node) = self.nodes.get(ino) else { return };
            if ino == Ino::ROOT || node.nlookup > 0 || node.children > 0 {
                return;
            }
            if node.inode.kind == FileKind::Directory {
                self.forget_names(ino);
            }
            let Some(node) = self.nodes.remove(ino) else { return };
            self.budget.mark_removed(&node);
            self.numbers.release(node.inode.number);
            let mut parents = Vec::new();
            let changed = node.inode.state().was_changed();
            self.forget_linked(&node.inode);
            for Link { parent, name, .. } in node.links.iter() {
                if changed {
                    // The record of the inode's changes is lost with it, so older answers must not
                    // be used for the name.
                    self.changes.note(*parent, name, self.change_counter.now());
                    self.dir_cache.invalidate_name(*parent, name);
                }
                if let Some(dir) = self.nodes.get_mut(*parent) {
                    dir.children -= 1;
                    parents.push(*parent);
                }
            }
            // A directory has one parent; only a file with several names has more.
            let Some(next) = parents.pop() else { return };
            for parent in parents {
                self.collect(parent);
            }
            ino = next;
        }
    }

    /// The node of the directory `dir` is about to be removed, and with it the record of changes of
    /// its names.
    fn forget_names(&mut self, dir: Ino) {
        self.dir_cache.remove(dir);
        self.locked_dirs.remove(&dir);
        self.end_watch_of(dir);
        if !self.changes.has_changes_in(dir) {
            return;
        }
        self.changes.forget(dir);
        let removed_here = self.nodes.get(dir).is_some_and(|node| node.removed_here);
        match self.path(dir) {
            Some(path) => self.forget_changes(path),
            None if removed_here => {}
            None => {
                self.dir_cache.clear_by_path();
                self.forgotten_changes.note_all(self.change_counter.now());
            }
        }
    }

    /// Invalidates earlier answers about the directory at `path`.
    fn forget_changes(&mut self, path: RemotePath) {
        self.dir_cache.take_by_path(&path);
        self.forgotten_changes.note(path, self.change_counter.advance());
    }

    /// Checks the invariants; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!(self.nodes.contains(Ino::ROOT));
        let mut children = std::collections::HashMap::<Ino, u32>::new();
        let mut names = 0;
        for node in self.nodes.iter() {
            for Link { parent, name, .. } in node.links.iter() {
                *children.entry(*parent).or_default() += 1;
                names += 1;
                let (bound, _) = self.nodes.find(*parent, name).expect("a name is bound");
                assert_eq!(bound.inode.ino, node.inode.ino, "{name} leads elsewhere");
            }
        }
        assert_eq!(names, self.nodes.bound());
        for node in self.nodes.iter() {
            let ino = node.inode.ino;
            assert_eq!(node.children, children.get(&ino).copied().unwrap_or(0));
            assert!(ino == Ino::ROOT || node.nlookup > 0 || node.children > 0, "{ino:?} is left");
            assert!(node.inode.kind != FileKind::Directory || node.links.len() <= 1);
        }
        let numbers: std::collections::HashSet<_> =
            self.nodes.iter().map(|node| node.inode.number).collect();
        assert_eq!(numbers.len(), self.nodes.len(), "two inodes have one number");
    }
}

/// Identifies a file with several names that lead to one node. The target of a symbolic link is
/// judged by the place of its name: each has its own node.
fn linked_id(attr: &Attr) -> Option<FileId> {
    let has_one_name = attr.is_dir() || attr.kind == FileKind::Symlink;
    attr.inode.filter(|inode| inode.links > 1 && !has_one_name)?.id
}

fn direction(bound_to: BoundTo) -> Direction {
    if bound_to == BoundTo::Nothing { Direction::Disappears } else { Direction::Appears }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Timestamp;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn attr(kind: FileKind) -> Attr {
        let time = Timestamp::default();
        Attr { kind, perm: 0o755, size: 0, uid: 0, gid: 0, atime: time, mtime: time, inode: None }
    }

    fn record_lookup(tree: &mut Tree, parent: Ino, text: &str, kind: FileKind) -> Arc<Inode> {
        tree.record_lookup(parent, &name(text), &attr(kind), Instant::now())
    }

    #[test]
    fn a_directory_is_watched_only_below_watched_ones() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        tree.keep_covers();
        let above = record_lookup(&mut tree, Ino::ROOT, "above", FileKind::Directory).ino;
        let below = record_lookup(&mut tree, above, "below", FileKind::Directory).ino;
        let (seq, number) = (tree.change_counter.now(), 1);
        // Those of a union have several connections.
        for (connection, dir) in [Ino::ROOT, above, below].into_iter().enumerate() {
            let watch = base::WatchId { connection: connection as u64, number };
            let path = tree.path(dir).unwrap();
            assert!(tree.begin_watch(dir, &path, seq, watch));
        }
        tree.lose_watches(1, false);
        assert_eq!([Ino::ROOT, above, below].map(|dir| tree.needs_watch(dir)), [false, true, true]);
    }

    #[test]
    fn a_node_lives_while_it_has_lookups_or_children() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        let dir = record_lookup(&mut tree, Ino::ROOT, "dir", FileKind::Directory);
        let file = record_lookup(&mut tree, dir.ino, "file", FileKind::Regular);
        assert_eq!(record_lookup(&mut tree, dir.ino, "file", FileKind::Regular).ino, file.ino);
        tree.forget(dir.ino, 1);
        tree.check();
        assert_eq!(tree.path(file.ino).unwrap().as_bytes(), b"dir/file");
        tree.forget(file.ino, 1);
        assert_eq!(tree.len(), 3);
        tree.forget(file.ino, 1);
        tree.check();
        assert_eq!(tree.len(), 1);
    }

    #[test]
    fn a_name_of_another_kind_is_another_inode() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        let file = record_lookup(&mut tree, Ino::ROOT, "x", FileKind::Regular);
        let dir = record_lookup(&mut tree, Ino::ROOT, "x", FileKind::Directory);
        assert_ne!((file.ino, file.number), (dir.ino, dir.number));
        assert_eq!(tree.path(file.ino), None);
        assert_eq!(tree.path(dir.ino).unwrap().as_bytes(), b"x");
        tree.check();
    }

    #[test]
    fn a_renamed_directory_takes_its_tree_along() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        let dir = record_lookup(&mut tree, Ino::ROOT, "a", FileKind::Directory);
        let file = record_lookup(&mut tree, dir.ino, "f", FileKind::Regular);
        let (moved, replaced) = tree.rename((Ino::ROOT, &name("a")), (Ino::ROOT, &name("b")));
        assert_eq!(moved.unwrap().ino, dir.ino);
        assert!(replaced.is_none());
        assert_eq!(tree.path(file.ino).unwrap().as_bytes(), b"b/f");
        assert!(tree.child(Ino::ROOT, &name("a")).is_none());
        tree.check();
        let number = dir.number;
        tree.forget(file.ino, 1);
        tree.forget(dir.ino, 1);
        assert_eq!(tree.len(), 1);
        assert_eq!(record_lookup(&mut tree, Ino::ROOT, "b", FileKind::Directory).number, number);
    }

    #[test]
    fn two_links_are_one_inode_and_renaming_one_over_the_other_leaves_both() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        let file = record_lookup(&mut tree, Ino::ROOT, "a", FileKind::Regular);
        tree.bind(file.ino, Ino::ROOT, &name("b"), Instant::now());
        assert_eq!(record_lookup(&mut tree, Ino::ROOT, "b", FileKind::Regular).ino, file.ino);
        assert_eq!(tree.paths(file.ino).len(), 2);
        tree.rename((Ino::ROOT, &name("a")), (Ino::ROOT, &name("b")));
        assert_eq!(tree.paths(file.ino).len(), 2);
        tree.unbind(Ino::ROOT, &name("a"));
        tree.check();
        tree.forget(file.ino, 2);
        assert_eq!(record_lookup(&mut tree, Ino::ROOT, "b", FileKind::Regular).number, file.number);
    }

    #[test]
    fn local_changes_invalidate_earlier_requests() {
        let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
        let (stamp, a) = (tree.change_counter.now(), name("a"));
        let unchanged = |tree: &Tree, seq| tree.name_unchanged_since(Ino::ROOT, &a, seq);
        assert!(unchanged(&tree, stamp));
        tree.begin_name_change(Ino::ROOT, &a, BoundTo::Nothing);
        assert!(!unchanged(&tree, tree.change_counter.now()));
        tree.end_name_change(Ino::ROOT, &a, BoundTo::Nothing, true);
        assert!(!unchanged(&tree, stamp));
        assert!(unchanged(&tree, tree.change_counter.now()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn the_invariants_hold_whatever_happens(
            steps in prop::collection::vec((0..6u8, 0..4usize, 0..4usize, 0..3usize, 0..3usize), 0..80)
        ) {
            const NAMES: [&str; 3] = ["a", "b", "c"];
            let mut tree = Tree::new(Arc::default(), InodeBudget::new(usize::MAX));
            let mut known: Vec<(Arc<Inode>, u64)> = Vec::new();
            for (what, dir, other, from, to) in steps {
                let dirs: Vec<Ino> = std::iter::once(Ino::ROOT)
                    .chain(known.iter().map(|(inode, _)| inode)
                        .filter(|inode| inode.kind == FileKind::Directory)
                        .map(|inode| inode.ino))
                    .collect();
                let (dir, other) = (dirs[dir % dirs.len()], dirs[other % dirs.len()]);
                let (from, to) = (name(NAMES[from]), name(NAMES[to]));
                match what {
                    0 | 1 => {
                        let kind = if what == 0 { FileKind::Regular } else { FileKind::Directory };
                        let inode = tree.record_lookup(dir, &from, &attr(kind), Instant::now());
                        match known.iter_mut().find(|(known, _)| known.ino == inode.ino) {
                            Some((_, count)) => *count += 1,
                            None => known.push((inode, 1)),
                        }
                    }
                    2 => { tree.unbind(dir, &from); }
                    3 => {
                        // The server would refuse to move a directory below itself.
                        let below_itself = tree.child(dir, &from).is_some_and(|moved| {
                            tree.path(other).zip(tree.path(moved.ino)).is_some_and(|(to, from)| {
                                to.as_bytes().starts_with(from.as_bytes())
                            })
                        });
                        if !below_itself && tree.path(other).is_some() {
                            tree.rename((dir, &from), (other, &to));
                        }
                    }
                    4 => {
                        let file = known.iter().find(|(inode, _)| inode.kind == FileKind::Regular);
                        if let Some((inode, _)) = file {
                            tree.bind(inode.ino, dir, &to, Instant::now());
                        }
                    }
                    _ => {
                        if let Some((inode, count)) = known.pop() {
                            tree.forget(inode.ino, count);
                        }
                    }
                }
                tree.check();
            }
            for (inode, count) in known {
                tree.forget(inode.ino, count);
            }
            tree.check();
            prop_assert_eq!(tree.len(), 1);
        }
    }
}
