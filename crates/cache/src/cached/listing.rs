//! Open directories, and what is recorded of them.
//!
//! A listing is recorded when it came to its end, unless something was changed here in that
//! directory since it began. Only such a listing says that a name is absent. It counts at once, and
//! is written later ([`fresh`](super::fresh)).

use std::sync::{Arc, Mutex, PoisonError};

use base::{Dh, DirEntry, Errno, Remote, RemotePath, Result, Table, Timestamp};

use super::names::{Asked, same_but_atime};
use super::{Core, Standing};
use crate::{Listing, SourceId};

/// Entries given at once of what is known.
const BATCH: usize = 512;

/// Entries of a directory that is recorded, at most: some 40 MiB of memory while it is listed.
const MAX_ENTRIES: usize = 200_000;

/// An open directory.
enum Open {
    /// Listed by the remote.
    There(There),
    /// Known: what was not given yet begins at the second.
    Here(Arc<[DirEntry]>, Mutex<usize>),
}

struct There {
    dh: Dh,
    path: RemotePath,
    asked: Asked,
    began: Timestamp,
    /// What it has given so far; `None` when it is not to be recorded.
    given: Mutex<Option<Vec<DirEntry>>>,
    inner: Arc<dyn Remote>,
}

impl Drop for There {
    fn drop(&mut self) {
        self.inner.closedir(self.dh);
    }
}

/// All open directories, bounded by those above, who close them.
pub(crate) struct Listings {
    table: Table<Open>,
    inner: Arc<dyn Remote>,
}

impl Listings {
    pub(crate) fn new(inner: Arc<dyn Remote>) -> Listings {
        Listings { table: Table::default(), inner }
    }

    fn add(&self, open: Open) -> Dh {
        Dh(self.table.add(open))
    }

    fn get(&self, dh: Dh) -> Result<Arc<Open>> {
        self.table.get(dh.0)
    }

    pub(crate) fn close(&self, dh: Dh) {
        self.table.remove(dh.0);
    }
}

impl Core {
    pub(crate) async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let standing = self.standing(path);
        if standing != Standing::Ask
            && let Some(listed) = self.known_listing(path, standing)
        {
            return listed;
        }
        if standing != Standing::Only {
            let answer = self.open_there(path, self.asking(self.inner.opendir(path))).await;
            if !self.falls_back(&answer) {
                return answer;
            }
            if let Some(listed) = self.known_listing(path, Standing::Only) {
                return listed;
            }
        }
        self.unless_offline("the listing is", path)?;
        self.open_there(path, self.inner.opendir(path)).await
    }

    /// A directory that the remote lists, which `opening` opens.
    async fn open_there(
        &self,
        path: &RemotePath,
        opening: impl Future<Output = Result<Dh>> + Send,
    ) -> Result<Dh> {
        let (asked, began) = (self.asked(), Timestamp::now());
        let dh = opening.await?;
        let (path, inner) = (path.clone(), self.listings.inner.clone());
        let given = Mutex::new(Some(Vec::new()));
        let there = There { dh, path, asked, began, given, inner };
        Ok(self.listings.add(Open::There(there)))
    }

    fn known_listing(&self, path: &RemotePath, standing: Standing) -> Option<Result<Dh>> {
        for source in self.sources(path, standing) {
            if let Some(listing) = self.known_directory(source, path) {
                return Some(Ok(self.listings.add(Open::Here(listing.entries, Mutex::new(0)))));
            }
        }
        match self.told(path, standing)?.into_result() {
            Err(error) => Some(Err(error)),
            Ok(attr) if !attr.is_dir() => Some(Err(Errno::ENOTDIR)),
            Ok(_) => None,
        }
    }

    pub(crate) async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let open = self.listings.get(dh)?;
        let there = match &*open {
            Open::There(there) => there,
            Open::Here(entries, next) => {
                let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                let from = *next;
                *next = entries.len().min(from + BATCH);
                return Ok((from < *next).then(|| entries[from..*next].to_vec()));
            }
        };
        let answer = self.asking(self.inner.readdir(there.dh)).await;
        match &answer {
            Ok(Some(batch)) => self.note_batch(there, batch),
            Ok(None) => self.note_end(there),
            // Nobody knows what the rest would have been.
            Err(_) => drop(there.take()),
        }
        answer
    }

    fn note_batch(&self, there: &There, batch: &[DirEntry]) {
        for entry in batch {
            if let Some(attr) = &entry.attr {
                let path = there.path.join(&entry.name);
                if self.changes.untouched(&path, there.asked.tick) {
                    self.seen.note(&path, attr, there.asked.at);
                }
            }
        }
        let mut given = there.given.lock().unwrap_or_else(PoisonError::into_inner);
        if given.as_ref().is_some_and(|given| given.len() + batch.len() > MAX_ENTRIES) {
            *given = None;
        }
        if let Some(given) = &mut *given {
            given.extend_from_slice(batch);
        }
    }

    fn note_end(&self, there: &There) {
        let (path, tick) = (&there.path, there.asked.tick);
        let untouched = || self.changes.listing_untouched(path, tick);
        let Some(entries) = there.take().filter(|_| untouched()) else { return };
        let source = self.source(path);
        let listing = Listing { attr: None, entries: entries.into(), seen_at: there.began };
        match self.fresh.add(*source, path.clone(), tick, listing) {
            // A change that began meanwhile may have come too early to forget it.
            Ok(_) if !untouched() => self.fresh.forget_listing(path),
            Ok(note) => self.filler.listed(note),
            Err(listing) => {
                self.recorder.listing(source, path, tick, &listing);
            }
        }
    }

    /// The complete listing of a directory.
    pub(crate) fn known_directory(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        let known = self.fresh.listing(source, path).or_else(|| self.store.directory(source, path));
        known.filter(|listing| self.changed_at.lets_count(path, listing.seen_at))
    }
}

impl There {
    /// What it has given, if that is to be recorded; afterwards it is not.
    fn take(&self) -> Option<Vec<DirEntry>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub(crate) fn same_entries(one: &[DirEntry], other: &[DirEntry]) -> bool {
    let same = |(one, other): (&DirEntry, &DirEntry)| {
        let attrs = match (&one.attr, &other.attr) {
            (Some(one), Some(other)) => same_but_atime(one, other),
            (None, None) => true,
            _ => false,
        };
        one.name == other.name && attrs
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}
