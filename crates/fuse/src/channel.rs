//! What stands between the session and the kernel: one packet in, one packet out.
//!
//! The real one is a descriptor of `/dev/fuse`. Since the session only needs packets and
//! readiness, a `SOCK_SEQPACKET` socket does as well, and that is how it is tested without a
//! kernel.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Whole packets to and from a kernel, or what stands for one.
pub trait Channel: AsFd + Send + Sync + 'static {
    /// Receives one request without waiting: `WouldBlock` when there is none, zero bytes at the
    /// end.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends one reply or notification, whole or not at all.
    fn send(&self, packet: &[IoSlice<'_>]) -> io::Result<()>;
}

/// A descriptor of `/dev/fuse`, set not to block.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Takes over a descriptor and sets it not to block.
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
        // The kernel takes a packet whole or refuses it; the length tells nothing more.
        rustix::io::writev(&self.0, packet)?;
        Ok(())
    }
}

/// A channel as something that the runtime can wait for.
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
        // SAFETY: `Readiness` keeps its channel and so the descriptor open, and always answers
        // the same one, for as long as the `AsyncFd` has it.
        let registered = unsafe { AsyncFd::register_with_interest(Readiness(channel), interest) };
        registered.map_err(io::Error::from)
    }
}
