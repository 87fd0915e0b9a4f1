//! A map of a few inodes from which the least recently used entry is removed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value for each of at most `MAX` inodes. Choose `MAX` larger than the number in use at a time:
/// the least recently used value is removed for a new one. Values are dropped without holding the
/// lock, and live for as long as a caller holds their `Arc`.
pub struct Lru<T, const MAX: usize>(Mutex<State<T>>);

struct State<T> {
    by_inode: HashMap<u64, Used<T>>,
    /// Number of uses so far, the clock of `last`.
    uses: u64,
}

struct Used<T> {
    value: Arc<T>,
    last: u64,
}

impl<T, const MAX: usize> Default for Lru<T, MAX> {
    fn default() -> Lru<T, MAX> {
        Lru(Mutex::new(State { by_inode: HashMap::new(), uses: 0 }))
    }
}

impl<T> State<T> {
    fn used(&mut self, ino: u64) -> Option<Arc<T>> {
        self.uses += 1;
        let used = self.by_inode.get_mut(&ino)?;
        used.last = self.uses;
        Some(used.value.clone())
    }

    /// Adds `value`, and returns the value removed for it: that of the same inode, or the least
    /// recently used one.
    fn insert(&mut self, ino: u64, value: Arc<T>, max: usize) -> Option<Used<T>> {
        self.uses += 1;
        let used = Used { value, last: self.uses };
        let same = self.by_inode.insert(ino, used);
        if self.by_inode.len() <= max {
            return same;
        }
        let oldest = self.by_inode.iter().min_by_key(|(_, used)| used.last).map(|(ino, _)| *ino)?;
        self.by_inode.remove(&oldest)
    }
}

impl<T, const MAX: usize> Lru<T, MAX> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value for `ino`; counts as a use.
    pub fn get(&self, ino: u64) -> Option<Arc<T>> {
        self.lock().used(ino)
    }

    /// The value for `ino`, created if there is none; counts as a use.
    pub fn get_or_default(&self, ino: u64) -> Arc<T>
    where
        T: Default,
    {
        let mut state = self.lock();
        if let Some(value) = state.used(ino) {
            return value;
        }
        let value = Arc::<T>::default();
        let removed = state.insert(ino, value.clone(), MAX);
        drop(state);
        drop(removed);
        value
    }

    /// Sets the value for `ino`.
    pub fn insert(&self, ino: u64, value: Arc<T>) {
        let removed = self.lock().insert(ino, value, MAX);
        drop(removed);
    }

    /// Removes the value for `ino`.
    pub fn remove(&self, ino: u64) {
        let removed = self.lock().by_inode.remove(&ino);
        drop(removed);
    }

    /// Removes the value for `ino` if it is `value`.
    pub fn remove_if_same(&self, ino: u64, value: &Arc<T>) {
        let mut state = self.lock();
        let same = state.by_inode.get(&ino).is_some_and(|used| Arc::ptr_eq(&used.value, value));
        let removed = if same { state.by_inode.remove(&ino) } else { None };
        drop(state);
        drop(removed);
    }

    /// Removes all values.
    pub fn clear(&self) {
        let removed = std::mem::take(&mut self.lock().by_inode);
        drop(removed);
    }

    /// Number of values.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().by_inode.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_value_is_removed() {
        let lru = Lru::<u64, 2>::default();
        lru.insert(1, Arc::new(10));
        lru.insert(2, Arc::new(20));
        assert_eq!(lru.get(1).as_deref(), Some(&10));
        assert_eq!(*lru.get_or_default(3), 0);
        assert_eq!((lru.get(1).is_some(), lru.get(2), lru.len()), (true, None, 2));
        lru.insert(1, Arc::new(11));
        assert_eq!((lru.get(1).as_deref(), lru.len()), (Some(&11), 2));
        lru.remove_if_same(1, &Arc::new(11));
        assert_eq!(lru.len(), 2, "that is another one");
        let one = lru.get(1).unwrap();
        lru.remove_if_same(1, &one);
        lru.remove(3);
        assert_eq!(lru.len(), 0);
    }
}
