//! Attributes of files and of file systems.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
}

impl FileKind {
    /// The type in the `S_IFMT` bits of a mode; `None` if those bits are invalid.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFBLK => FileKind::BlockDevice,
            libc::S_IFCHR => FileKind::CharDevice,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits of this type.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::BlockDevice => libc::S_IFBLK,
            FileKind::CharDevice => libc::S_IFCHR,
        }
    }
}

/// A time stamp of a file: seconds since 1970 (negative before), and nanoseconds in
/// `0..1_000_000_000` after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 00:00 UTC.
    pub secs: i64,
    /// Nanoseconds after `secs`.
    pub nanos: u32,
}

impl Timestamp {
    /// A time of whole seconds, the only kind that SFTP version 3 carries.
    pub fn from_secs(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    /// The current time of the local clock.
    pub fn now() -> Timestamp {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp { secs: after.as_secs() as i64, nanos: after.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let round_up = i64::from(before.subsec_nanos() > 0);
                Timestamp {
                    secs: -(before.as_secs() as i64) - round_up,
                    nanos: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
                }
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> SystemTime {
        let whole = Duration::from_secs(time.secs.unsigned_abs());
        let base = if time.secs < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
        base + Duration::from_nanos(u64::from(time.nanos))
    }
}

/// The identity of a file, the same by all its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The file system, unique at the remote.
    pub device: u64,
    /// The inode number, which may be that of a removed file.
    pub number: u64,
    /// Time of creation, where the file system records it.
    pub btime: Option<Timestamp>,
}

/// Identifies the last change of a file. No program can set it: a file with another content has
/// another one, even if its size and mtime are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChangeId {
    /// The inode number. A change may give the file another one.
    pub inode: u64,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
}

/// The attributes of an inode that plain SFTP has no fields for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeAttr {
    /// The identity, where the file system has one that lasts.
    pub id: Option<FileId>,
    /// The last change, where the file system records it.
    pub change: Option<ChangeId>,
    /// The number of names.
    pub links: u32,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Major and minor number of a device file.
    pub rdev: (u32, u32),
    /// Whether there may be extended attributes that a list of them contains, if known.
    pub xattrs: Option<bool>,
}

/// The attributes that a remote reports for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The type.
    pub kind: FileKind,
    /// Permission bits, `0o7777` at most.
    pub perm: u32,
    /// Size in bytes of a regular file, or of the target of a link; at most `i64::MAX`.
    pub size: u64,
    /// Owner, as numbered by the remote.
    pub uid: u32,
    /// Group, as numbered by the remote.
    pub gid: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// What plain SFTP has no fields for. All entries of one file system of a server have it, and
    /// the same of its optional fields, or none has it. Those of several may differ, as in a union
    /// of servers, and so may what a cache has kept of an immutable tree.
    pub inode: Option<InodeAttr>,
}

impl Attr {
    /// `st_mode`: kind and permission bits together.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The identity of the file, if it is known.
    pub fn id(&self) -> Option<FileId> {
        self.inode?.id
    }

    /// The last change of the file, if it is known.
    pub fn change(&self) -> Option<ChangeId> {
        self.inode?.change
    }

    /// Time of the last change of content or attributes, if it is known.
    pub fn ctime(&self) -> Option<Timestamp> {
        Some(self.change()?.ctime)
    }

    /// Whether it certainly has no other name.
    pub fn has_one_name(&self) -> bool {
        self.is_dir() || self.inode.is_some_and(|inode| inode.links == 1)
    }

    /// Whether both are of one file; `None` if the remote does not tell files apart.
    pub fn is_same_file(&self, other: &Attr) -> Option<bool> {
        Some(self.id()? == other.id()?)
    }

    /// Whether a file with the attributes `before` earlier and `after` later may have had these in
    /// between, while it was written: it is the same file, size and mtime do not decrease, and mode
    /// and owners are equal.
    pub fn is_between(&self, before: &Attr, after: &Attr) -> bool {
        let fixed = |attr: &Attr| (attr.kind, attr.perm, attr.uid, attr.gid);
        fixed(self) == fixed(before)
            && fixed(self) == fixed(after)
            && (before.size..=after.size).contains(&self.size)
            && (before.mtime..=after.mtime).contains(&self.mtime)
            && self.is_same_file(before).unwrap_or(true)
    }
}

/// Attributes to set; `None` leaves one unchanged.
///
/// Either all given attributes are set, or an error is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrChange {
    /// New permission bits, `0o7777` at most.
    pub perm: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes: the file is truncated, or extended with zeros.
    pub size: Option<u64>,
    /// New time of the last access.
    pub atime: Option<Timestamp>,
    /// New time of the last change of the content.
    pub mtime: Option<Timestamp>,
    /// `atime` and `mtime` are the present. If only the owner of a file may set them, a caller who
    /// may write to it can have the remote's present set instead, where the remote can do that.
    pub touch: bool,
}

impl AttrChange {
    /// Whether no attribute is to be set.
    pub fn is_empty(&self) -> bool {
        *self == AttrChange::default()
    }
}

/// Size and free space of a file system, as in `statvfs(3)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatVfs {
    /// Preferred size of an I/O in bytes.
    pub block_size: u64,
    /// Unit of the block counts in bytes; never zero from a [`Remote`](crate::Remote).
    pub fragment_size: u64,
    /// Size in fragments.
    pub blocks: u64,
    /// Free fragments.
    pub blocks_free: u64,
    /// Free fragments for unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Free inodes for unprivileged users.
    pub files_available: u64,
    /// Identifier of the file system, unique on one host.
    pub fsid: u64,
    /// Longest name in bytes.
    pub name_max: u64,
    /// [`StatVfs::READ_ONLY`], [`StatVfs::NO_SUID`] and others of `statvfs(3)`.
    pub flags: u64,
}

impl StatVfs {
    /// Mounted read-only.
    pub const READ_ONLY: u64 = 0x1;
    /// Mounted without set-user-id.
    pub const NO_SUID: u64 = 0x2;

    /// Whether it is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags & StatVfs::READ_ONLY != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intermediate_attributes_are_between() {
        let attr = |size, secs| Attr {
            kind: FileKind::Regular,
            perm: 0o644,
            size,
            uid: 1,
            gid: 1,
            atime: Timestamp::default(),
            mtime: Timestamp::from_secs(secs),
            inode: None,
        };
        let (before, after) = (attr(10, 5), attr(20, 6));
        for (size, secs, expected) in
            [(10, 5, true), (20, 6, true), (9, 5, false), (21, 6, false), (15, 7, false)]
        {
            assert_eq!(attr(size, secs).is_between(&before, &after), expected, "{size} {secs}");
        }
        assert!(!Attr { uid: 2, ..attr(15, 5) }.is_between(&before, &after));
        assert!(!attr(10, 5).is_between(&after, &before), "a file that shrank");
    }

    #[test]
    fn kinds_survive_the_mode() {
        for kind in [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::BlockDevice,
            FileKind::CharDevice,
        ] {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o7777), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), None);
        assert_eq!(FileKind::from_mode(0o170_000), None);
    }

    #[test]
    fn times_before_1970_keep_their_fraction() {
        let time = Timestamp { secs: -2, nanos: 250_000_000 };
        assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        assert!(time < Timestamp::from_secs(-1));
    }
}
