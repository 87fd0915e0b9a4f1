//! Open things by number. A number is never used twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Errno, Result};

/// See the [module](self).
pub(crate) struct Table<T> {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { next: AtomicU64::new(1), open: Mutex::default() }
    }
}

impl<T> Table<T> {
    /// A number for something about to be opened.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn insert(&self, number: u64, opened: Arc<T>) {
        self.lock().insert(number, opened);
    }

    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>> {
        self.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.lock().remove(&number)
    }

    /// Shows all that is open to `body`, which must not open or close any.
    pub(crate) fn each(&self, body: impl FnMut(&Arc<T>)) {
        self.lock().values().for_each(body);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
