//! The chunks that are present, and the pieces of incomplete ones.

use std::ops::Range;

use crate::codec::{CHECKSUM_BYTES, checksum};
use crate::object::CHUNK_BYTES;

/// The checksums of the chunks that are present.
#[derive(Debug, Default)]
pub(super) struct ChunkSums {
    sums: Vec<Option<[u8; CHECKSUM_BYTES]>>,
    count: u64,
}

impl ChunkSums {
    pub(super) fn new(chunks: u64) -> ChunkSums {
        ChunkSums { sums: vec![None; chunks as usize], count: 0 }
    }

    pub(super) fn get(&self, chunk: u64) -> Option<[u8; CHECKSUM_BYTES]> {
        self.sums.get(chunk as usize).copied().flatten()
    }

    pub(super) fn insert(&mut self, chunk: u64, sum: [u8; CHECKSUM_BYTES]) {
        let before = self.sums[chunk as usize].replace(sum);
        self.count += u64::from(before.is_none());
    }

    pub(super) fn remove(&mut self, chunk: u64) {
        let before = self.sums.get_mut(chunk as usize).and_then(Option::take);
        self.count -= u64::from(before.is_some());
    }

    /// The number of chunks present.
    pub(super) fn len(&self) -> u64 {
        self.count
    }

    /// The checksums, in order.
    pub(super) fn all(&self) -> Vec<[u8; CHECKSUM_BYTES]> {
        self.sums.iter().flatten().copied().collect()
    }

    /// A checksum of which chunks are present, and of their bytes: a chunk's checksum depends on
    /// its number.
    pub(super) fn seal(&self) -> [u8; CHECKSUM_BYTES] {
        checksum(&self.all().concat())
    }
}

/// The byte range of chunk number `chunk` in a content of `size` bytes.
pub(crate) fn chunk_range(chunk: u64, size: u64) -> Range<u64> {
    let start = chunk * CHUNK_BYTES;
    start..size.min(start + CHUNK_BYTES)
}

/// The numbers of the chunks that overlap `range`.
pub(super) fn chunks_of(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / CHUNK_BYTES..(range.end - 1) / CHUNK_BYTES + 1
}

/// An incomplete chunk.
#[derive(Debug)]
pub(super) struct Fragment {
    bytes: Vec<u8>,
    /// Ranges of bytes that have arrived: in order, none adjacent.
    have: Vec<Range<usize>>,
}

impl Fragment {
    pub(super) fn new(len: usize) -> Fragment {
        Fragment { bytes: vec![0; len], have: Vec::new() }
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn add(&mut self, at: usize, data: &[u8]) {
        self.bytes[at..at + data.len()].copy_from_slice(data);
        let mut new = at..at + data.len();
        self.have.retain(|old| {
            let apart = old.end < new.start || new.end < old.start;
            if !apart {
                new = new.start.min(old.start)..new.end.max(old.end);
            }
            apart
        });
        let place = self.have.partition_point(|old| old.start < new.start);
        self.have.insert(place, new);
    }

    /// The chunk, if all its bytes have arrived.
    pub(super) fn whole(&mut self) -> Option<Vec<u8>> {
        let len = self.bytes.len();
        let whole = self.have.first() == Some(&(0..len));
        whole.then(|| std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn chunks_know_their_bytes() {
        let size = 2 * CHUNK_BYTES + 5;
        assert_eq!(chunk_range(2, size), 2 * CHUNK_BYTES..size);
        assert_eq!(chunks_of(&(0..1)), 0..1);
        assert_eq!(chunks_of(&(CHUNK_BYTES - 1..CHUNK_BYTES + 1)), 0..2);
        assert_eq!(chunks_of(&(7..7)), 0..0);
    }

    #[test]
    fn a_set_counts_what_is_in_it() {
        let mut set = ChunkSums::new(70);
        set.insert(69, [1; CHECKSUM_BYTES]);
        set.insert(69, [2; CHECKSUM_BYTES]);
        assert!(set.get(69) == Some([2; CHECKSUM_BYTES]));
        assert!(set.get(5).is_none() && set.get(1000).is_none());
        assert_eq!((set.len(), set.all().len()), (1, 1));
        set.remove(69);
        set.remove(5);
        assert_eq!(set.len(), 0);
    }

    proptest! {
        #[test]
        fn a_fragment_is_whole_when_each_byte_has_come(
            pieces in prop::collection::vec((0..20usize, 1..8usize), 1..20)
        ) {
            let content: Vec<u8> = (1..=20).collect();
            let mut fragment = Fragment::new(content.len());
            let mut come = vec![false; content.len()];
            for (start, len) in pieces {
                let end = content.len().min(start + len);
                fragment.add(start, &content[start..end]);
                come[start..end].fill(true);
                if come.iter().all(|come| *come) {
                    prop_assert_eq!(fragment.whole(), Some(content));
                    break;
                }
                prop_assert_eq!(fragment.whole(), None);
            }
        }
    }
}
