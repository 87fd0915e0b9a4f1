//! The state that all operations share: the remote, the settings, the tree, open files and
//! directories.
//!
//! Operations are methods of [`Vfs`](crate::Vfs), which owns the one permanent reference. A
//! background task holds a reference while it runs; [`Vfs`](crate::Vfs) stops these tasks when it
//! is dropped.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use base::{Attr, Errno, FileKind, Mutex, Remote, RemotePath, Result, Table};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::background::Background;
use crate::config::{Config, Consistency, Prefetch, Timeout};
use crate::cover::KERNEL_TTL;
use crate::directory::OpenDirectory;
use crate::dirty::Dirty;
use crate::fractions::Fractions;
use crate::inode::{Inode, State, StateVersion, Validator};
use crate::invalidate::Invalidate;
use crate::locks::FileLocks;
use crate::lookup::MAX_ATTEMPTS;
use crate::open::{LostWrite, OpenFile};
use crate::prefetch::Prefetcher;
use crate::readahead::UsedBytes;
use crate::readdirplus::ReaddirplusPolicy;
use crate::repeat::Repeat;
use crate::server_close::PendingCloses;
use crate::stats::Counters;
use crate::tree::{ChangeCounter, InodeBudget, RequestStamp, Tree};
use crate::watch::Watching;
use crate::xattr::KnownXattrs;
use crate::{Entry, Ino, Stat};

/// See the [module](self).
pub struct Shared {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) config: Config,
    /// What [`Vfs::configure`](crate::Vfs::configure) has set; see [`Shared::live`].
    pub(crate) live: RwLock<Config>,
    tree: Mutex<Tree>,
    pub(crate) change_counter: Arc<ChangeCounter>,
    pub(crate) fractions: Fractions,
    pub(crate) files: Table<OpenFile>,
    /// The files of released open files whose writes are in flight.
    pub(crate) released: Table<Inode>,
    pub(crate) directories: Table<OpenDirectory>,
    /// Permits are bytes; each write holds its bytes until the server has acknowledged them.
    pub(crate) dirty: Arc<Dirty>,
    /// The server has refused an attribute change that had already returned.
    pub(crate) refuses_attributes: AtomicBool,
    /// A symbolic link that leads out of the mount was refused.
    pub(crate) has_refused_link: AtomicBool,
    pub(crate) lost_write: Arc<LostWrite>,
    /// Handles of written files that are being closed at the server.
    pub(crate) closing: Arc<PendingCloses>,
    /// The last statistics of the root's file system.
    pub(crate) last_statfs: Mutex<Option<base::StatVfs>>,
    /// Files that may have [coalesced](crate::writes) writes that are not sent yet.
    coalescing: Mutex<Vec<Weak<Inode>>>,
    pub(crate) known_xattrs: Mutex<KnownXattrs>,
    pub(crate) readahead_used: Arc<UsedBytes>,
    pub(crate) background: Background,
    pub(crate) prefetch: Prefetcher,
    pub(crate) readdirplus_policy: ReaddirplusPolicy,
    pub(crate) counters: Counters,
    pub(crate) locks: FileLocks,
    pub(crate) watching: Watching,
    pub(crate) repeat: OnceLock<Arc<dyn Repeat>>,
    pub(crate) invalidate: OnceLock<Arc<dyn Invalidate>>,
    /// Notified when a change of names has ended.
    pub(crate) names_changed: Notify,
}

impl Shared {
    /// `config` must be the result of [`Config::effective`].
    pub(crate) fn new(remote: Arc<dyn Remote>, config: Config) -> Shared {
        let change_counter = Arc::<ChangeCounter>::default();
        let dirty_bytes = config.dirty_bytes;
        let inode_budget = InodeBudget::new(config.metadata_bytes);
        let live = RwLock::new(config.clone());
        let mut tree = Tree::new(change_counter.clone(), inode_budget);
        if config.consistency == Consistency::Watch {
            tree.keep_covers();
        }
        if config.is_union {
            // In a tree that does not change, nothing moves from one source to another, and what is
            // kept of it may be from before a server had identities.
            tree.show_union(config.consistency != Consistency::Immutable);
        }
        Shared {
            remote,
            config,
            live,
            tree: Mutex::new(tree),
            change_counter,
            fractions: Fractions::default(),
            files: Table::default(),
            released: Table::default(),
            directories: Table::default(),
            dirty: Dirty::new(dirty_bytes),
            refuses_attributes: AtomicBool::new(false),
            has_refused_link: AtomicBool::new(false),
            lost_write: Arc::default(),
            closing: Arc::default(),
            last_statfs: Mutex::default(),
            coalescing: Mutex::default(),
            known_xattrs: Mutex::default(),
            readahead_used: Arc::default(),
            background: Background::default(),
            prefetch: Prefetcher::default(),
            readdirplus_policy: ReaddirplusPolicy::default(),
            counters: Counters::default(),
            locks: FileLocks::default(),
            watching: Watching::default(),
            repeat: OnceLock::new(),
            invalidate: OnceLock::new(),
            names_changed: Notify::new(),
        }
    }

