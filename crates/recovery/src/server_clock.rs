//! An estimate of the server's clock.
//!
//! The mtime of a file that was just created is the server's current time. The last such file gives
//! the offset between the two clocks. No request is sent for it: the offset is only needed after a
//! loss.

use std::sync::atomic::{AtomicI64, Ordering};

use base::Timestamp;

/// Times that differ by at most this cannot be distinguished: the protocol carries whole seconds,
/// and the local clock is read before the request, the server's while it executes the request.
const RACY_SECS: i64 = 2;

/// A reply that took longer is too inaccurate for the offset.
const MAX_DELAY_SECS: i64 = 1;

/// An unknown offset; no clock is that wrong.
const UNKNOWN: i64 = i64::MIN;

/// How far the server's clock is ahead of the local one, in seconds.
#[derive(Debug)]
pub(crate) struct ServerClock(AtomicI64);

impl Default for ServerClock {
    fn default() -> ServerClock {
        ServerClock(AtomicI64::new(UNKNOWN))
    }
}

/// The time from sending a request until its loss was noticed, by the local clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSpan {
    pub(crate) sent: Timestamp,
    pub(crate) lost: Timestamp,
}

impl RequestSpan {
    /// The span of a request that was sent at `sent` and whose loss is noticed now.
    pub(crate) fn until_now(sent: Timestamp) -> RequestSpan {
        RequestSpan { sent, lost: Timestamp::now() }
    }
}

impl ServerClock {
    /// Learns the offset from `time`, which the server has set between `sent` and now.
    pub(crate) fn learn(&self, time: Timestamp, sent: Timestamp) {
        let now = Timestamp::now();
        if (0..=MAX_DELAY_SECS).contains(&now.secs.saturating_sub(sent.secs)) {
            self.0.store(time.secs.saturating_sub(now.secs), Ordering::Relaxed);
        }
    }

    fn ahead_secs(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|is_future| *is_future != UNKNOWN)
    }

    /// Whether the server's clock showed `time` within the span; `None` if the offset is unknown.
    pub(crate) fn is_within(&self, time: Timestamp, span: RequestSpan) -> Option<bool> {
        let time = time.secs.saturating_sub(self.ahead_secs()?);
        let from = span.sent.secs.saturating_sub(RACY_SECS);
        Some((from..=span.lost.secs.saturating_add(RACY_SECS)).contains(&time))
    }

    /// Whether the server's clock showed `time` certainly before the span; `None` if the offset is
    /// unknown.
    pub(crate) fn is_before(&self, time: Timestamp, span: RequestSpan) -> Option<bool> {
        let time = time.secs.saturating_sub(self.ahead_secs()?);
        Some(time < span.sent.secs.saturating_sub(RACY_SECS))
    }

    /// Whether the server's clock showed `time` certainly after the start of the span; `None` if
    /// the offset is unknown.
    pub(crate) fn is_after_start(&self, time: Timestamp, span: RequestSpan) -> Option<bool> {
        let time = time.secs.saturating_sub(self.ahead_secs()?);
        Some(time > span.sent.secs.saturating_add(RACY_SECS))
    }

    /// Whether `time` is in the server's future, where only an explicit utimens can have set it. If
    /// the offset is unknown, one day is allowed for it.
    pub(crate) fn is_future(&self, time: Timestamp) -> bool {
        const DAY_SECS: i64 = 86_400;
        let is_future = self.ahead_secs().unwrap_or(DAY_SECS);
        time.secs > Timestamp::now().secs.saturating_add(is_future).saturating_add(RACY_SECS)
    }
}

/// Whether the server's clock may have shown both times in the same moment.
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
    fn an_unknown_clock_decides_nothing() {
        let clock = ServerClock::default();
        let span = RequestSpan { sent: at(10), lost: at(20) };
        assert_eq!(clock.is_within(at(15), span), None);
        assert_eq!(clock.is_before(at(15), span), None);
        assert!(!clock.is_future(Timestamp::now()));
    }

    #[test]
    fn a_clock_that_is_an_hour_ahead_is_converted() {
        let clock = ServerClock::default();
        let now = Timestamp::now();
        let there = |secs| at(now.secs + 3600 + secs);
        clock.learn(there(0), now);
        let span = RequestSpan { sent: now, lost: at(now.secs + 30) };
        for (secs, within, before) in [(-10, false, true), (0, true, false), (31, true, false)] {
            assert_eq!(clock.is_within(there(secs), span), Some(within), "{secs}");
            assert_eq!(clock.is_before(there(secs), span), Some(before), "{secs}");
        }
        assert_eq!(clock.is_within(there(60), span), Some(false));
        assert_eq!(clock.is_after_start(there(60), span), Some(true));
        assert!(clock.is_future(there(3600)) && !clock.is_future(there(0)));
    }

    #[test]
    fn a_late_reply_is_ignored() {
        let clock = ServerClock::default();
        let now = Timestamp::now();
        clock.learn(now, at(now.secs - 100));
        assert_eq!(clock.is_before(at(0), RequestSpan::until_now(now)), None);
    }
}
