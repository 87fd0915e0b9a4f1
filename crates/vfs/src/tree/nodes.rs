//! The nodes, by number and by name.
//!
//! There is one for each file that the kernel knows, so memory matters. A node's [`Ino`] is its
//! slot in a table and, above the lowest 32 bits, the number of earlier nodes in that slot: so no
//! number is reused, and none has to be searched for. The names are stored in the nodes; the table
//! of names contains only slots.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use base::{FileKind, Name};
use hashbrown::HashTable;

use crate::Ino;
use crate::compact_instant::CompactInstant;
use crate::inode::Inode;

/// One name of a node.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) parent: Ino,
    pub(super) name: Name,
    /// Until when the name is valid.
    pub(super) valid_until: CompactInstant,
    /// Sequence number at which the name was bound to this node. A listing that began before may
    /// contain another file.
    pub(super) since: u64,
}

impl Link {
    pub(super) fn is(&self, parent: Ino, name: &Name) -> bool {
        self.parent == parent && self.name == *name
    }
}

/// The names of a node: nearly always one.
#[derive(Clone, Default)]
pub(super) struct Links {
    first: Option<Link>,
    /// Hardly any node has some, and all have room for it. `None` if there is no first name.
    others: Option<Box<Others>>,
}

/// The names of a node but the first.
#[derive(Clone, Default)]
struct Others {
    links: Vec<Link>,
    /// The index of the name that was used last; `None` for the first one.
    used: Option<usize>,
}

impl Links {
    pub(super) fn first(&self) -> Option<&Link> {
        self.first.as_ref()
    }

    /// The name that was looked up last. A request of the kernel is for an inode, and this is the
    /// name that its caller has used: another one may lead to another file by now.
    pub(super) fn used(&self) -> Option<&Link> {
        let other = self.others.as_ref().and_then(|others| others.links.get(others.used?));
        other.or(self.first.as_ref())
    }

    /// A name was looked up.
    pub(super) fn note_used(&mut self, parent: Ino, name: &Name) {
        if let Some(others) = &mut self.others {
            others.used = others.links.iter().position(|link| link.is(parent, name));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.first.iter().chain(self.others.iter().flat_map(|others| others.links.iter()))
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        let others = self.others.iter_mut().flat_map(|others| others.links.iter_mut());
        self.first.iter_mut().chain(others)
    }

    pub(super) fn get_mut(&mut self, parent: Ino, name: &Name) -> Option<&mut Link> {
        self.iter_mut().find(|link| link.is(parent, name))
    }

    fn push(&mut self, link: Link) {
        match &mut self.first {
            None => self.first = Some(link),
            Some(_) => self.others.get_or_insert_default().links.push(link),
        }
    }

    fn remove(&mut self, parent: Ino, name: &Name) {
        let Some(at) = self.iter().position(|link| link.is(parent, name)) else { return };
        let Some(others) = &mut self.others else {
            self.first = None;
            return;
        };
        // The next name becomes the first; the numbers of those behind the removed one decrease.
        let used = others.used.map_or(0, |index| index + 1);
        let removed = others.links.remove(at.saturating_sub(1));
        if at == 0 {
            self.first = Some(removed);
        }
        let used = if used == at { 0 } else { used - usize::from(used > at) };
        others.used = used.checked_sub(1);
        self.others.take_if(|others| others.links.is_empty());
    }
}

/// See [`tree`](super).
pub(super) struct Node {
    pub(super) inode: Arc<Inode>,
    pub(super) nlookup: u64,
    pub(super) links: Links,
    /// Number of bound names in this directory.
    pub(super) children: u32,
    /// A name that was not in a listing of this directory existed: the server's automounter shows
    /// directories only when they are looked up, or other machines are creating files now.
    pub(super) hides_names: bool,
    /// The last name was removed through this mount.
    pub(super) removed_here: bool,
    /// The number of the inode is the remote's.
    pub(super) has_remote_number: bool,
    /// See [`evict`](super::evict).
    pub(super) clock: u8,
}

impl Node {
    pub(super) fn new(inode: Inode) -> Node {
        Node {
            inode: Arc::new(inode),
            nlookup: 1,
            links: Links::default(),
            children: 0,
            hides_names: false,
            removed_here: false,
            has_remote_number: false,
            clock: 0,
        }
    }
}

/// The slot that a name leads to.
pub(super) struct NameEntry {
    slot: u32,
    /// Of the directory and the name.
    hash: u32,
}

impl NameEntry {
    /// The 64 bits that the table expects: the lowest choose the bucket, the highest are compared
    /// first.
    fn spread(hash: u32) -> u64 {
        u64::from(hash) << 32 | u64::from(hash)
    }
}

/// The number of low bits of an [`Ino`] that hold its slot; the generation is above them.
const SLOT_BITS: u32 = 32;

/// See the [module](self).
pub(super) struct Nodes {
    slots: Vec<Option<Node>>,
    /// The numbers of the next nodes in the empty slots.
    vacant: Vec<Ino>,
    by_name: HashTable<NameEntry>,
    keys: RandomState,
    /// The inodes are of several servers.
    pub(super) is_union: bool,
}

impl Nodes {
    /// A table with only the root.
    pub(super) fn new(number: u64) -> Nodes {
        let root = Node::new(Inode::new(Ino::ROOT, number, FileKind::Directory, false));
        let mut slots: Vec<Option<Node>> = (0..Ino::ROOT.0).map(|_| None).collect();
        slots.push(Some(root));
        Nodes {
            slots,
            vacant: Vec::new(),
            by_name: HashTable::new(),
            keys: RandomState::default(),
            is_union: false,
        }
    }

