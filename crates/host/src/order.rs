//! The order of what goes through the handles of one path, whichever sessions it goes over.
//!
//! One session keeps the order of its requests by itself. Requests that go over different ones are
//! held back here until what must come before them is answered.
//!
//! Invariants:
//! 1. An operation waits only for those that entered before it, so nobody waits in a circle.
//! 2. Two operations conflict when their bytes overlap and one of them changes something. The
//!    later one goes when the earlier is over, or is sent and both are on the same one session.
//! 3. An operation is here until its answers have come, also when nobody waits for them any more.
//!
//! The lock is held for a few instructions; wakers are called without it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What has entered and is not over.
#[derive(Default)]
pub(crate) struct Order(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// By number.
    under_way: VecDeque<Operation>,
}

struct Operation {
    number: u64,
    bytes: Range<u64>,
    changes: bool,
    /// The session, if it is one alone.
    slot: Option<usize>,
    /// All its requests are on their way.
    sent: bool,
    waiting: Option<Waker>,
}

impl Operation {
    /// Whether `later` has to wait for this.
    fn holds(&self, later: &Operation) -> bool {
        let overlap = self.bytes.start < later.bytes.end && later.bytes.start < self.bytes.end;
        let in_line = self.sent && self.slot.is_some() && self.slot == later.slot;
        overlap && (self.changes || later.changes) && !in_line
    }
}

/// All bytes of a file, and what else there is to it.
pub(crate) const EVERYTHING: Range<u64> = 0..u64::MAX;

impl Order {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place behind all who are here. `slot` is the session if it will be one alone.
    pub(crate) fn enter(
        self: &Arc<Order>,
        bytes: Range<u64>,
        changes: bool,
        slot: Option<usize>,
    ) -> Turn {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let operation = Operation { number, bytes, changes, slot, sent: false, waiting: None };
        state.under_way.push_back(operation);
        Turn { order: self.clone(), number }
    }
}

impl State {
    fn position(&self, number: u64) -> Option<usize> {
        self.under_way.binary_search_by_key(&number, |operation| operation.number).ok()
    }

    /// Those who wait behind the operation at `position`.
    fn behind(&mut self, position: usize) -> Vec<Waker> {
        let later = self.under_way.iter_mut().skip(position);
        later.filter_map(|operation| operation.waiting.take()).collect()
    }
}

/// The place of one operation; given up when dropped.
pub(crate) struct Turn {
    order: Arc<Order>,
    number: u64,
}

impl Turn {
    /// Ready when nothing that must come before is left.
    pub(crate) fn poll_come(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.order.lock();
        let Some(position) = state.position(self.number) else { return Poll::Ready(()) };
        let me = &state.under_way[position];
        if !state.under_way.iter().take(position).any(|earlier| earlier.holds(me)) {
            return Poll::Ready(());
        }
        state.under_way[position].waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// Waits until nothing that must come before is left.
    pub(crate) async fn come(&self) {
        poll_fn(|context| self.poll_come(context)).await;
    }

    /// All requests of the operation were given to their sessions.
    pub(crate) fn sent(&self) {
        let mut state = self.order.lock();
        let Some(position) = state.position(self.number) else { return };
        state.under_way[position].sent = true;
        let behind = match state.under_way[position].slot {
            Some(_) => state.behind(position + 1),
            None => Vec::new(),
        };
        drop(state);
        behind.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.order.lock();
        let Some(position) = state.position(self.number) else { return };
        state.under_way.remove(position);
        let behind = state.behind(position);
        drop(state);
        behind.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_go(turn: &Turn) -> bool {
        turn.poll_come(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn what_does_not_touch_goes_at_once() {
        let order = Arc::new(Order::default());
        let _write = order.enter(0..100, true, None);
        assert!(may_go(&order.enter(100..200, true, None)));
        assert!(may_go(&order.enter(100..200, false, None)));
        let reads = [order.enter(200..300, false, Some(1)), order.enter(200..300, false, Some(2))];
        assert!(reads.iter().all(may_go));
    }

    #[test]
    fn what_overlaps_waits_unless_one_session_has_both_in_line() {
        let order = Arc::new(Order::default());
        let write = order.enter(0..100, true, Some(1));
        let same = order.enter(50..60, false, Some(1));
        let other = order.enter(50..60, false, Some(2));
        let spread = order.enter(50..60, false, None);
        assert!(may_go(&write) && !may_go(&same) && !may_go(&other) && !may_go(&spread));
        write.sent();
        assert!(may_go(&same) && !may_go(&other) && !may_go(&spread));
        drop(write);
        assert!(may_go(&same) && may_go(&other) && may_go(&spread));
        // A write waits for reads before it, too.
        let late = order.enter(0..51, true, Some(1));
        assert!(!may_go(&late));
        drop((same, other, spread));
        assert!(may_go(&late));
    }

    #[test]
    fn one_that_waits_itself_holds_those_behind_it() {
        let order = Arc::new(Order::default());
        let first = order.enter(0..10, true, Some(1));
        first.sent();
        let all = order.enter(EVERYTHING, true, Some(0));
        let last = order.enter(500..510, true, Some(0));
        assert!(!may_go(&all) && !may_go(&last));
        drop(first);
        assert!(may_go(&all) && !may_go(&last), "it is not sent yet");
        all.sent();
        assert!(may_go(&last));
    }

    #[test]
    fn those_who_wait_are_woken() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Count>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count(0.into()));
        let waker = Waker::from(count.clone());
        let woken = || count.0.load(std::sync::atomic::Ordering::SeqCst);
        let order = Arc::new(Order::default());
        let write = order.enter(0..10, true, Some(1));
        let (near, far) = (order.enter(0..10, false, Some(1)), order.enter(0..10, false, Some(2)));
        for turn in [&near, &far] {
            assert!(turn.poll_come(&mut Context::from_waker(&waker)).is_pending());
        }
        write.sent();
        assert!(woken() >= 1 && may_go(&near));
        assert!(far.poll_come(&mut Context::from_waker(&waker)).is_pending());
        let before = woken();
        drop(write);
        assert!(woken() > before && may_go(&far));
    }
}
