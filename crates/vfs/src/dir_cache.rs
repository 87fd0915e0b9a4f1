//! The directory cache: listings of whole directories with the attributes of their entries.
//!
//! Definitions. A *listing* contains the entries of one directory as the server returned them. It
//! is *complete* if it reached the end of the directory: then a name that is not in it was absent.
//! A name that is changed through this mount gets an *override*: unknown from the beginning of the
//! change, so that one change does not invalidate the other entries. The result of the change, or a
//! later answer of the server, may replace it.
//!
//! A listing records what was true at which time; the caller decides how long that is valid.
//! Listings are separate from the tree's nodes, which exist only for what the kernel knows: a
//! listing of a directory without a node is cached by path until the kernel looks the directory up.
//!
//! Invariants:
//! 1. Each entry was returned by the server after the last local change of its name.
//! 2. Entries and bytes are bounded over all listings; the least recently used are evicted.
//!
//! The tree's lock guards the cache, so overrides and names change in one step.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Attr, Name, RemotePath};
use lru::LruCache;
use tokio::time::Instant;

use crate::Ino;
use crate::stored_attr::{INODE_ATTR_BYTES, StoredAttr};
use crate::tree::RequestStamp;

/// Names in the cache, at most: three times the sources of Linux.
const MAX_NAMES: usize = 200_000;

/// Bytes of the cache, at most. Names longer than some 50 bytes reach this bound first.
const MAX_BYTES: usize = 32 << 20;

/// Bytes of an entry besides its name: its attributes, its reference, its position in two orders.
const NAME_BYTES: usize = size_of::<CachedEntry>() + 2 * size_of::<usize>() + 2 * size_of::<u32>();

/// Entries of a listing that is sorted by inode number, at most: some milliseconds.
const MAX_NUMBERED: usize = 20_000;

/// Bytes of a listing besides its entries, so that an empty directory is not free.
const LISTING_BYTES: usize = 400;

/// Negative lookups are answered from a complete listing only after the server has confirmed this
/// many of them. A user who checks for a few files just created on the server gets the server's
/// answer; a compiler that searches include paths does not wait for each name.
const REQUIRED_CONFIRMATIONS: u8 = 8;

/// A listing inherits the confirmations of the one before it if an absent name was looked up within
/// this time before its request, as a search of include paths does all the time.
const SEARCH_WINDOW: Duration = Duration::from_secs(1);

/// Listings in a row that may inherit confirmations. Then the server must confirm some names again:
/// it may have a name that it does not list.
const MAX_INHERITED: u8 = 8;

/// Entries of a listing that is refreshed before it expires, at most: the price of a few lookups.
const MAX_REFRESHED_NAMES: usize = 400;

/// How long after the last local change a directory created by this mount is taken to have no other
/// names: while an archive is unpacked, but shorter than a user needs to log in on the server and
/// create a file in it. A change that begins later does not restore that.
const CREATED_FOR: Duration = Duration::from_millis(200);

/// One entry of a listing.
#[derive(Clone, Debug)]
pub(crate) struct CachedEntry {
    pub(crate) name: Name,
    pub(crate) attr: StoredAttr,
    pub(crate) received_at: Instant,
}

/// The answer of a listing for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    /// It existed.
    Present { attr: Attr, received_at: Instant, stamp: RequestStamp },
    /// It was absent at this time.
    Absent(Instant),
    /// It is not in a complete listing of this time.
    NotListed(Instant),
}

/// An order in which programs visit a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// The order of the listing: `tar`, `find`, `grep -r`.
    #[default]
    Listing,
    /// By name: `rsync`, `ls`, shells.
    Name,
    /// By inode number: `cp -r`, on the assumption that this is the order on the disk.
    Number,
}

impl Order {
    /// All orders, the most likely first.
    pub(crate) const ALL: [Order; 3] = [Order::Listing, Order::Name, Order::Number];
}

/// The state of a name that was changed locally after the listing began.
#[derive(Clone, Copy, Debug)]
enum Override {
    Unknown,
    Absent(Instant),
    Present { attr: Attr, stamp: RequestStamp },
}

