//! Recent observations and changes of names, to find the state of a name before a request whose
//! reply was lost.
//!
//! This module sends no request and answers no call. The newest event decides. An observation that
//! was requested before a change of this mount, and answered after it, may show the state before
//! the change. So observations are ordered by the time of their request, and the changes since are
//! applied to them, which has no effect if they include the changes already. One exception: if a
//! name was renamed away, an observation of its absence does not show its state before the rename.
//!
//! Changes of a file by another of its hard links are not tracked. So names that were linked
//! through this mount are remembered separately: only the kind of their file is known.
//!
//! All parts are bounded, and evict their oldest entries: a name that is changed was nearly always
//! looked up shortly before.

use std::collections::VecDeque;

use base::{Attr, AttrChange, DirEntry, FileKind, Mutex, RemotePath, RenameMode};

use crate::expected_attrs::ExpectedAttrs;

/// Recorded events: about 150 KiB.
const MAX_EVENTS: usize = 1024;

/// Bytes of recorded listing entries with their names, about 16,384 entries: for programs that list
/// a directory and then remove its entries.
const MAX_LISTED_BYTES: usize = 16_384 * 160;

/// Recorded names of files with hard links: about 100 KiB.
const MAX_LINKED: usize = 1024;

/// An observed state of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameState {
    Absent,
    Present(ExpectedAttrs),
}

impl NameState {
    pub(crate) fn present(attr: &Attr) -> NameState {
        NameState::Present(ExpectedAttrs::of(attr))
    }

    pub(crate) fn created(kind: FileKind) -> NameState {
        NameState::Present(ExpectedAttrs::created(kind))
    }
}

#[derive(Debug)]
enum Event {
    Observed(RemotePath, NameState),
    /// Attributes were set.
    SetAttr(RemotePath, AttrChange),
    /// An access list was set, which may have changed the permission bits.
    SetAcl(RemotePath),
    /// The first path, with all paths below it, was renamed to the second.
    Renamed(RemotePath, RemotePath),
    /// The two paths, with all paths below them, exchanged their names.
    Exchanged(RemotePath, RemotePath),
    /// The second path was made a hard link of the first.
    Linked(RemotePath, RemotePath),
}

#[derive(Debug)]
struct Record {
    seq: u64,
    order: Order,
    event: Event,
}

#[derive(Debug)]
struct ListedBatch {
    seq: u64,
    order: Order,
    dir: RemotePath,
    entries: Vec<DirEntry>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct History {
    next: u64,
    records: VecDeque<Record>,
    listings: VecDeque<ListedBatch>,
    listed_bytes: usize,
    /// Names of files that have, or had, several names.
    linked: VecDeque<RemotePath>,
}

impl History {
    /// Adds a name of a file that has, or had, several.
    fn add_linked(&mut self, path: RemotePath) {
        if self.linked.contains(&path) {
            return;
        }
        self.linked.push_back(path);
        if self.linked.len() > MAX_LINKED {
            self.linked.pop_front();
        }
    }

    fn linked_moved(&mut self, from: &RemotePath, to: &RemotePath) {
        // The old names stay: a rename from one name of a file to another one has no effect.
        let moved: Vec<_> = self.linked.iter().filter_map(|path| path.moved(from, to)).collect();
        self.linked.retain(|path| path.moved(to, from).is_none());
        moved.into_iter().for_each(|path| self.add_linked(path));
    }
}

/// A position in the sequence of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seq(u64);

/// The order in which events decide: an observation has the position of its request, a change of
/// this mount the position of its reply, behind all requests that were sent before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order(u64, bool);

impl Order {
    fn requested_at(requested: Seq) -> Order {
        Order(requested.0, false)
    }

