//! Eviction of inodes: which ones the kernel is requested to forget when there are too many.
//!
//! The kernel keeps inodes until it needs the memory, and on a large machine it never does: after a
//! walk over a million files it knows a million. So above a bound it is requested to forget some,
//! by [`Invalidate::evict`]; the FORGET of an inode frees it here too.
//!
//! Victims are chosen with the CLOCK algorithm. A hand visits one slot of the node table after the
//! other. It skips a node that was looked up since its last visit. Some nodes survive several
//! visits: those that were opened or changed, since the kernel may have pages of them, and those
//! with several names, which would become several files. So nodes that were only listed are evicted
//! first, and a walk does not evict what is in use. A node cannot be evicted while it is open or
//! while the kernel knows a node below it.
//!
//! The hand moves as nodes are created, so eviction keeps up with creation, and the tree is locked
//! for some microseconds at a time. A requested eviction counts as done until the hand visits the
//! node again.
//!
//! Requests are rare and in large groups. When the kernel evicts an inode, newer kernels treat the
//! attributes in all replies that are in flight as stale, and request those of each new inode
//! again. With a group for every 64 new nodes, that was every second file of a walk.
//!
//! Inodes, cached listings and exceptional inode numbers share one bound: when whole trees are
//! known, so are their listings, and each leaves room for the others.

use std::sync::Arc;

use base::Name;

use super::Tree;
use super::nodes::{NameEntry, Node};
use crate::inode::Inode;
use crate::invalidate::{Eviction, Invalidate};
use crate::stored_attr::INODE_ATTR_BYTES;

/// Bytes of a node: the node, its inode with the counts of its `Arc`, and an estimate for its name,
/// two half-full hash tables, and the allocator. Measured: see
/// `a_plain_inode_takes_no_more_than_is_counted`.
const NODE_BYTES: usize = size_of::<Option<Node>>() + size_of::<Inode>() + 16 + OTHER_BYTES;
const OTHER_BYTES: usize = size_of::<Name>() + 2 * size_of::<NameEntry>() + 64;

/// One part in this many of the bound is reserved for inodes.
const MIN_INODE_SHARE: usize = 3;

/// The hand moves after this many new nodes.
const STEP: usize = 64;

/// Slots that the hand visits at a time, at most: enough to find as many victims as nodes were
/// created, although it visits each three times and most cannot be evicted.
const MAX_STEPS: usize = 16 * STEP;

/// Nodes in a group that the kernel is requested to forget together. Measured over a million files:
/// groups of 256 leave half of the listed files without attributes, of 1024 a tenth, of 4096 a
/// fifteenth. The tree is locked for 50 us while a group is checked.
const GROUP: usize = 1024;

/// A group is at most one part in this many of the node budget.
const GROUP_SHARE: usize = 16;

/// Victims chosen at a time, at most.
const MAX_CHOSEN_AT_ONCE: usize = 4 * STEP;

/// Visits of the hand that a node survives: one that was only listed, one that was opened or
/// changed, one with several names.
const PASSES: (u8, u8, u8) = (1, 3, 7);

/// [`Node::clock`] of a node that the kernel was requested to forget.
const REQUESTED: u8 = u8::MAX;

/// [`Node::clock`] of a node in the next group.
const IN_GROUP: u8 = REQUESTED - 1;

/// The bound, and the state of the eviction. See the [module](self).
pub(crate) struct InodeBudget {
    bytes: usize,
    kernel: Option<Arc<dyn Invalidate>>,
    /// The slot that was visited last.
    hand: usize,
    created: usize,
    /// Nodes in the next group, and nodes that the kernel was requested to forget.
    pending: usize,
    /// The next group. Also contains nodes that were used since they were chosen.
    group: Vec<Eviction>,
}

impl InodeBudget {
    /// A budget of `bytes` for inodes, cached listings and inode numbers.
    pub(crate) fn new(bytes: usize) -> InodeBudget {
        InodeBudget { bytes, kernel: None, hand: 0, created: 0, pending: 0, group: Vec::new() }
    }

    /// Changes the bound. The next nodes that are created bring the tree within it.
    pub(super) fn set_bytes(&mut self, bytes: usize) {
        self.bytes = bytes;
    }

