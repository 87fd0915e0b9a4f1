//! Listings that were just read, and are about to be written to the store.
//!
//! Writing a listing takes as long as reading ten files, and a program that lists a tree reads its
//! files next. So a listing is written in the background, as contents are
//! ([`write_behind`](super::write_behind)), and is valid from this table until then. Forgetting
//! applies here, too: a listing that is no longer in the table is not written.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Mutex, RemotePath};

use super::changes::Generation;
use crate::index::directory::Directory;
use crate::index::record::Record;
use crate::store::shared::Budget;
use crate::{KnownAttr, Listing, SourceId};

/// Bound on the entries of all pending listings, including those that were forgotten meanwhile:
/// some 60 MiB. A listing beyond it is written at once.
const MAX_ENTRIES: u64 = 200_000;

/// A listing of a directory.
pub(crate) struct PendingListing {
    pub(crate) source: SourceId,
    pub(crate) path: RemotePath,
    /// When it was requested, in the order of the changes made here.
    pub(crate) generation: Generation,
    pub(crate) listing: Listing,
    /// The listing as a look-up table by name, with what was seen of its names after it began.
    directory: Directory,
    /// The entries of all pending listings, of which this one has its share until it is dropped.
    entry_count: Arc<Budget>,
}

/// The share of the bound that a listing takes: that of some entries if it is empty.
fn weight(listing: &Listing) -> u64 {
    8 + listing.entries.len() as u64
}

impl Drop for PendingListing {
    fn drop(&mut self) {
        self.entry_count.give_back(weight(&self.listing));
    }
}

type ListingMap = HashMap<RemotePath, Arc<PendingListing>>;

/// See the [module](self). Clones share one state.
#[derive(Clone, Default)]
pub(crate) struct PendingListings {
    listings: Arc<Mutex<ListingMap>>,
    entry_count: Arc<Budget>,
}

impl PendingListings {
    /// Adds a listing, which replaces an older one. `recorded` are the attributes in the store that
    /// it does not replace. Beyond the bound it is returned, and the directory has no pending
    /// listing.
    pub(crate) fn add(
        &self,
        source: SourceId,
        path: RemotePath,
        generation: Generation,
        listing: Listing,
        recorded: Vec<(Vec<u8>, KnownAttr)>,
    ) -> Result<Arc<PendingListing>, Listing> {
        if !self.entry_count.take(weight(&listing), MAX_ENTRIES) {
            self.listings.lock().remove(&path);
            return Err(listing);
        }
        let mut directory = Directory::default();
        recorded.into_iter().for_each(|(name, known)| directory.add(Record::Attr(name, known)));
        directory.add(Record::Listing(listing.clone()));
        let entry_count = self.entry_count.clone();
        let pending =
            Arc::new(PendingListing { source, path, generation, listing, directory, entry_count });
        self.listings.lock().insert(pending.path.clone(), pending.clone());
        Ok(pending)
    }

    /// Whether it is still in the table.
    pub(crate) fn is_valid(&self, pending: &Arc<PendingListing>) -> bool {
        self.listings.lock().get(&pending.path).is_some_and(|current| Arc::ptr_eq(current, pending))
    }

    /// Removes a listing that was written to the store.
    pub(crate) fn remove_written(&self, pending: &Arc<PendingListing>) {
        let mut listings = self.listings.lock();
        if listings.get(&pending.path).is_some_and(|current| Arc::ptr_eq(current, pending)) {
            listings.remove(&pending.path);
        }
    }

    /// The attributes of `path` that were seen last, if the listing of its directory is pending;
    /// `Some(None)` if it lacks the name. The listing is written before newer ones are
    /// recorded.
    pub(crate) fn attr(&self, source: &SourceId, path: &RemotePath) -> Option<Option<KnownAttr>> {
        let pending = self.get(source, &path.parent()?)?;
        Some(pending.directory.attr(path.file_name()?.as_bytes()))
    }

    /// Whether the pending listing of its directory contains the name of `path`.
    pub(crate) fn lists(&self, source: &SourceId, path: &RemotePath) -> Option<bool> {
        self.get(source, &path.parent()?)?.directory.lists(path.file_name()?.as_bytes())
    }

    /// The pending listing of the directory `path`.
    pub(crate) fn listing(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        Some(self.get(source, path)?.listing.clone())
    }

    /// The pending listing of the directory `path`, to be written.
    pub(crate) fn get(&self, source: &SourceId, path: &RemotePath) -> Option<Arc<PendingListing>> {
        self.listings.lock().get(path).filter(|pending| pending.source == *source).cloned()
    }

    /// Forgets `path` and all below it, and the listing of its directory.
    pub(crate) fn forget(&self, path: &RemotePath) {
        let parent = path.parent();
        self.listings.lock().retain(|at, _| !at.is_within(path) && Some(at) != parent.as_ref());
    }

    /// Forgets the attributes of `path`, and nothing below it.
    pub(crate) fn forget_entry(&self, path: &RemotePath) {
        if let Some(parent) = path.parent() {
            self.listings.lock().remove(&parent);
        }
    }

