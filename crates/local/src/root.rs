//! The root, and path resolution confined to it.
//!
//! A path is resolved in two steps. All but its last name is opened by one `openat2`, which must
//! stay beneath the root, and fails with `ELOOP` at any symbolic link: the caller has resolved
//! links before, so a link found here was planted. The last name is then used relative to that
//! directory, by calls that do not follow it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use base::{Errno, Name, RemotePath, Result};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, openat2};

use crate::attr::errno;

/// The conditions under which every path is resolved.
pub(crate) const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Opens `path`, which must stay beneath `dir`, through no symbolic link, also not at its end; `.`
/// is `dir` itself.
///
/// # Errors
/// Those of `openat2(2)`: `ELOOP` at a symbolic link, `EXDEV` where the path would leave `dir`,
/// `ENOSYS` before Linux 5.6.
pub fn open_beneath(
    dir: impl AsFd,
    path: impl rustix::path::Arg,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    open_beneath_with(dir, path, flags, CONFINED)
}

fn open_beneath_with(
    dir: impl AsFd,
    path: impl rustix::path::Arg,
    flags: OFlags,
    conditions: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    openat2(dir, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), conditions)
}

/// The root of a local directory.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

/// The directory that contains a name.
pub(crate) enum Dir<'a> {
    Root(BorrowedFd<'a>),
    Below(OwnedFd),
}

impl AsFd for Dir<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Dir::Root(fd) => *fd,
            Dir::Below(fd) => fd.as_fd(),
        }
    }
}

/// A name and the directory that contains it.
pub(crate) struct Entry<'a> {
    pub(crate) dir: Dir<'a>,
    name: Name,
}

impl Entry<'_> {
    pub(crate) fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }
}

impl Root {
    /// Opens the directory. Links are followed, since the user has named it.
    pub(crate) fn open(path: &Path) -> Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(errno)?;
        // Fails if the directory may not be searched, or the kernel has no `openat2`.
        open_beneath(&root, ".", flags).map_err(errno)?;
        Ok(Root(root))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The last name of `path` and its directory; this error for the root, which no call may
    /// create, remove or rename.
    pub(crate) fn entry(&self, path: &RemotePath, of_root: Errno) -> Result<Entry<'_>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(of_root);
        };
        let dir = match parent.is_root() {
            true => Dir::Root(self.fd()),
            false => Dir::Below(self.resolve(&parent, OFlags::PATH | OFlags::DIRECTORY)?),
        };
        Ok(Entry { dir, name })
    }

    /// Opens `path` with these flags, never through a link. `PATH` or `DIRECTORY` must be among the
    /// flags, since the entry may be of any type.
    pub(crate) fn resolve(&self, path: &RemotePath, flags: OFlags) -> Result<OwnedFd> {
        self.resolve_with(path, flags, CONFINED)
    }

    /// Opens `path` with these flags under these conditions, which include [`CONFINED`].
    pub(crate) fn resolve_with(
        &self,
        path: &RemotePath,
        flags: OFlags,
        conditions: ResolveFlags,
    ) -> Result<OwnedFd> {
        let from_root = if path.is_root() { &b"."[..] } else { path.as_bytes() };
        open_beneath_with(self.fd(), from_root, flags, conditions).map_err(errno)
    }

    /// Opens `path` with `O_PATH`, a link itself: of any type, and without read permission.
    pub(crate) fn open_path(&self, path: &RemotePath) -> Result<OwnedFd> {
        self.resolve(path, OFlags::PATH)
    }

    /// The attributes of `path`, of a link itself.
    pub(crate) fn stat(&self, path: &RemotePath) -> Result<Stat> {
        rustix::fs::fstat(self.open_path(path)?).map_err(errno)
    }
}
