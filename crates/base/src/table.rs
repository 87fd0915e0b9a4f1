//! Open things by number. A number is never used twice, so a late call meets nobody else's file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Errno, Result};

/// What is open, by the number that the caller knows.
#[derive(Debug)]
pub struct Table<T> {
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
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts in what has got its number before.
    pub fn insert(&self, number: u64, opened: Arc<T>) {
        self.lock().insert(number, opened);
    }

    /// Puts it in, and gives its number.
    pub fn add(&self, opened: T) -> u64 {
        let number = self.number();
        self.insert(number, Arc::new(opened));
        number
    }

    /// `EBADF` for a number that was given back, or never given out.
    pub fn get(&self, number: u64) -> Result<Arc<T>> {
        self.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    /// Takes it out; who uses it now keeps it for as long. It is dropped without the lock, if the
    /// caller does not keep it.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.lock().remove(&number)
    }

    /// Shows all that is open to `body`, which must not open or close any.
    pub fn each(&self, body: impl FnMut(&Arc<T>)) {
        self.lock().values().for_each(body);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_used_twice() {
        let table = Table::default();
        let first = table.add("first");
        assert_eq!(*table.remove(first).unwrap(), "first");
        let second = table.add("second");
        assert_ne!(first, second);
        assert_eq!(table.get(first), Err(Errno::EBADF));
        assert!(table.remove(first).is_none());
        assert_eq!(*table.get(second).unwrap(), "second");
    }
}
