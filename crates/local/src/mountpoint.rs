//! Whether a local directory is above or below the mount point.
//!
//! Directories are compared by device and inode, going up from one to the other, so that links and
//! other names do not matter.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use base::Result;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};

use crate::attr::errno;

/// Bound on the depth of a directory. It may be deeper than the longest path.
const MAX_DEPTH: usize = 1 << 16;

/// Device and inode number of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    #[allow(clippy::unnecessary_cast, reason = "on some machines these are 32 bits wide")]
    fn of(fd: BorrowedFd<'_>) -> Result<Identity> {
        let stat = fstat(fd).map_err(errno)?;
        Ok(Identity(stat.st_dev as u64, stat.st_ino as u64))
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a directory that the user has named.
pub(crate) fn open(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, DIRECTORY, Mode::empty()).map_err(errno)
}

/// How many levels `inner` is below `outer`: 0 when they are the same directory, `None` when
/// `inner` is not below `outer`.
pub(crate) fn depth_below(inner: BorrowedFd<'_>, outer: BorrowedFd<'_>) -> Result<Option<usize>> {
    let outer = Identity::of(outer)?;
    let mut current = Identity::of(inner)?;
    let mut current_fd: Option<OwnedFd> = None;
    for depth in 0..MAX_DEPTH {
        if current == outer {
            return Ok(Some(depth));
        }
        let from = current_fd.as_ref().map_or(inner, AsFd::as_fd);
        let parent = openat(from, "..", DIRECTORY, Mode::empty()).map_err(errno)?;
        let next = Identity::of(parent.as_fd())?;
        // The parent of the file system's root is the root itself.
        if next == current {
            break;
        }
        (current, current_fd) = (next, Some(parent));
    }
    Ok(None)
}
