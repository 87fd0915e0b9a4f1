//! A moving average of a measured quantity, which expires when it is not measured for a while.
//!
//! A single number, changed without a lock: of two measurements at the same moment one may be lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A new measurement has a weight of one in this many.
const WEIGHT: u64 = 8;

/// Age at which a measurement expires, so that a gateway that was slow is tried again. A trial
/// costs one request per this time.
const MAX_AGE: Duration = Duration::from_secs(5);

/// A moving average, never zero.
pub(crate) struct MovingAverage {
    began: Instant,
    value: AtomicU64,
    /// Time of the last measurement, in milliseconds since `began`.
    at_ms: AtomicU64,
}

impl MovingAverage {
    pub(crate) fn new() -> MovingAverage {
        MovingAverage { began: Instant::now(), value: AtomicU64::new(0), at_ms: AtomicU64::new(0) }
    }

    fn ms(&self, now: Instant) -> u64 {
        (now - self.began).as_millis() as u64
    }

    /// The average; `None` without a measurement, or when it has expired.
    pub(crate) fn get(&self, now: Instant) -> Option<u64> {
        let value = self.value.load(Ordering::Relaxed);
        let age = self.ms(now).saturating_sub(self.at_ms.load(Ordering::Relaxed));
        (value > 0 && age <= MAX_AGE.as_millis() as u64).then_some(value)
    }

    /// Adds a measurement.
    pub(crate) fn record(&self, value: u64, now: Instant) {
        let value = value.max(1);
        let new = match self.get(now) {
            Some(old) => old - old / WEIGHT + value.div_ceil(WEIGHT),
            None => value,
        };
        self.value.store(new, Ordering::Relaxed);
        self.at_ms.store(self.ms(now), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_average_follows_samples_and_expires() {
        let average = MovingAverage::new();
        assert_eq!(average.get(Instant::now()), None);
        average.record(1000, Instant::now());
        assert_eq!(average.get(Instant::now()), Some(1000));
        for _ in 0..100 {
            average.record(8000, Instant::now());
        }
        let high = average.get(Instant::now()).unwrap();
        assert!((7900..=8100).contains(&high), "{high}");
        for _ in 0..200 {
            average.record(10, Instant::now());
        }
        let low = average.get(Instant::now()).unwrap();
        assert!((5..=30).contains(&low), "{low}");
        tokio::time::advance(MAX_AGE + Duration::from_millis(1)).await;
        assert_eq!(average.get(Instant::now()), None);
        average.record(0, Instant::now());
        assert_eq!(average.get(Instant::now()), Some(1), "something was measured");
    }
}
