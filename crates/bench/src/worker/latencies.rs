//! Durations of single operations, and what results keep of them.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::results::Latency;

const NS_OF_US: f64 = 1e3;

/// An hour, the longest duration that is kept.
const MAX_NS: u64 = 3_600_000_000_000;

/// Durations of single operations in nanoseconds, right to three digits.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, MAX_NS, 3).expect("an hour in three digits"))
    }

    pub(crate) fn add(&mut self, took: Duration) {
        self.add_many(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), 1);
    }

    /// Adds a number of operations that took this number of nanoseconds each.
    pub(crate) fn add_many(&mut self, ns: u64, operations: u64) {
        self.0.saturating_record_n(ns, operations);
    }

    /// `None` if nothing was added.
    pub(crate) fn into_latency(self) -> Option<Latency> {
        (!self.0.is_empty()).then(|| distribution(&self.0))
    }
}

/// What a histogram of nanoseconds says.
fn distribution(histogram: &Histogram<u64>) -> Latency {
    let us = |ns: u64| ns as f64 / NS_OF_US;
    let at = |quantile: f64| us(histogram.value_at_quantile(quantile));
    Latency {
        count: histogram.len(),
        min_us: us(histogram.min()),
        mean_us: histogram.mean() / NS_OF_US,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: us(histogram.max()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Latency {
        let mut all = Latencies::new();
        values.into_iter().for_each(|ns| all.add_many(ns, 1));
        all.into_latency().unwrap()
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.001, "{found} instead of {expected}");
    }

    #[test]
    fn quantiles_of_a_known_sample() {
        let latency = of((1..=1000).map(|us| us * 1000));
        assert_eq!(latency.count, 1000);
        near(latency.min_us, 1.0);
        near(latency.mean_us, 500.5);
        near(latency.p50_us, 500.0);
        near(latency.p90_us, 900.0);
        near(latency.p99_us, 990.0);
        near(latency.p999_us, 999.0);
        near(latency.max_us, 1000.0);
    }
}