    /// Forgets the listing of the directory `path`, and its own attributes.
    pub(crate) fn forget_listing(&self, path: &RemotePath) {
        let mut listings = self.listings.lock();
        listings.remove(path);
        if let Some(parent) = path.parent() {
            listings.remove(&parent);
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
            inode: None,
        };
        let entry =
            |name: &&str| DirEntry { name: Name::new(name.as_bytes()).unwrap(), attr: Some(attr) };
        let entries = names.iter().map(entry).collect::<Vec<_>>().into();
        Listing { entries, seen_at: Timestamp::now() }
    }

    fn add(
        pending_listings: &PendingListings,
        dir: &str,
        names: &[&str],
    ) -> Result<Arc<PendingListing>, Listing> {
        let generation = Changes::new(std::time::Duration::ZERO).generation();
        let source = SourceId::new(b"a");
        pending_listings.add(source, path(dir), generation, listing(names), Vec::new())
    }

    #[test]
    fn a_pending_listing_is_valid_until_it_is_written_or_forgotten() {
        let (pending_listings, source) = (PendingListings::default(), SourceId::new(b"a"));
        let first = add(&pending_listings, "d", &["f"]).unwrap();
        let attr = |at: &str| pending_listings.attr(&source, &path(at));
        assert_eq!(attr("d/f").unwrap().unwrap().attr.size, 1);
        assert_eq!(attr("d/g"), Some(None), "the listing says that there is none");
        assert_eq!(attr("e/g"), None);
        assert_eq!(pending_listings.lists(&source, &path("d/g")), Some(false));
        assert_eq!(pending_listings.lists(&source, &path("e/g")), None);
        assert_eq!(
            pending_listings.lists(&SourceId::new(b"b"), &path("d/g")),
            None,
            "of another source"
        );
        assert!(pending_listings.listing(&source, &path("d")).is_some());
        let second = add(&pending_listings, "d", &["f", "g"]).unwrap();
        assert!(!pending_listings.is_valid(&first));
        pending_listings.remove_written(&first);
        assert_eq!(
            pending_listings.lists(&source, &path("d/g")),
            Some(true),
            "the later one counts"
        );
        pending_listings.remove_written(&second);
        assert!(pending_listings.listing(&source, &path("d")).is_none());
    }

    #[test]
    fn what_was_seen_during_a_listing_is_looked_up_in_it() {
        let (pending_listings, source) = (PendingListings::default(), SourceId::new(b"a"));
        let listed = listing(&["f", "g", "h"]);
        let attr = listed.entries[0].attr.unwrap();
        let seen = |secs| KnownAttr { attr, seen_at: Timestamp::from_secs(secs) };
        let (older, newer) = (seen(0), seen(i64::MAX));
        let recorded = [("f", older), ("g", newer), ("x", older), ("y", newer)];
        let recorded = recorded.map(|(name, known)| (name.as_bytes().to_vec(), known)).to_vec();
        let generation = Changes::new(std::time::Duration::ZERO).generation();
        let known = KnownAttr { attr, seen_at: listed.seen_at };
        assert!(pending_listings.add(source, path("d"), generation, listed, recorded).is_ok());
        for (name, expected) in [
            ("d/f", Some(known)),
            ("d/g", Some(newer)),
            ("d/h", Some(known)),
            ("d/x", None),
            ("d/y", Some(newer)),
        ] {
            assert_eq!(pending_listings.attr(&source, &path(name)), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_forgotten_pending_listing_is_not_valid() {
        let left = |forget: &dyn Fn(&PendingListings)| {
            let pending_listings = PendingListings::default();
            let all = ["", "d", "d/e", "d/e/f", "x"]
                .map(|dir| add(&pending_listings, dir, &["n"]).unwrap());
            forget(&pending_listings);
            let left = all.iter().filter(|pending| pending_listings.is_valid(pending));
            left.map(|pending| pending.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            left(&|pending_listings| pending_listings.forget(&path("d/e"))),
            [path(""), path("x")]
        );
        assert_eq!(
            left(&|pending_listings| pending_listings.forget_entry(&path("d/e"))),
            [path(""), path("d/e"), path("d/e/f"), path("x")]
        );
        let left = left(&|pending_listings| pending_listings.forget_listing(&path("d/e")));
        assert_eq!(left, [path(""), path("d/e/f"), path("x")]);
    }

    #[test]
    fn those_that_live_are_bounded() {
        let pending_listings = PendingListings::default();
        let names: Vec<String> = (0..MAX_ENTRIES - 7).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(add(&pending_listings, "d", &names).is_err());
        let first = add(&pending_listings, "d", &names[1..]).unwrap();
        assert!(add(&pending_listings, "d", &[]).is_err(), "the one that it would replace waits");
        assert!(!pending_listings.is_valid(&first), "which does not count any more");
        drop(first);
        assert!(add(&pending_listings, "d", &names[1..]).is_ok());
    }
}
