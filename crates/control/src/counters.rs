//! The counters of a mount since it began: what its daemon sends for `sshoal stats`.
//!
//! Differences between two of them are what happened between. Fields may be added; none changes its
//! name, meaning or unit.

use std::collections::BTreeMap;
use std::time::Duration;

use base::metrics::bucket_start;
use serde::{Deserialize, Serialize};

/// The counters of one mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// FUSE requests that were answered, by the names of their opcodes in lower case.
    pub operations: BTreeMap<String, Operation>,
    /// FUSE requests in progress.
    pub in_flight: u64,
    /// Bytes that applications have read through FUSE.
    pub read_bytes: u64,
    /// Bytes that applications have written.
    pub written_bytes: u64,
    /// Hits and misses of the caches in memory.
    pub caches: Caches,
}

/// FUSE requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// Replies with an error.
    pub errors: u64,
    /// The times to the replies.
    pub latency: Latency,
}

/// Answers from memory, and with a request to the layer below: the disk cache, or the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Caches {
    /// Lookups of existing names answered from memory.
    pub lookup_hits: u64,
    /// Lookups of absent names answered from memory.
    pub lookup_absent_hits: u64,
    /// Lookups that were requested.
    pub lookup_misses: u64,
    /// GETATTRs answered from memory.
    pub attribute_hits: u64,
    /// GETATTRs that were requested.
    pub attribute_misses: u64,
    /// Opens without a request to the server.
    pub open_hits: u64,
    /// The opens among them whose content was prefetched.
    pub open_prefetched: u64,
    /// Opens that were requested.
    pub open_misses: u64,
    /// The opens among all whose content the kernel reads directly from the disk cache.
    pub open_passthrough: u64,
    /// Whether the kernel sends no opens at all.
    pub no_open: bool,
    /// READs answered with a prefetched small file.
    pub read_prefetched: u64,
    /// READs answered from readahead.
    pub read_hits: u64,
    /// READs that waited for readahead in flight.
    pub read_waited: u64,
    /// READs for which a request was sent.
    pub read_misses: u64,
}

/// Opens and bytes served from the disk cache, and from the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Opens served from the cache.
    pub hits: u64,
    /// Opens served from the server.
    pub misses: u64,
    /// Bytes read from the cache.
    pub read_here_bytes: u64,
    /// Bytes read from the server.
    pub read_there_bytes: u64,
}

/// Requests to one host, over all its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostCounters {
    /// Requests sent, by their names in SFTP.
    pub requests: BTreeMap<String, u64>,
    /// Bytes of SFTP packets sent, before ssh encrypts or compresses them.
    pub sent_bytes: u64,
    /// Bytes of SFTP packets received.
    pub received_bytes: u64,
    /// Bytes that compression by the helper and here has saved.
    pub sent_saved_bytes: u64,
    /// Bytes that compression by the helper and here has saved.
    pub received_saved_bytes: u64,
    /// The times of requests that neither carry nor return file content.
    pub small_latency: Latency,
}

/// A distribution of times, in the buckets of [`base::metrics::Histogram`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Number of events in each bucket; empty buckets at the end are left out.
    pub counts: Vec<u64>,
    /// The sum of all times, in nanoseconds.
    pub nanos: u64,
}

impl Latency {
    /// Number of events.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// What was recorded since `earlier`.
    pub fn since(&self, earlier: &Latency) -> Latency {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before);
        Latency {
            counts: counts.map(|(now, before)| now.saturating_sub(before)).collect(),
            nanos: self.nanos.saturating_sub(earlier.nanos),
        }
    }

    /// Adds the events of `other`.
    pub fn add(&mut self, other: &Latency) {
        let longest = self.counts.len().max(other.counts.len());
        self.counts.resize(longest, 0);
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*count);
        }
        self.nanos = self.nanos.saturating_add(other.nanos);
    }

    /// The time within which this part of the events was over, from 0 to 1; `None` without events.
    /// Interpolated within a bucket.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let all = self.count();
        if all == 0 {
            return None;
        }
        let mut rank = (part.clamp(0.0, 1.0) * all as f64).max(1.0);
        for (index, count) in self.counts.iter().enumerate() {
            let count = *count as f64;
            if count >= rank {
                let (start, end) = (bucket_start(index), bucket_start(index + 1));
                return Some(start + (end - start).mul_f64(rank / count));
            }
            rank -= count;
        }
        Some(bucket_start(self.counts.len()))
    }

    /// Number of events shorter than `limit`, which has to be a limit of a bucket.
    pub fn shorter(&self, limit: Duration) -> u64 {
        let within = self.counts.iter().enumerate().filter(|(at, _)| bucket_start(at + 1) <= limit);
        within.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::metrics::Histogram;

    fn latency(histogram: &Histogram) -> Latency {
        Latency { counts: histogram.counts(), nanos: histogram.nanos() }
    }

    #[test]
    fn quantiles_are_exact_to_a_quarter() {
        let histogram = Histogram::default();
        for us in 1..=10_000 {
            histogram.record(Duration::from_micros(us));
        }
        let all = latency(&histogram);
        assert_eq!(all.count(), 10_000);
        for (part, us) in [(0.5, 5_000.0), (0.95, 9_500.0), (0.99, 9_900.0)] {
            let found = all.quantile(part).unwrap().as_secs_f64() * 1e6;
            assert!((found - us).abs() < us / 4.0, "{part}: {found}");
        }
        assert_eq!(Latency::default().quantile(0.5), None);
    }

    #[test]
    fn the_difference_of_two_snapshots_is_an_interval() {
        let histogram = Histogram::default();
        (0..1000).for_each(|_| histogram.record(Duration::from_millis(1)));
        let before = latency(&histogram);
        (0..10).for_each(|_| histogram.record(Duration::from_secs(1)));
        let mut interval = latency(&histogram).since(&before);
        assert_eq!((interval.count(), interval.nanos), (10, 10_000_000_000));
        let median = interval.quantile(0.5).unwrap();
        assert!(median > Duration::from_millis(750), "{median:?}");
        interval.add(&before);
        assert_eq!(interval, latency(&histogram));
        assert_eq!(interval.shorter(bucket_start(60)), 1000);
        // A daemon that was started anew has smaller counters.
        assert_eq!(before.since(&latency(&histogram)).count(), 0);
    }

    #[test]
    fn counts_of_another_program_do_no_harm() {
        let hostile = Latency { counts: vec![u64::MAX; 300], nanos: u64::MAX };
        assert_eq!(hostile.count(), u64::MAX);
        assert!(hostile.quantile(0.99).is_some());
        assert!(hostile.shorter(Duration::MAX) > 0);
    }
}
