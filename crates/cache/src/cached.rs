//! A [`Remote`] around a [`Remote`] that keeps what was read, and answers from it.
//!
//! It sits above what outlives connections, one for each source. `vfs` above it decides within one
//! mount how long attributes count and when an open must be validated; here is what outlives a
//! mount, and what many processes share.
//!
//! | question | close-to-open, timeout | immutable | offline, or away with `stale_ok` |
//! |---|---|---|---|
//! | attributes, names, link targets | asked, and recorded | asked once | what is recorded, else `EIO` |
//! | open to read, content is here | one round trip | none | none |
//! | open to read, content is not here | opened, and kept when read | the same | `EIO` |
//! | change | passed on; what is recorded of it is forgotten | the same | `EROFS` offline |
//!
//! What was learned where nothing is said to be immutable is not taken for immutable later: both
//! kinds of records are kept apart, under two identities of the source. So the first mount that
//! says `immutable` looks at everything once more. Contents are shared by both.
//!
//! Invariants:
//! 1. A content that is here is shown for a file only if the remote told, for this open, the size
//!    and the time of change that it was read with; or if the tree is immutable, or away.
//! 2. A content becomes one only if it was read between two answers of the server that agree, and
//!    where no change can hide from them (`filling`, `seen`).
//! 3. An answer that was asked for before a change made here is never recorded after it
//!    (`changes`), and does not count if another mount has recorded it (`changed_at`).
//! 4. What is open here shows one content. Where a change made here concerns it, it is opened at
//!    the server before that change (`files`).
//! 5. Damage, a full disk and a store that fails end at the server, never at other bytes.
//! 6. Absent is only what a complete listing leaves out, or the remote says.
//! 7. Locks are held for a few instructions, never across an await.
//!
//! Not here: reading ahead (`vfs`), connections (`recovery`), the files of the store (`store`).

mod changed_at;
mod changes;
mod changing;
mod config;
mod digests;
mod files;
mod filling;
mod fresh;
mod listing;
mod lull;
mod names;
mod offline;
mod opening;
mod reading;
mod remote;
mod seen;
mod warm;
mod writing;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Remote, RemotePath, Result};
use tokio::sync::watch;

pub use config::{CachedConfig, Mode, SubTrees};
pub use digests::DigestSource;
pub use warm::{Presence, Warmed};

use crate::{SourceId, Store};
use changed_at::ChangedAt;
use changes::Changes;
use digests::Digesting;
use files::Files;
use filling::Filler;
use fresh::Fresh;
use listing::Listings;
use offline::Misses;
use seen::Seen;
use writing::Recorder;

/// A remote whose contents are kept on the disk. See the [module](self).
///
/// To be used within a tokio runtime.
pub struct Cached {
    core: Arc<Core>,
    /// Its end tells the tasks of this crate that nobody wants them any more.
    _wants: watch::Sender<()>,
}

/// What a [`Cached`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedStatus {
    /// Opens to read whose content was here.
    pub hits: u64,
    /// Opens to read that went to the server.
    pub misses: u64,
    /// Bytes read from the store.
    pub read_here_bytes: u64,
    /// Bytes read from the server.
    pub read_there_bytes: u64,
    /// Contents that were completed.
    pub completed: u64,
    /// Files that changed while they were fetched, and were not kept.
    pub changed_meanwhile: u64,
    /// Bytes that were not kept since the disk was too slow.
    pub left_out_bytes: u64,
    /// Contents that were open and found damaged.
    pub damaged: u64,
    /// Questions that could not be answered offline.
    pub missed_offline: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    read_here_bytes: AtomicU64,
    read_there_bytes: AtomicU64,
    damaged: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// What counts for a path now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The remote is asked.
    Ask,
    /// What is known counts; what is not is asked.
    Known,
    /// The remote cannot be asked.
    Only,
}

/// Names that were linked together here, at most: some megabytes. With more, no file is taken
/// from the store any longer.
const MAX_LINKED: usize = 16 << 10;

/// Directories whose attributes are in doubt, at most: some megabytes. With more, all are.
const MAX_DOUBTFUL: usize = 16 << 10;

/// How long the end of a mount waits for what was read last: half of what a mount has for all of
/// its end, since a host that does not answer any more must not keep notes from being written.
const SETTLING: Duration = Duration::from_secs(5);

