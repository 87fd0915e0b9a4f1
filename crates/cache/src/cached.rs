//! A caching [`Remote`] around a [`Remote`]: keeps file contents and metadata on the disk, and
//! answers from them.
//!
//! It sits above the layer that outlives connections, one for each source. `vfs` above it decides
//! within one mount how long attributes are valid and when an open must be revalidated; this layer
//! decides what outlives a mount, and what many processes share.
//!
//! | request | close-to-open | immutable | offline, or unreachable with `stale_ok` |
//! |---|---|---|---|
//! | attributes, names, link targets | requested, and recorded | requested once | the records, else `EIO` |
//! | open to read, content cached | one round trip | none | none |
//! | open to read, content not cached | opened, and kept when read | opened, and kept when read | `EIO` |
//! | change | passed on; its records are forgotten | passed on; its records are forgotten | `EROFS` offline |
//!
//! Records from a tree that may change are not used for an immutable one later: both kinds are kept
//! apart, under two identities of the source. So the first `immutable` mount queries everything
//! once more. Contents are shared by both.
//!
//! Invariants:
//! 1. A cached content is shown for a file only if the remote returned, for this open, the size and
//!    mtime with which it was read, and the same inode number and ctime where it returns them; or
//!    its digest; or if the layer above has them from a watch (`open_stored`); or if the tree is
//!    immutable, or unreachable.
//! 2. A content is completed only if it was read between two equal answers of the server, and if no
//!    change can be invisible in them (`write_behind`, `validators`).
//! 3. An answer that was requested before a change made here is never recorded after it
//!    (`changes`), and is not used if another mount has recorded it.
//! 4. An open file shows one content, or the present one once the remote has reported a change of
//!    the file. Before a change made here that affects it, it is opened at the server (`files`).
//! 5. After damage, a full disk or a failing store the bytes come from the server; other bytes are
//!    never shown.
//! 6. A name is absent only if a complete listing lacks it, or the remote says so.
//! 7. Locks are held for a few instructions, never across an await.
//!
//! Not here: readahead (`vfs`), connections (`recovery`), the files of the store (`store`).

mod changes;
mod config;
mod digests;
mod files;
mod idle_gate;
mod listing;
mod mutations;
mod names;
mod opening;
mod pending_listings;
mod reading;
mod remote;
mod validators;
mod warm;
mod write_behind;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Errno, Mutex, Owner, Remote, RemotePath, RenameMode, Result, Table};
use tokio::time::Instant;

pub use config::{CachedConfig, Mode, SubTrees};
pub use digests::{DigestSource, RemoteDigests};
pub use warm::{Presence, Warmed};

use crate::{SourceId, Store};
use changes::{Changes, Scope, fold};
use digests::ServerDigests;
use files::Files;
use listing::OpenDir;
use pending_listings::PendingListings;
use validators::Validators;
use write_behind::WriteBehind;
use writer::Recorder;

/// A remote whose contents are cached on the disk. See the [module](self).
///
/// To be used within a tokio runtime.
pub struct Cached {
    core: Arc<Core>,
    /// Dropping it ends the background tasks of this crate.
    _owner: Owner,
}

/// Counters of a [`Cached`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedStatus {
    /// Opens for reading whose content was cached.
    pub hits: u64,
    /// Opens for reading that went to the server.
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
    /// Requests that could not be answered offline.
    pub missed_offline: u64,
}

/// The counters so far.
#[derive(Default)]
pub(crate) struct Counters(Mutex<CachedStatus>);

impl Counters {
    /// Changes the counters.
    pub(crate) fn add(&self, change: impl FnOnce(&mut CachedStatus)) {
        change(&mut self.0.lock());
    }
}

/// Where a path is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPolicy {
    /// At the server.
    Server,
    /// In the cache; at the server if it is not there.
    CacheFirst,
    /// In the cache alone: the server cannot be queried.
    CacheOnly,
}

