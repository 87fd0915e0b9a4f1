//! In-place tasks: an operation is polled by the thread that decoded its request, and completed by
//! the thread that decodes its reply, without a change of thread or task in between.
//!
//! A change of thread costs 6 to 13 us (a futex wake-up, from a blocking thread to a tokio worker),
//! as much as all of FUSE. So [`Task::start`] polls the future at once on the calling thread. If
//! the future has to wait, its waker is called later. Inside [`batch`], the woken task is polled on
//! that thread at the end of the batch; elsewhere, the tokio runtime on which it was started polls
//! it.
//!
//! Invariants:
//! 1. A future is polled by one thread at a time, and never from inside `wake`, so a waker may be
//!    called with locks held.
//! 2. A wake-up during a poll causes one more poll.
//! 3. Work registered [for the end of a batch](at_end_of_batch) runs after the tasks of the batch
//!    were polled, or after a few of them.
//! 4. After [`Task::cancel`] has returned `true`, the future is not polled again: it was dropped,
//!    or the thread that polls it now is about to drop it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waiting for a wake-up; not being polled.
const IDLE: u8 = 0;
/// Woken; a poll is scheduled.
const SCHEDULED: u8 = 1;
/// Being polled.
const RUNNING: u8 = 2;
/// Being polled, and woken since that poll began.
const RUNNING_WOKEN: u8 = 3;
/// Finished or cancelled: the future was dropped.
const DONE: u8 = 4;

/// An operation in progress.
pub struct Task {
    state: AtomicU8,
    operation: Mutex<Option<Operation>>,
    runtime: Handle,
}

/// Tasks polled before the work for the end of their batch runs for the first time. That work must
/// not wait long, and a few tasks together gain nearly as much as many.
const TASKS_BETWEEN: usize = 8;

/// Work that is done once for all events in a [`batch`].
pub trait AtEnd: Send + Sync {
    /// Called by the thread that was in the batch, once for each [`at_end_of_batch`]. Must not
    /// block or panic.
    fn at_end(&self);
}

/// The tasks and the work of a batch.
#[derive(Default)]
struct Batch {
    woken: VecDeque<Arc<Task>>,
    at_end: Vec<Arc<dyn AtEnd>>,
}

thread_local! {
    /// The current batch of this thread, if there is one.
    static BATCH: RefCell<Option<Batch>> = const { RefCell::new(None) };
}

impl Task {
    /// Polls `operation` once on this thread. Returns the task if it has to wait.
    ///
    /// Must be called within a tokio runtime.
    pub fn start(operation: impl Future<Output = ()> + Send + 'static) -> Option<Arc<Task>> {
        let task = Arc::new(Task {
            state: AtomicU8::new(SCHEDULED),
            // Otherwise the cooperative budget of the surrounding tokio task could make a ready
            // future return `Pending`.
            operation: Mutex::new(Some(Box::pin(tokio::task::unconstrained(operation)))),
            runtime: Handle::current(),
        });
        task.run();
        (task.state.load(Ordering::Acquire) != DONE).then_some(task)
    }

    /// Drops the future. `false` if it had already finished.
    pub fn cancel(&self) -> bool {
        let before = self.state.swap(DONE, Ordering::AcqRel);
        if before == IDLE || before == SCHEDULED {
            self.drop_operation();
        }
        // A thread that polls it now finds DONE after the poll and drops it.
        before != DONE
    }

    fn drop_operation(&self) {
        let operation = self.operation.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(operation);
    }

    /// Polls until the future waits or has finished.
    fn run(self: &Arc<Task>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        while self.become_running() {
            let finished = {
                let mut slot = self.operation.lock().unwrap_or_else(PoisonError::into_inner);
                match slot.as_mut() {
                    Some(operation) => operation.as_mut().poll(&mut context) == Poll::Ready(()),
                    None => return,
                }
            };
            if finished {
                self.state.store(DONE, Ordering::Release);
                self.drop_operation();
                return;
            }
            match self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(DONE) => return self.drop_operation(),
                Err(_) => {
                    let _ = self.state.compare_exchange(
                        RUNNING_WOKEN,
                        SCHEDULED,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                }
            }
        }
        // Cancelled between two polls.
        if self.state.load(Ordering::Acquire) == DONE {
            self.drop_operation();
        }
    }

