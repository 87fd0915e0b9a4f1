//! The transport between session and kernel: whole packets in both directions.
//!
//! In production it is a descriptor of `/dev/fuse`. The session needs only packets and readiness,
//! so the tests use a `SOCK_SEQPACKET` socket without a kernel.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Whole packets to and from a kernel, or from a substitute.
pub trait Channel: AsFd + Send + Sync + 'static {
    /// Receives one request without blocking: `WouldBlock` if there is none, zero bytes at the end.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends one reply or notification, atomically.
    fn send(&self, packet: &[IoSlice<'_>]) -> io::Result<()>;

    /// Another descriptor of the same connection, for notifications. By default there is none.
    fn duplicate(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// `FUSE_DEV_IOC_CLONE`, `_IOR(229, 0, uint32_t)`: connects a descriptor of `/dev/fuse` like another.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// A non-blocking descriptor of `/dev/fuse`.
#[derive(Debug)]
pub struct Device(pub(crate) OwnedFd);

impl Device {
    /// Takes ownership of a descriptor and makes it non-blocking.
    pub fn new(fd: OwnedFd) -> io::Result<Device> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Device(fd))
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel for Device {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }

    fn send(&self, packet: &[IoSlice<'_>]) -> io::Result<()> {
        // The kernel accepts a whole packet or rejects it; the length carries no information.
        rustix::io::writev(&self.0, packet)?;
        Ok(())
    }

    fn duplicate(&self) -> io::Result<OwnedFd> {
        let other = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let number = self.0.as_raw_fd();
        // SAFETY: both descriptors are open, and the kernel reads a `u32`, which `number` has the
        // size of, during the call only.
        let result = unsafe { libc::ioctl(other.as_raw_fd(), CLONE, &number) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(other) }
    }
}

/// A channel that the runtime can poll for readiness.
pub(crate) struct Readiness(pub(crate) std::sync::Arc<dyn Channel>);

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Readiness {
    /// Registers a channel with the runtime.
    pub(crate) fn register(channel: std::sync::Arc<dyn Channel>) -> io::Result<AsyncFd<Readiness>> {
        let interest = Interest::READABLE | Interest::ERROR;
        // SAFETY: `Readiness` keeps its channel and so the descriptor open, and always returns the
        // same descriptor, for as long as the `AsyncFd` has it.
        let registered = unsafe { AsyncFd::register_with_interest(Readiness(channel), interest) };
        registered.map_err(io::Error::from)
    }
}
