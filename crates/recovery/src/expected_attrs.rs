//! What a file must look like to be the one that we knew.
//!
//! Exactly as it was last seen, or, once it was changed through us, anything that our changes
//! explain: acknowledged ones have happened, others may have.

use base::{Attr, AttrChange, FileKind, Timestamp};

/// Permission bits that are compared. Servers take the others away by themselves, when a file is
/// written or given to somebody else.
const COMPARED_PERM: u32 = 0o777;

/// What time of last change a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mtime {
    Exactly(Timestamp),
    /// It was changed since; clocks go forward.
    AtLeast(Timestamp),
    Any,
}

/// Tells whether a time lies in the server's future. Somebody has set it then, and a write goes back
/// from it.
pub(crate) type Ahead<'a> = &'a dyn Fn(Timestamp) -> bool;

/// What a file may look like. `None` stands for any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expect {
    kind: FileKind,
    perm: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    /// The least and the greatest size in bytes.
    least: u64,
    most: u64,
    mtime: Mtime,
}

impl Expect {
    /// What was just seen. A directory changes with what is in it, so its size and time tell little.
    pub(crate) fn of(attr: &Attr) -> Expect {
        let (least, most, mtime) = match attr.kind {
            FileKind::Directory => (0, u64::MAX, Mtime::AtLeast(attr.mtime)),
            _ => (attr.size, attr.size, Mtime::Exactly(attr.mtime)),
        };
        Expect {
            kind: attr.kind,
            perm: Some(attr.perm & COMPARED_PERM),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            least,
            most,
            mtime,
        }
    }

    /// Something of this kind, made by us and not looked at since.
    pub(crate) fn made(kind: FileKind) -> Expect {
        let mtime = Mtime::Any;
        Expect { kind, perm: None, uid: None, gid: None, least: 0, most: u64::MAX, mtime }
    }

    /// What is left of it when the file may have been changed by another of its names.
    pub(crate) fn by_another_name(self) -> Expect {
        Expect::made(self.kind)
    }

    /// The size in bytes, if there is only one that it can have.
    pub(crate) fn size(&self) -> Option<u64> {
        (self.least == self.most).then_some(self.most)
    }

    /// Whether it had this time of last change when it was seen last.
    pub(crate) fn was_changed_at(&self, time: Timestamp) -> bool {
        matches!(self.mtime, Mtime::Exactly(seen) | Mtime::AtLeast(seen) if seen == time)
    }

    /// Whether a file with these attributes may be the one.
    pub(crate) fn explains(&self, attr: &Attr) -> bool {
        let same = |expected: Option<u32>, is: u32| expected.is_none_or(|expected| expected == is);
        let time = match self.mtime {
            Mtime::Exactly(time) => attr.mtime == time,
            Mtime::AtLeast(time) => attr.mtime >= time,
            Mtime::Any => true,
        };
        attr.kind == self.kind
            && same(self.perm, attr.perm & COMPARED_PERM)
            && same(self.uid, attr.uid)
            && same(self.gid, attr.gid)
            && (self.least..=self.most).contains(&attr.size)
            && time
    }

    /// In what `attr` differs, in words for the log.
    pub(crate) fn difference(&self, attr: &Attr) -> String {
        let differs = |expected: Option<u32>, is: u32| expected.filter(|expected| *expected != is);
        if attr.kind != self.kind {
            return format!("it is a {:?}, not a {:?}", attr.kind, self.kind);
        }
        if let Some(perm) = differs(self.perm, attr.perm & COMPARED_PERM) {
            return format!("its mode is {:o}, not {perm:o}", attr.perm & COMPARED_PERM);
        }
        if let Some(uid) = differs(self.uid, attr.uid) {
            return format!("its owner is {}, not {uid}", attr.uid);
        }
        if let Some(gid) = differs(self.gid, attr.gid) {
            return format!("its group is {}, not {gid}", attr.gid);
        }
        if !(self.least..=self.most).contains(&attr.size) {
            let Expect { least, most, .. } = self;
            return match self.size() {
                Some(size) => format!("it has {} bytes, not {size}", attr.size),
                None => format!("it has {} bytes, not {least} to {most}", attr.size),
            };
        }
        match self.mtime {
            Mtime::Exactly(time) if time != attr.mtime => {
                format!("it was changed at {}, not at {}", attr.mtime.secs, time.secs)
            }
            Mtime::AtLeast(time) if attr.mtime < time => {
                format!("it was changed at {}, before {}", attr.mtime.secs, time.secs)
            }
            _ => "it is the same again".to_owned(),
        }
    }

