//! Which reports of the server about names are of changes made through this mount.
//!
//! A change through this mount causes one report for each of its names, if the directory is
//! watched. So each is expected once: while the change is in flight, and for [`QUIET`] after it has
//! succeeded. In a union, a change may be one of several sources, so each of them may report it
//! once.
//!
//! A change in flight may fail because another client was first. Then the report that was taken for
//! it is of the change of that client.

use std::collections::HashMap;

use base::Name;
use tokio::time::Instant;

use crate::Ino;
use crate::cover::QUIET;
use crate::repeat::ForeignChange;

/// Names of which a report may be expected. Beyond it, those of the past are forgotten.
const MAX_NAMES: usize = 4096;

/// Whether a name is bound to a file by a change, or loses its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Appears,
    Disappears,
}

/// The changes of one name in one direction.
struct Expected {
    in_flight: u32,
    /// Reports that have not arrived.
    reports: u32,
    /// The sources of a union that have reported it, each as often as it has.
    reported_by: Vec<u64>,
    /// Reports that were taken while a change was in flight.
    undecided: Vec<ForeignChange>,
    /// When a change ended last.
    ended_at: Instant,
}

impl Expected {
    fn is_over(&self, now: Instant) -> bool {
        self.in_flight == 0 && (self.reports == 0 || now >= self.ended_at + QUIET)
    }

    /// Whether `source` may report one more.
    fn is_due(&self, source: u64) -> bool {
        self.reports as usize > self.reported(source)
    }

    /// How often `source` has reported it.
    fn reported(&self, source: u64) -> usize {
        self.reported_by.iter().filter(|by| **by == source).count()
    }

