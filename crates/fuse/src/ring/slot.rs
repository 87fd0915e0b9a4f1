//! One entry that holds a request: it is read, and gets the reply.
//!
//! The layout is `struct fuse_uring_req_header` of the kernel's `fuse.h`: the header of the request,
//! which that of the reply replaces; the first structure of the request's body; then numbers of the
//! transport. The rest of the body, and all of a reply's, is in the payload.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use super::memory::{HEADER, Lent};
use super::queue::Queue;
use crate::abi::{IN_HEADER_SIZE, InHeader, OUT_HEADER_SIZE, OutHeader, Wire};

/// `op_in`
const BODY: Range<usize> = 128..256;
/// `ring_ent_in_out.commit_id`
const COMMIT_ID: Range<usize> = 264..272;
/// `ring_ent_in_out.payload_sz`
const PAYLOAD_SIZE: Range<usize> = 272..276;

/// A request, with the right and the duty to answer it.
pub(crate) struct Slot {
    /// `None` after the reply.
    entry: Option<Lent>,
    queue: Arc<Queue>,
    index: u16,
    commit_id: u64,
    /// Counted in [`Queue`] as one that holds a lock request.
    is_lock: bool,
}

impl Slot {
    /// The entry `index` of `queue`, with a request.
    pub(super) fn new(mut entry: Lent, queue: Arc<Queue>, index: u16) -> Slot {
        let commit_id = u64::take(&mut &entry.parts().0[COMMIT_ID]).unwrap_or_default();
        Slot { entry: Some(entry), queue, index, commit_id, is_lock: false }
    }

    /// Copies the request into `buffer`, as `/dev/fuse` would return it. Returns its length; `None`
    /// if it is invalid or too long.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let (header, payload) = self.entry.as_mut()?.parts();
        copy_request(header, payload, buffer)
    }

    /// Counts this as a request for a lock. Returns `false` if too many are in progress.
    pub(crate) fn admit_lock(&mut self) -> bool {
        self.is_lock = self.is_lock || self.queue.admit_lock();
        self.is_lock
    }

    /// Sends the reply. Returns `false` if the queue has ended, or the reply is too long.
    pub(crate) fn reply(mut self, error: i32, pieces: &[IoSlice<'_>]) -> bool {
        self.send(error, pieces)
    }

    fn send(&mut self, error: i32, pieces: &[IoSlice<'_>]) -> bool {
        let Some(mut entry) = self.entry.take() else { return false };
        let (header, payload) = entry.parts();
        let is_complete = put_reply(header, payload, self.commit_id, error, pieces);
        drop(entry);
        if std::mem::take(&mut self.is_lock) {
            self.queue.lock_ended();
        }
        self.queue.commit(self.index, self.commit_id) && is_complete
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.entry.is_some() {
            self.send(-libc::EIO, &[]);
        }
    }
}

fn copy_request(header: &[u8; HEADER], payload: &[u8], buffer: &mut [u8]) -> Option<usize> {
    let payload_size = u32::take(&mut &header[PAYLOAD_SIZE])? as usize;
    let total = InHeader::take(&mut &header[..])?.len as usize;
    let body_size = total.checked_sub(IN_HEADER_SIZE + payload_size)?;
    let body = header[BODY].get(..body_size)?;
    let payload = payload.get(..payload_size)?;
    let target = buffer.get_mut(..total)?;
    target[..IN_HEADER_SIZE].copy_from_slice(&header[..IN_HEADER_SIZE]);
    target[IN_HEADER_SIZE..IN_HEADER_SIZE + body_size].copy_from_slice(body);
    target[IN_HEADER_SIZE + body_size..].copy_from_slice(payload);
    Some(total)
}

/// Returns `false` if the reply does not fit; its caller then gets an error.
fn put_reply(
    header: &mut [u8; HEADER],
    payload: &mut [u8],
    unique: u64,
    error: i32,
    pieces: &[IoSlice<'_>],
) -> bool {
    let size: usize = pieces.iter().map(|piece| piece.len()).sum();
    let fits = size <= payload.len();
    let (error, pieces, size) = if fits { (error, pieces, size) } else { (-libc::EIO, &[][..], 0) };
    let mut out = Vec::with_capacity(OUT_HEADER_SIZE);
    OutHeader { len: (OUT_HEADER_SIZE + size) as u32, error, unique }.put(&mut out);
    header[..OUT_HEADER_SIZE].copy_from_slice(&out);
    header[PAYLOAD_SIZE].copy_from_slice(&(size as u32).to_ne_bytes());
    let mut at = 0;
    for piece in pieces {
        payload[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;

    /// An entry with a request of `total` bytes, of which `payload_size` are in the payload.
    fn request(total: u32, payload_size: u32) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let mut bytes = Vec::new();
        InHeader { len: total, opcode: opcode::WRITE, unique: 6, ..InHeader::default() }
            .put(&mut bytes);
        header[..bytes.len()].copy_from_slice(&bytes);
        header[BODY].fill(b'b');
        header[PAYLOAD_SIZE].copy_from_slice(&payload_size.to_ne_bytes());
        header
    }

    #[test]
    fn a_request_is_joined() {
        let mut buffer = [0; 100];
        let header = request(40 + 40 + 5, 5);
        assert_eq!(copy_request(&header, b"payload", &mut buffer), Some(85));
        assert_eq!(buffer[..40], header[..40]);
        assert_eq!(buffer[40..80], [b'b'; 40]);
        assert_eq!(&buffer[80..86], b"paylo\0");
        // Without a structure: LOOKUP.
        assert_eq!(copy_request(&request(45, 5), b"name\0", &mut buffer), Some(45));
        assert_eq!(&buffer[40..45], b"name\0");
    }

    #[test]
    fn a_request_whose_lengths_disagree_is_invalid() {
        let mut buffer = [0; 400];
        for (total, payload_size) in [
            // Shorter than a header, or than its payload.
            (39, 0),
            (44, 5),
            // A body that is longer than its place, a payload that is longer than its own.
            (40 + 129, 0),
            (40 + 8, 8),
            (u32::MAX, u32::MAX),
        ] {
            let header = request(total, payload_size);
            assert_eq!(copy_request(&header, b"payload", &mut buffer), None, "{total}");
        }
        assert_eq!(copy_request(&request(45, 5), b"name\0", &mut [0; 44]), None);
    }

    #[test]
    fn a_reply_replaces_the_request() {
        let mut header = request(45, 5);
        let mut payload = *b"name\0xxx";
        let pieces = [IoSlice::new(b"two "), IoSlice::new(b""), IoSlice::new(b"pcs")];
        assert!(put_reply(&mut header, &mut payload, 6, 0, &pieces));
        let out = OutHeader::take(&mut &header[..]).unwrap();
        assert_eq!(out, OutHeader { len: 16 + 7, error: 0, unique: 6 });
        assert_eq!(&payload, b"two pcsx");
        assert_eq!(header[PAYLOAD_SIZE], 7u32.to_ne_bytes());

        assert!(put_reply(&mut header, &mut payload, 6, -libc::ENOENT, &[]));
        let out = OutHeader::take(&mut &header[..]).unwrap();
        assert_eq!((out.len, out.error), (16, -libc::ENOENT));
        assert_eq!(header[PAYLOAD_SIZE], 0u32.to_ne_bytes());

        assert!(!put_reply(&mut header, &mut payload, 6, 0, &[IoSlice::new(&[0; 9])]));
        let out = OutHeader::take(&mut &header[..]).unwrap();
        assert_eq!((out.len, out.error), (16, -libc::EIO));
    }
}
