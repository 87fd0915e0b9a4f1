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
use crate::tree::RequestStamp;

/// Names kept in snapshots, at most: three times the sources of Linux.
const MAX_NAMES: usize = 200_000;

/// Bytes of them, at most. Names longer than some 50 bytes reach this first.
const MAX_BYTES: usize = 32 << 20;

/// What a name costs besides its bytes: its attributes, its reference, its place in two orders.
const NAME_BYTES: usize = size_of::<CachedEntry>() + 2 * size_of::<usize>() + 2 * size_of::<u32>();

/// Names of a listing that is put in the order of the inode numbers, at most: some milliseconds.
const MAX_NUMBERED: usize = 20_000;

/// What a snapshot costs besides its names. An empty directory must not be for free.
const LISTING_BYTES: usize = 400;

/// Names that a listing leaves out are asked for so many times before others are taken for absent
/// without: who looks a few names up, perhaps because he has just had something made on the
/// server, gets the server's answer; who goes through search paths does not wait for each name.
const REQUIRED_CONFIRMATIONS: u8 = 8;

/// A listing that follows another is believed as that was, if names that the other left out were
/// asked for so shortly before: who goes through search paths does so all the time.
const SEARCH_WINDOW: Duration = Duration::from_secs(1);

/// Listings that are believed so one after the other. Then the server is asked for a few names
/// again: it may have one that it does not list.
const MAX_INHERITED: u8 = 8;

/// Names of a listing that is renewed before it counts no longer, at most: what a few look-ups are
/// worth.
const MAX_REFRESHED_NAMES: usize = 400;

/// For how long after the last change made here a directory that was made here is taken to have
/// no other names: while an archive is unpacked, but not until somebody has logged in on the server
/// and made something in it.
const CREATED_FOR: Duration = Duration::from_millis(200);

/// A name as it was listed.
#[derive(Clone, Debug)]
pub(crate) struct CachedEntry {
    pub(crate) name: Name,
    pub(crate) attr: Attr,
    pub(crate) received_at: Instant,
}

/// What a snapshot tells of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    /// It was there.
    Present { attr: Attr, received_at: Instant, stamp: RequestStamp },
    /// It was not, at that time.
    Absent(Instant),
    /// A listing of then, which is complete, leaves it out.
    NotListed(Instant),
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
enum Override {
    Unknown,
    Absent(Instant),
    Present { attr: Attr, stamp: RequestStamp },
}

/// See the [module](self).
pub(crate) struct CachedListing {
    listed: Arc<[CachedEntry]>,
    /// Places in `listed` in the order of the names.
    by_name: Box<[u32]>,
    /// The same in the order of the inode numbers, once somebody has wanted that.
    by_number: OnceLock<Box<[u32]>>,
    /// Places of directories in `listed`.
    directories: Box<[u32]>,
    /// When what was changed last of it was changed, in seconds of Unix time.
    newest_mtime: i64,
    complete: bool,
    /// Nobody had asked for it, nor has anybody used it yet.
    ahead: bool,
    stamp: RequestStamp,
    /// When the first part of the listing came: absent names were absent about then.
    first_batch_at: Instant,
    overrides: HashMap<Name, Override>,
    /// Names that it leaves out, and that were asked for and absent.
    confirmed_absences: u8,
    /// So many listings before it were believed one after the other, since names were asked for.
    inherited_trust: u8,
    /// When a name that it leaves out was asked for last.
    last_search_at: Option<Instant>,
    /// It is being listed anew.
    is_refreshing: bool,
    /// The directory was made here, and until then is taken to have no names but those made here.
    created_until: Option<Instant>,
    /// Its place in the order of use.
    last_use: u64,
    bytes: usize,
}

