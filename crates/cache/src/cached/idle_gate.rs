//! Delays writes to the store until reads pause, if they can wait.
//!
//! A reader of many small files keeps both processors of a small machine busy, and writing a file
//! takes as long as reading it. So the writer waits until nothing was read for a moment, too much
//! is queued, a job has waited for too long, or a caller waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, PoisonError};
use std::time::{Duration, Instant};

use base::Mutex;

/// Time without a read after which the gate opens.
const IDLE_AFTER: Duration = Duration::from_millis(100);

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Longest time that a job waits. After a crash, what was not written is fetched again.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// See the [module](self).
pub(crate) struct IdleGate {
    read_at: Mutex<Instant>,
    /// The number of callers that wait for the writes.
    requests: Mutex<usize>,
    changed: Condvar,
    closed: AtomicBool,
}

/// Keeps the gate open until it is dropped.
pub(crate) struct FlushRequest<'a>(&'a IdleGate);

impl IdleGate {
    pub(crate) fn new() -> IdleGate {
        IdleGate {
            read_at: Mutex::new(Instant::now()),
            requests: Mutex::default(),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Notes a read.
    pub(crate) fn note_read(&self) {
        *self.read_at.lock() = Instant::now();
    }

    /// Opens the gate for a caller that waits for the writes.
    pub(crate) fn flush_now(&self) -> FlushRequest<'_> {
        *self.requests.lock() += 1;
        self.changed.notify_all();
        FlushRequest(self)
    }

    /// Ends all waiting: nothing will be written any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns when a job that was queued at `since` is due; `is_over_limit` returns whether too
    /// much is queued.
    pub(crate) fn wait(&self, since: Instant, is_over_limit: impl Fn() -> bool) {
        let mut requests = self.requests.lock();
        let can_wait = |requests| requests == 0 && !self.is_closed() && since.elapsed() < MAX_WAIT;
        while can_wait(*requests) && !self.is_idle() && !is_over_limit() {
            let waited = self.changed.wait_timeout(requests, CHECK_INTERVAL);
            requests = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_idle(&self) -> bool {
        self.read_at.lock().elapsed() >= IDLE_AFTER
    }
}

impl Drop for FlushRequest<'_> {
    fn drop(&mut self) {
        *self.0.requests.lock() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Notes reads all the time while `meanwhile` runs.
    fn reading<T>(idle_gate: &IdleGate, meanwhile: impl FnOnce() -> T) -> T {
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            idle_gate.note_read();
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    idle_gate.note_read();
                    std::thread::yield_now();
                }
            });
            let result = meanwhile();
            over.store(true, Ordering::Relaxed);
            result
        })
    }

    #[test]
    fn a_wait_ends_when_no_reader_is_active() {
        let idle_gate = IdleGate::new();
        idle_gate.note_read();
        idle_gate.wait(Instant::now(), || false);
        assert!(idle_gate.is_idle());
    }

    #[test]
    fn writes_wait_for_readers_within_a_limit() {
        let idle_gate = IdleGate::new();
        let looks = AtomicU64::new(0);
        let (long_ago, now) = (Instant::now().checked_sub(MAX_WAIT).unwrap(), Instant::now());
        reading(&idle_gate, || {
            idle_gate.wait(long_ago, || panic!("it has waited long enough"));
            idle_gate.wait(now, || looks.fetch_add(1, Ordering::Relaxed) == 3);
            assert!(looks.load(Ordering::Relaxed) > 3, "it was looked at from time to time");
            let request = idle_gate.flush_now();
            idle_gate.wait(Instant::now(), || panic!("somebody waits"));
            drop(request);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| idle_gate.wait(Instant::now(), || false));
                idle_gate.close();
                waiting.join().unwrap();
            });
        });
    }
}
