//! A range lock over the open handles of one path: keeps the order of their requests over all
//! sessions.
//!
//! A session keeps the order of its own requests. A request that conflicts with an earlier one on
//! another session waits here until the earlier one was answered.
//!
//! Invariants:
//! 1. An operation waits only for operations that entered before it, so there is no deadlock.
//! 2. Two operations conflict if their byte ranges overlap and one of them changes the file. The
//!    later one may proceed when the earlier one is complete, or when the earlier one was sent and
//!    both use the same single session.
//! 3. An operation stays in the queue until its replies were received, also if its caller has
//!    stopped waiting.
//!
//! The lock is held for a few instructions; wakers are called without it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use base::Mutex;

/// Operations that have entered and are not complete.
#[derive(Default)]
pub(crate) struct RangeLock(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// In the order of `number`.
    queue: VecDeque<Operation>,
}

struct Operation {
    number: u64,
    bytes: Range<u64>,
    changes: bool,
    /// The session, if all requests use one session.
    slot: Option<usize>,
    /// All requests were handed to their sessions.
    sent: bool,
    waiting: Option<Waker>,
}

impl Operation {
    /// Whether `later` has to wait for this operation.
    fn blocks(&self, later: &Operation) -> bool {
        let overlap = self.bytes.start < later.bytes.end && later.bytes.start < self.bytes.end;
        let same_session = self.sent && self.slot.is_some() && self.slot == later.slot;
        overlap && (self.changes || later.changes) && !same_session
    }
}

/// All bytes of a file, and its attributes.
pub(crate) const WHOLE_FILE: Range<u64> = 0..u64::MAX;

impl RangeLock {
    /// Enters the queue behind all earlier operations. `slot` is the session if all requests will
    /// use one.
    pub(crate) fn enter(
        self: &Arc<RangeLock>,
        bytes: Range<u64>,
        changes: bool,
        slot: Option<usize>,
    ) -> Ticket {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        let operation = Operation { number, bytes, changes, slot, sent: false, waiting: None };
        state.queue.push_back(operation);
        Ticket { lock: self.clone(), number }
    }
}

impl State {
    fn position(&self, number: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&number, |operation| operation.number).ok()
    }

    /// Takes the wakers of the operations from `position` on.
    fn take_wakers(&mut self, position: usize) -> Vec<Waker> {
        let later = self.queue.iter_mut().skip(position);
        later.filter_map(|operation| operation.waiting.take()).collect()
    }
}

/// The queue entry of one operation; removed when dropped.
#[must_use]
pub(crate) struct Ticket {
    lock: Arc<RangeLock>,
    number: u64,
}

impl Ticket {
    /// Ready when no conflicting earlier operation is left.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock.0.lock();
        let Some(position) = state.position(self.number) else { return Poll::Ready(()) };
        let own = &state.queue[position];
        if !state.queue.iter().take(position).any(|earlier| earlier.blocks(own)) {
            return Poll::Ready(());
        }
        state.queue[position].waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// Waits until no conflicting earlier operation is left.
    pub(crate) async fn ready(&self) {
        poll_fn(|context| self.poll_ready(context)).await;
    }

    /// Records that all requests of the operation were handed to their sessions.
    pub(crate) fn mark_sent(&self) {
        let mut state = self.lock.0.lock();
        let Some(position) = state.position(self.number) else { return };
        state.queue[position].sent = true;
        let wakers = match state.queue[position].slot {
            Some(_) => state.take_wakers(position + 1),
            None => Vec::new(),
        };
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.lock.0.lock();
        let Some(position) = state.position(self.number) else { return };
        state.queue.remove(position);
        let wakers = state.take_wakers(position);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(ticket: &Ticket) -> bool {
        ticket.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn operations_without_conflict_do_not_wait() {
        let lock = Arc::new(RangeLock::default());
        let _write = lock.enter(0..100, true, None);
        assert!(is_ready(&lock.enter(100..200, true, None)));
        assert!(is_ready(&lock.enter(100..200, false, None)));
        let reads = [lock.enter(200..300, false, Some(1)), lock.enter(200..300, false, Some(2))];
        assert!(reads.iter().all(is_ready));
    }

    #[test]
    fn overlapping_operations_wait_unless_on_the_same_session() {
        let lock = Arc::new(RangeLock::default());
        let write = lock.enter(0..100, true, Some(1));
        let same = lock.enter(50..60, false, Some(1));
        let other = lock.enter(50..60, false, Some(2));
        let spread = lock.enter(50..60, false, None);
        assert!(is_ready(&write) && !is_ready(&same) && !is_ready(&other) && !is_ready(&spread));
        write.mark_sent();
        assert!(is_ready(&same) && !is_ready(&other) && !is_ready(&spread));
        drop(write);
        assert!(is_ready(&same) && is_ready(&other) && is_ready(&spread));
        // A write also waits for earlier reads.
        let late = lock.enter(0..51, true, Some(1));
        assert!(!is_ready(&late));
        drop((same, other, spread));
        assert!(is_ready(&late));
    }

    #[test]
    fn a_waiting_operation_blocks_later_ones() {
        let lock = Arc::new(RangeLock::default());
        let first = lock.enter(0..10, true, Some(1));
        first.mark_sent();
        let all = lock.enter(WHOLE_FILE, true, Some(0));
        let last = lock.enter(500..510, true, Some(0));
        assert!(!is_ready(&all) && !is_ready(&last));
        drop(first);
        assert!(is_ready(&all) && !is_ready(&last), "it is not sent yet");
        all.mark_sent();
        assert!(is_ready(&last));
    }

    #[test]
    fn waiting_operations_are_woken() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Count>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count(0.into()));
        let waker = Waker::from(count.clone());
        let woken = || count.0.load(std::sync::atomic::Ordering::SeqCst);
        let lock = Arc::new(RangeLock::default());
        let write = lock.enter(0..10, true, Some(1));
        let (near, far) = (lock.enter(0..10, false, Some(1)), lock.enter(0..10, false, Some(2)));
        for ticket in [&near, &far] {
            assert!(ticket.poll_ready(&mut Context::from_waker(&waker)).is_pending());
        }
        write.mark_sent();
        assert!(woken() >= 1 && is_ready(&near));
        assert!(far.poll_ready(&mut Context::from_waker(&waker)).is_pending());
        let before = woken();
        drop(write);
        assert!(woken() > before && is_ready(&far));
    }
}
