//! Fractions of a second for the mtimes of local changes.
//!
//! SFTP has whole seconds, and `make` rebuilds files that are older than their sources: with whole
//! seconds, a source that is edited in the second in which it was compiled is never newer than its
//! object. So a local change gets a fraction of the second that the server reports for it. Within
//! one second fractions increase in the order in which the results of changes arrive; if one change
//! depends on another, that is their order. They follow the local clock where that keeps the order,
//! since programs also set times by it.
//!
//! The clocks of both machines need not agree: only the order within one second of the server is
//! promised. [`inode`](crate::inode) stores the fraction.

use base::{Mutex, Timestamp};

/// Seconds whose last fraction is remembered: several servers have several clocks, and the result
/// of a change may arrive a second late.
const SECONDS: usize = 4;

/// Largest fraction taken from a clock, in nanoseconds. The rest of the second is for fractions
/// that only have to be larger than others.
const FROM_CLOCK: u32 = 900_000_000;

const LARGEST: u32 = 999_999_999;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Fractions(Mutex<Given>);

#[derive(Default)]
struct Given {
    /// The largest fraction of each second.
    last: [Timestamp; SECONDS],
    /// The next one to be replaced.
    next: usize,
}

impl Fractions {
    /// The fraction, in nanoseconds, of a change that the server made at `secs`; never zero.
    pub(crate) fn next(&self, secs: i64) -> u32 {
        self.next_at(secs, Timestamp::now())
    }

    /// The present time, for a change that sets a time itself.
    pub(crate) fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        Timestamp { nanos: self.next_at(now.secs, now), ..now }
    }

    /// A program has set this time. Later changes in that second get a later time.
    pub(crate) fn note(&self, time: Timestamp) {
        let mut given = self.0.lock();
        if let Some(last) = given.last.iter_mut().find(|last| last.secs == time.secs) {
            last.nanos = last.nanos.max(time.nanos.min(FROM_CLOCK));
        }
    }

    fn next_at(&self, secs: i64, now: Timestamp) -> u32 {
        let given = &mut *self.0.lock();
        let nanos = now.nanos.clamp(1, FROM_CLOCK);
        if let Some(last) = given.last.iter_mut().find(|last| last.secs == secs) {
            last.nanos = nanos.max(last.nanos + 1).min(LARGEST);
            return last.nanos;
        }
        given.last[given.next] = Timestamp { secs, nanos };
        given.next = (given.next + 1) % SECONDS;
        nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    #[test]
    fn fractions_of_a_second_grow_however_the_clock_goes() {
        let fractions = Fractions::default();
        // The server's seconds begin in the middle of the local ones.
        assert_eq!(fractions.next_at(100, at(200, 600_000_000)), 600_000_000);
        assert_eq!(fractions.next_at(100, at(200, 600_000_000)), 600_000_001);
        assert_eq!(fractions.next_at(100, at(200, 990_000_000)), FROM_CLOCK);
        assert_eq!(fractions.next_at(100, at(201, 0)), FROM_CLOCK + 1);
        assert_eq!(fractions.next_at(101, at(201, 0)), 1, "none is zero");
        assert_eq!(fractions.next_at(100, at(201, 1)), FROM_CLOCK + 2, "known a moment late");
        assert_eq!(fractions.next_at(101, at(201, 700)), 700);
    }

    #[test]
    fn times_set_by_a_program_are_older_than_later_changes() {
        let fractions = Fractions::default();
        fractions.note(at(100, 5));
        assert_eq!(fractions.next_at(100, at(0, 7)), 7, "nothing was known of that second");
        fractions.note(at(100, 800));
        fractions.note(at(100, 20));
        assert_eq!(fractions.next_at(100, at(0, 7)), 801);
        fractions.note(at(100, LARGEST));
        assert_eq!(fractions.next_at(100, at(0, 7)), FROM_CLOCK + 1, "there is room behind it");
        let now = fractions.now();
        assert!(fractions.next(now.secs) > now.nanos);
    }
}
