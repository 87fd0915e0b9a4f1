//! Durations of single operations, and what results keep of them.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::results::Latency;

/// Buckets at most: enough for a chart, few enough for a file with thousands of samples.
const MAX_BUCKETS: u32 = 200;

/// Buckets of a doubling at most; each is then 4 % wide.
const MAX_BUCKETS_OF_DOUBLING: u32 = 18;

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
        buckets: buckets(histogram),
    }
}

/// The curve, in buckets of equal width on a logarithmic scale.
fn buckets(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let least = histogram.min().max(1) as f64;
    let doublings = (histogram.max().max(1) as f64 / least).log2().ceil().max(1.0);
    // One more than fits may be needed for the ends.
    let of_doubling = ((MAX_BUCKETS - 2) as f64 / doublings).floor();
    let of_doubling = of_doubling.clamp(1.0, MAX_BUCKETS_OF_DOUBLING.into());
    let mut buckets = BTreeMap::new();
    for value in histogram.iter_recorded() {
        let height = (value.value_iterated_to().max(1) as f64 / least).log2() * of_doubling;
        *buckets.entry(height.ceil().max(0.0) as u32).or_insert(0) += value.count_at_value();
    }
    let upper_us = |index: u32| least * (f64::from(index) / of_doubling).exp2() / NS_OF_US;
    buckets.into_iter().map(|(index, count)| (upper_us(index), count)).collect()
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

    #[test]
    fn the_curve_has_all_operations_in_few_rising_buckets() {
        for (least, greatest) in [(1, 1), (900, 1100), (1000, 2_000_000), (1, 100_000_000_000_u64)]
        {
            let ratio = (greatest as f64 / least as f64).powf(1.0 / 5000.0);
            let values = (0..=5000).map(|step| (least as f64 * ratio.powi(step)).round() as u64);
            let latency = of(values);
            let buckets = &latency.buckets;
            assert!(buckets.len() <= MAX_BUCKETS as usize, "{} buckets", buckets.len());
            assert_eq!(buckets.iter().map(|bucket| bucket.1).sum::<u64>(), 5001);
            assert!(buckets.windows(2).all(|two| two[0].0 < two[1].0));
            let last = buckets.last().unwrap().0;
            assert!(last >= greatest as f64 * 0.999 / 1e3, "{last} is below {greatest} ns");
        }
    }

    #[test]
    fn a_bucket_has_what_is_at_most_its_upper_end() {
        let latency = of([1_000, 10_000, 10_000, 100_000]);
        let counts: Vec<u64> = latency.buckets.iter().map(|bucket| bucket.1).collect();
        assert_eq!(counts, [1, 2, 1]);
        for ((upper, _), value) in latency.buckets.iter().zip([1.0, 10.0, 100.0]) {
            assert!((value * 0.999..value * 1.05).contains(upper), "{upper} for {value}");
        }
    }
}
