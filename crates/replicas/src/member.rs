//! One gateway: its health, its requests in flight, and its speed.
//!
//! States and transitions, decided by [`crate::gateways`] and [`crate::health_checker`]:
//!
//! - `Healthy` and `Returning` are usable. → `Silent` when it answers nothing by its deadline and
//!   there are others; → `Lost` when a request fails because of it, or it reports itself
//!   unreachable.
//! - `Silent` → `Lost` when a request fails because of it, or it reports itself unreachable.
//! - `Silent` and `Lost` → `Returning` when probes are answered.
//! - `Returning` → `Healthy` after some good answers; until then it takes few requests at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use base::{Mutex, Remote, until};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::Gateway;
use crate::latency::MovingAverage;
use crate::server_epoch::ServerEpoch;
use crate::status::{GatewayState, GatewayStatus, Reason};

/// Requests of this size and more are routed by throughput, smaller ones by latency. Equal to the
/// threshold of `host`.
pub(crate) const LARGE_BYTES: u32 = 32 << 10;

/// Requests at once for a gateway that has just come back; each good answer allows one more.
const FIRST_ALLOWANCE: usize = 2;

/// Lower bound on the time per byte, in picoseconds: 1 GB/s. It spreads the load where bytes seem
/// to take no time.
const LEAST_BYTE_PS: u64 = 1000;

/// The allowance at which a returning gateway is healthy.
const FULL_ALLOWANCE: usize = 32;

/// The health of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Health {
    Healthy,
    Returning,
    Silent,
    Lost,
}

impl Health {
    fn from_number(number: u8) -> Health {
        [Health::Healthy, Health::Returning, Health::Silent, Health::Lost][usize::from(number & 3)]
    }

    pub(crate) fn is_usable(self) -> bool {
        matches!(self, Health::Healthy | Health::Returning)
    }
}

/// The kind and size of a request, which decide how it is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Weight {
    /// A request and an answer of one packet.
    Small,
    /// A read of this many bytes.
    Read(u32),
    /// A write of this many bytes.
    Write(u32),
    /// Takes as long as the server's disk.
    Slow,
}

impl Weight {
    fn bytes(self) -> u32 {
        match self {
            Weight::Read(bytes) | Weight::Write(bytes) => bytes,
            Weight::Small | Weight::Slow => 0,
        }
    }
}

struct HealthRecord {
    reason: Option<Reason>,
    since: SystemTime,
    left_at: Option<Instant>,
    times_left_out: u64,
}

/// One gateway.
pub(crate) struct Member {
    /// Its index in the pool.
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) remote: Arc<dyn Remote>,
    record: Mutex<HealthRecord>,
    /// Changed with the record's lock held, read without.
    health: AtomicU8,
    allowance: AtomicUsize,
    in_flight: AtomicUsize,
    /// Bytes of reads and writes in flight.
    queued_bytes: AtomicU64,
    /// Answers of any kind so far: progress.
    answers: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// Time of small requests, in nanoseconds.
    latency: MovingAverage,
    /// The shortest time that any request has taken, in nanoseconds: the round trip.
    min_rtt_ns: AtomicU64,
    /// Time per queued byte beyond the round trip, in picoseconds.
    byte_time: MovingAverage,
    pub(crate) epoch: ServerEpoch,
    /// Notified when it is left out.
    left_out_event: Notify,
    /// The health checker waits for a request.
    checker_waits: AtomicBool,
    request_event: Notify,
}

impl Member {
    pub(crate) fn new(index: usize, gateway: Gateway) -> Member {
        Member {
            index,
            name: gateway.name,
            remote: gateway.remote,
            record: Mutex::new(HealthRecord {
                reason: None,
                since: SystemTime::now(),
                left_at: None,
                times_left_out: 0,
            }),
            epoch: ServerEpoch::default(),
            health: AtomicU8::new(Health::Healthy as u8),
            allowance: AtomicUsize::new(FULL_ALLOWANCE),
            in_flight: AtomicUsize::new(0),
            queued_bytes: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            latency: MovingAverage::new(),
            min_rtt_ns: AtomicU64::new(u64::MAX),
            byte_time: MovingAverage::new(),
            left_out_event: Notify::new(),
            checker_waits: AtomicBool::new(false),
            request_event: Notify::new(),
        }
    }

