//! What whole directories were when they were listed last.
//!
//! Definitions. A *snapshot* is a listing of one directory with the attributes of its names, as
//! the server told them. It is *complete* when the listing came to its end: then a name that is
//! not in it was absent. Names that are changed through this mount afterwards are *exceptions*:
//! unknown from the moment in which the change begins, so that one change does not spoil what is
//! known of all the others. What a change, or a later answer of the server, makes of such a name
//! may be put in.
//!
//! Snapshots say what was true when; for how long that counts is the caller's matter. They are
//! kept apart from the tree's nodes, which are there only for what the kernel knows: a listing of
//! a directory that the kernel has not looked at yet is kept by its path, until it does.
//!
//! Invariants:
//! 1. What is in a snapshot was told by the server after the last change made here of that name.
//! 2. Entries and bytes are bounded over all snapshots; the least recently used go first.
//!
//! All of it is guarded by the lock of the tree, which changes exceptions and names in one step.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Attr, Name, RemotePath};
use tokio::time::Instant;

use crate::Ino;
use crate::tree::Asked;

/// Names kept in snapshots, at most: three times the sources of Linux.
const MAX_NAMES: usize = 200_000;

/// Bytes of them, at most. Names longer than some 50 bytes reach this first.
const MAX_BYTES: usize = 32 << 20;

/// What a name costs besides its bytes: its attributes, its reference, its place in two orders.
const NAME_BYTES: usize = size_of::<Found>() + 2 * size_of::<usize>() + 2 * size_of::<u32>();

/// Names of a listing that is put in the order of the inode numbers, at most: some milliseconds.
const MAX_NUMBERED: usize = 20_000;

/// What a snapshot costs besides its names. An empty directory must not be for free.
const SNAPSHOT_BYTES: usize = 400;

/// Names that a listing leaves out are asked for so many times before others are taken for absent
/// without: who looks a few names up, perhaps because he has just had something made on the
/// server, gets the server's answer; who goes through search paths does not wait for each name.
const CONFIRMATIONS: u8 = 8;

/// A listing that follows another is believed as that was, if names that the other left out were
/// asked for so shortly before: who goes through search paths does so all the time.
const SEARCHED_FOR: Duration = Duration::from_secs(1);

/// Listings that are believed so one after the other. Then the server is asked for a few names
/// again: it may have one that it does not list.
const MAX_FOLLOWED: u8 = 8;

/// Names of a listing that is renewed before it counts no longer, at most: what a few look-ups are
/// worth.
const MAX_RENEWED: usize = 400;

/// For how long after the last change made here a directory that was made here is taken to have
/// no other names: while an archive is unpacked, but not until somebody has logged in on the server
/// and made something in it.
const MADE_FOR: Duration = Duration::from_millis(200);

/// A name as it was listed.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) name: Name,
    pub(crate) attr: Attr,
    pub(crate) seen_at: Instant,
}

/// What a snapshot tells of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// It was there.
    Present { attr: Attr, seen_at: Instant, asked: Asked },
    /// It was not, at that time.
    Absent(Instant),
    /// A listing of then, which is complete, leaves it out.
    Unlisted(Instant),
}

/// An order in which programs go through a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// As it is listed: `tar`, `find`, `grep -r`.
    #[default]
    Listing,
    /// By name: `rsync`, `ls`, shells.
    Name,
    /// By inode number: `cp -r`, in the belief that files lie so on a disk.
    Number,
}

impl Order {
    /// All of them, the likeliest first.
    pub(crate) const ALL: [Order; 3] = [Order::Listing, Order::Name, Order::Number];
}

/// A name that was changed here after the listing began.
#[derive(Clone, Copy, Debug)]
enum Exception {
    Unknown,
    Absent(Instant),
    Present { attr: Attr, asked: Asked },
}

