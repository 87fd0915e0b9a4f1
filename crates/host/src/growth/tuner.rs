//! How many sessions carry content: the decision, pure, by what was carried.
//!
//! | phase | → | when |
//! |---|---|---|
//! | `Steady` | `Joining` | for [`BUSY_LOOKS`] looks in a row more was wanted than the sessions carry |
//! | `Joining` | `Trial` | the new sessions are there; `Steady` when none came, or it was the first |
//! | `Trial` | `Steady` | more is carried: they stay. Not more: they are left. Nobody wants it any more, or nothing went over them: it cannot be told |
//!
//! Where a window bounds a session (round trip times rate is about the window), several are opened
//! at once. Else it is a processor that bounds it, if more can help at all: one is tried.

use std::time::{Duration, Instant};

use crate::gate::Carried;

/// Looks in a row before anything is done: a burst is not worth a login.
const BUSY_LOOKS: u32 = 2;

/// Bytes on their way in the mean from which on content gets sessions of its own: more than one
/// reader of small files has.
const BULK_BYTES: f64 = 192.0 * 1024.0;

/// Bytes carried in one look from which on the same.
const BULK_CARRIED_BYTES: u64 = 1 << 20;

/// The part of the windows that is on its way when their room is what is missing.
const FULL: f64 = 0.75;

/// The part of the window that round trip times rate makes when the window bounds the rate.
const WINDOW_BOUND: f64 = 0.6;

/// Sessions opened at once at most. A server may drop one of ten that have not logged in yet
/// (`MaxStartups`), and others log in too.
const STEP: usize = 3;

/// What new sessions must bring, as a factor. Less is noise, and costs processors.
const GAIN: f64 = 1.12;

/// Time to the next attempt when one has brought nothing. Doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The longest.
const LAST_PAUSE: Duration = Duration::from_secs(960);

/// Round trips until a new session carries what it can: files are opened and compared (8), and
/// TCP's window grows to 2 MiB (8).
const TRIAL_ROUND_TRIPS: u32 = 16;

/// The same beyond the round trips.
const TRIAL_TIME: Duration = Duration::from_millis(700);

/// What was seen since the look before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) carried: Carried,
    pub(crate) took: Duration,
    /// Sessions that carry content now, beside the first; none at the beginning.
    pub(crate) lanes: usize,
    /// What each may have on its way.
    pub(crate) window_bytes: u64,
    /// What all together may have on their way, if that is bounded.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) round_trip: Duration,
    /// Further sessions that cost no login.
    pub(crate) ready: usize,
}

impl Sample {
    pub(super) fn rate(&self) -> f64 {
        self.carried.bytes as f64 / self.took.as_secs_f64().max(1e-6)
    }

    /// Bytes on their way in the mean.
    pub(super) fn under_way(&self) -> f64 {
        self.carried.byte_seconds / self.took.as_secs_f64().max(1e-6)
    }

    /// What the sessions may have on their way.
    pub(super) fn windows(&self) -> u64 {
        self.lanes.max(1) as u64 * self.window_bytes
    }

    /// The same, if it is bounded no further.
    pub(super) fn room(&self) -> f64 {
        self.windows().min(self.limit_bytes.unwrap_or(u64::MAX)) as f64
    }

    /// More is wanted than the sessions carry.
    fn is_busy(&self) -> bool {
        match self.lanes {
            0 => self.under_way() >= BULK_BYTES && self.carried.bytes >= BULK_CARRIED_BYTES,
            // Where the link is the bound, more sessions carry no more.
            _ => self.limit_bytes.is_none() && self.under_way() >= FULL * self.windows() as f64,
        }
    }

