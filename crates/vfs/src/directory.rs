//! opendir, readdir, readdirplus, releasedir.
//!
//! An open directory keeps the entries that it has listed, so that an offset means the same entry
//! while it is open, however the directory changes. A read from offset 0 lists it again. Only the
//! end of a very long listing is kept.
//!
//! Entries with attributes count as lookups of their names. Attributes that may be older than a
//! local change are omitted, since the kernel would take them for newer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Attr, DirEntry, Errno, FileKind, Mutex, Name, OwnedDh, RemotePath, Result};
use tokio::time::Instant;

use crate::Inode;
use crate::dir_cache::{CachedEntry, CachedListing, FullListing};
use crate::inode::Validator;
use crate::tree::RequestStamp;
use crate::{Entry, Ino, Vfs};

/// The kernel's name for an open directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirHandle(pub u64);

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedEntry<'a> {
    /// Includes `.` and `..`.
    pub name: &'a [u8],
    /// `d_ino`.
    pub number: u64,
    /// `d_type`; `None` if the attributes of the entry cannot be read.
    pub kind: Option<FileKind>,
    /// The offset of the next entry.
    pub next_offset: u64,
    /// The result of a lookup, which has been counted; only if requested, and known.
    pub entry: Option<Entry>,
}

/// Receives the entries of a listing, as many as fit.
pub trait EntrySink {
    /// Whether an entry with this name fits.
    fn has_room(&self, name: &[u8]) -> bool;
    /// Adds an entry that fits.
    fn push(&mut self, entry: ListedEntry<'_>);
}

/// An open directory.
pub(crate) struct OpenDirectory {
    ino: Ino,
    opened_at: Instant,
    /// Held while a batch is fetched, since batches arrive in order.
    fetching: tokio::sync::Mutex<()>,
    state: Mutex<ListingState>,
    /// It lists files without attributes, unless [one is looked up](crate::readdirplus).
    names_only: AtomicBool,
}

struct ListingState {
    /// `None` if the listing is from the directory cache.
    open: Option<OwnedDh>,
    /// Entries that have arrived from the remote and are not in `entries` yet, with the time of
    /// arrival. Kept here, since a caller may be interrupted while it requests missing attributes.
    fetched: VecDeque<(DirEntry, Instant)>,
    entries: VecDeque<Listed>,
    /// Number of entries that were dropped before these.
    dropped: usize,
    complete: bool,
    /// Some entries were returned.
    started: bool,
    stamp: RequestStamp,
    /// When the first batch arrived.
    first_batch_at: Option<Instant>,
}

/// An entry of an open directory.
struct Listed {
    name: Name,
    /// `None` if they cannot be read.
    attr: Option<Attr>,
    received_at: Instant,
}

impl From<CachedEntry> for Listed {
    fn from(CachedEntry { name, attr, received_at }: CachedEntry) -> Listed {
        Listed { name, attr: Some(attr.get()), received_at }
    }
}

impl Listed {
    fn to_cached(&self) -> Option<CachedEntry> {
        let (name, received_at) = (self.name.clone(), self.received_at);
        self.attr.map(|attr| CachedEntry { name, attr: attr.into(), received_at })
    }
}

/// Errors of an entry that say nothing about the others: a FUSE mount without a daemon or of
/// another user, and a file that an NFS server no longer has.
const ENTRY_ERRORS: [Errno; 3] = [Errno::ENOTCONN, Errno::EACCES, Errno::ESTALE];

/// Entries that an open directory keeps before the last requested one; about 16 MiB. An earlier
/// offset is `EINVAL`: no program seeks back that far, and a server may list for ever.
const MAX_KEPT_ENTRIES: usize = 1 << 17;

/// A directory is usually read right after it was opened. If the read comes later than this, the
/// listing begins again; a shorter time would cost a round trip if nothing is cached.
const READ_WITHIN: Duration = Duration::from_secs(1);

impl ListingState {
    fn new(open: OwnedDh, stamp: RequestStamp) -> ListingState {
        ListingState {
            open: Some(open),
            fetched: VecDeque::new(),
            entries: VecDeque::new(),
            dropped: 0,
            complete: false,
            started: false,
            stamp,
            first_batch_at: None,
        }
    }

    /// A listing from the directory cache.
    fn from_cache((entries, stamp): FullListing) -> ListingState {
        let first_batch_at = Some(stamp.at);
        ListingState {
            open: None,
            fetched: VecDeque::new(),
            entries: entries.into_iter().map(Listed::from).collect(),
            dropped: 0,
            complete: true,
            started: false,
            stamp,
            first_batch_at,
        }
    }

