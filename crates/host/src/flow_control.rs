//! Limits the bytes of file content in flight, for each session and for all sessions together, and
//! queues requests that exceed a limit.
//!
//! More bytes on one session than its window holds only cost copies, and delay every request behind
//! them; so do more bytes over all sessions than the link holds. Requests without room wait in
//! arrival order, and take the first of their sessions with room. Small requests are not limited.
//!
//! The lock is held for a few instructions; wakers are called without it.

pub(crate) mod directions;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::{Mutex, SmallSet};
use tokio::sync::Notify;

/// Window of a session with a short round trip, in bytes (measured: 1 MiB gives full throughput, 2
/// MiB 10 % less).
pub(crate) const MIN_WINDOW_BYTES: u64 = 1 << 20;

/// Largest window of a session through ssh, in bytes: the window of OpenSSH's channel.
pub(crate) const MAX_WINDOW_BYTES: u64 = 2 << 20;

/// Largest window of a direct session: what the kernel lets a window of TCP grow to by default
/// (`tcp_rmem`, 6 MiB), of which it gives half to the data.
pub(crate) const MAX_DIRECT_WINDOW_BYTES: u64 = 4 << 20;

/// A set of sessions, by their slots in the pool.
pub(crate) type Slots = SmallSet;

/// Maximum number of sessions, so that a set of them fits into one integer.
pub(crate) const MAX_SLOTS: usize = Slots::LIMIT;

/// What all sessions transferred since the last measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Throughput {
    /// Bytes of completed requests.
    pub(crate) bytes: u64,
    /// Sum over the requests of their bytes times their seconds in flight. Divided by the measured
    /// time, it is the mean number of bytes in flight.
    pub(crate) byte_seconds: f64,
    /// Sessions that transferred them.
    pub(crate) slots: Slots,
    /// A request had to wait for room.
    pub(crate) waited: bool,
}

struct Session {
    bytes: u64,
    used: Instant,
}

struct Waiter {
    waiter_id: u64,
    slots: Slots,
    bytes: u64,
    waker: Waker,
}

struct State {
    sessions: Vec<Session>,
    window_bytes: u64,
    /// In flight over all sessions.
    bytes: u64,
    /// Maximum of `bytes`.
    limit_bytes: u64,
    throughput: Throughput,
    waiting: VecDeque<Waiter>,
    next_waiter_id: u64,
}

/// Flow control of one direction, for all sessions of one host.
pub(crate) struct FlowControl {
    state: Mutex<State>,
    /// The observer sleeps until there is traffic.
    observer_waits: AtomicBool,
    traffic: Notify,
}

impl FlowControl {
    pub(crate) fn new(slots: usize) -> FlowControl {
        let session = || Session { bytes: 0, used: Instant::now() };
        FlowControl {
            state: Mutex::new(State {
                sessions: (0..slots).map(|_| session()).collect(),
                window_bytes: MIN_WINDOW_BYTES,
                bytes: 0,
                limit_bytes: u64::MAX,
                throughput: Throughput::default(),
                waiting: VecDeque::new(),
                next_waiter_id: 0,
            }),
            observer_waits: AtomicBool::new(false),
            traffic: Notify::new(),
        }
    }

    /// Sets the bytes that each session may have in flight.
    pub(crate) fn set_window(&self, bytes: u64) {
        self.state.lock().window_bytes = bytes;
        self.wake_all();
    }

    /// Sets the bytes that all sessions together may have in flight.
    pub(crate) fn set_limit(&self, bytes: Option<u64>) {
        self.state.lock().limit_bytes = bytes.unwrap_or(u64::MAX);
        self.wake_all();
    }

    fn wake_all(&self) {
        let state = self.state.lock();
        let woken: Vec<_> = state.waiting.iter().map(|waiter| waiter.waker.clone()).collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Bytes that each session may have in flight.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.state.lock().window_bytes
    }

    /// What was transferred since the last call.
    pub(crate) fn take_throughput(&self) -> Throughput {
        let mut state = self.state.lock();
        let waited = !state.waiting.is_empty();
        std::mem::replace(&mut state.throughput, Throughput { waited, ..Throughput::default() })
    }

