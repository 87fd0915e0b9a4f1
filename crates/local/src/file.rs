//! An open file: its content, and the order of what goes through its handle.
//!
//! The order is that of a fair lock: reads share it, and all that changes something has it alone.
//! The kernel does the same below, with a lock of the inode, so writes side by side would gain
//! nothing. The lock is entered in the first poll of an operation, and is given back by the system
//! call when it is over (invariant 3 of the crate).

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Data, Result};
use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::task::unconstrained;

use crate::attr::errno;
use crate::threads::Threads;

/// Longest read that is tried in place, in bytes. To copy it takes 5 us on a fast machine and 50 on
/// a slow one, in which nobody else is served; to ask another thread takes 10 (`examples/cost.rs`).
const IN_PLACE_MAX_BYTES: u32 = 256 << 10;

/// Bytes that are read at a time, so that no more memory is used than there is to read.
const PIECE_BYTES: usize = 1 << 20;

/// A descriptor that is closed where that may wait: on NFS it does.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: Option<OwnedFd>,
    threads: Threads,
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.threads.unattended(move || drop(fd));
        }
    }
}

/// The turn of an operation that only looks.
pub(crate) type Shared = OwnedRwLockReadGuard<()>;

/// The turn of an operation that changes something.
pub(crate) type Alone = OwnedRwLockWriteGuard<()>;

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    fd: Descriptor,
    order: Arc<RwLock<()>>,
    /// The file system tells what is in the page cache.
    tells_cached: AtomicBool,
}

impl File {
    pub(crate) fn new(fd: OwnedFd, threads: Threads) -> File {
        let fd = Descriptor { fd: Some(fd), threads };
        File { fd, order: Arc::default(), tells_cached: AtomicBool::new(true) }
    }

    /// The descriptor, for who closes it and wants to know how that ended.
    pub(crate) fn into_descriptor(mut self) -> Option<OwnedFd> {
        self.fd.fd.take()
    }

    /// Closes another descriptor of the open file, which reports what a close does.
    pub(crate) fn close_copy(&self) -> Result<()> {
        let copy = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(errno)?;
        nix::unistd::close(copy).map_err(|error| base::Errno::from_raw(error as i32))
    }

    /// Waits for all earlier operations that change something.
    pub(crate) async fn shared(&self) -> Shared {
        unconstrained(self.order.clone().read_owned()).await
    }

    /// Waits for all earlier operations.
    pub(crate) async fn alone(&self) -> Alone {
        unconstrained(self.order.clone().write_owned()).await
    }

    /// Reads from the page cache without waiting for anything; `None` when it is not all there, or
    /// not this operation's turn.
    pub(crate) fn read_cached(&self, offset: u64, len: u32) -> Option<Result<Data>> {
        if len > IN_PLACE_MAX_BYTES || !self.tells_cached.load(Ordering::Relaxed) {
            return None;
        }
        let _turn = self.order.try_read().ok()?;
        let mut buffer = vec![0; len as usize];
        let read = fill(&mut buffer, |rest, filled| {
            let mut rest = [IoSliceMut::new(rest)];
            rustix::io::preadv2(&self.fd, &mut rest, offset + filled, ReadWriteFlags::NOWAIT)
        });
        match read {
            Ok(filled) => Some(Ok(data(buffer, filled))),
            Err(Errno::AGAIN) => None,
            // Whatever it is, the usual way tells.
            Err(error) => {
                if error == Errno::OPNOTSUPP {
                    self.tells_cached.store(false, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Up to `len` bytes; fewer only at the end of the file.
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

    /// Writes all of `data` at `offset`, or at the end of a file that was opened to append.
    pub(crate) fn write(&self, offset: u64, data: &Bytes) -> Result<()> {
        let mut written = 0;
        loop {
            match rustix::io::pwrite(&self.fd, &data[written..], offset + written as u64) {
                // A system call of nothing tells whether the file may be written at all.
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

/// Calls `read` with what is left of `buffer`, and how much was filled, until it is full or there
/// is no more; tells how many bytes there were. It is called for an empty buffer too, since it also
/// tells whether the file may be read at all.
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

/// The first `filled` bytes, without the memory of the others.
fn data(mut buffer: Vec<u8>, filled: usize) -> Data {
    if filled < buffer.len() {
        buffer.truncate(filled);
        buffer.shrink_to_fit();
    }
    Data::from(Bytes::from(buffer))
}
