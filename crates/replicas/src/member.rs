//! One gateway as it is known here: how it is, what is on its way through it, and how fast it is.
//!
//! States and what leads from one to the other ([`crate::gateways`] and [`crate::keeper`] decide):
//!
//! - `Well` and `Returning` are usable. → `Silent` when it answers nothing by its deadline and there
//!   are others; → `Lost` when a request fails because of it, or it says that it is away.
//! - `Silent` → `Lost` likewise.
//! - `Silent` and `Lost` → `Returning` when probes are answered.
//! - `Returning` → `Well` after some good answers; until then it takes few requests at once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use base::Remote;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::Gateway;
use crate::pace::Smoothed;
use crate::runs::Run;
use crate::status::{GatewayStatus, State, Why};

/// Requests of this size and more are routed by what the way carries, smaller ones by how soon they
/// are answered. The same as a host's.
pub(crate) const LARGE_BYTES: u32 = 32 << 10;

/// Requests at once for one that has just come back; each good answer allows one more.
const FIRST_ALLOWANCE: usize = 2;

/// What a byte takes at least, in picoseconds: 1 GB/s. Where nothing is scarce, and bytes seem to
/// take no time, this is what spreads them.
const LEAST_BYTE_PS: u64 = 1000;

/// With so many allowed it is well.
const WELL_ALLOWANCE: usize = 32;

/// How a gateway is, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Health {
    Well,
    Returning,
    Silent,
    Lost,
}

impl Health {
    fn from_number(number: u8) -> Health {
        [Health::Well, Health::Returning, Health::Silent, Health::Lost][usize::from(number & 3)]
    }

    pub(crate) fn is_usable(self) -> bool {
        matches!(self, Health::Well | Health::Returning)
    }
}

/// What a request costs the way to the gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Weight {
    /// A question and an answer of one packet.
    Small,
    /// So many bytes of a file are read.
    Read(u32),
    /// So many bytes of a file are written.
    Write(u32),
    /// As long as the server's disk takes.
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

struct Record {
    why: Option<Why>,
    since: SystemTime,
    left_at: Option<Instant>,
    times_left_out: u64,
}

/// One gateway.
pub(crate) struct Member {
    /// Its place in the list of all.
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) remote: Arc<dyn Remote>,
    record: Mutex<Record>,
    /// Changed with the record's lock held, read without.
    health: AtomicU8,
    allowance: AtomicUsize,
    in_flight: AtomicUsize,
    /// Bytes of files that are asked for or sent, and not answered.
    queued_bytes: AtomicU64,
    /// Answers of any kind so far: progress.
    answers: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// Nanoseconds that small requests take.
    latency: Smoothed,
    /// The least that any request has taken, in nanoseconds: the way there and back.
    way_ns: AtomicU64,
    /// Picoseconds that each of all queued bytes takes beyond that.
    byte_time: Smoothed,
    /// Open files of which it has acknowledged writes and not synced them.
    pub(crate) unsynced: AtomicUsize,
    pub(crate) run: Run,
    /// Notified when it is left out.
    left: Notify,
    /// The keeper waits for something to be asked.
    asleep: AtomicBool,
    busy: Notify,
}

