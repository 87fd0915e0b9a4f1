//! Decides how many sessions carry content. Pure; decides by measured throughput.
//!
//! | phase | → | when |
//! |---|---|---|
//! | `Recovering` | `Joining` | in [`BUSY_SAMPLES`] samples in a row, demand exceeded the capacity of the sessions |
//! | `Joining` | `Trial` | the new sessions are open; `Recovering` if none could be opened, or if it was the first |
//! | `Trial` | `Recovering` | throughput rose: they are kept. It did not rise: they are no longer used. Demand ended, or the new sessions had no traffic: no conclusion |
//!
//! If the window limits a session (round trip times rate is about the window), several sessions are
//! opened at once. Otherwise a processor limits it, if more sessions can help at all: one is
//! opened.

use std::time::{Duration, Instant};

use crate::flow_control::Throughput;

/// Busy samples in a row before sessions are opened: a burst is not worth a login.
const BUSY_SAMPLES: u32 = 2;

/// Mean of bytes in flight from which content gets sessions of its own: above that of one reader of
/// small files.
const BULK_BYTES: f64 = 192.0 * 1024.0;

/// Bytes transferred in one sample from which content gets sessions of its own.
const BULK_CARRIED_BYTES: u64 = 1 << 20;

/// Fraction of the windows that is in flight when the windows limit throughput.
const FULL: f64 = 0.75;

/// Round trip times rate as a fraction of the window, from which the window limits the rate.
const WINDOW_BOUND: f64 = 0.6;

/// Maximum number of sessions opened at once. A server may drop one of ten connections that have
/// not logged in yet (`MaxStartups`), and other clients log in too.
const STEP: usize = 3;

/// Factor by which new sessions must raise throughput. Less is noise, and costs processor time.
const GAIN: f64 = 1.12;

/// Time to the next trial after one without gain. Doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Maximum of that time.
const LAST_PAUSE: Duration = Duration::from_secs(960);

/// Round trips until a new session has full throughput: files are opened and compared (8), and
/// TCP's window grows to 2 MiB (8).
const TRIAL_ROUND_TRIPS: u32 = 16;

/// Time until a new session has full throughput, in addition to the round trips.
const TRIAL_TIME: Duration = Duration::from_millis(700);

/// What was measured since the previous sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) throughput: Throughput,
    pub(crate) elapsed: Duration,
    /// Sessions beside the first that carry content now; zero at the beginning.
    pub(crate) sessions: usize,
    /// Window of each session.
    pub(crate) window_bytes: u64,
    /// Limit of bytes in flight over all sessions, if there is one.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) round_trip: Duration,
    /// Further sessions that need no login.
    pub(crate) ready: usize,
}

impl Sample {
    pub(super) fn rate(&self) -> f64 {
        self.throughput.bytes as f64 / self.elapsed.as_secs_f64().max(1e-6)
    }

    /// Mean of bytes in flight.
    pub(super) fn inflight_bytes(&self) -> f64 {
        self.throughput.byte_seconds / self.elapsed.as_secs_f64().max(1e-6)
    }

    /// Sum of the windows of all sessions.
    pub(super) fn windows_bytes(&self) -> u64 {
        self.sessions.max(1) as u64 * self.window_bytes
    }

    /// Bytes that the windows and the limit allow in flight.
    pub(super) fn capacity(&self) -> f64 {
        self.windows_bytes().min(self.limit_bytes.unwrap_or(u64::MAX)) as f64
    }

    /// Demand exceeds the capacity of the sessions.
    fn is_busy(&self) -> bool {
        match self.sessions {
            0 => self.inflight_bytes() >= BULK_BYTES && self.throughput.bytes >= BULK_CARRIED_BYTES,
            // If the link is the limit, more sessions do not help.
            _ => {
                self.limit_bytes.is_none()
                    && self.inflight_bytes() >= FULL * self.windows_bytes() as f64
            }
        }
    }

    fn is_window_bound(&self) -> bool {
        self.rate() * self.round_trip.as_secs_f64() >= WINDOW_BOUND * self.windows_bytes() as f64
    }
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Keep,
    /// Open this number of further sessions.
    Open(usize),
    /// Use only this number of sessions.
    Use(usize),
}

