//! Attributes: from `stat(2)` to the protocol, and from the protocol to changes of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::{AttrChange, StatVfs, Timestamp};
use local::may_have_xattrs;
use rustix::fs::{
    AtFlags, Stat, Statx, StatxAttributes, StatxFlags, StatxTimestamp, fstatvfs, statat, statx,
};
use rustix::io::{Errno, Result};
use sftp::codec::{ExactAttrs, FileAttrs, Owner, Times};

use crate::paths::{Device, Numbers, Paths};

/// What a symbolic link, and a directory on which something would be mounted, themselves are: the
/// same as `fstatat` does.
const OF_THE_ENTRY: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// The attributes of an open file, with these fields of [`ExactAttrs`]. Whether it has extended
/// attributes is only queried on devices that are local: elsewhere, it takes a round trip.
pub(crate) fn of_open(file: impl AsFd, fields: u32, paths: &Paths) -> Result<FileAttrs> {
    let flags = AtFlags::EMPTY_PATH | OF_THE_ENTRY;
    if fields == 0 {
        return Ok(of_stat(&statat(file, "", flags)?));
    }
    let found = statx(&file, "", flags, WANTED)?;
    let is_local = || paths.is_local_device(device(&found));
    let may_have = || is_local().then(|| may_have_xattrs(file.as_fd(), b""));
    Ok(of_statx(&found, fields, may_have, || paths.numbers(device(&found), &file)))
}

/// The attributes of the entry `name` of a directory, with these fields of [`ExactAttrs`] (with
/// none on a kernel without `statx(2)`). If the directory `is_local`, what is mounted on the entry
/// is described as this machine knows it: another machine that has it may be unreachable. If it is
/// not, it is not known whether the entry has extended attributes. `numbers` is as [`Paths::numbers`].
pub(crate) fn of_entry(
    dir: BorrowedFd<'_>,
    name: &[u8],
    fields: u32,
    is_local: bool,
    numbers: impl FnOnce(Device) -> Numbers,
) -> Result<FileAttrs> {
    let sync = if is_local { AtFlags::STATX_DONT_SYNC } else { AtFlags::empty() };
    let found = match statx(dir, name, OF_THE_ENTRY | sync, WANTED) {
        Err(Errno::NOSYS) => return statat(dir, name, OF_THE_ENTRY).map(|stat| of_stat(&stat)),
        found => found?,
    };
    let is_mounted = is_local && found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let may_have = || is_local.then(|| is_mounted || may_have_xattrs(dir, name));
    Ok(of_statx(&found, fields, may_have, || numbers(device(&found))))
}

fn device(found: &Statx) -> Device {
    (found.stx_dev_major, found.stx_dev_minor)
}

/// Whether the kernel has `statx(2)`, without which no fields of [`ExactAttrs`] are known.
pub(crate) fn has_statx() -> bool {
    statx(rustix::fs::CWD, "/", AtFlags::empty(), StatxFlags::BASIC_STATS).is_ok()
}

/// Times that do not fit into the protocol become the nearest ones that do.
fn seconds(time: i64) -> u32 {
    u32::try_from(time.max(0)).unwrap_or(u32::MAX)
}

/// The attributes in a `stat`.
#[allow(clippy::unnecessary_cast, reason = "on some machines these fields have other widths")]
pub(crate) fn of_stat(stat: &Stat) -> FileAttrs {
    FileAttrs {
        size: Some(stat.st_size as u64),
        owner: Some(Owner { uid: stat.st_uid, gid: stat.st_gid }),
        permissions: Some(stat.st_mode as u32),
        times: Some(Times {
            atime: seconds(stat.st_atime as i64),
            mtime: seconds(stat.st_mtime as i64),
        }),
        exact: ExactAttrs::default(),
    }
}

fn of_statx(
    found: &Statx,
    fields: u32,
    may_have_xattrs: impl FnOnce() -> Option<bool>,
    numbers: impl FnOnce() -> Numbers,
) -> FileAttrs {
    // A client takes an entry with another number or time of creation to be another one.
    let identity = ExactAttrs::INODE | ExactAttrs::BTIME;
    let change = ExactAttrs::NUMBER | ExactAttrs::CTIME;
    let left_out = match fields & (identity | change) {
        0 => 0,
        _ => match numbers() {
            Numbers::Identities => ExactAttrs::NUMBER,
            Numbers::Changes => identity,
            Numbers::Nothing => identity | change,
        },
    };
    let fields = fields & !left_out;
    let has = |field: u32| fields & field != 0;
    let time = |field: u32, time: StatxTimestamp| {
        has(field).then_some(Timestamp { secs: time.tv_sec, nanos: time.tv_nsec })
    };
    let knows_btime = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    FileAttrs {
        size: Some(found.stx_size),
        owner: Some(Owner { uid: found.stx_uid, gid: found.stx_gid }),
        permissions: Some(found.stx_mode.into()),
        times: Some(Times {
            atime: seconds(found.stx_atime.tv_sec),
            mtime: seconds(found.stx_mtime.tv_sec),
        }),
        exact: ExactAttrs {
            touch: false,
            atime: time(ExactAttrs::ATIME, found.stx_atime),
            mtime: time(ExactAttrs::MTIME, found.stx_mtime),
            ctime: time(ExactAttrs::CTIME, found.stx_ctime),
            btime: time(ExactAttrs::BTIME, found.stx_btime).filter(|_| knows_btime),
            inode: has(ExactAttrs::INODE).then_some((device, found.stx_ino)),
            links: has(ExactAttrs::LINKS).then_some(found.stx_nlink),
            blocks: has(ExactAttrs::BLOCKS).then_some(found.stx_blocks),
            rdev: has(ExactAttrs::RDEV).then_some((found.stx_rdev_major, found.stx_rdev_minor)),
            xattrs: has(ExactAttrs::XATTRS).then(may_have_xattrs).flatten(),
            number: has(ExactAttrs::NUMBER).then_some(found.stx_ino),
        },
    }
}

/// The change that a request asks for. Exact times have precedence.
pub(crate) fn change(attrs: &FileAttrs) -> AttrChange {
    let ExactAttrs { atime, mtime, .. } = attrs.exact;
    let has_exact = atime.is_some() || mtime.is_some();
    let times = attrs.times.filter(|_| !has_exact);
    let time = |exact: Option<Timestamp>, secs: Option<u32>| {
        exact.or(secs.map(|secs| Timestamp::from_secs(secs.into())))
    };
    // As for chown(2), -1 stays as it is: sshfs sends that.
    let id = |id: Option<u32>| id.filter(|id| *id != u32::MAX);
    AttrChange {
        size: attrs.size,
        uid: id(attrs.owner.map(|owner| owner.uid)),
        gid: id(attrs.owner.map(|owner| owner.gid)),
        perm: attrs.permissions.map(|permissions| permissions & 0o7777),
        atime: time(atime, times.map(|times| times.atime)),
        mtime: time(mtime, times.map(|times| times.mtime)),
        touch: attrs.exact.touch,
    }
}

/// The figures of the file system that contains an open file.
pub(crate) fn statvfs(file: &OwnedFd) -> Result<StatVfs> {
    let found = fstatvfs(file)?;
    Ok(local::to_statvfs(&found, found.f_fsid))
}