/// How long a request waits for the remote.
#[derive(Clone, Copy)]
pub(crate) enum RemoteWait {
    /// While it is reachable, where the cache may be used instead.
    WhileConnected,
    /// Without a limit.
    Unbounded,
}

/// A set of paths, bounded to some megabytes: beyond that directories stand for all below them.
#[derive(Default)]
pub(crate) struct PathSet(Mutex<HashMap<Scope, ()>>);

impl PathSet {
    /// Bound on the paths.
    const MAX: usize = 16 << 10;

    /// Adds a path. Returns whether directories stand for their paths from now on.
    pub(crate) fn insert(&self, path: &RemotePath) -> bool {
        let mut paths = self.0.lock();
        paths.insert(Scope::Entry(path.clone()), ());
        if paths.len() <= PathSet::MAX {
            return false;
        }
        let is_first = !paths.keys().any(|scope| matches!(scope, Scope::Subtree(_)));
        fold(&mut paths, PathSet::MAX / 2);
        is_first
    }

    /// Removes a path, unless a directory stands for it.
    pub(crate) fn remove(&self, path: &RemotePath) {
        let mut paths = self.0.lock();
        if !paths.is_empty() {
            paths.remove(&Scope::Entry(path.clone()));
        }
    }

    fn contains(&self, path: &RemotePath) -> bool {
        has_path(&self.0.lock(), path)
    }

    /// `from`, with all below it, was renamed to `to`.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        let mut paths = self.0.lock();
        // They may be two names of one file: rename(2) leaves both.
        let may_be_one = || has_path(&paths, from) && has_path(&paths, to);
        if paths.is_empty() || mode != RenameMode::Exchange && may_be_one() {
            return;
        }
        let mut moved = Vec::new();
        for path in [from, to] {
            if is_in_tree(&paths, path.parent().as_ref()) {
                moved.extend(mode.moved(path, from, to).map(Scope::Subtree));
            }
        }
        let is_touched = |path: &RemotePath| path.is_within(from) || path.is_within(to);
        for (scope, ()) in paths.extract_if(|scope, ()| is_touched(scope.path())) {
            let is_tree = matches!(scope, Scope::Subtree(_));
            let scope_of = if is_tree { Scope::Subtree } else { Scope::Entry };
            moved.extend(mode.moved(scope.path(), from, to).map(scope_of));
        }
        moved.retain(|scope| !is_in_tree(&paths, Some(scope.path())));
        paths.extend(moved.into_iter().map(|scope| (scope, ())));
        if paths.len() > PathSet::MAX {
            fold(&mut paths, PathSet::MAX / 2);
        }
    }
}

fn has_path(paths: &HashMap<Scope, ()>, path: &RemotePath) -> bool {
    !paths.is_empty()
        && (paths.contains_key(&Scope::Entry(path.clone())) || is_in_tree(paths, Some(path)))
}

/// Whether a directory of the set that stands for all below it is at `path` or above.
fn is_in_tree(paths: &HashMap<Scope, ()>, path: Option<&RemotePath>) -> bool {
    let mut above = std::iter::successors(path.cloned(), RemotePath::parent);
    above.any(|dir| paths.contains_key(&Scope::Subtree(dir)))
}

/// Time between two log lines about one kind of miss offline. A walk through a tree that is not
/// cached would fill the log otherwise.
const LOG_PAUSE: Duration = Duration::from_secs(30);

/// How long the end of a mount waits for the latest data: half the time that a mount has to end,
/// since a host that does not answer must not keep records from being written.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// The state shared by all parts.
pub(crate) struct Core {
    pub(crate) inner: Arc<dyn Remote>,
    pub(crate) store: Store,
    pub(crate) config: CachedConfig,
    /// [`CachedConfig::stale_ok`] as it is now.
    stale_ok: AtomicBool,
    /// The identity for records of immutable trees.
    pinned: SourceId,
    pub(crate) files: Files,
    pub(crate) listings: Table<OpenDir>,
    pub(crate) pending_listings: PendingListings,
    pub(crate) changes: Changes,
    pub(crate) recorder: Recorder,
    pub(crate) validators: Validators,
    pub(crate) write_behind: WriteBehind,
    pub(crate) server_digests: ServerDigests,
    pub(crate) counters: Arc<Counters>,
    /// When each kind of miss offline was logged last.
    misses_logged_at: Mutex<HashMap<&'static str, Instant>>,
    /// Names of files that have another name, too: a write through that name would not be noticed
    /// here.
    pub(crate) linked: PathSet,
    /// Directories in which names were changed here: their recorded attributes, among them the
    /// mtime, are invalid until they are requested.
    pub(crate) invalid_dirs: PathSet,
}