    /// The number of nodes.
    pub(super) fn len(&self) -> usize {
        // Slot 0 is unused, since no node has the number 0.
        self.slots.len() - self.vacant.len() - 1
    }

    pub(super) fn get(&self, ino: Ino) -> Option<&Node> {
        let node = self.slots.get(slot(ino))?.as_ref();
        node.filter(|node| node.inode.ino == ino)
    }

    pub(super) fn get_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        let node = self.slots.get_mut(slot(ino))?.as_mut();
        node.filter(|node| node.inode.ino == ino)
    }

    pub(super) fn contains(&self, ino: Ino) -> bool {
        self.get(ino).is_some()
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The node in a slot.
    pub(super) fn at(&mut self, slot: usize) -> Option<&mut Node> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Inserts a node without names.
    pub(super) fn insert(&mut self, number: u64, kind: FileKind) -> Arc<Inode> {
        let ino = self.vacant.pop().unwrap_or_else(|| {
            let ino = Ino(self.slots.len() as u64);
            assert!(ino.0 >> SLOT_BITS == 0, "more inodes than any memory has room for");
            self.slots.push(None);
            ino
        });
        let node = Node::new(Inode::new(ino, number, kind, self.is_union));
        let inode = node.inode.clone();
        self.slots[slot(ino)] = Some(node);
        inode
    }

    /// Removes a node and its names.
    pub(super) fn remove(&mut self, ino: Ino) -> Option<Node> {
        self.get(ino)?;
        let node = self.slots[slot(ino)].take()?;
        for link in node.links.iter() {
            let hash = self.hash(link.parent, &link.name);
            // Entries of one slot with one hash are equal.
            let entry = self.by_name.find_entry(NameEntry::spread(hash), |entry| {
                entry.hash == hash && entry.slot as usize == slot(ino)
            });
            if let Ok(entry) = entry {
                entry.remove();
            }
        }
        // After 2^32 nodes a slot is abandoned.
        self.vacant.extend(ino.0.checked_add(1 << SLOT_BITS).map(Ino));
        Some(node)
    }

    /// The node and the link that `name` in `parent` is bound to.
    pub(super) fn find(&self, parent: Ino, name: &Name) -> Option<(&Node, &Link)> {
        let hash = self.hash(parent, name);
        let link = |entry: &NameEntry| {
            let node = self.slots[entry.slot as usize].as_ref()?;
            let link = node.links.iter().find(|link| link.is(parent, name))?;
            Some((node, link))
        };
        let entry = self
            .by_name
            .find(NameEntry::spread(hash), |entry| entry.hash == hash && link(entry).is_some())?;
        link(entry)
    }

    /// The link that `name` in `parent` is bound to, mutable.
    pub(super) fn find_mut(&mut self, parent: Ino, name: &Name) -> Option<&mut Link> {
        let ino = self.find(parent, name)?.0.inode.ino;
        self.get_mut(ino)?.links.get_mut(parent, name)
    }

    /// Binds a name that is not bound to `ino`.
    pub(super) fn bind(&mut self, ino: Ino, link: Link) {
        let hash = self.hash(link.parent, &link.name);
        let Some(node) = self.get_mut(ino) else { return };
        node.links.push(link);
        let entry = NameEntry { slot: slot(ino) as u32, hash };
        self.by_name
            .insert_unique(NameEntry::spread(hash), entry, |entry| NameEntry::spread(entry.hash));
    }

    /// Unbinds a name. Returns the node that had it.
    pub(super) fn unbind(&mut self, parent: Ino, name: &Name) -> Option<Ino> {
        let ino = self.find(parent, name)?.0.inode.ino;
        let hash = self.hash(parent, name);
        let entry = self.by_name.find_entry(NameEntry::spread(hash), |entry| {
            entry.hash == hash && entry.slot as usize == slot(ino)
        });
        if let Ok(entry) = entry {
            entry.remove();
        }
        if let Some(node) = self.get_mut(ino) {
            node.links.remove(parent, name);
        }
        Some(ino)
    }

    fn hash(&self, parent: Ino, name: &Name) -> u32 {
        self.keys.hash_one((parent, name.as_bytes())) as u32
    }

    /// All nodes, mutable.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.slots.iter_mut().flatten()
    }

