//! Mounting and unmounting: by system call as root, otherwise through `fusermount3`.
//!
//! Mounting blocks (it runs a program and accesses the mount point), so it has to happen before a
//! runtime is busy, or on a thread that may block.

mod direct;
#[allow(
    unsafe_code,
    reason = "what a child does before it becomes a program has no safe interface"
)]
mod fusermount;
#[allow(unsafe_code, reason = "a descriptor that is inherited has only its number")]
mod inherited;
mod options;
mod point;
mod watcher;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::UnmountFlags;

use crate::channel::Device;
use crate::error::{Error, Result};
use point::Number;
use watcher::Watcher;

pub use options::{AccessTime, MountOptions, Visibility};

/// A mounted file system that is not served yet. Dropping it unmounts it lazily, unless it is no
/// longer mounted or another process mounted it.
#[derive(Debug)]
pub struct Mount {
    device: Arc<Device>,
    /// `None` if another process mounted it, or it was detached.
    path: Option<PathBuf>,
    /// The id of the file system, if known: another one may be mounted at the path when this one is
    /// unmounted.
    number: Option<Number>,
    only_user: Option<u32>,
    watcher: Option<Watcher>,
}

impl Mount {
    /// Mounts on the directory `path`. `/dev/fd/N` takes over the descriptor N of `/dev/fuse`,
    /// which another process has mounted and passed to this one.
    ///
    /// Root mounts by system call, unless that is not permitted (a container); then, and for other
    /// users, `fusermount3` from PATH is used.
    pub fn new(path: &Path, options: &MountOptions) -> Result<Mount> {
        let only_user = (options.visibility == Visibility::OwnerAndRoot)
            .then(|| rustix::process::getuid().as_raw());
        if let Some(number) = inherited::number(path) {
            let device = Arc::new(inherited::take(number)?);
            return Ok(Mount { device, path: None, number: None, only_user, watcher: None });
        }
        let point = point::check(path)?;
        let direct = if rustix::process::geteuid().is_root() {
            direct::mount(&point, options)?
        } else {
            None
        };
        let fd = match direct {
            Some(fd) => fd,
            None => fusermount::mount(&point, options)?,
        };
        let number = point.mounted();
        let device = Device::new(fd).map_err(|error| {
            let _ = detach(&point.path, number);
            Error::Device(error)
        })?;
        // Later errors unmount.
        let (device, path) = (Arc::new(device), Some(point.path));
        let mut mount = Mount { device, path, number, only_user, watcher: None };
        if options.auto_unmount
            && let Some(path) = &mount.path
        {
            mount.watcher = Some(Watcher::start(path, number).map_err(Error::AutoUnmount)?);
        }
        Ok(mount)
    }

    /// The mount point as an absolute path; `None` if another process mounted it.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn channel(&self) -> Arc<Device> {
        self.device.clone()
    }

    pub(crate) fn only_user(&self) -> Option<u32> {
        self.only_user
    }

    /// Detaches the mount from the file tree, unless it is already. Current users can continue to
    /// use it.
    pub(crate) fn detach(&mut self) {
        let Some(path) = &self.path else { return };
        if self.is_connected()
            && let Err(error) = detach(path, self.number)
        {
            tracing::warn!("{error}");
            return;
        }
        self.path = None;
        if let Some(watcher) = self.watcher.take() {
            watcher.dismiss();
        }
    }

    /// Whether the kernel still has the mount. Its path may be another file system's by now.
    fn is_connected(&self) -> bool {
        let mut poll = [PollFd::new(&*self.device, PollFlags::empty())];
        match rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => !poll[0].revents().contains(PollFlags::ERR),
            Err(_) => true,
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.detach();
        if let Some(watcher) = self.watcher.take() {
            watcher.dismiss();
        }
    }
}

/// Unmounts the file system at `path`: at once and only if it is not in use, or `lazy`: detached
/// now, and ended with its last user. Blocks.
///
/// By system call as root, otherwise with `fusermount3 -u`.
pub fn unmount(path: &Path, lazy: bool) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return fusermount::unmount(path, lazy);
    }
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount::unmount(path, lazy),
        Err(rustix::io::Errno::BUSY) => Err(Error::Busy(path.to_owned())),
        Err(errno) => Err(Error::Unmount { path: path.to_owned(), source: io::Error::from(errno) }),
    }
}

