//! Operations on names: none of these calls follows the last name.

use base::{Attr, RemotePath, RenameMode, Result, StatVfs};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};

use crate::attr::{attr, errno, to_statvfs};
use crate::root::Root;

pub(crate) fn lstat(root: &Root, path: &RemotePath) -> Result<Attr> {
    attr(&root.stat(path)?)
}

pub(crate) fn readlink(root: &Root, path: &RemotePath) -> Result<Vec<u8>> {
    if path.is_root() {
        return Err(base::Errno::EINVAL);
    }
    let entry = root.entry(path)?;
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
    if path.is_root() {
        return Err(base::Errno::EEXIST);
    }
    let entry = root.entry(path)?;
    let mode = Mode::from_raw_mode(perm & 0o7777);
    rustix::fs::mkdirat(&entry.dir, entry.name(), mode).map_err(errno)
}

pub(crate) fn rmdir(root: &Root, path: &RemotePath) -> Result<()> {
    let entry = root.entry(path)?;
    rustix::fs::unlinkat(&entry.dir, entry.name(), AtFlags::REMOVEDIR).map_err(errno)
}

pub(crate) fn unlink(root: &Root, path: &RemotePath) -> Result<()> {
    if path.is_root() {
        return Err(base::Errno::EISDIR);
    }
    let entry = root.entry(path)?;
    rustix::fs::unlinkat(&entry.dir, entry.name(), AtFlags::empty()).map_err(errno)
}

pub(crate) fn symlink(root: &Root, target: &[u8], path: &RemotePath) -> Result<()> {
    if path.is_root() {
        return Err(base::Errno::EEXIST);
    }
    let entry = root.entry(path)?;
    rustix::fs::symlinkat(target, &entry.dir, entry.name()).map_err(errno)
}

pub(crate) fn link(root: &Root, existing: &RemotePath, new: &RemotePath) -> Result<()> {
    if existing.is_root() {
        return Err(base::Errno::EPERM);
    }
    let from = root.entry(existing)?;
    if new.is_root() {
        return Err(base::Errno::EEXIST);
    }
    let to = root.entry(new)?;
    let flags = AtFlags::empty();
    rustix::fs::linkat(&from.dir, from.name(), &to.dir, to.name(), flags).map_err(errno)
}

pub(crate) fn rename(
    root: &Root,
    from: &RemotePath,
    to: &RemotePath,
    mode: RenameMode,
) -> Result<()> {
    let (from, to) = (root.entry(from)?, root.entry(to)?);
    let flags = match mode {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
    };
    rustix::fs::renameat_with(&from.dir, from.name(), &to.dir, to.name(), flags).map_err(errno)
}

#[allow(clippy::unnecessary_cast, reason = "on some machines it is 32 bits wide")]
pub(crate) fn statvfs(root: &Root, path: &RemotePath) -> Result<StatVfs> {
    let fd = root.open_path(path)?;
    let found = rustix::fs::fstatvfs(&fd).map_err(errno)?;
    Ok(to_statvfs(&found, rustix::fs::fstat(&fd).map_err(errno)?.st_dev as u64))
}
