//! Open directories, and the recording of listings.
//!
//! A listing is recorded when it was read to its end, unless the directory was changed here since
//! it began. Only such a listing proves that a name is absent. It is valid at once, and is written
//! later ([`pending_listings`](super::pending_listings)).

use std::sync::{Arc, Mutex, PoisonError};

use base::{Dh, DirEntry, Errno, Remote, RemotePath, Result, Table, Timestamp};

use super::names::{RequestStamp, same_but_atime};
use super::{Core, ReadPolicy};
use crate::{Listing, SourceId};

/// Entries returned at once from a cached listing.
const BATCH: usize = 512;

/// Bound on the entries of a listing that is recorded: some 40 MiB of memory while it is read.
const MAX_ENTRIES: usize = 200_000;

/// An open directory.
enum OpenDir {
    /// Listed by the remote.
    Remote(RemoteListing),
    /// A cached listing, and the index of the next entry to return.
    Cached(Arc<[DirEntry]>, Mutex<usize>),
}

struct RemoteListing {
    dh: Dh,
    path: RemotePath,
    stamp: RequestStamp,
    began: Timestamp,
    /// The entries returned so far; `None` when the listing is not to be recorded.
    entries: Mutex<Option<Vec<DirEntry>>>,
    inner: Arc<dyn Remote>,
}

impl Drop for RemoteListing {
    fn drop(&mut self) {
        self.inner.closedir(self.dh);
    }
}

/// All open directories, bounded by the layer above, which closes them.
pub(crate) struct Listings {
    table: Table<OpenDir>,
    inner: Arc<dyn Remote>,
}

impl Listings {
    pub(crate) fn new(inner: Arc<dyn Remote>) -> Listings {
        Listings { table: Table::default(), inner }
    }

    fn add(&self, open: OpenDir) -> Dh {
        Dh(self.table.add(open))
    }

    fn get(&self, dh: Dh) -> Result<Arc<OpenDir>> {
        self.table.get(dh.0)
    }

    pub(crate) fn close(&self, dh: Dh) {
        self.table.remove(dh.0);
    }
}

impl Core {
    pub(crate) async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let policy = self.read_policy(path);
        if policy != ReadPolicy::Server
            && let Some(listed) = self.known_listing(path, policy)
        {
            return listed;
        }
        if policy != ReadPolicy::CacheOnly {
            let answer =
                self.open_remote(path, self.while_connected(self.inner.opendir(path))).await;
            if !self.falls_back(&answer) {
                return answer;
            }
            if let Some(listed) = self.known_listing(path, ReadPolicy::CacheOnly) {
                return listed;
            }
        }
        self.unless_offline("the listing is", path)?;
        self.open_remote(path, self.inner.opendir(path)).await
    }

    /// A directory that the remote lists; `opening` opens it.
    async fn open_remote(
        &self,
        path: &RemotePath,
        opening: impl Future<Output = Result<Dh>> + Send,
    ) -> Result<Dh> {
        let (stamp, began) = (self.stamp(), Timestamp::now());
        let dh = opening.await?;
        let (path, inner) = (path.clone(), self.listings.inner.clone());
        let entries = Mutex::new(Some(Vec::new()));
        let remote = RemoteListing { dh, path, stamp, began, entries, inner };
        Ok(self.listings.add(OpenDir::Remote(remote)))
    }

    fn known_listing(&self, path: &RemotePath, policy: ReadPolicy) -> Option<Result<Dh>> {
        for source in self.sources(path, policy) {
            if let Some(listing) = self.known_directory(source, path) {
                return Some(Ok(self
                    .listings
                    .add(OpenDir::Cached(listing.entries, Mutex::new(0)))));
            }
        }
        match self.known_name(path, policy)?.into_result() {
            Err(error) => Some(Err(error)),
            Ok(attr) if !attr.is_dir() => Some(Err(Errno::ENOTDIR)),
            Ok(_) => None,
        }
    }

    pub(crate) async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let open = self.listings.get(dh)?;
        let remote = match &*open {
            OpenDir::Remote(remote) => remote,
            OpenDir::Cached(entries, next) => {
                let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                let from = *next;
                *next = entries.len().min(from + BATCH);
                return Ok((from < *next).then(|| entries[from..*next].to_vec()));
            }
        };
        let answer = self.while_connected(self.inner.readdir(remote.dh)).await;
        match &answer {
            Ok(Some(batch)) => self.note_batch(remote, batch),
            Ok(None) => self.note_end(remote),
            // The rest of the listing is unknown.
            Err(_) => drop(remote.take()),
        }
        answer
    }

    fn note_batch(&self, remote: &RemoteListing, batch: &[DirEntry]) {
        for entry in batch {
            if let Some(attr) = &entry.attr {
                let path = remote.path.join(&entry.name);
                if self.changes.is_unchanged(&path, remote.stamp.generation) {
                    self.validators.note(&path, attr, remote.stamp.at);
                }
            }
        }
        let mut entries = remote.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.as_ref().is_some_and(|entries| entries.len() + batch.len() > MAX_ENTRIES) {
            *entries = None;
        }
        if let Some(entries) = &mut *entries {
            entries.extend_from_slice(batch);
        }
    }

    fn note_end(&self, remote: &RemoteListing) {
        let (path, generation) = (&remote.path, remote.stamp.generation);
        let untouched = || self.changes.is_listing_unchanged(path, generation);
        let Some(entries) = remote.take().filter(|_| untouched()) else { return };
        let source = self.source(path);
        let listing = Listing { attr: None, entries: entries.into(), seen_at: remote.began };
        match self.pending_listings.add(*source, path.clone(), generation, listing) {
            // A change that began meanwhile may have tried to forget it before it was added.
            Ok(_) if !untouched() => self.pending_listings.forget_listing(path),
            Ok(pending) => self.write_behind.listed(pending),
            Err(listing) => {
                self.recorder.write_listing(source, path, generation, &listing);
            }
        }
    }

    /// The complete listing of a directory.
    pub(crate) fn known_directory(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        let known = self
            .pending_listings
            .listing(source, path)
            .or_else(|| self.store.directory(source, path));
        known.filter(|listing| self.change_times.is_valid(path, listing.seen_at))
    }
}

impl RemoteListing {
    /// The entries, if they are to be recorded; afterwards they are not.
    fn take(&self) -> Option<Vec<DirEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).take()
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