enum Phase {
    Recovering,
    Joining { before: usize, rate: f64, window_bound: bool },
    Trial(Trial),
}

/// A trial whether new sessions improve throughput.
struct Trial {
    before: usize,
    /// Throughput before the trial.
    rate: f64,
    window_bound: bool,
    until: Instant,
    /// Throughput in the previous sample.
    last: f64,
    /// Sessions that had traffic.
    used: usize,
}

/// The state of the decision. See the [module](self).
pub(crate) struct Tuner {
    most: usize,
    cores: usize,
    /// Whether new sessions have to prove a gain.
    measures: bool,
    phase: Phase,
    busy_samples: u32,
    busy_rate: f64,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Tuner {
    /// `most`: maximum number of sessions beside the first; `cores`: processors of this machine;
    /// `measures`: whether new sessions have to prove a gain.
    pub(crate) fn new(most: usize, cores: usize, measures: bool) -> Tuner {
        Tuner {
            most,
            cores,
            measures,
            phase: Phase::Recovering,
            busy_samples: 0,
            busy_rate: 0.0,
            not_before: None,
            pause: FIRST_PAUSE,
        }
    }

    /// Sets the maximum number of sessions beside the first.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Sessions are being opened or tried.
    pub(crate) fn is_trying(&self) -> bool {
        !matches!(self.phase, Phase::Recovering)
    }

    /// The number of sessions that would be opened next if there was demand. The caller has to
    /// request as much as they would carry.
    pub(crate) fn would_try(&self, sessions: usize, round_trip: Duration, now: Instant) -> usize {
        if self.not_before.is_some_and(|at| now < at) {
            return 0;
        }
        // Ten milliseconds mean 200 MB/s for a window: above the throughput of a session.
        let window_bound = !self.measures || round_trip >= Duration::from_millis(10);
        self.step(sessions, window_bound, 0)
    }

    fn step(&self, sessions: usize, window_bound: bool, ready: usize) -> usize {
        let (most, step) = match window_bound {
            true => (self.most, STEP.max(ready)),
            false => (self.most.min(self.cores), 1),
        };
        most.saturating_sub(sessions).min(step)
    }

    /// Has to be called after each sample.
    pub(crate) fn observe(&mut self, sample: &Sample, now: Instant) -> Advice {
        match &mut self.phase {
            Phase::Recovering => self.steady(sample, now),
            Phase::Joining { .. } => Advice::Keep,
            Phase::Trial(trial) => {
                let seen = (trial.last + sample.rate()) / 2.0;
                trial.last = sample.rate();
                trial.used = trial.used.max(sample.throughput.slots.len());
                let over = now >= trial.until;
                let alone = (trial.before as u64 * sample.window_bytes) as f64;
                let unwanted = sample.inflight_bytes() < 0.5 * alone;
                let unused = over && trial.used <= trial.before;
                let gained =
                    !self.measures || (seen >= GAIN * trial.rate && (trial.window_bound || over));
                let before = trial.before;
                if unwanted || unused {
                    self.settle(0);
                } else if gained {
                    self.pause = FIRST_PAUSE;
                    self.busy_rate = sample.rate();
                    self.settle(BUSY_SAMPLES - 1);
                } else if over {
                    self.give_up_for_now(now);
                    self.settle(0);
                    return Advice::Use(before);
                }
                Advice::Keep
            }
        }
    }

    fn steady(&mut self, sample: &Sample, now: Instant) -> Advice {
        if !sample.is_busy() {
            self.busy_samples = 0;
            return Advice::Keep;
        }
        self.busy_rate = if self.busy_samples == 0 {
            sample.rate()
        } else {
            (self.busy_rate + sample.rate()) / 2.0
        };
        self.busy_samples += 1;
        let window_bound = !self.measures || sample.is_window_bound();
        let mut step = self.step(sample.sessions, window_bound, sample.ready);
        let too_early = self.not_before.is_some_and(|at| now < at);
        let mut samples = BUSY_SAMPLES;
        if window_bound && sample.ready > 0 && self.busy_samples < samples {
            // A burst is worth the sessions that need no login, but not a login.
            (samples, step) = (1, step.min(sample.ready));
        }
        if self.busy_samples < samples || step == 0 || too_early {
            return Advice::Keep;
        }
        self.phase = Phase::Joining { before: sample.sessions, rate: self.busy_rate, window_bound };
        Advice::Open(step)
    }

    /// Records how many of the sessions to be opened are open.
    pub(crate) fn joined(&mut self, number: usize, round_trip: Duration, now: Instant) {
        let Phase::Joining { before, rate, window_bound } = self.phase else { return };
        if number == 0 {
            self.give_up_for_now(now);
        }
        // The first one takes content off the metadata session, which is always worth it.
        if number == 0 || (before == 0 && number == 1) {
            self.settle(0);
            return;
        }
        let until = now + round_trip * TRIAL_ROUND_TRIPS + TRIAL_TIME;
        let before = before.max(1);
        self.phase = Phase::Trial(Trial { before, rate, window_bound, until, last: 0.0, used: 0 });
    }

    fn settle(&mut self, busy_samples: u32) {
        self.phase = Phase::Recovering;
        self.busy_samples = busy_samples;
    }

    fn give_up_for_now(&mut self, now: Instant) {
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    /// A link with a rate, over which a session carries one window each round trip, limited by its
    /// processor.
    struct Link {
        rate: f64,
        session_rate: f64,
        round_trip: Duration,
        /// Bytes that the caller has in flight.
        wanted_bytes: f64,
        /// Sessions that the caller's requests can use.
        usable: usize,
        /// Total number of sessions that need no login.
        ready: usize,
    }

    const WINDOW_BYTES: u64 = 2 << 20;

    impl Link {
        fn sample(&self, sessions: usize) -> Sample {
            let elapsed = Duration::from_millis(300);
            let carriers = self.usable.min(sessions.max(1)) as f64;
            let room = (carriers * WINDOW_BYTES as f64).min(self.wanted_bytes);
            let by_window = room / self.round_trip.as_secs_f64();
            let rate = by_window.min(self.rate).min(self.session_rate * carriers);
            let bytes = (rate * elapsed.as_secs_f64()) as u64;
            let slots = (0..self.usable.min(sessions.max(1))).collect();
            let throughput = Throughput {
                bytes,
                byte_seconds: room * elapsed.as_secs_f64(),
                slots,
                waited: room < self.wanted_bytes,
            };
            let (window_bytes, round_trip) = (WINDOW_BYTES, self.round_trip);
            Sample {
                throughput,
                elapsed,
                sessions,
                window_bytes,
                limit_bytes: None,
                round_trip,
                ready: self.ready,
            }
        }

        /// Samples for this time, with sessions that join after a second. Returns the number of
        /// sessions at the end, and the largest number opened at once.
        fn run(&self, tuner: &mut Tuner, seconds: u32, start: Instant) -> (usize, usize) {
            let (mut sessions, mut largest, mut now) = (0, 0, start);
            let mut joining = None;
            while now < start + Duration::from_secs(seconds.into()) {
                now += Duration::from_millis(300);
                if let Some((number, at)) = joining
                    && now >= at
                {
                    sessions += number;
                    tuner.joined(number, self.round_trip, now);
                    joining = None;
                }
                match tuner.observe(&self.sample(sessions), now) {
                    Advice::Keep => {}
                    Advice::Open(number) => {
                        largest = largest.max(number);
                        assert!(joining.is_none(), "one step at a time");
                        joining = Some((number, now + Duration::from_secs(1)));
                    }
                    Advice::Use(number) => sessions = number,
                }
            }
            (sessions, largest)
        }
    }

    fn link(rate: f64, session_rate: f64, millis: f64) -> Link {
        let round_trip = Duration::from_secs_f64(millis / 1000.0);
        Link { rate, session_rate, round_trip, wanted_bytes: 64.0 * MB, usable: 64, ready: 0 }
    }

    #[test]
    fn a_long_link_is_filled_within_ten_seconds() {
        let mut tuner = Tuner::new(7, 2, true);
        let (sessions, largest) =
            link(125.0 * MB, 400.0 * MB, 100.0).run(&mut tuner, 9, Instant::now());
        assert!((6..=7).contains(&sessions), "{sessions}");
        assert!(largest <= STEP);
    }

    #[test]
    fn sessions_without_a_login_are_used_at_once() {
        let mut tuner = Tuner::new(7, 2, true);
        let mut far = link(125.0 * MB, 400.0 * MB, 100.0);
        far.ready = 7;
        assert_eq!(far.run(&mut tuner, 2, Instant::now()), (7, 7));
        // One session suffices for the whole throughput.
        let mut tuner = Tuner::new(7, 2, true);
        let mut slow = link(12.0 * MB, 400.0 * MB, 100.0);
        slow.ready = 7;
        assert_eq!(slow.run(&mut tuner, 60, Instant::now()).0, 1);
    }

    #[test]
    fn a_slow_long_link_gets_few_sessions() {
        let mut tuner = Tuner::new(7, 2, true);
        let (sessions, _) = link(12.0 * MB, 400.0 * MB, 100.0).run(&mut tuner, 60, Instant::now());
        assert_eq!(sessions, 1);
        let mut tuner = Tuner::new(7, 2, true);
        let (sessions, _) = link(45.0 * MB, 400.0 * MB, 100.0).run(&mut tuner, 60, Instant::now());
        assert!((2..=4).contains(&sessions), "{sessions}");
    }

    #[test]
    fn processor_bound_sessions_are_kept_if_they_gain() {
        let mut tuner = Tuner::new(7, 4, true);
        let (sessions, largest) =
            link(5000.0 * MB, 400.0 * MB, 0.1).run(&mut tuner, 30, Instant::now());
        assert_eq!((sessions, largest), (4, 1), "one for each processor");
        // One session is as good as two.
        let mut tuner = Tuner::new(7, 4, true);
        let start = Instant::now();
        let slow = link(400.0 * MB, 400.0 * MB, 0.1);
        assert_eq!(slow.run(&mut tuner, 30, start), (1, 1));
        assert_eq!(tuner.would_try(1, slow.round_trip, start + Duration::from_secs(30)), 0);
    }

    #[test]
    fn few_bytes_in_flight_get_one_session() {
        let mut tuner = Tuner::new(7, 2, true);
        let mut slow = link(125.0 * MB, 400.0 * MB, 100.0);
        slow.wanted_bytes = 1.0 * MB;
        assert_eq!(slow.run(&mut tuner, 60, Instant::now()).0, 1);
        slow.wanted_bytes = 0.1 * MB;
        let mut tuner = Tuner::new(7, 2, true);
        assert_eq!(slow.run(&mut tuner, 60, Instant::now()).0, 0);
    }

    #[test]
    fn unused_sessions_give_no_conclusion() {
        let mut tuner = Tuner::new(7, 2, true);
        let mut far = link(125.0 * MB, 400.0 * MB, 100.0);
        far.usable = 1;
        let start = Instant::now();
        let (sessions, _) = far.run(&mut tuner, 20, start);
        assert_eq!(sessions, STEP, "enough for the next one, and no more");
        assert_eq!(tuner.would_try(STEP, far.round_trip, start + Duration::from_secs(20)), STEP);
    }

    #[test]
    fn the_maximum_of_sessions_is_kept() {
        for most in 0..9 {
            let mut tuner = Tuner::new(most, 2, true);
            let fast = link(1250.0 * MB, 400.0 * MB, 100.0);
            let (sessions, _) = fast.run(&mut tuner, 60, Instant::now());
            assert!(sessions <= most, "{sessions} of {most}");
        }
    }

    #[test]
    fn a_server_that_refuses_is_rarely_retried() {
        let mut tuner = Tuner::new(7, 2, true);
        let fast = link(125.0 * MB, 400.0 * MB, 100.0);
        let start = Instant::now();
        let mut asked = Vec::new();
        for sample_number in 0..2000 {
            let now = start + Duration::from_millis(300) * sample_number;
            if let Advice::Open(_) = tuner.observe(&fast.sample(0), now) {
                asked.push(now - start);
                tuner.joined(0, fast.round_trip, now);
            }
        }
        assert!((2..=4).contains(&asked.len()), "{asked:?}");
    }
}
