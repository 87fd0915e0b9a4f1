//! What goes on without a caller who waits for it: listings and files that are fetched ahead.
//!
//! Such work is never needed. It ends with the [`Vfs`](crate::Vfs), which drops its futures; so
//! what they hold open at the remote is given back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::task::Task;

/// The work in the background.
#[derive(Default)]
pub(crate) struct Background {
    works: Arc<Mutex<Works>>,
}

#[derive(Default)]
struct Works {
    ended: bool,
    next: u64,
    /// Without a task while it is polled for the first time.
    on_their_way: HashMap<u64, Option<Arc<Task>>>,
}

impl Background {
    /// Begins `work` at once, on this thread. Must be called within a tokio runtime, and without
    /// any lock that `work` takes.
    pub(crate) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let number = {
            let mut works = lock(&self.works);
            if works.ended {
                return;
            }
            works.next += 1;
            let number = works.next;
            works.on_their_way.insert(number, None);
            number
        };
        let leave = Leave { works: Arc::downgrade(&self.works), number };
        let task = Task::start(async move {
            let _leave = leave;
            work.await;
        });
        let mut works = lock(&self.works);
        if works.ended {
            drop(works);
            if let Some(task) = task {
                task.cancel();
            }
        } else if let Some(place) = works.on_their_way.get_mut(&number) {
            *place = task;
        }
    }

    /// Drops all of it, for good.
    pub(crate) fn end(&self) {
        let on_their_way = {
            let mut works = lock(&self.works);
            works.ended = true;
            std::mem::take(&mut works.on_their_way)
        };
        for task in on_their_way.into_values().flatten() {
            task.cancel();
        }
    }

    /// How many are on their way.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.works).on_their_way.len()
    }
}

/// Takes a work that is over off the list.
struct Leave {
    works: Weak<Mutex<Works>>,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some(works) = self.works.upgrade() {
            // Dropped without the lock.
            let _task = lock(&works).on_their_way.remove(&self.number);
        }
    }
}

fn lock(works: &Mutex<Works>) -> MutexGuard<'_, Works> {
    works.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn work_ends_with_its_owner() {
        let (dropped, background) = (Arc::new(AtomicUsize::new(0)), Background::default());
        let count = || Count(dropped.clone());
        let (at_once, waits) = (count(), count());
        background.start(async move { drop(at_once) });
        assert_eq!((background.len(), dropped.load(Ordering::SeqCst)), (0, 1));
        background.start(async move {
            let _waits = waits;
            std::future::pending::<()>().await;
        });
        assert_eq!((background.len(), dropped.load(Ordering::SeqCst)), (1, 1));
        background.end();
        assert_eq!((background.len(), dropped.load(Ordering::SeqCst)), (0, 2));
        let late = count();
        background.start(async move { drop(late) });
        assert_eq!(background.len(), 0);
    }
}
