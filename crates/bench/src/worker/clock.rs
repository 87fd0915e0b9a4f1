//! What is timed, and when it is enough.

use std::time::{Duration, Instant};

use super::job::Until;
use crate::account;
use crate::results::Usage;

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
            Until::Within { operations: wanted, .. } if operations >= wanted.min(records) => true,
            // One operation at least is begun, so that there is a figure.
            Until::Seconds(seconds) | Until::Within { seconds, .. } => {
                operations > 0 && self.seconds() >= seconds
            }
        }
    }
}
