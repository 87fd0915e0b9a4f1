//! Attributes without a system call that could wait.
//!
//! The kernel is asked to find the name in its cache of names alone (`RESOLVE_CACHED`), and then
//! for attributes without asking any server (`AT_STATX_DONT_SYNC`). That is only believed on the
//! file system of the root, where that is one of this machine: there what the kernel has in memory
//! is what is true.

use base::{Attr, Errno, FileKind, RemotePath, Result, Timestamp};
use rustix::fs::{AtFlags, OFlags, ResolveFlags, Statx, StatxFlags, fstatfs, statx};

use crate::root::{CONFINED, Root};

/// File systems whose attributes are true as they are in memory, by the numbers of `statfs(2)`:
/// ext2 to ext4, XFS, btrfs, tmpfs, F2FS.
const LOCAL_KINDS: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010];

/// The device of a file system of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalDevice {
    major: u32,
    minor: u32,
}

impl LocalDevice {
    /// That of the root; `None` when it is of another kind.
    #[allow(clippy::unnecessary_cast, reason = "its width differs between machines")]
    pub(crate) fn of(root: &Root) -> Option<LocalDevice> {
        let kind = fstatfs(root.fd()).ok()?.f_type as u32;
        if !LOCAL_KINDS.contains(&u64::from(kind)) {
            return None;
        }
        LocalDevice::named(&statx(root.fd(), "", AtFlags::EMPTY_PATH, StatxFlags::empty()).ok()?)
    }

    fn named(found: &Statx) -> Option<LocalDevice> {
        Some(LocalDevice { major: found.stx_dev_major, minor: found.stx_dev_minor })
    }
}

/// The attributes of what `path` names, or that there is nothing; `None` when that cannot be told
/// without waiting.
pub(crate) fn glance(root: &Root, path: &RemotePath, on: LocalDevice) -> Option<Result<Attr>> {
    let cached = CONFINED.union(ResolveFlags::CACHED);
    let fd = match root.resolve_with(path, OFlags::PATH, cached) {
        Ok(fd) => fd,
        // The kernel knows that there is nothing.
        Err(Errno::ENOENT) => return Some(Err(Errno::ENOENT)),
        Err(_) => return None,
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&fd, "", flags, StatxFlags::BASIC_STATS).ok()?;
    if LocalDevice::named(&found) != Some(on) {
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
    })
}
