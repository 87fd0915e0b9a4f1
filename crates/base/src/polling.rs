//! Adaptive polling: reading again for some microseconds before a reader sleeps.
//!
//! A program that waits for each answer sends its next request some microseconds after the reply, and
//! a server on a near machine replies as soon. To wake a sleeping thread on another processor costs
//! more than that, and several times as much in a virtual machine.
//!
//! Polling costs the time of a processor, so a reader polls only after several requests in succession
//! that were answered at once and followed each other quickly; a single pause ends that. An operation
//! that waits for a server needs the processors for ssh. And it polls only while no other thread of
//! the machine waits for a processor, which is checked from time to time.

use std::num::NonZero;
use std::time::{Duration, Instant};

/// Requests in succession, each answered at once and soon followed by the next one.
const MIN_STREAK: u32 = 8;

/// How long a check for a free processor is valid.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Whether one reader polls. See the [module](self).
#[derive(Debug)]
pub struct Polling {
    limit: Duration,
    streak: u32,
    checked: Option<Instant>,
    has_processor: bool,
}

impl Polling {
    /// Polls for `limit` at most; never if that is zero.
    pub fn new(limit: Duration) -> Polling {
        Polling { limit, streak: 0, checked: None, has_processor: false }
    }

    /// A request was read and started. `is_answered`: none is in progress any more.
    pub fn note_request(&mut self, is_answered: bool) {
        self.streak = if is_answered { self.streak.saturating_add(1) } else { 0 };
    }

    /// The reader waited for this long, including the time of polling.
    pub fn note_wait(&mut self, waited: Duration) {
        if waited > self.limit * 2 {
            self.streak = 0;
        }
    }

    /// Until when to poll, if at all.
    pub fn deadline(&mut self) -> Option<Instant> {
        if self.limit.is_zero() || self.streak < MIN_STREAK {
            return None;
        }
        let now = Instant::now();
        if self.checked.is_none_or(|checked| now >= checked + CHECK_INTERVAL) {
            self.checked = Some(now);
            self.has_processor = has_free_processor();
        }
        self.has_processor.then(|| now + self.limit)
    }
}

/// Whether a processor is left for the program that waits, beside the threads that are ready to run.
fn has_free_processor() -> bool {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let ready = load.as_deref().and_then(ready_threads);
    ready.is_some_and(|ready| ready < processors)
}

/// The threads that are running or ready to run, from the text of `/proc/loadavg` (proc(5)).
fn ready_threads(loadavg: &str) -> Option<usize> {
    loadavg.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    #[test]
    fn polling_begins_after_a_streak_and_ends_with_a_pause() {
        let mut polling = Polling::new(LIMIT);
        (polling.checked, polling.has_processor) =
            (Some(Instant::now() + Duration::from_secs(1000)), true);
        for _ in 0..MIN_STREAK {
            assert_eq!(polling.deadline(), None);
            polling.note_wait(LIMIT * 2);
            polling.note_request(true);
        }
        assert!(polling.deadline().is_some());
        polling.note_wait(LIMIT * 3);
        assert_eq!(polling.deadline(), None);
        polling.streak = MIN_STREAK;
        polling.note_request(false);
        assert_eq!(polling.deadline(), None);
        (polling.streak, polling.has_processor) = (MIN_STREAK, false);
        assert_eq!(polling.deadline(), None);
        (polling.limit, polling.has_processor) = (Duration::ZERO, true);
        assert_eq!(polling.deadline(), None);
    }

    #[test]
    fn the_kernel_tells_the_threads_that_are_ready() {
        assert_eq!(ready_threads("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for text in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 x/80 1"] {
            assert_eq!(ready_threads(text), None, "{text}");
        }
        let own = std::fs::read_to_string("/proc/loadavg").unwrap();
        assert!(ready_threads(&own).is_some_and(|ready| ready > 0), "{own}");
    }
}