/// See the [module](self).
pub(crate) struct Snapshot {
    listed: Arc<[Found]>,
    /// Places in `listed` in the order of the names.
    by_name: Box<[u32]>,
    /// The same in the order of the inode numbers, once somebody has wanted that.
    by_number: OnceLock<Box<[u32]>>,
    /// Places of directories in `listed`.
    directories: Box<[u32]>,
    /// When what was changed last of it was changed, in seconds of Unix time.
    newest: i64,
    complete: bool,
    /// Nobody had asked for it, nor has anybody used it yet.
    ahead: bool,
    asked: Asked,
    /// When the first part of the listing came: absent names were absent about then.
    first_at: Instant,
    exceptions: HashMap<Name, Exception>,
    /// Names that it leaves out, and that were asked for and absent.
    confirmed: u8,
    /// So many listings before it were believed one after the other, since names were asked for.
    followed: u8,
    /// When a name that it leaves out was asked for last.
    searched_at: Option<Instant>,
    /// It is being listed anew.
    renewed: bool,
    /// The directory was made here, and until then is taken to have no names but those made here.
    made_until: Option<Instant>,
    /// Its place in the order of use.
    used: u64,
    bytes: usize,
}

impl Snapshot {
    /// `listed` in the server's order.
    pub(crate) fn new(
        listed: Vec<Found>,
        complete: bool,
        asked: Asked,
        first_at: Instant,
    ) -> Snapshot {
        let mut by_name: Box<[u32]> = (0..listed.len() as u32).collect();
        by_name.sort_by(|one, other| {
            listed[*one as usize].name.as_bytes().cmp(listed[*other as usize].name.as_bytes())
        });
        let is_dir = |place: &u32| listed[*place as usize].attr.is_dir();
        let directories = (0..listed.len() as u32).filter(is_dir).collect();
        let names: usize = listed.iter().map(|found| found.name.as_bytes().len()).sum();
        let bytes = SNAPSHOT_BYTES + names + listed.len() * NAME_BYTES;
        let newest = listed.iter().map(|found| found.attr.mtime.secs).max().unwrap_or(i64::MIN);
        let listed = listed.into();
        let exceptions = HashMap::new();
        Snapshot {
            listed,
            by_name,
            by_number: OnceLock::new(),
            directories,
            newest,
            complete,
            ahead: false,
            asked,
            first_at,
            exceptions,
            confirmed: 0,
            followed: 0,
            searched_at: None,
            renewed: false,
            made_until: None,
            used: 0,
            bytes,
        }
    }

    /// Of a directory that was made here just now.
    pub(crate) fn of_made(asked: Asked, now: Instant) -> Snapshot {
        let empty = Snapshot::new(Vec::new(), true, asked, asked.at);
        Snapshot { made_until: Some(now + MADE_FOR), ..empty }
    }

    /// For how long names that it leaves out are taken for absent still, where those that were
    /// asked for are for `negative`.
    pub(crate) fn absent_for(&self, negative: Duration, now: Instant) -> Duration {
        let made =
            self.made_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        if self.confirmed < CONFIRMATIONS {
            return made.min(negative);
        }
        negative
            .saturating_sub(now.saturating_duration_since(self.first_at))
            .max(made)
            .min(negative)
    }

    /// Takes over from the listing `before` it whether it is to be believed in what it leaves out.
    fn follow(&mut self, before: &Snapshot) {
        let searched = |at: Instant| self.asked.at.saturating_duration_since(at) < SEARCHED_FOR;
        let believed = before.confirmed >= CONFIRMATIONS && before.followed < MAX_FOLLOWED;
        if believed && before.searched_at.is_some_and(searched) {
            (self.confirmed, self.searched_at) = (before.confirmed, before.searched_at);
            self.followed = before.followed + 1;
        }
    }

    /// What it tells of `name`; `None` when that is not known.
    pub(crate) fn told(&self, name: &Name) -> Option<Told> {
        match self.exceptions.get(name) {
            Some(Exception::Unknown) => return None,
            Some(Exception::Absent(since)) => return Some(Told::Absent(*since)),
            Some(Exception::Present { attr, asked }) => {
                return Some(Told::Present { attr: *attr, seen_at: asked.at, asked: *asked });
            }
            None => {}
        }
        match self.find(name) {
            Some(place) => {
                let Found { attr, seen_at, .. } = self.listed[place];
                Some(Told::Present { attr, seen_at, asked: self.asked })
            }
            None => self.complete.then_some(Told::Unlisted(self.first_at)),
        }
    }

