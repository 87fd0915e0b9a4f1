//! The attributes that a file must have to be the file that was open: exactly the observed ones,
//! or, after changes by this mount, any that these changes explain. Acknowledged changes have
//! happened, others may have.
//!
//! A remote that tells files apart ([`Attr::id`]) answers this with certainty.

use base::{Attr, AttrChange, FileId, FileKind, Timestamp};

/// The permission bits that are compared. Servers clear other bits by themselves when a file is
/// written or gets another owner.
const COMPARED_PERM: u32 = 0o777;

/// The mtimes that a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mtime {
    Exactly(Timestamp),
    /// The file was changed since; clocks go forward.
    AtLeast(Timestamp),
    Any,
}

/// Whether a time is in the server's future. Such a time was set by utimens, and a write moves the
/// mtime back from it.
pub(crate) type IsFuture<'a> = &'a dyn Fn(Timestamp) -> bool;

/// The attributes that a file may have. `None` stands for any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedAttrs {
    kind: FileKind,
    perm: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    /// Bounds of the size in bytes, inclusive.
    min_size: u64,
    max_size: u64,
    mtime: Mtime,
    id: Option<FileId>,
}

impl Default for ExpectedAttrs {
    /// Those of a regular file that was not observed.
    fn default() -> ExpectedAttrs {
        ExpectedAttrs::created(FileKind::Regular)
    }
}

impl ExpectedAttrs {
    /// The attributes that were just observed. A directory changes with its entries, so its size is
    /// not compared, and its mtime is a lower bound.
    pub(crate) fn of(attr: &Attr) -> ExpectedAttrs {
        let (min_size, max_size, mtime) = match attr.kind {
            FileKind::Directory => (0, u64::MAX, Mtime::AtLeast(attr.mtime)),
            _ => (attr.size, attr.size, Mtime::Exactly(attr.mtime)),
        };
        ExpectedAttrs {
            kind: attr.kind,
            perm: Some(attr.perm & COMPARED_PERM),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            min_size,
            max_size,
            mtime,
            id: attr.id(),
        }
    }

    /// An entry of this kind that this mount has created and not observed since.
    pub(crate) fn created(kind: FileKind) -> ExpectedAttrs {
        let mtime = Mtime::Any;
        ExpectedAttrs {
            kind,
            perm: None,
            uid: None,
            gid: None,
            min_size: 0,
            max_size: u64::MAX,
            mtime,
            id: None,
        }
    }

    /// The kind and the identity, for a file that may have been changed by another of its names.
    pub(crate) fn kind_only(self) -> ExpectedAttrs {
        ExpectedAttrs { id: self.id, ..ExpectedAttrs::created(self.kind) }
    }

    /// The size in bytes, if only one is possible.
    pub(crate) fn size(&self) -> Option<u64> {
        (self.min_size == self.max_size).then_some(self.max_size)
    }

    /// The least possible size in bytes.
    pub(crate) fn min_size(&self) -> u64 {
        self.min_size
    }

    /// Whether only one mtime is possible: the file was observed after the last change.
    pub(crate) fn has_exact_mtime(&self) -> bool {
        matches!(self.mtime, Mtime::Exactly(_))
    }

    /// Whether the mtime was `time` when it was last observed.
    pub(crate) fn had_mtime(&self, time: Timestamp) -> bool {
        matches!(self.mtime, Mtime::Exactly(seen) | Mtime::AtLeast(seen) if seen == time)
    }

    /// The identity of a regular file, if it is known.
    pub(crate) fn regular_id(&self) -> Option<FileId> {
        self.id.filter(|_| self.kind == FileKind::Regular)
    }

    /// Whether `attr` is of the same file, which may have changed; `None` if that is not known.
    pub(crate) fn is_same_file(&self, attr: &Attr) -> Option<bool> {
        Some(self.id? == attr.id()?)
    }

    /// Whether a file with these attributes may be the same file.
    pub(crate) fn matches(&self, attr: &Attr) -> bool {
        self.difference(attr).is_none()
    }