    /// A setting that [can be changed](crate::Vfs::configure) while the file system is in use.
    pub(crate) fn live<T>(&self, read: impl FnOnce(&Config) -> T) -> T {
        read(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether `level` is prefetched.
    pub(crate) fn prefetches(&self, level: Prefetch) -> bool {
        self.live(|it| it.prefetch >= level)
    }

    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock()
    }

    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.tree().get(ino).ok_or(Errno::ESTALE)
    }

    /// A path of `ino`; `ESTALE` for an orphan.
    pub(crate) fn path(&self, ino: Ino) -> Result<RemotePath> {
        let mut tree = self.tree();
        tree.path(ino).ok_or_else(|| tree.note_lost_name(ino))
    }

    /// How long attributes and names of files of this kind are valid.
    pub(crate) fn timeout(&self, kind: FileKind) -> Timeout {
        self.live(|it| if kind == FileKind::Directory { it.dirs } else { it.files })
    }

    /// Whether listings are cached at all.
    pub(crate) fn keeps_listings(&self) -> bool {
        self.live(|it| !it.dirs.min.is_zero() || !it.negative.is_zero())
    }

    /// The attributes of `inode` for an application, if the server's are `attr` or what was
    /// recorded since. The kernel may cache them while they are valid here.
    pub(crate) fn stat(&self, inode: &Inode, attr: &Attr) -> Result<Stat> {
        let (attr, times, nlink, ttl) = {
            let mut state = inode.state();
            // An open that was registered meanwhile relies on the size that it has recorded.
            let attr = state.last_attr().filter(|_| !state.is_invalidated()).unwrap_or(*attr);
            let known = state.last_attr() == Some(attr);
            let left = state.valid_until().saturating_duration_since(Instant::now());
            let left = if known { left } else { Duration::ZERO };
            let ttl = self.live(|it| it.kernel_attr).map_or(left, |cap| cap.min(left));
            let ttl = state.note_kernel_reply(attr.size, ttl);
            (attr, state.times(&attr), state.links(), ttl)
        };
        let (atime, mtime, ctime) = times;
        let attr = self.config.idmap.attr_to_local(&self.config.shown, attr)?;
        Ok(Stat { number: inode.number, attr: Attr { atime, mtime, ..attr }, nlink, ctime, ttl })
    }

    /// The entry of a name that led to `inode` when the server returned `attr`.
    pub(crate) fn entry(&self, inode: &Inode, attr: &Attr) -> Result<Entry> {
        let until = inode.state().valid_until();
        self.entry_until(inode, attr, until)
    }

    /// The entry of a name that is valid until `until`; the attributes may be valid for longer.
    pub(crate) fn entry_until(&self, inode: &Inode, attr: &Attr, until: Instant) -> Result<Entry> {
        let stat = self.stat(inode, attr)?;
        let until = until.min(inode.state().valid_until());
        let left = until.saturating_duration_since(Instant::now());
        let ttl = self.live(|it| it.kernel_entry).map_or(left, |cap| cap.min(left));
        let ttl = if inode.has_several_names() { Duration::ZERO } else { ttl };
        Ok(Entry { ino: inode.ino, stat, ttl })
    }

    /// Whether the path of `inode` may have changed since `stamp`, when it was `path`.
    pub(crate) fn moved_since(
        &self,
        inode: &Inode,
        path: &RemotePath,
        stamp: RequestStamp,
    ) -> bool {
        let tree = self.tree();
        !tree.paths_unchanged_since(stamp.seq) || !tree.has_path(inode.ino, path)
    }

    /// Whether `path`, the path of `ino` at `stamp`, may have led elsewhere since, or may do so
    /// now, because of a local change.
    pub(crate) fn path_changed_since(
        &self,
        ino: Ino,
        path: &RemotePath,
        stamp: RequestStamp,
    ) -> bool {
        let tree = self.tree();
        !tree.has_path(ino, path) || !tree.path_unchanged_since(ino, stamp.seq)
    }

