//! Block checksums of a chunk, by which a few bytes can be verified without the rest of their
//! chunk. Pure: bytes in, value out.
//!
//! They are stored in a table of entries of equal length, one per chunk. Each entry has a seal that
//! covers its content and its position, so it is valid or missing, independent of the others. It
//! may be written at any time by any process that has verified the chunk: all write the same bytes.

use xxhash_rust::xxh3::xxh3_64;

use super::CHUNK_BYTES;
use crate::codec::{CHECKSUM_BYTES, Reader, Writer, checksum};
use crate::digest::Digest;

/// The smallest unit that can be verified by itself: a page, which random reads of programs ask
/// for. A smaller one gains nothing, since the disk reads pages.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Blocks of a chunk.
const BLOCKS: usize = (CHUNK_BYTES / BLOCK_BYTES) as usize;

/// Length of a table entry: a fifth of a hundredth of its chunk.
pub(super) const ENTRY_BYTES: usize = 8 * BLOCKS + CHECKSUM_BYTES;

/// Contents from this length on have a table on the disk. For a shorter one, of up to four chunks,
/// the checksums are computed when a chunk is first read; a second file would cost more than it
/// gains.
pub(crate) const TABLE_FROM_BYTES: u64 = 4 * CHUNK_BYTES;

/// 64 bits of XXH3 for each block of one chunk; 0 for blocks behind the end of the content. Half as
/// long as other checksums: one damaged block in 10^19 passes, and the table is half as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSums([u64; BLOCKS]);

impl BlockSums {
    /// The checksums of a whole chunk.
    pub(crate) fn of(chunk: &[u8]) -> BlockSums {
        let mut sums = [0; BLOCKS];
        for (sum, block) in sums.iter_mut().zip(chunk.chunks(BLOCK_BYTES as usize)) {
            *sum = xxh3_64(block);
        }
        BlockSums(sums)
    }

    /// Whether `bytes` match the blocks from number `first` on. They must end at the end of a
    /// block.
    pub(crate) fn fit(&self, first: usize, bytes: &[u8]) -> bool {
        let mut sums = self.0.iter().skip(first);
        bytes
            .chunks(BLOCK_BYTES as usize)
            .all(|block| sums.next().is_some_and(|sum| xxh3_64(block) == *sum))
    }

    /// The table entry of `digest` for this chunk.
    pub(super) fn encode(&self, digest: &Digest, chunk: u64) -> Vec<u8> {
        let mut entry = Writer::default();
        for sum in self.0 {
            entry.u64(sum);
        }
        let seal = seal(digest, chunk, &entry.0);
        entry.raw(&seal);
        entry.0
    }

    /// `None` for anything but the output of [`BlockSums::encode`] for this content and chunk.
    pub(super) fn decode(entry: &[u8], digest: &Digest, chunk: u64) -> Option<BlockSums> {
        let (fields, sealed) = entry.split_at_checked(8 * BLOCKS)?;
        if seal(digest, chunk, fields) != sealed {
            return None;
        }
        let mut reader = Reader::new(fields);
        let mut sums = [0; BLOCKS];
        for sum in &mut sums {
            *sum = reader.u64()?;
        }
        Some(BlockSums(sums))
    }
}

fn seal(digest: &Digest, chunk: u64, fields: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut sealed = Writer::default();
    sealed.raw(digest.as_bytes()).u64(chunk).raw(fields);
    checksum(&sealed.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 7 % 251) as u8).collect()
    }

    #[test]
    fn block_checksums_reject_other_blocks_and_other_offsets() {
        let chunk = chunk(3 * 4096 + 10);
        let sums = BlockSums::of(&chunk);
        assert!(sums.fit(0, &chunk) && sums.fit(1, &chunk[4096..8192]));
        assert!(sums.fit(3, &chunk[3 * 4096..]) && sums.fit(7, b""));
        assert!(!sums.fit(0, &chunk[4096..8192]), "of another place");
        assert!(!sums.fit(3, &chunk[3 * 4096..3 * 4096 + 9]), "cut");
        assert!(!sums.fit(31, &[&chunk[..4096], &chunk[..4096]].concat()), "beyond the chunk");
        let mut flipped = chunk[4096..8192].to_vec();
        for bit in 0..flipped.len() * 8 {
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!sums.fit(1, &flipped), "bit {bit}");
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn an_entry_is_read_back_and_no_other_is() {
        let (digest, sums) = (Digest::of(b"content"), BlockSums::of(&chunk(131_072)));
        let entry = sums.encode(&digest, 5);
        assert_eq!(entry.len(), ENTRY_BYTES);
        assert_eq!(BlockSums::decode(&entry, &digest, 5), Some(sums));
        assert_eq!(BlockSums::decode(&entry, &digest, 6), None);
        assert_eq!(BlockSums::decode(&entry, &Digest::of(b"other"), 5), None);
        assert_eq!(BlockSums::decode(&[0; ENTRY_BYTES], &digest, 5), None, "a hole");
        for len in 0..entry.len() {
            assert_eq!(BlockSums::decode(&entry[..len], &digest, 5), None);
        }
        for bit in 0..entry.len() * 8 {
            let mut flipped = entry.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockSums::decode(&flipped, &digest, 5), None, "bit {bit}");
        }
    }

    /// Fails when the format has changed; then it needs a new version (docs/cache-format.md).
    #[test]
    fn the_format_is_that_of_version_1() {
        let entry = BlockSums::of(&chunk(131_072)).encode(&Digest::of(b"content"), 5);
        assert_eq!(
            Digest::of(&entry).to_hex(),
            "aa603163a34a32f6a64cb65efcaf5b6847051197dcc886d9661ecf5c5c94b2ff"
        );
    }
}