/// See the [module](self).
pub(crate) struct CachedListing {
    listed: Arc<[CachedEntry]>,
    /// Positions in `listed`, sorted by name.
    by_name: Box<[u32]>,
    /// Positions in `listed`, sorted by inode number; computed on demand.
    by_number: OnceLock<Box<[u32]>>,
    /// Positions of the directories in `listed`, and in `by_name`.
    directories: [Box<[u32]>; 2],
    /// The latest mtime of the entries, in seconds of Unix time.
    newest_mtime: i64,
    complete: bool,
    /// It was prefetched and not used yet.
    unused_prefetch: bool,
    stamp: RequestStamp,
    /// When the first batch arrived: absent names were absent about then.
    first_batch_at: Instant,
    overrides: HashMap<Name, Override>,
    /// Lookups of names that are not in it, which the server has confirmed as absent.
    confirmed_absences: u8,
    /// Listings before this one that inherited `confirmed_absences` without confirmations of their
    /// own.
    inherited_trust: u8,
    /// When a name that is not in it was looked up last.
    last_search_at: Option<Instant>,
    /// It is being refreshed.
    is_refreshing: bool,
    /// This mount created the directory; until then it is taken to have only names created here.
    created_until: Option<Instant>,
    /// Local changes in flight since `created_until` was set.
    changes_in_flight: u32,
    bytes: usize,
}