    /// All nodes; for tests.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.slots.iter().flatten()
    }

    /// The number of bound names; for tests.
    #[cfg(test)]
    pub(super) fn bound(&self) -> usize {
        self.by_name.len()
    }
}

fn slot(ino: Ino) -> usize {
    (ino.0 & (u64::MAX >> SLOT_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str) -> Link {
        let name = Name::new(name.as_bytes()).unwrap();
        Link { parent: Ino::ROOT, name, valid_until: CompactInstant::NEVER, since: 0 }
    }

    #[test]
    fn a_place_is_used_again_and_its_number_is_not() {
        let mut nodes = Nodes::new(1);
        let first = nodes.insert(7, FileKind::Regular).ino;
        nodes.bind(first, link("a"));
        assert_eq!(nodes.len(), 2);
        nodes.remove(first).unwrap();
        assert_eq!((nodes.len(), nodes.bound()), (1, 0));
        let second = nodes.insert(8, FileKind::Regular).ino;
        assert_eq!(slot(first), slot(second));
        assert_ne!(first, second);
        assert!(nodes.get(first).is_none() && nodes.remove(first).is_none());
        assert_eq!(nodes.get(second).unwrap().inode.number, 8);
        assert!(nodes.get(Ino(0)).is_none() && nodes.contains(Ino::ROOT));
    }

    #[test]
    fn each_of_several_names_leads_to_the_node_until_it_is_unbound() {
        let mut nodes = Nodes::new(1);
        let ino = nodes.insert(7, FileKind::Regular).ino;
        let links: Vec<Link> = ["a", "b", "c"].map(link).into();
        links.iter().for_each(|link| nodes.bind(ino, link.clone()));
        let found = |nodes: &Nodes, name: &Name| {
            nodes.find(Ino::ROOT, name).map(|(node, _)| node.inode.ino)
        };
        for (at, gone) in links.iter().enumerate() {
            assert_eq!(nodes.unbind(Ino::ROOT, &gone.name), Some(ino));
            assert_eq!(nodes.unbind(Ino::ROOT, &gone.name), None);
            for (other, link) in links.iter().enumerate() {
                assert_eq!(found(&nodes, &link.name), (other > at).then_some(ino));
            }
        }
        assert_eq!((nodes.get(ino).unwrap().links.len(), nodes.bound()), (0, 0));
    }

    #[test]
    fn the_used_name_stays_so_until_it_is_removed() {
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        for (used, removed) in NAMES.iter().flat_map(|it| NAMES.map(|removed| (*it, removed))) {
            let mut links = Links::default();
            NAMES.iter().for_each(|name| links.push(link(name)));
            links.note_used(Ino::ROOT, &link(used).name);
            links.remove(Ino::ROOT, &link(removed).name);
            let kept: Vec<Name> = links.iter().map(|link| link.name.clone()).collect();
            let expected: Vec<Name> =
                NAMES.iter().filter(|it| **it != removed).map(|it| link(it).name).collect();
            assert_eq!(kept, expected);
            let expected = if used == removed { &kept[0] } else { &link(used).name };
            assert_eq!(&links.used().unwrap().name, expected, "{used}, {removed}");
        }
    }

    #[test]
    fn thousands_of_names_are_distinguished() {
        let mut nodes = Nodes::new(1);
        let inos: Vec<Ino> = (0..5000)
            .map(|at| {
                let ino = nodes.insert(at + 2, FileKind::Regular).ino;
                nodes.bind(ino, link(&format!("n{at}")));
                ino
            })
            .collect();
        for (at, ino) in inos.iter().enumerate() {
            let name = link(&format!("n{at}")).name;
            assert_eq!(nodes.find(Ino::ROOT, &name).unwrap().0.inode.ino, *ino);
            assert!(nodes.find(*ino, &name).is_none());
            if at % 2 == 0 {
                nodes.remove(*ino).unwrap();
                assert!(nodes.find(Ino::ROOT, &name).is_none());
            }
        }
        assert_eq!((nodes.len(), nodes.bound()), (2501, 2500));
    }

    #[test]
    fn a_node_takes_no_more_room_than_it_needs() {
        assert!(size_of::<Option<Node>>() <= 72, "{}", size_of::<Option<Node>>());
        assert!(size_of::<Inode>() <= 224, "{}", size_of::<Inode>());
    }
}