    /// In what `attr` differs, for the log; `None` if these may be the attributes of the file.
    pub(crate) fn difference(&self, attr: &Attr) -> Option<String> {
        let differs =
            |expected: Option<u32>, actual: u32| expected.filter(|expected| *expected != actual);
        if attr.kind != self.kind {
            return Some(format!("it is a {:?}, not a {:?}", attr.kind, self.kind));
        }
        if self.is_same_file(attr) == Some(false) {
            return Some("it is another file".to_owned());
        }
        if let Some(perm) = differs(self.perm, attr.perm & COMPARED_PERM) {
            return Some(format!("its mode is {:o}, not {perm:o}", attr.perm & COMPARED_PERM));
        }
        if let Some(uid) = differs(self.uid, attr.uid) {
            return Some(format!("its owner is {}, not {uid}", attr.uid));
        }
        if let Some(gid) = differs(self.gid, attr.gid) {
            return Some(format!("its group is {}, not {gid}", attr.gid));
        }
        if !(self.min_size..=self.max_size).contains(&attr.size) {
            let ExpectedAttrs { min_size, max_size, .. } = self;
            return Some(match self.size() {
                Some(size) => format!("it has {} bytes, not {size}", attr.size),
                None => format!("it has {} bytes, not {min_size} to {max_size}", attr.size),
            });
        }
        match self.mtime {
            Mtime::Exactly(time) if time != attr.mtime => {
                Some(format!("it was changed at {}, not at {}", attr.mtime.secs, time.secs))
            }
            Mtime::AtLeast(time) if attr.mtime < time => {
                Some(format!("it was changed at {}, before {}", attr.mtime.secs, time.secs))
            }
            _ => None,
        }
    }

    /// Whether a file with these attributes may be the same file, longer and newer.
    pub(crate) fn has_grown_to(&self, attr: &Attr) -> bool {
        let grown = ExpectedAttrs { max_size: u64::MAX, ..*self };
        let newer = match self.mtime {
            Mtime::Exactly(time) => ExpectedAttrs { mtime: Mtime::AtLeast(time), ..grown },
            Mtime::AtLeast(_) | Mtime::Any => grown,
        };
        attr.kind == FileKind::Regular && attr.size > self.max_size && newer.matches(attr)
    }

    /// The mtime was set, or may have been set, to the server's current time.
    fn touch(&mut self, is_future: IsFuture<'_>) {
        if let Mtime::Exactly(time) = self.mtime {
            self.mtime = if is_future(time) { Mtime::Any } else { Mtime::AtLeast(time) };
        }
    }

    /// Bytes up to `end` were written.
    pub(crate) fn wrote(&mut self, end: u64, is_future: IsFuture<'_>) {
        self.min_size = self.min_size.max(end);
        self.may_have_written(end, is_future);
    }

    /// Bytes up to `end` may have been written, wholly or in part.
    pub(crate) fn may_have_written(&mut self, end: u64, is_future: IsFuture<'_>) {
        self.max_size = self.max_size.max(end);
        self.touch(is_future);
    }

    /// `len` bytes were appended.
    pub(crate) fn appended(&mut self, len: u64, is_future: IsFuture<'_>) {
        self.min_size = self.min_size.saturating_add(len);
        self.may_have_appended(len, is_future);
    }

    /// `len` bytes may have been appended, wholly or in part.
    pub(crate) fn may_have_appended(&mut self, len: u64, is_future: IsFuture<'_>) {
        self.may_have_written(self.max_size.saturating_add(len), is_future);
    }

    /// Attributes were set.
    pub(crate) fn set(&mut self, change: &AttrChange, is_future: IsFuture<'_>) {
        if let Some(size) = change.size {
            (self.min_size, self.max_size) = (size, size);
            self.touch(is_future);
        }
        if let Some(perm) = change.perm {
            self.perm = Some(perm & COMPARED_PERM);
        }
        self.uid = change.uid.or(self.uid);
        self.gid = change.gid.or(self.gid);
        if let Some(time) = change.mtime {
            // The server decides how much of a fraction it stores.
            let whole = Timestamp::from_secs(time.secs);
            self.mtime = match (change.touch, self.mtime) {
                // The given time, or the server's present.
                (true, Mtime::Exactly(seen) | Mtime::AtLeast(seen)) if !is_future(seen) => {
                    Mtime::AtLeast(seen.min(whole))
                }
                (true, _) => Mtime::Any,
                (false, _) if time == whole => Mtime::Exactly(time),
                (false, _) => Mtime::AtLeast(whole),
            };
        }
    }

    /// The permission bits may have been changed to any others.
    pub(crate) fn may_have_other_perm(&mut self) {
        self.perm = None;
    }

    /// Attributes may have been set, all or some of them.
    pub(crate) fn may_have_set(&mut self, change: &AttrChange, is_future: IsFuture<'_>) {
        if let Some(size) = change.size {
            self.min_size = self.min_size.min(size);
            self.max_size = self.max_size.max(size);
            self.touch(is_future);
        }
        self.perm = if change.perm.is_some() { None } else { self.perm };
        self.uid = if change.uid.is_some() { None } else { self.uid };
        self.gid = if change.gid.is_some() { None } else { self.gid };
        if change.mtime.is_some() {
            self.mtime = Mtime::Any;
        }
    }

