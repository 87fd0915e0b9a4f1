//! What to do with one entry, from its attributes on both sides. Pure.

use base::{Attr, FileKind, Timestamp};

use crate::options::Options;
use crate::step::{Action, Skip, Why};

/// What is known before any content was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This.
    Is(Action),
    /// The content is the same; mode, times and owner may not be.
    SameContent,
    /// As [`Verdict::SameContent`] if the digests are equal, else a copy.
    ByDigest,
    /// As [`Verdict::SameContent`] if both links lead to the same, else a new link.
    ByTarget,
}

/// What to do with what is `attr` at the source and `there` at the target.
pub(crate) fn decide(options: &Options, attr: &Attr, there: Option<&Attr>) -> Verdict {
    let special = !matches!(attr.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
    // No archive has sockets, and no program misses them.
    if special && (!options.specials || attr.kind == FileKind::Socket) {
        return Verdict::Is(Action::Skip(Skip::Special));
    }
    let Some(there) = there else {
        return Verdict::Is(match options.existing {
            true => Action::Skip(Skip::Absent),
            false => make(attr, Why::New),
        });
    };
    if there.kind != attr.kind {
        return Verdict::Is(make(attr, Why::Kind));
    }
    match attr.kind {
        FileKind::Directory => Verdict::SameContent,
        FileKind::Symlink => Verdict::ByTarget,
        FileKind::Regular => regular(options, attr, there),
        // The device number is not known on both sides; its time is that of its creation.
        _ if is_same_second(attr.mtime, there.mtime) => Verdict::SameContent,
        _ => Verdict::Is(make(attr, Why::Time)),
    }
}

fn regular(options: &Options, attr: &Attr, there: &Attr) -> Verdict {
    let same_time = is_same_second(attr.mtime, there.mtime);
    let is_unconfirmed = there.mtime == unconfirmed_mtime(attr.mtime);
    if options.update
        && in_sftp_seconds(there.mtime) > in_sftp_seconds(attr.mtime)
        && !same_time
        && !is_unconfirmed
    {
        return Verdict::Is(Action::Skip(Skip::Newer));
    }
    if attr.size != there.size {
        return Verdict::Is(Action::Copy(Why::Size));
    }
    match (options.checksum || is_unconfirmed, same_time) {
        (true, _) => Verdict::ByDigest,
        (false, true) => Verdict::SameContent,
        (false, false) => Verdict::Is(Action::Copy(Why::Time)),
    }
}

/// A time as SFTP transfers it: whole seconds from 1970 to 2106, and the nearest of these for all
/// others.
fn in_sftp_seconds(time: Timestamp) -> i64 {
    time.secs.clamp(0, i64::from(u32::MAX))
}

/// Whether two times are equal at the resolution of SFTP. OpenSSH's server reports a time outside
/// of its range modulo 2^32, so that 1960 is 2096.
pub(crate) fn is_same_second(a: Timestamp, b: Timestamp) -> bool {
    in_sftp_seconds(a) == in_sftp_seconds(b) || a.secs as u32 == b.secs as u32
}

/// The mtime of a copy whose content is unconfirmed: the beginning of 1970, or one second later if
/// `mtime`, that of the source, is the beginning of 1970 over SFTP. This run and later ones compare
/// such a copy by digest.
pub(crate) fn unconfirmed_mtime(mtime: Timestamp) -> Timestamp {
    Timestamp::from_secs(i64::from(in_sftp_seconds(mtime) == 0))
}

fn make(attr: &Attr, why: Why) -> Action {
    match attr.kind {
        FileKind::Directory => Action::MakeDir,
        FileKind::Symlink => Action::MakeLink(why),
        _ => Action::Copy(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64, secs: i64, nanos: u32) -> Attr {
        let time = Timestamp { secs, nanos };
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o644, size, uid: 0, gid: 0, atime: time, mtime: time, inode: None }
    }

    fn of(kind: FileKind) -> Attr {
        Attr { kind, ..file(4, 5, 0) }
    }

    #[test]
    fn files_are_copied_where_size_or_second_differ() {
        let plain = Options::default();
        let verdict = |there| decide(&plain, &file(4, 5, 7), Some(&there));
        assert_eq!(verdict(file(4, 5, 0)), Verdict::SameContent);
        assert_eq!(verdict(file(3, 5, 7)), Verdict::Is(Action::Copy(Why::Size)));
        assert_eq!(verdict(file(4, 6, 7)), Verdict::Is(Action::Copy(Why::Time)));
        assert_eq!(decide(&plain, &file(4, 5, 7), None), Verdict::Is(Action::Copy(Why::New)));
    }

    #[test]
    fn times_that_sftp_cannot_carry_are_the_nearest_that_it_can() {
        let same = |a, b| is_same_second(Timestamp::from_secs(a), Timestamp::from_secs(b));
        assert!(same(-5, 0) && same(1 << 40, i64::from(u32::MAX)));
        assert!(!same(-5, 1) && !same(1, 2));
        // As OpenSSH's server reports it.
        assert!(same(-5, (1 << 32) - 5));
    }

    #[test]
    fn an_unconfirmed_copy_is_compared_by_digest() {
        for (secs, unconfirmed) in [(5, 0), (0, 1), (-7, 1)] {
            for update in [false, true] {
                let options = Options { update, ..Options::default() };
                let verdict = |there| decide(&options, &file(4, secs, 0), Some(&there));
                assert_eq!(verdict(file(4, unconfirmed, 0)), Verdict::ByDigest, "{secs}");
                assert_eq!(verdict(file(4, secs, 0)), Verdict::SameContent, "{secs}");
                assert_eq!(verdict(file(3, unconfirmed, 0)), Verdict::Is(Action::Copy(Why::Size)));
            }
        }
        let update = Options { update: true, ..Options::default() };
        let verdict = decide(&update, &file(4, -7, 0), Some(&file(3, 0, 0)));
        assert_eq!(verdict, Verdict::Is(Action::Copy(Why::Size)), "both are 1970 over SFTP");
    }

    #[test]
    fn update_existing_and_checksum_are_as_in_rsync() {
        let update = Options { update: true, ..Options::default() };
        let newer = Verdict::Is(Action::Skip(Skip::Newer));
        assert_eq!(decide(&update, &file(4, 5, 0), Some(&file(3, 6, 0))), newer);
        let older = decide(&update, &file(4, 5, 0), Some(&file(4, 4, 0)));
        assert_eq!(older, Verdict::Is(Action::Copy(Why::Time)));
        let existing = Options { existing: true, ..Options::default() };
        for kind in [FileKind::Regular, FileKind::Directory, FileKind::Symlink] {
            let absent = Verdict::Is(Action::Skip(Skip::Absent));
            assert_eq!(decide(&existing, &of(kind), None), absent, "{kind:?}");
        }
        let checksum = Options { checksum: true, ..Options::default() };
        assert_eq!(decide(&checksum, &file(4, 5, 0), Some(&file(4, 9, 0))), Verdict::ByDigest);
        let size = decide(&checksum, &file(4, 5, 0), Some(&file(5, 5, 0)));
        assert_eq!(size, Verdict::Is(Action::Copy(Why::Size)));
    }

    #[test]
    fn another_kind_is_replaced() {
        let plain = Options::default();
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Symlink];
        for kind in kinds {
            for there in kinds.into_iter().filter(|there| *there != kind) {
                let expected = match kind {
                    FileKind::Directory => Action::MakeDir,
                    FileKind::Symlink => Action::MakeLink(Why::Kind),
                    _ => Action::Copy(Why::Kind),
                };
                let verdict = decide(&plain, &of(kind), Some(&of(there)));
                assert_eq!(verdict, Verdict::Is(expected), "{kind:?} over {there:?}");
            }
        }
    }

    #[test]
    fn devices_only_when_asked() {
        let skip = Verdict::Is(Action::Skip(Skip::Special));
        assert_eq!(decide(&Options::default(), &of(FileKind::Fifo), None), skip);
        let asked = Options { specials: true, ..Options::default() };
        let copy = Verdict::Is(Action::Copy(Why::New));
        assert_eq!(decide(&asked, &of(FileKind::Fifo), None), copy);
    }
}
