//! The order of earlier opens, and how many files ahead are revalidated.
//!
//! A *visit* of a file is an open that relies on a newer validation than its last visit: so there
//! is one visit in each validity period, however often the file is opened. The files that followed
//! its last visit are likely to follow its next one.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::Ino;
use crate::compact_instant::CompactInstant;

/// Visits that are kept: those of a tree of twice the files that the largest units of a compiler
/// include, 128 KiB.
const MAX_KEPT: usize = 1 << 14;

/// Files revalidated ahead of the reader: at first, at least and at most. 64 at 0.5 ms arrive
/// before they are needed; 256 are enough for 2500 files a second at 100 ms.
const WINDOW: (usize, usize, usize) = (64, 8, 256);

/// Visits that are scanned for one file of the window. The others are outdated by later visits, by
/// several readers with orders of their own.
const SCANNED_PER_FILE: usize = 4;

/// Expired answers minus used ones before the window shrinks.
const EXPIRED_BEFORE_SHRINK: u32 = 16;

/// See the [module](self).
pub(crate) struct History {
    visits: VecDeque<Ino>,
    /// The number of the first visit that is kept. No visit has the number 0.
    first: u64,
    /// Files with a revalidation in flight; the channel closes at its end.
    in_flight: HashMap<Ino, watch::Receiver<()>>,
    window: usize,
    /// Visits since the last scan.
    since_scan: usize,
    expired: u32,
}

impl Default for History {
    fn default() -> History {
        History {
            visits: VecDeque::new(),
            first: 1,
            in_flight: HashMap::new(),
            window: WINDOW.0,
            since_scan: 0,
            expired: 0,
        }
    }
}

impl History {
    /// Records a visit of `ino`. Returns its number.
    pub(crate) fn record(&mut self, ino: Ino) -> u64 {
        if self.visits.len() == MAX_KEPT {
            self.visits.pop_front();
            self.first += 1;
        }
        self.visits.push_back(ino);
        self.since_scan += 1;
        self.first + self.visits.len() as u64 - 1
    }

    /// Whether there were enough visits since the last scan for several files to be revalidated
    /// together.
    pub(crate) fn is_due(&self) -> bool {
        self.since_scan * 4 >= self.window
    }

    /// The visits between those with these numbers, in order, as many as are worth a scan; and the
    /// number of files that may be ahead.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> (Vec<(u64, Ino)>, usize) {
        self.since_scan = 0;
        let Some(skipped) = (from + 1).checked_sub(self.first) else {
            return (Vec::new(), 0);
        };
        let visits = (from + 1..to).zip(self.visits.iter().skip(skipped as usize).copied());
        (visits.take(self.window * SCANNED_PER_FILE).collect(), self.window)
    }

    /// A revalidation of `ino` begins, until the returned sender is dropped after [`History::end`].
    /// `None` if one is in flight already, or too many are.
    pub(crate) fn begin(&mut self, ino: Ino) -> Option<watch::Sender<()>> {
        if self.in_flight.len() >= self.window || self.in_flight.contains_key(&ino) {
            return None;
        }
        let (ended, end) = watch::channel(());
        self.in_flight.insert(ino, end);
        Some(ended)
    }

    /// The revalidation of `ino` has ended.
    pub(crate) fn end(&mut self, ino: Ino) {
        self.in_flight.remove(&ino);
    }

    /// The end of the revalidation of `ino`, if one is in flight.
    pub(crate) fn in_flight(&self, ino: Ino) -> Option<watch::Receiver<()>> {
        self.in_flight.get(&ino).cloned()
    }

    /// A caller has to wait for an answer.
    pub(crate) fn note_late(&mut self) {
        self.window = (self.window * 2).min(WINDOW.2);
    }

    /// An answer arrived in time and was used.
    pub(crate) fn note_in_time(&mut self) {
        self.expired = self.expired.saturating_sub(1);
        if self.window < WINDOW.0 {
            self.window += 1;
        }
    }

    /// An answer had expired when its file was opened. Some always have, for files that were not
    /// opened this time; if most have, a smaller window is enough.
    pub(crate) fn note_expired(&mut self) {
        self.expired += 1;
        if self.expired >= EXPIRED_BEFORE_SHRINK {
            self.expired = 0;
            self.window = (self.window / 2).max(WINDOW.1);
        }
    }
}

/// The last visit of a file. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    number: u64,
    since: CompactInstant,
    /// Time since the visit before it, in milliseconds; 0 for the first.
    interval_ms: u32,
    /// Revalidations sent since.
    requests: u8,
}

impl Visit {
    /// The visit with this number, which relies on a validation requested at `since` or later.
    pub(crate) fn new(number: u64, since: Instant, previous: Option<Visit>) -> Visit {
        let interval = previous.map(|previous| since.saturating_duration_since(previous.since()));
        let interval_ms =
            interval.map_or(0, |interval| u32::try_from(interval.as_millis()).unwrap_or(u32::MAX));
        Visit { number, since: since.into(), interval_ms, requests: 0 }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn since(&self) -> Instant {
        self.since.instant().expect("not never")
    }

    /// The time since the visit before it.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.into())
    }

    /// This visit with one more revalidation.
    pub(crate) fn with_request(self) -> Visit {
        Visit { requests: self.requests.saturating_add(1), ..self }
    }

    /// The number of revalidations sent since.
    pub(crate) fn requests(&self) -> u8 {
        self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_of_a_visit_are_found_while_it_is_kept() {
        let mut history = History::default();
        assert_eq!(
            (1..=5).map(|at| history.record(Ino(10 + at))).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5]
        );
        assert_eq!(history.between(2, 5).0, [(3, Ino(13)), (4, Ino(14))]);
        assert_eq!((history.between(4, 5).0, history.between(5, 5).0), (vec![], vec![]));
        for at in 0..MAX_KEPT as u64 {
            assert_eq!(history.record(Ino(100 + at)), 6 + at);
        }
        let last = 5 + MAX_KEPT as u64;
        assert_eq!(history.between(4, last), (Vec::new(), 0), "forgotten");
        let (next, window) = history.between(5, last);
        assert_eq!(next[0], (6, Ino(100)));
        assert_eq!((next.len(), window), (WINDOW.0 * SCANNED_PER_FILE, WINDOW.0));
        assert_eq!(history.visits.len(), MAX_KEPT);
    }

    #[test]
    fn the_window_bounds_revalidations_in_flight() {
        let mut history = History::default();
        let begun: Vec<_> = (0..999).map_while(|at| history.begin(Ino(at))).collect();
        assert_eq!(begun.len(), WINDOW.0);
        history.end(Ino(7));
        assert!(history.begin(Ino(6)).is_none(), "it is asked about already");
        assert!(history.begin(Ino(7)).is_some() && history.begin(Ino(2000)).is_none());
        for _ in 0..9 {
            history.note_late();
        }
        assert_eq!(history.window, WINDOW.2);
        for _ in 0..9 * EXPIRED_BEFORE_SHRINK {
            history.note_expired();
        }
        assert_eq!(history.window, WINDOW.1);
        for _ in 0..999 {
            history.note_in_time();
            history.note_expired();
        }
        assert_eq!(history.window, WINDOW.0, "half of them are worth it");
    }
}