    fn become_running(&self) -> bool {
        self.state.compare_exchange(SCHEDULED, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Records a wake-up; `true` if the caller must arrange the poll.
    fn schedule(&self) -> bool {
        let update = |state| match state {
            IDLE => Some(SCHEDULED),
            RUNNING => Some(RUNNING_WOKEN),
            _ => None,
        };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, update) == Ok(IDLE)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        Task::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<Task>) {
        if !self.schedule() {
            return;
        }
        let batched = BATCH.with_borrow_mut(|batch| match batch {
            Some(batch) => {
                batch.woken.push_back(self.clone());
                true
            }
            None => false,
        });
        if !batched {
            let task = self.clone();
            self.runtime.spawn(async move { task.run() });
        }
    }
}

/// Registers work for the end of the current batch of this thread. Without a batch it returns
/// `false` and does not call `work`.
pub fn at_end_of_batch(work: impl FnOnce() -> Arc<dyn AtEnd>) -> bool {
    BATCH.with_borrow_mut(|batch| {
        let Some(batch) = batch else { return false };
        batch.at_end.push(work());
        true
    })
}

/// Runs `body`, then polls on this thread every [`Task`] that was woken in it, and every task that
/// those polls wake.
///
/// For the decoding of replies. A batch inside a batch leaves its tasks to the outer one.
pub fn batch<T>(body: impl FnOnce() -> T) -> T {
    if BATCH.with_borrow(Option::is_some) {
        return body();
    }
    /// Ends the batch, even after a panic in it, and hands the remaining tasks to the runtime.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            let batch = BATCH.take().unwrap_or_default();
            for task in batch.woken {
                let runtime = task.runtime.clone();
                runtime.spawn(async move { task.run() });
            }
            batch.at_end.iter().for_each(|work| work.at_end());
        }
    }
    BATCH.set(Some(Batch::default()));
    let leave = Leave;
    let result = body();
    let mut polled = 0;
    // One by one, so that the tasks behind one that panics are still handed to the runtime.
    while let Some(task) = BATCH.with_borrow_mut(|batch| batch.as_mut()?.woken.pop_front()) {
        task.run();
        polled += 1;
        if polled % TASKS_BETWEEN == 0 {
            run_end_work();
        }
    }
    drop(leave);
    result
}

