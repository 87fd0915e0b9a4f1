//! Listings that were read a moment ago, and are on their way to the store.
//!
//! To write one takes as long as to read ten files, and whoever lists a tree reads its files next.
//! So a listing is written behind the readers' backs, as contents are ([`filling`](super::filling)),
//! and counts from here until then. What is forgotten is forgotten here, too: a listing that is not
//! here any more when its turn comes is not written.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::RemotePath;

use super::changes::Tick;
use crate::index::directory::Directory;
use crate::index::record::Record;
use crate::{KnownAttr, Listing, SourceId};

/// Entries of all listings that wait, at most, of those too that were forgotten meanwhile: some
/// 60 MiB. What does not fit is written at once.
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
    /// What all of them take, of which this has its part as long as it lives.
    taken: Arc<AtomicUsize>,
}

/// What a listing takes of the bound: as much as some entries if it has none.
fn weight(listing: &Listing) -> usize {
    8 + listing.entries.len()
}

impl Drop for Note {
    fn drop(&mut self) {
        self.taken.fetch_sub(weight(&self.listing), Ordering::Relaxed);
    }
}

type Notes = HashMap<RemotePath, Arc<Note>>;

/// See the [module](self). Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Fresh {
    notes: Arc<Mutex<Notes>>,
    taken: Arc<AtomicUsize>,
}

impl Fresh {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a listing count from now on, in the place of an older one. Without room nothing of that
    /// directory does, and the listing is given back.
    pub(crate) fn add(
        &self,
        source: SourceId,
        path: RemotePath,
        tick: Tick,
        listing: Listing,
    ) -> Result<Arc<Note>, Listing> {
        let weight = weight(&listing);
        if self.taken.fetch_add(weight, Ordering::Relaxed) + weight > MAX_ENTRIES {
            self.taken.fetch_sub(weight, Ordering::Relaxed);
            self.lock().remove(&path);
            return Err(listing);
        }
        let mut directory = Directory::default();
        directory.add(Record::Listing(listing.clone()));
        let taken = self.taken.clone();
        let note = Arc::new(Note { source, path, tick, listing, directory, taken });
        self.lock().insert(note.path.clone(), note.clone());
        Ok(note)
    }

    /// Whether it still counts.
    pub(crate) fn has(&self, note: &Arc<Note>) -> bool {
        self.lock().get(&note.path).is_some_and(|here| Arc::ptr_eq(here, note))
    }

    /// It is in the store: from now on it counts there.
    pub(crate) fn written(&self, note: &Arc<Note>) {
        let mut notes = self.lock();
        if notes.get(&note.path).is_some_and(|here| Arc::ptr_eq(here, note)) {
            notes.remove(&note.path);
        }
    }

    /// What the listing of its directory says of the attributes of `path`, if it is here: it is
    /// later than all that is recorded of them, also if it does not have the name.
    pub(crate) fn attr(&self, source: &SourceId, path: &RemotePath) -> Option<Option<KnownAttr>> {
        self.above(source, path, |directory, name| Some(directory.attr(name)))
    }

    /// Whether the listing of its directory has the name of `path`.
    pub(crate) fn lists(&self, source: &SourceId, path: &RemotePath) -> Option<bool> {
        self.above(source, path, Directory::lists)
    }

    /// The listing of the directory `path`.
    pub(crate) fn listing(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        Some(self.of(source, path)?.listing.clone())
    }

    /// The listing of the directory `path`, to be written.
    pub(crate) fn of(&self, source: &SourceId, path: &RemotePath) -> Option<Arc<Note>> {
        self.lock().get(path).filter(|note| note.source == *source).cloned()
    }

    fn above<T>(
        &self,
        source: &SourceId,
        path: &RemotePath,
        look: impl FnOnce(&Directory, &[u8]) -> Option<T>,
    ) -> Option<T> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let note = self.of(source, &parent)?;
        look(&note.directory, name.as_bytes())
    }

    /// Forgets what is said of `path` and of all below it, and which names its directory has.
    pub(crate) fn forget(&self, path: &RemotePath) {
        let parent = path.parent();
        self.lock().retain(|at, _| !at.is_within(path) && Some(at) != parent.as_ref());
    }

    /// Forgets which names the directory `path` has, and its own attributes.
    pub(crate) fn forget_listing(&self, path: &RemotePath) {
        let mut notes = self.lock();
        notes.remove(path);
        if let Some(parent) = path.parent() {
            notes.remove(&parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Attr, DirEntry, FileKind, Name, Timestamp};
    use testkit::path;

    use super::super::changes::Changes;
    use super::*;

    fn listing(names: &[&str]) -> Listing {
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
        Listing { attr: None, entries, seen_at: Timestamp::now() }
    }

    fn add(fresh: &Fresh, dir: &str, names: &[&str]) -> Result<Arc<Note>, Listing> {
        let tick = Changes::default().tick();
        fresh.add(SourceId::new(b"a"), path(dir), tick, listing(names))
    }

    #[test]
    fn a_listing_counts_until_it_is_written_or_forgotten() {
        let (fresh, source) = (Fresh::default(), SourceId::new(b"a"));
        let first = add(&fresh, "d", &["f"]).unwrap();
        assert_eq!(fresh.attr(&source, &path("d/f")).unwrap().unwrap().attr.size, 1);
        assert_eq!(fresh.attr(&source, &path("d/g")), Some(None), "it says that there is none");
        assert_eq!(fresh.attr(&source, &path("e/g")), None);
        assert_eq!(fresh.lists(&source, &path("d/g")), Some(false));
        assert_eq!(fresh.lists(&source, &path("e/g")), None);
        assert_eq!(fresh.lists(&SourceId::new(b"b"), &path("d/g")), None, "of another source");
        assert!(fresh.listing(&source, &path("d")).is_some());
        let second = add(&fresh, "d", &["f", "g"]).unwrap();
        assert!(!fresh.has(&first));
        fresh.written(&first);
        assert_eq!(fresh.lists(&source, &path("d/g")), Some(true), "the later one counts");
        fresh.written(&second);
        assert!(fresh.listing(&source, &path("d")).is_none());
    }

    #[test]
    fn what_is_forgotten_does_not_count() {
        let left = |forget: &dyn Fn(&Fresh)| {
            let fresh = Fresh::default();
            let all = ["", "d", "d/e", "d/e/f", "x"].map(|dir| add(&fresh, dir, &["n"]).unwrap());
            forget(&fresh);
            let left = all.iter().filter(|note| fresh.has(note));
            left.map(|note| note.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(left(&|fresh| fresh.forget(&path("d/e"))), [path(""), path("x")]);
        let left = left(&|fresh| fresh.forget_listing(&path("d/e")));
        assert_eq!(left, [path(""), path("d/e/f"), path("x")]);
    }

    #[test]
    fn those_that_live_are_bounded() {
        let fresh = Fresh::default();
        let names: Vec<String> = (0..MAX_ENTRIES - 7).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(add(&fresh, "d", &names).is_err());
        let first = add(&fresh, "d", &names[1..]).unwrap();
        assert!(add(&fresh, "d", &[]).is_err(), "the one that it would replace waits");
        assert!(!fresh.has(&first), "which does not count any more");
        drop(first);
        assert!(add(&fresh, "d", &names[1..]).is_ok());
    }
}