impl Cached {
    /// Wraps `inner`, with the contents in `store`. Fails when a thread cannot be started.
    pub fn new(
        inner: Arc<dyn Remote>,
        store: Store,
        config: CachedConfig,
    ) -> std::io::Result<Arc<Cached>> {
        let owner = Owner::default();
        let recorder = Recorder {
            store: store.clone(),
            pending_listings: PendingListings::default(),
            changes: Changes::new(config.request_timeout),
        };
        let counters = Arc::<Counters>::default();
        let core = Arc::new(Core {
            files: Files::new(inner.clone(), config.offline),
            listings: Table::default(),
            validators: Validators::default(),
            write_behind: WriteBehind::new(recorder.clone(), counters.clone(), owner.lifetime())?,
            pending_listings: recorder.pending_listings.clone(),
            changes: recorder.changes.clone(),
            recorder,
            server_digests: ServerDigests::default(),
            counters,
            misses_logged_at: Mutex::default(),
            linked: PathSet::default(),
            invalid_dirs: PathSet::default(),
            pinned: Cached::pinned_source(&config.source),
            inner,
            store,
            stale_ok: AtomicBool::new(config.stale_ok),
            config,
        });
        Ok(Arc::new(Cached { core, _owner: owner }))
    }

    /// The identity under which the store keeps records of `source` that are valid for ever.
    /// Forgetting or pinning has to be done under both identities.
    pub fn pinned_source(source: &SourceId) -> SourceId {
        SourceId::new(&[source.as_bytes(), &b" immutable"[..]].concat())
    }

    /// Changes [`CachedConfig::stale_ok`]. A request that waits for the remote goes on waiting.
    pub fn set_stale_ok(&self, stale_ok: bool) {
        self.core.stale_ok.store(stale_ok, Ordering::Relaxed);
    }

    /// The counters so far.
    pub fn status(&self) -> CachedStatus {
        *self.core.counters.0.lock()
    }

    /// Returns when all data whose reader has closed the file or reached its end is in the store,
    /// as far as it is kept.
    pub async fn wait_idle(&self) {
        self.core.write_behind.wait_idle().await;
    }

    /// Ends a mount: returns when all data read so far is in the store, as far as it is kept, also
    /// of open files, and when the store has written its deferred records. If it is cancelled, data
    /// that is not written yet is fetched again.
    pub async fn shutdown(&self) {
        if !self.core.inner.is_disconnected() {
            self.core.flush_all();
        }
        let _ = tokio::time::timeout(SHUTDOWN_WAIT, self.wait_idle()).await;
        let store = self.core.store.clone();
        // Fails without a runtime, and then nothing waits.
        let _ = tokio::task::spawn_blocking(move || store.flush()).await;
    }
}

impl Core {
    /// Passes on the data of all open files.
    pub(crate) fn flush_all(&self) {
        let files = self.files.matching(|_| true);
        files.iter().for_each(|file| self.write_behind.flush(file));
    }

    pub(crate) fn is_immutable(&self, path: &RemotePath) -> bool {
        self.config.mode == Mode::Immutable || self.config.immutable.contain(path)
    }

    /// The policy for `path` at present.
    pub(crate) fn read_policy(&self, path: &RemotePath) -> ReadPolicy {
        if self.config.offline || self.is_disconnected() {
            ReadPolicy::CacheOnly
        } else if self.is_immutable(path) {
            ReadPolicy::CacheFirst
        } else {
            ReadPolicy::Server
        }
    }

