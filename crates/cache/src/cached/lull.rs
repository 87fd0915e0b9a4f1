//! When what was read is written: not while somebody reads, if it can wait.
//!
//! A reader of many small files keeps both processors of a small machine busy, and to write each of
//! them takes as long as to read it. So the writing waits for a lull: until nothing was read for a
//! moment, too much waits or it has waited for too long, or somebody waits for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long nothing must have been read.
const QUIET: Duration = Duration::from_millis(100);

/// Between two looks.
const STEP: Duration = Duration::from_millis(20);

/// The longest that something waits. What is not written is fetched again after a crash.
const LONGEST: Duration = Duration::from_secs(5);

/// See the [module](self).
pub(crate) struct Lull {
    began: Instant,
    /// When something was read last, in milliseconds from the beginning.
    read_at_ms: AtomicU64,
    /// How many wait for what is to be written.
    urged: Mutex<usize>,
    changed: Condvar,
    over: AtomicBool,
}

/// Somebody waits, as long as this lives.
pub(crate) struct Urging<'a>(&'a Lull);

impl Lull {
    pub(crate) fn new() -> Lull {
        Lull {
            began: Instant::now(),
            read_at_ms: AtomicU64::new(0),
            urged: Mutex::default(),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
        }
    }

    fn urged(&self) -> MutexGuard<'_, usize> {
        self.urged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Something was read.
    pub(crate) fn disturb(&self) {
        self.read_at_ms.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// Whoever waits wants it now.
    pub(crate) fn urge(&self) -> Urging<'_> {
        *self.urged() += 1;
        self.changed.notify_all();
        Urging(self)
    }

    /// Nobody wants anything to be written any more.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Returns when what has waited since then is to be written; `is_much` tells whether too much
    /// waits.
    pub(crate) fn wait(&self, since: Instant, is_much: impl Fn() -> bool) {
        let mut urged = self.urged();
        let can_wait = |urged| urged == 0 && !self.is_over() && since.elapsed() < LONGEST;
        while can_wait(*urged) && !self.is_quiet() && !is_much() {
            let waited = self.changed.wait_timeout(urged, STEP);
            urged = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_quiet(&self) -> bool {
        let since = self.elapsed_ms().saturating_sub(self.read_at_ms.load(Ordering::Relaxed));
        u128::from(since) >= QUIET.as_millis()
    }
}

impl Drop for Urging<'_> {
    fn drop(&mut self) {
        *self.0.urged() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As long as this lives somebody reads.
    fn reading<T>(lull: &Lull, meanwhile: impl FnOnce() -> T) -> T {
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            lull.disturb();
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    lull.disturb();
                    std::thread::yield_now();
                }
            });
            let result = meanwhile();
            over.store(true, Ordering::Relaxed);
            result
        })
    }

    #[test]
    fn it_comes_when_nobody_reads() {
        let lull = Lull::new();
        lull.disturb();
        lull.wait(Instant::now(), || false);
        assert!(lull.is_quiet());
    }

    #[test]
    fn who_reads_is_not_disturbed_unless_it_must_be() {
        let lull = Lull::new();
        let looks = AtomicU64::new(0);
        let (long_ago, now) = (Instant::now().checked_sub(LONGEST).unwrap(), Instant::now());
        reading(&lull, || {
            lull.wait(long_ago, || panic!("it has waited long enough"));
            lull.wait(now, || looks.fetch_add(1, Ordering::Relaxed) == 3);
            assert!(looks.load(Ordering::Relaxed) > 3, "it was looked at from time to time");
            let urging = lull.urge();
            lull.wait(Instant::now(), || panic!("somebody waits"));
            drop(urging);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| lull.wait(Instant::now(), || false));
                lull.end();
                waiting.join().unwrap();
            });
        });
    }
}