    /// The attributes that one of the two allows.
    pub(crate) fn or(self, other: ExpectedAttrs) -> ExpectedAttrs {
        let both = |one: Option<u32>, other: Option<u32>| if one == other { one } else { None };
        let mtime = match (self.mtime, other.mtime) {
            (one, other) if one == other => one,
            (Mtime::Any, _) | (_, Mtime::Any) => Mtime::Any,
            (Mtime::Exactly(one) | Mtime::AtLeast(one), Mtime::Exactly(other))
            | (Mtime::Exactly(one) | Mtime::AtLeast(one), Mtime::AtLeast(other)) => {
                Mtime::AtLeast(one.min(other))
            }
        };
        ExpectedAttrs {
            kind: self.kind,
            perm: both(self.perm, other.perm),
            uid: both(self.uid, other.uid),
            gid: both(self.gid, other.gid),
            min_size: self.min_size.min(other.min_size),
            max_size: self.max_size.max(other.max_size),
            mtime,
            id: self.id.filter(|id| Some(*id) == other.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(size: u64, secs: i64) -> Attr {
        Attr {
            kind: FileKind::Regular,
            perm: 0o644,
            size,
            uid: 1,
            gid: 2,
            atime: Timestamp::from_secs(0),
            mtime: Timestamp::from_secs(secs),
            inode: None,
        }
    }

    fn past(_: Timestamp) -> bool {
        false
    }

    #[test]
    fn unchanged_attributes_must_be_equal() {
        let seen = attr(10, 100);
        let expected = ExpectedAttrs::of(&seen);
        assert!(expected.matches(&seen));
        assert!(expected.matches(&Attr { perm: 0o4644, ..seen }), "the server's own business");
        assert!(expected.matches(&Attr { atime: Timestamp::from_secs(9), ..seen }));
        for other in [
            attr(11, 100),
            attr(10, 101),
            Attr { perm: 0o600, ..seen },
            Attr { uid: 0, ..seen },
            Attr { gid: 0, ..seen },
            Attr { kind: FileKind::Directory, ..seen },
        ] {
            assert!(!expected.matches(&other), "{other:?}");
        }
    }

    #[test]
    fn writes_explain_their_possible_effects() {
        let mut expected = ExpectedAttrs::of(&attr(10, 100));
        expected.wrote(20, &past);
        expected.may_have_written(30, &past);
        for (size, secs, explained) in
            [(20, 100, true), (30, 500, true), (19, 100, false), (31, 100, false), (20, 99, false)]
        {
            assert_eq!(expected.matches(&attr(size, secs)), explained, "{size} {secs}");
        }
        let difference = |seen| expected.difference(&seen).unwrap();
        assert_eq!(difference(attr(19, 100)), "it has 19 bytes, not 20 to 30");
        assert_eq!(difference(attr(20, 99)), "it was changed at 99, before 100");
        expected.appended(5, &past);
        assert!(expected.matches(&attr(25, 100)) && expected.matches(&attr(35, 100)));
        assert!(!expected.matches(&attr(24, 100)) && !expected.matches(&attr(36, 100)));
        assert_eq!(expected.size(), None);
        expected.set(&AttrChange { size: Some(7), ..AttrChange::default() }, &past);
        assert_eq!(expected.size(), Some(7));
        assert!(expected.matches(&attr(7, 100)) && !expected.matches(&attr(20, 100)));
    }

    #[test]
    fn attributes_that_may_have_been_set_are_not_compared() {
        let mut expected = ExpectedAttrs::of(&attr(10, 100));
        let change = AttrChange {
            perm: Some(0o600),
            size: Some(3),
            mtime: Some(Timestamp::from_secs(5)),
            ..AttrChange::default()
        };
        expected.may_have_set(&change, &past);
        assert!(expected.matches(&attr(10, 100)));
        assert!(expected.matches(&Attr { perm: 0o600, ..attr(3, 5) }));
        expected.set(&change, &past);
        assert!(!expected.matches(&attr(10, 100)));
        assert!(expected.matches(&Attr { perm: 0o600, ..attr(3, 5) }));
        assert!(!expected.matches(&Attr { perm: 0o600, ..attr(3, 100) }));
        expected.set(&AttrChange { touch: true, ..change }, &past);
        assert!(expected.matches(&Attr { perm: 0o600, ..attr(3, 100) }), "the server's present");
        assert!(!expected.matches(&Attr { perm: 0o600, ..attr(3, 4) }), "before the last mtime");
    }

    #[test]
    fn a_write_moves_an_mtime_back_from_the_future() {
        let mut expected = ExpectedAttrs::of(&attr(10, 1_000));
        expected.wrote(10, &|_| true);
        assert!(expected.matches(&attr(10, 100)));
    }

    #[test]
    fn either_of_two_states_matches() {
        let (one, other) = (attr(10, 100), Attr { uid: 9, ..attr(20, 50) });
        let either = ExpectedAttrs::of(&one).or(ExpectedAttrs::of(&other));
        assert!(either.matches(&one) && either.matches(&other));
        assert!(!either.matches(&attr(30, 100)) && !either.matches(&attr(10, 49)));
    }
}
