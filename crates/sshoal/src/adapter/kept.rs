//! What is kept open for a kernel that tells of no open and of no close.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something for each of some inodes, `MOST` at most: more than are in use at once, since what was
/// used least recently goes. What goes is dropped without the lock, and lives for as long as
/// somebody uses it.
pub struct Kept<T, const MOST: usize>(Mutex<State<T>>);

struct State<T> {
    by_inode: HashMap<u64, Used<T>>,
    /// Counts uses, to tell which was the least recent.
    uses: u64,
}

struct Used<T> {
    it: Arc<T>,
    last: u64,
}

impl<T, const MOST: usize> Default for Kept<T, MOST> {
    fn default() -> Kept<T, MOST> {
        Kept(Mutex::new(State { by_inode: HashMap::new(), uses: 0 }))
    }
}

impl<T> State<T> {
    fn used(&mut self, ino: u64) -> Option<Arc<T>> {
        self.uses += 1;
        let used = self.by_inode.get_mut(&ino)?;
        used.last = self.uses;
        Some(used.it.clone())
    }

    /// Keeps it; gives what goes for it: what was there, or what was used least recently.
    fn keep(&mut self, ino: u64, it: Arc<T>, most: usize) -> Option<Used<T>> {
        self.uses += 1;
        let used = Used { it, last: self.uses };
        let same = self.by_inode.insert(ino, used);
        if self.by_inode.len() <= most {
            return same;
        }
        let oldest = self.by_inode.iter().min_by_key(|(_, used)| used.last).map(|(ino, _)| *ino)?;
        self.by_inode.remove(&oldest)
    }
}

impl<T, const MOST: usize> Kept<T, MOST> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is for `ino`; that is a use.
    pub fn get(&self, ino: u64) -> Option<Arc<T>> {
        self.lock().used(ino)
    }

    /// The same, made if there is nothing.
    pub fn get_or_default(&self, ino: u64) -> Arc<T>
    where
        T: Default,
    {
        let mut state = self.lock();
        if let Some(it) = state.used(ino) {
            return it;
        }
        let it = Arc::<T>::default();
        let gone = state.keep(ino, it.clone(), MOST);
        drop(state);
        drop(gone);
        it
    }

    /// Keeps it for `ino`, instead of what there is.
    pub fn keep(&self, ino: u64, it: Arc<T>) {
        let gone = self.lock().keep(ino, it, MOST);
        drop(gone);
    }

    /// Keeps nothing for `ino` any more.
    pub fn forget(&self, ino: u64) {
        let gone = self.lock().by_inode.remove(&ino);
        drop(gone);
    }

    /// The same, if it is this.
    pub fn forget_this(&self, ino: u64, it: &Arc<T>) {
        let mut state = self.lock();
        let same = state.by_inode.get(&ino).is_some_and(|used| Arc::ptr_eq(&used.it, it));
        let gone = if same { state.by_inode.remove(&ino) } else { None };
        drop(state);
        drop(gone);
    }

    /// Keeps nothing any more.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut self.lock().by_inode);
        drop(gone);
    }

    /// For how many inodes there is something.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().by_inode.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_least_recently_goes_first() {
        let kept = Kept::<u64, 2>::default();
        kept.keep(1, Arc::new(10));
        kept.keep(2, Arc::new(20));
        assert_eq!(kept.get(1).as_deref(), Some(&10));
        assert_eq!(*kept.get_or_default(3), 0);
        assert_eq!((kept.get(1).is_some(), kept.get(2), kept.len()), (true, None, 2));
        kept.keep(1, Arc::new(11));
        assert_eq!((kept.get(1).as_deref(), kept.len()), (Some(&11), 2));
        kept.forget_this(1, &Arc::new(11));
        assert_eq!(kept.len(), 2, "that is another one");
        let one = kept.get(1).unwrap();
        kept.forget_this(1, &one);
        kept.forget(3);
        assert_eq!(kept.len(), 0);
    }
}