/// What all parts share.
pub(crate) struct Core {
    pub(crate) inner: Arc<dyn Remote>,
    pub(crate) store: Store,
    pub(crate) config: CachedConfig,
    /// Under which what counts for ever is recorded.
    pinned: SourceId,
    pub(crate) files: Files,
    pub(crate) listings: Listings,
    pub(crate) fresh: Fresh,
    pub(crate) changes: Changes,
    pub(crate) changed_at: ChangedAt,
    pub(crate) recorder: Recorder,
    pub(crate) seen: Seen,
    pub(crate) filler: Filler,
    pub(crate) misses: Misses,
    pub(crate) digesting: Digesting,
    pub(crate) counters: Counters,
    /// Names that lead to a file that has another name, too: a write through that one could not be
    /// seen here.
    linked: Mutex<HashSet<RemotePath>>,
    /// Directories in which names were changed here: what is recorded of their own attributes,
    /// the time of change among them, does not count until they are asked for.
    doubtful: Mutex<HashSet<RemotePath>>,
}

impl Cached {
    /// Around `inner`, with what `store` has of it. Fails when no thread can be made.
    pub fn new(
        inner: Arc<dyn Remote>,
        store: Store,
        config: CachedConfig,
    ) -> std::io::Result<Arc<Cached>> {
        let (wants, wanted) = watch::channel(());
        let window = match config.mode {
            Mode::Timeout(window) => window,
            Mode::CloseToOpen | Mode::Immutable => Duration::ZERO,
        };
        let recorder = Recorder {
            store: store.clone(),
            fresh: Fresh::default(),
            changes: Changes::default(),
            changed_at: ChangedAt::default(),
        };
        let core = Arc::new(Core {
            files: Files::new(inner.clone()),
            listings: Listings::new(inner.clone()),
            seen: Seen::new(config.clock_skew, window),
            filler: Filler::new(recorder.clone(), wanted)?,
            fresh: recorder.fresh.clone(),
            changes: recorder.changes.clone(),
            changed_at: recorder.changed_at.clone(),
            recorder,
            misses: Misses::default(),
            digesting: Digesting::default(),
            counters: Counters::default(),
            linked: Mutex::default(),
            doubtful: Mutex::default(),
            pinned: Cached::pinned_source(&config.source),
            inner,
            store,
            config,
        });
        Ok(Arc::new(Cached { core, _wants: wants }))
    }

    /// The identity under which the store keeps what counts for ever of `source`. To forget or to
    /// pin something means to do it under both.
    #[must_use]
    pub fn pinned_source(source: &SourceId) -> SourceId {
        SourceId::new(&[source.as_bytes(), &b" immutable"[..]].concat())
    }

    /// What it has done so far.
    #[must_use]
    pub fn status(&self) -> CachedStatus {
        let (counters, tally) = (&self.core.counters, &self.core.filler.tally);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CachedStatus {
            hits: read(&counters.hits),
            misses: read(&counters.misses),
            read_here_bytes: read(&counters.read_here_bytes),
            read_there_bytes: read(&counters.read_there_bytes),
            completed: read(&tally.completed),
            changed_meanwhile: read(&tally.changed),
            left_out_bytes: read(&tally.left_out_bytes),
            damaged: read(&counters.damaged),
            missed_offline: self.core.misses.count(),
        }
    }

    /// Returns when all that was read, and whose reader is gone or has come to its end, is in the
    /// store as far as it is kept.
    pub async fn settled(&self) {
        self.core.filler.settled().await;
    }

    /// For the end of a mount: returns when all that was read until now is in the store as far as
    /// it is kept, also of files that are still open, and when the store has written what it would
    /// have written later. Given up in the middle, what is not there by then is fetched again.
    pub async fn put_away(&self) {
        if !self.core.inner.is_disconnected() {
            self.core.files.all().iter().for_each(|file| self.core.filler.closed(file));
        }
        let _ = tokio::time::timeout(SETTLING, self.settled()).await;
        let store = self.core.store.clone();
        // Without a runtime to wait on there is nobody to wait.
        let _ = tokio::task::spawn_blocking(move || store.flush()).await;
    }
}

impl Core {
    pub(crate) fn is_immutable(&self, path: &RemotePath) -> bool {
        self.config.mode == Mode::Immutable || self.config.immutable.contain(path)
    }

