//! The mount point: checked before mounting, for a precise error message, and held open, so that
//! the mount is on the checked directory.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};

use crate::error::{Error, Result};

/// A directory to mount on.
pub(super) struct MountPoint {
    /// Absolute, so that unmounting does not depend on the working directory.
    pub(super) path: PathBuf,
    /// Its `st_mode`.
    pub(super) mode: u32,
    /// The directory itself (`O_PATH`).
    pub(super) directory: OwnedFd,
}

/// The id of a file system: `st_dev` of its files.
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
    /// The id of the file system of a descriptor.
    pub(super) fn of(fd: impl AsFd) -> Option<Number> {
        // Without a request to the file system, which may not respond.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(fd, c"", flags, StatxFlags::empty()).ok()?;
        Some(Number { major: found.stx_dev_major, minor: found.stx_dev_minor })
    }
}

/// Opens `path` without side effects. The last component is not followed as a link.
pub(super) fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// A path to the file of `fd`, even if its own path leads elsewhere by now.
pub(super) fn link(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Makes `path` absolute and opens it.
pub(super) fn check(path: &Path) -> Result<MountPoint> {
    let explain = |error: io::Error| explain(path, error);
    let path_of_mount = std::fs::canonicalize(path).map_err(explain)?;
    let directory = open(&path_of_mount).map_err(|errno| explain(errno.into()))?;
    // A request to the file system, which may be dead.
    let metadata = std::fs::metadata(link(&directory)).map_err(explain)?;
    if !metadata.is_dir() {
        return Err(Error::MountPointNotADirectory(path.to_owned()));
    }
    Ok(MountPoint { path: path_of_mount, mode: metadata.mode(), directory })
}

impl MountPoint {
    /// The file system mounted on the directory now; `None` if its name is another directory's.
    ///
    /// The name is looked up beside the checked directory. The path is not used: the owner of a
    /// directory above can make it lead to any other file system.
    pub(super) fn mounted(&self) -> Option<Number> {
        let below = Number::of(&self.directory)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let beside = Path::new("..").join(self.path.file_name()?);
        let above = rustix::fs::openat(&self.directory, beside, flags, Mode::empty()).ok()?;
        Number::of(above).filter(|above| *above != below)
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
    fn a_non_directory_has_its_own_error() {
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
