//! The table of requests without a reply, and the queue of callers that wait for a free slot.
//!
//! Slot states: Free → Waiting → Done → Free; if the caller drops the call, Waiting → Forgotten →
//! Free. An id is the slot's index and, in the upper bits, the slot's generation, so that a second
//! reply to an old request is not taken for the reply to the present one.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::codec::{Kind, Reply};
use crate::error::Error;

/// Bits of an id for the slot's index.
const INDEX_BITS: u32 = 16;

/// Maximum number of slots. The limit of calls in flight is far lower. These are sent without it:
/// one CLOSE for each handle that the server has returned, one request to undo each lock whose call
/// was dropped, and single probes. [`Expect::Event`] does not count.
const MAX_SLOTS: usize = 1 << INDEX_BITS;

/// The expected type of reply, beside STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// Only a STATUS.
    Status,
    /// Only a STATUS, which may take long.
    SlowStatus,
    /// A handle, to be closed if the call was dropped.
    Handle,
    /// At least one byte, and at most this number.
    Data(u32),
    /// One name.
    Name,
    /// At least one name.
    Names,
    /// Attributes.
    Attrs,
    /// The reply of the extension.
    Extended,
    /// The reply of the extension, which comes when something happens at the server. The request is
    /// not in flight for anything that is measured or bounded.
    Event,
}

impl Expect {
    /// Why `reply` does not answer this request, if it does not. A handle in it is not closed: it
    /// may be that of an open file.
    fn mismatch(self, reply: &Reply) -> Option<String> {
        use crate::codec::StatusCode;
        match (self, reply) {
            (Expect::Status | Expect::SlowStatus, Reply::Status { .. }) => None,
            (_, Reply::Status { code: StatusCode::OK, .. }) => {
                Some("success without the requested result".into())
            }
            (_, Reply::Status { .. })
            | (Expect::Handle, Reply::Handle(_))
            | (Expect::Attrs, Reply::Attrs(_))
            | (Expect::Extended | Expect::Event, Reply::Extended(_)) => None,
            (Expect::Data(_), Reply::Data(data)) if data.is_empty() => {
                Some("data of zero length".into())
            }
            (Expect::Data(most), Reply::Data(data)) if data.len() > most as usize => {
                Some(format!("{} bytes of data where {most} were requested", data.len()))
            }
            (Expect::Data(_), Reply::Data(_)) => None,
            (Expect::Name, Reply::Names(names)) if names.len() != 1 => {
                Some(format!("{} names where one was requested", names.len()))
            }
            (Expect::Names, Reply::Names(names)) if names.is_empty() => {
                Some("a part of a listing without names".into())
            }
            (Expect::Name | Expect::Names, Reply::Names(_)) => None,
            _ => Some(format!("not of the type {self:?}")),
        }
    }

    fn is_slow(self) -> bool {
        self == Expect::SlowStatus
    }

    fn is_in_flight(self) -> bool {
        self != Expect::Event
    }
}

enum State {
    Free,
    Waiting(Waker),
    Forgotten,
    Done(Result<Reply, Error>),
}

struct Slot {
    generation: u16,
    kind: Kind,
    expect: Expect,
    sent: Instant,
    state: State,
}

/// Minimum time for which the shortest round trip is valid; the maximum is twice as long.
const ROUND_TRIP_VALIDITY: Duration = Duration::from_secs(30);

/// The shortest of the latest round trips. Requests that waited behind others or carried many bytes
/// take longer than the link's round trip; the shortest is close to it.
struct RoundTrips {
    since: Instant,
    shortest: Option<Duration>,
    before: Option<Duration>,
}

impl RoundTrips {
    fn new(now: Instant) -> RoundTrips {
        RoundTrips { since: now, shortest: None, before: None }
    }

    fn add(&mut self, took: Duration, now: Instant) {
        if now.saturating_duration_since(self.since) >= ROUND_TRIP_VALIDITY {
            self.before = self.shortest.take();
            self.since = now;
        }
        if self.shortest.is_none_or(|shortest| took < shortest) {
            self.shortest = Some(took);
        }
    }

    fn shortest(&self) -> Option<Duration> {
        self.shortest.into_iter().chain(self.before).min()
    }
}

/// A request that was answered.
pub(super) struct Answered {
    pub(super) kind: Kind,
    pub(super) took: Duration,
    /// The error of the request, if the reply is of the wrong kind for it.
    pub(super) unexpected: Option<Error>,
    /// Work for after the lock was released.
    pub(super) then: Completed,
}

/// Work that [`Pending::complete`] leaves for after the lock was released.
pub(super) enum Completed {
    /// Wakes the caller.
    Wake(Waker),
    /// The call was dropped.
    Forgotten(Result<Reply, Error>),
}