    fn is_window_bound(&self) -> bool {
        self.rate() * self.round_trip.as_secs_f64() >= WINDOW_BOUND * self.windows() as f64
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Stay,
    /// Open so many more.
    Grow(usize),
    /// Use only so many.
    Use(usize),
}

enum Phase {
    Steady,
    Joining { before: usize, rate: f64, window_bound: bool },
    Trial(Trial),
}

/// A look whether new sessions bring anything.
struct Trial {
    before: usize,
    /// What was carried before.
    rate: f64,
    window_bound: bool,
    until: Instant,
    /// The rate at the look before.
    last: f64,
    /// Sessions that have carried something.
    used: usize,
}

/// The state of the decision.
pub(crate) struct Tuner {
    most: usize,
    cores: usize,
    /// Whether gain counts at all.
    measures: bool,
    phase: Phase,
    busy_looks: u32,
    busy_rate: f64,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Tuner {
    /// `most` sessions beside the first; `cores` of this machine; whether gain is to be measured.
    pub(crate) fn new(most: usize, cores: usize, measures: bool) -> Tuner {
        Tuner {
            most,
            cores,
            measures,
            phase: Phase::Steady,
            busy_looks: 0,
            busy_rate: 0.0,
            not_before: None,
            pause: FIRST_PAUSE,
        }
    }

    /// More sessions are being opened, or looked at.
    pub(crate) fn is_trying(&self) -> bool {
        !matches!(self.phase, Phase::Steady)
    }

    /// How many more sessions it would try next, were they wanted: for the caller, who has to ask
    /// for as much as they would carry.
    pub(crate) fn would_try(&self, lanes: usize, round_trip: Duration, now: Instant) -> usize {
        if self.not_before.is_some_and(|at| now < at) {
            return 0;
        }
        // Ten milliseconds are 200 MB/s in a window: more than a session carries.
        let window_bound = !self.measures || round_trip >= Duration::from_millis(10);
        self.step(lanes, window_bound, 0)
    }

    fn step(&self, lanes: usize, window_bound: bool, ready: usize) -> usize {
        let (most, step) = match window_bound {
            true => (self.most, STEP.max(ready)),
            false => (self.most.min(self.cores), 1),
        };
        most.saturating_sub(lanes).min(step)
    }

    /// To be called after each look.
    pub(crate) fn observe(&mut self, sample: &Sample, now: Instant) -> Advice {
        match &mut self.phase {
            Phase::Steady => self.steady(sample, now),
            Phase::Joining { .. } => Advice::Stay,
            Phase::Trial(trial) => {
                let seen = (trial.last + sample.rate()) / 2.0;
                trial.last = sample.rate();
                trial.used = trial.used.max(sample.carried.slots.len());
                let over = now >= trial.until;
                let alone = (trial.before as u64 * sample.window_bytes) as f64;
                let unwanted = sample.under_way() < 0.5 * alone;
                let unused = over && trial.used <= trial.before;
                let gained =
                    !self.measures || (seen >= GAIN * trial.rate && (trial.window_bound || over));
                let before = trial.before;
                if unwanted || unused {
                    self.settle(0);
                } else if gained {
                    self.pause = FIRST_PAUSE;
                    self.busy_rate = sample.rate();
                    self.settle(BUSY_LOOKS - 1);
                } else if over {
                    self.give_up_for_now(now);
                    self.settle(0);
                    return Advice::Use(before);
                }
                Advice::Stay
            }
        }
    }

    fn steady(&mut self, sample: &Sample, now: Instant) -> Advice {
        if !sample.is_busy() {
            self.busy_looks = 0;
            return Advice::Stay;
        }
        self.busy_rate = if self.busy_looks == 0 {
            sample.rate()
        } else {
            (self.busy_rate + sample.rate()) / 2.0
        };
        self.busy_looks += 1;
        let window_bound = !self.measures || sample.is_window_bound();
        let mut step = self.step(sample.lanes, window_bound, sample.ready);
        let too_early = self.not_before.is_some_and(|at| now < at);
        let mut looks = BUSY_LOOKS;
        if window_bound && sample.ready > 0 && self.busy_looks < looks {
            // A burst is worth what is there, and no login.
            (looks, step) = (1, step.min(sample.ready));
        }
        if self.busy_looks < looks || step == 0 || too_early {
            return Advice::Stay;
        }
        self.phase = Phase::Joining { before: sample.lanes, rate: self.busy_rate, window_bound };
        Advice::Grow(step)
    }

    /// So many of the sessions that were to be opened are there.
    pub(crate) fn joined(&mut self, number: usize, round_trip: Duration, now: Instant) {
        let Phase::Joining { before, rate, window_bound } = self.phase else { return };
        if number == 0 {
            self.give_up_for_now(now);
        }
        // The first one takes content off the session for metadata, which is worth it anyway.
        if number == 0 || (before == 0 && number == 1) {
            self.settle(0);
            return;
        }
        let until = now + round_trip * TRIAL_ROUND_TRIPS + TRIAL_TIME;
        let before = before.max(1);
        self.phase = Phase::Trial(Trial { before, rate, window_bound, until, last: 0.0, used: 0 });
    }

    fn settle(&mut self, busy_looks: u32) {
        self.phase = Phase::Steady;
        self.busy_looks = busy_looks;
    }

    fn give_up_for_now(&mut self, now: Instant) {
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Slots;

    const MB: f64 = 1e6;

    /// A way with a rate, over which sessions carry a window a round trip, or what a processor
    /// allows one of them.
    struct Way {
        rate: f64,
        session_rate: f64,
        round_trip: Duration,
        /// What the caller has on its way.
        wanted_bytes: f64,
        /// Sessions that what is asked for can use.
        usable: usize,
        /// Sessions that cost no login, in all.
        ready: usize,
    }

    const WINDOW_BYTES: u64 = 2 << 20;

    impl Way {
        fn sample(&self, lanes: usize) -> Sample {
            let took = Duration::from_millis(300);
            let carriers = self.usable.min(lanes.max(1)) as f64;
            let room = (carriers * WINDOW_BYTES as f64).min(self.wanted_bytes);
            let by_window = room / self.round_trip.as_secs_f64();
            let rate = by_window.min(self.rate).min(self.session_rate * carriers);
            let bytes = (rate * took.as_secs_f64()) as u64;
            let slots = (0..self.usable.min(lanes.max(1))).fold(Slots::default(), Slots::with);
            let carried = Carried {
                bytes,
                byte_seconds: room * took.as_secs_f64(),
                slots,
                waited: room < self.wanted_bytes,
            };
            let (window_bytes, round_trip) = (WINDOW_BYTES, self.round_trip);
            Sample {
                carried,
                took,
                lanes,
                window_bytes,
                limit_bytes: None,
                round_trip,
                ready: self.ready,
            }
        }

        /// Looks for so long, with sessions that join after a second; how many there are then, and
        /// how many at once were asked for at most.
        fn run(&self, tuner: &mut Tuner, seconds: u32, start: Instant) -> (usize, usize) {
            let (mut lanes, mut largest, mut now) = (0, 0, start);
            let mut joining = None;
            while now < start + Duration::from_secs(seconds.into()) {
                now += Duration::from_millis(300);
                if let Some((number, at)) = joining
                    && now >= at
                {
                    lanes += number;
                    tuner.joined(number, self.round_trip, now);
                    joining = None;
                }
                match tuner.observe(&self.sample(lanes), now) {
                    Advice::Stay => {}
                    Advice::Grow(number) => {
                        largest = largest.max(number);
                        assert!(joining.is_none(), "one step after the other");
                        joining = Some((number, now + Duration::from_secs(1)));
                    }
                    Advice::Use(number) => lanes = number,
                }
            }
            (lanes, largest)
        }
    }

    fn way(rate: f64, session_rate: f64, millis: f64) -> Way {
        let round_trip = Duration::from_secs_f64(millis / 1000.0);
        Way { rate, session_rate, round_trip, wanted_bytes: 64.0 * MB, usable: 64, ready: 0 }
    }

    #[test]
    fn a_long_way_is_filled_within_ten_seconds() {
        let mut tuner = Tuner::new(7, 2, true);
        let (lanes, largest) =
            way(125.0 * MB, 400.0 * MB, 100.0).run(&mut tuner, 9, Instant::now());
        assert!((6..=7).contains(&lanes), "{lanes}");
        assert!(largest <= STEP);
    }

    #[test]
    fn what_costs_no_login_is_taken_at_once() {
        let mut tuner = Tuner::new(7, 2, true);
        let mut far = way(125.0 * MB, 400.0 * MB, 100.0);
        far.ready = 7;
        assert_eq!(far.run(&mut tuner, 2, Instant::now()), (7, 7));
        // One session that carries all is enough.
        let mut tuner = Tuner::new(7, 2, true);
        let mut slow = way(12.0 * MB, 400.0 * MB, 100.0);
        slow.ready = 7;
        assert_eq!(slow.run(&mut tuner, 60, Instant::now()).0, 1);
    }

    #[test]
    fn a_long_way_that_is_slow_gets_few() {
        let mut tuner = Tuner::new(7, 2, true);
        let (lanes, _) = way(12.0 * MB, 400.0 * MB, 100.0).run(&mut tuner, 60, Instant::now());
        assert_eq!(lanes, 1);
        let mut tuner = Tuner::new(7, 2, true);
        let (lanes, _) = way(45.0 * MB, 400.0 * MB, 100.0).run(&mut tuner, 60, Instant::now());
        assert!((2..=4).contains(&lanes), "{lanes}");
    }

    #[test]
    fn where_a_processor_is_the_bound_sessions_stay_if_they_gain() {
        let mut tuner = Tuner::new(7, 4, true);
        let (lanes, largest) =
            way(5000.0 * MB, 400.0 * MB, 0.1).run(&mut tuner, 30, Instant::now());
        assert_eq!((lanes, largest), (4, 1), "as many as there are processors");
        // Here one is as good as two.
        let mut tuner = Tuner::new(7, 4, true);
        let start = Instant::now();
        let slow = way(400.0 * MB, 400.0 * MB, 0.1);
        assert_eq!(slow.run(&mut tuner, 30, start), (1, 1));
        assert_eq!(tuner.would_try(1, slow.round_trip, start + Duration::from_secs(30)), 0);
    }

    #[test]
    fn who_has_little_on_its_way_gets_no_more_than_one() {
        let mut tuner = Tuner::new(7, 2, true);
        let mut slow = way(125.0 * MB, 400.0 * MB, 100.0);
        slow.wanted_bytes = 1.0 * MB;
        assert_eq!(slow.run(&mut tuner, 60, Instant::now()).0, 1);
        slow.wanted_bytes = 0.1 * MB;
        let mut tuner = Tuner::new(7, 2, true);
        assert_eq!(slow.run(&mut tuner, 60, Instant::now()).0, 0);
    }

    #[test]
    fn what_cannot_use_the_sessions_says_nothing_about_them() {
        let mut tuner = Tuner::new(7, 2, true);
        let mut far = way(125.0 * MB, 400.0 * MB, 100.0);
        far.usable = 1;
        let start = Instant::now();
        let (lanes, _) = far.run(&mut tuner, 20, start);
        assert_eq!(lanes, STEP, "there for the next one, and no more");
        assert_eq!(tuner.would_try(STEP, far.round_trip, start + Duration::from_secs(20)), STEP);
    }

    #[test]
    fn no_session_is_tried_beyond_the_bound() {
        for most in 0..9 {
            let mut tuner = Tuner::new(most, 2, true);
            let fast = way(1250.0 * MB, 400.0 * MB, 100.0);
            let (lanes, _) = fast.run(&mut tuner, 60, Instant::now());
            assert!(lanes <= most, "{lanes} of {most}");
        }
    }

    #[test]
    fn a_server_that_refuses_is_left_in_peace() {
        let mut tuner = Tuner::new(7, 2, true);
        let fast = way(125.0 * MB, 400.0 * MB, 100.0);
        let start = Instant::now();
        let mut asked = Vec::new();
        for look in 0..2000 {
            let now = start + Duration::from_millis(300) * look;
            if let Advice::Grow(_) = tuner.observe(&fast.sample(0), now) {
                asked.push(now - start);
                tuner.joined(0, fast.round_trip, now);
            }
        }
        assert!((2..=4).contains(&asked.len()), "{asked:?}");
    }
}
