//! Background tasks, which no caller waits for: prefetches and others.
//!
//! They end with the [`Vfs`](crate::Vfs), which drops their futures, so the remote handles that
//! they hold are closed.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, Weak};

use base::{Mutex, task::Task};

/// The background tasks of a mount.
#[derive(Default)]
pub(crate) struct Background {
    jobs: Arc<Mutex<Jobs>>,
}

#[derive(Default)]
struct Jobs {
    ended: bool,
    next: u64,
    /// `None` while the task is polled for the first time.
    running: HashMap<u64, Option<Arc<Task>>>,
}

impl Background {
    /// Begins `job` at once, on this thread. Must be called within a tokio runtime, and without any
    /// lock that `job` takes.
    pub(crate) fn start(&self, job: impl Future<Output = ()> + Send + 'static) {
        let number = {
            let mut jobs = lock(&self.jobs);
            if jobs.ended {
                return;
            }
            jobs.next += 1;
            let number = jobs.next;
            jobs.running.insert(number, None);
            number
        };
        let remove = RemoveJob { jobs: Arc::downgrade(&self.jobs), number };
        let task = Task::start(async move {
            let _remove = remove;
            job.await;
        });
        let mut jobs = lock(&self.jobs);
        if jobs.ended {
            drop(jobs);
            if let Some(task) = task {
                task.cancel();
            }
        } else if let Some(place) = jobs.running.get_mut(&number) {
            *place = task;
        }
    }

    /// Drops all jobs, for good.
    pub(crate) fn end(&self) {
        let running = {
            let mut jobs = lock(&self.jobs);
            jobs.ended = true;
            std::mem::take(&mut jobs.running)
        };
        for task in running.into_values().flatten() {
            task.cancel();
        }
    }

    /// The number of running jobs.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.jobs).running.len()
    }
}

/// Removes a job from the list at its end.
struct RemoveJob {
    jobs: Weak<Mutex<Jobs>>,
    number: u64,
}

impl Drop for RemoveJob {
    fn drop(&mut self) {
        if let Some(jobs) = self.jobs.upgrade() {
            // Dropped without the lock.
            let _task = lock(&jobs).running.remove(&self.number);
        }
    }
}

fn lock(jobs: &Mutex<Jobs>) -> MutexGuard<'_, Jobs> {
    jobs.lock()
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
