//! The mount point: looked at before, so that the message says what is wrong with it.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A directory to mount on.
pub(super) struct MountPoint {
    /// Absolute, so that it can be unmounted whatever the working directory is then.
    pub(super) path: PathBuf,
    /// Its `st_mode`.
    pub(super) mode: u32,
}

/// Makes `path` absolute and looks at what it names.
pub(super) fn check(path: &Path) -> Result<MountPoint> {
    let metadata = std::fs::metadata(path).map_err(|error| explain(path, error))?;
    if !metadata.is_dir() {
        return Err(Error::MountPointNotADirectory(path.to_owned()));
    }
    let path = std::fs::canonicalize(path).map_err(|error| explain(path, error))?;
    Ok(MountPoint { path, mode: metadata.mode() })
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