    pub(crate) fn health(&self) -> Health {
        Health::from_number(self.health.load(Ordering::SeqCst))
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.health().is_usable()
    }

    /// Whether it takes one more request now. One that is not healthy yet takes few at once.
    pub(crate) fn has_room(&self) -> bool {
        self.health() == Health::Healthy
            || self.in_flight.load(Ordering::Relaxed) < self.allowance.load(Ordering::Relaxed)
    }

    /// Leaves it out. Returns whether that is a change.
    pub(crate) fn leave_out(&self, reason: Reason) -> bool {
        let health = match reason {
            Reason::Silent(_) => Health::Silent,
            Reason::Failed(_) | Reason::Away => Health::Lost,
        };
        let mut record = self.record.lock();
        let before = self.health();
        if before == Health::Lost || before == health {
            return false;
        }
        if before.is_usable() {
            record.times_left_out += 1;
            record.since = SystemTime::now();
            record.left_at = Some(Instant::now());
        }
        record.reason = Some(reason);
        self.health.store(health as u8, Ordering::SeqCst);
        drop(record);
        self.left_out_event.notify_waiters();
        true
    }

    /// Uses it again, with a small allowance. Returns whether that is a change.
    pub(crate) fn readmit(&self) -> bool {
        let mut record = self.record.lock();
        if self.is_usable() {
            return false;
        }
        self.allowance.store(FIRST_ALLOWANCE, Ordering::Relaxed);
        record.reason = None;
        record.since = SystemTime::now();
        self.health.store(Health::Returning as u8, Ordering::SeqCst);
        true
    }

    /// Allows one more request at once, after a good answer.
    fn raise_allowance(&self) {
        if self.allowance.fetch_add(1, Ordering::Relaxed) + 1 < FULL_ALLOWANCE {
            return;
        }
        let _record = self.record.lock();
        if self.health() == Health::Returning {
            self.health.store(Health::Healthy as u8, Ordering::SeqCst);
        }
    }

    /// Whether it was left out less than `time` ago, and still is.
    pub(crate) fn left_out_within(&self, time: Duration) -> bool {
        let left_at = self.record.lock().left_at;
        !self.is_usable() && left_at.is_some_and(|at| at.elapsed() < time)
    }

    /// Returns when it is left out, at once if it is.
    pub(crate) async fn left_out(&self) {
        let event = self.left_out_event.notified();
        if self.is_usable() {
            event.await;
        }
    }

    /// Returns when it is lost, at once if it is.
    pub(crate) async fn lost(&self) {
        until(&self.left_out_event, || (self.health() == Health::Lost).then_some(())).await;
    }

    /// Returns when a request is in flight, at once if one is.
    pub(crate) async fn wait_for_request(&self) {
        let request_event = self.request_event.notified();
        self.checker_waits.store(true, Ordering::SeqCst);
        if self.in_flight() == 0 {
            request_event.await;
        }
        self.checker_waits.store(false, Ordering::SeqCst);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// The time of small requests, in nanoseconds, if it was measured.
    pub(crate) fn latency_ns(&self, now: Instant) -> Option<u64> {
        self.latency.get(now)
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    /// The time per byte, in picoseconds, if it was measured.
    pub(crate) fn byte_time_ps(&self, now: Instant) -> Option<u64> {
        self.byte_time.get(now)
    }

    /// The time in nanoseconds until `len` more bytes would have arrived; `usual_byte_ps` is used
    /// where the time per byte was not measured.
    pub(crate) fn estimate_ns(&self, len: u32, now: Instant, usual_byte_ps: u64) -> u64 {
        let byte_ps = self.byte_time_ps(now).unwrap_or(usual_byte_ps).max(LEAST_BYTE_PS);
        let queued = self.queued_bytes() + u64::from(len);
        let min_rtt_ns = Some(self.min_rtt_ns.load(Ordering::Relaxed)).filter(|ns| *ns != u64::MAX);
        min_rtt_ns.unwrap_or(0).saturating_add(queued.saturating_mul(byte_ps) / 1000)
    }

    /// Records the start of a request.
    pub(crate) fn begin(&self, weight: Weight) -> Request<'_> {
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if before == 0 && self.checker_waits.load(Ordering::SeqCst) {
            self.request_event.notify_one();
        }
        let bytes = u64::from(weight.bytes());
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        Request { member: self, weight, queued, began: Instant::now() }
    }

    pub(crate) fn status(&self) -> GatewayStatus {
        let record = self.record.lock();
        let state = match (self.health(), record.reason) {
            (Health::Healthy, _) => GatewayState::Healthy,
            (Health::Returning, _) => GatewayState::Returning,
            (Health::Silent | Health::Lost, reason) => {
                GatewayState::LeftOut(reason.unwrap_or(Reason::Away))
            }
        };
        GatewayStatus {
            name: self.name.clone(),
            state,
            since: record.since,
            latency: self.latency.get(Instant::now()).map(Duration::from_nanos),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            in_flight: self.in_flight(),
            times_left_out: record.times_left_out,
        }
    }
}

/// A request in flight; it ends when this is dropped.
pub(crate) struct Request<'a> {
    member: &'a Member,
    weight: Weight,
    /// Bytes in flight including this request.
    queued: u64,
    began: Instant,
}