    /// `node` was looked up.
    pub(super) fn mark_used(&mut self, node: &mut Node) {
        self.mark_removed(node);
        node.clock = 0;
    }

    /// `node` was removed.
    pub(super) fn mark_removed(&mut self, node: &Node) {
        self.pending -= usize::from(matches!(node.clock, IN_GROUP | REQUESTED));
    }

    /// Bytes that the directory cache may use.
    pub(super) fn dir_cache_bytes(&self) -> usize {
        self.bytes - self.bytes / MIN_INODE_SHARE
    }

    /// The number of nodes of `node_bytes` within the bound if `others` bytes are used otherwise.
    fn nodes(&self, node_bytes: usize, others: usize) -> usize {
        self.bytes.saturating_sub(others).max(self.bytes / MIN_INODE_SHARE) / node_bytes
    }

    /// The number of nodes in a group, for a budget of `most` nodes.
    fn group(most: usize) -> usize {
        (most / GROUP_SHARE).clamp(STEP, GROUP)
    }

    /// The hand visits `node`. Returns it if it is chosen for eviction.
    fn visit(&mut self, node: &mut Node) -> Option<Eviction> {
        if node.clock == REQUESTED {
            // The kernel did not forget it, since it is in use there.
            self.mark_used(node);
            return None;
        }
        if node.clock == IN_GROUP {
            return None;
        }
        let link = node.links.first()?;
        if node.nlookup == 0 || node.children > 0 {
            return None;
        }
        // An operation or an open file refers to it.
        if Arc::strong_count(&node.inode) > 1 {
            node.clock = 0;
            return None;
        }
        let (plain, opened, linked) = PASSES;
        let passes = match (node.links.len(), node.inode.state().is_plain()) {
            (2.., _) => linked,
            (_, true) => plain,
            (_, false) => opened,
        };
        if node.clock < passes {
            node.clock += 1;
            return None;
        }
        let Inode { ino, kind, .. } = *node.inode;
        let eviction = Eviction { ino, kind, parent: link.parent, name: link.name.clone() };
        node.clock = IN_GROUP;
        self.pending += 1;
        Some(eviction)
    }
}

impl Tree {
    /// The interface to the kernel's caches.
    pub(super) fn kernel(&self) -> Option<&Arc<dyn Invalidate>> {
        self.budget.kernel.as_ref()
    }

    /// Sets the kernel to send evictions to.
    pub(crate) fn set_kernel(&mut self, kernel: Arc<dyn Invalidate>) {
        self.budget.kernel = Some(kernel);
    }

    /// Whether each new node leads to the eviction of another one.
    pub(crate) fn is_full(&self) -> bool {
        let most = self.max_nodes();
        self.budget.kernel.is_some() && self.nodes.len() + 2 * InodeBudget::group(most) >= most
    }

    /// The number of nodes within the bound.
    fn max_nodes(&self) -> usize {
        let (_, listed_bytes) = self.dir_cache.size();
        let remote = if self.numbers.are_remote() { INODE_ATTR_BYTES } else { 0 };
        self.budget.nodes(NODE_BYTES + remote, listed_bytes + self.numbers.bytes())
    }

    /// A node was created. Requests evictions if there are too many.
    pub(super) fn evict_if_full(&mut self) {
        self.budget.created += 1;
        if !self.budget.created.is_multiple_of(STEP) {
            return;
        }
        let Some(kernel) = self.budget.kernel.clone() else { return };
        let most = self.max_nodes();
        let group = InodeBudget::group(most);
        // The group is complete before the bound is reached.
        let too_many = (self.nodes.len() + group).saturating_sub(most + self.budget.pending);
        self.choose_victims(too_many.min(MAX_CHOSEN_AT_ONCE));
        if self.budget.group.len() >= group {
            let group = self.take_group();
            kernel.evict(group);
        }
    }

    /// Adds up to `count` nodes to the group.
    fn choose_victims(&mut self, count: usize) {
        let enough = self.budget.group.len() + count;
        for _ in 0..MAX_STEPS.min(self.nodes.slots()) {
            if self.budget.group.len() == enough {
                break;
            }
            self.budget.hand = (self.budget.hand + 1) % self.nodes.slots();
            let node = self.nodes.at(self.budget.hand);
            let chosen = node.and_then(|node| self.budget.visit(node));
            self.budget.group.extend(chosen);
        }
    }

