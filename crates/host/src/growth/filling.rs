//! How much content may be on its way over all sessions: as little as carries all that can be
//! carried. Pure, by what was carried.
//!
//! What is beyond that waits in a queue somewhere on the way, and whatever is asked meanwhile, an
//! `ls`, waits behind it: for a second, on a line of 1 MB/s with the usual windows. A queue and a
//! server that takes its time look the same from here. So it is tried: half as much is let on its
//! way, and if as much is carried, it was queue. From time to time it is tried with more, too: a
//! link may have become faster.

use std::time::{Duration, Instant};

use super::tuner::Sample;

/// Content that takes no longer than this beyond the round trip keeps nobody waiting.
const SLACK: Duration = Duration::from_millis(4);

/// Nor what takes no more than this part of a long round trip.
const SLACK_PART: u32 = 8;

/// Bounds are multiples of this, a request of most kernels: what is left of a bound fills nothing.
/// What is larger goes alone.
const REQUEST_BYTES: u64 = 128 << 10;

/// The part of the rate that has to be left with half as much on its way. What is carried varies
/// by a few percent from one stretch to the next.
const SAME: f64 = 0.95;

/// The part of the room that is taken when its size is what bounds the rate, and not who asks.
const HALF_FULL: f64 = 0.5;

/// What is kept of the best rate from one stretch to the next: a link may become slower.
const FORGETS: f64 = 0.99;

/// By what more has to be carried with more on its way.
const MORE: f64 = 1.05;

/// Least time of a stretch over which the rate is taken, in time and in fillings of the room.
const STRETCH: Duration = Duration::from_millis(300);
const STRETCH_ROOMS: f64 = 8.0;

/// Time to the next attempt when one has cost something. Doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// The longest.
const LAST_PAUSE: Duration = Duration::from_secs(80);

/// What a bound counts for when nothing has asked for more for so long: the link may be another.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// The state of the decision. See the [module](self).
#[derive(Default)]
pub(crate) struct Filling {
    limit_bytes: Option<u64>,
    trial: Option<Trial>,
    stretch: Stretch,
    /// What was carried at best, forgotten little by little.
    best_rate: f64,
    fewer: Attempts,
    more: Attempts,
    /// When there was more to carry than there was room for.
    full_at: Option<Instant>,
}

/// Attempts that are not to be made all the time.
#[derive(Clone, Copy, Default)]
struct Attempts {
    not_before: Option<Instant>,
    pause: Option<Duration>,
}

impl Attempts {
    fn may(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    fn failed(&mut self, now: Instant) {
        let pause = self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LAST_PAUSE));
        self.pause = Some(pause);
        self.not_before = Some(now + pause);
    }

    fn succeeded(&mut self) {
        *self = Attempts::default();
    }
}

/// A look whether half as much carries as much, or more carries more.
#[derive(Clone, Copy)]
struct Trial {
    before: Option<u64>,
    /// What has to be carried for more; `None` for less.
    more_than: Option<f64>,
    /// The bound was new when the stretch began, and what was on its way was more.
    settles: bool,
}

/// What was carried while there was more than there was room for.
#[derive(Clone, Copy, Default)]
struct Stretch {
    bytes: u64,
    byte_seconds: f64,
    seconds: f64,
}

impl Stretch {
    fn is_long_enough(&self, room: f64) -> bool {
        self.seconds >= STRETCH.as_secs_f64() && self.bytes as f64 >= STRETCH_ROOMS * room
    }

    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// What each byte took.
    fn delay(&self) -> f64 {
        self.byte_seconds / self.bytes as f64
    }
}

impl Filling {
    /// Bytes that may be on their way; `None` for what the sessions have.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// There is no bound for now.
    pub(crate) fn lift(&mut self) {
        *self = Filling { fewer: self.fewer, more: self.more, ..Filling::default() };
    }

