//! Counters and latency histograms of fixed size, updated with relaxed atomics.
//!
//! A histogram has four buckets for each power of two from 1 µs to 69 s, and four for the times
//! below. So a quantile is exact to a quarter of its value. Two snapshots of a histogram differ by
//! what was recorded between them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `number`.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Nanoseconds in the unit of the buckets, as a power of two.
const UNIT_BITS: u32 = 8;

/// Buckets for each power of two, as a power of two.
const SUB_BITS: u32 = 2;

const SUBS: u64 = 1 << SUB_BITS;

/// Number of buckets of a [`Histogram`].
pub const BUCKETS: usize = 108;

/// The bucket of a time in nanoseconds. The last one has all longer times, too.
fn bucket(nanos: u64) -> usize {
    let units = nanos >> UNIT_BITS;
    if units < SUBS {
        return units as usize;
    }
    let exponent = units.ilog2();
    let sub = (units >> (exponent - SUB_BITS)) & (SUBS - 1);
    let index = SUBS + u64::from(exponent - SUB_BITS) * SUBS + sub;
    (index as usize).min(BUCKETS - 1)
}

/// The shortest time of a bucket, which is the upper limit of the bucket before it. Beyond the last
/// bucket, its upper limit.
pub fn bucket_start(index: usize) -> Duration {
    let index = index.min(BUCKETS) as u64;
    let units = match index.checked_sub(SUBS) {
        None => index,
        Some(above) => (SUBS + above % SUBS) << (above / SUBS),
    };
    Duration::from_nanos(units << UNIT_BITS)
}

/// A distribution of times.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    nanos: Counter,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [const { Counter::new() }; BUCKETS], nanos: Counter::default() }
    }
}

impl Histogram {
    /// Records one event that took this time.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].add(1);
        self.nanos.add(nanos);
    }

    /// The events in each bucket, without the empty buckets at the end.
    pub fn counts(&self) -> Vec<u64> {
        let used = self.buckets.iter().rposition(|count| count.get() > 0).map_or(0, |at| at + 1);
        self.buckets[..used].iter().map(Counter::get).collect()
    }

    /// The sum of all times, in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.nanos.get()
    }
}

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

/// Notes that this thread has sent a request to a server.
pub fn note_request() {
    REQUESTS.set(REQUESTS.get().wrapping_add(1));
}

/// Number of requests that this thread has sent to servers. The difference over a poll of an
/// operation is what the operation has sent.
pub fn requests_sent() -> u64 {
    REQUESTS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_that_contains_it() {
        for index in 0..BUCKETS - 1 {
            let (start, end) = (bucket_start(index), bucket_start(index + 1));
            assert!(start < end, "{index}");
            let (first, last) = (start.as_nanos() as u64, end.as_nanos() as u64 - 1);
            assert_eq!((bucket(first), bucket(last)), (index, index), "{start:?}");
            if index >= 8 {
                let width = (end - start).as_nanos();
                assert!(width * 4 <= start.as_nanos(), "{start:?}: {width} ns");
            }
        }
        assert_eq!(bucket_start(BUCKETS), Duration::from_nanos((1 << 28) * 256));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_histogram_counts_each_event_once() {
        let histogram = Histogram::default();
        assert_eq!(histogram.counts(), Vec::<u64>::new());
        for micros in [0, 1, 1, 1000, u64::MAX] {
            histogram.record(Duration::from_micros(micros));
        }
        let counts = histogram.counts();
        assert_eq!((counts.iter().sum::<u64>(), counts.len()), (5, BUCKETS));
        assert_eq!(counts[bucket(1000)], 2);
    }

    #[test]
    fn requests_are_those_of_the_thread() {
        let before = requests_sent();
        note_request();
        std::thread::spawn(note_request).join().unwrap();
        assert_eq!(requests_sent() - before, 1);
    }
}
