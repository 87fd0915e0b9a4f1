//! Open files and directories, and which of them share a path.
//!
//! A handle is closed on the server when it was removed from these tables and the last operation
//! that uses it is complete. The tables are bounded by the number of handles that the server
//! allows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Mutex, OpenFlags, RemotePath, RenameMode, Table};
use sftp::{Call, RemoteHandle};

use crate::flow_control::Slots;
use crate::listing::Listing;
use crate::range_lock::RangeLock;
use crate::session::Session;
use crate::stripes::Stripes;

/// A handle on the server. Dropping it closes it there, unless CLOSE was sent before.
pub(crate) struct OpenHandle {
    pub(crate) session: Arc<Session>,
    pub(crate) handle: RemoteHandle,
}

impl OpenHandle {
    pub(crate) fn new(session: Arc<Session>, handle: RemoteHandle) -> OpenHandle {
        OpenHandle { session, handle }
    }

    /// The CLOSE request. Requests through the handle that were sent before are still answered.
    pub(crate) fn close(&self) -> Call<()> {
        self.session.client.close(&self.handle)
    }
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        self.session.client.close_unattended(&self.handle);
    }
}

/// State shared by all handles of one path. Held by each handle, and by each open in progress.
pub(crate) struct OpenPath {
    /// The current path, as far as this mount knows; `None` if the file was removed.
    name: Mutex<Option<RemotePath>>,
    /// Orders the requests of all handles.
    pub(crate) range_lock: Arc<RangeLock>,
    /// A handle may write. Before that, requests need no order.
    may_change: AtomicBool,
}

impl OpenPath {
    fn new(path: &RemotePath) -> Arc<OpenPath> {
        Arc::new(OpenPath {
            name: Mutex::new(Some(path.clone())),
            range_lock: Arc::default(),
            may_change: AtomicBool::new(false),
        })
    }

    pub(crate) fn name(&self) -> Option<RemotePath> {
        self.name.lock().clone()
    }

    fn rename(&self, path: Option<RemotePath>) {
        *self.name.lock() = path;
    }

    pub(crate) fn may_change(&self) -> bool {
        self.may_change.load(Ordering::SeqCst)
    }
}

/// An open file.
pub(crate) struct OpenFile {
    /// The first handle, on the metadata session. When it is lost, the other handles become
    /// useless.
    pub(crate) open: Arc<OpenHandle>,
    pub(crate) open_path: Arc<OpenPath>,
    pub(crate) flags: OpenFlags,
    /// Handles on other sessions.
    pub(crate) stripes: Stripes,
}

impl OpenFile {
    pub(crate) fn new(open: OpenHandle, open_path: Arc<OpenPath>, flags: OpenFlags) -> OpenFile {
        if flags.access.writes() {
            open_path.may_change.store(true, Ordering::SeqCst);
        }
        OpenFile { open: Arc::new(open), open_path, flags, stripes: Stripes::default() }
    }

    /// Whether both files were opened by one path.
    pub(crate) fn same_path(&self, other: &OpenFile) -> bool {
        Arc::ptr_eq(&self.open_path, &other.open_path)
    }
}

#[derive(Default)]
struct Paths {
    /// Paths with open handles. An entry that is referenced only here is stale.
    by_path: HashMap<RemotePath, Arc<OpenPath>>,
    /// Number of entries at which stale ones are removed, if above [`FIRST_SWEEP`].
    sweep_at: usize,
}

/// Number of entries at which stale ones are removed for the first time.
const FIRST_SWEEP: usize = 64;

/// All handles of one host.
#[derive(Default)]
pub(crate) struct Handles {
    pub(crate) files: Table<OpenFile>,
    pub(crate) dirs: Table<Listing>,
    paths: Mutex<Paths>,
    /// Held while two range locks are entered, so that two such operations cannot deadlock.
    two_locks: Mutex<()>,
}

impl Handles {
    /// The shared state of all handles of `path`, for an open in progress.
    pub(crate) fn open_path(&self, path: &RemotePath) -> Arc<OpenPath> {
        let mut paths = self.paths.lock();
        if let Some(open_path) = paths.by_path.get(path)
            && Arc::strong_count(open_path) > 1
        {
            return open_path.clone();
        }
        if paths.by_path.len() >= paths.sweep_at.max(FIRST_SWEEP) {
            paths.by_path.retain(|_, open_path| Arc::strong_count(open_path) > 1);
            paths.sweep_at = 2 * paths.by_path.len();
        }
        let open_path = OpenPath::new(path);
        paths.by_path.insert(path.clone(), open_path.clone());
        open_path
    }

    /// Records that `path` leads to no file any more, or to another one.
    pub(crate) fn removed(&self, path: &RemotePath) {
        if let Some(open_path) = self.paths.lock().by_path.remove(path) {
            open_path.rename(None);
        }
    }

    /// Enters two range locks at once.
    pub(crate) fn enter_both<T>(&self, enter: impl FnOnce() -> T) -> T {
        let _alone = self.two_locks.lock();
        enter()
    }

    /// Closes the striped handles on these sessions, but on those that it returns: there a file may
    /// have been written, and its close needs the server's answer.
    pub(crate) fn close_stripes_on(&self, slots: Slots) -> Slots {
        let mut files = Vec::new();
        self.files.each(|file| files.push(file.clone()));
        let written = files.iter().map(|file| file.stripes.written_on(slots));
        let kept = written.fold(Slots::default(), Slots::union);
        files.iter().for_each(|file| file.stripes.close_on(slots.difference(kept)));
        kept
    }

    /// Records that the path and everything below it has a new name.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        mode.move_entries(&mut self.paths.lock().by_path, from, to, |open_path, path| {
            open_path.rename(path.cloned());
        });
    }

    /// Open handles on the session of a slot that count towards the server's limit.
    pub(crate) fn open_on(&self, slot: usize) -> usize {
        let mut count = 0;
        self.files.each(|file| count += usize::from(file.open.session.slot == slot));
        self.dirs.each(|listing| count += usize::from(listing.slot() == slot));
        count
    }
}
