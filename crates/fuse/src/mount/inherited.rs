//! `/dev/fd/N`: a descriptor of `/dev/fuse` that another process opened, mounted, and passed to
//! this one.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use super::is_fuse_device;
use crate::channel::Device;
use crate::error::{Error, Result};

/// Lower descriptors are standard input, output and error.
const FIRST: i32 = 3;

/// The N of `/dev/fd/N`.
pub(super) fn number(path: &Path) -> Option<i32> {
    let digits = path.as_os_str().as_bytes().strip_prefix(b"/dev/fd/")?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Takes ownership of the descriptor: it is closed with the session, and not inherited further.
pub(super) fn take(number: i32) -> Result<Device> {
    if number < FIRST {
        return Err(Error::NotADevice(number));
    }
    // SAFETY: borrowed for these calls only. If it is not open they fail, and nothing in this
    // process opens or closes descriptors of `/dev/fuse` under a number that it did not get.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if fcntl_getfd(borrowed).is_err() || !is_fuse_device(borrowed) {
        return Err(Error::NotADevice(number));
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(|errno| Error::Device(errno.into()))?;
    // SAFETY: it is open, and by the meaning of `/dev/fd/N` as a mount point it was passed to this
    // process to be owned here.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    Device::new(fd).map_err(Error::Device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_numbers_are_accepted() {
        assert_eq!(number(Path::new("/dev/fd/7")), Some(7));
        for path in
            ["/dev/fd/", "/dev/fd/x", "/dev/fd/-1", "/dev/fd/7/a", "/mnt", "/dev/fd/99999999999"]
        {
            assert_eq!(number(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn other_descriptors_are_left_alone() {
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        assert!(matches!(take(number), Err(Error::NotADevice(n)) if n == number));
        assert!(matches!(take(0), Err(Error::NotADevice(0))));
        assert!(matches!(take(i32::MAX), Err(Error::NotADevice(i32::MAX))));
        assert!(file.metadata().is_ok());
    }
}