impl CachedListing {
    /// A listing with the entries `listed` in the server's order.
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
        let is_dir = |position: u32| listed[position as usize].attr.is_dir();
        let all = 0..listed.len() as u32;
        let directories = [
            all.clone().filter(|at| is_dir(*at)).collect(),
            all.filter(|at| is_dir(by_name[*at as usize])).collect(),
        ];
        let names: usize = listed.iter().map(|entry| entry.name.as_bytes().len()).sum();
        let inode_attrs = listed.iter().filter(|entry| entry.attr.has_inode()).count();
        let bytes =
            LISTING_BYTES + names + listed.len() * NAME_BYTES + inode_attrs * INODE_ATTR_BYTES;
        let newest_mtime =
            listed.iter().map(|entry| entry.attr.get().mtime.secs).max().unwrap_or(i64::MIN);
        let listed = listed.into();
        let overrides = HashMap::new();
        CachedListing {
            listed,
            by_name,
            by_number: OnceLock::new(),
            directories,
            newest_mtime,
            complete,
            unused_prefetch: false,
            stamp,
            first_batch_at,
            overrides,
            confirmed_absences: 0,
            inherited_trust: 0,
            last_search_at: None,
            is_refreshing: false,
            created_until: None,
            changes_in_flight: 0,
            bytes,
        }
    }

    /// The listing of a directory that this mount has just created.
    pub(crate) fn of_created(stamp: RequestStamp, now: Instant) -> CachedListing {
        let empty = CachedListing::new(Vec::new(), true, stamp, stamp.at);
        CachedListing { created_until: Some(now + CREATED_FOR), ..empty }
    }

    /// How much longer names that are not in it are taken to be absent, if an absent name is cached
    /// for `negative`.
    pub(crate) fn absence_lifetime(&self, negative: Duration, now: Instant) -> Duration {
        let created =
            self.created_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        if self.confirmed_absences < REQUIRED_CONFIRMATIONS {
            return created.min(negative);
        }
        negative
            .saturating_sub(now.saturating_duration_since(self.first_batch_at))
            .max(created)
            .min(negative)
    }

    /// Inherits the confirmations of the listing `before` this one, if they are recent enough.
    fn inherit_trust(&mut self, before: &CachedListing) {
        let searched_lately =
            |at: Instant| self.stamp.at.saturating_duration_since(at) < SEARCH_WINDOW;
        let is_trusted = before.confirmed_absences >= REQUIRED_CONFIRMATIONS
            && before.inherited_trust < MAX_INHERITED;
        if is_trusted && before.last_search_at.is_some_and(searched_lately) {
            (self.confirmed_absences, self.last_search_at) =
                (before.confirmed_absences, before.last_search_at);
            self.inherited_trust = before.inherited_trust + 1;
        }
    }

    /// The answer for `name`; `None` if unknown.
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
                let CachedEntry { attr, received_at, .. } = &self.listed[position];
                let (attr, received_at) = (attr.get(), *received_at);
                Some(Lookup::Present { attr, received_at, stamp: self.stamp })
            }
            None => self.complete.then_some(Lookup::NotListed(self.first_batch_at)),
        }
    }

    fn find(&self, name: &Name) -> Option<usize> {
        self.search_name(name).ok().map(|at| self.by_name[at] as usize)
    }

    /// The index of `name` in `by_name`, or where it would be inserted.
    fn search_name(&self, name: &Name) -> std::result::Result<usize, usize> {
        let name = name.as_bytes();
        self.by_name
            .binary_search_by(|position| self.listed[*position as usize].name.as_bytes().cmp(name))
    }

    /// All entries with their overrides, if the listing is complete and no name is unknown.
    pub(crate) fn full(&self) -> Option<FullListing> {
        let is_unknown = |value: &Override| matches!(value, Override::Unknown);
        if !self.complete || self.overrides.values().any(is_unknown) {
            return None;
        }
        let is_present = |(name, value): (&Name, &Override)| match value {
            Override::Present { attr, stamp } => Some(CachedEntry {
                name: name.clone(),
                attr: (*attr).into(),
                received_at: stamp.at,
            }),
            _ => None,
        };
        // Each at its old position, so that the order stays the same.
        let mut all: Vec<CachedEntry> = self
            .listed
            .iter()
            .filter_map(|entry| match self.overrides.get_key_value(&entry.name) {
                Some(value) => is_present(value),
                None => Some(entry.clone()),
            })
            .collect();
        let unlisted = self.overrides.iter().filter(|(name, _)| self.find(name).is_none());
        all.extend(unlisted.filter_map(is_present));
        Some((all, self.stamp))
    }

    /// Whether it reached the end of the directory.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// When it was requested.
    pub(crate) fn stamp(&self) -> RequestStamp {
        self.stamp
    }

    /// Makes `name` unknown, since it was changed after the listing began.
    pub(crate) fn invalidate_name(&mut self, name: Name) {
        self.bytes += NAME_BYTES + name.as_bytes().len();
        self.overrides.insert(name, Override::Unknown);
    }

    /// When the first batch arrived.
    pub(crate) fn first_batch_at(&self) -> Instant {
        self.first_batch_at
    }

    /// Whether it contains directories.
    pub(crate) fn has_directories(&self) -> bool {
        !self.directories[0].is_empty()
    }

    /// The latest mtime of the entries, in seconds of Unix time.
    pub(crate) fn newest_mtime(&self) -> i64 {
        self.newest_mtime
    }

    /// The position of `name` in this order, also if it was removed since; `None` also if the order
    /// is not known.
    pub(crate) fn position(&self, name: &Name, order: Order) -> Option<usize> {
        let by_name = self.search_name(name).ok()?;
        let listed = self.by_name[by_name];
        match order {
            Order::Listing => Some(listed as usize),
            Order::Name => Some(by_name),
            Order::Number => self.by_number.get()?.iter().position(|position| *position == listed),
        }
    }

    /// The entries, if their order by inode number is not known and small enough to compute.
    pub(crate) fn entries_without_number_order(&self) -> Option<Arc<[CachedEntry]>> {
        let wants = self.by_number.get().is_none() && self.listed.len() <= MAX_NUMBERED;
        wants.then(|| self.listed.clone())
    }

    /// Sets the inode numbers of [these entries](CachedListing::entries_without_number_order), one
    /// for each.
    pub(crate) fn set_number_order(&self, numbers: &[u64]) {
        let mut by_number: Box<[u32]> = (0..self.listed.len() as u32).collect();
        by_number.sort_by_key(|position| numbers.get(*position as usize));
        // If another thread was first, it has set the same value.
        let _ = self.by_number.set(by_number);
    }

    /// The existing entries from a position in this order on.
    pub(crate) fn entries_from(
        &self,
        from: usize,
        order: Order,
    ) -> impl Iterator<Item = &CachedEntry> {
        self.present((from..self.listed.len()).map(move |at| self.entry_at(at, order)))
    }

    /// The existing directories from a position in this order on.
    pub(crate) fn directories_from(
        &self,
        from: usize,
        order: Order,
    ) -> impl Iterator<Item = &CachedEntry> {
        let positions = match order {
            Order::Listing => &self.directories[0],
            Order::Name => &self.directories[1],
            Order::Number => self.by_number.get().map_or(&self.directories[0], |all| all),
        };
        let first = match order {
            Order::Number => from.min(positions.len()),
            _ => positions.partition_point(|at| (*at as usize) < from),
        };
        let entry = move |at: &u32| match order {
            Order::Name => self.entry_at(*at as usize, order),
            // A position in `listed`.
            Order::Listing | Order::Number => &self.listed[*at as usize],
        };
        self.present(positions[first..].iter().map(entry).filter(|entry| entry.attr.is_dir()))
    }

    /// The entry at this position of this order; of the listing's, if the order is not known.
    fn entry_at(&self, at: usize, order: Order) -> &CachedEntry {
        let position = match order {
            Order::Listing => at,
            Order::Name => self.by_name[at] as usize,
            Order::Number => self.by_number.get().map_or(at, |by_number| by_number[at] as usize),
        };
        &self.listed[position]
    }

    /// Those of `entries` that were not removed since they were listed.
    fn present<'a>(
        &self,
        entries: impl Iterator<Item = &'a CachedEntry>,
    ) -> impl Iterator<Item = &'a CachedEntry> {
        entries.filter(|entry| match self.overrides.get(&entry.name) {
            None | Some(Override::Present { .. }) => true,
            Some(Override::Unknown | Override::Absent(_)) => false,
        })
    }

    /// Marks it as prefetched.
    pub(crate) fn mark_prefetched(&mut self) {
        self.unused_prefetch = true;
    }
}