    /// Whether a file with these attributes may be the one, longer and newer than it was.
    pub(crate) fn has_grown_to(&self, attr: &Attr) -> bool {
        let grown = Expect { most: u64::MAX, ..*self };
        let newer = match self.mtime {
            Mtime::Exactly(time) => Expect { mtime: Mtime::AtLeast(time), ..grown },
            Mtime::AtLeast(_) | Mtime::Any => grown,
        };
        attr.kind == FileKind::Regular && attr.size > self.most && newer.explains(attr)
    }

    /// The time of last change was, or may have been, set to the server's now.
    fn touch(&mut self, ahead: Ahead<'_>) {
        if let Mtime::Exactly(time) = self.mtime {
            self.mtime = if ahead(time) { Mtime::Any } else { Mtime::AtLeast(time) };
        }
    }

    /// Bytes up to `end` were written.
    pub(crate) fn wrote(&mut self, end: u64, ahead: Ahead<'_>) {
        self.least = self.least.max(end);
        self.may_have_written(end, ahead);
    }

    /// Bytes up to `end` were written, or some of them, or none.
    pub(crate) fn may_have_written(&mut self, end: u64, ahead: Ahead<'_>) {
        self.most = self.most.max(end);
        self.touch(ahead);
    }

    /// So many bytes were put to the end.
    pub(crate) fn appended(&mut self, len: u64, ahead: Ahead<'_>) {
        self.least = self.least.saturating_add(len);
        self.may_have_appended(len, ahead);
    }

    /// So many bytes were put to the end, or some of them, or none.
    pub(crate) fn may_have_appended(&mut self, len: u64, ahead: Ahead<'_>) {
        self.may_have_written(self.most.saturating_add(len), ahead);
    }

    /// Attributes were set.
    pub(crate) fn set(&mut self, change: &AttrChange, ahead: Ahead<'_>) {
        if let Some(size) = change.size {
            (self.least, self.most) = (size, size);
            self.touch(ahead);
        }
        if let Some(perm) = change.perm {
            self.perm = Some(perm & COMPARED_PERM);
        }
        self.uid = change.uid.or(self.uid);
        self.gid = change.gid.or(self.gid);
        if let Some(time) = change.mtime {
            // What is kept of a fraction is the server's business.
            let whole = Timestamp::from_secs(time.secs);
            self.mtime = if time == whole { Mtime::Exactly(time) } else { Mtime::AtLeast(whole) };
        }
    }

    /// Attributes were set, or some of them, or none.
    pub(crate) fn may_have_set(&mut self, change: &AttrChange, ahead: Ahead<'_>) {
        if let Some(size) = change.size {
            self.least = self.least.min(size);
            self.most = self.most.max(size);
            self.touch(ahead);
        }
        self.perm = if change.perm.is_some() { None } else { self.perm };
        self.uid = if change.uid.is_some() { None } else { self.uid };
        self.gid = if change.gid.is_some() { None } else { self.gid };
        if change.mtime.is_some() {
            self.mtime = Mtime::Any;
        }
    }

