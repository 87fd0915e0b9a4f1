//! All open files of one [`Recovering`](crate::Recovering), by handle and by path.
//!
//! Bounded by the inner remote, which limits the number of handles.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use base::{
    AttrChange, Create, Errno, Fh, Mutex, OpenFlags, OpenGuard, Opened, Remote, RemotePath,
    RenameMode, Result, Table,
};

use super::identity::OpenSnapshot;
use super::{Handle, InnerHandle, OpenFile};
use crate::Core;
use crate::change::PendingChange;
use crate::change_log::Change;
use crate::expected_attrs::ExpectedAttrs;
use crate::reopen;

/// Number of paths at which dead entries are first swept.
const FIRST_SWEEP: usize = 64;

#[derive(Default)]
struct Paths {
    /// May contain dead entries, whose file was dropped.
    by_path: HashMap<RemotePath, Weak<OpenFile>>,
    /// Number of paths at which dead entries are swept, if above [`FIRST_SWEEP`].
    sweep_at: usize,
}

/// See the [module](self).
pub(crate) struct OpenFiles {
    handles: Table<Handle>,
    paths: Mutex<Paths>,
    inner: Arc<dyn Remote>,
    core: Weak<Core>,
}

/// The state of a file when an open of its path was about to be sent.
pub(crate) struct PendingOpen {
    file: Arc<OpenFile>,
    epoch: u64,
    /// `None` if no open of the file had been answered.
    expected: Option<ExpectedAttrs>,
    /// The number of the next change at that time, if no change was in flight.
    next: Option<u64>,
    /// The truncation by the open itself.
    truncation: Option<PendingChange>,
}

impl PendingOpen {
    /// Whether this mount has removed or replaced the file.
    pub(crate) fn has_no_path(&self) -> bool {
        self.file.has_no_path()
    }
}

impl Paths {
    fn insert(&mut self, path: &RemotePath, file: &Arc<OpenFile>) {
        if self.by_path.len() >= self.sweep_at.max(FIRST_SWEEP) {
            self.by_path.retain(|_, file| file.strong_count() > 0);
            self.sweep_at = 2 * self.by_path.len();
        }
        self.by_path.insert(path.clone(), Arc::downgrade(file));
    }
}

impl OpenFiles {
    pub(crate) fn new(inner: Arc<dyn Remote>, core: Weak<Core>) -> OpenFiles {
        OpenFiles { handles: Table::default(), paths: Mutex::default(), inner, core }
    }

    pub(crate) fn handle(&self, fh: Fh) -> Result<Arc<Handle>> {
        self.handles.get(fh.0)
    }

    /// The file that is open at this path, if its attributes are known. Not one that is dead: the
    /// path leads to another file.
    pub(crate) fn get(&self, path: &RemotePath) -> Option<Arc<OpenFile>> {
        let file = self.paths.lock().by_path.get(path)?.upgrade();
        file.filter(|file| !file.is_dead() && file.lock().has_attrs)
    }

    pub(crate) fn all(&self) -> Vec<Arc<OpenFile>> {
        self.paths.lock().by_path.values().filter_map(Weak::upgrade).collect()
    }

    /// Called before `path` is opened. From now on the file is in the table, so that another open,
    /// a setattr by path and a rename find the same [`OpenFile`].
    pub(crate) async fn begin_open(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
    ) -> Result<PendingOpen> {
        let file = self.get_or_new(path);
        let empty = AttrChange { size: Some(0), ..AttrChange::default() };
        // Logged even for the first open, because another one may begin before this is answered.
        let truncation = match flags.truncate {
            true => Some(
                PendingChange::begin_without_handle(core, &file, Change::SetAttrByPath(empty))
                    .await?,
            ),
            false => None,
        };
        let (next, epoch, has_attrs) = {
            let state = file.lock();
            (state.next_if_idle(u64::from(truncation.is_some())), state.epoch, state.has_attrs)
        };
        let expected = has_attrs.then(|| file.expected());
        Ok(PendingOpen { file, epoch, expected, next, truncation })
    }

    /// The file at `path`, added to the table if there is none. It replaces one that is dead, which
    /// its descriptors keep.
    pub(crate) fn get_or_new(&self, path: &RemotePath) -> Arc<OpenFile> {
        let mut paths = self.paths.lock();
        let known = paths.by_path.get(path).and_then(Weak::upgrade);
        if let Some(file) = known.as_ref().filter(|file| !file.is_dead()) {
            return file.clone();
        }
        let file = OpenFile::new(path.clone(), self.core.clone());
        paths.insert(path, &file);
        // `known` is dropped without the lock: it may be the last reference.
        drop(paths);
        file
    }

    /// An open has failed with an error that excludes a truncation.
    pub(crate) fn abort_open(pending: PendingOpen) {
        if let Some(truncation) = pending.truncation {
            truncation.did_not_happen();
        }
    }

    /// Adds an opened file to the table.
    pub(crate) async fn finish_open(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        opened: &Opened,
        pending: PendingOpen,
    ) -> Fh {
        // Closed if the caller is cancelled.
        let guard = OpenGuard::new(&*core.inner, opened.fh);
        if flags.access.writes() {
            // Early, so that it is probably known when the first write is acknowledged.
            core.write_verifier.request(core);
        }
        // The file may be lost since, and then this handle is as well.
        let (pending_file, epoch_before) = (pending.file.clone(), pending.epoch);
        let file = self.file_of(core, path, flags, opened, pending).await;
        let epoch = match Arc::ptr_eq(&file, &pending_file) {
            true => epoch_before,
            false => file.lock().epoch,
        };
        if reopen::check_unstable(core, &file, path).await.is_err() {
            file.mark_lost(epoch);
        }
        let number = self.handles.number();
        let handle = Arc::new(Handle::new(number, file, flags, self.inner.clone()));
        let inner = InnerHandle {
            handle: Arc::downgrade(&handle),
            fh: guard.take(),
            epoch,
            closed: false,
            refused: None,
            had_locks: false,
        };
        handle.file.lock().inner_handles.insert(number, inner);
        self.handles.insert(number, handle);
        Fh(number)
    }

