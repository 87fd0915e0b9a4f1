//! What all operations share: the remote, the settings, the tree and what is open.
//!
//! Operations are methods of [`Vfs`](crate::Vfs), which holds the one lasting share. What goes on
//! in the background has a share too, for as long as it runs; [`Vfs`](crate::Vfs) ends it when it
//! is dropped.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use base::{Attr, Errno, FileKind, Remote, RemotePath, Result, Table};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::background::Background;
use crate::config::{Config, Consistency, Timeout};
use crate::directory::OpenDirectory;
use crate::dirty::Dirty;
use crate::fractions::Fractions;
use crate::inode::{Inode, State};
use crate::invalidate::Invalidate;
use crate::open::{LostWrite, OpenFile};
use crate::prefetch::Prefetch;
use crate::readahead::UsedBytes;
use crate::readdirplus::ReaddirplusPolicy;
use crate::server_close::PendingCloses;
use crate::ticker::Ticker;
use crate::tree::{ChangeCounter, InodeBudget, RequestStamp, Tree};
use crate::{Entry, Ino, Stat};

/// See the [module](self).
pub struct Shared {
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) config: Config,
    tree: Mutex<Tree>,
    pub(crate) change_counter: Arc<ChangeCounter>,
    pub(crate) fractions: Fractions,
    pub(crate) files: Table<OpenFile>,
    pub(crate) directories: Table<OpenDirectory>,
    /// Permits are bytes; held by each write until the server has it.
    pub(crate) dirty: Arc<Dirty>,
    /// A change of attributes that had been acknowledged was refused.
    pub(crate) refuses_attributes: AtomicBool,
    pub(crate) lost_write: Arc<LostWrite>,
    /// The handles of written files that are being given back.
    pub(crate) closing: Arc<PendingCloses>,
    /// The figures of the root's file system that were told last.
    pub(crate) last_statfs: Mutex<Option<base::StatVfs>>,
    /// Files of which something may be [gathered](crate::writes).
    coalescing: Mutex<Vec<Weak<Inode>>>,
    pub(crate) readahead_used: Arc<UsedBytes>,
    pub(crate) background: Background,
    pub(crate) ticker: Ticker,
    pub(crate) prefetch: Prefetch,
    pub(crate) readdirplus_policy: ReaddirplusPolicy,
    pub(crate) invalidate: OnceLock<Arc<dyn Invalidate>>,
    /// Notified when a change of names is over.
    pub(crate) names_changed: Notify,
}

