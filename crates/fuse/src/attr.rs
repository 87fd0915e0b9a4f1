//! Attributes, names and file system statistics returned by a file system, and their wire form.

use std::time::Duration;

use base::{Attr, Entry, Stat, StatVfs, Timestamp};

use crate::abi;

/// A device number as the kernel sends and receives it (`new_encode_dev`), from its major and minor
/// numbers.
fn encode_device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// Major and minor number of a device number in the kernel's form: the inverse of
/// [`encode_device`].
pub(crate) fn decode_device(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// `st_blksize`: how much `cat`, `cp` and stdio read at a time. The size of a request of the kernel's
/// usual readahead, so that programs that bypass the page cache do not request single pages.
const BLOCK_SIZE: u32 = 128 << 10;

/// `st_mode`.
fn mode(attr: &Attr) -> u32 {
    attr.kind.mode_bits() | (attr.perm & 0o7777)
}

/// Units of 512 bytes in use.
fn blocks(attr: &Attr) -> u64 {
    attr.inode.map_or(attr.size.div_ceil(512), |inode| inode.blocks)
}

/// Major and minor number of a device node.
fn device(attr: &Attr) -> (u32, u32) {
    attr.inode.map_or((0, 0), |inode| inode.rdev)
}

fn attr_out(stat: &Stat) -> abi::AttrOut {
    let Stat { number, attr, nlink, ctime, .. } = stat;
    abi::AttrOut {
        ino: *number,
        size: attr.size,
        blocks: blocks(attr),
        atime: attr.atime.secs,
        mtime: attr.mtime.secs,
        ctime: ctime.secs,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: ctime.nanos,
        mode: mode(attr),
        nlink: *nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(device(attr)),
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

pub(crate) fn getattr_out(stat: Stat) -> abi::GetattrOut {
    abi::GetattrOut {
        attr_valid: stat.ttl.as_secs(),
        attr_valid_nsec: stat.ttl.subsec_nanos(),
        dummy: 0,
        attr: attr_out(&stat),
    }
}

pub(crate) fn entry_out(entry: &Entry) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: entry.ino.0,
        generation: 0,
        entry_valid: entry.ttl.as_secs(),
        attr_valid: entry.stat.ttl.as_secs(),
        entry_valid_nsec: entry.ttl.subsec_nanos(),
        attr_valid_nsec: entry.stat.ttl.subsec_nanos(),
        attr: attr_out(&entry.stat),
    }
}

/// The name does not exist, and the kernel may cache that for `ttl`.
pub(crate) fn absent_out(ttl: Duration) -> abi::EntryOut {
    abi::EntryOut {
        entry_valid: ttl.as_secs(),
        entry_valid_nsec: ttl.subsec_nanos(),
        ..abi::EntryOut::default()
    }
}

pub(crate) fn statx_out(stat: Stat) -> abi::StatxOut {
    fn time(time: Timestamp) -> abi::SxTime {
        abi::SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 }
    }
    let Stat { number, attr, nlink, ctime, ttl } = stat;
    let btime = attr.id().and_then(|id| id.btime);
    let btime_mask = if btime.is_some() { libc::STATX_BTIME } else { 0 };
    let (rdev_major, rdev_minor) = device(&attr);
    abi::StatxOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        flags: 0,
        spare: [0; 2],
        stat: abi::Statx {
            mask: libc::STATX_BASIC_STATS | btime_mask,
            blksize: BLOCK_SIZE,
            nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: mode(&attr) as u16,
            ino: number,
            size: attr.size,
            blocks: blocks(&attr),
            atime: time(attr.atime),
            btime: time(btime.unwrap_or_default()),
            ctime: time(ctime),
            mtime: time(attr.mtime),
            rdev_major,
            rdev_minor,
            ..abi::Statx::default()
        },
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the file system's clock.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to set; `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New mode; only its bits in `0o7777` are valid.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length.
    pub size: Option<u64>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of last change of the content.
    pub mtime: Option<SetTime>,
    /// The open file that is changed (`ftruncate`, and `O_TRUNC` of an open).
    pub fh: Option<u64>,
    /// Clear set-user-ID and set-group-ID bits.
    pub kill_suidgid: bool,
}

pub(crate) fn statfs_out(figures: &StatVfs) -> abi::StatfsOut {
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    abi::StatfsOut {
        blocks: figures.blocks,
        bfree: figures.blocks_free,
        bavail: figures.blocks_available,
        files: figures.files,
        ffree: figures.files_free,
        bsize: small(figures.block_size),
        namelen: small(figures.name_max),
        frsize: small(figures.fragment_size),
        padding: 0,
        spare: [0; 6],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{FileKind, InodeAttr};

    fn stat(kind: FileKind) -> Stat {
        let (time, ttl) = (Timestamp::default(), Duration::ZERO);
        let attr =
            Attr { kind, perm: 0, size: 0, uid: 0, gid: 0, atime: time, mtime: time, inode: None };
        Stat { number: 7, attr, nlink: 1, ctime: time, ttl }
    }

    #[test]
    fn an_absent_entry_is_all_zero_but_its_ttl() {
        let wire = absent_out(Duration::from_millis(1500));
        let zero = abi::EntryOut {
            entry_valid: 1,
            entry_valid_nsec: 500_000_000,
            ..abi::EntryOut::default()
        };
        assert_eq!(wire, zero);
    }

    #[test]
    fn times_before_1970_and_modes_reach_the_wire() {
        let mut stat = stat(FileKind::Directory);
        stat.attr.perm = 0o10_1755;
        stat.attr.mtime = Timestamp { secs: -2, nanos: 250_000_000 };
        let wire = attr_out(&stat);
        assert_eq!((wire.mode, wire.mtime, wire.mtimensec), (0o041_755, -2, 250_000_000));
    }

    #[test]
    fn statx_has_the_device_numbers_that_the_kernel_joins() {
        // major 0x123, minor 0x45678, as new_encode_dev joins them.
        let joined = 0x78 | (0x123 << 8) | ((0x45678 & !0xff) << 12);
        let rdev = decode_device(joined);
        assert_eq!(rdev, (0x123, 0x45678));
        let mut stat = stat(FileKind::BlockDevice);
        stat.attr.inode =
            Some(InodeAttr { id: None, change: None, links: 1, blocks: 0, rdev, xattrs: None });
        assert_eq!(attr_out(&stat).rdev, joined);
        let stat = statx_out(stat).stat;
        assert_eq!((stat.rdev_major, stat.rdev_minor), (0x123, 0x45678));
        assert_eq!(stat.mask, 0x7ff);
    }
}