    /// What counts for `path` now.
    pub(crate) fn standing(&self, path: &RemotePath) -> Standing {
        if self.config.offline || self.is_away() {
            Standing::Only
        } else if self.is_immutable(path) {
            Standing::Known
        } else {
            Standing::Ask
        }
    }

    fn is_away(&self) -> bool {
        self.config.stale_ok && self.inner.is_disconnected()
    }

    /// Asks the remote, for as long as it is there if it need not be.
    pub(crate) async fn asking<T>(
        &self,
        question: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        if !self.config.stale_ok {
            return question.await;
        }
        tokio::select! {
            biased;
            answer = question => answer,
            () = self.inner.disconnected() => Err(base::Errno::EHOSTDOWN),
        }
    }

    /// `what` of `path` is not in the cache. Offline that is an error. While the remote is away with
    /// `stale_ok` it is not: the caller sends the request, which waits or fails as without a cache.
    pub(crate) fn unless_offline(&self, what: &'static str, path: &RemotePath) -> Result<()> {
        match self.config.offline {
            true => Err(self.misses.tell(what, path)),
            false => Ok(()),
        }
    }

    /// Whether a question that ended so is to be answered by what is known.
    pub(crate) fn falls_back<T>(&self, answer: &Result<T>) -> bool {
        let lost = matches!(answer, Err(base::Errno::EHOSTDOWN | base::Errno::ETIMEDOUT));
        self.config.stale_ok && lost
    }

    /// The identity under which what is told of `path` is recorded.
    pub(crate) fn source(&self, path: &RemotePath) -> &SourceId {
        if self.is_immutable(path) { &self.pinned } else { &self.config.source }
    }

    /// The identities under which what counts for `path` may be recorded, the best first.
    pub(crate) fn sources(&self, path: &RemotePath, standing: Standing) -> Vec<&SourceId> {
        let (pinned, usual) = (&self.pinned, &self.config.source);
        match (standing, self.is_immutable(path)) {
            (Standing::Ask, _) => vec![usual],
            (Standing::Known, _) => vec![pinned],
            (Standing::Only, true) => vec![pinned, usual],
            (Standing::Only, false) => vec![usual, pinned],
        }
    }

    /// The identities under which the content of `path` may be recorded, the best first. What was
    /// found current where things change is so where they do not, too.
    pub(crate) fn content_sources(&self, path: &RemotePath, standing: Standing) -> Vec<&SourceId> {
        match standing {
            Standing::Ask => vec![&self.config.source],
            Standing::Known => vec![&self.pinned, &self.config.source],
            Standing::Only => self.sources(path, standing),
        }
    }

    pub(crate) fn both_sources(&self) -> [&SourceId; 2] {
        [&self.config.source, &self.pinned]
    }

    /// The attributes of the directory that are recorded do not count any longer.
    pub(crate) fn doubt(&self, dir: &RemotePath) {
        let mut doubtful = self.doubtful.lock().unwrap_or_else(PoisonError::into_inner);
        if doubtful.len() <= MAX_DOUBTFUL {
            doubtful.insert(dir.clone());
        }
    }

    /// They were asked for.
    pub(crate) fn trust(&self, dir: &RemotePath) {
        let mut doubtful = self.doubtful.lock().unwrap_or_else(PoisonError::into_inner);
        if !doubtful.is_empty() && doubtful.len() <= MAX_DOUBTFUL {
            doubtful.remove(dir);
        }
    }

    pub(crate) fn is_doubtful(&self, dir: &RemotePath) -> bool {
        let doubtful = self.doubtful.lock().unwrap_or_else(PoisonError::into_inner);
        doubtful.len() > MAX_DOUBTFUL || doubtful.contains(dir)
    }

    /// Whether the file may have another name that was made here.
    pub(crate) fn is_linked(&self, path: &RemotePath) -> bool {
        let linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        linked.len() > MAX_LINKED || linked.contains(path)
    }

    pub(crate) fn note_linked(&self, path: &RemotePath) {
        let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        if linked.len() <= MAX_LINKED {
            linked.insert(path.clone());
        }
    }

    /// The names of linked files within `path`.
    pub(crate) fn linked_within(&self, path: &RemotePath) -> Vec<RemotePath> {
        let linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        linked.iter().filter(|at| at.is_within(path)).cloned().collect()
    }
}
