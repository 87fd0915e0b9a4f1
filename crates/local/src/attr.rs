//! Conversions: attributes from `stat(2)` and `statvfs(2)`, errors from rustix.

use base::{Attr, Errno, FileKind, Result, StatVfs, Timestamp};
use rustix::fs::Stat;

/// The errno of the system call, unchanged.
pub fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// The attributes in a `stat`.
///
/// # Errors
/// `EIO` for a file type that `FileKind` does not have.
#[allow(clippy::unnecessary_cast, reason = "on some machines these fields are 32 bits wide")]
pub fn attr(stat: &Stat) -> Result<Attr> {
    Ok(Attr {
        kind: kind(stat)?,
        perm: stat.st_mode as u32 & 0o7777,
        size: u64::try_from(stat.st_size).map_err(|_| Errno::EIO)?,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: Timestamp { secs: stat.st_atime as i64, nanos: stat.st_atime_nsec as u32 },
        mtime: Timestamp { secs: stat.st_mtime as i64, nanos: stat.st_mtime_nsec as u32 },
        inode: None,
    })
}

/// The file type in a `stat`; `EIO` for one that `FileKind` does not have.
#[allow(clippy::unnecessary_cast, reason = "on some machines the mode is 16 bits wide")]
pub(crate) fn kind(stat: &Stat) -> Result<FileKind> {
    FileKind::from_mode(stat.st_mode as u32).ok_or(Errno::EIO)
}

/// The error of opening an entry of this kind; `None` for a regular file.
pub(crate) fn open_error(kind: FileKind) -> Option<Errno> {
    match kind {
        FileKind::Regular => None,
        FileKind::Directory => Some(Errno::EISDIR),
        FileKind::Symlink => Some(Errno::ELOOP),
        FileKind::Fifo | FileKind::Socket | FileKind::BlockDevice | FileKind::CharDevice => {
            Some(Errno::ENXIO)
        }
    }
}

pub(crate) fn of_nix(error: nix::errno::Errno) -> Errno {
    Errno::from_raw(error as i32)
}

/// `fsid` becomes the identifier.
pub fn to_statvfs(found: &rustix::fs::StatVfs, fsid: u64) -> StatVfs {
    StatVfs {
        block_size: found.f_bsize,
        fragment_size: found.f_frsize.max(1),
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        files: found.f_files,
        files_free: found.f_ffree,
        files_available: found.f_favail,
        fsid,
        name_max: found.f_namemax,
        flags: found.f_flag.bits() & (StatVfs::READ_ONLY | StatVfs::NO_SUID),
    }
}