/// Runs the work that was registered for the end of the batch so far.
fn run_end_work() {
    let works = BATCH
        .with_borrow_mut(|batch| batch.as_mut().map(|batch| std::mem::take(&mut batch.at_end)));
    works.iter().flatten().for_each(|work| work.at_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::thread;
    use tokio::sync::{mpsc, oneshot, watch};

    /// Sets its flag when dropped.
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn a_ready_future_needs_no_task() {
        let done = Arc::new(AtomicBool::new(false));
        let flag = Flag(done.clone());
        assert!(Task::start(async move { drop(flag) }).is_none());
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_task_woken_in_a_batch_is_finished_by_that_thread() {
        let (replier, reply) = oneshot::channel();
        let ran_on = Arc::new(Mutex::new(None));
        let seen = ran_on.clone();
        let task = Task::start(async move {
            let () = reply.await.unwrap();
            *seen.lock().unwrap() = Some(thread::current().id());
        });
        assert!(task.is_some());
        let thread = thread::spawn(move || {
            batch(|| replier.send(()).unwrap());
            thread::current().id()
        });
        let id = thread.join().unwrap();
        assert_eq!(*ran_on.lock().unwrap(), Some(id));
    }

    #[tokio::test]
    async fn a_task_woken_elsewhere_is_finished_by_the_runtime() {
        let (replier, reply) = oneshot::channel::<()>();
        let (done, finished) = oneshot::channel();
        let _task = Task::start(async move {
            reply.await.unwrap();
            done.send(()).unwrap();
        });
        thread::spawn(move || replier.send(()).unwrap()).join().unwrap();
        finished.await.unwrap();
    }

    struct Notifier(mpsc::UnboundedSender<&'static str>);
    impl AtEnd for Notifier {
        fn at_end(&self) {
            self.0.send("end").unwrap();
        }
    }

    #[tokio::test]
    async fn end_work_runs_after_the_tasks() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let notifier = Arc::new(Notifier(sender.clone()));
        let at_end = || at_end_of_batch(|| notifier.clone());
        assert!(!at_end(), "there is no batch");
        let (replier, reply) = oneshot::channel::<()>();
        let task_sender = sender.clone();
        let _task = Task::start(async move {
            reply.await.unwrap();
            task_sender.send("task").unwrap();
        });
        batch(|| {
            assert!(at_end());
            // The inner batch leaves it to the outer one.
            batch(|| assert!(at_end()));
            replier.send(()).unwrap();
            sender.send("body").unwrap();
        });
        let order: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        assert_eq!(order, ["body", "task", "end", "end"]);
        let panics = std::panic::AssertUnwindSafe(|| {
            batch(|| {
                at_end();
                panic!("as it should");
            });
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(receiver.try_recv(), Ok("end"), "also when something panics");
    }

    #[tokio::test]
    async fn end_work_does_not_wait_for_all_tasks() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let notifier = Arc::new(Notifier(sender.clone()));
        let (replier, reply) = watch::channel(false);
        let tasks: Vec<_> = (0..2 * TASKS_BETWEEN)
            .map(|_| {
                let (mut reply, sender, notifier) =
                    (reply.clone(), sender.clone(), notifier.clone());
                Task::start(async move {
                    reply.wait_for(|ready| *ready).await.unwrap();
                    at_end_of_batch(|| notifier.clone());
                    sender.send("task").unwrap();
                })
            })
            .collect();
        batch(|| replier.send(true).unwrap());
        let order: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        assert_eq!(order.iter().position(|what| *what == "end"), Some(TASKS_BETWEEN));
        assert_eq!((order.len(), tasks.len()), (4 * TASKS_BETWEEN, 2 * TASKS_BETWEEN));
    }

    #[tokio::test]
    async fn a_panic_in_a_batch_does_not_lose_other_tasks() {
        let (replier, reply) = watch::channel(false);
        let (done, finished) = oneshot::channel();
        let mut first = reply.clone();
        let mut second = reply;
        let _panics = Task::start(async move {
            first.wait_for(|ready| *ready).await.unwrap();
            panic!("as it should");
        });
        let _finishes = Task::start(async move {
            second.wait_for(|ready| *ready).await.unwrap();
            done.send(()).unwrap();
        });
        let batch = std::panic::AssertUnwindSafe(|| batch(|| replier.send(true).unwrap()));
        assert!(std::panic::catch_unwind(batch).is_err());
        finished.await.unwrap();
    }

    #[tokio::test]
    async fn cancelling_drops_the_future_and_happens_once() {
        let dropped = Arc::new(AtomicBool::new(false));
        let flag = Flag(dropped.clone());
        let task = Task::start(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        })
        .unwrap();
        assert!(task.cancel());
        assert!(dropped.load(Ordering::SeqCst));
        assert!(!task.cancel());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_is_lost_and_cancel_races_with_polls() {
        let finished = Arc::new(AtomicUsize::new(0));
        let dropped = Arc::new(AtomicUsize::new(0));
        struct Count(Arc<AtomicUsize>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        const ROUNDS: usize = 300;
        for round in 0..ROUNDS {
            let (send, mut receive) = mpsc::unbounded_channel();
            let done = finished.clone();
            let count = Count(dropped.clone());
            let task = Task::start(async move {
                let _count = count;
                for expected in 0..50 {
                    assert_eq!(receive.recv().await, Some(expected));
                }
                done.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
            let sender = thread::spawn(move || {
                for number in 0..50 {
                    if number % 2 == 0 {
                        batch(|| send.send(number).ok());
                    } else {
                        send.send(number).ok();
                    }
                }
                send
            });
            if round % 3 == 0 {
                task.cancel();
            }
            drop(task);
            drop(sender.join().unwrap());
        }
        for _ in 0..1000 {
            if dropped.load(Ordering::SeqCst) == ROUNDS {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(dropped.load(Ordering::SeqCst), ROUNDS, "a future was neither run nor dropped");
        assert!(finished.load(Ordering::SeqCst) >= ROUNDS - ROUNDS.div_ceil(3));
    }
}