impl CachedListing {
    /// `listed` in the server's order.
    pub(crate) fn new(
        listed: Vec<CachedEntry>,
        complete: bool,
        stamp: RequestStamp,
        first_batch_at: Instant,
    ) -> CachedListing {
        let mut by_name: Box<[u32]> = (0..listed.len() as u32).collect();
        by_name.sort_by(|one, other| {
            listed[*one as usize].name.as_bytes().cmp(listed[*other as usize].name.as_bytes())
        });
        let is_dir = |position: &u32| listed[*position as usize].attr.is_dir();
        let directories = (0..listed.len() as u32).filter(is_dir).collect();
        let names: usize = listed.iter().map(|entry| entry.name.as_bytes().len()).sum();
        let bytes = LISTING_BYTES + names + listed.len() * NAME_BYTES;
        let newest_mtime =
            listed.iter().map(|entry| entry.attr.mtime.secs).max().unwrap_or(i64::MIN);
        let listed = listed.into();
        let overrides = HashMap::new();
        CachedListing {
            listed,
            by_name,
            by_number: OnceLock::new(),
            directories,
            newest_mtime,
            complete,
            ahead: false,
            stamp,
            first_batch_at,
            overrides,
            confirmed_absences: 0,
            inherited_trust: 0,
            last_search_at: None,
            is_refreshing: false,
            created_until: None,
            last_use: 0,
            bytes,
        }
    }

    /// Of a directory that was made here just now.
    pub(crate) fn of_created(stamp: RequestStamp, now: Instant) -> CachedListing {
        let empty = CachedListing::new(Vec::new(), true, stamp, stamp.at);
        CachedListing { created_until: Some(now + CREATED_FOR), ..empty }
    }

    /// For how long names that it leaves out are taken for absent still, where those that were
    /// asked for are for `negative`.
    pub(crate) fn absence_lifetime(&self, negative: Duration, now: Instant) -> Duration {
        let made =
            self.created_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        if self.confirmed_absences < REQUIRED_CONFIRMATIONS {
            return made.min(negative);
        }
        negative
            .saturating_sub(now.saturating_duration_since(self.first_batch_at))
            .max(made)
            .min(negative)
    }

    /// Takes over from the listing `before` it whether it is to be believed in what it leaves out.
    fn inherit_trust(&mut self, before: &CachedListing) {
        let searched_lately =
            |at: Instant| self.stamp.at.saturating_duration_since(at) < SEARCH_WINDOW;
        let believed = before.confirmed_absences >= REQUIRED_CONFIRMATIONS
            && before.inherited_trust < MAX_INHERITED;
        if believed && before.last_search_at.is_some_and(searched_lately) {
            (self.confirmed_absences, self.last_search_at) =
                (before.confirmed_absences, before.last_search_at);
            self.inherited_trust = before.inherited_trust + 1;
        }
    }

    /// What it tells of `name`; `None` when that is not known.
    pub(crate) fn lookup(&self, name: &Name) -> Option<Lookup> {
        match self.overrides.get(name) {
            Some(Override::Unknown) => return None,
            Some(Override::Absent(since)) => return Some(Lookup::Absent(*since)),
            Some(Override::Present { attr, stamp }) => {
                return Some(Lookup::Present { attr: *attr, received_at: stamp.at, stamp: *stamp });
            }
            None => {}
        }
        match self.find(name) {
            Some(position) => {
                let CachedEntry { attr, received_at, .. } = self.listed[position];
                Some(Lookup::Present { attr, received_at, stamp: self.stamp })
            }
            None => self.complete.then_some(Lookup::NotListed(self.first_batch_at)),
        }
    }

    fn find(&self, name: &Name) -> Option<usize> {
        self.search_name(name).ok().map(|at| self.by_name[at] as usize)
    }

    /// Where `name` is among the names in order, or would be.
    fn search_name(&self, name: &Name) -> std::result::Result<usize, usize> {
        let name = name.as_bytes();
        self.by_name
            .binary_search_by(|position| self.listed[*position as usize].name.as_bytes().cmp(name))
    }

