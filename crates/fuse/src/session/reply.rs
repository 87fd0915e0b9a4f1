//! The one reply of a request.
//!
//! A [`Reply`] belongs to the future of its operation. Sending consumes it; dropping it unsent
//! sends an error. A result that the kernel rejects is undone here.

use std::io::IoSlice;
use std::sync::Arc;

use base::{Data, Entry, Errno, LookupResult, Result};

use super::Inner;
use super::accounting::Call;
use super::origin::Origin;
use crate::abi::{self, OUT_HEADER_SIZE, Wire};
use crate::attr::{absent_out, entry_out};
use crate::directory::DirSink;
use crate::filesystem::Filesystem;
use crate::open::Opened;

/// Maximum number of slices of one system call (`IOV_MAX`), including the header.
const MAX_SLICES: usize = 1024;

/// The kernel rejects larger error numbers (`ERESTARTSYS` and above are internal).
const ERRNO_MAX: i32 = 511;

/// A request in the table of requests in progress; removed when dropped.
struct Entered<F: Filesystem> {
    inner: Arc<Inner<F>>,
    unique: u64,
    call: Call,
}

impl<F: Filesystem> Entered<F> {
    /// Writes a reply; returns whether the kernel accepted it.
    fn write(&mut self, error: i32, pieces: &[IoSlice<'_>]) -> bool {
        let Some(origin) = self.call.origin.take() else { return false };
        let delivered = self.inner.write(origin, self.unique, error, pieces);
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        self.inner.counters.end(&self.call, error, bytes);
        delivered
    }
}

impl<F: Filesystem> Drop for Entered<F> {
    fn drop(&mut self) {
        self.inner.pending.ended(self.unique);
    }
}

/// The right and the duty to answer one request.
pub(super) struct Reply<F: Filesystem> {
    /// `None` after the reply was sent.
    entered: Option<Entered<F>>,
    inner: Arc<Inner<F>>,
}

impl<F: Filesystem> Drop for Reply<F> {
    fn drop(&mut self) {
        if let Some(mut entered) = self.entered.take() {
            // Dropped by a panic, or by a cancellation.
            let errno = if std::thread::panicking() { Errno::EIO } else { Errno::EINTR };
            entered.write(-errno.raw(), &[]);
        }
    }
}

impl<F: Filesystem> Reply<F> {
    /// The reply of a request in the table.
    pub(super) fn new(inner: &Arc<Inner<F>>, unique: u64, call: Call) -> Reply<F> {
        inner.counters.begin();
        let entered = Entered { inner: inner.clone(), unique, call };
        Reply { entered: Some(entered), inner: inner.clone() }
    }

    /// The file system of the session.
    pub(super) fn filesystem(&self) -> &F {
        &self.inner.filesystem
    }

    /// Counts the bytes that a WRITE has accepted.
    pub(super) fn count_written(&self, result: &Result<u32>) {
        if let (Some(entered), Ok(bytes)) = (&self.entered, result) {
            self.inner.counters.written(&entered.call, *bytes);
        }
    }