/// All entries of a directory, and when they were requested.
pub(crate) type FullListing = (Vec<CachedEntry>, RequestStamp);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Node(Ino),
    Path(RemotePath),
}

/// All cached listings. See the [module](self).
pub(crate) struct DirCache {
    by_key: LruCache<Key, CachedListing>,
    /// Number of listings cached by path.
    by_path_count: usize,
    names: usize,
    bytes: usize,
    /// Upper limit of `bytes`.
    max_bytes: usize,
}

impl DirCache {
    /// Changes the bound. The next listing that is added brings the cache within it.
    pub(crate) fn set_max_bytes(&mut self, bytes: usize) {
        self.max_bytes = bytes.min(MAX_BYTES);
    }

    /// An empty cache of at most `bytes`.
    pub(crate) fn with_max_bytes(bytes: usize) -> DirCache {
        DirCache {
            by_key: LruCache::unbounded(),
            by_path_count: 0,
            names: 0,
            bytes: 0,
            max_bytes: bytes.min(MAX_BYTES),
        }
    }

    /// Caches a listing of the directory `dir`.
    pub(crate) fn insert(&mut self, dir: Ino, listing: CachedListing) {
        self.put(Key::Node(dir), listing);
    }

    /// Caches a listing of the directory at `path`, which has no node.
    pub(crate) fn insert_by_path(&mut self, path: RemotePath, listing: CachedListing) {
        self.put(Key::Path(path), listing);
    }

    /// Removes and returns the listing cached for `path`.
    pub(crate) fn take_by_path(&mut self, path: &RemotePath) -> Option<CachedListing> {
        if self.by_path_count == 0 { None } else { self.take(&Key::Path(path.clone())) }
    }

    /// Whether any listing is cached by path.
    pub(crate) fn has_any_by_path(&self) -> bool {
        self.by_path_count > 0
    }

