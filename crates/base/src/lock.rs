//! Advisory locks of files: `flock(2)` and the byte ranges of `fcntl(2)`.
//!
//! Locks belong to an owner, which the caller of a [`Remote`](crate::Remote) names by a number.
//! Locks of one owner never conflict. A new lock replaces what the owner had in its range, as POSIX
//! says: it may convert, split or join ranges ([`LockedRanges`]).

use std::fmt;

/// The two kinds of locks, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockFamily {
    /// Byte ranges, of `fcntl(2)`.
    Posix,
    /// Whole files, of `flock(2)`. The range is always [`LockRange::WHOLE`].
    Flock,
}

/// The owner of locks, by a number of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner {
    /// Owners of different families are different.
    pub family: LockFamily,
    /// The number.
    pub number: u64,
}

/// What a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared: excludes write locks (`F_RDLCK`, `LOCK_SH`).
    Read,
    /// Exclusive: excludes all others (`F_WRLCK`, `LOCK_EX`).
    Write,
}

impl LockKind {
    /// Whether locks of two owners on the same byte exclude each other.
    pub fn excludes(self, other: LockKind) -> bool {
        self == LockKind::Write || other == LockKind::Write
    }
}

/// A range of bytes that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockRange {
    start: u64,
    last: u64,
}

impl LockRange {
    /// The whole file, also if it grows.
    pub const WHOLE: LockRange = LockRange { start: 0, last: i64::MAX as u64 };

    /// From `start` to `last`, both included. `i64::MAX` is the end of the file, also if it grows;
    /// what is behind it is cut off. `None` if the range is empty.
    pub fn new(start: u64, last: u64) -> Option<LockRange> {
        let last = last.min(LockRange::WHOLE.last);
        (start <= last).then_some(LockRange { start, last })
    }

    /// The first byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// The last byte; `i64::MAX` for the end of the file.
    pub fn last(self) -> u64 {
        self.last
    }

    /// The common bytes.
    pub fn intersection(self, other: LockRange) -> Option<LockRange> {
        LockRange::new(self.start.max(other.start), self.last.min(other.last))
    }

    /// Whether it contains all of `other`.
    pub fn contains(self, other: LockRange) -> bool {
        self.intersection(other) == Some(other)
    }
}

impl fmt::Debug for LockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.start, self.last)
    }
}

/// A lock in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whose it is.
    pub owner: LockOwner,
    /// The locked bytes.
    pub range: LockRange,
    /// What it excludes.
    pub kind: LockKind,
}

impl Lock {
    /// A lock of this owner.
    pub fn new(owner: LockOwner, range: LockRange, kind: LockKind) -> Lock {
        Lock { owner, range, kind }
    }
}

/// The locked ranges of one owner in one file: sorted, without overlaps, and joined where possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockedRanges(Vec<(LockRange, LockKind)>);

impl LockedRanges {
    /// Replaces what is in `range`: by a lock of this kind, or by none.
    pub fn set(&mut self, range: LockRange, kind: Option<LockKind>) {
        let mut ranges = Vec::with_capacity(self.0.len() + 2);
        for (old, kind) in &self.0 {
            let before = range.start.checked_sub(1).and_then(|last| LockRange::new(0, last));
            let behind = LockRange::new(range.last.saturating_add(1), LockRange::WHOLE.last);
            let kept = [before, behind].into_iter().flatten();
            ranges.extend(kept.filter_map(|part| Some((part.intersection(*old)?, *kind))));
        }
        ranges.extend(kind.map(|kind| (range, kind)));
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        self.0.clear();
        for (range, kind) in ranges {
            match self.0.last_mut() {
                Some((last, same)) if *same == kind && last.last + 1 == range.start => {
                    last.last = range.last;
                }
                _ => self.0.push((range, kind)),
            }
        }
    }

    /// The locks, in the order of their ranges.
    pub fn iter(&self) -> impl Iterator<Item = (LockRange, LockKind)> + '_ {
        self.0.iter().copied()
    }

    /// What is locked within `range`.
    pub fn within(&self, range: LockRange) -> LockedRanges {
        let part = |(locked, kind)| Some((range.intersection(locked)?, kind));
        LockedRanges(self.iter().filter_map(part).collect())
    }

    /// The parts of `range` that are not locked.
    pub fn gaps(&self, range: LockRange) -> Vec<LockRange> {
        let mut gaps = LockedRanges::default();
        gaps.set(range, Some(LockKind::Read));
        self.iter().for_each(|(locked, _)| gaps.set(locked, None));
        gaps.iter().map(|(gap, _)| gap).collect()
    }

    /// The first of these locks that excludes another owner's lock.
    pub fn conflict(&self, range: LockRange, kind: LockKind) -> Option<(LockRange, LockKind)> {
        let excludes = |(locked, held): &(LockRange, LockKind)| {
            held.excludes(kind) && locked.intersection(range).is_some()
        };
        self.iter().find(excludes)
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, last: u64) -> LockRange {
        LockRange::new(start, last).unwrap()
    }

    #[test]
    fn ranges_are_converted_split_and_joined() {
        use LockKind::{Read, Write};
        let mut held = LockedRanges::default();
        held.set(range(10, 19), Some(Read));
        held.set(range(20, 29), Some(Read));
        assert_eq!(held.iter().collect::<Vec<_>>(), [(range(10, 29), Read)]);
        held.set(range(15, 16), Some(Write));
        let split = [(range(10, 14), Read), (range(15, 16), Write), (range(17, 29), Read)];
        assert_eq!(held.iter().collect::<Vec<_>>(), split);
        assert_eq!(held.within(range(16, 17)).len(), 2);
        assert_eq!(held.gaps(range(5, 40)), [range(5, 9), range(30, 40)]);
        assert_eq!(held.conflict(range(0, 14), Read), None);
        assert_eq!(held.conflict(range(0, 15), Read), Some((range(15, 16), Write)));
        assert_eq!(held.conflict(range(0, 15), Write), Some((range(10, 14), Read)));
        held.set(range(0, 24), None);
        assert_eq!(held.iter().collect::<Vec<_>>(), [(range(25, 29), Read)]);
        held.set(LockRange::WHOLE, Some(Write));
        assert_eq!(held.len(), 1);
        held.set(range(5, i64::MAX as u64), None);
        assert_eq!(held.iter().collect::<Vec<_>>(), [(range(0, 4), Write)]);
        held.set(LockRange::WHOLE, None);
        assert!(held.is_empty() && held.gaps(range(1, 2)) == [range(1, 2)]);
    }

    #[test]
    fn a_range_ends_with_the_largest_file() {
        assert_eq!(LockRange::new(0, u64::MAX), Some(LockRange::WHOLE));
        assert_eq!(LockRange::new(7, 6), None);
        assert_eq!(LockRange::new(u64::MAX, u64::MAX), None);
    }
}