    /// The result of a `request` that changes nothing, for the path of `ino`. The request is
    /// repeated if the path may have led elsewhere because of a local change.
    pub(crate) async fn by_path<T, F: Future<Output = Result<T>>>(
        &self,
        ino: Ino,
        request: impl Fn(RemotePath, RequestStamp) -> F,
    ) -> Result<T> {
        for attempt in 1.. {
            self.await_moves(ino).await;
            let (path, stamp) = (self.path(ino)?, self.stamp_request());
            let result = request(path.clone(), stamp).await;
            if attempt == MAX_ATTEMPTS || !self.path_changed_since(ino, &path, stamp) {
                return result;
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Notes that `inode` has coalesced writes.
    pub(crate) fn note_coalescing(&self, inode: &Arc<Inode>) {
        let mut coalescing = self.coalescing.lock();
        if !coalescing.iter().any(|known| known.as_ptr() == Arc::as_ptr(inode)) {
            coalescing.retain(|known| known.strong_count() > 0);
            coalescing.push(Arc::downgrade(inode));
        }
    }

    /// The stamp of a request by name that is about to be sent. The name may be another hard link
    /// of a file that is being written, so all coalesced writes are sent first. Must be called
    /// without a lock.
    pub(crate) fn stamp_request(&self) -> RequestStamp {
        let coalescing = std::mem::take(&mut *self.coalescing.lock());
        for inode in coalescing.iter().filter_map(Weak::upgrade) {
            if !inode.writes.send_complete(Instant::now()) {
                self.note_coalescing(&inode);
            }
        }
        RequestStamp { seq: self.change_counter.now(), at: Instant::now() }
    }

    /// Records attributes that the server returned for a name of `inode`, unless the inode was
    /// changed locally since the request.
    pub(crate) fn record_attr(&self, inode: &Inode, attr: &Attr, stamp: RequestStamp) {
        self.record_attr_at(inode, attr, stamp, Instant::now());
    }

    /// Like [`Shared::record_attr`], for an answer that was received at `received_at`.
    pub(crate) fn record_attr_at(
        &self,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
        received_at: Instant,
    ) {
        self.record_in(&mut inode.state(), inode, attr, stamp, received_at);
    }

    /// Like [`Shared::record_attr`], unless a file was opened since the inode was at `version`: it
    /// may be another file than the answer is of. Returns whether none was.
    pub(crate) fn record_attr_since(
        &self,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
        version: StateVersion,
    ) -> bool {
        let mut state = inode.state();
        let opened = version.has_newer_open(&state.version());
        if !opened {
            self.record_in(&mut state, inode, attr, stamp, Instant::now());
        }
        !opened
    }

    /// Like [`Shared::record_attr`], for an answer that the kernel does not wait for. It is dropped
    /// if an open handle may be of another file, or a later answer contradicts it. Returns whether
    /// it was used.
    pub(crate) fn record_attr_in_background(
        &self,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
    ) -> bool {
        let mut state = inode.state();
        let known = state.last_attr().map(|known| Validator::of(&known));
        let open = state.open.iter().any(|open| open.remote.opened().is_some());
        let later = known.is_some() && state.received_at() > stamp.at;
        let is_usable = inode.kind == attr.kind
            && inode.is_same_file(&state, attr) != Some(false)
            && (known == Some(Validator::of(attr)) || !(open || later));
        if is_usable {
            self.record_in(&mut state, inode, attr, stamp, Instant::now());
        }
        is_usable
    }

    /// Like [`Shared::record_attr_at`], for the inode that has `state`.
    pub(crate) fn record_in(
        &self,
        state: &mut State,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
        received_at: Instant,
    ) {
        // A directory may change all the time, and each name in it needs its attributes.
        let is_busy = inode.kind == FileKind::Directory && state.is_outdated_by_reports_only(stamp);
        if is_busy || self.is_newer(state, stamp) {
            state.note_name_validated(stamp.at);
            self.store_attr(state, inode, attr, received_at, stamp.at);
        }
        if is_busy {
            state.limit_validity(KERNEL_TTL);
        }
    }

    /// Whether an answer to a request is to be recorded.
    fn is_newer(&self, state: &State, stamp: RequestStamp) -> bool {
        state.unchanged_since(stamp.seq) && !self.keeps_attr_forever(state)
    }

    /// Records attributes that the server returned for an open handle, wherever the names lead by
    /// now; but not if they contradict an answer that was requested later: over several sessions,
    /// the older answer may arrive last. Returns whether they were recorded.
    pub(crate) fn record_attr_by_handle(
        &self,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
        received_at: Instant,
    ) -> bool {
        let mut state = inode.state();
        let is_newer = self.is_newer(&state, stamp) && !state.has_overtaken(attr, stamp.at);
        if is_newer {
            self.store_attr(&mut state, inode, attr, received_at, stamp.at);
        }
        is_newer
    }

    /// Stores attributes that were requested at `requested_at` and received at `received_at`, after
    /// all local changes.
    pub(crate) fn store_attr(
        &self,
        state: &mut State,
        inode: &Inode,
        attr: &Attr,
        received_at: Instant,
        requested_at: Instant,
    ) {
        let differs = |known: Attr| Validator::of(&known) != Validator::of(attr);
        let is_other_link =
            inode.kind == FileKind::Symlink && state.last_attr().is_some_and(differs);
        if let Some(kernel) = self.invalidate.get().filter(|_| is_other_link) {
            // It may cache the target as content.
            kernel.content(inode.ino);
        }
        state.set_attr(*attr, received_at, requested_at, self.timeout(inode.kind));
        if state.wants_fraction() {
            state.set_fraction(self.fractions.next(attr.mtime.secs));
        }
    }

    /// Whether the cached attributes stay valid whatever the server returns.
    pub(crate) fn keeps_attr_forever(&self, state: &State) -> bool {
        self.config.consistency == Consistency::Immutable
            && state.fresh_attr(Instant::now()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LookupResult, Vfs};
    use testkit::MemRemote;

    async fn with_one_file() -> (Vfs, Arc<Inode>, Attr) {
        let remote = Arc::new(MemRemote::new());
        remote.put_file("f", "content");
        let vfs = Vfs::new(remote, Config::default());
        let Ok(LookupResult::Found(entry)) = vfs.lookup(Ino::ROOT, b"f").await else {
            panic!("it is there")
        };
        let inode = vfs.inode(entry.ino).unwrap();
        (vfs, inode, entry.stat.attr)
    }

    /// An answer that another one has overtaken: the kernel had its size of the file, though an
    /// open relied on the other one.
    #[tokio::test]
    async fn the_kernel_gets_what_was_recorded_last() {
        let (vfs, inode, old) = with_one_file().await;
        let new = Attr { size: old.size + 1, ..old };
        vfs.record_attr(&inode, &new, vfs.stamp_request());
        assert_eq!(vfs.stat(&inode, &old).unwrap().attr.size, new.size);
        // A local change has outdated what was recorded.
        inode.state().invalidate();
        assert_eq!(vfs.stat(&inode, &old).unwrap().attr.size, old.size);
    }

    /// Over another session than that of the later answer.
    #[tokio::test(start_paused = true)]
    async fn an_answer_by_handle_gives_way_to_one_that_was_requested_later() {
        let (vfs, inode, old) = with_one_file().await;
        let stamp = vfs.stamp_request();
        tokio::time::advance(Duration::from_millis(1)).await;
        let new = Attr { size: old.size + 2, ..old };
        vfs.record_attr(&inode, &new, vfs.stamp_request());
        tokio::time::advance(Duration::from_millis(1)).await;
        let received_at = Instant::now();
        assert!(!vfs.record_attr_by_handle(&inode, &old, stamp, received_at));
        assert_eq!(inode.state().last_attr(), Some(new));
        assert!(vfs.record_attr_by_handle(&inode, &old, vfs.stamp_request(), received_at));
        assert_eq!(inode.state().last_attr(), Some(old));
    }

    /// An answer to a lookup, which is recorded after another file was opened.
    #[tokio::test]
    async fn an_answer_by_name_gives_way_to_a_newer_open() {
        let (vfs, inode, attr) = with_one_file().await;
        let (stamp, version) = (vfs.stamp_request(), inode.state().version());
        let other = Attr { size: 1, ..attr };
        let request = crate::OpenRequest::plain(base::Access::Read);
        let opened = vfs.open(inode.ino, request).await.unwrap();
        assert!(!vfs.record_attr_since(&inode, &other, stamp, version));
        assert_eq!(inode.state().last_attr(), Some(attr));
        // Neither is one recorded that no caller waits for.
        assert!(!vfs.record_attr_in_background(&inode, &other, vfs.stamp_request()));
        vfs.release(opened.handle);
        assert!(vfs.record_attr_since(&inode, &other, vfs.stamp_request(), version));
    }
}
