//! Open files and directories, and which session each path's handles are on.
//!
//! A handle is closed on the server when the last operation that uses it is over and it was given
//! back here. The tables are bounded by the server, which gives only so many handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Dh, Errno, Fh, RemotePath};
use sftp::RemoteHandle;

use crate::listing::Listing;
use crate::probe::is_below;
use crate::session::Session;

/// A handle on the server; closed there when this is dropped.
pub(crate) struct OpenHandle {
    pub(crate) session: Arc<Session>,
    pub(crate) handle: RemoteHandle,
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        self.session.client.close_unattended(&self.handle);
    }
}

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) open: OpenHandle,
    /// Where its path's handles are counted.
    place: PathPlace,
}

impl OpenFile {
    pub(crate) fn new(open: OpenHandle, place: PathPlace) -> OpenFile {
        OpenFile { open, place }
    }

    /// Whether both were opened by one path.
    pub(crate) fn same_path(&self, other: &OpenFile) -> bool {
        Arc::ptr_eq(&self.place.0, &other.place.0)
    }
}

/// What is known of a path with open handles: the slot of its session. Held by each of its
/// handles, and by those who are about to open one.
#[derive(Clone)]
pub(crate) struct PathPlace(Arc<usize>);

impl PathPlace {
    /// The slot in the pool.
    pub(crate) fn slot(&self) -> usize {
        *self.0
    }
}

struct Tables {
    files: HashMap<u64, Arc<OpenFile>>,
    dirs: HashMap<u64, Arc<Listing>>,
    /// Slots of paths with open handles. An entry without other holders is a left-over.
    paths: HashMap<RemotePath, PathPlace>,
    /// Left-overs are swept when there are so many entries.
    sweep_at: usize,
}

/// Entries before left-overs are looked for the first time.
const FIRST_SWEEP: usize = 64;

/// All handles of one host.
pub(crate) struct Handles {
    tables: Mutex<Tables>,
    next: AtomicU64,
    slots: usize,
}

impl Handles {
    pub(crate) fn new(slots: usize) -> Handles {
        let tables = Tables {
            files: HashMap::new(),
            dirs: HashMap::new(),
            paths: HashMap::new(),
            sweep_at: FIRST_SWEEP,
        };
        Handles { tables: Mutex::new(tables), next: AtomicU64::new(1), slots }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The session for opening `path`: that of its open handles, else the one with the fewest
    /// handles, the first one left out when there are others.
    pub(crate) fn place(&self, path: &RemotePath) -> PathPlace {
        let mut tables = self.lock();
        if let Some(place) = tables.paths.get(path)
            && Arc::strong_count(&place.0) > 1
        {
            return place.clone();
        }
        if tables.paths.len() >= tables.sweep_at {
            tables.paths.retain(|_, place| Arc::strong_count(&place.0) > 1);
            tables.sweep_at = (2 * tables.paths.len()).max(FIRST_SWEEP);
        }
        let slot = if self.slots == 1 {
            0
        } else {
            let mut load = vec![0; self.slots];
            for place in tables.paths.values() {
                load[place.slot()] += Arc::strong_count(&place.0) - 1;
            }
            (1..self.slots).min_by_key(|slot| load[*slot]).unwrap_or(0)
        };
        let place = PathPlace(Arc::new(slot));
        tables.paths.insert(path.clone(), place.clone());
        place
    }

    /// The session for `path` cannot be had, so whatever handles it has there are dead: it goes
    /// to the first one.
    pub(crate) fn fall_back(&self, path: &RemotePath) -> PathPlace {
        let place = PathPlace(Arc::new(0));
        self.lock().paths.insert(path.clone(), place.clone());
        place
    }

    /// The path, and all below it, is called otherwise now.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) {
        let mut tables = self.lock();
        if tables.paths.is_empty() {
            return;
        }
        let moved: Vec<_> = tables
            .paths
            .extract_if(|path, _| is_within(path, from) || is_within(path, to))
            .filter_map(|(path, place)| {
                let below = path.as_bytes().get(from.as_bytes().len()..)?;
                let path = is_within(&path, from)
                    .then(|| RemotePath::parse(&[to.as_bytes(), below].concat()))?;
                Some((path.ok()?, place))
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

    pub(crate) fn remove_file(&self, fh: Fh) {
        let file = self.lock().files.remove(&fh.0);
        // Dropped, and so closed, without the lock.
        drop(file);
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

/// Whether `path` is `top` or below it.
fn is_within(path: &RemotePath, top: &RemotePath) -> bool {
    path == top || is_below(path, top)
}