    /// A change has failed. Returns the reports that were taken for it.
    fn expect_one_less(&mut self) -> Vec<ForeignChange> {
        let Some(reports) = self.reports.checked_sub(1) else {
            return self.undecided.pop().into_iter().collect();
        };
        self.reports = reports;
        let mut foreign = Vec::new();
        while let Some(at) =
            self.undecided.iter().position(|it| self.reported(it.source) > reports as usize)
        {
            let change = self.undecided.remove(at);
            let by = self.reported_by.iter().position(|by| *by == change.source);
            by.map(|by| self.reported_by.swap_remove(by));
            foreign.push(change);
        }
        foreign
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct OwnChanges(HashMap<(Ino, Name, Direction), Expected>);

impl OwnChanges {
    /// A change begins. Must be followed by [`OwnChanges::end`].
    pub(crate) fn begin(&mut self, dir: Ino, name: &Name, direction: Direction) {
        let now = Instant::now();
        if self.0.len() >= MAX_NAMES {
            self.0.retain(|_, expected| !expected.is_over(now));
        }
        let none = || Expected {
            in_flight: 0,
            reports: 0,
            reported_by: Vec::new(),
            undecided: Vec::new(),
            ended_at: now,
        };
        let expected = self.0.entry((dir, name.clone(), direction)).or_insert_with(none);
        if expected.is_over(now) {
            (expected.reports, expected.reported_by) = (0, Vec::new());
        }
        expected.in_flight += 1;
        expected.reports += 1;
    }

    /// A change has ended. Returns the reports that turn out to be of changes of others.
    pub(crate) fn end(
        &mut self,
        dir: Ino,
        name: &Name,
        direction: Direction,
        has_succeeded: bool,
    ) -> Vec<ForeignChange> {
        let key = (dir, name.clone(), direction);
        let Some(expected) = self.0.get_mut(&key) else { return Vec::new() };
        expected.in_flight -= 1;
        expected.ended_at = Instant::now();
        let foreign = if has_succeeded { Vec::new() } else { expected.expect_one_less() };
        if expected.in_flight == 0 {
            expected.undecided.clear();
        }
        self.remove_if_over(&key);
        foreign
    }

    /// A change was reported by `source`. Returns whether it was expected.
    pub(crate) fn take(
        &mut self,
        dir: Ino,
        name: &Name,
        direction: Direction,
        source: u64,
    ) -> bool {
        let key = (dir, name.clone(), direction);
        let is_expected = self.is_expected(&key, source);
        if is_expected && let Some(expected) = self.0.get_mut(&key) {
            match source {
                0 => expected.reports -= 1,
                source => expected.reported_by.push(source),
            }
        }
        self.remove_if_over(&key);
        is_expected
    }

    /// Keeps `change`, which was [taken](OwnChanges::take), while a change is in flight that may
    /// fail.
    pub(crate) fn keep_undecided(&mut self, direction: Direction, change: ForeignChange) {
        let expected = self.0.get_mut(&(change.dir, change.name.clone(), direction));
        if let Some(expected) = expected.filter(|expected| expected.in_flight > 0) {
            expected.undecided.push(change);
        }
    }

    /// Whether the report of `source` that a change through this mount has removed `name` is still
    /// to come: what it reports of the name until then is of the file that it had.
    pub(crate) fn is_removal_expected(&self, dir: Ino, name: &Name, source: u64) -> bool {
        self.is_expected(&(dir, name.clone(), Direction::Disappears), source)
    }

    fn is_expected(&self, key: &(Ino, Name, Direction), source: u64) -> bool {
        let now = Instant::now();
        self.0.get(key).is_some_and(|expected| expected.is_due(source) && !expected.is_over(now))
    }

    fn remove_if_over(&mut self, key: &(Ino, Name, Direction)) {
        if self.0.get(key).is_some_and(|expected| expected.is_over(Instant::now())) {
            self.0.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::{Appears, Disappears};
    use super::*;

    const DIR: Ino = Ino(7);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn each_change_is_expected_once() {
        let (mut own, a) = (OwnChanges::default(), name("a"));
        own.begin(DIR, &a, Appears);
        // The report may overtake the answer.
        assert!(own.take(DIR, &a, Appears, 0));
        own.end(DIR, &a, Appears, true);
        assert!(!own.take(DIR, &a, Appears, 0), "another machine has created it again");

        own.begin(DIR, &a, Disappears);
        own.end(DIR, &a, Disappears, true);
        assert!(own.is_removal_expected(DIR, &a, 0));
        assert!(!own.take(DIR, &a, Appears, 0) && !own.take(DIR, &name("b"), Disappears, 0));
        assert!(own.take(DIR, &a, Disappears, 0) && !own.take(DIR, &a, Disappears, 0));
        assert!(own.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn each_source_of_a_union_may_report_a_change_once() {
        let (mut own, a) = (OwnChanges::default(), name("a"));
        own.begin(DIR, &a, Disappears);
        assert!(own.take(DIR, &a, Disappears, 2));
        own.end(DIR, &a, Disappears, true);
        assert!(own.take(DIR, &a, Disappears, 1));
        assert!(!own.take(DIR, &a, Disappears, 1) && !own.take(DIR, &a, Disappears, 2));
        assert!(own.is_removal_expected(DIR, &a, 3) && !own.is_removal_expected(DIR, &a, 1));
        own.begin(DIR, &a, Disappears);
        own.end(DIR, &a, Disappears, true);
        assert!(own.take(DIR, &a, Disappears, 1) && !own.take(DIR, &a, Disappears, 1));
        tokio::time::advance(QUIET).await;
        own.begin(DIR, &a, Disappears);
        assert!(own.take(DIR, &a, Disappears, 1) && !own.take(DIR, &a, Disappears, 1));
    }

    /// A report of `source`.
    fn report(name: &Name, source: u64) -> ForeignChange {
        ForeignChange {
            dir: DIR,
            path: base::RemotePath::root(),
            dir_number: DIR.0,
            name: name.clone(),
            number: None,
            event: base::Event::Created,
            is_dir: false,
            cookie: 0,
            source,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_for_a_change_that_fails_is_of_others() {
        let (mut own, a) = (OwnChanges::default(), name("a"));
        let take = |own: &mut OwnChanges, source| {
            assert!(own.take(DIR, &a, Appears, source));
            own.keep_undecided(Appears, report(&a, source));
        };
        own.begin(DIR, &a, Appears);
        take(&mut own, 0);
        assert_eq!(own.end(DIR, &a, Appears, false), [report(&a, 0)]);
        // Of two changes, one has succeeded.
        own.begin(DIR, &a, Appears);
        own.begin(DIR, &a, Appears);
        take(&mut own, 0);
        assert_eq!(own.end(DIR, &a, Appears, true), []);
        assert_eq!(own.end(DIR, &a, Appears, false), []);
        // The report of an earlier change comes late.
        own.begin(DIR, &a, Appears);
        assert_eq!(own.end(DIR, &a, Appears, true), []);
        own.begin(DIR, &a, Appears);
        take(&mut own, 0);
        assert_eq!(own.end(DIR, &a, Appears, false), []);
        // Several sources.
        own.begin(DIR, &a, Appears);
        take(&mut own, 1);
        take(&mut own, 2);
        assert_eq!(own.end(DIR, &a, Appears, false), [report(&a, 1), report(&a, 2)]);
        assert!(own.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_expected_of_a_failed_change_or_for_long() {
        let (mut own, a) = (OwnChanges::default(), name("a"));
        own.begin(DIR, &a, Appears);
        own.end(DIR, &a, Appears, false);
        assert!(!own.take(DIR, &a, Appears, 0));
        own.begin(DIR, &a, Appears);
        own.end(DIR, &a, Appears, true);
        tokio::time::advance(QUIET).await;
        assert!(!own.take(DIR, &a, Appears, 0));
        assert!(own.0.is_empty());
        for number in 0..2 * MAX_NAMES {
            own.begin(DIR, &name(&number.to_string()), Appears);
            own.end(DIR, &name(&number.to_string()), Appears, true);
            tokio::time::advance(QUIET / 1000).await;
        }
        assert!(own.0.len() <= MAX_NAMES);
    }
}
