//! Open files and directories, and which of them are of one path.
//!
//! A handle is closed on the server when the last operation that uses it is over and it was given
//! back here. The tables are bounded by the server, which gives only so many handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Dh, Errno, Fh, OpenFlags, RemotePath};
use sftp::{Call, RemoteHandle};

use crate::gate::Slots;
use crate::lanes::Lanes;
use crate::listing::Listing;
use crate::order::Order;
use crate::session::Session;

/// A handle on the server; closed there when this is dropped, unless that was asked for before.
pub(crate) struct OpenHandle {
    pub(crate) session: Arc<Session>,
    pub(crate) handle: RemoteHandle,
    closing: AtomicBool,
}

impl OpenHandle {
    pub(crate) fn new(session: Arc<Session>, handle: RemoteHandle) -> OpenHandle {
        OpenHandle { session, handle, closing: AtomicBool::new(false) }
    }

    /// The request that closes it, to be polled at once. What was sent through it is answered all
    /// the same. `None` when it was asked for before.
    pub(crate) fn close(&self) -> Option<Call<()>> {
        let before = self.closing.swap(true, Ordering::SeqCst);
        (!before).then(|| self.session.client.close(&self.handle))
    }
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        if !*self.closing.get_mut() {
            self.session.client.close_unattended(&self.handle);
        }
    }
}

/// What the handles of one path have in common. Held by each of them, and by those who are about
/// to open one.
pub(crate) struct Named {
    /// What it is called now, as far as that is known here; `None` when it was removed.
    name: Mutex<Option<RemotePath>>,
    /// What goes through any of them keeps its order.
    pub(crate) order: Arc<Order>,
    /// One of them may write. Before that there is no order to be kept.
    may_change: AtomicBool,
}

impl Named {
    fn new(path: &RemotePath) -> Arc<Named> {
        Arc::new(Named {
            name: Mutex::new(Some(path.clone())),
            order: Arc::default(),
            may_change: AtomicBool::new(false),
        })
    }

    pub(crate) fn name(&self) -> Option<RemotePath> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn rename(&self, path: Option<RemotePath>) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = path;
    }

    pub(crate) fn may_change(&self) -> bool {
        self.may_change.load(Ordering::SeqCst)
    }
}

/// An open file.
pub(crate) struct OpenFile {
    /// The first handle, on the session for metadata. It is the file: when it is lost, the others
    /// are of no use any more.
    pub(crate) open: Arc<OpenHandle>,
    pub(crate) named: Arc<Named>,
    pub(crate) flags: OpenFlags,
    /// Further handles.
    pub(crate) lanes: Lanes,
}

impl OpenFile {
    pub(crate) fn new(open: OpenHandle, named: Arc<Named>, flags: OpenFlags) -> OpenFile {
        if flags.access.writes() {
            named.may_change.store(true, Ordering::SeqCst);
        }
        OpenFile { open: Arc::new(open), named, flags, lanes: Lanes::default() }
    }

    /// Whether both were opened by one path.
    pub(crate) fn same_path(&self, other: &OpenFile) -> bool {
        Arc::ptr_eq(&self.named, &other.named)
    }
}

struct Tables {
    files: HashMap<u64, Arc<OpenFile>>,
    dirs: HashMap<u64, Arc<Listing>>,
    /// Paths with open handles. An entry without other holders is a left-over.
    paths: HashMap<RemotePath, Arc<Named>>,
    /// Left-overs are swept when there are so many entries.
    sweep_at: usize,
}

/// Entries before left-overs are looked for the first time.
const FIRST_SWEEP: usize = 64;

/// All handles of one host.
pub(crate) struct Handles {
    tables: Mutex<Tables>,
    next: AtomicU64,
    /// Held by who enters two orders, so that no two of them wait for each other.
    entering: Mutex<()>,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        let tables = Tables {
            files: HashMap::new(),
            dirs: HashMap::new(),
            paths: HashMap::new(),
            sweep_at: FIRST_SWEEP,
        };
        Handles { tables: Mutex::new(tables), next: AtomicU64::new(1), entering: Mutex::new(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// What all handles of `path` have in common, for one that is about to be opened.
    pub(crate) fn named(&self, path: &RemotePath) -> Arc<Named> {
        let mut tables = self.lock();
        if let Some(named) = tables.paths.get(path)
            && Arc::strong_count(named) > 1
        {
            return named.clone();
        }
        if tables.paths.len() >= tables.sweep_at {
            tables.paths.retain(|_, named| Arc::strong_count(named) > 1);
            tables.sweep_at = (2 * tables.paths.len()).max(FIRST_SWEEP);
        }
        let named = Named::new(path);
        tables.paths.insert(path.clone(), named.clone());
        named
    }

    /// The path leads to no file any more, or to another one.
    pub(crate) fn removed(&self, path: &RemotePath) {
        if let Some(named) = self.lock().paths.remove(path) {
            named.rename(None);
        }
    }

    /// Takes places in two orders at once.
    pub(crate) fn enter_both<T>(&self, enter: impl FnOnce() -> T) -> T {
        let _alone = self.entering.lock().unwrap_or_else(PoisonError::into_inner);
        enter()
    }

    /// Gives up the further handles on these sessions.
    pub(crate) fn leave_sessions(&self, slots: Slots) {
        let files: Vec<_> = self.lock().files.values().cloned().collect();
        files.iter().for_each(|file| file.lanes.leave(slots));
    }

    /// The path, and all below it, is called otherwise now.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) {
        let mut tables = self.lock();
        if tables.paths.is_empty() {
            return;
        }
        let moved: Vec<_> = tables
            .paths
            .extract_if(|path, _| path.is_within(from) || path.is_within(to))
            .filter_map(|(path, named)| {
                let path = path.moved(from, to);
                named.rename(path.clone());
                Some((path?, named))
            })
            .collect();
        tables.paths.extend(moved);
    }

    pub(crate) fn add_file(&self, file: OpenFile) -> Fh {
        let number = self.number();
        self.lock().files.insert(number, Arc::new(file));
        Fh(number)
    }

    pub(crate) fn file(&self, fh: Fh) -> Result<Arc<OpenFile>, Errno> {
        self.lock().files.get(&fh.0).cloned().ok_or(Errno::EBADF)
    }

    /// Takes it out of the table. To be dropped, and so closed, without the lock.
    pub(crate) fn remove_file(&self, fh: Fh) -> Result<Arc<OpenFile>, Errno> {
        self.lock().files.remove(&fh.0).ok_or(Errno::EBADF)
    }

    pub(crate) fn add_dir(&self, listing: Listing) -> Dh {
        let number = self.number();
        self.lock().dirs.insert(number, Arc::new(listing));
        Dh(number)
    }

    pub(crate) fn dir(&self, dh: Dh) -> Result<Arc<Listing>, Errno> {
        self.lock().dirs.get(&dh.0).cloned().ok_or(Errno::EBADF)
    }

    pub(crate) fn remove_dir(&self, dh: Dh) {
        let listing = self.lock().dirs.remove(&dh.0);
        drop(listing);
    }

    /// Handles open on one slot's session, as far as they count towards the server's limit.
    pub(crate) fn open_on(&self, slot: usize) -> usize {
        let tables = self.lock();
        let files = tables.files.values().filter(|file| file.open.session.slot == slot).count();
        let dirs = tables.dirs.values().filter(|listing| listing.slot() == slot).count();
        files + dirs
    }
}
