//! What is timed, when it is enough, and how long single operations took.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::distribution::{distribution, histogram};
use super::job::Until;
use crate::account;
use crate::results::{Latency, Usage};

/// What this process, and those below it, have used so far.
pub(super) fn used() -> Usage {
    account::tree_usage(&[std::process::id()])
}

/// A clock that can stand still.
#[derive(Debug)]
pub(super) struct Clock {
    begin: Instant,
    aside: Duration,
}

impl Clock {
    pub(super) fn start() -> Clock {
        Clock { begin: Instant::now(), aside: Duration::ZERO }
    }

    /// Does what is not to be timed.
    pub(super) fn aside<T>(&mut self, workload: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = workload();
        self.aside += begin.elapsed();
        result
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begin.elapsed().saturating_sub(self.aside).as_secs_f64()
    }

    /// Whether a job that has begun `operations` of `records` records begins no other.
    pub(super) fn is_over(&self, until: Until, operations: u64, records: u64) -> bool {
        match until {
            Until::Pass => operations >= records,
            Until::Operations(wanted) => operations >= wanted.min(records),
            Until::Seconds(seconds) => self.is_after(seconds, operations),
            Until::Within { operations: wanted, seconds } => {
                operations >= wanted.min(records) || self.is_after(seconds, operations)
            }
        }
    }

    /// One operation at least is begun, so that there is a figure.
    fn is_after(&self, seconds: f64, operations: u64) -> bool {
        operations > 0 && self.seconds() >= seconds
    }
}

/// Durations of single operations.
#[derive(Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(super) fn new() -> Latencies {
        Latencies(histogram())
    }

    pub(super) fn add(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn into_latency(self) -> Option<Latency> {
        (!self.0.is_empty()).then(|| distribution(&self.0))
    }
}
