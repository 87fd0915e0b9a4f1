//! Handles by their number. Numbers are never used twice, so a late call meets nobody else's file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Errno, Result};

/// The open things of one kind.
#[derive(Debug)]
pub(crate) struct Table<T>(Mutex<Entries<T>>);

#[derive(Debug)]
struct Entries<T> {
    next: u64,
    open: HashMap<u64, Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Table<T> {
        Table(Mutex::new(Entries { next: 1, open: HashMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, thing: T) -> u64 {
        let mut entries = self.lock();
        let number = entries.next;
        entries.next += 1;
        entries.open.insert(number, Arc::new(thing));
        number
    }

    /// `EBADF` for a number that was given back, or was never given out.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>> {
        self.lock().open.get(&number).cloned().ok_or(Errno::EBADF)
    }

    pub(crate) fn remove(&self, number: u64) {
        let removed = self.lock().open.remove(&number);
        // Dropped without the lock.
        drop(removed);
    }
}
