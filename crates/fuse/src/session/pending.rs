//! The table of requests in progress, by number: interrupts, and what the end of the session waits
//! for.
//!
//! A request is in the table from before its first poll until its reply was written. So an
//! interrupt without an entry is either late, and needs no action, or early: with two readers, one
//! may read an INTERRUPT before the other has entered its request. Early interrupts are remembered,
//! and checked when a request is entered.
//!
//! [`interrupts`](super::interrupts) decides what happens to an interrupted request; this module
//! selects the requests to check, and cancels a request in each of its states.
//!
//! The reply belongs to the operation's future, and is sent either by its end or by its drop, so
//! there is exactly one.
//!
//! The lock is held for table operations only; tasks are cancelled, which runs code of the file
//! system, after it was released.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use base::{Mutex, task::Task};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::interrupts::{CALLER_ROUNDS, Policy, Verdict, decide, interrupts};
use crate::caller::signals::Signals;

/// Maximum number of remembered interrupts without a request. All but those of the last few
/// microseconds belong to requests that have been answered, and the kernel sends one for each
/// interrupted request only; so the number has to exceed only what can accumulate while a reader is
/// between reading a request and entering it.
const MAX_EARLY: usize = 1024;

/// A request in progress.
struct Entry {
    policy: Policy,
    /// The thread that waits for the reply.
    tid: u32,
    ino: u64,
    state: State,
    /// [`Table::round`] at its begin.
    round: u64,
}

/// A request whose caller is to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) unique: u64,
    /// The thread that waits for the reply.
    pub(super) tid: u32,
    pub(super) ino: u64,
}

impl Waiting {
    fn of((unique, entry): (&u64, &Entry)) -> Waiting {
        Waiting { unique: *unique, tid: entry.tid, ino: entry.ino }
    }
}

/// The progress of a request.
enum State {
    /// In its first poll.
    Starting { cancelled: bool },
    /// Waiting as a task.
    Started(Arc<Task>),
}

/// State of the caller of an interrupted request.
struct Interrupted {
    at: Instant,
    /// When a requested end of the process was first seen.
    terminating: Option<Instant>,
    examined: bool,
}

impl Interrupted {
    fn new() -> Interrupted {
        Interrupted { at: Instant::now(), terminating: None, examined: false }
    }
}

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// The interrupted entries.
    interrupted: HashMap<u64, Interrupted>,
    /// The task that checks requests is running.
    has_examiner: bool,
    /// The oldest first.
    early: VecDeque<u64>,
    /// Number of checks of all interrupted entries.
    round: u64,
}

impl Table {
    /// Records an interrupt of an entry; returns whether the examiner has to be started.
    fn interrupt(&mut self, unique: u64) -> bool {
        self.interrupted.entry(unique).or_insert_with(Interrupted::new);
        !std::mem::replace(&mut self.has_examiner, true)
    }
}

/// The requests in progress.
pub(super) struct Pending {
    table: Mutex<Table>,
    /// Notified when the last request has ended.
    idle: Notify,
    /// Notified of each interrupt that has to be checked.
    new_interrupt: Arc<Notify>,
    remember_early: bool,
    /// The kernel may not report the signals of a caller.
    checks_all: bool,
}

impl Pending {
    /// `remember_early`: there is more than one reader.
    pub(super) fn new(remember_early: bool) -> Pending {
        Pending {
            table: Mutex::default(),
            idle: Notify::new(),
            new_interrupt: Arc::default(),
            remember_early,
            checks_all: false,
        }
    }

    /// For requests through io_uring, with which interrupts are lost.
    pub(super) fn over_io_uring() -> Pending {
        Pending { checks_all: true, ..Pending::new(true) }
    }