    /// Takes the group, without the nodes that were used since they were chosen.
    fn take_group(&mut self) -> Vec<Eviction> {
        let mut group = std::mem::take(&mut self.budget.group);
        group.retain(|eviction| {
            let Some(node) = self.nodes.get_mut(eviction.ino) else { return false };
            if node.clock != IN_GROUP {
                return false;
            }
            let is_idle = node.children == 0 && Arc::strong_count(&node.inode) == 1;
            if is_idle {
                node.clock = REQUESTED;
            } else {
                self.budget.mark_used(node);
            }
            is_idle
        });
        group
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Ino;
    use crate::tree::ChangeCounter;
    use base::{Attr, FileKind, Timestamp};
    use tokio::time::Instant;

    /// A kernel that forgets later than it is requested to.
    #[derive(Default)]
    struct Kernel {
        pending: Mutex<Vec<Eviction>>,
        groups: AtomicUsize,
    }

    impl Invalidate for Kernel {
        fn content(&self, _: Ino) {}

        fn evict(&self, inodes: Vec<Eviction>) {
            self.pending.lock().unwrap().extend(inodes);
            self.groups.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Kernel {
        /// Drops the lookups of all requested nodes, except those that are `busy`.
        fn forget(&self, tree: &mut Tree, busy: &[Ino]) {
            for eviction in std::mem::take(&mut *self.pending.lock().unwrap()) {
                let Eviction { ino, parent, name, .. } = eviction;
                assert_eq!(tree.child(parent, &name).unwrap().ino, ino);
                if !busy.contains(&ino) {
                    tree.forget(ino, u64::MAX);
                }
            }
        }
    }

    const ROOM_FOR: usize = 3000;

    fn tree() -> (Tree, Arc<Kernel>) {
        let kernel = Arc::<Kernel>::default();
        let mut tree =
            Tree::new(Arc::<ChangeCounter>::default(), InodeBudget::new(ROOM_FOR * NODE_BYTES));
        tree.set_kernel(kernel.clone());
        (tree, kernel)
    }

    fn record_lookup(tree: &mut Tree, parent: Ino, name: &str, kind: FileKind) -> Arc<Inode> {
        let time = Timestamp::default();
        let attr =
            Attr { kind, perm: 0, size: 0, uid: 0, gid: 0, atime: time, mtime: time, inode: None };
        let name = Name::new(name.as_bytes()).unwrap();
        tree.record_lookup(parent, &name, &attr, Instant::now())
    }

    #[test]
    fn a_long_walk_stays_within_the_budget() {
        let (mut tree, kernel) = tree();
        let (mut most, mut forgotten) = (0, 0);
        for dir in 0..500 {
            let dir =
                record_lookup(&mut tree, Ino::ROOT, &format!("d{dir}"), FileKind::Directory).ino;
            for file in 0..100 {
                record_lookup(&mut tree, dir, &format!("f{file}"), FileKind::Regular);
            }
            most = most.max(tree.len());
            forgotten += kernel.pending.lock().unwrap().len();
            kernel.forget(&mut tree, &[]);
        }
        assert!(most <= ROOM_FOR + 2 * MAX_CHOSEN_AT_ONCE, "{most}");
        let groups = kernel.groups.load(Ordering::Relaxed);
        assert!(
            forgotten >= groups * InodeBudget::group(ROOM_FOR),
            "{forgotten} in {groups} groups"
        );
        assert!(tree.len() > ROOM_FOR / 2, "no more is forgotten than has to be: {}", tree.len());
        tree.check();
    }

    #[test]
    fn a_slow_kernel_gets_no_further_requests() {
        let (mut tree, kernel) = tree();
        for file in 0..2 * ROOM_FOR {
            record_lookup(&mut tree, Ino::ROOT, &format!("f{file}"), FileKind::Regular);
        }
        let pending = kernel.pending.lock().unwrap().len();
        assert!(pending.abs_diff(ROOM_FOR) <= 4 * MAX_CHOSEN_AT_ONCE, "{pending}");
        kernel.forget(&mut tree, &[]);
        assert!(tree.len().abs_diff(ROOM_FOR) <= 4 * MAX_CHOSEN_AT_ONCE, "{}", tree.len());
    }

    #[test]
    fn used_nodes_are_not_evicted() {
        let (mut tree, kernel) = tree();
        let dir = record_lookup(&mut tree, Ino::ROOT, "dir", FileKind::Directory).ino;
        let below = record_lookup(&mut tree, dir, "below", FileKind::Regular).ino;
        let open = record_lookup(&mut tree, Ino::ROOT, "open", FileKind::Regular);
        let opened = record_lookup(&mut tree, Ino::ROOT, "opened", FileKind::Regular).ino;
        tree.get(opened).unwrap().state().begin_change(1);
        tree.get(opened).unwrap().state().end_change(2);
        let plain = record_lookup(&mut tree, Ino::ROOT, "plain", FileKind::Regular).ino;
        let mut plain_went_first = false;
        for file in 0..4 * ROOM_FOR {
            record_lookup(&mut tree, Ino::ROOT, &format!("f{file}"), FileKind::Regular);
            if file % STEP == 0 {
                record_lookup(&mut tree, dir, "below", FileKind::Regular);
                kernel.forget(&mut tree, &[]);
                plain_went_first |= tree.get(plain).is_none() && tree.get(opened).is_some();
            }
        }
        assert!(plain_went_first);
        assert!(tree.get(opened).is_none(), "spared, but not for ever");
        assert!(tree.get(dir).is_some() && tree.get(below).is_some(), "looked up again and again");
        assert!(tree.get(open.ino).is_some());
        tree.check();
    }

    #[test]
    fn nodes_used_before_their_group_is_complete_are_not_evicted() {
        let (mut tree, kernel) = tree();
        let mut created = 0;
        let mut next = |tree: &mut Tree| {
            created += 1;
            record_lookup(tree, Ino::ROOT, &format!("f{created}"), FileKind::Regular)
        };
        while tree.budget.group.len() < 4 {
            next(&mut tree);
        }
        let group: Vec<Eviction> = tree.budget.group.clone();
        let opened = tree.get(group[0].ino).unwrap();
        record_lookup(&mut tree, Ino::ROOT, &group[1].name.to_string(), FileKind::Regular);
        tree.forget(group[2].ino, u64::MAX);
        while kernel.groups.load(Ordering::Relaxed) == 0 {
            next(&mut tree);
        }
        let pending =
            |ino| kernel.pending.lock().unwrap().iter().any(|eviction| eviction.ino == ino);
        let were_asked: Vec<bool> =
            group[..4].iter().map(|eviction| pending(eviction.ino)).collect();
        assert_eq!(were_asked, [false, false, false, true]);
        drop(opened);
        kernel.forget(&mut tree, &[]);
        tree.check();
    }

    #[test]
    fn inodes_that_the_kernel_keeps_are_requested_again() {
        let (mut tree, kernel) = tree();
        let busy = record_lookup(&mut tree, Ino::ROOT, "busy", FileKind::Directory).ino;
        let mut times = 0;
        for file in 0..10 * ROOM_FOR {
            record_lookup(&mut tree, Ino::ROOT, &format!("f{file}"), FileKind::Regular);
            times +=
                kernel.pending.lock().unwrap().iter().filter(|pending| pending.ino == busy).count();
            kernel.forget(&mut tree, &[busy]);
        }
        assert!(times > 1, "{times}");
        assert!(tree.get(busy).is_some() && tree.len() <= ROOM_FOR + 2 * MAX_CHOSEN_AT_ONCE);
        kernel.forget(&mut tree, &[]);
    }

    #[test]
    fn a_full_directory_cache_leaves_inodes_their_share() {
        let budget = InodeBudget::new(9 * NODE_BYTES);
        assert_eq!(budget.nodes(NODE_BYTES, 0), 9);
        assert_eq!(budget.nodes(NODE_BYTES, 4 * NODE_BYTES), 5);
        assert_eq!(budget.nodes(NODE_BYTES, 100 * NODE_BYTES), 3);
    }
}