    /// To be called after each look.
    pub(crate) fn observe(&mut self, sample: &Sample, now: Instant) {
        // What does not fit into what is left of the room waits as well.
        let is_full = sample.carried.waited && sample.under_way() >= HALF_FULL * sample.room();
        if !is_full {
            // A bound that is not reached costs nothing.
            self.stretch = Stretch::default();
            if self.full_at.is_some_and(|at| now >= at + FORGOTTEN) {
                self.lift();
            }
            return;
        }
        self.full_at = Some(now);
        if let Some(trial) = &mut self.trial
            && std::mem::take(&mut trial.settles)
        {
            return;
        }
        self.stretch.bytes += sample.carried.bytes;
        self.stretch.byte_seconds += sample.carried.byte_seconds;
        self.stretch.seconds += sample.took.as_secs_f64();
        if !self.stretch.is_long_enough(sample.room()) {
            return;
        }
        let stretch = std::mem::take(&mut self.stretch);
        // Several losses that are too small to see are one that is not.
        self.best_rate = stretch.rate().max(self.best_rate * FORGETS);
        if let Some(Trial { before, more_than, .. }) = self.trial.take() {
            let least = more_than.unwrap_or(SAME * self.best_rate);
            let attempts = if more_than.is_some() { &mut self.more } else { &mut self.fewer };
            if stretch.rate() < least {
                self.limit_bytes = before;
                attempts.failed(now);
                return;
            }
            attempts.succeeded();
        }
        let next = self.less(sample, &stretch, now).or_else(|| self.more(sample, &stretch, now));
        if let Some((limit_bytes, more_than)) = next {
            self.trial = Some(Trial { before: self.limit_bytes, more_than, settles: true });
            self.limit_bytes = limit_bytes;
        }
    }

    /// Half as much, if what is on its way takes long.
    fn less(&self, sample: &Sample, stretch: &Stretch, now: Instant) -> Option<Next> {
        let slack = SLACK.max(sample.round_trip / SLACK_PART);
        let beyond = stretch.delay() - sample.round_trip.as_secs_f64();
        if beyond <= slack.as_secs_f64() * 1.25 || !self.fewer.may(now) {
            return None;
        }
        // No less than what takes that long: a long way has to be full.
        let least = (stretch.rate() * (sample.round_trip + slack).as_secs_f64()) as u64;
        let half = (sample.room() / 2.0) as u64;
        let limit_bytes = half.max(least).next_multiple_of(REQUEST_BYTES);
        (limit_bytes as f64 <= sample.room() * 0.9).then_some((Some(limit_bytes), None))
    }

    /// Half as much again, if there is a bound.
    fn more(&self, sample: &Sample, stretch: &Stretch, now: Instant) -> Option<Next> {
        let limit_bytes = self.limit_bytes.filter(|_| self.more.may(now))?;
        let more = (limit_bytes + limit_bytes / 2).next_multiple_of(REQUEST_BYTES);
        Some((Some(more).filter(|more| *more < sample.windows()), Some(MORE * stretch.rate())))
    }
}