    /// The listing for the directory cache, if it is complete, no entry was dropped, and all have
    /// attributes.
    fn to_cached(&self) -> Option<CachedListing> {
        if !self.complete || self.dropped > 0 {
            return None;
        }
        let entries = self.entries.iter().map(Listed::to_cached).collect::<Option<_>>()?;
        let first_batch_at = self.first_batch_at.unwrap_or(self.stamp.at);
        Some(CachedListing::new(entries, true, self.stamp, first_batch_at))
    }

    /// The number of entries so far.
    fn end(&self) -> usize {
        self.dropped + self.entries.len()
    }

    /// Moves the fetched entries to `entries`, up to the first one without attributes, and returns
    /// the name of that one. `wanted` is the first entry that a caller still waits for.
    fn take_resolved(&mut self, wanted: usize) -> Option<Name> {
        while self.fetched.front().is_some_and(|(entry, _)| entry.attr.is_some()) {
            self.take_first();
        }
        self.trim(wanted);
        self.fetched.front().map(|(entry, _)| entry.name.clone())
    }

    /// Moves the first fetched entry to `entries`.
    fn take_first(&mut self) {
        let first = self.fetched.pop_front();
        let first =
            first.map(|(DirEntry { name, attr }, received_at)| Listed { name, attr, received_at });
        self.entries.extend(first);
    }

