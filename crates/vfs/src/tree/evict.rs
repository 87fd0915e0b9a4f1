//! Which inodes the kernel may forget, when more are known than there is room for.
//!
//! The kernel keeps what it has looked up until it needs the memory, and on a large machine it
//! never does: after a walk over a million files it knows a million. So past a bound it is asked
//! to forget some, by [`Invalidate::eviction`], and what it forgets goes from here too.
//!
//! A hand goes round the places of the nodes. It passes a node that was looked up since it was
//! there last, and spares some for longer: those that were opened or changed, of which the kernel
//! may have pages, and those with several names, which would become several files. So what is
//! only listed goes first, and a walk does not drive out what is in use. What is open, or has
//! something below it that the kernel knows, cannot be forgotten.
//!
//! How far the hand goes at a time depends on how many nodes were made, so that room is made as
//! fast as it is taken, and the tree is locked for some microseconds. What was asked for and not
//! yet done counts as done, until the hand comes to it again.
//!
//! The kernel is asked rarely, for many nodes at once. When it evicts an inode, newer kernels treat
//! the attributes in all answers that are in flight as outdated, and request those of each new
//! inode again. With a group for every 64 new nodes, that was every second file of a walk.
//!
//! The bound is one for inodes, snapshots and exceptional numbers: where whole trees are known,
//! their listings are too, and where there is a lot of one there is little of the other.

use std::sync::Arc;

use base::Name;

use super::Tree;
use super::nodes::{NameEntry, Node};
use crate::inode::Inode;
use crate::invalidate::{Eviction, Invalidate};

/// What a node takes, in bytes: itself, its inode with the counts of its `Arc`, and what is not
/// worth being counted one by one: its name, two hash tables that are half full, and what the
/// allocator adds. Measured: see `a_plain_inode_takes_no_more_than_is_counted`.
const NODE_BYTES: usize = size_of::<Option<Node>>() + size_of::<Inode>() + 16 + OTHER_BYTES;
const OTHER_BYTES: usize = size_of::<Name>() + 2 * size_of::<NameEntry>() + 64;

/// Of the bound, the part that inodes may take however much there is of anything else.
const MIN_INODE_SHARE: usize = 3;

/// After so many new nodes room is looked for.
const STEP: usize = 64;

/// The hand goes past so many nodes at a time at most: enough to find as many as were made,
/// although it passes each three times, and most cannot be forgotten.
const MAX_STEPS: usize = 16 * STEP;

/// Nodes in a group, which the kernel is asked to forget together. Measured over a million files:
/// groups of 256 leave half of the listed files without attributes, of 1024 a tenth, of 4096 a
/// fifteenth. The tree is locked for 50 us while a group is checked.
const GROUP: usize = 1024;

/// A group is at most this part of the nodes that there is room for.
const GROUP_SHARE: usize = 16;

/// Added to a group at a time, at most.
const MAX_CHOSEN_AT_ONCE: usize = 4 * STEP;

/// How often the hand passes a node that was only listed, one that was opened or changed, and one
/// that has several names.
const PASSES: (u8, u8, u8) = (1, 3, 7);

/// The kernel was asked to forget it.
const REQUESTED: u8 = u8::MAX;

/// It is in the group that the kernel will be asked to forget next.
const IN_GROUP: u8 = REQUESTED - 1;

/// How much room there is, and how it is made. See the [module](self).
pub(crate) struct InodeBudget {
    bytes: usize,
    kernel: Option<Arc<dyn Invalidate>>,
    /// The last place that was looked at.
    hand: usize,
    created: usize,
    /// Nodes that the kernel was asked to forget, and those in the next group.
    pending: usize,
    /// The next group. Also contains nodes that were used since they were chosen.
    group: Vec<Eviction>,
}

impl Default for InodeBudget {
    fn default() -> InodeBudget {
        InodeBudget::new(usize::MAX)
    }
}

impl InodeBudget {
    /// For `bytes` of inodes, snapshots and numbers.
    pub(crate) fn new(bytes: usize) -> InodeBudget {
        InodeBudget { bytes, kernel: None, hand: 0, created: 0, pending: 0, group: Vec::new() }
    }

    /// `node` was looked up.
    pub(super) fn mark_used(&mut self, node: &mut Node) {
        self.mark_removed(node);
        node.clock = 0;
    }

    /// `node` is gone.
    pub(super) fn mark_removed(&mut self, node: &Node) {
        self.pending -= usize::from(matches!(node.clock, IN_GROUP | REQUESTED));
    }

    /// Bytes that snapshots may take.
    pub(super) fn dir_cache_bytes(&self) -> usize {
        self.bytes - self.bytes / MIN_INODE_SHARE
    }

    /// How many nodes there is room for besides `others`.
    fn nodes(&self, others: usize) -> usize {
        self.bytes.saturating_sub(others).max(self.bytes / MIN_INODE_SHARE) / NODE_BYTES
    }

    /// The number of nodes in a group, with room for `most` nodes.
    fn group(most: usize) -> usize {
        (most / GROUP_SHARE).clamp(STEP, GROUP)
    }

    /// The hand is at `node`: whether the kernel is to forget it.
    fn visit(&mut self, node: &mut Node) -> Option<Eviction> {
        if node.clock == REQUESTED {
            // It has not: somebody uses it there.
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
        // An operation or an open file has it.
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
    /// Who is asked to forget.
    pub(crate) fn set_kernel(&mut self, kernel: Arc<dyn Invalidate>) {
        self.budget.kernel = Some(kernel);
    }

    /// Whether each node that is made leads to the eviction of another one.
    pub(crate) fn is_full(&self) -> bool {
        let most = self.max_nodes();
        self.budget.kernel.is_some() && self.nodes.len() + 2 * InodeBudget::group(most) >= most
    }

    /// How many nodes there is room for.
    fn max_nodes(&self) -> usize {
        let (_, listed_bytes) = self.dir_cache.size();
        self.budget.nodes(listed_bytes + self.numbers.bytes())
    }

    /// A node was made; if there are too many, the kernel is asked to forget some.
    pub(super) fn evict_if_full(&mut self) {
        self.budget.created += 1;
        if !self.budget.created.is_multiple_of(STEP) {
            return;
        }
        let Some(kernel) = self.budget.kernel.clone() else { return };
        let most = self.max_nodes();
        let group = InodeBudget::group(most);
        // A group is complete before there are too many.
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

    /// The group, without the nodes that were used since they were chosen.
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

    /// A kernel that forgets what it is told to, later.
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
        /// Gives back a look-up of each that it was asked for, but those that are `busy`.
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
        let attr = Attr { kind, perm: 0, size: 0, uid: 0, gid: 0, atime: time, mtime: time };
        let name = Name::new(name.as_bytes()).unwrap();
        tree.record_lookup(parent, &name, &attr, Instant::now()).inode()
    }

    #[test]
    fn a_long_walk_leaves_no_more_than_there_is_room_for() {
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
    fn a_kernel_that_is_late_is_not_asked_for_more() {
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
    fn what_is_used_stays() {
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
    fn what_is_used_before_its_group_is_complete_is_not_asked_for() {
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
    fn what_the_kernel_does_not_forget_is_asked_for_again() {
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
    fn much_else_leaves_inodes_their_share() {
        let budget = InodeBudget::new(9 * NODE_BYTES);
        assert_eq!(budget.nodes(0), 9);
        assert_eq!(budget.nodes(4 * NODE_BYTES), 5);
        assert_eq!(budget.nodes(100 * NODE_BYTES), 3);
    }
}
