//! The root, and the way from it to a name: nothing outside is ever reached.
//!
//! A path goes in two steps. All but its last name is opened by one `openat2`, which must stay
//! beneath the root, and fails with `ELOOP` at any symbolic link: who asks has resolved links
//! before, so one that is there now was planted. The last name is then used relative to that
//! directory, by calls that do not follow it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use base::{Errno, Name, RemotePath, Result};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, openat2};

use crate::attr::errno;

/// How every path is resolved.
pub(crate) const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The root of a local directory.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

/// The directory that a name is in.
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

/// A name and where it is.
pub(crate) struct Place<'a> {
    pub(crate) dir: Dir<'a>,
    name: Name,
}

impl Place<'_> {
    pub(crate) fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }
}

impl Root {
    /// Opens the directory; here links are followed, since it is the user who names it.
    pub(crate) fn open(path: &Path) -> Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(errno)?;
        // Tells whether it may be entered, and whether there is such a call.
        openat2(&root, ".", flags, Mode::empty(), CONFINED).map_err(errno)?;
        Ok(Root(root))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Where the last name of `path` is; `EBUSY` for the root, which no call may make, remove or
    /// move.
    pub(crate) fn place(&self, path: &RemotePath) -> Result<Place<'_>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EBUSY);
        };
        let dir = match parent.is_root() {
            true => Dir::Root(self.fd()),
            false => Dir::Below(self.resolve(&parent, OFlags::PATH | OFlags::DIRECTORY)?),
        };
        Ok(Place { dir, name })
    }

    /// Opens what `path` names, with these flags and never through a link. Only with `PATH` or
    /// `DIRECTORY` among the flags, since what it opens may be anything.
    pub(crate) fn resolve(&self, path: &RemotePath, flags: OFlags) -> Result<OwnedFd> {
        self.resolve_with(path, flags, CONFINED)
    }

    /// As [`Root::resolve`], under further conditions.
    pub(crate) fn resolve_with(
        &self,
        path: &RemotePath,
        flags: OFlags,
        conditions: ResolveFlags,
    ) -> Result<OwnedFd> {
        let from_root = if path.is_root() { &b"."[..] } else { path.as_bytes() };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(self.fd(), from_root, flags, Mode::empty(), conditions).map_err(errno)
    }

    /// A hold on what `path` names, of a link itself, whatever kind it is and whoever may read it.
    pub(crate) fn pin(&self, path: &RemotePath) -> Result<OwnedFd> {
        self.resolve(path, OFlags::PATH)
    }

    /// The attributes of what `path` names, of a link itself.
    pub(crate) fn stat(&self, path: &RemotePath) -> Result<Stat> {
        rustix::fs::fstat(self.pin(path)?).map_err(errno)
    }
}
