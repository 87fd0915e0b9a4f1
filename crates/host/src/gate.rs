//! How many bytes of files' content are on their way over each session and over all of them, and
//! who waits for room.
//!
//! More bytes on one session than its window holds only cost copies, and hold up whatever is asked
//! behind them; so do more on all sessions than the link holds. What has no room waits here, in the order of its asking, and takes whichever of its
//! sessions has room first. Small requests do not pass here.
//!
//! The lock is held for a few instructions; wakers are called without it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Bytes on one session over a short way (measured: with 1 MiB it carries what it can, with 2 MiB
/// 10 % less).
pub(crate) const SHORT_WAY_BYTES: u64 = 1 << 20;

/// Bytes on one session at most: the window of OpenSSH's channel.
pub(crate) const LONG_WAY_BYTES: u64 = 2 << 20;

/// A set of sessions, by their place in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots(u64);

/// Sessions at most, so that a set of them is one number.
pub(crate) const MAX_SLOTS: usize = u64::BITS as usize;

impl Slots {
    pub(crate) fn from_bits(bits: u64) -> Slots {
        Slots(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn of(slot: usize) -> Slots {
        Slots(1 << slot)
    }

    pub(crate) fn with(self, slot: usize) -> Slots {
        Slots(self.0 | 1 << slot)
    }

    pub(crate) fn has(self, slot: usize) -> bool {
        self.0 & (1 << slot) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn both(self, other: Slots) -> Slots {
        Slots(self.0 & other.0)
    }

    pub(crate) fn without(self, other: Slots) -> Slots {
        Slots(self.0 & !other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_SLOTS).filter(move |slot| self.has(*slot))
    }
}

/// What went over all sessions in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Carried {
    /// Bytes that have arrived.
    pub(crate) bytes: u64,
    /// Their number times the seconds that each was on its way: divided by the time that was
    /// measured, this is how many were on their way in the mean.
    pub(crate) byte_seconds: f64,
    /// Over these sessions.
    pub(crate) slots: Slots,
    /// Somebody had to wait for room.
    pub(crate) waited: bool,
}

struct Session {
    bytes: u64,
    used: Instant,
}

struct Waiter {
    ticket: u64,
    slots: Slots,
    bytes: u64,
    waker: Waker,
}

struct State {
    sessions: Vec<Session>,
    window_bytes: u64,
    /// On their way over all sessions.
    bytes: u64,
    /// So many at most.
    limit_bytes: u64,
    carried: Carried,
    waiting: VecDeque<Waiter>,
    next_ticket: u64,
}

/// The gate of all sessions of one host.
pub(crate) struct Gate {
    state: Mutex<State>,
    /// Whoever watches what passes sleeps.
    asleep: AtomicBool,
    passing: Notify,
}

impl Gate {
    pub(crate) fn new(slots: usize) -> Gate {
        let session = || Session { bytes: 0, used: Instant::now() };
        Gate {
            state: Mutex::new(State {
                sessions: (0..slots).map(|_| session()).collect(),
                window_bytes: SHORT_WAY_BYTES,
                bytes: 0,
                limit_bytes: u64::MAX,
                carried: Carried::default(),
                waiting: VecDeque::new(),
                next_ticket: 0,
            }),
            asleep: AtomicBool::new(false),
            passing: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that each session may have on its way from now on.
    pub(crate) fn set_window(&self, bytes: u64) {
        self.lock().window_bytes = bytes;
        self.wake_all();
    }

    /// Bytes that all sessions together may have on their way from now on.
    pub(crate) fn set_limit(&self, bytes: Option<u64>) {
        self.lock().limit_bytes = bytes.unwrap_or(u64::MAX);
        self.wake_all();
    }

    fn wake_all(&self) {
        let state = self.lock();
        let woken: Vec<_> = state.waiting.iter().map(|waiter| waiter.waker.clone()).collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Bytes that each session may have on its way.
    pub(crate) fn window(&self) -> u64 {
        self.lock().window_bytes
    }

    /// What was carried since this was asked last.
    pub(crate) fn take_carried(&self) -> Carried {
        let mut state = self.lock();
        let waited = !state.waiting.is_empty();
        std::mem::replace(&mut state.carried, Carried { waited, ..Carried::default() })
    }

    /// Sessions among `slots` over which nothing went for so long, and over which nothing goes.
    pub(crate) fn idle_for(&self, slots: Slots, limit: Duration) -> Slots {
        let state = self.lock();
        let is_idle = |slot: &usize| {
            let session = &state.sessions[*slot];
            session.bytes == 0 && session.used.elapsed() >= limit
        };
        slots.iter().filter(is_idle).fold(Slots::default(), Slots::with)
    }

    /// This session has just been opened.
    pub(crate) fn opened(&self, slot: usize) {
        self.lock().sessions[slot].used = Instant::now();
    }

    /// Waits until something passes. To be used by one at a time.
    pub(crate) async fn something_passes(&self) {
        let passing = self.passing.notified();
        self.asleep.store(true, Ordering::SeqCst);
        passing.await;
    }

    /// Passes with `bytes` to one of `slots`, which must not be none. While it waits, the caller's
    /// place is kept in `ticket`; giving up waiting needs [`Gate::leave`].
    pub(crate) fn poll_pass(
        self: &Arc<Gate>,
        slots: Slots,
        bytes: u64,
        ticket: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Pass> {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.passing.notify_one();
        }
        let mut state = self.lock();
        let before = state.waiting.iter().take_while(|waiter| Some(waiter.ticket) != *ticket);
        let is_first = !state.bars(before, slots);
        let room = if is_first { state.roomiest(slots, bytes) } else { None };
        let Some(slot) = room else {
            state.wait(slots, bytes, ticket, context.waker());
            return Poll::Pending;
        };
        state.sessions[slot].bytes += bytes;
        state.bytes += bytes;
        let next = ticket.take().and_then(|ticket| {
            state.leave(ticket);
            state.ready()
        });
        drop(state);
        next.into_iter().for_each(Waker::wake);
        Poll::Ready(Pass { gate: self.clone(), slot, bytes, began: Instant::now(), arrived: false })
    }

    /// Gives a place in the queue up.
    pub(crate) fn leave(&self, ticket: u64) {
        let mut state = self.lock();
        state.leave(ticket);
        let next = state.ready();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// The session among `slots` with the most room, if that is enough. An empty one takes all.
    fn roomiest(&self, slots: Slots, bytes: u64) -> Option<usize> {
        let fits_all = self.bytes == 0 || self.bytes + bytes <= self.limit_bytes;
        self.free(slots, bytes).filter(|_| fits_all)
    }

    /// The same, by what the session may carry alone.
    fn free(&self, slots: Slots, bytes: u64) -> Option<usize> {
        let best = slots.iter().min_by_key(|slot| self.sessions[*slot].bytes)?;
        let there = self.sessions[best].bytes;
        (there == 0 || there + bytes <= self.window_bytes).then_some(best)
    }

    /// Whether those who came `before` have to go before somebody who waits for one of `slots`:
    /// who waits for one of them as well, or for the room of all.
    fn bars<'a>(&self, mut before: impl Iterator<Item = &'a Waiter>, slots: Slots) -> bool {
        before.any(|waiter| !waiter.slots.both(slots).is_empty() || self.waits_for_all(waiter))
    }

    fn waits_for_all(&self, waiter: &Waiter) -> bool {
        self.free(waiter.slots, waiter.bytes).is_some()
            && self.roomiest(waiter.slots, waiter.bytes).is_none()
    }

    fn wait(&mut self, slots: Slots, bytes: u64, ticket: &mut Option<u64>, waker: &Waker) {
        let known = self.waiting.iter_mut().find(|waiter| Some(waiter.ticket) == *ticket);
        if let Some(waiter) = known {
            waiter.waker.clone_from(waker);
            (waiter.slots, waiter.bytes) = (slots, bytes);
            return;
        }
        self.carried.waited = true;
        *ticket = Some(self.next_ticket);
        let (number, waker) = (self.next_ticket, waker.clone());
        self.waiting.push_back(Waiter { ticket: number, slots, bytes, waker });
        self.next_ticket += 1;
    }

    /// Takes a waiter out.
    fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|waiter| waiter.ticket != ticket);
    }

    /// The first who waits and has room now. To be woken whenever there may be more room, or one
    /// less is waiting; what it leaves is for the next, whom it wakes when it has passed.
    fn ready(&self) -> Option<Waker> {
        let mut before = Slots::default();
        for waiter in &self.waiting {
            let is_first = before.both(waiter.slots).is_empty();
            if is_first && self.roomiest(waiter.slots, waiter.bytes).is_some() {
                return Some(waiter.waker.clone());
            }
            if is_first && self.waits_for_all(waiter) {
                return None;
            }
            before = Slots::from_bits(before.bits() | waiter.slots.bits());
        }
        None
    }
}

/// Bytes on their way over one session, until this is dropped.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    slot: usize,
    bytes: u64,
    began: Instant,
    arrived: bool,
}

impl Pass {
    /// The session's place in the pool.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// The answer has come.
    pub(crate) fn arrived(mut self) {
        self.arrived = true;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.gate.lock();
        if self.arrived {
            let took = now.saturating_duration_since(self.began).as_secs_f64();
            state.carried.bytes += self.bytes;
            state.carried.byte_seconds += self.bytes as f64 * took;
            state.carried.slots = state.carried.slots.with(self.slot);
        }
        let session = &mut state.sessions[self.slot];
        session.bytes -= self.bytes;
        session.used = now;
        state.bytes -= self.bytes;
        let next = state.ready();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pass(gate: &Arc<Gate>, slots: Slots, bytes: u64, ticket: &mut Option<u64>) -> Option<Pass> {
        match gate.poll_pass(slots, bytes, ticket, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(pass) => Some(pass),
            Poll::Pending => None,
        }
    }

    #[test]
    fn sessions_fill_evenly_and_not_beyond_their_window() {
        let gate = Arc::new(Gate::new(3));
        let slots = Slots::of(1).with(2);
        let quarter = MIB / 4;
        let passes: Vec<_> =
            (0..8).map(|_| pass(&gate, slots, quarter, &mut None).unwrap()).collect();
        let on = |slot| passes.iter().filter(|pass| pass.slot() == slot).count();
        assert_eq!((on(0), on(1), on(2)), (0, 4, 4));
        let mut ticket = None;
        assert!(pass(&gate, slots, quarter, &mut ticket).is_none());
        // The first session is not theirs.
        assert!(pass(&gate, Slots::of(0), 5 * MIB, &mut None).is_some(), "an empty one takes all");
        gate.set_window(2 * MIB);
        assert!(pass(&gate, slots, quarter, &mut ticket).is_some());
        assert_eq!(ticket, None);
    }

    #[test]
    fn all_sessions_together_have_a_bound() {
        let gate = Arc::new(Gate::new(3));
        let (one, two) = (Slots::of(1), Slots::of(2));
        gate.set_limit(Some(MIB / 2));
        let first = pass(&gate, one, MIB, &mut None).expect("something always goes");
        let mut ticket = None;
        assert!(pass(&gate, two, 1000, &mut ticket).is_none());
        drop(first);
        let first = pass(&gate, two, MIB / 4, &mut ticket).unwrap();
        let second = pass(&gate, one, MIB / 4, &mut None).unwrap();
        let mut ticket = None;
        assert!(pass(&gate, two, 1000, &mut ticket).is_none());
        gate.set_limit(None);
        assert!(pass(&gate, two, 1000, &mut ticket).is_some());
        drop((first, second));
        assert_eq!(gate.lock().bytes, 0);
    }

    #[test]
    fn small_ones_do_not_starve_a_large_one_on_another_session() {
        let gate = Arc::new(Gate::new(2));
        gate.set_limit(Some(MIB / 4));
        let mut small = pass(&gate, Slots::of(0), MIB / 16, &mut None).unwrap();
        let (mut large, mut next) = (None, None);
        assert!(pass(&gate, Slots::of(1), MIB / 4, &mut large).is_none());
        for _ in 0..3 {
            assert!(pass(&gate, Slots::of(0), MIB / 16, &mut next).is_none(), "it came later");
        }
        drop(small);
        let passed = pass(&gate, Slots::of(1), MIB / 4, &mut large).unwrap();
        drop(passed);
        small = pass(&gate, Slots::of(0), MIB / 16, &mut next).unwrap();
        drop(small);
    }

    #[test]
    fn who_waits_goes_first_and_in_order() {
        let gate = Arc::new(Gate::new(2));
        let slots = Slots::of(1);
        let first = pass(&gate, slots, MIB, &mut None).unwrap();
        let (mut large, mut small) = (None, None);
        assert!(pass(&gate, slots, MIB, &mut large).is_none());
        assert!(pass(&gate, slots, 1000, &mut small).is_none());
        drop(first);
        assert!(pass(&gate, slots, 1000, &mut small).is_none(), "it is not its turn");
        let second = pass(&gate, slots, MIB, &mut large).unwrap();
        assert!(pass(&gate, slots, 1000, &mut small).is_none());
        let mut third = None;
        assert!(pass(&gate, slots, MIB, &mut third).is_none());
        gate.leave(small.unwrap());
        drop(second);
        assert!(pass(&gate, slots, MIB, &mut third).is_some(), "nobody is before it any more");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_is_forgotten() {
        let gate = Arc::new(Gate::new(4));
        let tasks: Vec<_> = (0..200_u64)
            .map(|number| {
                let gate = gate.clone();
                tokio::spawn(async move {
                    for round in 0..20 {
                        let slots = Slots::from_bits(1 + (number + round) % 15);
                        let bytes = 1000 + (number * 37 + round * 1009) % 900_000;
                        if number % 50 == 0 {
                            gate.set_limit([None, Some(700_000), Some(1)][round as usize % 3]);
                        }
                        let mut ticket = None;
                        let passing = std::future::poll_fn(|context| {
                            gate.poll_pass(slots, bytes, &mut ticket, context)
                        });
                        // Some give up.
                        if (number + round) % 7 == 0 {
                            let soon = Duration::from_micros(number);
                            let passed = tokio::time::timeout(soon, passing).await;
                            if let (Err(_), Some(ticket)) = (passed, ticket) {
                                gate.leave(ticket);
                            }
                            continue;
                        }
                        let pass = passing.await;
                        tokio::task::yield_now().await;
                        pass.arrived();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let state = gate.lock();
        assert!(state.waiting.is_empty() && state.sessions.iter().all(|it| it.bytes == 0));
        assert!(state.carried.bytes > 0 && state.carried.byte_seconds > 0.0);
    }

    #[test]
    fn idle_sessions_are_those_over_which_nothing_goes() {
        let gate = Arc::new(Gate::new(3));
        let busy = pass(&gate, Slots::of(1), 10, &mut None);
        let all = Slots::of(1).with(2);
        assert_eq!(gate.idle_for(all, Duration::ZERO), Slots::of(2));
        drop(busy);
        assert_eq!(gate.idle_for(all, Duration::ZERO), all);
        assert!(gate.idle_for(all, Duration::from_secs(3600)).is_empty());
    }
}
