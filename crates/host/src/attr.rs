//! Conversion of SFTP attributes to [`Attr`] and back.

use base::{Attr, ChangeId, Errno, FileId, FileKind, InodeAttr, StatVfs, Timestamp};
use sftp::FileAttrs;
use sftp::codec::ExactAttrs;

/// Permission bits that may be set.
pub(crate) const PERM_BITS: u32 = 0o7777;

/// Times beyond this many seconds before and after 1970 become the nearest that are not: the year
/// 36,800. Sums of them do not overflow.
const MAX_SECS: i64 = 1 << 40;

/// The file type in the attributes, if there is one.
pub(crate) fn kind(attrs: &FileAttrs) -> Option<FileKind> {
    FileKind::from_mode(attrs.permissions?)
}

/// `EIO` if the server sends no file type, or a size that no file can have.
pub(crate) fn from_wire(attrs: &FileAttrs) -> Result<Attr, Errno> {
    let kind = kind(attrs).ok_or(Errno::EIO)?;
    let size = attrs.size.unwrap_or(0);
    if i64::try_from(size).is_err() {
        return Err(Errno::EIO);
    }
    let time = |exact: Option<Timestamp>, seconds: Option<u32>| match (exact, seconds) {
        (Some(exact), _) => bounded(exact),
        (None, Some(seconds)) => Timestamp::from_secs(i64::from(seconds)),
        (None, None) => Timestamp::default(),
    };
    Ok(Attr {
        kind,
        perm: attrs.permissions.unwrap_or(0) & PERM_BITS,
        size,
        uid: attrs.owner.map_or(0, |owner| owner.uid),
        gid: attrs.owner.map_or(0, |owner| owner.gid),
        atime: time(attrs.exact.atime, attrs.times.map(|times| times.atime)),
        mtime: time(attrs.exact.mtime, attrs.times.map(|times| times.mtime)),
        inode: inode(&attrs.exact),
    })
}

fn bounded(time: Timestamp) -> Timestamp {
    Timestamp { secs: time.secs.clamp(-MAX_SECS, MAX_SECS), nanos: time.nanos }
}

/// `None` unless the server sends all fields that each file system has.
fn inode(exact: &ExactAttrs) -> Option<InodeAttr> {
    let btime = exact.btime.map(bounded);
    let id = exact.inode.map(|(device, number)| FileId { device, number, btime });
    // A ctime without a number is not one to rely on.
    let number = id.map(|id| id.number).or(exact.number);
    let change = number.zip(exact.ctime);
    Some(InodeAttr {
        id,
        change: change.map(|(inode, ctime)| ChangeId { inode, ctime: bounded(ctime) }),
        links: exact.links?,
        blocks: exact.blocks?,
        rdev: exact.rdev?,
        xattrs: exact.xattrs,
    })
}

/// Whole seconds within the range of the protocol, 1970 to 2106. Times beyond it become the
/// nearest, as Linux does for file systems with such limits.
pub(crate) fn seconds(time: Timestamp) -> u32 {
    time.secs.clamp(0, i64::from(u32::MAX)) as u32
}

/// The reply to STATVFS with no zero in the values that callers divide by.
pub(crate) fn statvfs(sent: StatVfs) -> StatVfs {
    let first_nonzero = |values: [u64; 3]| values.into_iter().find(|value| *value > 0).unwrap_or(1);
    StatVfs {
        block_size: first_nonzero([sent.block_size, sent.fragment_size, 4096]),
        fragment_size: first_nonzero([sent.fragment_size, sent.block_size, 4096]),
        name_max: first_nonzero([sent.name_max, 255, 255]),
        ..sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_attributes_are_rejected() {
        let good = FileAttrs { size: Some(5), permissions: Some(0o100_644), ..Default::default() };
        let attr = from_wire(&good).unwrap();
        assert_eq!((attr.kind, attr.perm, attr.size), (FileKind::Regular, 0o644, 5));
        for bad in [
            FileAttrs { permissions: None, ..good },
            FileAttrs { permissions: Some(0o644), ..good },
            FileAttrs { size: Some(1 << 63), ..good },
        ] {
            assert_eq!(from_wire(&bad), Err(Errno::EIO), "{bad:?}");
        }
        let sizeless = FileAttrs { size: None, ..good };
        assert_eq!(from_wire(&sizeless).unwrap().size, 0);
    }

    /// An earlier server sends the ctime of every file system.
    #[test]
    fn a_ctime_without_a_number_is_not_used() {
        let time = Timestamp { secs: 5, nanos: 6 };
        let (number, ctime) = (Some(7), Some(time));
        let exact = ExactAttrs {
            links: Some(2),
            blocks: Some(8),
            rdev: Some((0, 0)),
            ctime,
            ..ExactAttrs::default()
        };
        let known =
            |exact| inode(&exact).map(|it| (it.id.map(|id| id.number), it.change.is_some()));
        assert_eq!(known(exact), Some((None, false)));
        assert_eq!(known(ExactAttrs { number, ..exact }), Some((None, true)));
        assert_eq!(known(ExactAttrs { inode: Some((1, 7)), ..exact }), Some((Some(7), true)));
        let without = ExactAttrs { inode: Some((1, 7)), ctime: None, ..exact };
        assert_eq!(known(without), Some((Some(7), false)));
        assert_eq!(known(ExactAttrs { links: None, ..exact }), None);
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        for (secs, sent) in [(-1, 0), (0, 0), (77, 77), (1 << 32, u32::MAX), (i64::MAX, u32::MAX)] {
            assert_eq!(seconds(Timestamp { secs, nanos: 9 }), sent);
        }
    }

    #[test]
    fn divisors_are_never_zero() {
        let statvfs = statvfs(StatVfs::default());
        assert!(statvfs.block_size > 0 && statvfs.fragment_size > 0 && statvfs.name_max > 0);
    }
}