    fn find(&self, name: &Name) -> Option<usize> {
        self.rank(name).ok().map(|at| self.by_name[at] as usize)
    }

    /// Where `name` is among the names in order, or would be.
    fn rank(&self, name: &Name) -> std::result::Result<usize, usize> {
        let name = name.as_bytes();
        self.by_name
            .binary_search_by(|place| self.listed[*place as usize].name.as_bytes().cmp(name))
    }

    /// All that it lists, if that is the whole directory as it is known to be.
    pub(crate) fn whole(&self) -> Option<Whole> {
        let unknown = |exception: &Exception| matches!(exception, Exception::Unknown);
        if !self.complete || self.exceptions.values().any(unknown) {
            return None;
        }
        let is_present = |(name, exception): (&Name, &Exception)| match exception {
            Exception::Present { attr, asked } => {
                Some(Found { name: name.clone(), attr: *attr, seen_at: asked.at })
            }
            _ => None,
        };
        // Each where it was listed, so that the order stays what it was.
        let mut all: Vec<Found> = self
            .listed
            .iter()
            .filter_map(|found| match self.exceptions.get_key_value(&found.name) {
                Some(exception) => is_present(exception),
                None => Some(found.clone()),
            })
            .collect();
        let unlisted = self.exceptions.iter().filter(|(name, _)| self.find(name).is_none());
        all.extend(unlisted.filter_map(is_present));
        Some((all, self.asked))
    }

    /// Whether it came to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// When it was asked for.
    pub(crate) fn asked(&self) -> Asked {
        self.asked
    }

    /// Nothing is known of `name`, which was changed after the listing began.
    pub(crate) fn doubt(&mut self, name: Name) {
        self.bytes += NAME_BYTES + name.as_bytes().len();
        self.exceptions.insert(name, Exception::Unknown);
    }

    /// When it was listed.
    pub(crate) fn first_at(&self) -> Instant {
        self.first_at
    }

    /// Whether there are directories in it.
    pub(crate) fn has_directories(&self) -> bool {
        !self.directories.is_empty()
    }

    /// The names of its directories in the server's order, and whether they are there still as far
    /// as is known. Those that were removed show where a walk is that removes what it has seen.
    pub(crate) fn directories(&self) -> Vec<(Name, bool)> {
        let entry = |place: &u32| {
            let name = &self.listed[*place as usize].name;
            (name.clone(), !self.exceptions.contains_key(name))
        };
        self.directories.iter().map(entry).collect()
    }

    /// When what was changed last of all that it lists was changed, in seconds of Unix time.
    pub(crate) fn newest(&self) -> i64 {
        self.newest
    }

    /// Where `name` is in this order; `None` too where the order is not known.
    pub(crate) fn place(&self, name: &Name, order: Order) -> Option<usize> {
        let by_name = self.rank(name).ok()?;
        let listed = self.by_name[by_name];
        match order {
            Order::Listing => Some(listed as usize),
            Order::Name => Some(by_name),
            Order::Number => self.by_number.get()?.iter().position(|place| *place == listed),
        }
    }

    /// What is listed, if the order of the inode numbers is not known and worth to be.
    pub(crate) fn unnumbered(&self) -> Option<Arc<[Found]>> {
        let wants = self.by_number.get().is_none() && self.listed.len() <= MAX_NUMBERED;
        wants.then(|| self.listed.clone())
    }

    /// The inode numbers of what is [listed](Snapshot::unnumbered), one for each.
    pub(crate) fn set_numbers(&self, numbers: &[u64]) {
        let mut by_number: Box<[u32]> = (0..self.listed.len() as u32).collect();
        by_number.sort_by_key(|place| numbers.get(*place as usize));
        // Whoever was first has put in the same.
        let _ = self.by_number.set(by_number);
    }

    /// What it lists, from a place in this order on, as far as it is there still.
    pub(crate) fn entries_from(&self, from: usize, order: Order) -> impl Iterator<Item = &Found> {
        let by_number = self.by_number.get();
        let place = move |at: usize| match (order, by_number) {
            (Order::Name, _) => self.by_name[at] as usize,
            (Order::Number, Some(by_number)) => by_number[at] as usize,
            (Order::Number, None) | (Order::Listing, _) => at,
        };
        let listed = (from..self.listed.len()).map(move |at| &self.listed[place(at)]);
        listed.filter(|found| match self.exceptions.get(&found.name) {
            None | Some(Exception::Present { .. }) => true,
            Some(Exception::Unknown | Exception::Absent(_)) => false,
        })
    }