    /// Sets the attributes of the first fetched entry by the answer to a request for them. Returns
    /// an error that concerns the whole listing.
    fn resolve_first(&mut self, answer: Result<Attr>) -> Result<()> {
        match answer {
            Ok(attr) => {
                if let Some((entry, _)) = self.fetched.front_mut() {
                    entry.attr = Some(attr);
                }
            }
            Err(Errno::ENOENT) => drop(self.fetched.pop_front()),
            Err(error) if ENTRY_ERRORS.contains(&error) => self.take_first(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Drops entries before `wanted` if there are too many.
    fn trim(&mut self, wanted: usize) {
        let excess_total = self.entries.len().saturating_sub(MAX_KEPT_ENTRIES);
        let before = wanted.saturating_sub(self.dropped);
        let excess = excess_total.min(before);
        self.entries.drain(..excess);
        self.dropped += excess;
    }
}

/// `.` and `..` are listed first.
const DOTS: [&[u8]; 2] = [b".", b".."];

impl OpenDirectory {
    fn with<T>(&self, body: impl FnOnce(&mut ListingState) -> T) -> T {
        body(&mut self.state.lock())
    }
}

impl Vfs {
    /// Opens the directory `ino` for listing.
    pub async fn opendir(&self, ino: Ino) -> Result<DirHandle> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let cached = match (self.stale_listing(ino), self.path(ino)) {
            (Some(cached), _) => Some(cached),
            (None, Err(_)) => None,
            (None, Ok(path)) => {
                self.prefetch.await_listing(&path).await;
                self.cached_full_listing(ino, &path)
            }
        };
        let state = match cached {
            Some(full) => ListingState::from_cache(full),
            None => {
                self.shared.note_directory_use(ino);
                let opening = async {
                    self.open_same_listing(&inode).await.map_err(|error| match error {
                        Errno::ENOENT => {
                            self.invalidate_inode(&inode);
                            error
                        }
                        Errno::ELOOP | Errno::ENOTDIR => {
                            self.open_error_of_other_kind(&inode, error)
                        }
                        error => error,
                    })
                };
                let cached = || Ok(self.stale_listing(ino).map(ListingState::from_cache));
                self.or_stale(ino, opening, cached).await?
            }
        };
        let number = self.directories.number();
        let directory = OpenDirectory {
            ino,
            opened_at: Instant::now(),
            fetching: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            names_only: AtomicBool::new(false),
        };
        self.directories.insert(number, Arc::new(directory));
        Ok(DirHandle(number))
    }

    /// Opens the directory `inode` at the remote. `ESTALE` if its name is found to lead to another
    /// directory: the kernel then looks the name up again, as it does not after a later call.
    async fn open_same_listing(&self, inode: &Arc<Inode>) -> Result<ListingState> {
        let may_be_other = {
            let state = inode.state();
            state.has_identity() && state.fresh_attr(Instant::now()).is_none()
        };
        if !may_be_other {
            return self.open_listing(inode.ino).await;
        }
        let (attr, opened) = tokio::join!(self.fetch_attr(inode), self.open_listing(inode.ino));
        if attr == Err(Errno::ESTALE) { Err(Errno::ESTALE) } else { opened }
    }

    /// Opens the directory `ino` at the remote. One that was removed by a local change is empty: a
    /// process may work in it.
    async fn open_listing(&self, ino: Ino) -> Result<ListingState> {
        if self.tree().was_removed_here(ino) {
            return Ok(ListingState::from_cache((Vec::new(), self.stamp_request())));
        }
        let opening = self.by_path(ino, |path, stamp| async move {
            let dh = self.remote.opendir(&path).await?;
            Ok(ListingState::new(OwnedDh::new(self.remote.clone(), dh), stamp))
        });
        opening.await
    }

    /// The full listing of the directory `ino`, if it is cached and valid. Notes that the directory
    /// is being listed.
    fn cached_full_listing(&self, ino: Ino, path: &RemotePath) -> Option<FullListing> {
        let (full, prefetched_in_time) = self.tree().full_listing(ino, self.live(|it| it.dirs));
        self.prefetch.note_listing(&self.shared, path, prefetched_in_time);
        if full.is_some() {
            self.shared.note_listing_use(ino);
        }
        full
    }

    /// Closes an open directory. Does not wait.
    pub fn releasedir(&self, handle: DirHandle) {
        self.directories.remove(handle.0);
    }

    /// Lists from `offset` on: 0 for the start, else the `next_offset` of an entry. No entry means
    /// the end. With `plus`, entries are looked up too, if the listing contains their attributes
    /// and the kernel is likely to use them (`readdirplus.rs`). Returns whether there was an entry.
    pub async fn readdir(
        &self,
        handle: DirHandle,
        offset: u64,
        plus: bool,
        listing: &mut (dyn EntrySink + Send),
    ) -> Result<bool> {
        let directory = self.directories.get(handle.0)?;
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if offset == 0 {
            self.rewind(&directory).await?;
            if plus {
                self.choose_names_only(&directory);
            }
        }
        self.fetch_past(&directory, offset).await?;
        // Nothing waits from here on, since lookups are being counted.
        for (index, name) in DOTS.into_iter().enumerate().skip(offset) {
            if !listing.has_room(name) {
                return Ok(index > offset);
            }
            let tree = self.tree();
            let ino = if index == 0 { directory.ino } else { tree.parent(directory.ino) };
            listing.push(ListedEntry {
                name,
                number: tree.number(ino),
                kind: Some(FileKind::Directory),
                next_offset: index as u64 + 1,
                entry: None,
            });
        }
        let names_only =
            self.readdirplus_policy.is_active() && directory.names_only.load(Ordering::Relaxed);
        let looks_up = |kind| plus && (kind == FileKind::Directory || !names_only);
        directory.with(|state| {
            let first = offset.saturating_sub(DOTS.len());
            let skipped = first.checked_sub(state.dropped).ok_or(Errno::EINVAL)?;
            state.started = true;
            let mut pushed = offset < DOTS.len();
            for (index, listed) in state.entries.iter().enumerate().skip(skipped) {
                let index = state.dropped + index;
                let name = listed.name.as_bytes();
                if !listing.has_room(name) {
                    break;
                }
                let attr = listed.attr.filter(|attr| looks_up(attr.kind));
                let look_up = |attr| self.plus_entry(directory.ino, listed, &attr, state.stamp);
                let entry = attr.and_then(look_up);
                let expected = || {
                    let attr = listed.attr.as_ref();
                    self.tree().expected_number(directory.ino, &listed.name, attr)
                };
                listing.push(ListedEntry {
                    name,
                    number: entry.map_or_else(expected, |entry| entry.stat.number),
                    kind: listed.attr.map(|attr| attr.kind),
                    next_offset: (index + DOTS.len()) as u64 + 1,
                    entry,
                });
                pushed = true;
            }
            Ok(pushed)
        })
    }

    /// Decides whether `directory` lists its files without attributes.
    fn choose_names_only(&self, directory: &OpenDirectory) {
        let is_full = self.tree().is_full();
        if is_full {
            self.readdirplus_policy.begin_directory();
        }
        let names_only = is_full && self.readdirplus_policy.is_active();
        directory.names_only.store(names_only, Ordering::Relaxed);
    }

    /// Begins the listing again, unless it has not started and is up to date.
    async fn rewind(&self, directory: &OpenDirectory) -> Result<()> {
        let _fetching = directory.fetching.lock().await;
        let (started, stamp) = directory.with(|state| (state.started, state.stamp));
        let old = directory.opened_at.elapsed() >= self.live(|it| it.dirs).min.max(READ_WITHIN);
        let changed = || self.tree().any_name_changed_since(directory.ino, stamp.seq);
        if !started && (self.serves_stale(directory.ino) || !old && !changed()) {
            return Ok(());
        }
        let reopened = self.open_listing(directory.ino).await?;
        // Closed without the lock.
        let _old = directory.with(|state| std::mem::replace(state, reopened));
        Ok(())
    }

    /// Fetches until the entry at `offset` has arrived, or the listing is complete.
    async fn fetch_past(&self, directory: &OpenDirectory, offset: usize) -> Result<()> {
        let enough = |state: &mut ListingState| state.complete || state.end() + DOTS.len() > offset;
        // A reply with only the dots would cost the kernel another request.
        let reached =
            |state: &mut ListingState| enough(state) && (state.complete || state.end() > 0);
        if directory.with(reached) {
            return Ok(());
        }
        let _fetching = directory.fetching.lock().await;
        let wanted = offset.saturating_sub(DOTS.len());
        while !directory.with(reached) {
            // A listing without a handle is complete.
            let dh = directory.with(|state| state.open.as_ref().map(OwnedDh::dh));
            let Some(dh) = dh else { break };
            // Entries of an earlier caller that was interrupted.
            self.resolve_fetched(directory, wanted).await?;
            if directory.with(reached) {
                break;
            }
            let reading = async { self.remote.readdir(dh).await.map(Some) };
            let cached = || Ok(self.use_stale_listing(directory).then_some(None));
            let Some(batch) = self.or_stale(directory.ino, reading, cached).await? else { break };
            directory.with(|state| {
                state.first_batch_at.get_or_insert_with(Instant::now);
            });
            let Some(batch) = batch else {
                let listing = directory.with(|state| {
                    state.complete = true;
                    state.to_cached()
                });
                self.store_listing(directory.ino, listing);
                break;
            };
            let received_at = Instant::now();
            directory.with(|state| {
                state.fetched.extend(batch.into_iter().map(|entry| (entry, received_at)));
            });
            self.resolve_fetched(directory, wanted).await?;
        }
        Ok(())
    }

    /// Replaces a listing of which nothing has arrived by the cached one of any age.
    fn use_stale_listing(&self, directory: &OpenDirectory) -> bool {
        let cached = self.stale_listing(directory.ino);
        let replaced = directory.with(|state| {
            let cached = cached.filter(|_| state.end() == 0)?;
            Some(std::mem::replace(state, ListingState::from_cache(cached)))
        });
        // Closed without the lock.
        replaced.is_some()
    }

    /// Caches a listing, and continues the walk that it may be part of.
    fn store_listing(&self, dir: Ino, listing: Option<CachedListing>) {
        let Some(listing) = listing.filter(|_| self.keeps_listings()) else { return };
        let path = {
            let mut tree = self.tree();
            tree.insert_listing(dir, listing);
            tree.path(dir)
        };
        if let Some(path) = path {
            self.prefetch.continue_walk(&self.shared, &path);
        }
    }

    /// Moves the fetched entries to `entries`. Missing attributes are requested; a name that is
    /// gone by then is omitted, and one whose attributes cannot be read is listed without. If this
    /// fails or is dropped, nothing is lost: the next caller continues with the same name.
    async fn resolve_fetched(&self, directory: &OpenDirectory, wanted: usize) -> Result<()> {
        while let Some(name) = directory.with(|state| state.take_resolved(wanted)) {
            let request = self.by_path(directory.ino, |path, _| {
                let path = path.join(&name);
                async move { self.remote.lstat(&path).await }
            });
            let answer = request.await;
            directory.with(|state| state.resolve_first(answer))?;
        }
        Ok(())
    }

    /// Looks up a name by its entry in the listing.
    fn plus_entry(
        &self,
        dir: Ino,
        listed: &Listed,
        attr: &Attr,
        stamp: RequestStamp,
    ) -> Option<Entry> {
        let Listed { name, received_at, .. } = listed;
        let (inode, until) =
            self.lookup_from_listing(&mut self.tree(), dir, name, attr, *received_at, stamp)?;
        // If the owner has no local id, a lookup can report the error.
        let entry = self.entry_until(&inode, attr, until);
        let mut entry = entry.inspect_err(|_| self.forget(inode.ino, 1)).ok()?;
        if inode.kind != FileKind::Directory && self.has_locked_files(dir) {
            entry.ttl = Duration::ZERO;
        }
        Some(entry)
    }
}

pub(crate) fn differs(cached: Option<Attr>, reply: &Attr) -> bool {
    cached.is_none_or(|cached| Validator::of(&cached) != Validator::of(reply))
}
