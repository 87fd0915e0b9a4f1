//! Adaptive polling: reading again for some microseconds before a reader sleeps.
//!
//! A program that waits for each answer sends its next request some microseconds after the reply,
//! and a server on a near machine replies as soon. To wake a sleeping thread on another processor
//! costs more than that, and several times as much in a virtual machine.
//!
//! Polling costs the time of a processor. So a reader polls only after several short waits in
//! succession; a single long one ends that. It polls only if the other threads that are ready leave
//! a processor, which is checked from time to time, and between two attempts it yields the
//! processor to them. If that takes long, or several polls in succession were in vain, polling
//! pauses.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Short waits in succession.
const MIN_STREAK: u32 = 8;

/// The factor of the limit up to which a wait is short: a wait without polling includes the time to
/// wake both sides.
const SHORT: u32 = 3;

/// Vain polls in succession after which polling pauses.
const MAX_VAIN: u32 = 4;

/// Longest time that a yield takes if only threads use the processor that poll as well.
const MAX_YIELD: Duration = Duration::from_micros(20);

/// How long polling pauses, and how long a check for a free processor is valid.
const PAUSE: Duration = Duration::from_millis(20);

/// Threads of this process that poll now.
static POLLERS: AtomicUsize = AtomicUsize::new(0);

/// Whether one reader polls. See the [module](self).
#[derive(Debug)]
pub struct Polling {
    limit: Duration,
    streak: u32,
    vain: u32,
    checked: Option<Instant>,
    has_processor: bool,
}

impl Polling {
    /// Polls for `limit` at most; never if that is zero.
    pub fn new(limit: Duration) -> Polling {
        Polling { limit, streak: 0, vain: 0, checked: None, has_processor: false }
    }

    /// The reader waited for this long, including the time of polling.
    pub fn note_wait(&mut self, waited: Duration) {
        self.streak = if waited > self.limit * SHORT { 0 } else { self.streak.saturating_add(1) };
    }

    /// The reader did not wait: there is always something to do.
    pub fn note_no_wait(&mut self) {
        self.streak = 0;
    }

    /// Whether the last waits were short, so that it polls while a processor is free.
    pub fn is_worthwhile(&self) -> bool {
        !self.limit.is_zero() && self.streak >= MIN_STREAK
    }

    /// Whether it polls now.
    pub fn is_active(&mut self) -> bool {
        if !self.is_worthwhile() {
            return false;
        }
        let now = Instant::now();
        if self.checked.is_none_or(|checked| now >= checked + PAUSE) {
            self.checked = Some(now);
            self.has_processor = has_free_processor();
        }
        self.has_processor
    }

    /// Repeats `attempt` until it returns something, if it polls now. `None` if that was in vain.
    pub fn poll<T>(&mut self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.is_active() {
            return None;
        }
        POLLERS.fetch_add(1, Ordering::Relaxed);
        let result = self.repeat(attempt);
        POLLERS.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn repeat<T>(&mut self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let began = Instant::now();
        let mut before = began;
        loop {
            if let Some(result) = attempt() {
                self.vain = 0;
                return Some(result);
            }
            let now = Instant::now();
            let is_over = now - began >= self.limit;
            self.vain += u32::from(is_over);
            if now - before > MAX_YIELD || self.vain >= MAX_VAIN {
                self.vain = 0;
                self.checked = Some(now);
                self.has_processor = false;
                return None;
            }
            if is_over {
                return None;
            }
            before = now;
            std::thread::yield_now();
        }
    }
}

/// Whether a processor is left, beside the other threads that are ready to run.
fn has_free_processor() -> bool {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let ready = load.as_deref().and_then(ready_threads);
    // This thread, and those that make way for others.
    let polling = 1 + POLLERS.load(Ordering::Relaxed);
    ready.is_some_and(|ready| ready.saturating_sub(polling) < processors)
}

/// The threads that are running or ready to run, from the text of `/proc/loadavg` (proc(5)).
fn ready_threads(loadavg: &str) -> Option<usize> {
    loadavg.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(5);

    fn active() -> Polling {
        let mut polling = Polling::new(LIMIT);
        let later = Instant::now() + Duration::from_secs(1000);
        (polling.checked, polling.has_processor) = (Some(later), true);
        for _ in 0..MIN_STREAK {
            assert!(!polling.is_active());
            polling.note_wait(LIMIT * SHORT);
        }
        assert!(polling.is_active());
        polling
    }

    #[test]
    fn polling_begins_after_short_waits_and_ends_with_another_one() {
        let mut polling = active();
        polling.note_wait(LIMIT * (SHORT + 1));
        assert!(!polling.is_active());
        let mut flowing = active();
        flowing.note_no_wait();
        assert!(!flowing.is_active());
        let mut never = active();
        never.limit = Duration::ZERO;
        assert_eq!(never.poll(|| Some(())), None);
    }

    #[test]
    fn an_attempt_is_repeated_for_a_limited_time() {
        let mut attempts = 0;
        let mut third = || {
            attempts += 1;
            (attempts >= 3).then_some("result")
        };
        // A busy machine ends it earlier.
        let result = (0..3).find_map(|_| active().poll(&mut third));
        assert_eq!(result, Some("result"));
        let mut polling = active();
        for _ in 0..MAX_VAIN {
            assert_eq!(polling.poll(|| None::<()>), None);
        }
        assert!(!polling.has_processor);
    }

    #[test]
    fn a_processor_that_is_needed_ends_it_for_a_while() {
        let mut polling = active();
        let mut attempts = 0;
        let result = polling.poll(|| {
            attempts += 1;
            // As if another thread had run meanwhile.
            std::thread::sleep(MAX_YIELD * 2);
            None::<()>
        });
        assert_eq!((result, attempts), (None, 1));
        assert!(!polling.is_active());
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