/// Requests in flight. See the [module](self).
pub(super) struct Pending {
    slots: Vec<Slot>,
    free: Vec<u16>,
    in_flight: usize,
    slow_in_flight: usize,
    /// Time of the last received byte, or of the first request sent after an idle time.
    last_received: Instant,
    round_trips: RoundTrips,
    /// Callers that wait for a slot, in the order of their first polls.
    queue: VecDeque<(u64, Waker)>,
    next_ticket: u64,
    /// Waits for the next request while there is none.
    watcher: Option<Waker>,
    /// The reason of the connection's end.
    end: Option<Error>,
}

impl Pending {
    pub(super) fn new() -> Pending {
        let now = Instant::now();
        Pending {
            slots: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            slow_in_flight: 0,
            last_received: now,
            round_trips: RoundTrips::new(now),
            queue: VecDeque::new(),
            next_ticket: 0,
            watcher: None,
            end: None,
        }
    }

    pub(super) fn end(&self) -> Option<&Error> {
        self.end.as_ref()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn slow_in_flight(&self) -> usize {
        self.slow_in_flight
    }

    /// Whether a request is in flight; if not, `waker` is woken by the next one, in place of any
    /// other that was given here before.
    pub(super) fn is_busy(&mut self, waker: &Waker) -> bool {
        if self.in_flight == 0 {
            self.watcher = Some(waker.clone());
        }
        self.in_flight > 0
    }

    pub(super) fn silent(&self) -> Duration {
        if self.in_flight == 0 { Duration::ZERO } else { self.last_received.elapsed() }
    }

    /// The shortest time between a request and its reply, of the latest ones.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trips.shortest()
    }

    pub(super) fn note_received(&mut self) {
        self.last_received = Instant::now();
    }

    /// Whether the caller with this ticket, or a new caller, may send now.
    pub(super) fn is_next(&self, ticket: Option<u64>) -> bool {
        match self.queue.front() {
            None => true,
            Some((front, _)) => ticket == Some(*front),
        }
    }

