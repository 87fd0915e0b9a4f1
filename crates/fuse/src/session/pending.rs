//! The requests under way, by number: what an interrupt cancels, and what the end waits for.
//!
//! A request is here from before its first poll until its reply was written. So an interrupt that
//! finds nothing is either late, and then nothing is to be done, or early: with two readers, the
//! one can read an INTERRUPT before the other has entered the request that it means. Early ones
//! are remembered and looked for when a request is entered.
//!
//! Who answers is not decided here: the reply belongs to the operation's future, and is sent
//! either by its end or by its drop, so there is exactly one.
//!
//! The lock is held for table operations only; tasks are cancelled, which runs foreign code,
//! after it was released.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::task::Task;
use tokio::sync::Notify;

/// Interrupts remembered whose requests were not known. All but those of the last few
/// microseconds belong to requests that have been answered, and the kernel sends one for each
/// interrupted request only, so the number just has to be larger than what can pile up while a
/// reader stands still between reading a request and entering it.
const EARLY: usize = 1024;

/// What is known of a request under way.
enum Entry {
    /// Being polled for the first time.
    Starting { interruptible: bool, interrupted: bool },
    /// Waiting as a task.
    Started { interruptible: bool, task: Arc<Task> },
}

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// The oldest in front.
    early: VecDeque<u64>,
}

/// The requests under way.
pub(super) struct Pending {
    table: Mutex<Table>,
    /// Told whenever the last request has ended.
    idle: Notify,
    remember_early: bool,
}

impl Pending {
    /// `remember_early`: there is more than one reader.
    pub(super) fn new(remember_early: bool) -> Pending {
        Pending { table: Mutex::default(), idle: Notify::new(), remember_early }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a request. `false` when it was interrupted already: then it must be answered with
    /// `EINTR` at once, and [`Pending::ended`] be called as always.
    pub(super) fn starting(&self, unique: u64, interruptible: bool) -> bool {
        let mut table = self.table();
        let mut interrupted = false;
        if interruptible && let Some(at) = table.early.iter().position(|early| *early == unique) {
            table.early.remove(at);
            interrupted = true;
        }
        table.entries.insert(unique, Entry::Starting { interruptible, interrupted });
        !interrupted
    }

    /// Tells that the request did not end in its first poll, or that it did but somewhere else
    /// meanwhile.
    pub(super) fn started(&self, unique: u64, task: Arc<Task>) {
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&unique) else { return };
        let Entry::Starting { interruptible, interrupted } = *entry else { return };
        if interrupted {
            drop(table);
            task.cancel();
        } else {
            *entry = Entry::Started { interruptible, task };
        }
    }

    /// Tells that the reply was written.
    pub(super) fn ended(&self, unique: u64) {
        let mut table = self.table();
        let entry = table.entries.remove(&unique);
        let idle = table.entries.is_empty();
        drop(table);
        // The entry may hold the last reference to the task, and with it foreign code.
        drop(entry);
        if idle {
            self.idle.notify_waiters();
        }
    }

    /// Cancels a request, if it is one that can be, now or when it is entered.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut table = self.table();
        match table.entries.get_mut(&unique) {
            Some(Entry::Starting { interruptible, interrupted }) => *interrupted = *interruptible,
            Some(Entry::Started { interruptible: true, task }) => {
                let task = task.clone();
                drop(table);
                task.cancel();
            }
            Some(Entry::Started { interruptible: false, .. }) => {}
            None if self.remember_early => {
                if table.early.len() == EARLY {
                    table.early.pop_front();
                }
                table.early.push_back(unique);
            }
            None => {}
        }
    }

    /// How many requests are under way.
    pub(super) fn len(&self) -> usize {
        self.table().entries.len()
    }

    /// Waits until none is.
    pub(super) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Before looking, so that no end is missed.
            idle.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Cancels whatever is under way.
    pub(super) fn cancel_all(&self) {
        let tasks: Vec<_> = self
            .table()
            .entries
            .values_mut()
            .filter_map(|entry| match entry {
                Entry::Started { task, .. } => Some(task.clone()),
                Entry::Starting { interrupted, .. } => {
                    *interrupted = true;
                    None
                }
            })
            .collect();
        for task in tasks {
            task.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A task that waits for ever, and whether it was dropped.
    fn waiting() -> (Arc<Task>, Arc<AtomicBool>) {
        struct Flag(Arc<AtomicBool>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(AtomicBool::new(false));
        let flag = Flag(dropped.clone());
        let task = Task::start(async move {
            let _flag = flag;
            pending::<()>().await;
        });
        (task.unwrap(), dropped)
    }

    #[tokio::test]
    async fn an_interrupt_finds_its_request_in_every_state() {
        let table = Pending::new(true);
        // Before it is entered.
        table.interrupt(2);
        assert!(!table.starting(2, true));
        table.ended(2);
        assert!(table.starting(2, true), "remembered once only");
        // During the first poll.
        table.interrupt(2);
        let (task, dropped) = waiting();
        table.started(2, task);
        assert!(dropped.load(Ordering::SeqCst));
        table.ended(2);
        // While it waits.
        assert!(table.starting(4, true));
        let (task, dropped) = waiting();
        table.started(4, task);
        assert!(!dropped.load(Ordering::SeqCst));
        table.interrupt(4);
        assert!(dropped.load(Ordering::SeqCst));
        table.ended(4);
        assert_eq!(table.len(), 0);
        // With one reader no interrupt is early, so none is remembered.
        let table = Pending::new(false);
        table.interrupt(2);
        assert!(table.starting(2, true));
    }

    #[tokio::test]
    async fn what_must_not_be_interrupted_is_not_but_at_the_end() {
        let table = Pending::new(true);
        table.interrupt(2);
        assert!(table.starting(2, false));
        table.interrupt(2);
        let (task, dropped) = waiting();
        table.started(2, task);
        table.interrupt(2);
        assert!(!dropped.load(Ordering::SeqCst));
        table.cancel_all();
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_request_that_ended_elsewhere_meanwhile_is_not_kept() {
        let table = Pending::new(false);
        assert!(table.starting(2, true));
        table.ended(2);
        let (task, dropped) = waiting();
        table.started(2, task);
        assert_eq!(table.len(), 0);
        assert!(dropped.load(Ordering::SeqCst));
        table.idle().await;
    }

    #[test]
    fn the_memory_of_early_interrupts_is_bounded() {
        let table = Pending::new(true);
        for unique in 0..2 * EARLY as u64 {
            table.interrupt(unique);
        }
        assert!(table.starting(0, true));
        assert!(!table.starting(2 * EARLY as u64 - 1, true));
        assert_eq!(table.table().early.len(), EARLY - 1);
    }
}
