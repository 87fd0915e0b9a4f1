//! Logins that start before they are needed.
//!
//! On a link with a long round trip one session is bound by ssh's window, and a login takes a dozen
//! round trips. A large file needs several sessions there. They log in beside the first one, or as
//! soon as it is known that they are needed, and not one after another when the first is full.
//!
//! Here they are only started. Which of them carry data, and when, is decided by `host::scaling`.
//! A session that nothing uses ends with the copy.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::context::{Context, length};
use super::{Direction, Engine};
use crate::tar::{BIG_BYTES, Compress, LONG_ROUND_TRIP};

/// Bytes that OpenSSH has in flight in one session, at most.
const WINDOW_BYTES: f64 = 2.0 * 1024.0 * 1024.0;

/// The rate that the sessions are to reach together, in bytes a second: 1 Gbit/s.
const WANTED_RATE: f64 = 125e6;

/// A file of this size is worth logins before the round trip is known: ten seconds of one session
/// at 100 ms.
const LARGE_BYTES: u64 = 192 << 20;

/// A file of this size takes two round trips of ssh's window, and a login takes a dozen.
const SMALL_BYTES: u64 = 4 << 20;

/// A login that takes longer has a long round trip: a dozen of 40 ms. With a short one it takes a
/// quarter of this.
const LONG_LOGIN: Duration = Duration::from_millis(500);

/// Logins in progress with the first one, at most: OpenSSH drops some of more than ten
/// (`MaxStartups`), and other users log in, too.
const LOGINS: usize = 8;

/// Logins that start before the first one has succeeded. They fail where the first one asks for a
/// password: for each failure OpenSSH (9.8 and later) refuses the address for five seconds more,
/// from fifteen on (`PerSourcePenalties`).
const BLIND_LOGINS: usize = 2;

/// How many further sessions a link with this round trip needs.
fn needed(round_trip: Duration) -> usize {
    let product = round_trip.as_secs_f64() * WANTED_RATE;
    match product > WINDOW_BYTES {
        // One more, since the first is for everything but contents.
        true => (product / WINDOW_BYTES).ceil().min(LOGINS as f64) as usize + 1,
        false => 0,
    }
}

impl Context {
    /// Starts the further sessions that this round trip needs.
    pub(super) fn start_sessions_for(&self, round_trip: Duration) {
        self.start_sessions(needed(round_trip));
    }

    /// Starts further sessions up to this number, including those that were started before.
    fn start_sessions(&self, number: usize) {
        if self.request.remote.len() != 1 {
            return;
        }
        let number = number.min(self.request.logins.max_sessions.min(LOGINS).saturating_sub(1));
        let before = self.sessions_started.fetch_max(number, Ordering::Relaxed);
        if number > before && !self.request.logins.password_stdin {
            self.connector.start_sessions(before..number);
        }
    }

    /// Waits for `work`, which begins with the first login. If a large file is pushed and the login
    /// takes long (`logged_in` is not ready soon), further sessions start meanwhile.
    pub(super) async fn with_sessions_ahead<T>(
        &self,
        work: impl Future<Output = T>,
        logged_in: impl Future<Output = ()>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        if self.has_large_file() {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = logged_in => {}
                () = tokio::time::sleep(LONG_LOGIN) => self.start_sessions(BLIND_LOGINS),
            }
        }
        work.await
    }

    /// Whether the copy is the push of one large file that several sessions may carry.
    fn has_large_file(&self) -> bool {
        let [only] = &self.request.local[..] else { return false };
        self.request.direction == Direction::Push
            && self.may_use_sessions()
            && length(&only.path()) >= LARGE_BYTES
    }

    /// Whether several sessions copy a file of that length faster than one stream does.
    pub(super) fn prefers_sessions(&self, bytes: u64, round_trip: Duration) -> bool {
        self.may_use_sessions() && bytes > BIG_BYTES && round_trip > LONG_ROUND_TRIP
    }

    /// Whether the connected session copies a file of that length before a stream has logged in.
    /// With a short round trip a login is fast, and a stream keeps the file's time exactly.
    pub(super) fn prefers_session(&self, bytes: u64, round_trip: Duration) -> bool {
        self.may_use_sessions() && bytes <= SMALL_BYTES && round_trip > LONG_ROUND_TRIP
    }

    /// Whether nothing is asked for that only streams can do.
    fn may_use_sessions(&self) -> bool {
        let is_compressed = matches!(self.request.compress, Compress::Always(_));
        self.request.engine != Engine::Tar && !self.request.options.xattrs.any() && !is_compressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_round_trip_needs_several_sessions_and_a_short_one_none() {
        let needed = |millis| needed(Duration::from_millis(millis));
        assert_eq!((needed(0), needed(1), needed(10)), (0, 0, 0));
        assert_eq!((needed(20), needed(50), needed(100)), (3, 4, 7));
        assert!(needed(10_000) > 1 && needed(10_000) <= LOGINS + 1);
    }
}
