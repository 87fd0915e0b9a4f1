//! mount(2) as root.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::options::MountOptions;
use super::point::{self, MountPoint};
use crate::error::{Error, Result};

/// Mounts; `None` if this process is root without the permission to mount.
pub(super) fn mount(point: &MountPoint, options: &MountOptions) -> Result<Option<OwnedFd>> {
    let fd = match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => return Err(Error::NoDevice),
        Err(Errno::ACCESS | Errno::PERM) => return Err(Error::DeviceNotPermitted),
        Err(errno) => return Err(Error::Device(errno.into())),
    };
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let root_mode = point.mode & libc::S_IFMT;
    let c_string = |what, text: std::ffi::OsString| {
        CString::new(text.into_vec()).map_err(|_| Error::OptionWithNul(what))
    };
    let data = c_string("context", options.data(fd.as_raw_fd(), root_mode, uid, gid))?;
    let source = c_string("fsname", options.fsname.clone())?;
    let fs_type = c_string("subtype", options.fs_type())?;
    // The checked directory, even if its path leads elsewhere by now.
    let place = point::link(&point.directory);
    match rustix::mount::mount(&source, place, &fs_type, options.flags(), Some(&*data)) {
        Ok(()) => Ok(Some(fd)),
        Err(Errno::PERM) => Ok(None),
        Err(Errno::NODEV) => Err(Error::NoDevice),
        Err(errno) => {
            Err(Error::Mount { path: point.path.clone(), source: io::Error::from(errno) })
        }
    }
}