    /// Sessions of `slots` without a byte in flight now or in the last `limit`.
    pub(crate) fn idle_for(&self, slots: Slots, limit: Duration) -> Slots {
        let state = self.state.lock();
        let is_idle = |slot: &usize| {
            let session = &state.sessions[*slot];
            session.bytes == 0 && session.used.elapsed() >= limit
        };
        slots.iter().filter(is_idle).collect()
    }

    /// Records that this session has just been opened.
    pub(crate) fn note_opened(&self, slot: usize) {
        self.state.lock().sessions[slot].used = Instant::now();
    }

    /// Waits until a request is admitted. For one observer at a time.
    pub(crate) async fn wait_for_traffic(&self) {
        let traffic = self.traffic.notified();
        self.observer_waits.store(true, Ordering::SeqCst);
        traffic.await;
    }

    /// Admits a request of `bytes` to one of `slots`, which must not be empty. While the request
    /// waits, `waiter_id` identifies its queue entry; a caller that stops waiting has to call
    /// [`FlowControl::cancel_wait`].
    pub(crate) fn poll_acquire(
        self: &Arc<FlowControl>,
        slots: Slots,
        bytes: u64,
        waiter_id: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Permit> {
        if self.observer_waits.swap(false, Ordering::SeqCst) {
            self.traffic.notify_one();
        }
        let mut state = self.state.lock();
        let before = state.waiting.iter().take_while(|waiter| Some(waiter.waiter_id) != *waiter_id);
        let is_first = !state.must_wait_behind(before, slots);
        let room = if is_first { state.least_loaded(slots, bytes) } else { None };
        let Some(slot) = room else {
            state.enqueue(slots, bytes, waiter_id, context.waker());
            return Poll::Pending;
        };
        state.sessions[slot].bytes += bytes;
        state.bytes += bytes;
        let next = waiter_id.take().and_then(|waiter_id| {
            state.remove_waiter(waiter_id);
            state.next_ready()
        });
        drop(state);
        next.into_iter().for_each(Waker::wake);
        Poll::Ready(Permit {
            flow: self.clone(),
            slot,
            bytes,
            began: Instant::now(),
            completed: false,
        })
    }

    /// Removes a request from the queue.
    pub(crate) fn cancel_wait(&self, waiter_id: u64) {
        let mut state = self.state.lock();
        state.remove_waiter(waiter_id);
        let next = state.next_ready();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// The session of `slots` with the fewest bytes in flight, if `bytes` fit into its window and
    /// into the total limit. An empty session admits any request.
    fn least_loaded(&self, slots: Slots, bytes: u64) -> Option<usize> {
        let fits_all = self.bytes == 0 || self.bytes + bytes <= self.limit_bytes;
        self.with_window_room(slots, bytes).filter(|_| fits_all)
    }

    /// The session of `slots` with the fewest bytes in flight, if `bytes` fit into its window.
    fn with_window_room(&self, slots: Slots, bytes: u64) -> Option<usize> {
        let best = slots.iter().min_by_key(|slot| self.sessions[*slot].bytes)?;
        let inflight_bytes = self.sessions[best].bytes;
        (inflight_bytes == 0 || inflight_bytes + bytes <= self.window_bytes).then_some(best)
    }

    /// Whether one of the waiters `before` has precedence over a request for one of `slots`: it
    /// waits for one of these sessions too, or for the total limit.
    fn must_wait_behind<'a>(
        &self,
        mut before: impl Iterator<Item = &'a Waiter>,
        slots: Slots,
    ) -> bool {
        before.any(|waiter| {
            !waiter.slots.intersection(slots).is_empty() || self.waits_for_total_limit(waiter)
        })
    }

    fn waits_for_total_limit(&self, waiter: &Waiter) -> bool {
        self.with_window_room(waiter.slots, waiter.bytes).is_some()
            && self.least_loaded(waiter.slots, waiter.bytes).is_none()
    }

    fn enqueue(&mut self, slots: Slots, bytes: u64, waiter_id: &mut Option<u64>, waker: &Waker) {
        let queued = self.waiting.iter_mut().find(|waiter| Some(waiter.waiter_id) == *waiter_id);
        if let Some(waiter) = queued {
            waiter.waker.clone_from(waker);
            (waiter.slots, waiter.bytes) = (slots, bytes);
            return;
        }
        self.throughput.waited = true;
        *waiter_id = Some(self.next_waiter_id);
        let (number, waker) = (self.next_waiter_id, waker.clone());
        self.waiting.push_back(Waiter { waiter_id: number, slots, bytes, waker });
        self.next_waiter_id += 1;
    }

    fn remove_waiter(&mut self, waiter_id: u64) {
        self.waiting.retain(|waiter| waiter.waiter_id != waiter_id);
    }

    /// The waker of the first waiter that has room now. Called whenever room may have become free
    /// or a waiter was removed. An admitted waiter calls it again for the next one.
    fn next_ready(&self) -> Option<Waker> {
        let mut before = Slots::default();
        for waiter in &self.waiting {
            let is_first = before.intersection(waiter.slots).is_empty();
            if is_first && self.least_loaded(waiter.slots, waiter.bytes).is_some() {
                return Some(waiter.waker.clone());
            }
            if is_first && self.waits_for_total_limit(waiter) {
                return None;
            }
            before = before.union(waiter.slots);
        }
        None
    }
}

/// Bytes in flight over one session, until this is dropped.
#[must_use]
pub(crate) struct Permit {
    flow: Arc<FlowControl>,
    slot: usize,
    bytes: u64,
    began: Instant,
    completed: bool,
}

impl Permit {
    /// The slot of the session.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Records that the reply was received.
    pub(crate) fn completed(mut self) {
        self.completed = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.flow.state.lock();
        if self.completed {
            let took = now.saturating_duration_since(self.began).as_secs_f64();
            state.throughput.bytes += self.bytes;
            state.throughput.byte_seconds += self.bytes as f64 * took;
            state.throughput.slots = state.throughput.slots.with(self.slot);
        }
        let session = &mut state.sessions[self.slot];
        session.bytes -= self.bytes;
        session.used = now;
        state.bytes -= self.bytes;
        let next = state.next_ready();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn acquire(
        flow: &Arc<FlowControl>,
        slots: Slots,
        bytes: u64,
        waiter_id: &mut Option<u64>,
    ) -> Option<Permit> {
        match flow.poll_acquire(slots, bytes, waiter_id, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn sessions_fill_evenly_and_not_beyond_their_window() {
        let flow = Arc::new(FlowControl::new(3));
        let slots = Slots::of(1).with(2);
        let quarter = MIB / 4;
        let permits: Vec<_> =
            (0..8).map(|_| acquire(&flow, slots, quarter, &mut None).unwrap()).collect();
        let on = |slot| permits.iter().filter(|permit| permit.slot() == slot).count();
        assert_eq!((on(0), on(1), on(2)), (0, 4, 4));
        let mut waiter_id = None;
        assert!(acquire(&flow, slots, quarter, &mut waiter_id).is_none());
        // The waiter does not use the first session.
        assert!(
            acquire(&flow, Slots::of(0), 5 * MIB, &mut None).is_some(),
            "an empty one takes all"
        );
        flow.set_window(2 * MIB);
        assert!(acquire(&flow, slots, quarter, &mut waiter_id).is_some());
        assert_eq!(waiter_id, None);
    }

    #[test]
    fn the_total_limit_holds_over_all_sessions() {
        let flow = Arc::new(FlowControl::new(3));
        let (one, two) = (Slots::of(1), Slots::of(2));
        flow.set_limit(Some(MIB / 2));
        let first =
            acquire(&flow, one, MIB, &mut None).expect("an empty session admits any request");
        let mut waiter_id = None;
        assert!(acquire(&flow, two, 1000, &mut waiter_id).is_none());
        drop(first);
        let first = acquire(&flow, two, MIB / 4, &mut waiter_id).unwrap();
        let second = acquire(&flow, one, MIB / 4, &mut None).unwrap();
        let mut waiter_id = None;
        assert!(acquire(&flow, two, 1000, &mut waiter_id).is_none());
        flow.set_limit(None);
        assert!(acquire(&flow, two, 1000, &mut waiter_id).is_some());
        drop((first, second));
        assert_eq!(flow.state.lock().bytes, 0);
    }

    #[test]
    fn small_requests_do_not_starve_a_large_one() {
        let flow = Arc::new(FlowControl::new(2));
        flow.set_limit(Some(MIB / 4));
        let mut small = acquire(&flow, Slots::of(0), MIB / 16, &mut None).unwrap();
        let (mut large, mut next) = (None, None);
        assert!(acquire(&flow, Slots::of(1), MIB / 4, &mut large).is_none());
        for _ in 0..3 {
            assert!(
                acquire(&flow, Slots::of(0), MIB / 16, &mut next).is_none(),
                "it is queued later"
            );
        }
        drop(small);
        let permit = acquire(&flow, Slots::of(1), MIB / 4, &mut large).unwrap();
        drop(permit);
        small = acquire(&flow, Slots::of(0), MIB / 16, &mut next).unwrap();
        drop(small);
    }

    #[test]
    fn waiters_are_served_in_order() {
        let flow = Arc::new(FlowControl::new(2));
        let slots = Slots::of(1);
        let first = acquire(&flow, slots, MIB, &mut None).unwrap();
        let (mut large, mut small) = (None, None);
        assert!(acquire(&flow, slots, MIB, &mut large).is_none());
        assert!(acquire(&flow, slots, 1000, &mut small).is_none());
        drop(first);
        assert!(acquire(&flow, slots, 1000, &mut small).is_none(), "another waiter is before it");
        let second = acquire(&flow, slots, MIB, &mut large).unwrap();
        assert!(acquire(&flow, slots, 1000, &mut small).is_none());
        let mut third = None;
        assert!(acquire(&flow, slots, MIB, &mut third).is_none());
        flow.cancel_wait(small.unwrap());
        drop(second);
        assert!(
            acquire(&flow, slots, MIB, &mut third).is_some(),
            "no waiter is before it any more"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_waiter_is_woken() {
        let flow = Arc::new(FlowControl::new(4));
        let tasks: Vec<_> = (0..200_u64)
            .map(|number| {
                let flow = flow.clone();
                tokio::spawn(async move {
                    for round in 0..20 {
                        let slots = Slots::from_bits(1 + (number + round) % 15);
                        let bytes = 1000 + (number * 37 + round * 1009) % 900_000;
                        if number % 50 == 0 {
                            flow.set_limit([None, Some(700_000), Some(1)][round as usize % 3]);
                        }
                        let mut waiter_id = None;
                        let acquiring = std::future::poll_fn(|context| {
                            flow.poll_acquire(slots, bytes, &mut waiter_id, context)
                        });
                        // Some requests stop waiting.
                        if (number + round) % 7 == 0 {
                            let soon = Duration::from_micros(number);
                            let permit = tokio::time::timeout(soon, acquiring).await;
                            if let (Err(_), Some(waiter_id)) = (permit, waiter_id) {
                                flow.cancel_wait(waiter_id);
                            }
                            continue;
                        }
                        let permit = acquiring.await;
                        tokio::task::yield_now().await;
                        permit.completed();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let state = flow.state.lock();
        assert!(state.waiting.is_empty() && state.sessions.iter().all(|it| it.bytes == 0));
        assert!(state.throughput.bytes > 0 && state.throughput.byte_seconds > 0.0);
    }

    #[test]
    fn sessions_without_traffic_are_idle() {
        let flow = Arc::new(FlowControl::new(3));
        let busy = acquire(&flow, Slots::of(1), 10, &mut None);
        let all = Slots::of(1).with(2);
        assert_eq!(flow.idle_for(all, Duration::ZERO), Slots::of(2));
        drop(busy);
        assert_eq!(flow.idle_for(all, Duration::ZERO), all);
        assert!(flow.idle_for(all, Duration::from_secs(3600)).is_empty());
    }
}