/// The bound to be tried, and what has to be carried with it if it is more.
type Next = (Option<u64>, Option<f64>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Carried, Slots};

    const MB: f64 = 1e6;

    /// A link with a queue before it, and a server that works on so many bytes at once.
    struct Way {
        rate: f64,
        round_trip: Duration,
        /// What a request takes at the server.
        service: Duration,
        lanes: usize,
    }

    impl Way {
        fn sample(&self, limit_bytes: Option<u64>) -> Sample {
            let took = Duration::from_millis(100);
            let window_bytes = 1 << 20;
            let room = (self.lanes as u64 * window_bytes).min(limit_bytes.unwrap_or(u64::MAX));
            let base = (self.round_trip + self.service).as_secs_f64();
            // A request alone takes what it needs on the wire, too.
            let requests = (room / REQUEST_BYTES).max(1) as f64;
            let on_the_wire = REQUEST_BYTES as f64 / self.rate;
            let room = (requests * REQUEST_BYTES as f64).min(room as f64);
            let rate = (room / (base + on_the_wire)).min(self.rate);
            let bytes = (rate * took.as_secs_f64()) as u64;
            let byte_seconds = room * took.as_secs_f64();
            let carried = Carried { bytes, byte_seconds, slots: Slots::default(), waited: true };
            let round_trip = self.round_trip;
            Sample {
                carried,
                took,
                lanes: self.lanes,
                window_bytes,
                limit_bytes,
                round_trip,
                ready: 0,
            }
        }

        /// Looks for so long; the rate in the mean, and what is on its way at the end.
        fn run(&self, filling: &mut Filling, seconds: u32, start: Instant) -> (f64, f64) {
            let (mut bytes, mut under_way) = (0, 0.0);
            for look in 0..seconds * 10 {
                let sample = self.sample(filling.limit());
                bytes += sample.carried.bytes;
                under_way = sample.under_way();
                filling.observe(&sample, start + Duration::from_millis(100) * look);
            }
            (bytes as f64 / f64::from(seconds), under_way)
        }
    }

    fn way(rate: f64, round_trip_us: u64, service_us: u64, lanes: usize) -> Way {
        let round_trip = Duration::from_micros(round_trip_us);
        Way { rate, round_trip, service: Duration::from_micros(service_us), lanes }
    }

    #[test]
    fn a_queue_is_emptied_and_nothing_is_lost() {
        for (rate, lanes) in [(125.0 * MB, 3), (40.0 * MB, 1), (40.0 * MB, 4)] {
            let (carried, under_way) =
                way(rate, 500, 0, lanes).run(&mut Filling::default(), 20, Instant::now());
            assert!(carried > 0.99 * rate, "{rate}: {carried}");
            assert!(under_way / rate < 0.0066, "{rate}: {under_way}");
        }
        // One request alone would leave the line empty between two.
        let (carried, under_way) =
            way(MB, 20_000, 0, 4).run(&mut Filling::default(), 200, Instant::now());
        assert!(
            carried > 0.99 * MB && under_way <= 2.0 * REQUEST_BYTES as f64,
            "{carried} {under_way}"
        );
    }

    #[test]
    fn what_takes_long_by_itself_is_left_alone() {
        // A long way, and disks that need several requests at once.
        for way in [way(125.0 * MB, 100_000, 0, 8), way(125.0 * MB, 500, 20_000, 2)] {
            let mut filling = Filling::default();
            let (carried, _) = way.run(&mut filling, 120, Instant::now());
            let alone = way.sample(None).rate();
            assert!(carried > 0.97 * alone, "{carried} of {alone}");
        }
    }

    #[test]
    fn a_bound_ends_with_what_made_it() {
        let mut filling = Filling::default();
        let start = Instant::now();
        way(40.0 * MB, 500, 0, 2).run(&mut filling, 20, start);
        assert!(filling.limit().is_some());
        let mut idle = way(40.0 * MB, 500, 0, 2).sample(filling.limit());
        idle.carried = Carried::default();
        filling.observe(&idle, start + Duration::from_secs(49));
        assert!(filling.limit().is_some());
        filling.observe(&idle, start + Duration::from_secs(51));
        assert_eq!(filling.limit(), None);
    }

    #[test]
    fn a_link_that_becomes_faster_is_filled_again() {
        for (slow, fast, round_trip_us) in
            [(10.0, 80.0, 100_000), (2.0, 12.5, 20_000), (2.0, 37.0, 20_000), (5.0, 125.0, 500)]
        {
            let mut filling = Filling::default();
            let start = Instant::now();
            way(slow * MB, round_trip_us, 0, 8).run(&mut filling, 60, start);
            assert!(filling.limit().is_some());
            let later = start + Duration::from_secs(60);
            let fast = way(fast * MB, round_trip_us, 0, 8);
            fast.run(&mut filling, 100, later);
            let (carried, _) = fast.run(&mut filling, 20, later + Duration::from_secs(100));
            assert!(carried > 0.9 * fast.sample(None).rate(), "{slow}: {carried}");
        }
    }

    #[test]
    fn where_nothing_waits_there_is_no_bound() {
        let mut filling = Filling::default();
        // 400 MB/s with a window: 2.6 ms.
        way(400.0 * MB, 100, 0, 1).run(&mut filling, 60, Instant::now());
        assert_eq!(filling.limit(), None);
    }
}