    /// All that it lists, if that is the whole directory as it is known to be.
    pub(crate) fn full(&self) -> Option<FullListing> {
        let is_unknown = |known_override: &Override| matches!(known_override, Override::Unknown);
        if !self.complete || self.overrides.values().any(is_unknown) {
            return None;
        }
        let is_present = |(name, known_override): (&Name, &Override)| match known_override {
            Override::Present { attr, stamp } => {
                Some(CachedEntry { name: name.clone(), attr: *attr, received_at: stamp.at })
            }
            _ => None,
        };
        // Each where it was listed, so that the order stays what it was.
        let mut all: Vec<CachedEntry> = self
            .listed
            .iter()
            .filter_map(|entry| match self.overrides.get_key_value(&entry.name) {
                Some(known_override) => is_present(known_override),
                None => Some(entry.clone()),
            })
            .collect();
        let unlisted = self.overrides.iter().filter(|(name, _)| self.find(name).is_none());
        all.extend(unlisted.filter_map(is_present));
        Some((all, self.stamp))
    }

    /// Whether it came to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// When it was asked for.
    pub(crate) fn stamp(&self) -> RequestStamp {
        self.stamp
    }

    /// Nothing is known of `name`, which was changed after the listing began.
    pub(crate) fn invalidate_name(&mut self, name: Name) {
        self.bytes += NAME_BYTES + name.as_bytes().len();
        self.overrides.insert(name, Override::Unknown);
    }

    /// When it was listed.
    pub(crate) fn first_batch_at(&self) -> Instant {
        self.first_batch_at
    }

    /// Whether there are directories in it.
    pub(crate) fn has_directories(&self) -> bool {
        !self.directories.is_empty()
    }

    /// The names of its directories in the server's order, and whether they are there still as far
    /// as is known. Those that were removed show where a walk is that removes what it has seen.
    pub(crate) fn directories(&self) -> Vec<(Name, bool)> {
        let entry = |position: &u32| {
            let name = &self.listed[*position as usize].name;
            (name.clone(), !self.overrides.contains_key(name))
        };
        self.directories.iter().map(entry).collect()
    }

    /// When what was changed last of all that it lists was changed, in seconds of Unix time.
    pub(crate) fn newest_mtime(&self) -> i64 {
        self.newest_mtime
    }

    /// Where `name` is in this order; `None` too where the order is not known.
    pub(crate) fn position(&self, name: &Name, order: Order) -> Option<usize> {
        let by_name = self.search_name(name).ok()?;
        let listed = self.by_name[by_name];
        match order {
            Order::Listing => Some(listed as usize),
            Order::Name => Some(by_name),
            Order::Number => self.by_number.get()?.iter().position(|position| *position == listed),
        }
    }

    /// What is listed, if the order of the inode numbers is not known and worth to be.
    pub(crate) fn entries_without_number_order(&self) -> Option<Arc<[CachedEntry]>> {
        let wants = self.by_number.get().is_none() && self.listed.len() <= MAX_NUMBERED;
        wants.then(|| self.listed.clone())
    }

    /// The inode numbers of what is [listed](Snapshot::unnumbered), one for each.
    pub(crate) fn set_number_order(&self, numbers: &[u64]) {
        let mut by_number: Box<[u32]> = (0..self.listed.len() as u32).collect();
        by_number.sort_by_key(|position| numbers.get(*position as usize));
        // Whoever was first has put in the same.
        let _ = self.by_number.set(by_number);
    }

    /// What it lists, from a place in this order on, as far as it is there still.
    pub(crate) fn entries_from(
        &self,
        from: usize,
        order: Order,
    ) -> impl Iterator<Item = &CachedEntry> {
        let by_number = self.by_number.get();
        let position = move |at: usize| match (order, by_number) {
            (Order::Name, _) => self.by_name[at] as usize,
            (Order::Number, Some(by_number)) => by_number[at] as usize,
            (Order::Number, None) | (Order::Listing, _) => at,
        };
        let listed = (from..self.listed.len()).map(move |at| &self.listed[position(at)]);
        listed.filter(|entry| match self.overrides.get(&entry.name) {
            None | Some(Override::Present { .. }) => true,
            Some(Override::Unknown | Override::Absent(_)) => false,
        })
    }

