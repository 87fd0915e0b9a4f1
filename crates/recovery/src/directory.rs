//! Open directories.
//!
//! After a loss the directory is opened anew and listed from its beginning; names that were given out
//! before are left out. So nothing is given twice, and what was there all the time is given once.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Dh, DirEntry, Errno, Name, Remote, RemotePath, Result, Table};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::Core;
use crate::call::{MAX_STALE, Trouble};
use crate::known::{Moment, Seen};
use crate::link::is_loss;

/// Names of one listing that are remembered: 16 MiB, however long they are. A larger directory that
/// is lost while it is listed is `ESTALE`.
const MAX_GIVEN: usize = 1 << 20;

/// What tells one name from all others of a listing, in a process that nobody can look into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mark(u128);

#[derive(Debug)]
struct State {
    dh: Dh,
    /// Counts how often it was opened.
    epoch: u64,
    /// When it was opened, and by which name: what is below may fetch entries at once, and give them
    /// out later.
    begun: (Moment, RemotePath),
    /// The name of the directory now; `None` when it was removed.
    path: Option<RemotePath>,
    given: Vec<Mark>,
    /// What was given before the directory was opened anew.
    left_out: HashSet<Mark>,
    ended: bool,
}

impl State {
    /// Whether more names were given than are remembered.
    fn is_too_long(&self) -> bool {
        self.given.len() + self.left_out.len() > MAX_GIVEN
    }
}

/// An open directory; closed below when dropped.
struct Listing {
    state: Mutex<State>,
    inner: Arc<dyn Remote>,
    /// Nobody outside knows it, so no server can make two names that are taken for one.
    seed: u64,
}

impl Listing {
    fn mark(&self, name: &Name) -> Mark {
        Mark(xxh3_128_with_seed(name.as_bytes(), self.seed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> (Dh, u64) {
        let state = self.lock();
        (state.dh, state.epoch)
    }

    /// Takes `entries` into account, and leaves out those that were given before.
    fn give(&self, entries: &mut Vec<DirEntry>) {
        let mut state = self.lock();
        if !state.left_out.is_empty() {
            entries.retain(|entry| !state.left_out.contains(&self.mark(&entry.name)));
        }
        if !state.is_too_long() {
            state.given.extend(entries.iter().map(|entry| self.mark(&entry.name)));
        }
    }

    fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let left = (std::mem::take(&mut state.given), std::mem::take(&mut state.left_out));
        drop(state);
        drop(left);
    }

    /// Goes on with a directory that was opened anew, unless somebody else has opened it.
    fn opened_again(&self, dh: Dh, epoch: u64, begun: (Moment, RemotePath)) {
        let mut state = self.lock();
        let close = if state.epoch == epoch {
            state.epoch += 1;
            state.begun = begun;
            let given = std::mem::take(&mut state.given);
            state.left_out.extend(given);
            std::mem::replace(&mut state.dh, dh)
        } else {
            dh
        };
        drop(state);
        self.inner.closedir(close);
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let dh = self.lock().dh;
        self.inner.closedir(dh);
    }
}

/// All open directories. Bounded by the remote below, which gives only so many handles.
pub(crate) struct Listings {
    table: Table<Listing>,
    inner: Arc<dyn Remote>,
}

impl Listings {
    pub(crate) fn new(inner: Arc<dyn Remote>) -> Listings {
        Listings { table: Table::default(), inner }
    }

    fn add(&self, dh: Dh, path: &RemotePath, begun: Moment) -> Dh {
        let (path, begun) = (Some(path.clone()), (begun, path.clone()));
        let (given, left_out) = (Vec::new(), HashSet::new());
        let state = State { dh, epoch: 0, begun, path, given, left_out, ended: false };
        let (state, inner) = (Mutex::new(state), self.inner.clone());
        let seed = RandomState::new().hash_one(0);
        Dh(self.table.add(Listing { state, inner, seed }))
    }

    pub(crate) fn close(&self, dh: Dh) {
        self.table.remove(dh.0);
    }

    /// The directory was removed.
    pub(crate) fn removed(&self, path: &RemotePath) {
        self.table.each(|listing| {
            let mut state = listing.lock();
            if state.path.as_ref() == Some(path) {
                state.path = None;
            }
        });
    }

    /// The path, and all below it, is called otherwise now.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) {
        self.table.each(|listing| {
            let mut state = listing.lock();
            if let Some(path) = state.path.as_ref().and_then(|path| path.moved(from, to)) {
                state.path = Some(path);
            }
        });
    }
}

impl Core {
    pub(crate) async fn opendir(self: &Arc<Core>, path: &RemotePath) -> Result<Dh> {
        let begun = self.known.moment();
        let dh = self.repeated(|| self.inner.opendir(path)).await?;
        Ok(self.listings.add(dh, path, begun))
    }

    pub(crate) async fn readdir(self: &Arc<Core>, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let listing = self.listings.table.get(dh.0)?;
        let mut in_a_row = 0;
        loop {
            let (below, epoch) = listing.now();
            let batch = match self.inner.readdir(below).await {
                Err(errno)
                    if is_loss(errno) || (errno == Errno::ESTALE && in_a_row < MAX_STALE) =>
                {
                    in_a_row += 1;
                    Box::pin(self.listed_again(&listing, epoch, errno)).await?;
                    if listing.lock().ended {
                        return Ok(None);
                    }
                    continue;
                }
                // Somebody else has opened it anew meanwhile.
                Err(_) if listing.now().1 != epoch => continue,
                Err(errno) => return Err(errno),
                Ok(batch) => batch,
            };
            in_a_row = 0;
            let Some(mut batch) = batch else {
                listing.end();
                return Ok(None);
            };
            listing.give(&mut batch);
            if !batch.is_empty() {
                let begun = {
                    let state = listing.lock();
                    state.path.is_some().then(|| state.begun.clone())
                };
                if let Some((begun, path)) = begun {
                    self.known.note_listing(&path, &batch, begun);
                }
                return Ok(Some(batch));
            }
        }
    }

    /// Opens a directory anew that was lost in this epoch.
    async fn listed_again(
        self: &Arc<Core>,
        listing: &Listing,
        epoch: u64,
        errno: Errno,
    ) -> Result<()> {
        let mut trouble = Trouble::new(self);
        let mut lost = Some(errno);
        loop {
            trouble.after(lost.take()).await?;
            let path = {
                let state = listing.lock();
                if state.epoch != epoch || state.ended {
                    return Ok(());
                }
                if state.is_too_long() {
                    return Err(Errno::ESTALE);
                }
                state.path.clone()
            };
            let Some(path) = path else {
                // It was removed through us, and nothing is in what was removed.
                listing.end();
                return Ok(());
            };
            let begun = self.known.moment();
            match trouble.within(self.inner.opendir(&path)).await {
                Ok(dh) => {
                    listing.opened_again(dh, epoch, (begun, path));
                    return Ok(());
                }
                Err(errno) if trouble.goes_on_after(errno) => lost = Some(errno),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {
                    self.known.note_seen(&path, Seen::Absent, begun);
                    return Err(Errno::ESTALE);
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}
