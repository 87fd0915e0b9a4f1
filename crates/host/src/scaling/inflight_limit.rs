//! The limit of content bytes in flight over all sessions: the smallest one with full throughput.
//! Pure; decides by measured throughput.
//!
//! Bytes beyond the capacity of the link wait in a queue somewhere on it, and every request sent
//! meanwhile, for instance of an `ls`, waits behind them: for a second on a link of 1 MB/s with the
//! usual windows. A queue and a slow server look equal from the client. So half the limit is tried:
//! if the throughput stays, the other half was a queue. From time to time a higher limit is tried
//! as well, since the link may have become faster.

use std::time::{Duration, Instant};

use super::tuner::Sample;

/// Delay beyond the round trip that is acceptable.
const SLACK: Duration = Duration::from_millis(4);

/// Acceptable delay as a fraction of a long round trip.
const SLACK_PART: u32 = 8;

/// Limits are multiples of this, the request size of most kernels, so that no part of a limit stays
/// unused. A larger request is sent alone.
const REQUEST_BYTES: u64 = 128 << 10;

/// Fraction of the throughput that has to remain after the limit was halved. Throughput varies by a
/// few percent between measurements.
const SAME_RATE_PART: f64 = 0.95;

/// Fraction of the capacity that is in use when the capacity limits throughput, not the caller.
const HALF_FULL: f64 = 0.5;

/// Factor by which the best rate decays between measurements: a link may become slower.
const BEST_RATE_DECAY: f64 = 0.99;

/// Factor by which throughput has to rise with a higher limit.
const REQUIRED_GAIN: f64 = 1.05;

/// Shortest measurement of throughput, in time and in multiples of the capacity.
const MEASUREMENT_MIN: Duration = Duration::from_millis(300);
const MEASUREMENT_CAPACITIES: f64 = 8.0;

/// Time to the next trial after a failed one. Doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Maximum of that time.
const LAST_PAUSE: Duration = Duration::from_secs(80);

/// Time without demand after which a limit expires: the link may be a different one.
const EXPIRY: Duration = Duration::from_secs(30);

/// The state of the decision. See the [module](self).
#[derive(Default)]
pub(crate) struct InflightLimit {
    limit_bytes: Option<u64>,
    trial: Option<Trial>,
    measurement: Measurement,
    /// The best measured throughput, with decay.
    best_rate: f64,
    decrease: Backoff,
    increase: Backoff,
    /// The last time that demand exceeded the capacity.
    full_at: Option<Instant>,
}

/// When the next trial is allowed.
#[derive(Clone, Copy, Default)]
struct Backoff {
    not_before: Option<Instant>,
    pause: Option<Duration>,
}

impl Backoff {
    fn is_allowed(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    fn failed(&mut self, now: Instant) {
        let pause = self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LAST_PAUSE));
        self.pause = Some(pause);
        self.not_before = Some(now + pause);
    }

    fn succeeded(&mut self) {
        *self = Backoff::default();
    }
}

/// A trial: whether half the limit keeps the throughput, or a higher limit raises it.
#[derive(Clone, Copy)]
struct Trial {
    before: Option<u64>,
    /// Throughput required of a higher limit; `None` for a lower one.
    required_rate: Option<f64>,
    /// The limit is new, and more bytes than it allows were in flight when the measurement began.
    is_settling: bool,
}

/// What was transferred while demand exceeded the capacity.
#[derive(Clone, Copy, Default)]
struct Measurement {
    bytes: u64,
    byte_seconds: f64,
    seconds: f64,
}

impl Measurement {
    fn is_long_enough(&self, room: f64) -> bool {
        self.seconds >= MEASUREMENT_MIN.as_secs_f64()
            && self.bytes as f64 >= MEASUREMENT_CAPACITIES * room
    }

    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Mean time of a byte in flight.
    fn delay(&self) -> f64 {
        self.byte_seconds / self.bytes as f64
    }
}

impl InflightLimit {
    /// Bytes that may be in flight; `None` if only the windows limit them.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Removes the limit for now.
    pub(crate) fn remove_limit(&mut self) {
        *self = InflightLimit {
            decrease: self.decrease,
            increase: self.increase,
            ..InflightLimit::default()
        };
    }

