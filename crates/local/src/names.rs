//! Operations on names: none of these calls follows the last name.

use std::os::fd::{AsFd, BorrowedFd};

use base::{Attr, Errno, FileKind, RemotePath, RenameMode, Result, StatVfs};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};

use crate::attr::{attr, errno, to_statvfs};
use crate::root::Root;

pub(crate) fn lstat(root: &Root, path: &RemotePath) -> Result<Attr> {
    attr(&root.stat(path)?)
}

pub(crate) fn readlink(root: &Root, path: &RemotePath) -> Result<Vec<u8>> {
    let entry = root.entry(path, Errno::EINVAL)?;
    let target = rustix::fs::readlinkat(&entry.dir, entry.name(), Vec::new()).map_err(errno)?;
    Ok(target.into_bytes())
}

pub(crate) fn opendir(root: &Root, path: &RemotePath) -> Result<Dir> {
    let fd = root.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    Dir::new(fd).map_err(errno)
}

pub(crate) fn fsyncdir(root: &Root, path: &RemotePath) -> Result<()> {
    let fd = root.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    rustix::fs::fsync(fd).map_err(errno)
}

pub(crate) fn mkdir(root: &Root, path: &RemotePath, perm: u32) -> Result<()> {
    let entry = root.entry(path, Errno::EEXIST)?;
    let mode = Mode::from_raw_mode(perm & 0o7777);
    rustix::fs::mkdirat(&entry.dir, entry.name(), mode).map_err(errno)
}

pub(crate) fn rmdir(root: &Root, path: &RemotePath) -> Result<()> {
    let entry = root.entry(path, Errno::EBUSY)?;
    rustix::fs::unlinkat(&entry.dir, entry.name(), AtFlags::REMOVEDIR).map_err(errno)
}

pub(crate) fn unlink(root: &Root, path: &RemotePath) -> Result<()> {
    let entry = root.entry(path, Errno::EISDIR)?;
    rustix::fs::unlinkat(&entry.dir, entry.name(), AtFlags::empty()).map_err(errno)
}

pub(crate) fn symlink(root: &Root, target: &[u8], path: &RemotePath) -> Result<()> {
    let entry = root.entry(path, Errno::EEXIST)?;
    rustix::fs::symlinkat(target, &entry.dir, entry.name()).map_err(errno)
}

pub(crate) fn mknod(
    root: &Root,
    path: &RemotePath,
    kind: FileKind,
    perm: u32,
    device: (u32, u32),
) -> Result<()> {
    let entry = root.entry(path, Errno::EEXIST)?;
    make_node((entry.dir.as_fd(), entry.name()), kind, perm, device)
}

/// Creates a FIFO, a socket or a device with this name in this directory.
///
/// # Errors
/// Those of `mknod(2)`; `EINVAL` for any other kind.
pub fn make_node(
    (dir, name): (BorrowedFd<'_>, &[u8]),
    kind: FileKind,
    perm: u32,
    device: (u32, u32),
) -> Result<()> {
    let file_type = match kind {
        FileKind::Fifo | FileKind::Socket | FileKind::BlockDevice | FileKind::CharDevice => {
            FileType::from_raw_mode(kind.mode_bits())
        }
        FileKind::Regular | FileKind::Directory | FileKind::Symlink => return Err(Errno::EINVAL),
    };
    let mode = Mode::from_raw_mode(perm & 0o7777);
    let device = rustix::fs::makedev(device.0, device.1);
    rustix::fs::mknodat(dir, name, file_type, mode, device).map_err(errno)
}

pub(crate) fn link(root: &Root, existing: &RemotePath, new: &RemotePath) -> Result<()> {
    let from = root.entry(existing, Errno::EPERM)?;
    let to = root.entry(new, Errno::EEXIST)?;
    let flags = AtFlags::empty();
    rustix::fs::linkat(&from.dir, from.name(), &to.dir, to.name(), flags).map_err(errno)
}

pub(crate) fn rename(
    root: &Root,
    from: &RemotePath,
    to: &RemotePath,
    mode: RenameMode,
) -> Result<()> {
    let (from, to) = (root.entry(from, Errno::EBUSY)?, root.entry(to, Errno::EBUSY)?);
    let flags = match mode {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
        RenameMode::Exchange => RenameFlags::EXCHANGE,
    };
    rustix::fs::renameat_with(&from.dir, from.name(), &to.dir, to.name(), flags).map_err(errno)
}

/// The identifier is the device number. That of `statvfs(2)` is not unique: an overlay may have that
/// of its upper layer, a copy of a file system has that of the original, and NFS and FUSE have none.
#[allow(clippy::unnecessary_cast, reason = "on some machines it is 32 bits wide")]
pub(crate) fn statvfs(root: &Root, path: &RemotePath) -> Result<StatVfs> {
    let fd = root.open_path(path)?;
    let found = rustix::fs::fstatvfs(&fd).map_err(errno)?;
    Ok(to_statvfs(&found, rustix::fs::fstat(&fd).map_err(errno)?.st_dev as u64))
}