    pub(crate) fn stale_ok(&self) -> bool {
        self.stale_ok.load(Ordering::Relaxed)
    }

    fn is_disconnected(&self) -> bool {
        self.stale_ok() && self.inner.is_disconnected()
    }

    /// Runs `request`; with `stale_ok` only while the remote is reachable, unless it may wait
    /// without a limit.
    pub(crate) async fn within<T>(
        &self,
        wait: RemoteWait,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match wait {
            RemoteWait::WhileConnected if self.stale_ok() => tokio::select! {
                biased;
                answer = request => answer,
                () = self.inner.disconnected() => Err(Errno::EHOSTDOWN),
            },
            _ => request.await,
        }
    }

    /// The answer to a query of `path`: what is `known` where the policy says so, or the remote
    /// turns out to be unreachable; else that of `request`. `what` names a missing answer in the
    /// log.
    pub(crate) async fn answer<T: Send, F: Future<Output = Result<T>> + Send>(
        &self,
        what: &'static str,
        path: &RemotePath,
        known: impl Fn(ReadPolicy) -> Option<Result<T>> + Send,
        request: impl Fn(RemoteWait) -> F + Send,
    ) -> Result<T> {
        let policy = self.read_policy(path);
        if policy != ReadPolicy::Server
            && let Some(known) = known(policy)
        {
            return known;
        }
        if policy != ReadPolicy::CacheOnly {
            let answer = request(RemoteWait::WhileConnected).await;
            if !self.falls_back(&answer) {
                return answer;
            }
            if let Some(known) = known(ReadPolicy::CacheOnly) {
                return known;
            }
        }
        self.unless_offline(what, path)?;
        request(RemoteWait::Unbounded).await
    }

    /// `what` of `path` is not in the cache. Offline that is an error. While the remote is away
    /// with `stale_ok` it is not: the caller sends the request, which waits or fails as without a
    /// cache.
    pub(crate) fn unless_offline(&self, what: &'static str, path: &RemotePath) -> Result<()> {
        match self.config.offline {
            true => Err(self.missed_offline(what, path)),
            false => Ok(()),
        }
    }

    /// Counts and logs that `what` of `path` is not cached; returns the error for it.
    pub(crate) fn missed_offline(&self, what: &'static str, path: &RemotePath) -> Errno {
        self.counters.add(|it| it.missed_offline += 1);
        let count = self.counters.0.lock().missed_offline;
        let (mut logged_at, now) = (self.misses_logged_at.lock(), Instant::now());
        if logged_at.get(what).is_none_or(|last| now.duration_since(*last) >= LOG_PAUSE) {
            logged_at.insert(what, now);
            tracing::warn!(
                "{path}: {what} not in the cache, and the server is not queried: EIO ({count} so \
                 far); 'sshoal warm' fetches files for offline use"
            );
        }
        Errno::EIO
    }

    /// Whether a request with this result is answered from the cache instead.
    pub(crate) fn falls_back<T>(&self, answer: &Result<T>) -> bool {
        let lost = answer.as_ref().is_err_and(|error| error.is_loss());
        self.stale_ok() && lost
    }

    /// The identity under which answers about `path` are recorded.
    pub(crate) fn source(&self, path: &RemotePath) -> &SourceId {
        if self.is_immutable(path) { &self.pinned } else { &self.config.source }
    }

    /// The identities under which `path` may be recorded, the best first.
    pub(crate) fn sources(&self, path: &RemotePath, policy: ReadPolicy) -> Vec<&SourceId> {
        let (pinned, usual) = (&self.pinned, &self.config.source);
        match (policy, self.is_immutable(path)) {
            (ReadPolicy::Server, _) => vec![usual],
            (ReadPolicy::CacheFirst, _) => vec![pinned],
            (ReadPolicy::CacheOnly, true) => vec![pinned, usual],
            (ReadPolicy::CacheOnly, false) => vec![usual, pinned],
        }
    }

