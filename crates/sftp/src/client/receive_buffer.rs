//! The receive buffer: splits the received bytes into packets, without copying long ones.
//!
//! Small replies arrive together in one chunk, and each is a slice of it. When a long packet has
//! begun, the next read is limited to its end and the following header, so that its body is
//! received at its final place; in a sequence of long packets only headers are copied. A buffer is
//! reused when no slice of it is left.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::{HEADER_BYTES, packet_length};
use crate::error::Result;

/// Bytes read at once while packets are small. Limits what is copied when a long packet follows
/// small ones; a larger chunk would be kept longer by one small slice of it.
const CHUNK_BYTES: usize = 64 * 1024;

/// Packets of at least this size are received on their own.
const LONG_BYTES: usize = 16 * 1024;

/// Bytes read beyond a long packet: the head of the next one (13 bytes of a DATA reply).
const BEYOND_BYTES: usize = 64;

/// With less free room than this a new chunk is used, so that no read is short.
const MIN_ROOM_BYTES: usize = 8 * 1024;

/// Number of buffers kept for reuse: enough for a reader with 2 MiB in flight in long packets.
const KEPT_BUFFERS: usize = 16;

/// The receive buffer.
pub(super) struct ReceiveBuffer {
    buffer: BytesMut,
    /// Buffers whose slices are or were in use.
    used: VecDeque<BytesMut>,
    max_packet: usize,
    /// The last packet was long, so the next one probably is too.
    after_long: bool,
}

impl ReceiveBuffer {
    pub(super) fn new(max_packet: usize) -> ReceiveBuffer {
        ReceiveBuffer {
            buffer: BytesMut::new(),
            used: VecDeque::new(),
            max_packet,
            after_long: false,
        }
    }

    /// The buffer to read into: room for the rest of a long packet, or for a chunk. Never empty.
    pub(super) fn room(&mut self) -> Result<impl BufMut + '_> {
        let announced = packet_length(&self.buffer, self.max_packet)?;
        let limit = match announced.map(|len| HEADER_BYTES + len) {
            Some(packet) if packet >= LONG_BYTES => {
                let missing = packet.saturating_sub(self.buffer.len()) + BEYOND_BYTES;
                self.make_room(missing);
                missing
            }
            Some(packet) => {
                self.make_room(packet.saturating_sub(self.buffer.len()).max(MIN_ROOM_BYTES));
                usize::MAX
            }
            None if self.after_long => {
                self.make_room(BEYOND_BYTES);
                BEYOND_BYTES
            }
            None => {
                self.make_room(MIN_ROOM_BYTES);
                usize::MAX
            }
        };
        let free = self.buffer.capacity() - self.buffer.len();
        Ok((&mut self.buffer).limit(limit.min(free)))
    }

    /// Makes room for `wanted` further bytes, in another buffer if necessary.
    fn make_room(&mut self, wanted: usize) {
        if self.buffer.capacity() - self.buffer.len() >= wanted {
            return;
        }
        let size = (self.buffer.len() + wanted).max(CHUNK_BYTES);
        let mut next = self.reuse(size).unwrap_or_else(|| BytesMut::with_capacity(size));
        next.extend_from_slice(&self.buffer);
        let mut old = std::mem::replace(&mut self.buffer, next);
        old.clear();
        if self.used.len() == KEPT_BUFFERS {
            self.used.pop_front();
        }
        self.used.push_back(old);
    }

    /// A buffer without slices that has room for `size` bytes.
    fn reuse(&mut self, size: usize) -> Option<BytesMut> {
        let at = self.used.iter_mut().position(|buffer| buffer.try_reclaim(size))?;
        self.used.remove(at)
    }

    /// The next complete packet, without its length field.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(len) = packet_length(&self.buffer, self.max_packet)? else {
            return Ok(None);
        };
        if self.buffer.len() < HEADER_BYTES + len {
            return Ok(None);
        }
        self.after_long = HEADER_BYTES + len >= LONG_BYTES;
        let packet = self.buffer.split_to(HEADER_BYTES + len).freeze();
        Ok(Some(packet.slice(HEADER_BYTES..)))
    }

    /// Received bytes that are not a complete packet yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(fill: u8, len: usize) -> Vec<u8> {
        let mut packet = (len as u32).to_be_bytes().to_vec();
        packet.resize(HEADER_BYTES + len, fill);
        packet
    }

    /// Feeds `stream` in reads of at most `step` bytes; returns the packets.
    fn feed(buffer: &mut ReceiveBuffer, mut stream: &[u8], step: usize) -> Vec<Bytes> {
        let mut packets = Vec::new();
        while !stream.is_empty() {
            let mut room = buffer.room().unwrap();
            let n = step.min(stream.len()).min(room.remaining_mut());
            assert!(n > 0, "no room");
            room.put_slice(&stream[..n]);
            drop(room);
            stream = &stream[n..];
            while let Some(packet) = buffer.next().unwrap() {
                packets.push(packet);
            }
        }
        packets
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn packets_come_out_as_they_went_in(
            lens in prop::collection::vec(prop_oneof![1usize..200, 1usize..200_000], 1..40),
            step in prop_oneof![1usize..100, 1usize..300_000],
            keep in any::<bool>(),
        ) {
            let mut buffer = ReceiveBuffer::new(256 * 1024);
            let mut stream = Vec::new();
            for (number, len) in lens.iter().enumerate() {
                stream.extend(packet(number as u8, *len));
            }
            // One byte at a time over megabytes would only take long.
            let step = step.max(stream.len() / 20_000 + 1);
            let mut packets = Vec::new();
            if keep {
                packets = feed(&mut buffer, &stream, step);
            } else {
                // No slices are kept: buffers are reused.
                for (number, len) in lens.iter().enumerate() {
                    for got in feed(&mut buffer, &packet(number as u8, *len), step) {
                        packets.push(Bytes::copy_from_slice(&got));
                    }
                }
            }
            prop_assert_eq!(packets.len(), lens.len());
            for (number, (got, len)) in packets.iter().zip(&lens).enumerate() {
                prop_assert_eq!(got.len(), *len);
                prop_assert!(got.iter().all(|byte| *byte == number as u8));
            }
        }
    }

    #[test]
    fn long_packets_are_not_copied_and_their_buffers_are_reused() {
        let mut buffer = ReceiveBuffer::new(256 * 1024);
        let long = packet(7, 200_000);
        let mut addresses = std::collections::HashSet::new();
        for _ in 0..100 {
            for got in feed(&mut buffer, &long, usize::MAX) {
                addresses.insert(got.as_ptr() as usize & !0xfff);
            }
        }
        assert!(addresses.len() <= 4, "{} different buffers", addresses.len());
    }

    #[test]
    fn lengths_out_of_bounds_are_rejected() {
        for (len, text) in [(0u32, "bad reply len: 0"), (262_145, "bad reply len: 262145")] {
            let mut buffer = ReceiveBuffer::new(256 * 1024);
            buffer.room().unwrap().put_u32(len);
            let error = buffer.next().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            assert!(buffer.buffer.capacity() <= CHUNK_BYTES);
        }
    }
}
