//! Attributes, names and file system statistics returned by a file system, and their wire form.

use std::time::Duration;

use base::{FileKind, Timestamp};

use crate::abi;

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// `st_ino`, as shown to users. The kernel does not use it.
    pub ino: u64,
    /// File type.
    pub kind: FileKind,
    /// Permission bits, `0o7777` at most.
    pub perm: u32,
    /// Number of links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device node, in the kernel's 32-bit form (`new_encode_dev`).
    pub rdev: u32,
    /// Bytes of content.
    pub size: u64,
    /// Units of 512 bytes in use.
    pub blocks: u64,
    /// Preferred size of an I/O in bytes; zero for the kernel's default.
    pub blksize: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
}

impl Attr {
    /// Attributes of an inode of which only number and type are known: no permissions, one link,
    /// times zero.
    pub fn new(ino: u64, kind: FileKind) -> Attr {
        Attr {
            ino,
            kind,
            perm: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        }
    }

    pub(crate) fn wire(&self) -> abi::AttrOut {
        abi::AttrOut {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.secs,
            mtime: self.mtime.secs,
            ctime: self.ctime.secs,
            atimensec: self.atime.nanos,
            mtimensec: self.mtime.nanos,
            ctimensec: self.ctime.nanos,
            mode: self.kind.mode_bits() | (self.perm & 0o7777),
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

/// Attributes and how long the kernel may cache them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// Time for which the kernel may use them without another request.
    pub ttl: Duration,
}

impl AttrReply {
    pub(crate) fn wire(&self) -> abi::GetattrOut {
        abi::GetattrOut {
            attr_valid: self.ttl.as_secs(),
            attr_valid_nsec: self.ttl.subsec_nanos(),
            dummy: 0,
            attr: self.attr.wire(),
        }
    }
}

/// A name that was looked up or created.
///
/// With an `ino` other than zero it **counts as one lookup**, which the kernel returns by
/// [`forget`](crate::Filesystem::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node id, by which the kernel identifies the inode. Zero: the name does not exist, and
    /// the kernel may cache that for `entry_ttl`.
    pub ino: u64,
    /// The attributes.
    pub attr: Attr,
    /// Time for which the attributes are valid.
    pub attr_ttl: Duration,
    /// Time for which the name is valid.
    pub entry_ttl: Duration,
}

impl Entry {
    /// A negative entry: the name does not exist, valid for `ttl`.
    pub fn negative(ttl: Duration) -> Entry {
        Entry {
            ino: 0,
            attr: Attr::new(0, FileKind::Regular),
            attr_ttl: Duration::ZERO,
            entry_ttl: ttl,
        }
    }

    pub(crate) fn wire(&self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.ino,
            generation: 0,
            entry_valid: self.entry_ttl.as_secs(),
            attr_valid: self.attr_ttl.as_secs(),
            entry_valid_nsec: self.entry_ttl.subsec_nanos(),
            attr_valid_nsec: self.attr_ttl.subsec_nanos(),
            attr: if self.ino == 0 { abi::AttrOut::default() } else { self.attr.wire() },
        }
    }
}

/// A device number as the kernel sends and receives it (`new_encode_dev`), from its major and minor
/// numbers.
pub fn encode_device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// Major and minor number of a device number in the kernel's form: the inverse of
/// [`encode_device`].
pub fn decode_device(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// The reply to `statx(2)`, with fields beyond [`Attr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxReply {
    /// The attributes.
    pub attr: Attr,
    /// Time of creation, if known.
    pub btime: Option<Timestamp>,
    /// Time for which the attributes are valid.
    pub ttl: Duration,
}

impl StatxReply {
    pub(crate) fn wire(&self) -> abi::StatxOut {
        fn time(time: Timestamp) -> abi::SxTime {
            abi::SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 }
        }
        let attr = &self.attr;
        let btime_mask = if self.btime.is_some() { libc::STATX_BTIME } else { 0 };
        let (rdev_major, rdev_minor) = decode_device(attr.rdev);
        abi::StatxOut {
            attr_valid: self.ttl.as_secs(),
            attr_valid_nsec: self.ttl.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            stat: abi::Statx {
                mask: libc::STATX_BASIC_STATS | btime_mask,
                blksize: attr.blksize,
                nlink: attr.nlink,
                uid: attr.uid,
                gid: attr.gid,
                mode: (attr.kind.mode_bits() | (attr.perm & 0o7777)) as u16,
                ino: attr.ino,
                size: attr.size,
                blocks: attr.blocks,
                atime: time(attr.atime),
                btime: time(self.btime.unwrap_or_default()),
                ctime: time(attr.ctime),
                mtime: time(attr.mtime),
                rdev_major,
                rdev_minor,
                ..abi::Statx::default()
            },
        }
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

/// Statistics of the file system, for `statfs(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statfs {
    /// Size in units of `fragment_size`.
    pub blocks: u64,
    /// Free units.
    pub blocks_free: u64,
    /// Free units for unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred size of an I/O in bytes.
    pub block_size: u32,
    /// Unit of the block counts in bytes.
    pub fragment_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
}

impl Default for Statfs {
    /// No statistics; names have up to 255 bytes.
    fn default() -> Statfs {
        Statfs {
            blocks: 0,
            blocks_free: 0,
            blocks_available: 0,
            files: 0,
            files_free: 0,
            block_size: 512,
            fragment_size: 512,
            name_max: 255,
        }
    }
}

impl Statfs {
    pub(crate) fn wire(&self) -> abi::StatfsOut {
        abi::StatfsOut {
            blocks: self.blocks,
            bfree: self.blocks_free,
            bavail: self.blocks_available,
            files: self.files,
            ffree: self.files_free,
            bsize: self.block_size,
            namelen: self.name_max,
            frsize: self.fragment_size,
            padding: 0,
            spare: [0; 6],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_entry_is_all_zero_but_its_ttl() {
        let wire = Entry::negative(Duration::from_millis(1500)).wire();
        let zero = abi::EntryOut {
            entry_valid: 1,
            entry_valid_nsec: 500_000_000,
            ..abi::EntryOut::default()
        };
        assert_eq!(wire, zero);
    }

    #[test]
    fn times_before_1970_and_modes_reach_the_wire() {
        let mut attr = Attr::new(7, FileKind::Directory);
        attr.perm = 0o10_1755;
        attr.mtime = Timestamp { secs: -2, nanos: 250_000_000 };
        let wire = attr.wire();
        assert_eq!((wire.mode, wire.mtime, wire.mtimensec), (0o041_755, -2, 250_000_000));
    }

    #[test]
    fn statx_splits_device_numbers_as_the_kernel_joins_them() {
        let mut attr = Attr::new(7, FileKind::BlockDevice);
        // major 0x123, minor 0x45678, as new_encode_dev joins them.
        attr.rdev = encode_device((0x123, 0x45678));
        assert_eq!(attr.rdev, 0x78 | (0x123 << 8) | ((0x45678 & !0xff) << 12));
        let reply = StatxReply { attr, btime: None, ttl: Duration::ZERO };
        let stat = reply.wire().stat;
        assert_eq!((stat.rdev_major, stat.rdev_minor), (0x123, 0x45678));
        assert_eq!(stat.mask, 0x7ff);
    }
}
