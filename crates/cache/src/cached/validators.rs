//! When the remote returned which validators, as far as that matters later.
//!
//! A validator is *settled* (git: not racy) when no later change can result in the same one: when
//! the second that its time names (the ctime where it is known, else the mtime) is over at the
//! server. That is so when the time is older, by this machine's clock, than both clocks may differ;
//! or when two seconds have passed since it was first seen.

use std::collections::HashMap;
use std::time::Duration;

use base::{Attr, FileKind, Mutex, RemotePath, Timestamp};
use tokio::time::Instant;

use crate::Validator;
use crate::metadata::{RACY_SECS, changed_at};

/// Files in each of the two generations. When the newer one is full the older one is dropped. Both
/// together take some ten megabytes, and one of them holds the files of a large directory.
const MAX_PER_GENERATION: usize = 32 << 10;

#[derive(Clone, Copy)]
struct Observation {
    validator: Validator,
    /// When it was seen first.
    first_at: Instant,
}

#[derive(Default)]
struct Generations {
    newer: HashMap<RemotePath, Observation>,
    older: HashMap<RemotePath, Observation>,
}

/// How far the clocks of both machines may differ. A change that is older than that is past the racy
/// window; a younger one is when two seconds have passed since it was first seen.
const CLOCK_SKEW_SECS: i64 = 300;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Validators {
    generations: Mutex<Generations>,
}

impl Validators {
    /// Notes that the remote returned `attr`. Only the unsettled ones of files are kept.
    pub(crate) fn note(&self, path: &RemotePath, attr: &Attr) {
        if attr.kind != FileKind::Regular || self.is_old(attr) {
            return;
        }
        let validator = Validator::of(attr);
        let mut generations = self.generations.lock();
        let last = generations.newer.get(path).or_else(|| generations.older.get(path));
        let same = last.filter(|last| last.validator == validator);
        // The answer, not the request, proves that the server's clock was that far.
        let first_at = same.map_or_else(Instant::now, |last| last.first_at);
        if generations.newer.len() >= MAX_PER_GENERATION {
            generations.older = std::mem::take(&mut generations.newer);
        }
        generations.newer.insert(path.clone(), Observation { validator, first_at });
    }

    /// Forgets `path`, which was changed here.
    pub(crate) fn forget(&self, path: &RemotePath) {
        let mut generations = self.generations.lock();
        generations.newer.remove(path);
        generations.older.remove(path);
    }

    /// Whether a content read from now on, with the validator of `attr`, cannot change without a
    /// change of the validator.
    pub(crate) fn is_settled(&self, path: &RemotePath, attr: &Attr) -> bool {
        if self.is_old(attr) {
            return true;
        }
        let ahead = changed_at(attr).secs.saturating_sub(Timestamp::now().secs);
        if ahead > CLOCK_SKEW_SECS {
            // Set into the future by a user: that time will come.
            return false;
        }
        let generations = self.generations.lock();
        let observation = generations.newer.get(path).or_else(|| generations.older.get(path));
        observation.is_some_and(|observation| {
            let waited = observation.first_at.elapsed() >= Duration::from_secs(RACY_SECS as u64);
            observation.validator == Validator::of(attr) && waited
        })
    }

    fn is_old(&self, attr: &Attr) -> bool {
        let age = Timestamp::now().secs.saturating_sub(changed_at(attr).secs);
        age >= RACY_SECS + CLOCK_SKEW_SECS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::path;

    fn attr(age_secs: i64) -> Attr {
        let mtime = Timestamp::from_secs(Timestamp::now().secs - age_secs);
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o644, size: 1, uid: 1, gid: 1, atime: mtime, mtime, inode: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_is_settled_when_it_is_past_on_every_clock() {
        let validators = Validators::default();
        let at = path("f");
        assert!(validators.is_settled(&at, &attr(400)));
        let young = attr(10);
        assert!(!validators.is_settled(&at, &young));
        validators.note(&at, &young);
        assert!(!validators.is_settled(&at, &young));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(validators.is_settled(&at, &young));
        // A second observation does not restart the time; another content does.
        validators.note(&at, &young);
        assert!(validators.is_settled(&at, &young));
        let other = Attr { size: 2, ..young };
        assert!(!validators.is_settled(&at, &other));
        validators.note(&at, &other);
        assert!(!validators.is_settled(&at, &other));
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_in_the_future_is_never_settled() {
        let validators = Validators::default();
        let future = attr(-4000);
        validators.note(&path("f"), &future);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!validators.is_settled(&path("f"), &future));
    }

    #[tokio::test]
    async fn only_so_many_are_remembered() {
        let validators = Validators::default();
        for number in 0..3 * MAX_PER_GENERATION {
            validators.note(&path(&format!("f{number}")), &attr(1));
        }
        let generations = validators.generations.lock();
        assert!(generations.newer.len() + generations.older.len() <= 2 * MAX_PER_GENERATION);
        assert!(generations.newer.contains_key(&path(&format!("f{}", 3 * MAX_PER_GENERATION - 1))));
    }
}
