//! An open file: its content, and the order of the operations on its handle.
//!
//! A fair lock keeps the order: reads share it, changes hold it exclusively. The kernel does the
//! same below, with a lock of the inode, so parallel writes would gain nothing. An operation queues
//! for the lock in its first poll, and the system call releases it when it returns (invariant 3 of
//! the crate).

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Data, Result};
use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::task::unconstrained;

use crate::attr::{errno, of_nix};
use crate::blocking::BlockingPool;

/// Longest read that is tried on the runtime's own thread, in bytes. Copying it takes 5 us on a
/// fast machine and 50 us on a slow one, during which the thread serves nothing else; a hop to
/// another thread takes 10 us (measured).
const IN_PLACE_MAX_BYTES: u32 = 256 << 10;

/// Buffer size of a read, in bytes, so that a read past the end of the file allocates little.
const PIECE_BYTES: usize = 1 << 20;

/// A descriptor that is closed on a blocking thread: on NFS a close may block.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: Option<OwnedFd>,
    pool: BlockingPool,
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.pool.run_detached(move || drop(fd));
        }
    }
}

/// Held by an operation that changes nothing.
pub(crate) type Shared = OwnedRwLockReadGuard<()>;

/// Held by an operation that changes the file.
pub(crate) type Exclusive = OwnedRwLockWriteGuard<()>;

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    fd: Descriptor,
    order: Arc<RwLock<()>>,
    /// Cleared when the file system does not support `RWF_NOWAIT`.
    supports_nowait: AtomicBool,
}

/// Closes a descriptor. A network file system may report a full disk or an exceeded quota only here.
///
/// # Errors
/// Those of `close(2)`.
pub fn close(fd: OwnedFd) -> Result<()> {
    nix::unistd::close(fd).map_err(of_nix)
}

impl File {
    pub(crate) fn new(fd: OwnedFd, pool: BlockingPool) -> File {
        let fd = Descriptor { fd: Some(fd), pool };
        File { fd, order: Arc::default(), supports_nowait: AtomicBool::new(true) }
    }

    /// Takes the descriptor out, for a caller that needs the result of closing it.
    pub(crate) fn into_descriptor(mut self) -> Option<OwnedFd> {
        self.fd.fd.take()
    }

    /// Closes a duplicate of the descriptor, which reports the errors that a close reports.
    pub(crate) fn close_duplicate(&self) -> Result<()> {
        let copy = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(errno)?;
        close(copy)
    }

    /// Waits for all earlier changes.
    pub(crate) async fn shared(&self) -> Shared {
        unconstrained(self.order.clone().read_owned()).await
    }

    /// Waits for all earlier operations.
    pub(crate) async fn exclusive(&self) -> Exclusive {
        unconstrained(self.order.clone().write_owned()).await
    }

    /// Reads from the page cache without blocking; `None` when not all of it is cached, or an
    /// earlier change is in flight.
    pub(crate) fn read_cached(&self, offset: u64, len: u32) -> Option<Result<Data>> {
        if len > IN_PLACE_MAX_BYTES || !self.supports_nowait.load(Ordering::Relaxed) {
            return None;
        }
        let _guard = self.order.try_read().ok()?;
        let mut buffer = vec![0; len as usize];
        let read = fill(&mut buffer, |rest, filled| {
            let mut rest = [IoSliceMut::new(rest)];
            rustix::io::preadv2(&self.fd, &mut rest, offset + filled, ReadWriteFlags::NOWAIT)
        });
        match read {
            Ok(filled) => Some(Ok(data(buffer, filled))),
            Err(Errno::AGAIN) => None,
            // The blocking read reports the error.
            Err(error) => {
                if error == Errno::OPNOTSUPP {
                    self.supports_nowait.store(false, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Reads up to `len` bytes; fewer only at the end of the file.
    pub(crate) fn read(&self, offset: u64, len: u32) -> Result<Data> {
        let mut whole = Data::new();
        let (mut at, mut left) = (offset, len as usize);
        loop {
            let mut buffer = vec![0; left.min(PIECE_BYTES)];
            let wanted = buffer.len();
            let read = |rest: &mut [u8], filled| rustix::io::pread(&self.fd, rest, at + filled);
            let filled = fill(&mut buffer, read).map_err(errno)?;
            whole.append(data(buffer, filled));
            at += wanted as u64;
            left -= wanted;
            if filled < wanted || left == 0 {
                return Ok(whole);
            }
        }
    }

    /// Writes all of `data` at `offset`, or at the end of a file that was opened with `O_APPEND`.
    pub(crate) fn write(&self, offset: u64, data: &Bytes) -> Result<()> {
        let mut written = 0;
        loop {
            match rustix::io::pwrite(&self.fd, &data[written..], offset + written as u64) {
                // An empty write is sent too: it reports whether the file may be written.
                Ok(count) if written + count == data.len() => return Ok(()),
                Ok(0) => return Err(base::Errno::EIO),
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Calls `read` with the rest of `buffer` and the number of bytes filled so far, until the buffer
/// is full or the file ends; returns the number of bytes. An empty buffer is read too, which
/// reports whether the file may be read.
fn fill(
    buffer: &mut [u8],
    read: impl Fn(&mut [u8], u64) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    let mut filled = 0;
    loop {
        match read(&mut buffer[filled..], filled as u64) {
            Ok(count) if count == 0 || filled + count == buffer.len() => return Ok(filled + count),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The first `filled` bytes, without the memory of the rest.
fn data(mut buffer: Vec<u8>, filled: usize) -> Data {
    if filled < buffer.len() {
        buffer.truncate(filled);
        buffer.shrink_to_fit();
    }
    Data::from(Bytes::from(buffer))
}
