//! Attributes: from `stat(2)` to the protocol, and from the protocol to changes of them.

use std::os::fd::OwnedFd;

use base::{AttrChange, Timestamp};
use rustix::fs::{Stat, fstatvfs};
use rustix::io::Result;
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

/// The change that a request asks for. Exact times have precedence.
pub(crate) fn change(attrs: &FileAttrs) -> AttrChange {
    let ExactAttrs { atime, mtime } = attrs.exact;
    let has_exact = atime.is_some() || mtime.is_some();
    let times = attrs.times.filter(|_| !has_exact);
    let time = |exact: Option<ExactTime>, secs: Option<u32>| match exact {
        Some(exact) => Some(Timestamp { secs: exact.secs, nanos: exact.nanos }),
        None => secs.map(|secs| Timestamp::from_secs(secs.into())),
    };
    AttrChange {
        size: attrs.size,
        uid: attrs.owner.map(|owner| owner.uid),
        gid: attrs.owner.map(|owner| owner.gid),
        perm: attrs.permissions.map(|permissions| permissions & 0o7777),
        atime: time(atime, times.map(|times| times.atime)),
        mtime: time(mtime, times.map(|times| times.mtime)),
    }
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