    /// What is explained by either.
    pub(crate) fn or(self, other: Expect) -> Expect {
        let both = |one: Option<u32>, other: Option<u32>| if one == other { one } else { None };
        let mtime = match (self.mtime, other.mtime) {
            (one, other) if one == other => one,
            (Mtime::Any, _) | (_, Mtime::Any) => Mtime::Any,
            (Mtime::Exactly(one) | Mtime::AtLeast(one), Mtime::Exactly(other))
            | (Mtime::Exactly(one) | Mtime::AtLeast(one), Mtime::AtLeast(other)) => {
                Mtime::AtLeast(one.min(other))
            }
        };
        Expect {
            kind: self.kind,
            perm: both(self.perm, other.perm),
            uid: both(self.uid, other.uid),
            gid: both(self.gid, other.gid),
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            mtime,
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
        }
    }

    fn past(_: Timestamp) -> bool {
        false
    }

    #[test]
    fn what_was_not_changed_must_be_as_it_was() {
        let seen = attr(10, 100);
        let expect = Expect::of(&seen);
        assert!(expect.explains(&seen));
        assert!(expect.explains(&Attr { perm: 0o4644, ..seen }), "the server's own business");
        assert!(expect.explains(&Attr { atime: Timestamp::from_secs(9), ..seen }));
        for other in [
            attr(11, 100),
            attr(10, 101),
            Attr { perm: 0o600, ..seen },
            Attr { uid: 0, ..seen },
            Attr { gid: 0, ..seen },
            Attr { kind: FileKind::Directory, ..seen },
        ] {
            assert!(!expect.explains(&other), "{other:?}");
        }
    }

    #[test]
    fn writes_explain_what_they_may_have_done() {
        let mut expect = Expect::of(&attr(10, 100));
        expect.wrote(20, &past);
        expect.may_have_written(30, &past);
        for (size, secs, explained) in
            [(20, 100, true), (30, 500, true), (19, 100, false), (31, 100, false), (20, 99, false)]
        {
            assert_eq!(expect.explains(&attr(size, secs)), explained, "{size} {secs}");
        }
        assert_eq!(expect.difference(&attr(19, 100)), "it has 19 bytes, not 20 to 30");
        assert_eq!(expect.difference(&attr(20, 99)), "it was changed at 99, before 100");
        expect.appended(5, &past);
        assert!(expect.explains(&attr(25, 100)) && expect.explains(&attr(35, 100)));
        assert!(!expect.explains(&attr(24, 100)) && !expect.explains(&attr(36, 100)));
        assert_eq!(expect.size(), None);
        expect.set(&AttrChange { size: Some(7), ..AttrChange::default() }, &past);
        assert_eq!(expect.size(), Some(7));
        assert!(expect.explains(&attr(7, 100)) && !expect.explains(&attr(20, 100)));
    }

    #[test]
    fn what_may_have_been_set_is_not_compared() {
        let mut expect = Expect::of(&attr(10, 100));
        let change = AttrChange {
            perm: Some(0o600),
            size: Some(3),
            mtime: Some(Timestamp::from_secs(5)),
            ..AttrChange::default()
        };
        expect.may_have_set(&change, &past);
        assert!(expect.explains(&attr(10, 100)));
        assert!(expect.explains(&Attr { perm: 0o600, ..attr(3, 5) }));
        expect.set(&change, &past);
        assert!(!expect.explains(&attr(10, 100)));
        assert!(expect.explains(&Attr { perm: 0o600, ..attr(3, 5) }));
    }

    #[test]
    fn a_write_goes_back_from_a_time_in_the_future() {
        let mut expect = Expect::of(&attr(10, 1_000));
        expect.wrote(10, &|_| true);
        assert!(expect.explains(&attr(10, 100)));
    }

    #[test]
    fn either_of_two_is_explained() {
        let (one, other) = (attr(10, 100), Attr { uid: 9, ..attr(20, 50) });
        let either = Expect::of(&one).or(Expect::of(&other));
        assert!(either.explains(&one) && either.explains(&other));
        assert!(!either.explains(&attr(30, 100)) && !either.explains(&attr(10, 49)));
    }
}
