//! Open files and directories of the tree, by numbers of its own.
//!
//! A handle keeps its branch, also when that is taken out of the tree: what is open goes on until
//! it is closed. The tables are as large as the branches allow, which bound their handles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Attr, Dh, Errno, Fh, OpenFlags, Opened, RemotePath, Result};

use crate::branch::Live;

/// An open file of a branch; closed there when this is dropped.
pub(crate) struct InnerFile {
    pub(crate) live: Arc<Live>,
    pub(crate) fh: Fh,
    /// It was opened for writing, and may be changed whatever its branch is by now.
    writes: bool,
}

impl InnerFile {
    pub(crate) async fn open(
        live: &Arc<Live>,
        at: &RemotePath,
        flags: OpenFlags,
    ) -> Result<(InnerFile, Attr)> {
        let Opened { fh, attr } = live.remote.open(at, flags).await?;
        Ok((InnerFile { live: live.clone(), fh, writes: flags.access.writes() }, attr))
    }

    /// `EROFS` unless it may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writes { Ok(()) } else { self.live.check_writable() }
    }
}

impl Drop for InnerFile {
    fn drop(&mut self) {
        self.live.remote.close(self.fh);
    }
}

/// An open directory of a branch; closed there when this is dropped.
pub(crate) struct InnerDir {
    pub(crate) live: Arc<Live>,
    pub(crate) dh: Dh,
}

impl InnerDir {
    pub(crate) async fn open(live: &Arc<Live>, at: &RemotePath) -> Result<InnerDir> {
        let dh = live.remote.opendir(at).await?;
        Ok(InnerDir { live: live.clone(), dh })
    }
}

impl Drop for InnerDir {
    fn drop(&mut self) {
        self.live.remote.closedir(self.dh);
    }
}

/// Open things by number. A number is never used twice.
pub(crate) struct Table<T>(Mutex<Numbered<T>>);

struct Numbered<T> {
    next: u64,
    open: HashMap<u64, Arc<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(Mutex::new(Numbered { next: 1, open: HashMap::new() }))
    }
}

impl<T> Table<T> {
    fn lock(&self) -> MutexGuard<'_, Numbered<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, opened: T) -> u64 {
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.open.insert(number, Arc::new(opened));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>> {
        self.lock().open.get(&number).cloned().ok_or(Errno::EBADF)
    }

    /// Takes it out of the table; what uses it now keeps it for as long.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.lock().open.remove(&number);
        // Dropped without the lock, since that may call the branch.
        drop(removed);
    }

    /// How many there are of which `body` says so.
    pub(crate) fn count(&self, body: impl Fn(&T) -> bool) -> usize {
        self.lock().open.values().filter(|open| body(open)).count()
    }
}