impl Shared {
    /// `config` is one that is in [effect](Config::effective).
    pub(crate) fn new(remote: Arc<dyn Remote>, config: Config) -> Shared {
        let change_counter = Arc::<ChangeCounter>::default();
        let dirty_bytes = config.dirty_bytes;
        let inode_budget = InodeBudget::new(config.metadata_bytes);
        Shared {
            remote,
            config,
            tree: Mutex::new(Tree::new(change_counter.clone(), inode_budget)),
            change_counter,
            fractions: Fractions::default(),
            files: Table::default(),
            directories: Table::default(),
            dirty: Dirty::new(dirty_bytes),
            refuses_attributes: AtomicBool::new(false),
            lost_write: Arc::default(),
            closing: Arc::default(),
            last_statfs: Mutex::default(),
            coalescing: Mutex::default(),
            readahead_used: Arc::default(),
            background: Background::default(),
            ticker: Ticker::default(),
            prefetch: Prefetch::default(),
            readdirplus_policy: ReaddirplusPolicy::default(),
            invalidate: OnceLock::new(),
            names_changed: Notify::new(),
        }
    }

    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.tree().get(ino).ok_or(Errno::ESTALE)
    }

    /// The path that reaches `ino` by name; `ESTALE` for an orphan.
    pub(crate) fn path(&self, ino: Ino) -> Result<RemotePath> {
        self.tree().path(ino).ok_or(Errno::ESTALE)
    }

    /// How long attributes and names of a file of this kind count.
    pub(crate) fn timeout(&self, kind: FileKind) -> Timeout {
        if kind == FileKind::Directory { self.config.dirs } else { self.config.files }
    }

    /// What an application sees of `inode` if the server says `attr`. The kernel may take it for
    /// true for as long as `attr` counts here.
    pub(crate) fn stat(&self, inode: &Inode, attr: &Attr) -> Result<Stat> {
        let attr_shown = self.config.idmap.attr_to_local(&self.config.shown, *attr)?;
        let (times, nlink, ttl) = {
            let mut state = inode.state();
            let known = state.last_attr() == Some(*attr);
            let left = state.valid_until().saturating_duration_since(Instant::now());
            let left = if known { left } else { Duration::ZERO };
            let ttl = self.config.kernel_attr.map_or(left, |cap| cap.min(left));
            let ttl = state.note_kernel_reply(attr.size, ttl);
            (state.times(attr), state.nlink, ttl)
        };
        let (atime, mtime, ctime) = times;
        let attr = attr_shown;
        Ok(Stat { number: inode.number, attr: Attr { atime, mtime, ..attr }, nlink, ctime, ttl })
    }

    /// The entry of a name that was seen to lead to `inode` when the server returned `attr`.
    pub(crate) fn entry(&self, inode: &Inode, attr: &Attr) -> Result<Entry> {
        let until = inode.state().valid_until();
        self.entry_until(inode, attr, until)
    }

    /// The entry of a name that is valid until then; the attributes may be valid for longer.
    pub(crate) fn entry_until(&self, inode: &Inode, attr: &Attr, until: Instant) -> Result<Entry> {
        let stat = self.stat(inode, attr)?;
        let until = until.min(inode.state().valid_until());
        let left = until.saturating_duration_since(Instant::now());
        let ttl = self.config.kernel_entry.map_or(left, |cap| cap.min(left));
        Ok(Entry { ino: inode.ino, stat, ttl })
    }

    /// Whether the path of `inode`, which was `path` when something was asked, may be another one
    /// by now.
    pub(crate) fn moved_since(
        &self,
        inode: &Inode,
        path: &RemotePath,
        stamp: RequestStamp,
    ) -> bool {
        let tree = self.tree();
        !tree.paths_unchanged_since(stamp.seq) || tree.path(inode.ino).as_ref() != Some(path)
    }

    /// Whether `path`, the path of `inode` when something was asked, may have led elsewhere since, or
    /// may do so now, by a change made here.
    pub(crate) fn path_changed_since(
        &self,
        inode: &Inode,
        path: &RemotePath,
        stamp: RequestStamp,
    ) -> bool {
        let tree = self.tree();
        tree.path(inode.ino).as_ref() != Some(path)
            || !tree.path_unchanged_since(inode.ino, stamp.seq)
    }

    /// Something of `inode` is gathered.
    pub(crate) fn note_coalescing(&self, inode: &Arc<Inode>) {
        let mut coalescing = self.coalescing.lock().unwrap_or_else(PoisonError::into_inner);
        if !coalescing.iter().any(|known| known.as_ptr() == Arc::as_ptr(inode)) {
            coalescing.retain(|known| known.strong_count() > 0);
            coalescing.push(Arc::downgrade(inode));
        }
    }

    /// Something is about to be asked of the server by a name. That may be another name of a file
    /// which is written to, linked elsewhere or long ago, so what is gathered is sent first. Must
    /// be called without a lock.
    pub(crate) fn stamp(&self) -> RequestStamp {
        let coalescing =
            std::mem::take(&mut *self.coalescing.lock().unwrap_or_else(PoisonError::into_inner));
        for inode in coalescing.iter().filter_map(Weak::upgrade) {
            if !inode.writes.send_complete(Instant::now()) {
                self.note_coalescing(&inode);
            }
        }
        RequestStamp { seq: self.change_counter.now(), at: Instant::now() }
    }

    /// Keeps what the server told of a name of `inode` when it was asked, unless something was
    /// changed here since.
    pub(crate) fn record_attr(&self, inode: &Inode, attr: &Attr, stamp: RequestStamp) {
        self.record_attr_at(inode, attr, stamp, Instant::now());
    }

    /// The same of what the server told at `received_at`.
    pub(crate) fn record_attr_at(
        &self,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
        received_at: Instant,
    ) {
        if self.record_attr_by_handle(inode, attr, stamp, received_at) {
            inode.state().note_name_validated(stamp.at);
        }
    }

    /// The same of what it told of an open handle, whatever the names lead to by now.
    pub(crate) fn record_attr_by_handle(
        &self,
        inode: &Inode,
        attr: &Attr,
        stamp: RequestStamp,
        received_at: Instant,
    ) -> bool {
        let mut state = inode.state();
        let is_newer = state.unchanged_since(stamp.seq) && !self.keeps_attr_forever(&state);
        if is_newer {
            self.store_attr(&mut state, inode.kind, attr, received_at, stamp.at);
        }
        is_newer
    }

    /// Takes over the attributes of an inode of this kind, which the server sent at `received_at` and
    /// was asked for at `requested_at`, after all changes made here.
    pub(crate) fn store_attr(
        &self,
        state: &mut State,
        kind: FileKind,
        attr: &Attr,
        received_at: Instant,
        requested_at: Instant,
    ) {
        state.set_attr(*attr, received_at, requested_at, self.timeout(kind));
        if state.wants_fraction() {
            state.set_fraction(self.fractions.next(attr.mtime.secs));
        }
    }

    /// Whether the attributes that are known stay, whatever the server tells by now.
    pub(crate) fn keeps_attr_forever(&self, state: &State) -> bool {
        self.config.consistency == Consistency::Immutable
            && state.fresh_attr(Instant::now()).is_some()
    }
}