    /// Enters a request of the thread `tid` for `ino`. Returns whether the examiner has to be
    /// started, like [`Pending::interrupt`]: the request may already be interrupted.
    pub(super) fn starting(&self, unique: u64, tid: u32, ino: u64, policy: Policy) -> bool {
        let mut table = self.table.lock();
        let state = State::Starting { cancelled: false };
        let round = table.round;
        table.entries.insert(unique, Entry { policy, tid, ino, state, round });
        let mut needs_examiner = false;
        if let Some(at) = table.early.iter().position(|early| *early == unique) {
            table.early.remove(at);
            needs_examiner = table.interrupt(unique);
            self.new_interrupt.notify_one();
        }
        needs_examiner
    }

    /// Records that the request did not end in its first poll; it may have ended on another thread
    /// since. Returns whether the examiner has to be started, like [`Pending::interrupt`].
    pub(super) fn started(&self, unique: u64, task: Arc<Task>) -> bool {
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(&unique) else { return false };
        match entry.state {
            State::Starting { cancelled: false } => entry.state = State::Started(task),
            State::Starting { cancelled: true } => {
                drop(table);
                task.cancel();
                return false;
            }
            State::Started(_) => {}
        }
        self.checks_all && !std::mem::replace(&mut table.has_examiner, true)
    }

    /// Records that the reply was written.
    pub(super) fn ended(&self, unique: u64) {
        let mut table = self.table.lock();
        let entry = table.entries.remove(&unique);
        if !table.interrupted.is_empty() {
            table.interrupted.remove(&unique);
        }
        let idle = table.entries.is_empty();
        drop(table);
        // The entry may hold the last reference to the task, and with it code of the file system.
        drop(entry);
        if idle {
            self.idle.notify_waiters();
        }
    }

    /// Records that a request is interrupted, now or when it is entered. Returns whether the
    /// examiner has to be started: a task that calls [`Pending::to_examine`] until it returns
    /// `None`.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut table = self.table.lock();
        if table.entries.contains_key(&unique) {
            let starts = table.interrupt(unique);
            drop(table);
            self.new_interrupt.notify_one();
            return starts;
        }
        if self.remember_early {
            if table.early.len() == MAX_EARLY {
                table.early.pop_front();
            }
            table.early.push_back(unique);
        }
        false
    }

    /// Notified of each interrupt that has to be checked.
    pub(super) fn interrupt_notified(&self) -> Arc<Notify> {
        self.new_interrupt.clone()
    }

    /// The requests to check: `all` interrupted ones, or those not checked yet; with `all`, at times
    /// also the others that wait. `None` if there is nothing to check: the examiner ends then.
    pub(super) fn to_examine(&self, all: bool) -> Option<Vec<Waiting>> {
        let mut table = self.table.lock();
        let Table { entries, interrupted, has_examiner, round, .. } = &mut *table;
        let is_done = if self.checks_all { entries.is_empty() } else { interrupted.is_empty() };
        if is_done {
            *has_examiner = false;
            return None;
        }
        *round += u64::from(all);
        let with_others = self.checks_all && all && round.is_multiple_of(CALLER_ROUNDS);
        let is_due = |id: &u64, entry: &Entry| match interrupted.get(id) {
            Some(it) => all || !it.examined,
            None => with_others && entry.round + CALLER_ROUNDS <= *round,
        };
        let due = entries.iter().filter(|(id, entry)| is_due(id, entry));
        Some(due.map(Waiting::of).collect())
    }

    /// Records the signals of the caller of a request, and how long the server has been silent.
    /// Cancels the request if required.
    pub(super) fn examined(&self, unique: u64, signals: Signals, silent: std::time::Duration) {
        let mut table = self.table.lock();
        let Table { entries, interrupted, .. } = &mut *table;
        let Some(entry) = entries.get_mut(&unique) else { return };
        if self.checks_all && interrupts(signals, entry.policy) {
            interrupted.entry(unique).or_insert_with(Interrupted::new);
        }
        let Some(seen) = interrupted.get_mut(&unique) else { return };
        seen.examined = true;
        let now = Instant::now();
        if signals != Signals::Terminating {
            seen.terminating = None;
        }
        let since = match signals {
            Signals::Terminating => *seen.terminating.get_or_insert(now),
            _ => seen.at,
        };
        if decide(signals, now.duration_since(since), silent, entry.policy) == Verdict::Wait {
            return;
        }
        let task = cancelled(entry);
        drop(table);
        if let Some(task) = task {
            task.cancel();
        }
    }

    /// Number of requests in progress.
    pub(super) fn len(&self) -> usize {
        self.table.lock().entries.len()
    }

    /// Waits until there is none.
    pub(super) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Before the check, so that no end is missed.
            idle.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Cancels all requests in progress.
    pub(super) fn cancel_all(&self) {
        let tasks: Vec<_> = self.table.lock().entries.values_mut().filter_map(cancelled).collect();
        for task in tasks {
            task.cancel();
        }
    }
}

