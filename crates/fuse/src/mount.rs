//! Mounting and unmounting: by system call as root, else through `fusermount3`.
//!
//! Mounting blocks (it starts a program and looks at the mount point), so it is to be done before
//! a runtime is busy, or on a thread that may block.

mod direct;
mod fusermount;
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
use watcher::Watcher;

pub use options::{AccessTime, MountOptions, Visibility};

/// A mounted file system that is not served yet. Dropped, it is unmounted, lazily, unless it no
/// longer is mounted or another process mounted it.
#[derive(Debug)]
pub struct Mount {
    device: Arc<Device>,
    /// `None` when another process mounted it.
    path: Option<PathBuf>,
    only_user: Option<u32>,
    watcher: Option<Watcher>,
}

impl Mount {
    /// Mounts on the directory `path`; `/dev/fd/N` takes over the descriptor N of `/dev/fuse`,
    /// which another process has mounted and handed to this one.
    ///
    /// As root it mounts itself, unless it may not (a container); then, and for everybody else,
    /// `fusermount3` from PATH does.
    pub fn new(path: &Path, options: &MountOptions) -> Result<Mount> {
        let only_user = (options.visibility == Visibility::OwnerAndRoot)
            .then(|| rustix::process::getuid().as_raw());
        if let Some(number) = inherited::number(path) {
            let device = Arc::new(inherited::take(number)?);
            return Ok(Mount { device, path: None, only_user, watcher: None });
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
        let device = Device::new(fd).map_err(|error| {
            let _ = unmount(&point.path, true);
            Error::Device(error)
        })?;
        // From here on an error unmounts.
        let mut mount =
            Mount { device: Arc::new(device), path: Some(point.path), only_user, watcher: None };
        if options.auto_unmount
            && let Some(path) = &mount.path
        {
            mount.watcher = Some(Watcher::start(path).map_err(Error::AutoUnmount)?);
        }
        Ok(mount)
    }

    /// Where it is mounted, as an absolute path; `None` when another process mounted it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn channel(&self) -> Arc<Device> {
        self.device.clone()
    }

    pub(crate) fn only_user(&self) -> Option<u32> {
        self.only_user
    }

    /// Whether the kernel still has it. Its path may by now be another file system's.
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
        if let Some(path) = &self.path
            && self.is_connected()
            && let Err(error) = unmount(path, true)
        {
            tracing::warn!("{error}");
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.dismiss();
        }
    }
}

/// Unmounts what is mounted on `path`: at once and only if it is not in use, or `lazy`: it goes
/// from sight now, and ends when its last user does. Blocks.
///
/// As root by system call, else with `fusermount3 -u`.
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

/// Whether a descriptor is one of `/dev/fuse`.
fn is_fuse_device(fd: impl AsFd) -> bool {
    /// `MISC_MAJOR` and `FUSE_MINOR` of the kernel.
    const FUSE: (u32, u32) = (10, 229);
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
            && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == FUSE
    })
}
