//! Limits the lines in a minute for each kind of event.
//!
//! A kind has a window of one minute from its first line. The lines of a window beyond the limit
//! are counted, and reported as one line when the window has ended. Without such lines nothing
//! waits for the end of a window, so that a quiet process is not woken up.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use tracing::Level;

/// Lines of one kind in a window: an outage of a mount with several hosts has fewer.
pub const LINES: u32 = 20;

const WINDOW: Duration = Duration::from_secs(60);

/// What happens to a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is written, after `report` about the window before.
    Pass { report: Option<String> },
    /// It is dropped. For the first one of a window, the time after which [`Limiter::report`] is to
    /// be called.
    Drop { report_after: Option<Duration> },
}

struct Window {
    began: Instant,
    level: Level,
    written: u32,
    dropped: u64,
    /// The last line that was dropped.
    last: String,
}

impl Window {
    fn report(&mut self) -> Option<String> {
        let (count, last) = (self.dropped, std::mem::take(&mut self.last));
        self.dropped = 0;
        (count > 0).then(|| format!("{last} (repeated {count} times)"))
    }
}

/// The windows of all kinds `K`, which must be bounded in number: the places in the code that log.
pub struct Limiter<K>(HashMap<K, Window>);

impl<K> Default for Limiter<K> {
    fn default() -> Limiter<K> {
        Limiter(HashMap::new())
    }
}

impl<K: Eq + Hash> Limiter<K> {
    /// Counts a line.
    pub fn admit(&mut self, kind: K, level: Level, text: &str, now: Instant) -> Verdict {
        let fresh = || Window { began: now, level, written: 0, dropped: 0, last: String::new() };
        let window = self.0.entry(kind).or_insert_with(fresh);
        let mut report = None;
        if now.saturating_duration_since(window.began) >= WINDOW {
            report = window.report();
            *window = fresh();
        }
        if window.written < LINES {
            window.written += 1;
            return Verdict::Pass { report };
        }
        window.dropped += 1;
        text.clone_into(&mut window.last);
        let left = (window.began + WINDOW).saturating_duration_since(now);
        Verdict::Drop { report_after: (window.dropped == 1).then_some(left) }
    }

    /// The report about lines of this kind that were dropped, if its window has ended.
    pub fn report(&mut self, kind: &K, now: Instant) -> Option<String> {
        let window = self.0.get_mut(kind)?;
        (now.saturating_duration_since(window.began) >= WINDOW).then(|| window.report())?
    }

    /// The reports of all kinds.
    pub fn finish(&mut self) -> Vec<(Level, String)> {
        let windows = self.0.values_mut();
        windows.filter_map(|window| Some((window.level, window.report()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_so_many_lines_and_then_one_about_the_others() {
        let (mut limiter, began) = (Limiter::default(), Instant::now());
        let passes = Verdict::Pass { report: None };
        let at = |limiter: &mut Limiter<&str>, secs: u64| {
            limiter.admit("kind", Level::WARN, "lost", began + Duration::from_secs(secs))
        };
        for _ in 0..LINES {
            assert_eq!(at(&mut limiter, 0), passes);
        }
        let left = Duration::from_secs(50);
        assert_eq!(at(&mut limiter, 10), Verdict::Drop { report_after: Some(left) });
        for _ in 1..57 {
            assert_eq!(at(&mut limiter, 59), Verdict::Drop { report_after: None });
        }
        assert_eq!(limiter.report(&"kind", began + Duration::from_secs(59)), None);
        let report = Some("lost (repeated 57 times)".to_owned());
        assert_eq!(at(&mut limiter, 60), Verdict::Pass { report });
        // Reported once.
        assert_eq!(limiter.report(&"kind", began + Duration::from_secs(600)), None);
        assert_eq!(limiter.finish(), []);
    }

    #[test]
    fn what_was_dropped_is_reported_without_a_further_event() {
        let (mut limiter, began) = (Limiter::default(), Instant::now());
        for _ in 0..=LINES {
            limiter.admit("kind", Level::WARN, "lost", began);
        }
        let report = limiter.report(&"kind", began + WINDOW);
        assert_eq!(report.as_deref(), Some("lost (repeated 1 times)"));
        for _ in 0..=LINES {
            limiter.admit("kind", Level::WARN, "lost again", began + WINDOW);
        }
        let rest = vec![(Level::WARN, "lost again (repeated 1 times)".to_owned())];
        assert_eq!(limiter.finish(), rest);
    }
}