/// Marks an entry as cancelled, or returns the task to cancel.
fn cancelled(entry: &mut Entry) -> Option<Arc<Task>> {
    match &mut entry.state {
        State::Started(task) => Some(task.clone()),
        State::Starting { cancelled } => {
            *cancelled = true;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// A task that waits forever, and whether it was dropped.
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

    /// Enters the request and lets it wait.
    fn begin(table: &Pending, unique: u64, policy: Policy) -> Arc<AtomicBool> {
        table.starting(unique, 7, 1, policy);
        let (task, dropped) = waiting();
        table.started(unique, task);
        dropped
    }

    fn fatal(table: &Pending, unique: u64) {
        table.examined(unique, Signals::Fatal, Duration::ZERO);
    }

    #[tokio::test]
    async fn an_interrupt_finds_its_request_in_every_state() {
        let table = Pending::new(true);
        // Before the request is entered.
        assert!(!table.interrupt(2));
        assert!(table.starting(2, 7, 1, Policy::Changing));
        assert_eq!(table.to_examine(false), Some(vec![Waiting { unique: 2, tid: 7, ino: 1 }]));
        // Checked during the first poll.
        fatal(&table, 2);
        let (task, dropped) = waiting();
        table.started(2, task);
        assert!(dropped.load(Ordering::SeqCst));
        table.ended(2);
        assert_eq!(table.to_examine(true), None, "the examiner ends");
        assert!(!table.starting(2, 7, 1, Policy::Changing), "remembered once only");
        // During the first poll, and checked while it waits.
        assert!(table.interrupt(2));
        let (task, dropped) = waiting();
        table.started(2, task);
        assert!(!dropped.load(Ordering::SeqCst));
        fatal(&table, 2);
        assert!(dropped.load(Ordering::SeqCst));
        table.ended(2);
        // While it waits; the examiner of the previous one has not ended.
        let dropped = begin(&table, 4, Policy::Changing);
        fatal(&table, 4);
        assert!(!dropped.load(Ordering::SeqCst), "it is not interrupted");
        assert!(!table.interrupt(4));
        fatal(&table, 4);
        assert!(dropped.load(Ordering::SeqCst));
        table.ended(4);
        assert_eq!((table.len(), table.to_examine(true)), (0, None));
        // With one reader no interrupt is early, so none is remembered.
        let table = Pending::new(false);
        assert!(!table.interrupt(2));
        assert!(!table.starting(2, 7, 1, Policy::Changing));
        assert_eq!(table.to_examine(true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_checked_until_its_caller_has_to_be_freed() {
        let table = Pending::new(false);
        let dropped = begin(&table, 2, Policy::Repeatable);
        let is_dropped = || dropped.load(Ordering::SeqCst);
        let silent = Duration::from_secs(9);
        assert!(table.interrupt(2));
        assert!(!table.interrupt(2), "one examiner");
        // SIGALRM does not start the time of the following signal.
        assert_eq!(table.to_examine(false), Some(vec![Waiting { unique: 2, tid: 7, ino: 1 }]));
        table.examined(2, Signals::Other, silent);
        assert_eq!(table.to_examine(false), Some(vec![]));
        tokio::time::advance(silent).await;
        assert_eq!(table.to_examine(true), Some(vec![Waiting { unique: 2, tid: 7, ino: 1 }]));
        table.examined(2, Signals::Terminating, silent);
        tokio::time::advance(Duration::from_millis(999)).await;
        table.examined(2, Signals::Terminating, silent);
        assert!(!is_dropped());
        tokio::time::advance(Duration::from_millis(1)).await;
        table.examined(2, Signals::Terminating, Duration::ZERO);
        assert!(!is_dropped(), "the server answers");
        table.examined(2, Signals::Terminating, silent);
        assert!(is_dropped());
        table.ended(2);
        // A request that changes something waits for SIGKILL.
        let dropped = begin(&table, 4, Policy::Changing);
        assert!(!table.interrupt(4));
        table.examined(4, Signals::Terminating, silent);
        tokio::time::advance(silent).await;
        table.examined(4, Signals::Terminating, silent);
        assert!(!dropped.load(Ordering::SeqCst));
        fatal(&table, 4);
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn uninterruptible_requests_are_cancelled_only_at_the_end() {
        let table = Pending::new(true);
        table.interrupt(2);
        let dropped = begin(&table, 2, Policy::Uninterruptible);
        fatal(&table, 2);
        assert!(!dropped.load(Ordering::SeqCst));
        table.cancel_all();
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_request_that_ended_on_another_thread_is_not_kept() {
        let table = Pending::new(false);
        table.starting(2, 7, 1, Policy::Changing);
        table.ended(2);
        let (task, dropped) = waiting();
        table.started(2, task);
        assert_eq!(table.len(), 0);
        assert!(dropped.load(Ordering::SeqCst));
        table.idle().await;
    }

    #[tokio::test]
    async fn callers_without_an_interrupt_are_checked_over_io_uring() {
        let table = Pending::over_io_uring();
        table.starting(2, 7, 1, Policy::Changing);
        assert!(table.started(2, waiting().0));
        table.starting(4, 8, 1, Policy::Changing);
        assert!(!table.started(4, waiting().0), "one examiner");
        table.interrupt(4);
        let second = Waiting { unique: 4, tid: 8, ino: 1 };
        for _ in 1..CALLER_ROUNDS {
            assert_eq!(table.to_examine(true), Some(vec![second]));
        }
        table.ended(4);
        begin(&table, 6, Policy::Changing);
        assert_eq!(table.to_examine(false), Some(vec![]));
        let first = Waiting { unique: 2, tid: 7, ino: 1 };
        assert_eq!(table.to_examine(true), Some(vec![first]), "the other one is new");
        table.ended(2);
        table.ended(6);
        assert_eq!(table.to_examine(true), None);
        table.starting(8, 7, 1, Policy::Changing);
        assert!(table.started(8, waiting().0), "another examiner");
        let other = Pending::new(true);
        other.starting(2, 7, 1, Policy::Changing);
        assert!(!other.started(2, waiting().0), "/dev/fuse reports all");
    }

    /// K3: any signal with a handler ends the waiting for a lock.
    #[tokio::test]
    async fn a_signal_without_an_interrupt_has_its_effect_over_io_uring() {
        use Policy::{Changing, Lock, Repeatable};
        for (signals, policy, is_cancelled) in [
            (Signals::Handled, Lock, true),
            (Signals::Other, Lock, false),
            (Signals::Unreadable, Lock, false),
            (Signals::Handled, Repeatable, false),
            (Signals::Fatal, Changing, true),
        ] {
            let table = Pending::over_io_uring();
            let dropped = begin(&table, 2, policy);
            table.examined(2, signals, Duration::ZERO);
            assert_eq!(dropped.load(Ordering::SeqCst), is_cancelled, "{signals:?} {policy:?}");
        }
    }

    #[test]
    fn the_memory_of_early_interrupts_is_bounded() {
        let table = Pending::new(true);
        for unique in 0..2 * MAX_EARLY as u64 {
            table.interrupt(unique);
        }
        assert!(!table.starting(0, 7, 1, Policy::Changing));
        assert!(table.starting(2 * MAX_EARLY as u64 - 1, 7, 1, Policy::Changing));
        assert_eq!(table.table.lock().early.len(), MAX_EARLY - 1);
    }
}
