//! The server's clock, as far as it has shown itself.
//!
//! The time of a file that was made just now is the server's time. From the last such file we know
//! how far its clock is from ours. It is asked for nothing: what is not known is not needed until a
//! connection is lost at a bad moment.

use std::sync::atomic::{AtomicI64, Ordering};

use base::Timestamp;

/// Times nearer than this cannot be told apart: whole seconds on the wire, a clock read before the
/// request and one while it was carried out.
const RACY_SECS: i64 = 2;

/// An answer that took longer tells the time too badly.
const MAX_DELAY_SECS: i64 = 1;

/// Stands for an unknown distance; no clock is that wrong.
const UNKNOWN: i64 = i64::MIN;

/// How far the server's clock is ahead of ours, in seconds.
#[derive(Debug)]
pub(crate) struct ServerClock(AtomicI64);

impl Default for ServerClock {
    fn default() -> ServerClock {
        ServerClock(AtomicI64::new(UNKNOWN))
    }
}

/// From when a request was sent until its answer was missed, by our clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSpan {
    pub(crate) sent: Timestamp,
    pub(crate) lost: Timestamp,
}

impl RequestSpan {
    /// Of a request sent then, whose loss is noticed now.
    pub(crate) fn until_now(sent: Timestamp) -> RequestSpan {
        RequestSpan { sent, lost: Timestamp::now() }
    }
}

impl ServerClock {
    /// `time` was given by the server to what it made, between `sent` and now.
    pub(crate) fn learn(&self, time: Timestamp, sent: Timestamp) {
        let now = Timestamp::now();
        if (0..=MAX_DELAY_SECS).contains(&now.secs.saturating_sub(sent.secs)) {
            self.0.store(time.secs.saturating_sub(now.secs), Ordering::Relaxed);
        }
    }

    fn ahead_secs(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|is_future| *is_future != UNKNOWN)
    }

    /// Whether the server gave `time` within the window, if that can be told.
    pub(crate) fn is_within(&self, time: Timestamp, window: RequestSpan) -> Option<bool> {
        let time = time.secs.saturating_sub(self.ahead_secs()?);
        let from = window.sent.secs.saturating_sub(RACY_SECS);
        Some((from..=window.lost.secs.saturating_add(RACY_SECS)).contains(&time))
    }

    /// Whether the server gave `time` certainly before the window, if that can be told.
    pub(crate) fn is_before(&self, time: Timestamp, window: RequestSpan) -> Option<bool> {
        let time = time.secs.saturating_sub(self.ahead_secs()?);
        Some(time < window.sent.secs.saturating_sub(RACY_SECS))
    }

    /// Whether the server gave `time` certainly after the window began, if that can be told.
    pub(crate) fn is_after_start(&self, time: Timestamp, window: RequestSpan) -> Option<bool> {
        let time = time.secs.saturating_sub(self.ahead_secs()?);
        Some(time > window.sent.secs.saturating_add(RACY_SECS))
    }

    /// Whether `time` lies in the server's future, which only a deliberate setting can have done.
    /// With an unknown clock it is only told for what is far off.
    pub(crate) fn is_future(&self, time: Timestamp) -> bool {
        const DAY_SECS: i64 = 86_400;
        let is_future = self.ahead_secs().unwrap_or(DAY_SECS);
        time.secs > Timestamp::now().secs.saturating_add(is_future).saturating_add(RACY_SECS)
    }
}

/// Whether the server gave two times at about the same moment.
pub(crate) fn about_equal(one: Timestamp, other: Timestamp) -> bool {
    one.secs.abs_diff(other.secs) <= RACY_SECS.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn nothing_is_told_of_an_unknown_clock() {
        let clock = ServerClock::default();
        let window = RequestSpan { sent: at(10), lost: at(20) };
        assert_eq!(clock.is_within(at(15), window), None);
        assert_eq!(clock.is_before(at(15), window), None);
        assert!(!clock.is_future(Timestamp::now()));
    }

    #[test]
    fn a_clock_that_is_an_hour_ahead_is_reckoned_with() {
        let clock = ServerClock::default();
        let now = Timestamp::now();
        let there = |secs| at(now.secs + 3600 + secs);
        clock.learn(there(0), now);
        let window = RequestSpan { sent: now, lost: at(now.secs + 30) };
        for (secs, within, before) in [(-10, false, true), (0, true, false), (31, true, false)] {
            assert_eq!(clock.is_within(there(secs), window), Some(within), "{secs}");
            assert_eq!(clock.is_before(there(secs), window), Some(before), "{secs}");
        }
        assert_eq!(clock.is_within(there(60), window), Some(false));
        assert_eq!(clock.is_after_start(there(60), window), Some(true));
        assert!(clock.is_future(there(3600)) && !clock.is_future(there(0)));
    }

    #[test]
    fn a_late_answer_teaches_nothing() {
        let clock = ServerClock::default();
        let now = Timestamp::now();
        clock.learn(now, at(now.secs - 100));
        assert_eq!(clock.is_before(at(0), RequestSpan::until_now(now)), None);
    }
}