    /// Has to be called after each sample.
    pub(crate) fn observe(&mut self, sample: &Sample, now: Instant) {
        // A request larger than the free part of the capacity waits as well.
        let is_full =
            sample.throughput.waited && sample.inflight_bytes() >= HALF_FULL * sample.capacity();
        if !is_full {
            // A limit that is not reached costs nothing.
            self.measurement = Measurement::default();
            if self.full_at.is_some_and(|at| now >= at + EXPIRY) {
                self.remove_limit();
            }
            return;
        }
        self.full_at = Some(now);
        if let Some(trial) = &mut self.trial
            && std::mem::take(&mut trial.is_settling)
        {
            return;
        }
        self.measurement.bytes += sample.throughput.bytes;
        self.measurement.byte_seconds += sample.throughput.byte_seconds;
        self.measurement.seconds += sample.elapsed.as_secs_f64();
        if !self.measurement.is_long_enough(sample.capacity()) {
            return;
        }
        let measurement = std::mem::take(&mut self.measurement);
        // Several losses too small to detect add up to one that can be detected.
        self.best_rate = measurement.rate().max(self.best_rate * BEST_RATE_DECAY);
        if let Some(Trial { before, required_rate, .. }) = self.trial.take() {
            let least = required_rate.unwrap_or(SAME_RATE_PART * self.best_rate);
            let backoff =
                if required_rate.is_some() { &mut self.increase } else { &mut self.decrease };
            if measurement.rate() < least {
                self.limit_bytes = before;
                backoff.failed(now);
                return;
            }
            backoff.succeeded();
        }
        let next = self
            .decreased(sample, &measurement, now)
            .or_else(|| self.increased(sample, &measurement, now));
        if let Some((limit_bytes, required_rate)) = next {
            self.trial = Some(Trial { before: self.limit_bytes, required_rate, is_settling: true });
            self.limit_bytes = limit_bytes;
        }
    }

    /// Half the limit, if the bytes in flight take long.
    fn decreased(
        &self,
        sample: &Sample,
        measurement: &Measurement,
        now: Instant,
    ) -> Option<Candidate> {
        let slack = SLACK.max(sample.round_trip / SLACK_PART);
        let beyond = measurement.delay() - sample.round_trip.as_secs_f64();
        if beyond <= slack.as_secs_f64() * 1.25 || !self.decrease.is_allowed(now) {
            return None;
        }
        // At least the bytes in flight over the round trip and the slack: a long link has to be
        // full.
        let least = (measurement.rate() * (sample.round_trip + slack).as_secs_f64()) as u64;
        let half = (sample.capacity() / 2.0) as u64;
        let limit_bytes = half.max(least).next_multiple_of(REQUEST_BYTES);
        (limit_bytes as f64 <= sample.capacity() * 0.9).then_some((Some(limit_bytes), None))
    }

    /// One and a half times the limit, if there is one.
    fn increased(
        &self,
        sample: &Sample,
        measurement: &Measurement,
        now: Instant,
    ) -> Option<Candidate> {
        let limit_bytes = self.limit_bytes.filter(|_| self.increase.is_allowed(now))?;
        let more = (limit_bytes + limit_bytes / 2).next_multiple_of(REQUEST_BYTES);
        Some((
            Some(more).filter(|more| *more < sample.windows_bytes()),
            Some(REQUIRED_GAIN * measurement.rate()),
        ))
    }
}