    fn changed_at(seq: u64) -> Order {
        Order(seq, true)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct NameHistory(Mutex<History>);

impl NameHistory {
    fn add(&self, event: Event, requested: Option<Seq>) {
        let evicted = {
            let mut state = self.0.lock();
            let seq = state.next;
            state.next += 1;
            let order = requested.map_or(Order::changed_at(seq), Order::requested_at);
            let before = state.records.iter().rposition(|record| record.order <= order);
            state.records.insert(before.map_or(0, |at| at + 1), Record { seq, order, event });
            if state.records.len() > MAX_EVENTS { state.records.pop_front() } else { None }
        };
        drop(evicted);
    }

    /// This mount has made `path` so.
    pub(crate) fn record(&self, path: &RemotePath, found: NameState) {
        if found == NameState::Absent {
            self.0.lock().linked.retain(|linked| linked != path);
        }
        self.add(Event::Observed(path.clone(), found), None);
    }

    /// A request that was sent at `requested` has observed this state.
    pub(crate) fn record_reply(&self, path: &RemotePath, found: NameState, requested: Seq) {
        self.add(Event::Observed(path.clone(), found), Some(requested));
    }

    /// Attributes of `path` were set.
    pub(crate) fn record_setattr(&self, path: &RemotePath, change: AttrChange) {
        self.add(Event::SetAttr(path.clone(), change), None);
    }

    /// An access list of `path` was set.
    pub(crate) fn record_set_acl(&self, path: &RemotePath) {
        self.add(Event::SetAcl(path.clone()), None);
    }

    /// Both paths, with all paths below them, exchanged their names.
    pub(crate) fn record_exchange(&self, one: &RemotePath, other: &RemotePath) {
        {
            let mut state = self.0.lock();
            for (from, to) in [(one, other), (other, one)] {
                let paths: Vec<_> =
                    state.linked.iter().filter_map(|path| path.moved(from, to)).collect();
                paths.into_iter().for_each(|path| state.add_linked(path));
            }
        }
        self.add(Event::Exchanged(one.clone(), other.clone()), None);
    }

    /// `from` was renamed to `to`, with all paths below it.
    pub(crate) fn record_rename(&self, from: &RemotePath, to: &RemotePath) {
        self.0.lock().linked_moved(from, to);
        self.add(Event::Renamed(from.clone(), to.clone()), None);
    }

    /// `new` was made a hard link of `existing`.
    pub(crate) fn record_link(&self, existing: &RemotePath, new: &RemotePath) {
        {
            let mut state = self.0.lock();
            state.add_linked(existing.clone());
            state.add_linked(new.clone());
        }
        self.add(Event::Linked(existing.clone(), new.clone()), None);
    }

    /// Entries of a listing that was begun at `requested`.
    pub(crate) fn record_listing(&self, dir: &RemotePath, entries: &[DirEntry], requested: Seq) {
        let (dir, entries) = (dir.clone(), entries.to_vec());
        let mut evicted = Vec::new();
        {
            let mut state = self.0.lock();
            let seq = state.next;
            state.next += 1;
            let bytes = entries.iter().map(listed_bytes).sum();
            state.listed_bytes += bytes;
            let order = Order::requested_at(requested);
            let before = state.listings.iter().rposition(|batch| batch.order <= order);
            let batch = ListedBatch { seq, order, dir, entries, bytes };
            state.listings.insert(before.map_or(0, |at| at + 1), batch);
            while state.listed_bytes > MAX_LISTED_BYTES
                && let Some(oldest) = state.listings.pop_front()
            {
                state.listed_bytes -= oldest.bytes;
                evicted.push(oldest);
            }
        }
        drop(evicted);
    }

    /// Whether the file at `path` has, or had, other names that were made through this mount.
    pub(crate) fn is_linked(&self, path: &RemotePath) -> bool {
        self.0.lock().linked.contains(path)
    }

    /// A position behind all events so far.
    pub(crate) fn now(&self) -> Seq {
        Seq(self.0.lock().next)
    }

    /// The last state of `path` before `limit`, if it is known. Searches all events.
    pub(crate) fn before(&self, path: &RemotePath, limit: Seq) -> Option<NameState> {
        let state = self.0.lock();
        let mut query = Query::of(path);
        let is_older = |seq| seq < limit.0;
        let mut listings =
            state.listings.iter().rev().filter(|batch| is_older(batch.seq)).peekable();
        for record in state.records.iter().rev().filter(|record| is_older(record.seq)) {
            while let Some(batch) = listings.next_if(|batch| batch.order >= record.order) {
                if let Some(found) = query.apply_batch(batch) {
                    return Some(found);
                }
            }
            match query.apply_event(&record.event) {
                Match::Irrelevant => {}
                Match::State(found) => return Some(found),
                Match::Unknown => return None,
            }
        }
        listings.find_map(|batch| query.apply_batch(batch))
    }
}

/// The memory of an entry in bytes.
fn listed_bytes(entry: &DirEntry) -> usize {
    size_of::<DirEntry>() + entry.name.as_bytes().len()
}

enum Match {
    Irrelevant,
    State(NameState),
    /// Older events are not valid for this name.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RenamedBy {
    Nothing,
    /// The name itself was renamed, or linked: its file existed then.
    Itself,
    /// A directory above it was renamed.
    Ancestor,
}

/// A search through the events, from the newest to the oldest.
struct Query {
    /// The path of the file at this point of the search.
    path: RemotePath,
    /// The rename after which the file had its later path.
    renamed: RenamedBy,
    /// A newer listing of its directory does not contain the name.
    missing: bool,
    /// Attributes that were set since, the newest first; `None` for an access list.
    changes: Vec<Option<AttrChange>>,
}

impl Query {
    fn of(path: &RemotePath) -> Query {
        let (path, renamed) = (path.clone(), RenamedBy::Nothing);
        Query { path, renamed, missing: false, changes: Vec::new() }
    }

    fn with_changes(&self, found: NameState) -> NameState {
        match found {
            NameState::Absent => NameState::Absent,
            NameState::Present(mut attrs) => {
                let changes = self.changes.iter().rev();
                changes.for_each(|change| match change {
                    Some(change) => attrs.set(change, &|_| false),
                    None => attrs.may_have_other_perm(),
                });
                NameState::Present(attrs)
            }
        }
    }

    fn apply_event(&mut self, event: &Event) -> Match {
        match event {
            Event::Observed(path, NameState::Present(_)) if *path == self.path && self.missing => {
                return Match::Unknown;
            }
            // Requested before the reply to the rename: the rename was executed already, because
            // the name must have existed.
            Event::Observed(path, found) if *path == self.path => match (found, self.renamed) {
                (NameState::Absent, RenamedBy::Itself) => {}
                (NameState::Absent, RenamedBy::Ancestor) => return Match::Unknown,
                _ => return Match::State(self.with_changes(*found)),
            },
            Event::SetAttr(path, change) if *path == self.path => {
                self.changes.push(Some(*change));
            }
            Event::SetAcl(path) if *path == self.path => self.changes.push(None),
            Event::Exchanged(one, other) => {
                if let Some(before) = RenameMode::Exchange.moved(&self.path, one, other) {
                    let is_itself = self.path == *one || self.path == *other;
                    self.continue_as(
                        before,
                        if is_itself { RenamedBy::Itself } else { RenamedBy::Ancestor },
                    );
                }
            }
            Event::Linked(existing, new) if *new == self.path => {
                self.continue_as(existing.clone(), RenamedBy::Itself);
            }
            Event::Renamed(from, to) => {
                if let Some(before) = self.path.moved(to, from) {
                    let is_itself = self.path == *to;
                    self.continue_as(
                        before,
                        if is_itself { RenamedBy::Itself } else { RenamedBy::Ancestor },
                    );
                } else if self.path == *from {
                    return Match::State(NameState::Absent);
                } else if self.path.moved(from, to).is_some() {
                    return Match::Unknown;
                }
            }
            Event::Observed(..) | Event::SetAttr(..) | Event::SetAcl(..) | Event::Linked(..) => {}
        }
        Match::Irrelevant
    }

    fn continue_as(&mut self, path: RemotePath, renamed: RenamedBy) {
        (self.path, self.renamed) = (path, renamed);
        self.missing = false;
    }

    fn apply_batch(&mut self, batch: &ListedBatch) -> Option<NameState> {
        let (dir, name) = (self.path.parent()?, self.path.file_name()?);
        if batch.dir != dir {
            return None;
        }
        match batch.entries.iter().find(|entry| entry.name == name) {
            Some(entry) => Some(self.with_changes(NameState::present(entry.attr.as_ref()?))),
            None => {
                self.missing = true;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Name, Timestamp};
    use testkit::path;

    fn attr(size: u64) -> Attr {
        let time = Timestamp::from_secs(1);
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o644, size, uid: 0, gid: 0, atime: time, mtime: time, inode: None }
    }

    fn listing(names: &[&str], size: u64) -> Vec<DirEntry> {
        let name = |text: &&str| Name::new(text.as_bytes()).unwrap();
        let entry = |text| DirEntry { name: name(text), attr: Some(attr(size)) };
        names.iter().map(entry).collect()
    }

    fn list(history: &NameHistory, dir: &RemotePath, entries: &[DirEntry]) {
        history.record_listing(dir, entries, history.now());
    }

    fn of(history: &NameHistory, path: &RemotePath) -> Option<NameState> {
        history.before(path, history.now())
    }

    #[test]
    fn later_events_are_ignored() {
        let history = NameHistory::default();
        history.record(&path("d/a"), NameState::Absent);
        let limit = history.now();
        history.record(&path("d/a"), NameState::present(&attr(1)));
        list(&history, &path("d"), &listing(&["a", "b"], 2));
        assert_eq!(history.before(&path("d/a"), limit), Some(NameState::Absent));
        assert_eq!(history.before(&path("d/b"), limit), None);
        assert_eq!(of(&history, &path("d/a")), Some(NameState::present(&attr(2))));
    }

    #[test]
    fn the_newest_event_decides() {
        let history = NameHistory::default();
        assert_eq!(of(&history, &path("d/a")), None);
        history.record(&path("d/a"), NameState::present(&attr(1)));
        list(&history, &path("d"), &listing(&["a", "b"], 2));
        assert_eq!(of(&history, &path("d/a")), Some(NameState::present(&attr(2))));
        history.record(&path("d/a"), NameState::Absent);
        assert_eq!(of(&history, &path("d/a")), Some(NameState::Absent));
        assert_eq!(of(&history, &path("d/b")), Some(NameState::present(&attr(2))));
        assert_eq!(of(&history, &path("b")), None);
    }

    #[test]
    fn a_renamed_directory_keeps_the_states_below_it() {
        let history = NameHistory::default();
        history.record(&path("d"), NameState::created(FileKind::Directory));
        list(&history, &path("d"), &listing(&["b"], 2));
        history.record(&path("d/a"), NameState::present(&attr(1)));
        history.record(&path("e/a"), NameState::present(&attr(3)));
        history.record_rename(&path("d"), &path("e"));
        assert_eq!(of(&history, &path("d")), Some(NameState::Absent));
        assert_eq!(of(&history, &path("e")), Some(NameState::created(FileKind::Directory)));
        assert_eq!(of(&history, &path("e/a")), Some(NameState::present(&attr(1))));
        assert_eq!(of(&history, &path("e/b")), Some(NameState::present(&attr(2))));
        assert_eq!(of(&history, &path("d/a")), None);
        // The replaced directory is gone with its entries.
        history.record(&path("f/z"), NameState::present(&attr(4)));
        history.record_rename(&path("e"), &path("f"));
        assert_eq!(of(&history, &path("f/z")), None);
    }

    #[test]
    fn hard_links_and_set_attributes_are_applied() {
        let history = NameHistory::default();
        history.record(&path("a"), NameState::present(&attr(1)));
        history
            .record_setattr(&path("a"), AttrChange { perm: Some(0o600), ..AttrChange::default() });
        history.record_link(&path("a"), &path("b"));
        let Some(NameState::Present(attrs)) = of(&history, &path("b")) else {
            panic!("it is known")
        };
        assert!(attrs.matches(&Attr { perm: 0o600, ..attr(1) }));
        assert!(!attrs.matches(&attr(1)));
    }

    #[test]
    fn a_name_missing_in_a_newer_listing_is_unknown() {
        let history = NameHistory::default();
        history.record(&path("d/a"), NameState::present(&attr(1)));
        list(&history, &path("d"), &listing(&["b"], 2));
        assert_eq!(of(&history, &path("d/a")), None);
        // A listing consists of batches, and only one of them contains the name.
        list(&history, &path("d"), &listing(&["a"], 3));
        list(&history, &path("d"), &listing(&["c"], 3));
        assert_eq!(of(&history, &path("d/a")), Some(NameState::present(&attr(3))));
    }

    /// Replies arrive in another order than the requests, and than the changes.
    #[test]
    fn a_reply_from_before_a_change_does_not_undo_it() {
        let history = NameHistory::default();
        let requested = history.now();
        history.record(&path("d/b"), NameState::present(&attr(2)));
        history.record_rename(&path("d/b"), &path("d/a"));
        history.record_setattr(
            &path("d/a"),
            AttrChange { perm: Some(0o600), ..AttrChange::default() },
        );
        let now = NameState::present(&Attr { perm: 0o600, ..attr(2) });
        history.record_reply(&path("d/a"), NameState::present(&attr(1)), requested);
        assert_eq!(of(&history, &path("d/a")), Some(now));
        history.record_listing(&path("d"), &listing(&["a", "b"], 1), requested);
        assert_eq!(of(&history, &path("d/a")), Some(now));
        assert_eq!(of(&history, &path("d/b")), Some(NameState::Absent));
        // An observation that was requested later decides.
        history.record_reply(&path("d/a"), NameState::present(&attr(3)), history.now());
        assert_eq!(of(&history, &path("d/a")), Some(NameState::present(&attr(3))));
    }

    /// An lstat of the old name that is answered after the rename does not show the state before
    /// it.
    #[test]
    fn a_renamed_name_existed_before() {
        let history = NameHistory::default();
        history.record(&path("d/a"), NameState::present(&attr(1)));
        let requested = history.now();
        history.record_reply(&path("d/a"), NameState::Absent, requested);
        history.record_rename(&path("d/a"), &path("d/b"));
        assert_eq!(of(&history, &path("d/b")), Some(NameState::present(&attr(1))));
        let requested = history.now();
        history.record_reply(&path("d/x"), NameState::Absent, requested);
        history.record_rename(&path("d"), &path("e"));
        assert_eq!(of(&history, &path("e/x")), None, "it may have gone with the directory");
    }

    #[test]
    fn names_that_were_linked_are_remembered() {
        let history = NameHistory::default();
        history.record_link(&path("d/a"), &path("d/b"));
        history.record_rename(&path("d"), &path("e"));
        history.record(&path("e/a"), NameState::Absent);
        assert!(history.is_linked(&path("e/b")) && !history.is_linked(&path("e/a")));
        history.record_rename(&path("x"), &path("e/b"));
        assert!(!history.is_linked(&path("e/b")), "another file has its name");
        for seq in 0..MAX_LINKED {
            history.record_link(&path("f"), &path(&format!("n{seq}")));
        }
        assert_eq!(history.0.lock().linked.len(), MAX_LINKED);
    }

    #[test]
    fn all_parts_are_bounded() {
        let history = NameHistory::default();
        for seq in 0..MAX_EVENTS + 10 {
            history.record(&path(&format!("n{seq}")), NameState::Absent);
        }
        assert_eq!(of(&history, &path("n0")), None);
        assert_eq!(history.0.lock().records.len(), MAX_EVENTS);
        let names: Vec<String> = (0..100).map(|seq| seq.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for seq in 0..1000 {
            list(&history, &path(&format!("d{seq}")), &listing(&names, 1));
        }
        assert!(history.0.lock().listed_bytes <= MAX_LISTED_BYTES);
        assert_eq!(of(&history, &path("d0/5")), None);
        assert!(of(&history, &path("d999/5")).is_some());
    }

    #[test]
    fn listings_are_bounded_in_bytes() {
        let history = NameHistory::default();
        for seq in 0..5_000 {
            let name = format!("{seq:04}{}", "x".repeat(1_000));
            let name = base::Name::new(name.as_bytes()).unwrap();
            history.record_listing(&path("d"), &[DirEntry { name, attr: None }], history.now());
        }
        let kept: usize = history.0.lock().listings.iter().map(|batch| batch.entries.len()).sum();
        assert!((1_000..=MAX_LISTED_BYTES / 1_000).contains(&kept), "{kept}");
    }
}
