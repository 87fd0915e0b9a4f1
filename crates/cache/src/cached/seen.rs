//! When the remote told what, as far as that matters later.
//!
//! A time of change is *settled* when no later change can leave it the same: when the second that
//! it names is over at the server. That is so when it lies further back, by this machine's clock,
//! than both clocks may be apart; or when two seconds have gone since it was first seen.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Attr, FileKind, RemotePath, Timestamp};
use tokio::time::Instant;

use crate::Validator;
use crate::known::RACY_SECS;

/// Files in each of the two halves. When the newer one is full the older one goes. Both together
/// take some ten megabytes, and one of them holds the files of a large directory.
const MAX_HALF: usize = 32 << 10;

#[derive(Clone, Copy)]
struct Sight {
    attr: Attr,
    /// When this validator was seen first.
    first_at: Instant,
    /// When it was asked for last.
    asked_at: Instant,
}

#[derive(Default)]
struct Halves {
    newer: HashMap<RemotePath, Sight>,
    older: HashMap<RemotePath, Sight>,
}

/// See the [module](self).
pub(crate) struct Seen {
    halves: Mutex<Halves>,
    clock_skew: Duration,
    /// Everything is remembered for so long; only what is not settled, if zero.
    window: Duration,
}

impl Seen {
    pub(crate) fn new(clock_skew: Duration, window: Duration) -> Seen {
        Seen { halves: Mutex::default(), clock_skew, window }
    }

    fn lock(&self) -> MutexGuard<'_, Halves> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The remote told `attr`, asked for at `asked_at`.
    pub(crate) fn note(&self, path: &RemotePath, attr: &Attr, asked_at: Instant) {
        let regular = attr.kind == FileKind::Regular;
        if !regular || (self.window.is_zero() && self.is_old(attr)) {
            return;
        }
        let mut halves = self.lock();
        let last = halves.newer.get(path).or_else(|| halves.older.get(path));
        let same = last.filter(|last| Validator::of(&last.attr) == Validator::of(attr));
        // The answer, not the question, proves that the server's clock was that far.
        let first_at = same.map_or_else(Instant::now, |last| last.first_at);
        if halves.newer.len() >= MAX_HALF {
            halves.older = std::mem::take(&mut halves.newer);
        }
        halves.newer.insert(path.clone(), Sight { attr: *attr, first_at, asked_at });
    }

    /// What was known of `path` has been changed here.
    pub(crate) fn forget(&self, path: &RemotePath) {
        let mut halves = self.lock();
        halves.newer.remove(path);
        halves.older.remove(path);
    }

    /// What the remote told of the file within the window.
    pub(crate) fn lately(&self, path: &RemotePath, now: Instant) -> Option<Attr> {
        let halves = self.lock();
        let sight = halves.newer.get(path).or_else(|| halves.older.get(path))?;
        (now.saturating_duration_since(sight.asked_at) < self.window).then_some(sight.attr)
    }

    /// Whether a content read from now on, whose validator is that of `attr`, cannot change any
    /// more without a sign.
    pub(crate) fn is_settled(&self, path: &RemotePath, attr: &Attr) -> bool {
        if self.is_old(attr) {
            return true;
        }
        let ahead = attr.mtime.secs.saturating_sub(Timestamp::now().secs);
        if ahead > self.skew_secs() {
            // Set by hand into the future: one day it will be the present.
            return false;
        }
        let halves = self.lock();
        let sight = halves.newer.get(path).or_else(|| halves.older.get(path));
        sight.is_some_and(|sight| {
            let waited = sight.first_at.elapsed() >= Duration::from_secs(RACY_SECS as u64);
            Validator::of(&sight.attr) == Validator::of(attr) && waited
        })
    }

    fn skew_secs(&self) -> i64 {
        i64::try_from(self.clock_skew.as_secs()).unwrap_or(i64::MAX)
    }

    fn is_old(&self, attr: &Attr) -> bool {
        let age = Timestamp::now().secs.saturating_sub(attr.mtime.secs);
        age >= RACY_SECS.saturating_add(self.skew_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    const SKEW: Duration = Duration::from_secs(300);

    fn attr(age_secs: i64) -> Attr {
        let mtime = Timestamp::from_secs(Timestamp::now().secs - age_secs);
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o644, size: 1, uid: 1, gid: 1, atime: mtime, mtime }
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_is_settled_when_it_is_past_on_every_clock() {
        let seen = Seen::new(SKEW, Duration::ZERO);
        let at = path("f");
        assert!(seen.is_settled(&at, &attr(400)));
        let young = attr(10);
        assert!(!seen.is_settled(&at, &young));
        seen.note(&at, &young, Instant::now());
        assert!(!seen.is_settled(&at, &young));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(seen.is_settled(&at, &young));
        // Seen again it is no younger; another content is.
        seen.note(&at, &young, Instant::now());
        assert!(seen.is_settled(&at, &young));
        let other = Attr { size: 2, ..young };
        assert!(!seen.is_settled(&at, &other));
        seen.note(&at, &other, Instant::now());
        assert!(!seen.is_settled(&at, &other));
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_in_the_future_is_never_settled() {
        let seen = Seen::new(SKEW, Duration::ZERO);
        let future = attr(-4000);
        seen.note(&path("f"), &future, Instant::now());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!seen.is_settled(&path("f"), &future));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_told_counts_for_the_window() {
        let seen = Seen::new(SKEW, Duration::from_secs(5));
        seen.note(&path("f"), &attr(4000), Instant::now());
        assert!(seen.lately(&path("f"), Instant::now()).is_some());
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(seen.lately(&path("f"), Instant::now()).is_none());
        seen.note(&path("f"), &attr(4000), Instant::now());
        seen.forget(&path("f"));
        assert!(seen.lately(&path("f"), Instant::now()).is_none());
    }

    #[tokio::test]
    async fn only_so_many_are_remembered() {
        let seen = Seen::new(SKEW, Duration::ZERO);
        for number in 0..3 * MAX_HALF {
            seen.note(&path(&format!("f{number}")), &attr(1), Instant::now());
        }
        let halves = seen.lock();
        assert!(halves.newer.len() + halves.older.len() <= 2 * MAX_HALF);
        assert!(halves.newer.contains_key(&path(&format!("f{}", 3 * MAX_HALF - 1))));
    }
}