    /// Queues a caller, or updates its waker.
    pub(super) fn enqueue(&mut self, ticket: Option<u64>, waker: &Waker) -> u64 {
        if let Some(ticket) = ticket
            && let Some((_, old)) = self.queue.iter_mut().find(|(number, _)| *number == ticket)
        {
            old.clone_from(waker);
            return ticket;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back((ticket, waker.clone()));
        ticket
    }

    /// Removes a caller from the queue; returns the waker of the next one.
    pub(super) fn leave_queue(&mut self, ticket: u64) -> Option<Waker> {
        let at = self.queue.iter().position(|(number, _)| *number == ticket)?;
        self.queue.remove(at);
        if at == 0 { self.first_in_queue() } else { None }
    }

    pub(super) fn first_in_queue(&self) -> Option<Waker> {
        self.queue.front().map(|(_, waker)| waker.clone())
    }

    /// Takes a slot for a request; returns its id. `waker` is `None` if no caller waits for the
    /// reply.
    pub(super) fn reserve(
        &mut self,
        kind: Kind,
        expect: Expect,
        waker: Option<Waker>,
    ) -> Option<u32> {
        let now = Instant::now();
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() == MAX_SLOTS => return None,
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    kind,
                    expect,
                    sent: now,
                    state: State::Free,
                });
                (self.slots.len() - 1) as u16
            }
        };
        if self.in_flight == 0 && expect.is_in_flight() {
            self.last_received = now;
            if let Some(watcher) = self.watcher.take() {
                watcher.wake();
            }
        }
        self.in_flight += usize::from(expect.is_in_flight());
        self.slow_in_flight += usize::from(expect.is_slow());
        let slot = &mut self.slots[usize::from(index)];
        slot.kind = kind;
        slot.expect = expect;
        slot.sent = now;
        slot.state = waker.map_or(State::Forgotten, State::Waiting);
        Some(u32::from(slot.generation) << INDEX_BITS | u32::from(index))
    }

    /// Stores the reply of a request. An error is a protocol error of the server, or the reason of
    /// the connection's end: replies after the end are rejected, since the calls have failed.
    pub(super) fn complete(&mut self, id: u32, reply: Reply) -> Result<Answered, Error> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        let unknown = || Error::Protocol(format!("a reply to request {id}, which is not open"));
        let index = id as u16;
        let slot = self.slots.get_mut(usize::from(index)).ok_or_else(unknown)?;
        if u32::from(slot.generation) != id >> INDEX_BITS
            || !matches!(slot.state, State::Waiting(_) | State::Forgotten)
        {
            return Err(unknown());
        }
        let kind = slot.kind;
        let mismatch = slot.expect.mismatch(&reply);
        let unexpected = mismatch.map(|why| Error::Unexpected(format!("{}: {why}", kind.name())));
        let reply = unexpected.clone().map_or(Ok(reply), Err);
        let is_in_flight = slot.expect.is_in_flight();
        self.in_flight -= usize::from(is_in_flight);
        self.slow_in_flight -= usize::from(slot.expect.is_slow());
        // Measured at the time of the batch with the reply.
        let took = self.last_received.saturating_duration_since(slot.sent);
        if is_in_flight {
            self.round_trips.add(took, self.last_received);
        }
        let then = match std::mem::replace(&mut slot.state, State::Free) {
            State::Waiting(waker) => {
                slot.state = State::Done(reply);
                Completed::Wake(waker)
            }
            _ => {
                self.release(index);
                Completed::Forgotten(reply)
            }
        };
        Ok(Answered { kind, took, unexpected, then })
    }

    /// Takes the reply of the request `id` and frees its slot. `None` while there is no reply: the
    /// caller continues to wait. An error is the reason why there will be no reply.
    pub(super) fn take(&mut self, id: u32, waker: &Waker) -> Option<Result<Reply, Error>> {
        let index = id as u16;
        let slot = &mut self.slots[usize::from(index)];
        match &mut slot.state {
            State::Done(_) => {
                let State::Done(reply) = std::mem::replace(&mut slot.state, State::Free) else {
                    return None;
                };
                self.release(index);
                Some(reply)
            }
            State::Waiting(old) => match &self.end {
                Some(end) => Some(Err(end.clone())),
                None => {
                    old.clone_from(waker);
                    None
                }
            },
            State::Free | State::Forgotten => None,
        }
    }

    /// Records that the call `id` was dropped; returns the reply if there was one.
    pub(super) fn forget(&mut self, id: u32) -> Option<Result<Reply, Error>> {
        let index = id as u16;
        let slot = &mut self.slots[usize::from(index)];
        match std::mem::replace(&mut slot.state, State::Forgotten) {
            State::Done(reply) => {
                slot.state = State::Free;
                self.release(index);
                Some(reply)
            }
            _ => None,
        }
    }

    fn release(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// Ends all requests; returns the wakers of their callers. The first reason is kept.
    pub(super) fn finish(&mut self, why: Error) -> Vec<Waker> {
        if self.end.is_some() {
            return Vec::new();
        }
        self.end = Some(why);
        self.in_flight = 0;
        self.slow_in_flight = 0;
        let waiting = self.slots.iter().filter_map(|slot| match &slot.state {
            State::Waiting(waker) => Some(waker.clone()),
            _ => None,
        });
        waiting.chain(self.queue.drain(..).map(|(_, waker)| waker)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::StatusCode;

    fn done() -> Reply {
        Reply::Status { code: StatusCode::OK, message: String::new(), errno: None }
    }

    #[test]
    fn the_shortest_round_trip_is_valid_until_it_is_old() {
        let start = Instant::now();
        let mut round_trips = RoundTrips::new(start);
        assert_eq!(round_trips.shortest(), None);
        let ms = Duration::from_millis;
        for took in [ms(9), ms(5), ms(7)] {
            round_trips.add(took, start);
        }
        assert_eq!(round_trips.shortest(), Some(ms(5)));
        // The link's round trip has grown.
        round_trips.add(ms(50), start + ROUND_TRIP_VALIDITY);
        assert_eq!(round_trips.shortest(), Some(ms(5)));
        round_trips.add(ms(60), start + 2 * ROUND_TRIP_VALIDITY);
        assert_eq!(round_trips.shortest(), Some(ms(50)));
    }

    #[test]
    fn waiting_for_an_event_is_no_silence_of_the_server() {
        let mut pending = Pending::new();
        let kind = Kind::all().next().unwrap();
        let waiter = || Some(Waker::noop().clone());
        let event = pending.reserve(kind, Expect::Event, waiter()).unwrap();
        assert!(!pending.is_busy(Waker::noop()) && pending.silent().is_zero());
        let other = pending.reserve(kind, Expect::Status, waiter()).unwrap();
        assert_eq!(pending.in_flight(), 1);
        pending.complete(event, Reply::Extended(Default::default())).unwrap();
        assert_eq!((pending.in_flight(), pending.round_trip()), (1, None));
        pending.complete(other, done()).unwrap();
        assert_eq!(pending.in_flight(), 0);
        assert!(pending.round_trip().is_some());
    }

    /// A reply may already have been read when the connection is ended.
    #[test]
    fn a_reply_after_the_end_is_rejected() {
        let mut pending = Pending::new();
        let kind = Kind::all().next().unwrap();
        let id = pending.reserve(kind, Expect::SlowStatus, Some(Waker::noop().clone())).unwrap();
        let why = Error::Disconnected("it was enough".into());
        assert_eq!(pending.finish(why.clone()).len(), 1);
        let late = pending.complete(id, done()).err().map(|error| error.to_string());
        assert_eq!(late, Some(why.to_string()));
        assert_eq!((pending.in_flight(), pending.slow_in_flight()), (0, 0));
        let outcome = pending.take(id, Waker::noop()).unwrap().map_err(|error| error.to_string());
        assert_eq!(outcome.err(), Some(why.to_string()));
    }
}