/// Detaches the file system `number` from `path`, and no other one. Sends no request to it.
fn detach(path: &Path, number: Option<Number>) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        // fusermount3 detaches only mounts of its user.
        return fusermount::unmount(path, true);
    }
    let failed = |errno| Error::Unmount { path: path.to_owned(), source: io::Error::from(errno) };
    let root = point::open(path).map_err(failed)?;
    if number.is_none() || Number::of(&root) != number {
        return Err(Error::Replaced(path.to_owned()));
    }
    match rustix::mount::unmount(point::link(&root), UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount::unmount(path, true),
        Err(errno) => Err(failed(errno)),
    }
}

/// Whether a descriptor is of `/dev/fuse`.
fn is_fuse_device(fd: impl AsFd) -> bool {
    /// `MISC_MAJOR` and `FUSE_MINOR` of the kernel.
    const FUSE: (u32, u32) = (10, 229);
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
            && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == FUSE
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mount::{MountFlags, mount};

    /// Whether the tests can mount by system call.
    fn is_root(test: &str) -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            eprintln!("skipped: {test} takes root");
        }
        is_root
    }

    #[test]
    fn the_checked_directory_is_mounted_on() {
        if !is_root("mounting by system call") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (place, moved) = (dir.path().join("place"), dir.path().join("moved"));
        std::fs::create_dir(&place).unwrap();
        let point = point::check(&place).unwrap();
        // The directory is replaced.
        std::fs::rename(&place, &moved).unwrap();
        std::fs::create_dir(&place).unwrap();
        let below = Number::of(point::open(&place).unwrap());
        let Some(fd) = direct::mount(&point, &MountOptions::default()).unwrap() else {
            return eprintln!("skipped: mount(2) is not permitted");
        };
        assert_eq!(Number::of(point::open(&place).unwrap()), below, "the other one is as it was");
        let number = Number::of(point::open(&moved).unwrap());
        assert!(number.is_some() && number != below);
        // The mounted file system is unknown, so nothing is detached.
        assert_ne!(point.mounted(), number);
        drop(fd);
        detach(&moved, number).unwrap();
        assert_eq!(Number::of(point::open(&moved).unwrap()), below);
    }

    /// Attack: the owner of a directory above the mount point has root detach another file system.
    #[test]
    fn a_link_above_the_mount_point_leads_to_no_other_file_system() {
        if !is_root("mounting by system call") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["own/place", "other/place"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        let point = point::check(&at("own/place")).unwrap();
        let other = mount(c"tmpfs", at("other/place"), c"tmpfs", MountFlags::empty(), None);
        let Ok(Some(fd)) = other.map(|()| direct::mount(&point, &MountOptions::default()).unwrap())
        else {
            return eprintln!("skipped: mount(2) is not permitted");
        };
        let number = |name: &str| Number::of(point::open(&at(name)).unwrap()).unwrap();
        let (own, other) = (number("own/place"), number("other/place"));
        std::fs::rename(at("own"), at("moved")).unwrap();
        std::os::unix::fs::symlink("other", at("own")).unwrap();
        assert_eq!(point.mounted(), Some(own));
        for unknown in [Some(own), None] {
            assert!(matches!(detach(&point.path, unknown), Err(Error::Replaced(_))));
            assert_eq!(number("other/place"), other, "{unknown:?}");
        }
        drop(fd);
        detach(&at("moved/place"), Some(own)).unwrap();
        detach(&at("other/place"), Some(other)).unwrap();
    }

    #[test]
    fn only_this_file_system_is_detached() {
        if !is_root("mounting something over it") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut own = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        let at = || Number::of(point::open(dir.path()).unwrap()).unwrap();
        let number = at();
        assert!(own.number.is_none_or(|it| it == number));
        let Ok(()) = mount(c"tmpfs", dir.path(), c"tmpfs", MountFlags::empty(), None) else {
            return eprintln!("skipped: mount(2) is not permitted");
        };
        let above = at();
        assert_ne!(above, number);
        own.detach();
        assert_eq!(at(), above, "the other one is still there");
        unmount(dir.path(), false).unwrap();
        assert_eq!(at(), number);
        drop(own);
        assert_ne!(at(), number);
    }
}
