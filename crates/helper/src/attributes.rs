//! Attributes: from `stat(2)` to the protocol, and changes of them.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, chmodat, chownat,
    fchmod, fchown, fstatvfs, ftruncate, futimens, openat, utimensat,
};
use rustix::io::{Errno, Result};
use sftp::StatVfs;
use sftp::codec::{ExactAttrs, ExactTime, FileAttrs, Owner, Times};

/// The attributes in a `stat`, and these fields of [`ExactAttrs`]. Times that do not fit into the
/// protocol become the nearest ones that do.
#[allow(clippy::unnecessary_cast, reason = "on some machines these fields have other widths")]
pub(crate) fn of_stat(stat: &Stat, fields: u32) -> FileAttrs {
    let exact = |field: u32, secs: i64, nanos: u32| {
        (fields & field != 0).then_some(ExactTime { secs, nanos })
    };
    let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
    FileAttrs {
        size: Some(stat.st_size as u64),
        owner: Some(Owner { uid: stat.st_uid, gid: stat.st_gid }),
        permissions: Some(stat.st_mode as u32),
        times: Some(Times {
            atime: seconds(stat.st_atime as i64),
            mtime: seconds(stat.st_mtime as i64),
        }),
        exact: ExactAttrs {
            atime: exact(ExactAttrs::ATIME, stat.st_atime as i64, stat.st_atime_nsec as u32),
            mtime: exact(ExactAttrs::MTIME, stat.st_mtime as i64, stat.st_mtime_nsec as u32),
        },
    }
}

/// Changes an open file. The order matters: a new size and a new owner clear set-id bits, and a new
/// size sets a new time.
pub(crate) fn set_by_handle(file: &OwnedFd, attrs: &FileAttrs) -> Result<()> {
    if let Some(size) = attrs.size {
        ftruncate(file, size)?;
    }
    if let Some((uid, gid)) = owner(attrs)? {
        fchown(file, Some(uid), Some(gid))?;
    }
    if let Some(mode) = mode(attrs) {
        fchmod(file, mode)?;
    }
    if let Some(times) = times(attrs) {
        futimens(file, &times)?;
    }
    Ok(())
}

/// Changes the entry that `pinned` is a descriptor of, opened with `O_PATH`. What such a descriptor
/// does not permit is done through `/proc`. The mode of a symbolic link cannot be changed:
/// `EOPNOTSUPP`.
pub(crate) fn set_by_path(pinned: &OwnedFd, attrs: &FileAttrs) -> Result<()> {
    use std::os::fd::AsFd;
    let is_link = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(pinned)?.st_mode)
        == rustix::fs::FileType::Symlink;
    let link = proc_link(pinned.as_fd());
    if let Some(size) = attrs.size {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(CWD, &link, flags, Mode::empty()).map_err(proc_error)?;
        ftruncate(&file, size)?;
    }
    if let Some((uid, gid)) = owner(attrs)? {
        chownat(pinned, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = mode(attrs) {
        if is_link {
            return Err(Errno::OPNOTSUPP);
        }
        chmodat(CWD, &link, mode, AtFlags::empty()).map_err(proc_error)?;
    }
    if let Some(times) = times(attrs) {
        utimensat(pinned, "", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

fn proc_link(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The entry is open, so it is `/proc` that is missing.
fn proc_error(errno: Errno) -> Errno {
    if errno == Errno::NOENT { Errno::OPNOTSUPP } else { errno }
}

fn mode(attrs: &FileAttrs) -> Option<Mode> {
    attrs.permissions.map(|permissions| Mode::from_raw_mode(permissions & 0o7777))
}

/// `u32::MAX` means "no change" to the system, and is refused.
fn owner(attrs: &FileAttrs) -> Result<Option<(Uid, Gid)>> {
    match attrs.owner {
        Some(Owner { uid: u32::MAX, .. } | Owner { gid: u32::MAX, .. }) => Err(Errno::INVAL),
        owner => Ok(owner.map(|owner| (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid)))),
    }
}

fn times(attrs: &FileAttrs) -> Option<Timestamps> {
    let ExactAttrs { atime, mtime } = attrs.exact;
    if atime.is_some() || mtime.is_some() {
        let time = |time: Option<ExactTime>| match time {
            Some(time) => Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        return Some(Timestamps { last_access: time(atime), last_modification: time(mtime) });
    }
    let time = |secs: u32| Timespec { tv_sec: secs.into(), tv_nsec: 0 };
    attrs.times.map(|times| Timestamps {
        last_access: time(times.atime),
        last_modification: time(times.mtime),
    })
}

/// The figures of the file system that contains an open file.
pub(crate) fn statvfs(file: &OwnedFd) -> Result<StatVfs> {
    let found = fstatvfs(file)?;
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    use rustix::fs::StatVfsMountFlags as Flags;
    Ok(StatVfs {
        block_size: found.f_bsize,
        fragment_size: found.f_frsize,
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        files: found.f_files,
        files_free: found.f_ffree,
        files_available: found.f_favail,
        fsid: found.f_fsid,
        flags: flag(found.f_flag.contains(Flags::RDONLY), StatVfs::READ_ONLY)
            | flag(found.f_flag.contains(Flags::NOSUID), StatVfs::NO_SUID),
        name_max: found.f_namemax,
    })
}