    /// The [`OpenFile`] of an opened file: an existing one, if it is the same file.
    async fn file_of(
        &self,
        core: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        opened: &Opened,
        pending: PendingOpen,
    ) -> Arc<OpenFile> {
        let PendingOpen { file, expected, next, truncation, .. } = pending;
        let was_truncated = truncation.is_some();
        if let Some(truncation) = truncation {
            truncation.happened(core);
        }
        // The known file is another one than the file just created, and has lost its name.
        let is_new = matches!(flags.create, Create::Exclusive(_)) && expected.is_some();
        let old_path = file.lock().path.clone();
        let has_same_path = old_path.as_ref() == Some(path);
        let moved = old_path.filter(|_| !has_same_path);
        // A file that was renamed in the meantime was opened before the rename: a later open finds
        // nothing at this path, unless it creates a new file.
        let is_followed =
            moved.is_some() && (flags.create == Create::Never || file.lock().has_attrs);
        let snapshot = OpenSnapshot { expected, next, was_truncated };
        if !is_new
            && (has_same_path || is_followed)
            && file.is_same_file(core, opened, Some(snapshot)).await
            // It may have died since the open was sent.
            && !file.is_dead()
        {
            return file;
        }
        if let Some(other) = self.get(path).filter(|other| !Arc::ptr_eq(other, &file))
            && other.is_same_file(core, opened, None).await
        {
            return other;
        }
        let mut paths = self.paths.lock();
        let new = OpenFile::new(path.clone(), self.core.clone());
        new.lock().first_observed(&opened.attr, true);
        new.lock().pending_path = moved.filter(|_| !is_new);
        let replaced = paths.by_path.get(path).and_then(Weak::upgrade);
        paths.insert(path, &new);
        drop(paths);
        if let Some(replaced) = replaced.filter(|replaced| !Arc::ptr_eq(replaced, &new)) {
            replaced.mark_replaced();
        }
        new
    }

    pub(crate) fn close(&self, fh: Fh) {
        // Dropped, and so closed, without the lock.
        drop(self.take(fh));
    }

    /// Removes a handle from the table; its inner handle is closed after its last use.
    pub(crate) fn take(&self, fh: Fh) -> Result<Arc<Handle>> {
        self.handles.remove(fh.0).ok_or(Errno::EBADF)
    }

    /// The path was removed, or leads to another file.
    pub(crate) fn removed(&self, path: &RemotePath) {
        let file = self.paths.lock().by_path.remove(path);
        if let Some(file) = file.and_then(|file| file.upgrade()) {
            file.mark_removed();
        }
    }

    /// The file is open at this path, which it had at this version of its path.
    pub(crate) fn found(&self, file: &Arc<OpenFile>, path: &RemotePath, path_version: u64) {
        let mut paths = self.paths.lock();
        let mut state = file.lock();
        // Unless it was renamed since.
        if state.path_version != path_version {
            return;
        }
        let was_pending = state.pending_path.take_if(|pending| pending == path).is_some();
        let old_path = state.path.replace(path.clone());
        // The reply to a rename moves it in the table.
        let Some(old_path) = old_path.filter(|old_path| old_path != path && !was_pending) else {
            return;
        };
        // Another client has renamed it.
        let this = Arc::downgrade(file);
        if paths.by_path.get(&old_path).is_some_and(|known| known.ptr_eq(&this))
            && paths.by_path.get(path).is_none_or(|known| known.strong_count() == 0)
        {
            paths.by_path.remove(&old_path);
            paths.insert(path, file);
        }
    }

    /// A rename of `from`, and of all paths below it, is about to be sent.
    pub(crate) fn begin_rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        let moved: Vec<_> = {
            let paths = self.paths.lock();
            let moved = paths
                .by_path
                .iter()
                .filter_map(|(path, file)| Some((mode.moved(path, from, to)?, file.upgrade()?)));
            moved.collect()
        };
        for (pending_path, file) in moved {
            file.lock().begin_rename(pending_path);
        }
    }

    /// The rename did not happen.
    pub(crate) fn abort_rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        for file in self.all() {
            let mut state = file.lock();
            let old_path = state.path.as_ref().and_then(|path| mode.moved(path, from, to));
            if old_path.is_some() && state.pending_path == old_path {
                state.pending_path = None;
            }
        }
    }

    /// `from`, and all paths below it, were renamed.
    pub(crate) fn finish_rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        if from == to {
            return;
        }
        // Dropped without the lock of the paths: it may be the last reference.
        let (mut moved, mut replaced) = (Vec::new(), Vec::new());
        mode.move_entries(&mut self.paths.lock().by_path, from, to, |file, path| {
            let Some(file) = file.upgrade() else { return };
            match path {
                Some(path) => {
                    file.lock().set_path(path.clone());
                    moved.push(file);
                }
                None => replaced.push(file),
            }
        });
        replaced.iter().for_each(|file| file.mark_removed());
    }
}