    /// It was fetched before anybody asked for it.
    pub(crate) fn mark_prefetched(&mut self) {
        self.ahead = true;
    }
}

/// All entries of a directory, and when they were asked for.
pub(crate) type FullListing = (Vec<CachedEntry>, RequestStamp);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Node(Ino),
    Path(RemotePath),
}

/// All snapshots. See the [module](self).
pub(crate) struct DirCache {
    by_key: HashMap<Key, CachedListing>,
    order: BTreeMap<u64, Key>,
    next_use: u64,
    /// How many are kept by their paths.
    ahead: usize,
    names: usize,
    bytes: usize,
    /// No more bytes than this.
    max_bytes: usize,
}

impl Default for DirCache {
    fn default() -> DirCache {
        DirCache::with_max_bytes(MAX_BYTES)
    }
}

impl DirCache {
    /// None so far, and never more than `bytes` of them.
    pub(crate) fn with_max_bytes(bytes: usize) -> DirCache {
        DirCache {
            by_key: HashMap::new(),
            order: BTreeMap::new(),
            next_use: 0,
            ahead: 0,
            names: 0,
            bytes: 0,
            max_bytes: bytes.min(MAX_BYTES),
        }
    }

    /// Puts in what the directory `dir` is.
    pub(crate) fn insert(&mut self, dir: Ino, listing: CachedListing) {
        self.put(Key::Node(dir), listing);
    }

    /// Puts in what the directory at `path` is, of which there is no node.
    pub(crate) fn insert_by_path(&mut self, path: RemotePath, listing: CachedListing) {
        self.put(Key::Path(path), listing);
    }

    /// Takes out what was listed ahead at `path`.
    pub(crate) fn take_by_path(&mut self, path: &RemotePath) -> Option<CachedListing> {
        if self.ahead == 0 { None } else { self.take(&Key::Path(path.clone())) }
    }

    /// Whether anything is kept by its path.
    pub(crate) fn has_any_by_path(&self) -> bool {
        self.ahead > 0
    }

