//! `listxattrat(2)` of Linux 6.13, for which neither the C library nor rustix has a function. It
//! needs a quarter of the time of `llistxattr(2)` of a path through `/proc`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, Result};

/// Its number, the same on all architectures but some old ones.
const NUMBER: Option<libc::c_long> =
    if cfg!(any(target_arch = "mips", target_arch = "mips64")) { None } else { Some(465) };

/// The kernel does not have it, or a sandbox forbids it.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

/// The length of the list of attributes of an entry of this directory, which is not followed.
/// `None` if the call is not available.
pub(crate) fn query(dir: BorrowedFd<'_>, name: &[u8]) -> Option<Result<usize>> {
    let number = NUMBER.filter(|_| !IS_MISSING.load(Ordering::Relaxed))?;
    let Ok(name) = CString::new(name) else { return Some(Err(Errno::INVAL)) };
    let no_list = ptr::null_mut::<libc::c_char>();
    // SAFETY: the descriptor is open and the name ends with a zero; with a length of zero the
    // kernel writes nothing.
    let answer = unsafe {
        let (dir, name) = (dir.as_raw_fd(), name.as_ptr());
        libc::syscall(number, dir, name, libc::AT_SYMLINK_NOFOLLOW, no_list, 0_usize)
    };
    if let Ok(len) = usize::try_from(answer) {
        return Some(Ok(len));
    }
    // Set by the call.
    let error = std::io::Error::last_os_error();
    match Errno::from_io_error(&error)? {
        // Some sandboxes answer like this.
        Errno::NOSYS | Errno::PERM => {
            IS_MISSING.store(true, Ordering::Relaxed);
            None
        }
        errno => Some(Err(errno)),
    }
}