    /// It was fetched before anybody asked for it.
    pub(crate) fn set_ahead(&mut self) {
        self.ahead = true;
    }
}

/// All entries of a directory, and when they were asked for.
pub(crate) type Whole = (Vec<Found>, Asked);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Node(Ino),
    Path(RemotePath),
}

/// All snapshots. See the [module](self).
pub(crate) struct Snapshots {
    by_key: HashMap<Key, Snapshot>,
    order: BTreeMap<u64, Key>,
    next_use: u64,
    /// How many are kept by their paths.
    ahead: usize,
    names: usize,
    bytes: usize,
    /// No more bytes than this.
    most_bytes: usize,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        Snapshots::within(MAX_BYTES)
    }
}

impl Snapshots {
    /// None so far, and never more than `bytes` of them.
    pub(crate) fn within(bytes: usize) -> Snapshots {
        Snapshots {
            by_key: HashMap::new(),
            order: BTreeMap::new(),
            next_use: 0,
            ahead: 0,
            names: 0,
            bytes: 0,
            most_bytes: bytes.min(MAX_BYTES),
        }
    }

    /// Puts in what the directory `dir` is.
    pub(crate) fn insert(&mut self, dir: Ino, snapshot: Snapshot) {
        self.put(Key::Node(dir), snapshot);
    }

    /// Puts in what the directory at `path` is, of which there is no node.
    pub(crate) fn insert_ahead(&mut self, path: RemotePath, snapshot: Snapshot) {
        self.put(Key::Path(path), snapshot);
    }

    /// Takes out what was listed ahead at `path`.
    pub(crate) fn take_ahead(&mut self, path: &RemotePath) -> Option<Snapshot> {
        if self.ahead == 0 { None } else { self.take(&Key::Path(path.clone())) }
    }

    /// Whether anything is kept by its path.
    pub(crate) fn any_ahead(&self) -> bool {
        self.ahead > 0
    }