    /// How many names are kept, and how many bytes that takes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.names, self.bytes)
    }

    /// Whether there is a snapshot of `dir`.
    pub(crate) fn contains(&self, dir: Ino) -> bool {
        self.by_key.contains_key(&Key::Node(dir))
    }

    /// Forgets all that is kept by its path.
    pub(crate) fn clear_by_path(&mut self) {
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
    pub(crate) fn get(&mut self, dir: Ino) -> Option<&CachedListing> {
        self.get_by_key(Key::Node(dir))
    }

    /// The snapshot of `dir`, which is not used by that.
    pub(crate) fn peek(&self, dir: Ino) -> Option<&CachedListing> {
        self.by_key.get(&Key::Node(dir))
    }

    /// The snapshot of what is at `path`, kept by its path; the one used last with this.
    pub(crate) fn get_by_path(&mut self, path: &RemotePath) -> Option<&CachedListing> {
        self.get_by_key(Key::Path(path.clone()))
    }

    fn get_by_key(&mut self, key: Key) -> Option<&CachedListing> {
        let listing = self.by_key.get_mut(&key)?;
        self.order.remove(&listing.last_use);
        self.next_use += 1;
        listing.last_use = self.next_use;
        self.order.insert(self.next_use, key);
        Some(listing)
    }

    /// Whether the snapshot of `dir` was fetched ahead and not used yet; with this it is.
    pub(crate) fn take_prefetched(&mut self, dir: Ino) -> bool {
        let listing = self.by_key.get_mut(&Key::Node(dir));
        listing.is_some_and(|listing| std::mem::take(&mut listing.ahead))
    }

    pub(crate) fn remove(&mut self, dir: Ino) {
        self.take(&Key::Node(dir));
    }

    /// A name that the snapshot of `dir` leaves out was asked for, and is absent.
    pub(crate) fn confirm_absence(&mut self, dir: Ino) {
        if let Some(listing) = self.by_key.get_mut(&Key::Node(dir)) {
            listing.confirmed_absences = listing.confirmed_absences.saturating_add(1);
            listing.last_search_at = Some(Instant::now());
        }
    }

    /// The snapshot of `dir` has answered for a name that it leaves out, and counts for so long
    /// still out of `lifetime`. Whether it is time to list `dir` anew, so that nobody has to wait
    /// for that; tells so once.
    pub(crate) fn note_search(&mut self, dir: Ino, left: Duration, lifetime: Duration) -> bool {
        let Some(listing) = self.by_key.get_mut(&Key::Node(dir)) else { return false };
        listing.last_search_at = Some(Instant::now());
        let small = listing.listed.len() <= MAX_REFRESHED_NAMES && listing.created_until.is_none();
        let due = small && left <= lifetime / 4;
        due && !std::mem::replace(&mut listing.is_refreshing, true)
    }

    /// Nothing is known of `name` any longer.
    pub(crate) fn invalidate_name(&mut self, dir: Ino, name: &Name) {
        self.set_override(dir, name, Override::Unknown);
    }

    /// `name` is gone since `since`.
    pub(crate) fn set_absent(&mut self, dir: Ino, name: &Name, since: Instant) {
        self.set_override(dir, name, Override::Absent(since));
    }

    /// The server has told of `name` what was asked when `stamp`.
    pub(crate) fn set_present(&mut self, dir: Ino, name: &Name, attr: &Attr, stamp: RequestStamp) {
        self.set_override(dir, name, Override::Present { attr: *attr, stamp });
    }

    /// Something was changed here in `dir`.
    pub(crate) fn note_change(&mut self, dir: Ino) {
        let listing = self.by_key.get_mut(&Key::Node(dir));
        if let Some(until) = listing.and_then(|listing| listing.created_until.as_mut()) {
            *until = Instant::now() + CREATED_FOR;
        }
    }

    fn set_override(&mut self, dir: Ino, name: &Name, what: Override) {
        self.note_change(dir);
        let Some(listing) = self.by_key.get_mut(&Key::Node(dir)) else { return };
        if listing.overrides.insert(name.clone(), what).is_none() {
            let cost = NAME_BYTES + name.as_bytes().len();
            listing.bytes += cost;
            self.bytes += cost;
            self.names += 1;
            self.evict();
        }
    }

    fn put(&mut self, key: Key, mut listing: CachedListing) {
        if let Some(before) = self.take(&key) {
            listing.inherit_trust(&before);
        }
        self.next_use += 1;
        listing.last_use = self.next_use;
        self.order.insert(self.next_use, key.clone());
        self.names += listing.listed.len() + listing.overrides.len();
        self.bytes += listing.bytes;
        self.ahead += usize::from(matches!(key, Key::Path(_)));
        self.by_key.insert(key, listing);
        self.evict();
    }

    fn take(&mut self, key: &Key) -> Option<CachedListing> {
        let listing = self.by_key.remove(key)?;
        self.order.remove(&listing.last_use);
        self.names -= listing.listed.len() + listing.overrides.len();
        self.bytes -= listing.bytes;
        self.ahead -= usize::from(matches!(key, Key::Path(_)));
        Some(listing)
    }

    fn evict(&mut self) {
        while self.names > MAX_NAMES || self.bytes > self.max_bytes {
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

    fn listing(names: &[&str], complete: bool) -> CachedListing {
        let received_at = Instant::now();
        let entry = |(size, text): (usize, &&str)| CachedEntry {
            name: name(text),
            attr: attr(size as u64),
            received_at,
        };
        let listed = names.iter().enumerate().map(entry).collect();
        CachedListing::new(listed, complete, RequestStamp { seq: 0, at: received_at }, received_at)
    }

    fn size(dir_cache: &mut DirCache, dir: u64, text: &str) -> Option<Option<u64>> {
        Some(match dir_cache.get(Ino(dir))?.lookup(&name(text))? {
            Lookup::Present { attr, .. } => Some(attr.size),
            Lookup::Absent(_) | Lookup::NotListed(_) => None,
        })
    }

    #[test]
    fn only_a_complete_listing_tells_what_is_absent() {
        let mut dir_cache = DirCache::default();
        dir_cache.insert(Ino(1), listing(&["b", "a", "c"], true));
        dir_cache.insert(Ino(2), listing(&["b", "a"], false));
        for (text, position) in [("b", 0), ("a", 1)] {
            assert_eq!(size(&mut dir_cache, 1, text), Some(Some(position)));
            assert_eq!(size(&mut dir_cache, 2, text), Some(Some(position)));
        }
        assert_eq!(size(&mut dir_cache, 1, "d"), Some(None));
        assert_eq!(size(&mut dir_cache, 2, "d"), None);
        assert_eq!(size(&mut dir_cache, 3, "d"), None);
    }

    #[test]
    fn a_change_spoils_one_name_only() {
        let mut dir_cache = DirCache::default();
        dir_cache.insert(Ino(1), listing(&["a", "b"], true));
        dir_cache.invalidate_name(Ino(1), &name("a"));
        assert_eq!(size(&mut dir_cache, 1, "a"), None);
        assert_eq!(size(&mut dir_cache, 1, "b"), Some(Some(1)));
        assert!(dir_cache.get(Ino(1)).unwrap().full().is_none());
        dir_cache.set_absent(Ino(1), &name("a"), Instant::now());
        assert_eq!(size(&mut dir_cache, 1, "a"), Some(None));
        let (full, _) = dir_cache.get(Ino(1)).unwrap().full().unwrap();
        assert_eq!(full.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>(), [name("b")]);
        let stamp = RequestStamp { seq: 1, at: Instant::now() };
        dir_cache.set_present(Ino(1), &name("a"), &attr(7), stamp);
        assert_eq!(size(&mut dir_cache, 1, "a"), Some(Some(7)));
    }

    #[test]
    fn what_was_listed_ahead_is_taken_over_by_the_node() {
        let mut dir_cache = DirCache::default();
        let path = RemotePath::parse(b"d/e").unwrap();
        dir_cache.insert_by_path(path.clone(), listing(&["a"], true));
        assert!(dir_cache.get_by_path(&path).is_some());
        let revisit = dir_cache.take_by_path(&path).unwrap();
        dir_cache.insert(Ino(5), revisit);
        assert!(dir_cache.get_by_path(&path).is_none());
        assert_eq!(size(&mut dir_cache, 5, "a"), Some(Some(0)));
        dir_cache.insert_by_path(path.clone(), listing(&["a"], true));
        dir_cache.clear_by_path();
        assert!(dir_cache.get_by_path(&path).is_none());
        dir_cache.remove(Ino(5));
        assert_eq!((dir_cache.names, dir_cache.bytes, dir_cache.order.len()), (0, 0, 0));
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let mut dir_cache = DirCache::default();
        let names: Vec<String> = (0..MAX_NAMES / 4).map(|index| format!("n{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for dir in 1..=3 {
            dir_cache.insert(Ino(dir), listing(&names, true));
        }
        assert!(dir_cache.get(Ino(1)).is_some());
        for dir in 4..=5 {
            dir_cache.insert(Ino(dir), listing(&names, true));
        }
        let kept: Vec<u64> = (1..=5).filter(|dir| dir_cache.get(Ino(*dir)).is_some()).collect();
        assert!(dir_cache.names <= MAX_NAMES && dir_cache.bytes <= MAX_BYTES);
        assert!(!kept.contains(&2) && kept.contains(&1) && kept.contains(&5), "{kept:?}");
        // One that is too large alone does not stay either.
        let huge = names.repeat(5);
        dir_cache.insert(Ino(9), listing(&huge, true));
        assert!(dir_cache.get(Ino(9)).is_none());
    }
}