impl Member {
    pub(crate) fn new(index: usize, gateway: Gateway) -> Member {
        Member {
            index,
            name: gateway.name,
            remote: gateway.remote,
            record: Mutex::new(Record {
                why: None,
                since: SystemTime::now(),
                left_at: None,
                times_left_out: 0,
            }),
            unsynced: AtomicUsize::new(0),
            run: Run::default(),
            health: AtomicU8::new(Health::Well as u8),
            allowance: AtomicUsize::new(WELL_ALLOWANCE),
            in_flight: AtomicUsize::new(0),
            queued_bytes: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            latency: Smoothed::new(),
            way_ns: AtomicU64::new(u64::MAX),
            byte_time: Smoothed::new(),
            left: Notify::new(),
            asleep: AtomicBool::new(false),
            busy: Notify::new(),
        }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn health(&self) -> Health {
        Health::from_number(self.health.load(Ordering::SeqCst))
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.health().is_usable()
    }

    /// Whether it takes one more request now. One that is not quite well yet takes few at once.
    pub(crate) fn has_room(&self) -> bool {
        self.health() == Health::Well
            || self.in_flight.load(Ordering::Relaxed) < self.allowance.load(Ordering::Relaxed)
    }

    /// Leaves it out. Whether that is news.
    pub(crate) fn leave_out(&self, why: Why) -> bool {
        let health = match why {
            Why::Silent(_) => Health::Silent,
            Why::Failed(_) | Why::Away => Health::Lost,
        };
        let mut record = self.record();
        let before = self.health();
        if before == Health::Lost || before == health {
            return false;
        }
        if before.is_usable() {
            record.times_left_out += 1;
            record.since = SystemTime::now();
            record.left_at = Some(Instant::now());
        }
        record.why = Some(why);
        self.health.store(health as u8, Ordering::SeqCst);
        drop(record);
        self.left.notify_waiters();
        true
    }

    /// Uses it again, with care. Whether that is news.
    pub(crate) fn take_back(&self) -> bool {
        let mut record = self.record();
        if self.is_usable() {
            return false;
        }
        self.allowance.store(FIRST_ALLOWANCE, Ordering::Relaxed);
        record.why = None;
        record.since = SystemTime::now();
        self.health.store(Health::Returning as u8, Ordering::SeqCst);
        true
    }

    /// One more good answer of one that came back.
    fn trust_more(&self) {
        if self.allowance.fetch_add(1, Ordering::Relaxed) + 1 < WELL_ALLOWANCE {
            return;
        }
        let _record = self.record();
        if self.health() == Health::Returning {
            self.health.store(Health::Well as u8, Ordering::SeqCst);
        }
    }

    /// Whether it is left out, and that for less than `time`.
    pub(crate) fn left_within(&self, time: Duration) -> bool {
        let left_at = self.record().left_at;
        !self.is_usable() && left_at.is_some_and(|at| at.elapsed() < time)
    }

    /// Returns when it is left out, at once if it is.
    pub(crate) async fn left_out(&self) {
        let left = self.left.notified();
        if self.is_usable() {
            left.await;
        }
    }

    /// Returns when it is lost, at once if it is.
    pub(crate) async fn lost(&self) {
        loop {
            let left = self.left.notified();
            if self.health() == Health::Lost {
                return;
            }
            left.await;
        }
    }

    /// Returns when something is asked of it, at once if something is.
    pub(crate) async fn something_asked(&self) {
        let busy = self.busy.notified();
        self.asleep.store(true, Ordering::SeqCst);
        if self.in_flight() == 0 {
            busy.await;
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// What small requests take, in nanoseconds, if that is known.
    pub(crate) fn latency_ns(&self, now: Instant) -> Option<u64> {
        self.latency.get(now)
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    /// What one byte takes, in picoseconds, if that is known.
    pub(crate) fn byte_time_ps(&self, now: Instant) -> Option<u64> {
        self.byte_time.get(now)
    }

    /// In how many nanoseconds `len` more bytes would be here, when each takes so long where that
    /// is not known.
    pub(crate) fn would_take_ns(&self, len: u32, now: Instant, usual_byte_ps: u64) -> u64 {
        let byte_ps = self.byte_time_ps(now).unwrap_or(usual_byte_ps).max(LEAST_BYTE_PS);
        let queued = self.queued_bytes() + u64::from(len);
        let way_ns = Some(self.way_ns.load(Ordering::Relaxed)).filter(|ns| *ns != u64::MAX);
        way_ns.unwrap_or(0).saturating_add(queued.saturating_mul(byte_ps) / 1000)
    }

    /// Something is asked of it from now on.
    pub(crate) fn begin(&self, weight: Weight) -> Pass<'_> {
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if before == 0 && self.asleep.load(Ordering::SeqCst) {
            self.busy.notify_one();
        }
        let bytes = u64::from(weight.bytes());
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        Pass { member: self, weight, queued, began: Instant::now() }
    }

    pub(crate) fn status(&self) -> GatewayStatus {
        let record = self.record();
        let state = match (self.health(), record.why) {
            (Health::Well, _) => State::Well,
            (Health::Returning, _) => State::Returning,
            (Health::Silent | Health::Lost, why) => State::LeftOut(why.unwrap_or(Why::Away)),
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

/// One request on its way; over when dropped.
pub(crate) struct Pass<'a> {
    member: &'a Member,
    weight: Weight,
    /// Bytes on the way with it.
    queued: u64,
    began: Instant,
}

impl Pass<'_> {
    /// The gateway has answered.
    pub(crate) fn answered(&self) {
        let member = self.member;
        member.answers.fetch_add(1, Ordering::SeqCst);
        if member.health() == Health::Returning {
            member.trust_more();
        }
        let now = Instant::now();
        let took_ns = (now - self.began).as_nanos() as u64;
        let bytes = self.weight.bytes();
        let way_ns = member.way_ns.fetch_min(took_ns, Ordering::Relaxed).min(took_ns);
        match self.weight {
            Weight::Slow => {}
            _ if bytes >= LARGE_BYTES => {
                let all_ps = (took_ns - way_ns).saturating_mul(1000);
                member.byte_time.measured(all_ps / self.queued.max(1), now);
            }
            _ => member.latency.measured(took_ns, now),
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

impl Drop for Pass<'_> {
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
    fn it_is_left_out_once_and_taken_back_with_care() {
        let member = member();
        assert!(member.leave_out(Why::Silent(Duration::from_secs(5))));
        assert!(!member.leave_out(Why::Silent(Duration::from_secs(6))));
        assert!(member.leave_out(Why::Failed(Errno::EHOSTDOWN)), "worse than before");
        assert!(!member.leave_out(Why::Away));
        assert_eq!(member.status().times_left_out, 1);
        assert_eq!(member.status().state, State::LeftOut(Why::Failed(Errno::EHOSTDOWN)));
        assert!(member.take_back() && !member.take_back());
        assert_eq!(member.status().state, State::Returning);
        let (_one, _two) = (member.begin(Weight::Small), member.begin(Weight::Small));
        assert!(!member.has_room(), "two at once are enough");
        for _ in 0..WELL_ALLOWANCE {
            member.begin(Weight::Small).answered();
        }
        assert_eq!(member.status().state, State::Well);
        assert!(member.has_room());
    }

    #[test]
    fn what_is_on_its_way_is_counted_and_measured() {
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