    /// Sends a reply. Returns the request's entry if the kernel rejected the reply.
    fn send(&mut self, error: i32, pieces: &[IoSlice<'_>]) -> Option<Entered<F>> {
        let mut entered = self.entered.take()?;
        (!entered.write(error, pieces)).then_some(entered)
    }

    /// Replies with an error.
    pub(super) fn error(mut self, errno: Errno) {
        let errno = if errno.raw() > ERRNO_MAX { Errno::EIO } else { errno };
        self.send(-errno.raw(), &[]);
    }

    /// Replies with bytes.
    pub(super) fn bytes(mut self, bytes: &[u8]) {
        self.send(0, &[IoSlice::new(bytes)]);
    }

    /// Replies with a structure, or the error.
    pub(super) fn wire<T, W: Wire>(self, result: Result<T>, wire: impl FnOnce(T) -> W) {
        match result {
            Ok(value) => self.bytes(&encoded(&wire(value))),
            Err(errno) => self.error(errno),
        }
    }

    /// Replies with success without content, or the error.
    pub(super) fn empty(mut self, result: Result<()>) {
        match result {
            Ok(()) => drop(self.send(0, &[])),
            Err(errno) => self.error(errno),
        }
    }

    /// Replies to a READ of `size` bytes, without joining the data.
    pub(super) fn data(mut self, result: Result<Data>, size: u32) {
        let mut data = match result {
            Ok(data) => data,
            Err(errno) => return self.error(errno),
        };
        if data.len() > size as usize {
            data.truncate(size as usize);
        }
        let pieces = data.pieces();
        if pieces.len() < MAX_SLICES {
            let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            self.send(0, &slices);
        } else {
            self.bytes(&data.to_vec());
        }
    }

    /// Replies to getxattr(2) and listxattr(2): the value, or its size if `size` is zero.
    pub(super) fn xattr(self, result: Result<Vec<u8>>, size: u32) {
        match result {
            Ok(value) if size == 0 => match u32::try_from(value.len()) {
                Ok(size) => self.bytes(&encoded(&abi::GetxattrOut { size, padding: 0 })),
                Err(_) => self.error(Errno::E2BIG),
            },
            Ok(value) if value.len() > size as usize => self.error(Errno::ERANGE),
            Ok(value) => self.bytes(&value),
            Err(errno) => self.error(errno),
        }
    }

    /// Replies with an entry, and forgets it if the kernel rejects the reply.
    pub(super) fn entry(mut self, result: Result<Entry>) {
        match result {
            Ok(entry) => {
                let undelivered = self.send(0, &[IoSlice::new(&encoded(&entry_out(&entry)))]);
                if undelivered.is_some() {
                    self.inner.forget(entry.ino.0, 1);
                }
            }
            Err(errno) => self.error(errno),
        }
    }

    /// Replies to a lookup, as [`Reply::entry`] if the name exists.
    pub(super) fn found(self, result: Result<LookupResult>) {
        match result {
            Ok(LookupResult::Found(entry)) => self.entry(Ok(entry)),
            Ok(LookupResult::Absent(ttl)) => self.bytes(&encoded(&absent_out(ttl))),
            Err(errno) => self.error(errno),
        }
    }

    /// Replies to an open of a file or directory, and releases the handle if the kernel rejects the
    /// reply.
    pub(super) fn opened(mut self, result: Result<Opened>, ino: u64, is_dir: bool) {
        match result {
            Ok(opened) => {
                let undelivered = self.send(0, &[IoSlice::new(&encoded(&opened.wire()))]);
                if let Some(entered) = undelivered {
                    release(entered, ino, opened.fh, is_dir);
                }
            }
            Err(errno) => self.error(errno),
        }
    }

    /// Replies to a create; releases the handle and forgets the entry if the kernel rejects the
    /// reply.
    pub(super) fn created(mut self, result: Result<(Entry, Opened)>) {
        match result {
            Ok((entry, opened)) => {
                let mut packet = encoded(&entry_out(&entry));
                opened.wire().put(&mut packet);
                if let Some(entered) = self.send(0, &[IoSlice::new(&packet)]) {
                    self.inner.forget(entry.ino.0, 1);
                    release(entered, entry.ino.0, opened.fh, false);
                }
            }
            Err(errno) => self.error(errno),
        }
    }

    /// Replies with a listing, and forgets its lookups if the kernel rejects the reply.
    pub(super) fn listing(mut self, result: Result<()>, mut listing: Listing<F>) {
        match result {
            Ok(()) => {
                let undelivered = self.send(0, &[IoSlice::new(listing.sink.bytes())]);
                listing.delivered = undelivered.is_none();
                // Forgets before the request is removed from the table.
                drop(listing);
            }
            Err(errno) => {
                drop(listing);
                self.error(errno);
            }
        }
    }
}

fn encoded(wire: &impl Wire) -> Vec<u8> {
    // The largest reply, of statx, or an entry and an open.
    let mut bytes = Vec::with_capacity(abi::StatxOut::SIZE);
    wire.put(&mut bytes);
    bytes
}

/// Releases a handle that the kernel does not know. The request stays in the table until then.
fn release<F: Filesystem>(entered: Entered<F>, ino: u64, fh: u64, is_dir: bool) {
    let runtime = entered.inner.runtime.clone();
    runtime.spawn(async move {
        let filesystem = &entered.inner.filesystem;
        let _ = match is_dir {
            true => filesystem.releasedir(fh).await,
            false => filesystem.release(ino, fh).await,
        };
    });
}

/// A listing; its lookups are forgotten if it is dropped before it was delivered.
pub(super) struct Listing<F: Filesystem> {
    pub(super) sink: DirSink,
    inner: Arc<Inner<F>>,
    delivered: bool,
}

impl<F: Filesystem> Listing<F> {
    /// An empty one, for up to `size` bytes.
    pub(super) fn new(inner: &Arc<Inner<F>>, size: u32, plus: bool) -> Listing<F> {
        Listing { sink: DirSink::new(size as usize, plus), inner: inner.clone(), delivered: false }
    }
}

impl<F: Filesystem> Drop for Listing<F> {
    fn drop(&mut self) {
        if !self.delivered {
            for ino in self.sink.take_counted() {
                self.inner.forget(ino, 1);
            }
        }
    }
}

impl<F: Filesystem> Inner<F> {
    /// Writes a reply; returns whether the kernel accepted it.
    pub(super) fn write(
        &self,
        origin: Origin,
        unique: u64,
        error: i32,
        pieces: &[IoSlice<'_>],
    ) -> bool {
        match origin.reply(&*self.channel, unique, error, pieces) {
            Ok(()) => {
                let len = OUT_HEADER_SIZE + pieces.iter().map(|piece| piece.len()).sum::<usize>();
                tracing::debug!(unique, errno = -error, len, "reply");
                true
            }
            Err(failure) => {
                // ENOENT is usual: the request was cancelled, or the session has ended.
                if failure.raw_os_error() != Some(libc::ENOENT) {
                    tracing::debug!(unique, error, %failure, "the kernel refused a reply");
                }
                false
            }
        }
    }
}
