//! Receive buffers: each as long as the largest request, lent to a reader, or to a file system with
//! the data of a large WRITE, and reused.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use base::Mutex;
use bytes::Bytes;

/// Data of at least this length is passed with its buffer instead of being copied. Copying 64 KiB
/// costs about as much as the rest of a WRITE.
const PASS_BUFFER_FROM: usize = 64 << 10;

/// Maximum number of buffers lent to file systems; beyond it, data is copied. Limits the memory of
/// one session to little more than 32 MiB with the usual `max_write`, and is twice what usual
/// limits for write-behind keep in flight.
const LENT_MAX: usize = 32;

/// Maximum number of buffers kept for reuse.
const SPARE_MAX: usize = 8;

/// The buffers of one session.
pub(super) struct Buffers {
    size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    spare: Vec<Box<[u8]>>,
    /// Buffers lent to file systems.
    lent: usize,
}

/// One buffer; returned to the pool when dropped.
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    home: Arc<Buffers>,
    lent: bool,
}

impl Buffers {
    /// A pool of buffers of `size` bytes.
    pub(super) fn new(size: usize) -> Arc<Buffers> {
        Arc::new(Buffers { size, state: Mutex::default() })
    }

    /// A buffer to read into; its content is undefined.
    pub(super) fn get(self: &Arc<Buffers>) -> Buffer {
        let spare = self.state.lock().spare.pop();
        let bytes = spare.unwrap_or_else(|| vec![0; self.size].into_boxed_slice());
        Buffer { bytes, home: self.clone(), lent: false }
    }

    /// Takes `range` out of `buffer`: with the buffer, which is replaced by another, if that is
    /// cheaper, otherwise as a copy.
    pub(super) fn take(self: &Arc<Buffers>, buffer: &mut Buffer, range: Range<usize>) -> Bytes {
        if range.len() < PASS_BUFFER_FROM || !self.lend() {
            return Bytes::copy_from_slice(&buffer[range]);
        }
        let mut full = std::mem::replace(buffer, self.get());
        full.lent = true;
        Bytes::from_owner(full).slice(range)
    }

    fn lend(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.lent < LENT_MAX;
        state.lent += usize::from(may);
        may
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut state = self.home.state.lock();
        state.lent -= usize::from(self.lent);
        if state.spare.len() < SPARE_MAX {
            state.spare.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_data_keeps_its_buffer_and_returns_it() {
        let buffers = Buffers::new(PASS_BUFFER_FROM + 80);
        let mut buffer = buffers.get();
        buffer[80] = 7;
        let before = buffer.as_ptr();
        let data = buffers.take(&mut buffer, 80..80 + PASS_BUFFER_FROM);
        assert_eq!((data[0], data.as_ptr()), (7, before.wrapping_add(80)));
        assert_ne!(buffer.as_ptr(), before);
        assert_eq!(buffers.state.lock().lent, 1);
        drop(data);
        assert_eq!(buffers.state.lock().lent, 0);
        assert_eq!(buffers.get().as_ptr(), before);
    }

    #[test]
    fn small_data_and_data_past_the_limit_are_copied() {
        let buffers = Buffers::new(PASS_BUFFER_FROM + 80);
        let mut buffer = buffers.get();
        let before = buffer.as_ptr();
        let small = buffers.take(&mut buffer, 80..80 + PASS_BUFFER_FROM - 1);
        assert_eq!((small.len(), buffer.as_ptr()), (PASS_BUFFER_FROM - 1, before));
        let kept: Vec<_> =
            (0..LENT_MAX).map(|_| buffers.take(&mut buffer, 80..80 + PASS_BUFFER_FROM)).collect();
        let before = buffer.as_ptr();
        let copied = buffers.take(&mut buffer, 80..80 + PASS_BUFFER_FROM);
        assert_eq!((copied.len(), buffer.as_ptr()), (PASS_BUFFER_FROM, before));
        drop(kept);
        assert_eq!(buffers.state.lock().spare.len(), SPARE_MAX);
    }
}