    /// The number of names in the cache, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.names, self.bytes)
    }

    /// Whether a listing of `dir` is cached.
    pub(crate) fn contains(&self, dir: Ino) -> bool {
        self.by_key.contains(&Key::Node(dir))
    }

    /// Drops all listings cached by path.
    pub(crate) fn clear_by_path(&mut self) {
        if self.by_path_count == 0 {
            return;
        }
        let by_path = |key: &&Key| matches!(key, Key::Path(_));
        let keys: Vec<Key> =
            self.by_key.iter().map(|(key, _)| key).filter(by_path).cloned().collect();
        for key in keys {
            self.take(&key);
        }
    }

    /// The listing of `dir`, which becomes the most recently used.
    pub(crate) fn get(&mut self, dir: Ino) -> Option<&CachedListing> {
        self.by_key.get(&Key::Node(dir))
    }

    /// The listing of `dir`, without a change of the order of use.
    pub(crate) fn peek(&self, dir: Ino) -> Option<&CachedListing> {
        self.by_key.peek(&Key::Node(dir))
    }

    /// The listing cached for `path`, which becomes the most recently used.
    pub(crate) fn get_by_path(&mut self, path: &RemotePath) -> Option<&CachedListing> {
        self.by_key.get(&Key::Path(path.clone()))
    }

    /// Whether the listing of `dir` was prefetched and not used yet. Marks it as used.
    pub(crate) fn take_prefetched(&mut self, dir: Ino) -> bool {
        let listing = self.by_key.peek_mut(&Key::Node(dir));
        listing.is_some_and(|listing| std::mem::take(&mut listing.unused_prefetch))
    }

    pub(crate) fn remove(&mut self, dir: Ino) {
        self.take(&Key::Node(dir));
    }

    /// The server has confirmed that a name which is not in the listing of `dir` is absent.
    pub(crate) fn confirm_absence(&mut self, dir: Ino) {
        if let Some(listing) = self.by_key.peek_mut(&Key::Node(dir)) {
            listing.confirmed_absences = listing.confirmed_absences.saturating_add(1);
            listing.last_search_at = Some(Instant::now());
        }
    }

    /// The listing of `dir` has answered for a name that is not in it; that answer is valid for
    /// `left` out of `lifetime`. Returns, once, whether to refresh the listing now, so that no
    /// caller has to wait for that.
    pub(crate) fn note_search(&mut self, dir: Ino, left: Duration, lifetime: Duration) -> bool {
        let Some(listing) = self.by_key.peek_mut(&Key::Node(dir)) else { return false };
        listing.last_search_at = Some(Instant::now());
        let small = listing.listed.len() <= MAX_REFRESHED_NAMES && listing.created_until.is_none();
        let due = small && left <= lifetime / 4;
        due && !std::mem::replace(&mut listing.is_refreshing, true)
    }

    /// Makes `name` unknown.
    pub(crate) fn invalidate_name(&mut self, dir: Ino, name: &Name) {
        self.set_override(dir, name, Override::Unknown);
    }

    /// `name` is absent since `since`.
    pub(crate) fn set_absent(&mut self, dir: Ino, name: &Name, since: Instant) {
        self.set_override(dir, name, Override::Absent(since));
    }

    /// The server has returned `attr` for `name`.
    pub(crate) fn set_present(&mut self, dir: Ino, name: &Name, attr: &Attr, stamp: RequestStamp) {
        self.set_override(dir, name, Override::Present { attr: *attr, stamp });
    }

    /// A local change in `dir` begins. Must be followed by [`DirCache::end_change`].
    pub(crate) fn begin_change(&mut self, dir: Ino) {
        let Some(listing) = self.by_key.peek_mut(&Key::Node(dir)) else { return };
        let now = Instant::now();
        let is_old = listing.changes_in_flight == 0 && listing.created_until <= Some(now);
        if is_old {
            listing.created_until = None;
        } else {
            listing.changes_in_flight += 1;
        }
    }

    /// A local change in `dir` has ended.
    pub(crate) fn end_change(&mut self, dir: Ino) {
        let Some(listing) = self.by_key.peek_mut(&Key::Node(dir)) else { return };
        // It may have begun before the listing.
        listing.changes_in_flight = listing.changes_in_flight.saturating_sub(1);
        if let Some(until) = &mut listing.created_until {
            *until = Instant::now() + CREATED_FOR;
        }
    }

    fn set_override(&mut self, dir: Ino, name: &Name, what: Override) {
        let Some(listing) = self.by_key.peek_mut(&Key::Node(dir)) else { return };
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
        self.names += listing.listed.len() + listing.overrides.len();
        self.bytes += listing.bytes;
        self.by_path_count += usize::from(matches!(key, Key::Path(_)));
        self.by_key.put(key, listing);
        self.evict();
    }

    fn take(&mut self, key: &Key) -> Option<CachedListing> {
        let listing = self.by_key.pop(key)?;
        self.names -= listing.listed.len() + listing.overrides.len();
        self.bytes -= listing.bytes;
        self.by_path_count -= usize::from(matches!(key, Key::Path(_)));
        Some(listing)
    }

    fn evict(&mut self) {
        while self.names > MAX_NAMES || self.bytes > self.max_bytes {
            let Some((oldest, _)) = self.by_key.peek_lru() else { return };
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
        Attr {
            kind: FileKind::Regular,
            perm: 0,
            size,
            uid: 0,
            gid: 0,
            atime: time,
            mtime: time,
            inode: None,
        }
    }

    fn listing(names: &[&str], complete: bool) -> CachedListing {
        let received_at = Instant::now();
        let entry = |(size, text): (usize, &&str)| CachedEntry {
            name: name(text),
            attr: attr(size as u64).into(),
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
    fn only_a_complete_listing_answers_for_absent_names() {
        let mut dir_cache = DirCache::with_max_bytes(MAX_BYTES);
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
    fn a_change_invalidates_one_name_only() {
        let mut dir_cache = DirCache::with_max_bytes(MAX_BYTES);
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
    fn a_listing_cached_by_path_moves_to_the_node() {
        let mut dir_cache = DirCache::with_max_bytes(MAX_BYTES);
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
        assert_eq!((dir_cache.names, dir_cache.bytes, dir_cache.by_key.len()), (0, 0, 0));
    }

    #[test]
    fn the_least_recently_used_are_evicted_first() {
        let mut dir_cache = DirCache::with_max_bytes(MAX_BYTES);
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
        // A listing that exceeds the bound alone is not cached either.
        let huge = names.repeat(5);
        dir_cache.insert(Ino(9), listing(&huge, true));
        assert!(dir_cache.get(Ino(9)).is_none());
    }
}
