//! A table of open objects by number. A number is never reused, so a late call cannot reach another
//! object.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Errno, Mutex, Result};

/// Open objects by the number that the caller knows.
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
    /// Reserves a number for an object that is about to be opened.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an object under a reserved number.
    pub fn insert(&self, number: u64, opened: Arc<T>) {
        self.open.lock().insert(number, opened);
    }

    /// Adds an object and returns its number.
    pub fn add(&self, opened: T) -> u64 {
        let number = self.number();
        self.insert(number, Arc::new(opened));
        number
    }

    /// The object with this number; `EBADF` if it was removed or never existed.
    pub fn get(&self, number: u64) -> Result<Arc<T>> {
        self.open.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    /// Removes an object. Its current users keep it alive. If the caller drops the result, the
    /// object is dropped without the lock.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.open.lock().remove(&number)
    }

    /// Calls `body` with each object. `body` must not add or remove any.
    pub fn each(&self, body: impl FnMut(&Arc<T>)) {
        self.open.lock().values().for_each(body);
    }

    /// All objects, with their numbers.
    pub fn entries(&self) -> Vec<(u64, Arc<T>)> {
        self.open.lock().iter().map(|(number, object)| (*number, object.clone())).collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
