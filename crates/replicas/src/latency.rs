//! What one thing takes, smoothed, and forgotten when it was not measured for a while.
//!
//! One number, changed without a lock: of two measures at the same moment one may be lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A new measure counts for one in so many.
const WEIGHT: u64 = 8;

/// A measure older than this says nothing: whoever was slow then is tried again. Trying costs one
/// request in so long.
const MEMORY: Duration = Duration::from_secs(5);

/// A smoothed quantity, never zero.
pub(crate) struct Smoothed {
    began: Instant,
    value: AtomicU64,
    /// When it was measured last, in milliseconds since `began`.
    at_ms: AtomicU64,
}

impl Smoothed {
    pub(crate) fn new() -> Smoothed {
        Smoothed { began: Instant::now(), value: AtomicU64::new(0), at_ms: AtomicU64::new(0) }
    }

    fn ms(&self, now: Instant) -> u64 {
        (now - self.began).as_millis() as u64
    }

    /// What is known; `None` when that is nothing, or too old.
    pub(crate) fn get(&self, now: Instant) -> Option<u64> {
        let value = self.value.load(Ordering::Relaxed);
        let age = self.ms(now).saturating_sub(self.at_ms.load(Ordering::Relaxed));
        (value > 0 && age <= MEMORY.as_millis() as u64).then_some(value)
    }

    /// One more measure.
    pub(crate) fn measured(&self, value: u64, now: Instant) {
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
    async fn it_follows_what_is_measured_and_forgets() {
        let pace = Smoothed::new();
        assert_eq!(pace.get(Instant::now()), None);
        pace.measured(1000, Instant::now());
        assert_eq!(pace.get(Instant::now()), Some(1000));
        for _ in 0..100 {
            pace.measured(8000, Instant::now());
        }
        let high = pace.get(Instant::now()).unwrap();
        assert!((7900..=8100).contains(&high), "{high}");
        for _ in 0..200 {
            pace.measured(10, Instant::now());
        }
        let low = pace.get(Instant::now()).unwrap();
        assert!((5..=30).contains(&low), "{low}");
        tokio::time::advance(MEMORY + Duration::from_millis(1)).await;
        assert_eq!(pace.get(Instant::now()), None);
        pace.measured(0, Instant::now());
        assert_eq!(pace.get(Instant::now()), Some(1), "something was measured");
    }
}
