//! Attributes from the kernel's caches, without a system call that could block.
//!
//! The name is resolved in the dentry cache alone (`RESOLVE_CACHED`), and the attributes are read
//! without a request to a server (`AT_STATX_DONT_SYNC`). The result is used only on the file system
//! of the root, and only if that is a local one: there the attributes in memory are the current
//! ones.

use base::{Attr, Errno, FileKind, RemotePath, Result, Timestamp};
use rustix::fs::{AtFlags, OFlags, ResolveFlags, Statx, StatxFlags, fstatfs, statx};

use crate::root::{CONFINED, Root};

/// Local file systems, whose attributes in memory are current, by their magic numbers in
/// `statfs(2)`: ext2 to ext4, XFS, btrfs, tmpfs, F2FS.
const LOCAL_KINDS: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010];

/// The device number of a local file system: major and minor.
pub(crate) type LocalDevice = (u32, u32);

/// The device of the root; `None` when it is not on a local file system.
#[allow(clippy::unnecessary_cast, reason = "its width differs between machines")]
pub(crate) fn local_device(root: &Root) -> Option<LocalDevice> {
    let kind = fstatfs(root.fd()).ok()?.f_type as u32;
    if !LOCAL_KINDS.contains(&u64::from(kind)) {
        return None;
    }
    let found = statx(root.fd(), "", AtFlags::EMPTY_PATH, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// `lstat` from memory: the attributes, or that the name is absent; `None` when the kernel would
/// have to read a disk or query a server.
pub(crate) fn lstat_cached(
    root: &Root,
    path: &RemotePath,
    on: LocalDevice,
) -> Option<Result<Attr>> {
    let cached = CONFINED.union(ResolveFlags::CACHED);
    let fd = match root.resolve_with(path, OFlags::PATH, cached) {
        Ok(fd) => fd,
        // A negative dentry.
        Err(Errno::ENOENT) => return Some(Err(Errno::ENOENT)),
        Err(_) => return None,
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&fd, "", flags, StatxFlags::BASIC_STATS).ok()?;
    if (found.stx_dev_major, found.stx_dev_minor) != on {
        return None;
    }
    Some(attr(&found))
}

fn attr(found: &Statx) -> Result<Attr> {
    let time =
        |time: rustix::fs::StatxTimestamp| Timestamp { secs: time.tv_sec, nanos: time.tv_nsec };
    let mode = u32::from(found.stx_mode);
    Ok(Attr {
        kind: FileKind::from_mode(mode).ok_or(Errno::EIO)?,
        perm: mode & 0o7777,
        size: found.stx_size,
        uid: found.stx_uid,
        gid: found.stx_gid,
        atime: time(found.stx_atime),
        mtime: time(found.stx_mtime),
        inode: None,
    })
}
