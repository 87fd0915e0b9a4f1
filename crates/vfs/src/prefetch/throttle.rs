//! How many files are prefetched at a time.
//!
//! Two signals are used. Answers that take much longer than the fastest show that the link or the
//! server is busy with earlier requests; more requests would only delay others. Files that go
//! unused although the reader has passed them show that the order was predicted wrongly; files that
//! expire before the reader reaches them show that a smaller window is enough.

use std::time::Duration;

use tokio::time::Instant;

/// Files in flight, at most. With a round trip of 100 ms, 640 files a second.
const MAX_FILES: usize = 64;

/// Bytes of files in flight, at most: eight sessions of OpenSSH carry 16 MiB in one round trip; a
/// quarter of it, since other requests need the link meanwhile.
const MAX_BYTES: u64 = 4 << 20;

/// Files at first, before it is known whether they are used.
const FIRST_FILES: usize = 8;

/// An answer may take this much longer than twice the fastest one.
const LATENCY_SLACK: Duration = Duration::from_millis(50);

/// Unused files after which prefetching pauses.
const MAX_MISSES: u32 = 16;

/// The first pause; doubled each time, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(8);

/// See the [module](self).
pub(crate) struct Throttle {
    files: usize,
    bytes: u64,
    /// Files that may be in flight.
    limit: usize,
    /// The latency of the fastest answer, increased a little with every answer so that it follows
    /// the link.
    min_latency: Option<Duration>,
    /// Unused files minus used ones.
    misses: u32,
    pause: Duration,
    paused_until: Option<Instant>,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle {
            files: 0,
            bytes: 0,
            limit: FIRST_FILES,
            min_latency: None,
            misses: 0,
            pause: FIRST_PAUSE,
            paused_until: None,
        }
    }
}

impl Throttle {
    /// How many files ahead of the reader are worth fetching.
    pub(crate) fn window(&self, now: Instant) -> usize {
        if self.paused_until.is_some_and(|until| now < until) { 0 } else { self.limit }
    }

    /// Requests to fetch a file of `bytes`. `false`: not now. Must be followed by
    /// [`Throttle::end`].
    pub(crate) fn begin(&mut self, bytes: u64) -> bool {
        let room = self.files < self.limit && self.bytes + bytes <= MAX_BYTES;
        if room {
            self.files += 1;
            self.bytes += bytes;
        }
        room
    }

    /// The fetch has ended.
    pub(crate) fn end(&mut self, bytes: u64) {
        self.files -= 1;
        self.bytes -= bytes;
    }

    /// A file arrived after `time`.
    pub(crate) fn note_latency(&mut self, time: Duration) {
        let min_latency = self
            .min_latency
            .map_or(time, |min_latency| (min_latency + min_latency / 256).min(time));
        self.min_latency = Some(min_latency);
        if time > min_latency * 2 + LATENCY_SLACK {
            self.limit = (self.limit / 2).max(2);
        } else {
            self.limit = (self.limit + 1).min(MAX_FILES);
        }
    }

    /// A prefetched file was opened.
    pub(crate) fn note_used(&mut self) {
        match self.misses.checked_sub(1) {
            Some(misses) => self.misses = misses,
            None => self.pause = FIRST_PAUSE,
        }
    }

    /// Files expired before their reader reached them.
    pub(crate) fn note_expired(&mut self) {
        self.limit = (self.limit / 2).max(FIRST_FILES.min(self.limit));
    }

    /// The reader has passed a prefetched file without opening it.
    pub(crate) fn note_unused(&mut self, now: Instant) {
        self.misses += 1;
        if self.misses >= MAX_MISSES {
            self.misses = 0;
            self.limit = FIRST_FILES;
            self.paused_until = Some(now + self.pause);
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_grows_while_answers_are_quick_and_shrinks_when_they_are_not() {
        let mut throttle = Throttle::default();
        let now = Instant::now();
        let fast = Duration::from_millis(10);
        for _ in 0..100 {
            throttle.note_latency(fast);
        }
        assert_eq!(throttle.window(now), MAX_FILES);
        for _ in 0..10 {
            throttle.note_latency(fast * 20);
        }
        assert_eq!(throttle.window(now), 2);
        throttle.note_expired();
        assert_eq!(throttle.window(now), 2, "never more for that");
        assert!(throttle.begin(1) && throttle.begin(MAX_BYTES - 1) && !throttle.begin(1));
        throttle.end(1);
        assert!(!throttle.begin(2), "too many bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn it_shrinks_when_files_expire_unread() {
        let mut throttle = Throttle::default();
        let now = Instant::now();
        for _ in 0..100 {
            throttle.note_latency(Duration::from_millis(10));
        }
        throttle.note_expired();
        assert_eq!(throttle.window(now), MAX_FILES / 2);
        for _ in 0..100 {
            throttle.note_expired();
        }
        assert_eq!(throttle.window(now), FIRST_FILES);
    }

    #[tokio::test(start_paused = true)]
    async fn it_pauses_when_files_go_unused() {
        let mut throttle = Throttle::default();
        let now = Instant::now();
        for _ in 0..1000 {
            throttle.note_unused(now);
            throttle.note_used();
        }
        assert!(throttle.window(now) > 0, "half of them are worth it");
        for _ in 0..MAX_MISSES {
            throttle.note_unused(now);
        }
        assert_eq!(throttle.window(now), 0);
        assert!(throttle.window(now + FIRST_PAUSE) > 0);
        for _ in 0..MAX_MISSES {
            throttle.note_unused(now);
        }
        assert_eq!(throttle.window(now + FIRST_PAUSE), 0, "longer the second time");
        assert!(throttle.window(now + FIRST_PAUSE * 2) > 0);
        for _ in 0..10 * MAX_MISSES {
            throttle.note_unused(now);
        }
        assert!(throttle.window(now + MAX_PAUSE) > 0);
    }
}
