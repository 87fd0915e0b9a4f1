//! Where a request came from, and so where its reply goes: the seam between the session and its two
//! transports. `/dev/fuse` is read by [`reader`](super::reader), and the queues of io_uring by the
//! handlers of this module; both dispatch the same bytes.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::Inner;
use crate::abi::OUT_HEADER_SIZE;
use crate::channel::Channel;
use crate::filesystem::Filesystem;
use crate::ring::{Handler, Slot};

/// The transport of a request, with the right to send one reply.
pub(super) enum Origin {
    /// The session's channel.
    Device,
    /// An entry of a queue of io_uring.
    Ring(Slot),
}

impl Origin {
    /// Sends the reply. An error means that the kernel does not know what it contains.
    ///
    /// Through io_uring the kernel confirms no reply. It rejects one only when the connection has
    /// ended, and with it all that would have to be undone.
    pub(super) fn reply(
        self,
        channel: &dyn Channel,
        unique: u64,
        error: i32,
        pieces: &[IoSlice<'_>],
    ) -> io::Result<()> {
        if let Origin::Ring(slot) = self {
            let is_sent = slot.reply(error, pieces);
            return is_sent.then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT));
        }
        let len = OUT_HEADER_SIZE + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let mut header = [0; OUT_HEADER_SIZE];
        header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        match pieces {
            [] => channel.send(&[IoSlice::new(&header)]),
            [piece] => channel.send(&[IoSlice::new(&header), *piece]),
            _ => {
                let mut packet = Vec::with_capacity(1 + pieces.len());
                packet.push(IoSlice::new(&header));
                packet.extend_from_slice(pieces);
                channel.send(&packet)
            }
        }
    }

    /// Whether a request for a lock may wait. The entries of a queue are limited, and the request
    /// that releases the lock needs one.
    pub(super) fn admits_lock(&mut self) -> bool {
        match self {
            Origin::Device => true,
            Origin::Ring(slot) => slot.admit_lock(),
        }
    }
}

/// Handles the requests of one queue.
pub(super) fn ring_handler<F: Filesystem>(inner: &Arc<Inner<F>>) -> Handler {
    let (inner, mut buffer) = (inner.clone(), inner.buffers.get());
    Box::new(move |mut slot| match slot.read(&mut buffer) {
        Some(len) => inner.dispatch(&mut buffer, len, Origin::Ring(slot)),
        // Dropping the slot answers it.
        None => tracing::error!("request from the kernel: its lengths disagree"),
    })
}