/// The limit to try, and the throughput it requires if it is higher.
type Candidate = (Option<u64>, Option<f64>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_control::{Slots, Throughput};

    const MB: f64 = 1e6;

    /// A link with a queue before it, and a server that serves several requests at once.
    struct Link {
        rate: f64,
        round_trip: Duration,
        /// Time of a request at the server.
        service: Duration,
        sessions: usize,
    }

    impl Link {
        fn sample(&self, limit_bytes: Option<u64>) -> Sample {
            let elapsed = Duration::from_millis(100);
            let window_bytes = 1 << 20;
            let room = (self.sessions as u64 * window_bytes).min(limit_bytes.unwrap_or(u64::MAX));
            let base = (self.round_trip + self.service).as_secs_f64();
            // A single request also takes its time on the wire.
            let requests = (room / REQUEST_BYTES).max(1) as f64;
            let on_the_wire = REQUEST_BYTES as f64 / self.rate;
            let room = (requests * REQUEST_BYTES as f64).min(room as f64);
            let rate = (room / (base + on_the_wire)).min(self.rate);
            let bytes = (rate * elapsed.as_secs_f64()) as u64;
            let byte_seconds = room * elapsed.as_secs_f64();
            let throughput =
                Throughput { bytes, byte_seconds, slots: Slots::default(), waited: true };
            let round_trip = self.round_trip;
            Sample {
                throughput,
                elapsed,
                sessions: self.sessions,
                window_bytes,
                limit_bytes,
                round_trip,
                ready: 0,
            }
        }

        /// Samples for this time; returns the mean throughput, and the bytes in flight at the end.
        fn run(&self, limit: &mut InflightLimit, seconds: u32, start: Instant) -> (f64, f64) {
            let (mut bytes, mut inflight_bytes) = (0, 0.0);
            for sample_number in 0..seconds * 10 {
                let sample = self.sample(limit.limit());
                bytes += sample.throughput.bytes;
                inflight_bytes = sample.inflight_bytes();
                limit.observe(&sample, start + Duration::from_millis(100) * sample_number);
            }
            (bytes as f64 / f64::from(seconds), inflight_bytes)
        }
    }

    fn link(rate: f64, round_trip_us: u64, service_us: u64, sessions: usize) -> Link {
        let round_trip = Duration::from_micros(round_trip_us);
        Link { rate, round_trip, service: Duration::from_micros(service_us), sessions }
    }

    #[test]
    fn a_queue_is_drained_without_loss_of_throughput() {
        for (rate, sessions) in [(125.0 * MB, 3), (40.0 * MB, 1), (40.0 * MB, 4)] {
            let (throughput, inflight_bytes) =
                link(rate, 500, 0, sessions).run(&mut InflightLimit::default(), 20, Instant::now());
            assert!(throughput > 0.99 * rate, "{rate}: {throughput}");
            assert!(inflight_bytes / rate < 0.0066, "{rate}: {inflight_bytes}");
        }
        // A single request would leave the link idle between two requests.
        let (throughput, inflight_bytes) =
            link(MB, 20_000, 0, 4).run(&mut InflightLimit::default(), 200, Instant::now());
        assert!(
            throughput > 0.99 * MB && inflight_bytes <= 2.0 * REQUEST_BYTES as f64,
            "{throughput} {inflight_bytes}"
        );
    }

    #[test]
    fn slow_links_and_servers_get_no_limit() {
        // A link with a long round trip, and disks that need several requests at once.
        for link in [link(125.0 * MB, 100_000, 0, 8), link(125.0 * MB, 500, 20_000, 2)] {
            let mut limit = InflightLimit::default();
            let (throughput, _) = link.run(&mut limit, 120, Instant::now());
            let alone = link.sample(None).rate();
            assert!(throughput > 0.97 * alone, "{throughput} of {alone}");
        }
    }

    #[test]
    fn a_limit_expires_without_demand() {
        let mut limit = InflightLimit::default();
        let start = Instant::now();
        link(40.0 * MB, 500, 0, 2).run(&mut limit, 20, start);
        assert!(limit.limit().is_some());
        let mut idle = link(40.0 * MB, 500, 0, 2).sample(limit.limit());
        idle.throughput = Throughput::default();
        limit.observe(&idle, start + Duration::from_secs(49));
        assert!(limit.limit().is_some());
        limit.observe(&idle, start + Duration::from_secs(51));
        assert_eq!(limit.limit(), None);
    }

    #[test]
    fn the_limit_rises_when_the_link_becomes_faster() {
        for (slow, fast, round_trip_us) in
            [(10.0, 80.0, 100_000), (2.0, 12.5, 20_000), (2.0, 37.0, 20_000), (5.0, 125.0, 500)]
        {
            let mut limit = InflightLimit::default();
            let start = Instant::now();
            link(slow * MB, round_trip_us, 0, 8).run(&mut limit, 60, start);
            assert!(limit.limit().is_some());
            let later = start + Duration::from_secs(60);
            let fast = link(fast * MB, round_trip_us, 0, 8);
            fast.run(&mut limit, 100, later);
            let (throughput, _) = fast.run(&mut limit, 20, later + Duration::from_secs(100));
            assert!(throughput > 0.9 * fast.sample(None).rate(), "{slow}: {throughput}");
        }
    }

    #[test]
    fn without_a_queue_there_is_no_limit() {
        let mut limit = InflightLimit::default();
        // 400 MB/s with a window: 2.6 ms.
        link(400.0 * MB, 100, 0, 1).run(&mut limit, 60, Instant::now());
        assert_eq!(limit.limit(), None);
    }
}
