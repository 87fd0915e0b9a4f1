//! Open directories, and the recording of listings.
//!
//! A listing is recorded when it was read to its end, unless the directory was changed here since
//! it began. Only such a listing proves that a name is absent. It is valid at once, and is written
//! later ([`pending_listings`](super::pending_listings)).

use std::sync::Arc;

use base::{Dh, DirEntry, Errno, Mutex, OwnedDh, RemotePath, Result};

use super::files::is_identified;
use super::names::RequestStamp;
use super::{Core, ReadPolicy, RemoteWait};
use crate::{KnownAttr, Listing, SourceId};

/// Entries returned at once from a cached listing.
const BATCH: usize = 512;

/// Bound on the entries of a listing that is recorded: some 40 MiB of memory while it is read.
pub(super) const MAX_ENTRIES: usize = 200_000;

/// An open directory.
pub(crate) enum OpenDir {
    /// Listed by the remote.
    Remote(RemoteListing),
    /// A cached listing, and the index of the next entry to return.
    Cached(Arc<[DirEntry]>, Mutex<usize>),
}

pub(crate) struct RemoteListing {
    open: OwnedDh,
    path: RemotePath,
    stamp: RequestStamp,
    /// The entries returned so far; `None` when the listing is not to be recorded.
    entries: Mutex<Option<Vec<DirEntry>>>,
}

impl Core {
    pub(crate) async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let known = |policy| self.known_listing(path, policy);
        let request = |wait| self.open_remote(path, self.within(wait, self.inner.opendir(path)));
        self.answer("the listing is", path, known, request).await
    }

    /// A directory that the remote lists; `opening` opens it.
    async fn open_remote(
        &self,
        path: &RemotePath,
        opening: impl Future<Output = Result<Dh>> + Send,
    ) -> Result<Dh> {
        let stamp = self.stamp();
        let open = OwnedDh::new(self.inner.clone(), opening.await?);
        let entries = Mutex::new(Some(Vec::new()));
        let remote = RemoteListing { open, path: path.clone(), stamp, entries };
        Ok(Dh(self.listings.add(OpenDir::Remote(remote))))
    }

    fn known_listing(&self, path: &RemotePath, policy: ReadPolicy) -> Option<Result<Dh>> {
        let listing = |source: &SourceId| {
            self.known_directory(source, path).map(|listing| (listing.seen_at, listing.entries))
        };
        if let Some(entries) = self.latest(path, policy, listing) {
            let open = OpenDir::Cached(entries, Mutex::new(0));
            return Some(Ok(Dh(self.listings.add(open))));
        }
        match self.known_name(path, policy)? {
            Err(error) => Some(Err(error)),
            Ok(attr) if !attr.is_dir() => Some(Err(Errno::ENOTDIR)),
            Ok(_) => None,
        }
    }

    pub(crate) async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let open = self.listings.get(dh.0)?;
        let remote = match &*open {
            OpenDir::Remote(remote) => remote,
            OpenDir::Cached(entries, next) => {
                let mut next = next.lock();
                let from = *next;
                *next = entries.len().min(from + BATCH);
                return Ok((from < *next).then(|| entries[from..*next].to_vec()));
            }
        };
        let answer =
            self.within(RemoteWait::WhileConnected, self.inner.readdir(remote.open.dh())).await;
        match &answer {
            Ok(Some(batch)) => self.note_batch(remote, batch),
            Ok(None) => self.note_end(remote),
            // The rest of the listing is unknown.
            Err(_) => drop(remote.entries.lock().take()),
        }
        answer
    }

    fn note_batch(&self, remote: &RemoteListing, batch: &[DirEntry]) {
        self.recognize_listed(&remote.path, batch);
        for entry in batch {
            if let Some(attr) = &entry.attr {
                let path = remote.path.join(&entry.name);
                if self.changes.is_unchanged(&path, remote.stamp.generation) {
                    self.validators.note(&path, attr);
                }
            }
        }
        let mut entries = remote.entries.lock();
        if entries.as_ref().is_some_and(|entries| entries.len() + batch.len() > MAX_ENTRIES) {
            *entries = None;
        }
        if let Some(entries) = &mut *entries {
            entries.extend_from_slice(batch);
        }
    }

    /// The server has listed these entries of `dir`; the caller may show their sizes to the readers
    /// of open files.
    fn recognize_listed(&self, dir: &RemotePath, batch: &[DirEntry]) {
        let is_identified = |entry: &DirEntry| entry.attr.is_some_and(|attr| is_identified(&attr));
        if !batch.iter().any(is_identified) {
            return;
        }
        for file in self.files.matching(|file| file.is_stored_below(dir) || file.has_other_names())
        {
            let Some(path) = file.path().filter(|path| !self.is_immutable(path)) else { continue };
            let name = path.file_name().filter(|_| path.parent().as_ref() == Some(dir));
            // Its name may be that of another file, and another entry may be a name of it.
            for entry in batch {
                if let Some(attr) = &entry.attr
                    && (name.as_ref() == Some(&entry.name) || file.is_linked_to(attr))
                {
                    file.recognize(attr);
                }
            }
        }
    }

    fn note_end(&self, remote: &RemoteListing) {
        let (path, generation) = (&remote.path, remote.stamp.generation);
        let untouched = || self.changes.is_listing_unchanged(path, generation);
        let Some(entries) = remote.entries.lock().take().filter(|_| untouched()) else { return };
        let source = self.source(path);
        let listing = Listing { entries: entries.into(), seen_at: remote.stamp.time };
        let recorded = self.store.attrs_beside(source, path, &listing);
        let shown = |known: KnownAttr| KnownAttr { attr: self.shown(&known.attr), ..known };
        let recorded = recorded.into_iter().map(|(name, known)| (name, shown(known))).collect();
        match self.pending_listings.add(*source, path.clone(), generation, listing, recorded) {
            // A change that began meanwhile may have tried to forget it before it was added.
            Ok(_) if !untouched() => self.pending_listings.forget_listing(path),
            Ok(pending) => self.write_behind.listed(pending),
            Err(listing) => {
                self.recorder.write_listing(source, path, generation, &listing);
            }
        }
    }

    fn shown_listing(&self, listing: Listing) -> Listing {
        let has_inodes = |entry: &DirEntry| entry.attr.is_some_and(|attr| attr.inode.is_some());
        if self.config.inode_attrs || !listing.entries.iter().any(has_inodes) {
            return listing;
        }
        let shown = |entry: &DirEntry| DirEntry {
            name: entry.name.clone(),
            attr: entry.attr.as_ref().map(|attr| self.shown(attr)),
        };
        Listing { entries: listing.entries.iter().map(shown).collect(), ..listing }
    }

    /// The complete listing of a directory.
    pub(crate) fn known_directory(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        let known = self
            .pending_listings
            .listing(source, path)
            .or_else(|| Some(self.shown_listing(self.store.directory(source, path)?)));
        known.filter(|listing| self.changes.is_current(path, listing.seen_at))
    }
}
