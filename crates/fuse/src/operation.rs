//! The kernel's requests as typed values, created by [`request`](crate::request).

use base::{LockKind, LockOwner, LockRange};

use crate::attr::SetAttr;

/// The caller and number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// User id for file access (`fsuid`).
    pub uid: u32,
    /// Group id for file access (`fsgid`).
    pub gid: u32,
    /// The process; zero if it is not visible from the mount's pid namespace, or if the kernel
    /// itself makes the request.
    pub pid: u32,
    /// The number of the request, unique during the life of a mount.
    pub unique: u64,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Flags of `open(2)`, without `O_CREAT` and `O_EXCL`; with `O_TRUNC` if the kernel leaves
    /// truncation to the file system.
    pub flags: i32,
    /// Clear set-user-ID and set-group-ID bits.
    pub kill_suidgid: bool,
}

/// How a file is created and opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Flags of `open(2)`.
    pub flags: i32,
    /// File type and permissions, before the umask.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Clear set-user-ID and set-group-ID bits.
    pub kill_suidgid: bool,
}

/// A read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The open file.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; a shorter reply means the end of the file.
    pub size: u32,
}

/// A write to a file; the data is passed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The open file; any of the inode's files if `cached`.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Flags of the open file; `O_DSYNC` and `O_SYNC` also if only this write is synchronous.
    pub flags: i32,
    /// From the page cache (a shared mapping), not from `write(2)`.
    pub cached: bool,
    /// Clear set-user-ID and set-group-ID bits.
    pub kill_suidgid: bool,
}

/// A lock to set or to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub fh: u64,
    /// The lock's owner.
    pub owner: LockOwner,
    /// The bytes; `None` for an invalid range.
    pub range: Option<LockRange>,
    /// Type; `None` to unlock.
    pub kind: Option<LockKind>,
    /// The caller waits for the lock.
    pub wait: bool,
}

/// A copy between two files of this file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The open file to read.
    pub fh_in: u64,
    /// First byte to read.
    pub offset_in: u64,
    /// The inode to write.
    pub ino_out: u64,
    /// The open file to write.
    pub fh_out: u64,
    /// First byte to write.
    pub offset_out: u64,
    /// Bytes to copy.
    pub len: u64,
}

/// The operation of a request; borrows from its bytes.
///
/// Names are not empty and contain no `/`; nothing else is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the methods of `Filesystem`, described there.
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    /// Pairs of node id and count in wire format.
    BatchForget {
        items: ForgetItems<'a>,
    },
    Getattr,
    Setattr {
        change: SetAttr,
    },
    Statx,
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        ino: u64,
        new_name: &'a [u8],
    },
    Open(Open),
    Read(Read),
    Write(Write, &'a [u8]),
    Statfs,
    Release {
        fh: u64,
    },
    Fsync {
        fh: u64,
    },
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Init(Init),
    Opendir,
    /// `plus`: with lookups.
    Readdir {
        read: Read,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir,
    Getlk(LockRequest),
    Setlk(LockRequest),
    Access {
        mask: u32,
    },
    Create {
        name: &'a [u8],
        create: Create,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    NotifyReply,
    Fallocate {
        fh: u64,
        offset: u64,
        len: u64,
        mode: i32,
    },
    Lseek {
        fh: u64,
        offset: i64,
        whence: u32,
    },
    /// `wide`: the reply has 64 bits (`FUSE_COPY_FILE_RANGE_64`).
    CopyFileRange {
        copy: CopyFileRange,
        wide: bool,
    },
    /// An unsupported request.
    Unknown {
        opcode: u32,
    },
}

/// The kernel's offer in the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
    /// All capabilities; those of `flags2` in the upper 32 bits.
    pub flags: u64,
}

/// The items of a `FUSE_BATCH_FORGET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgetItems<'a>(pub(crate) &'a [u8]);

impl Iterator for ForgetItems<'_> {
    /// Node id and count.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        use crate::abi::Wire;
        let one = crate::abi::ForgetOne::take(&mut self.0)?;
        Some((one.nodeid, one.nlookup))
    }
}
