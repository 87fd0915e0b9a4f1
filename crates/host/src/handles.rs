//! Open files and directories, and which of them share a path.
//!
//! A handle is closed on the server when it was removed from these tables and the last operation
//! that uses it is complete. The tables are bounded by the number of handles that the server
//! allows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{Dh, Errno, Fh, Mutex, OpenFlags, RemotePath, RenameMode};
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

struct Tables {
    files: HashMap<u64, Arc<OpenFile>>,
    dirs: HashMap<u64, Arc<Listing>>,
    /// Paths with open handles. An entry that is referenced only here is stale.
    paths: HashMap<RemotePath, Arc<OpenPath>>,
    /// Number of entries at which stale ones are removed.
    sweep_at: usize,
}

/// Number of entries at which stale ones are removed for the first time.
const FIRST_SWEEP: usize = 64;

/// All handles of one host.
pub(crate) struct Handles {
    tables: Mutex<Tables>,
    next: AtomicU64,
    /// Held while two range locks are entered, so that two such operations cannot deadlock.
    two_locks: Mutex<()>,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        let tables = Tables {
            files: HashMap::new(),
            dirs: HashMap::new(),
            paths: HashMap::new(),
            sweep_at: FIRST_SWEEP,
        };
        Handles { tables: Mutex::new(tables), next: AtomicU64::new(1), two_locks: Mutex::new(()) }
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The shared state of all handles of `path`, for an open in progress.
    pub(crate) fn open_path(&self, path: &RemotePath) -> Arc<OpenPath> {
        let mut tables = self.tables.lock();
        if let Some(open_path) = tables.paths.get(path)
            && Arc::strong_count(open_path) > 1
        {
            return open_path.clone();
        }
        if tables.paths.len() >= tables.sweep_at {
            tables.paths.retain(|_, open_path| Arc::strong_count(open_path) > 1);
            tables.sweep_at = (2 * tables.paths.len()).max(FIRST_SWEEP);
        }
        let open_path = OpenPath::new(path);
        tables.paths.insert(path.clone(), open_path.clone());
        open_path
    }

    /// Records that `path` leads to no file any more, or to another one.
    pub(crate) fn removed(&self, path: &RemotePath) {
        if let Some(open_path) = self.tables.lock().paths.remove(path) {
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
        let files: Vec<_> = self.tables.lock().files.values().cloned().collect();
        let written = files.iter().map(|file| file.stripes.written_on(slots).bits());
        let kept = Slots::from_bits(written.fold(0, |all, some| all | some));
        files.iter().for_each(|file| file.stripes.close_on(slots.difference(kept)));
        kept
    }

    /// Records that the path and everything below it has a new name.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) {
        let mut tables = self.tables.lock();
        if tables.paths.is_empty() {
            return;
        }
        let moved: Vec<_> = tables
            .paths
            .extract_if(|path, _| path.is_within(from) || path.is_within(to))
            .filter_map(|(path, open_path)| {
                let path = mode.moved(&path, from, to);
                open_path.rename(path.clone());
                Some((path?, open_path))
            })
            .collect();
        tables.paths.extend(moved);
    }

    pub(crate) fn add_file(&self, file: OpenFile) -> Fh {
        let number = self.next_number();
        self.tables.lock().files.insert(number, Arc::new(file));
        Fh(number)
    }

    pub(crate) fn file(&self, fh: Fh) -> Result<Arc<OpenFile>, Errno> {
        self.tables.lock().files.get(&fh.0).cloned().ok_or(Errno::EBADF)
    }

    /// Removes the file from the table. It has to be dropped, and so closed, without holding the
    /// lock.
    pub(crate) fn remove_file(&self, fh: Fh) -> Result<Arc<OpenFile>, Errno> {
        self.tables.lock().files.remove(&fh.0).ok_or(Errno::EBADF)
    }

    pub(crate) fn add_dir(&self, listing: Listing) -> Dh {
        let number = self.next_number();
        self.tables.lock().dirs.insert(number, Arc::new(listing));
        Dh(number)
    }

    pub(crate) fn dir(&self, dh: Dh) -> Result<Arc<Listing>, Errno> {
        self.tables.lock().dirs.get(&dh.0).cloned().ok_or(Errno::EBADF)
    }

    pub(crate) fn remove_dir(&self, dh: Dh) {
        let listing = self.tables.lock().dirs.remove(&dh.0);
        drop(listing);
    }

    /// Open handles on the session of a slot that count towards the server's limit.
    pub(crate) fn open_on(&self, slot: usize) -> usize {
        let tables = self.tables.lock();
        let files = tables.files.values().filter(|file| file.open.session.slot == slot).count();
        let dirs = tables.dirs.values().filter(|listing| listing.slot() == slot).count();
        files + dirs
    }
}
