//! Listings that were read a moment ago, and are on their way to the store.
//!
//! To write one takes as long as to read ten files, and whoever lists a tree reads its files next.
//! So a listing is written behind the readers' backs, as contents are ([`filling`](super::filling)),
//! and counts from here until then. What is forgotten is forgotten here, too: a listing that is not
//! here any more when its turn comes is not written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::RemotePath;

use super::changes::Tick;
use crate::index::directory::Directory;
use crate::index::record::Record;
use crate::{KnownAttr, Listing, SourceId};

/// Entries of all listings here, at most: some 60 MiB. What does not fit is written at once.
const MAX_ENTRIES: usize = 200_000;

/// A listing of a directory.
pub(crate) struct Note {
    pub(crate) source: SourceId,
    pub(crate) path: RemotePath,
    /// When it was asked for, in the order of the changes made here.
    pub(crate) tick: Tick,
    pub(crate) listing: Listing,
    /// The same, to be looked into by name.
    directory: Directory,
}

impl Note {
    pub(crate) fn new(source: SourceId, path: RemotePath, tick: Tick, listing: Listing) -> Note {
        let mut directory = Directory::default();
        directory.add(Record::Listing(listing.clone()));
        Note { source, path, tick, listing, directory }
    }

    /// What it takes of the bound: a directory without entries takes memory, too.
    fn weight(&self) -> usize {
        1 + self.listing.entries.len()
    }
}

#[derive(Default)]
struct State {
    notes: HashMap<RemotePath, Arc<Note>>,
    weight: usize,
}

/// See the [module](self). Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Fresh(Arc<Mutex<State>>);

impl Fresh {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it count from now on, in the place of an older one; `false` where there is no room.
    pub(crate) fn add(&self, note: Arc<Note>) -> bool {
        let mut state = self.lock();
        state.remove(&note.path);
        if state.weight + note.weight() > MAX_ENTRIES {
            return false;
        }
        state.weight += note.weight();
        state.notes.insert(note.path.clone(), note);
        true
    }

    /// Whether it still counts.
    pub(crate) fn has(&self, note: &Arc<Note>) -> bool {
        self.lock().notes.get(&note.path).is_some_and(|here| Arc::ptr_eq(here, note))
    }

    /// It is in the store: from now on it counts there.
    pub(crate) fn written(&self, note: &Arc<Note>) {
        let mut state = self.lock();
        if state.notes.get(&note.path).is_some_and(|here| Arc::ptr_eq(here, note)) {
            state.remove(&note.path);
        }
    }

    /// The attributes that the listing of its directory gives `path`.
    pub(crate) fn attr(&self, source: &SourceId, path: &RemotePath) -> Option<KnownAttr> {
        self.above(source, path, |directory, name| directory.attr(name))
    }

    /// Whether the listing of its directory has the name of `path`.
    pub(crate) fn lists(&self, source: &SourceId, path: &RemotePath) -> Option<bool> {
        self.above(source, path, Directory::lists)
    }

    /// The listing of the directory `path`.
    pub(crate) fn listing(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        let note = self.lock().notes.get(path).filter(|note| note.source == *source)?.clone();
        Some(note.listing.clone())
    }

    fn above<T>(
        &self,
        source: &SourceId,
        path: &RemotePath,
        look: impl FnOnce(&Directory, &[u8]) -> Option<T>,
    ) -> Option<T> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let note = self.lock().notes.get(&parent).filter(|note| note.source == *source)?.clone();
        look(&note.directory, name.as_bytes())
    }

    /// Forgets what is said of `path` and of all below it, and which names its directory has.
    pub(crate) fn forget(&self, path: &RemotePath) {
        let mut state = self.lock();
        if state.notes.is_empty() {
            return;
        }
        let parent = path.parent();
        let concerned = |at: &&RemotePath| at.is_within(path) || Some(*at) == parent.as_ref();
        let gone: Vec<_> = state.notes.keys().filter(concerned).cloned().collect();
        gone.iter().for_each(|path| state.remove(path));
    }

    /// Forgets which names the directory `path` has, and its own attributes.
    pub(crate) fn forget_listing(&self, path: &RemotePath) {
        let mut state = self.lock();
        state.remove(path);
        if let Some(parent) = path.parent() {
            state.remove(&parent);
        }
    }
}

impl State {
    fn remove(&mut self, path: &RemotePath) {
        if let Some(note) = self.notes.remove(path) {
            self.weight -= note.weight();
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Attr, DirEntry, FileKind, Name, Timestamp};
    use testkit::path;

    use super::super::changes::Changes;
    use super::*;

    fn note(dir: &str, names: &[&str]) -> Arc<Note> {
        let attr = Attr {
            kind: FileKind::Regular,
            perm: 0o644,
            size: 1,
            uid: 0,
            gid: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
        };
        let entry =
            |name: &&str| DirEntry { name: Name::new(name.as_bytes()).unwrap(), attr: Some(attr) };
        let entries = names.iter().map(entry).collect::<Vec<_>>().into();
        let listing = Listing { attr: None, entries, seen_at: Timestamp::now() };
        Arc::new(Note::new(SourceId::new(b"a"), path(dir), Changes::default().tick(), listing))
    }

    #[test]
    fn a_listing_counts_until_it_is_written_or_forgotten() {
        let (fresh, source) = (Fresh::default(), SourceId::new(b"a"));
        let first = note("d", &["f"]);
        assert!(fresh.add(first.clone()));
        assert_eq!(fresh.attr(&source, &path("d/f")).unwrap().attr.size, 1);
        assert_eq!(fresh.lists(&source, &path("d/g")), Some(false));
        assert_eq!(fresh.lists(&source, &path("e/g")), None);
        assert_eq!(fresh.lists(&SourceId::new(b"b"), &path("d/g")), None, "of another source");
        assert!(fresh.listing(&source, &path("d")).is_some());
        let second = note("d", &["f", "g"]);
        assert!(fresh.add(second.clone()));
        assert!(!fresh.has(&first));
        fresh.written(&first);
        assert_eq!(fresh.lists(&source, &path("d/g")), Some(true), "the later one counts");
        fresh.written(&second);
        assert!(fresh.listing(&source, &path("d")).is_none());
        assert_eq!(fresh.lock().weight, 0);
    }

    #[test]
    fn what_is_forgotten_does_not_count() {
        let fresh = Fresh::default();
        let all = ["", "d", "d/e", "d/e/f", "x"].map(|dir| note(dir, &["n"]));
        let left = |forget: &dyn Fn()| {
            all.iter().for_each(|note| assert!(fresh.add(note.clone())));
            forget();
            let left = all.iter().filter(|note| fresh.has(note));
            left.map(|note| note.path.to_string()).collect::<Vec<_>>()
        };
        let none = [path("").to_string(), path("x").to_string()];
        assert_eq!(left(&|| fresh.forget(&path("d/e"))), none);
        let below = [path("d/e/f").to_string(), path("x").to_string(), path("").to_string()];
        let mut of_names = left(&|| fresh.forget_listing(&path("d/e")));
        of_names.sort();
        let mut expected = below.to_vec();
        expected.sort();
        assert_eq!(of_names, expected);
    }

    #[test]
    fn they_are_bounded() {
        let fresh = Fresh::default();
        let names: Vec<String> = (0..MAX_ENTRIES).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(!fresh.add(note("d", &names)));
        assert!(fresh.add(note("d", &names[1..])));
        assert!(!fresh.add(note("e", &[])));
    }
}