    /// How many names are kept, and how many bytes that takes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.names, self.bytes)
    }

    /// Whether there is a snapshot of `dir`.
    pub(crate) fn has(&self, dir: Ino) -> bool {
        self.by_key.contains_key(&Key::Node(dir))
    }

    /// Forgets all that is kept by its path.
    pub(crate) fn forget_ahead(&mut self) {
        if self.ahead == 0 {
            return;
        }
        let by_path = |key: &&Key| matches!(key, Key::Path(_));
        let keys: Vec<Key> = self.by_key.keys().filter(by_path).cloned().collect();
        for key in keys {
            self.take(&key);
        }
    }

    /// The snapshot of `dir`, which is with this the one used last.
    pub(crate) fn get(&mut self, dir: Ino) -> Option<&Snapshot> {
        self.touch(Key::Node(dir))
    }

    /// The snapshot of `dir`, which is not used by that.
    pub(crate) fn peek(&self, dir: Ino) -> Option<&Snapshot> {
        self.by_key.get(&Key::Node(dir))
    }

    /// The snapshot of what is at `path`, kept by its path; the one used last with this.
    pub(crate) fn get_ahead(&mut self, path: &RemotePath) -> Option<&Snapshot> {
        self.touch(Key::Path(path.clone()))
    }

    fn touch(&mut self, key: Key) -> Option<&Snapshot> {
        let snapshot = self.by_key.get_mut(&key)?;
        self.order.remove(&snapshot.used);
        self.next_use += 1;
        snapshot.used = self.next_use;
        self.order.insert(self.next_use, key);
        Some(snapshot)
    }

    /// Whether the snapshot of `dir` was fetched ahead and not used yet; with this it is.
    pub(crate) fn use_ahead(&mut self, dir: Ino) -> bool {
        let snapshot = self.by_key.get_mut(&Key::Node(dir));
        snapshot.is_some_and(|snapshot| std::mem::take(&mut snapshot.ahead))
    }

    pub(crate) fn remove(&mut self, dir: Ino) {
        self.take(&Key::Node(dir));
    }

    /// A name that the snapshot of `dir` leaves out was asked for, and is absent.
    pub(crate) fn confirm(&mut self, dir: Ino) {
        if let Some(snapshot) = self.by_key.get_mut(&Key::Node(dir)) {
            snapshot.confirmed = snapshot.confirmed.saturating_add(1);
            snapshot.searched_at = Some(Instant::now());
        }
    }

    /// The snapshot of `dir` has answered for a name that it leaves out, and counts for so long
    /// still out of `lifetime`. Whether it is time to list `dir` anew, so that nobody has to wait
    /// for that; tells so once.
    pub(crate) fn search(&mut self, dir: Ino, left: Duration, lifetime: Duration) -> bool {
        let Some(snapshot) = self.by_key.get_mut(&Key::Node(dir)) else { return false };
        snapshot.searched_at = Some(Instant::now());
        let small = snapshot.listed.len() <= MAX_RENEWED && snapshot.made_until.is_none();
        let due = small && left <= lifetime / 4;
        due && !std::mem::replace(&mut snapshot.renewed, true)
    }

    /// Nothing is known of `name` any longer.
    pub(crate) fn doubt(&mut self, dir: Ino, name: &Name) {
        self.except(dir, name, Exception::Unknown);
    }

    /// `name` is gone since `since`.
    pub(crate) fn gone(&mut self, dir: Ino, name: &Name, since: Instant) {
        self.except(dir, name, Exception::Absent(since));
    }

    /// The server has told of `name` what was asked when `asked`.
    pub(crate) fn seen(&mut self, dir: Ino, name: &Name, attr: &Attr, asked: Asked) {
        self.except(dir, name, Exception::Present { attr: *attr, asked });
    }

    /// Something was changed here in `dir`.
    pub(crate) fn changed(&mut self, dir: Ino) {
        let snapshot = self.by_key.get_mut(&Key::Node(dir));
        if let Some(until) = snapshot.and_then(|snapshot| snapshot.made_until.as_mut()) {
            *until = Instant::now() + MADE_FOR;
        }
    }

    fn except(&mut self, dir: Ino, name: &Name, what: Exception) {
        self.changed(dir);
        let Some(snapshot) = self.by_key.get_mut(&Key::Node(dir)) else { return };
        if snapshot.exceptions.insert(name.clone(), what).is_none() {
            let cost = NAME_BYTES + name.as_bytes().len();
            snapshot.bytes += cost;
            self.bytes += cost;
            self.names += 1;
            self.evict();
        }
    }

    fn put(&mut self, key: Key, mut snapshot: Snapshot) {
        if let Some(before) = self.take(&key) {
            snapshot.follow(&before);
        }
        self.next_use += 1;
        snapshot.used = self.next_use;
        self.order.insert(self.next_use, key.clone());
        self.names += snapshot.listed.len() + snapshot.exceptions.len();
        self.bytes += snapshot.bytes;
        self.ahead += usize::from(matches!(key, Key::Path(_)));
        self.by_key.insert(key, snapshot);
        self.evict();
    }

    fn take(&mut self, key: &Key) -> Option<Snapshot> {
        let snapshot = self.by_key.remove(key)?;
        self.order.remove(&snapshot.used);
        self.names -= snapshot.listed.len() + snapshot.exceptions.len();
        self.bytes -= snapshot.bytes;
        self.ahead -= usize::from(matches!(key, Key::Path(_)));
        Some(snapshot)
    }

    fn evict(&mut self) {
        while self.names > MAX_NAMES || self.bytes > self.most_bytes {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            let oldest = oldest.clone();
            self.take(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{FileKind, Timestamp};

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn attr(size: u64) -> Attr {
        let time = Timestamp::default();
        Attr { kind: FileKind::Regular, perm: 0, size, uid: 0, gid: 0, atime: time, mtime: time }
    }

    fn snapshot(names: &[&str], complete: bool) -> Snapshot {
        let seen_at = Instant::now();
        let found = |(size, text): (usize, &&str)| Found {
            name: name(text),
            attr: attr(size as u64),
            seen_at,
        };
        let listed = names.iter().enumerate().map(found).collect();
        Snapshot::new(listed, complete, Asked { tick: 0, at: seen_at }, seen_at)
    }

    fn size(snapshots: &mut Snapshots, dir: u64, text: &str) -> Option<Option<u64>> {
        Some(match snapshots.get(Ino(dir))?.told(&name(text))? {
            Told::Present { attr, .. } => Some(attr.size),
            Told::Absent(_) | Told::Unlisted(_) => None,
        })
    }

    #[test]
    fn only_a_complete_listing_tells_what_is_absent() {
        let mut snapshots = Snapshots::default();
        snapshots.insert(Ino(1), snapshot(&["b", "a", "c"], true));
        snapshots.insert(Ino(2), snapshot(&["b", "a"], false));
        for (text, place) in [("b", 0), ("a", 1)] {
            assert_eq!(size(&mut snapshots, 1, text), Some(Some(place)));
            assert_eq!(size(&mut snapshots, 2, text), Some(Some(place)));
        }
        assert_eq!(size(&mut snapshots, 1, "d"), Some(None));
        assert_eq!(size(&mut snapshots, 2, "d"), None);
        assert_eq!(size(&mut snapshots, 3, "d"), None);
    }

    #[test]
    fn a_change_spoils_one_name_only() {
        let mut snapshots = Snapshots::default();
        snapshots.insert(Ino(1), snapshot(&["a", "b"], true));
        snapshots.doubt(Ino(1), &name("a"));
        assert_eq!(size(&mut snapshots, 1, "a"), None);
        assert_eq!(size(&mut snapshots, 1, "b"), Some(Some(1)));
        assert!(snapshots.get(Ino(1)).unwrap().whole().is_none());
        snapshots.gone(Ino(1), &name("a"), Instant::now());
        assert_eq!(size(&mut snapshots, 1, "a"), Some(None));
        let (whole, _) = snapshots.get(Ino(1)).unwrap().whole().unwrap();
        assert_eq!(whole.iter().map(|found| found.name.clone()).collect::<Vec<_>>(), [name("b")]);
        let asked = Asked { tick: 1, at: Instant::now() };
        snapshots.seen(Ino(1), &name("a"), &attr(7), asked);
        assert_eq!(size(&mut snapshots, 1, "a"), Some(Some(7)));
    }

    #[test]
    fn what_was_listed_ahead_is_taken_over_by_the_node() {
        let mut snapshots = Snapshots::default();
        let path = RemotePath::parse(b"d/e").unwrap();
        snapshots.insert_ahead(path.clone(), snapshot(&["a"], true));
        assert!(snapshots.get_ahead(&path).is_some());
        let taken = snapshots.take_ahead(&path).unwrap();
        snapshots.insert(Ino(5), taken);
        assert!(snapshots.get_ahead(&path).is_none());
        assert_eq!(size(&mut snapshots, 5, "a"), Some(Some(0)));
        snapshots.insert_ahead(path.clone(), snapshot(&["a"], true));
        snapshots.forget_ahead();
        assert!(snapshots.get_ahead(&path).is_none());
        snapshots.remove(Ino(5));
        assert_eq!((snapshots.names, snapshots.bytes, snapshots.order.len()), (0, 0, 0));
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let mut snapshots = Snapshots::default();
        let names: Vec<String> = (0..MAX_NAMES / 4).map(|index| format!("n{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for dir in 1..=3 {
            snapshots.insert(Ino(dir), snapshot(&names, true));
        }
        assert!(snapshots.get(Ino(1)).is_some());
        for dir in 4..=5 {
            snapshots.insert(Ino(dir), snapshot(&names, true));
        }
        let kept: Vec<u64> = (1..=5).filter(|dir| snapshots.get(Ino(*dir)).is_some()).collect();
        assert!(snapshots.names <= MAX_NAMES && snapshots.bytes <= MAX_BYTES);
        assert!(!kept.contains(&2) && kept.contains(&1) && kept.contains(&5), "{kept:?}");
        // One that is too large alone does not stay either.
        let huge = names.repeat(5);
        snapshots.insert(Ino(9), snapshot(&huge, true));
        assert!(snapshots.get(Ino(9)).is_none());
    }
}
