//! The mount point: checked before, so that the message says what is wrong with it, and held, so
//! that it is this directory that is mounted on.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};

use crate::error::{Error, Result};

/// A directory to mount on.
pub(super) struct MountPoint {
    /// Absolute, so that it can be unmounted whatever the working directory is then.
    pub(super) path: PathBuf,
    /// Its `st_mode`.
    pub(super) mode: u32,
    /// The directory itself (`O_PATH`).
    pub(super) directory: OwnedFd,
}

/// The number of a file system: `st_dev` of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    major: u32,
    minor: u32,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl Number {
    /// That of the file system of a descriptor.
    pub(super) fn of(fd: impl AsFd) -> Option<Number> {
        // Without a request to the file system, which may not answer.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(fd, c"", flags, StatxFlags::empty()).ok()?;
        Some(Number { major: found.stx_dev_major, minor: found.stx_dev_minor })
    }
}

/// Opens what `path` names, without an effect on it. Its last part is no link.
pub(super) fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// A path that leads to the file of `fd`, whatever is at its own path by now.
pub(super) fn link(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Makes `path` absolute, and opens what it names.
pub(super) fn check(path: &Path) -> Result<MountPoint> {
    let explain = |error: io::Error| explain(path, error);
    let path_of_mount = std::fs::canonicalize(path).map_err(explain)?;
    let directory = open(&path_of_mount).map_err(|errno| explain(errno.into()))?;
    // Asks the file system, which may be a dead one.
    let metadata = std::fs::metadata(link(&directory)).map_err(explain)?;
    if !metadata.is_dir() {
        return Err(Error::MountPointNotADirectory(path.to_owned()));
    }
    Ok(MountPoint { path: path_of_mount, mode: metadata.mode(), directory })
}

impl MountPoint {
    /// The file system that is mounted on it by now; `None` where another directory has its path.
    pub(super) fn mounted(&self) -> Option<Number> {
        let below = Number::of(&self.directory)?;
        let above = Number::of(open(&self.path).ok()?)?;
        (above != below).then_some(above)
    }
}

fn explain(path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    match (source.kind(), source.raw_os_error()) {
        (_, Some(libc::ENOTCONN)) => Error::MountPointDead(path),
        (ErrorKind::NotFound, _) => Error::MountPointMissing(path),
        (ErrorKind::NotADirectory, _) => Error::MountPointNotADirectory(path),
        (ErrorKind::PermissionDenied, _) => Error::MountPointNotPermitted(path),
        _ => Error::MountPoint { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_directory_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = |path: &Path| check(path).err();
        assert!(matches!(error(&dir.path().join("none")), Some(Error::MountPointMissing(_))));
        assert!(matches!(error(&file), Some(Error::MountPointNotADirectory(_))));
        assert!(matches!(error(&file.join("x")), Some(Error::MountPointNotADirectory(_))));
        assert!(check(dir.path()).unwrap().path.is_absolute());
        let dead = explain(Path::new("/m"), io::Error::from_raw_os_error(libc::ENOTCONN));
        assert!(dead.to_string().contains("fusermount3 -u /m"), "{dead}");
    }
}
