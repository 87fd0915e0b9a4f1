//! Passthrough: the kernel redirects reads and writes of an open file to another file, without a
//! request.
//!
//! Needs Linux 6.9, `CAP_SYS_ADMIN` in the initial user namespace, and
//! [`Config::passthrough`](crate::Config::passthrough). A backing file is registered once and can
//! be used by any number of opens.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Weak};

use crate::channel::Channel;

/// `_IOW(229, 1, struct fuse_backing_map)`
const BACKING_OPEN: libc::Ioctl = 0x4010_e501u32 as libc::Ioctl;
/// `_IOW(229, 2, uint32_t)`
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502u32 as libc::Ioctl;

/// `struct fuse_backing_map`
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// Registers backing files with the kernel. Does not keep the session alive.
#[derive(Clone)]
pub struct Passthrough {
    channel: Weak<dyn Channel>,
}

impl Passthrough {
    pub(crate) fn new(channel: &Arc<dyn Channel>) -> Passthrough {
        Passthrough { channel: Arc::downgrade(channel) }
    }

    /// Registers `file`, whose descriptor may be closed afterwards. `ENODEV` after the end of the
    /// session, `EPERM` without `CAP_SYS_ADMIN`.
    pub fn register(&self, file: BorrowedFd<'_>) -> io::Result<BackingId> {
        let channel =
            self.channel.upgrade().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: both descriptors are open, and the kernel reads a `fuse_backing_map`, which
        // `map` is, during the call only.
        let number = unsafe { libc::ioctl(channel.as_fd().as_raw_fd(), BACKING_OPEN, &map) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(BackingId { number, channel: self.channel.clone() })
    }
}

impl std::fmt::Debug for Passthrough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passthrough")
    }
}

/// A registered backing file; unregistered when dropped. Existing opens that use it are not
/// affected.
pub struct BackingId {
    number: i32,
    channel: Weak<dyn Channel>,
}

impl BackingId {
    pub(crate) fn number(&self) -> i32 {
        self.number
    }
}

impl std::fmt::Debug for BackingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackingId({})", self.number)
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        // At the end of the session the kernel drops all backing files itself.
        if let Some(channel) = self.channel.upgrade() {
            // SAFETY: the descriptor is open, and the kernel reads a `u32` during the call only.
            let result =
                unsafe { libc::ioctl(channel.as_fd().as_raw_fd(), BACKING_CLOSE, &self.number) };
            if result < 0 {
                tracing::debug!(id = self.number, "closing a backing file failed");
            }
        }
    }
}