    /// The identities under which the content of `path` may be recorded, the best first. A content
    /// found current where the tree may change is also valid where it does not.
    pub(crate) fn content_sources(&self, path: &RemotePath, policy: ReadPolicy) -> Vec<&SourceId> {
        match policy {
            ReadPolicy::Server => vec![&self.config.source],
            ReadPolicy::CacheFirst => vec![&self.pinned, &self.config.source],
            ReadPolicy::CacheOnly => self.sources(path, policy),
        }
    }

    pub(crate) fn both_sources(&self) -> [&SourceId; 2] {
        [&self.config.source, &self.pinned]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    #[test]
    fn of_very_many_paths_only_those_near_them_are_taken_for_members() {
        let paths = PathSet::default();
        paths.insert(&path("near"));
        let many = PathSet::MAX + 1;
        let folded =
            (0..many).filter(|number| paths.insert(&path(&format!("d/{}/{number}", number / 100))));
        assert_eq!(folded.count(), 1);
        for member in ["near", "d/0/0", "d/163/16384"] {
            assert!(paths.contains(&path(member)), "{member}");
        }
        for other in ["other", "e/0/0", "d"] {
            assert!(!paths.contains(&path(other)), "{other}");
        }
        // What is moved out of a directory that stands for its paths may be one of them.
        paths.renamed(&path("d/0/0"), &path("e/moved"), RenameMode::Replace);
        assert!(paths.contains(&path("e/moved")));
        paths.renamed(&path("d"), &path("f"), RenameMode::Replace);
        assert!(paths.contains(&path("f/0/1")) && !paths.contains(&path("d/0/1")));
    }

    /// `rsync` renames each file when it is complete.
    #[test]
    fn renames_do_not_extend_the_set_beyond_its_bound() {
        let paths = PathSet::default();
        let count = || paths.0.lock().len();
        paths.0.lock().insert(Scope::Subtree(path("d")), ());
        for mode in [RenameMode::Replace, RenameMode::Exchange] {
            paths.renamed(&path("d/.x"), &path("d/x"), mode);
            assert_eq!(count(), 1, "the directory stands for both");
        }
        (1..PathSet::MAX).for_each(|number| _ = paths.insert(&path(&format!("g/{number}"))));
        assert_eq!(count(), PathSet::MAX);
        paths.renamed(&path("d/x"), &path("e/f/x"), RenameMode::Replace);
        assert!(count() < PathSet::MAX);
        assert!(paths.contains(&path("e/f/x")) && !paths.contains(&path("other")));
    }

    #[test]
    fn names_stay_in_the_set_after_a_rename_that_may_do_nothing() {
        let paths = PathSet::default();
        for member in ["a", "d/b"] {
            paths.insert(&path(member));
        }
        paths.0.lock().insert(Scope::Subtree(path("d")), ());
        for (from, to) in [("a", "d/x"), ("d/x", "a"), ("a", "d/b"), ("d/b", "a")] {
            paths.renamed(&path(from), &path(to), RenameMode::Replace);
            assert!(paths.contains(&path(from)) && paths.contains(&path(to)), "{from} to {to}");
        }
    }

    #[test]
    fn a_removed_or_replaced_path_is_not_in_the_set() {
        let paths = PathSet::default();
        for member in ["a", "b", "c", "d/e"] {
            paths.insert(&path(member));
        }
        paths.remove(&path("a"));
        assert!(!paths.contains(&path("a")));
        // They may be one file.
        paths.renamed(&path("b"), &path("c"), RenameMode::Replace);
        assert!(paths.contains(&path("b")) && paths.contains(&path("c")));
        paths.renamed(&path("x"), &path("c"), RenameMode::Replace);
        assert!(!paths.contains(&path("c")));
        paths.renamed(&path("d"), &path("y"), RenameMode::Exchange);
        assert!(paths.contains(&path("y/e")) && !paths.contains(&path("d/e")));
        paths.renamed(&path("y"), &path("d"), RenameMode::Exchange);
        assert!(paths.contains(&path("d/e")));
    }
}
