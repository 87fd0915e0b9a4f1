//! Open directories.
//!
//! After a loss the directory is opened again and listed from the start, without the names that
//! were already returned. So no name is returned twice, and a name that exists all the time is
//! returned once.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use base::{Dh, DirEntry, Errno, Mutex, Name, OwnedDh, RemotePath, RenameMode, Result, Table};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::Core;
use crate::name_history::{NameState, Seq};
use crate::retry::{MAX_STALE, Retry};

/// Names of one listing that are remembered: 16 MiB of hashes, which take up to 40 MiB with the free
/// room of their containers. A larger directory that is lost during its listing returns `ESTALE`.
const MAX_RETURNED: usize = 1 << 20;

/// Hash of a name, keyed by the secret seed of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NameHash(u128);

struct State {
    inner: OwnedDh,
    /// Incremented by each reopening.
    epoch: u64,
    /// Position and path at the opening: the inner remote may fetch entries then, and return them
    /// later.
    opened_at: (Seq, RemotePath),
    /// The current path; `None` when the directory was removed.
    path: Option<RemotePath>,
    returned: Vec<NameHash>,
    /// Names that were returned before the directory was reopened.
    skipped: HashSet<NameHash>,
    ended: bool,
}

impl State {
    /// Whether more names were returned than are remembered.
    fn is_over_limit(&self) -> bool {
        self.returned.len() + self.skipped.len() > MAX_RETURNED
    }
}

/// An open directory.
struct OpenDirectory {
    state: Mutex<State>,
    /// Secret, so that a server cannot construct two names with the same hash.
    seed: u64,
}

impl OpenDirectory {
    fn hash(&self, name: &Name) -> NameHash {
        NameHash(xxh3_128_with_seed(name.as_bytes(), self.seed))
    }

    fn current(&self) -> (Dh, u64) {
        let state = self.state.lock();
        (state.inner.dh(), state.epoch)
    }

    /// Removes the entries that were already returned, and notes the others.
    fn filter_returned(&self, entries: &mut Vec<DirEntry>) {
        let mut state = self.state.lock();
        if !state.skipped.is_empty() {
            entries.retain(|entry| !state.skipped.contains(&self.hash(&entry.name)));
        }
        if !state.is_over_limit() {
            state.returned.extend(entries.iter().map(|entry| self.hash(&entry.name)));
        }
    }

    fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let freed = (std::mem::take(&mut state.returned), std::mem::take(&mut state.skipped));
        drop(state);
        drop(freed);
    }

    /// Continues with a reopened directory, unless another caller has reopened it.
    fn set_reopened(&self, inner: OwnedDh, epoch: u64, requested: (Seq, RemotePath)) {
        let mut state = self.state.lock();
        let unused = if state.epoch == epoch {
            state.epoch += 1;
            state.opened_at = requested;
            let returned = std::mem::take(&mut state.returned);
            state.skipped.extend(returned);
            std::mem::replace(&mut state.inner, inner)
        } else {
            inner
        };
        // Closed without the lock.
        drop(state);
        drop(unused);
    }
}

/// All open directories. Bounded by the inner remote, which limits the number of handles.
#[derive(Default)]
pub(crate) struct OpenDirectories {
    table: Table<OpenDirectory>,
}

impl OpenDirectories {
    fn add(&self, inner: OwnedDh, path: &RemotePath, requested: Seq) -> Dh {
        let (path, requested) = (Some(path.clone()), (requested, path.clone()));
        let (returned, skipped) = (Vec::new(), HashSet::new());
        let state =
            State { inner, epoch: 0, opened_at: requested, path, returned, skipped, ended: false };
        let seed = RandomState::new().hash_one(0);
        Dh(self.table.add(OpenDirectory { state: Mutex::new(state), seed }))
    }

    pub(crate) fn close(&self, dh: Dh) {
        self.table.remove(dh.0);
    }

    /// The directory was removed.
    pub(crate) fn removed(&self, path: &RemotePath) {
        self.table.each(|directory| {
            let mut state = directory.state.lock();
            if state.path.as_ref() == Some(path) {
                state.path = None;
            }
        });
    }

    /// `from`, and all paths below it, were renamed.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        self.table.each(|directory| {
            let mut state = directory.state.lock();
            if let Some(path) = state.path.as_ref().and_then(|path| mode.moved(path, from, to)) {
                state.path = Some(path);
            } else if mode != RenameMode::Exchange && state.path.as_ref() == Some(to) {
                // It was replaced, so it was empty and is removed.
                state.path = None;
            }
        });
    }
}

impl Core {
    pub(crate) async fn opendir(self: &Arc<Core>, path: &RemotePath) -> Result<Dh> {
        let requested = self.history.now();
        let dh = self.with_retry(|| self.inner.opendir(path)).await?;
        Ok(self.directories.add(OwnedDh::new(self.inner.clone(), dh), path, requested))
    }

    pub(crate) async fn readdir(self: &Arc<Core>, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let directory = self.directories.table.get(dh.0)?;
        let mut consecutive_stale = 0;
        loop {
            let (inner_dh, epoch) = directory.current();
            let batch = match self.inner.readdir(inner_dh).await {
                Err(errno)
                    if errno.is_loss()
                        || (errno == Errno::ESTALE && consecutive_stale < MAX_STALE) =>
                {
                    consecutive_stale += 1;
                    Box::pin(self.reopen_directory(&directory, epoch, errno)).await?;
                    if directory.state.lock().ended {
                        return Ok(None);
                    }
                    continue;
                }
                // Another caller has reopened the directory in the meantime.
                Err(_) if directory.current().1 != epoch => continue,
                Err(errno) => return Err(errno),
                Ok(batch) => batch,
            };
            consecutive_stale = 0;
            let Some(mut batch) = batch else {
                directory.end();
                return Ok(None);
            };
            directory.filter_returned(&mut batch);
            if !batch.is_empty() {
                let requested = {
                    let state = directory.state.lock();
                    state.path.is_some().then(|| state.opened_at.clone())
                };
                if let Some((requested, path)) = requested {
                    self.history.record_listing(&path, &batch, requested);
                }
                return Ok(Some(batch));
            }
        }
    }

    /// Reopens a directory that was lost in this epoch.
    async fn reopen_directory(
        self: &Arc<Core>,
        directory: &OpenDirectory,
        epoch: u64,
        errno: Errno,
    ) -> Result<()> {
        let mut retry = Retry::new(self);
        let mut lost = Some(errno);
        loop {
            retry.before_attempt(lost.take()).await?;
            let path = {
                let state = directory.state.lock();
                if state.epoch != epoch || state.ended {
                    return Ok(());
                }
                if state.is_over_limit() {
                    return Err(Errno::ESTALE);
                }
                state.path.clone()
            };
            let Some(path) = path else {
                // It was removed through this mount, and a removed directory is empty.
                directory.end();
                return Ok(());
            };
            let requested = self.history.now();
            match retry.within_deadline(self.inner.opendir(&path)).await {
                Ok(dh) => {
                    let inner = OwnedDh::new(self.inner.clone(), dh);
                    directory.set_reopened(inner, epoch, (requested, path));
                    return Ok(());
                }
                Err(errno) if retry.may_reopen_after(errno) => lost = Some(errno),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {
                    self.history.record_reply(&path, NameState::Absent, requested);
                    return Err(Errno::ESTALE);
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}