impl Request<'_> {
    /// Records the answer.
    pub(crate) fn answered(&self) {
        let member = self.member;
        member.answers.fetch_add(1, Ordering::SeqCst);
        if member.health() == Health::Returning {
            member.raise_allowance();
        }
        let now = Instant::now();
        let took_ns = (now - self.began).as_nanos() as u64;
        let bytes = self.weight.bytes();
        let min_rtt_ns = member.min_rtt_ns.fetch_min(took_ns, Ordering::Relaxed).min(took_ns);
        match self.weight {
            Weight::Slow => {}
            _ if bytes >= LARGE_BYTES => {
                let all_ps = (took_ns - min_rtt_ns).saturating_mul(1000);
                member.byte_time.record(all_ps / self.queued.max(1), now);
            }
            _ => member.latency.record(took_ns, now),
        }
        match self.weight {
            Weight::Read(bytes) => {
                member.read_bytes.fetch_add(bytes.into(), Ordering::Relaxed);
            }
            Weight::Write(bytes) => {
                member.written_bytes.fetch_add(bytes.into(), Ordering::Relaxed);
            }
            Weight::Small | Weight::Slow => {}
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.member.queued_bytes.fetch_sub(self.weight.bytes().into(), Ordering::Relaxed);
        self.member.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Errno;
    use testkit::MemRemote;

    fn member() -> Member {
        let remote = Arc::new(MemRemote::new());
        Member::new(0, Gateway { name: "gw".into(), remote })
    }

    #[test]
    fn a_gateway_is_ejected_once_and_readmitted_gradually() {
        let member = member();
        assert!(member.leave_out(Reason::Silent(Duration::from_secs(5))));
        assert!(!member.leave_out(Reason::Silent(Duration::from_secs(6))));
        assert!(member.leave_out(Reason::Failed(Errno::EHOSTDOWN)), "worse than before");
        assert!(!member.leave_out(Reason::Away));
        assert_eq!(member.status().times_left_out, 1);
        assert_eq!(member.status().state, GatewayState::LeftOut(Reason::Failed(Errno::EHOSTDOWN)));
        assert!(member.readmit() && !member.readmit());
        assert_eq!(member.status().state, GatewayState::Returning);
        let (_one, _two) = (member.begin(Weight::Small), member.begin(Weight::Small));
        assert!(!member.has_room(), "two at once are enough");
        for _ in 0..FULL_ALLOWANCE {
            member.begin(Weight::Small).answered();
        }
        assert_eq!(member.status().state, GatewayState::Healthy);
        assert!(member.has_room());
    }

    #[test]
    fn requests_in_flight_are_counted_and_measured() {
        let member = member();
        let one = member.begin(Weight::Read(1 << 20));
        let two = member.begin(Weight::Write(1 << 20));
        assert_eq!((member.in_flight(), member.queued_bytes()), (2, 2 << 20));
        assert_eq!(member.byte_time_ps(Instant::now()), None);
        one.answered();
        two.answered();
        drop((one, two));
        assert_eq!((member.in_flight(), member.queued_bytes()), (0, 0));
        assert!(member.byte_time_ps(Instant::now()).is_some());
        assert_eq!(member.latency_ns(Instant::now()), None, "they were large");
        drop(member.begin(Weight::Small));
        assert_eq!(member.answers(), 2, "a call that was given up is no answer");
        let status = member.status();
        assert_eq!((status.read_bytes, status.written_bytes), (1 << 20, 1 << 20));
    }
}
