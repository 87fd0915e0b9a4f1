//! Unstable writes: acknowledged by the server and not synced (the term of NFS). They are recorded
//! so that their loss can be detected.
//!
//! A server that crashes may lose them. When it is back, the written ranges are read and compared
//! by digest; the content itself is not kept.
//!
//! Adjacent writes of equal length become one extent, whose digest is that of their digests. An
//! extent that is partly overwritten can no longer be compared. Then, and when there are too many
//! extents, the file is incomparable.

use std::collections::BTreeMap;
use std::ops::Range;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Most extents of one file: 16 GiB of sequential writes, in 300 KB of memory.
const MAX_EXTENTS: usize = 4096;

/// Longest extent in bytes of several writes. A small write into an extent makes all of it
/// incomparable.
const MAX_EXTENT_BYTES: u64 = 4 << 20;

/// Longest write in bytes that is digested completely.
const FULL_DIGEST_BYTES: usize = 16 << 10;

/// A crashed system loses whole pages.
const PAGE_BYTES: usize = 4096;

/// Bytes of each page that are digested of longer writes. Measured: digesting all of 128 KiB takes
/// 8 us, a tenth of the total cost of such a write; with samples it takes 1 us.
const SAMPLE_BYTES: usize = 256;

/// The digest of one write. It detects accidents, not forgeries.
///
/// The digest of a long write covers a sample of each page: a lost page has its old content, or
/// zeros. It misses the loss of a page whose old and new content differ only outside of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u128);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Digest {
        if bytes.len() <= FULL_DIGEST_BYTES {
            return Digest(xxh3_128(bytes));
        }
        let mut samples = Xxh3::with_seed(bytes.len() as u64);
        for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            // At another place in each page, so that no part of a repeating structure is always
            // left out.
            let at = number * 5 % (PAGE_BYTES / SAMPLE_BYTES) * SAMPLE_BYTES;
            let at = at.min(page.len().saturating_sub(SAMPLE_BYTES));
            samples.update(&page[at..page.len().min(at + SAMPLE_BYTES)]);
        }
        Digest(samples.digest128())
    }

    /// The digest of two digests in this order.
    pub(crate) fn then(self, next: Digest) -> Digest {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&self.0.to_le_bytes());
        both[16..].copy_from_slice(&next.0.to_le_bytes());
        Digest::of(&both)
    }
}

/// A range to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Length of each of the writes.
    pub(crate) write_len: u64,
    /// The digests of the writes, joined by [`Digest::then`].
    pub(crate) digest: Digest,
    /// Number of its last write in the log of the file.
    number: u64,
    /// It has appended data, for which `offset` is not certain: other clients may append, too.
    pub(crate) is_appended: bool,
}

/// The unstable writes of one file.
#[derive(Debug, Default)]
pub(crate) struct UnstableWrites {
    /// By offset, without overlaps.
    extents: BTreeMap<u64, Extent>,
    /// Number of the last change that cannot be compared.
    incomparable: Option<u64>,
}

impl UnstableWrites {
    /// The write with this number was acknowledged.
    pub(crate) fn record(&mut self, number: u64, range: Range<u64>, digest: Option<Digest>) {
        self.record_as(number, range, digest, false);
    }

    /// The append with this number was acknowledged. It has written `range` unless other clients
    /// have appended before it.
    pub(crate) fn record_append(&mut self, number: u64, range: Range<u64>, digest: Option<Digest>) {
        self.record_as(number, range, digest, true);
    }

    fn record_as(
        &mut self,
        number: u64,
        range: Range<u64>,
        digest: Option<Digest>,
        is_appended: bool,
    ) {
        if range.is_empty() {
            return;
        }
        self.overwrite(number, range.clone());
        let Some(digest) = digest else { return self.mark_incomparable(number) };
        let len = range.end - range.start;
        if let Some((_, before)) = self.extents.range_mut(..range.start).next_back()
            && before.offset + before.len == range.start
            && before.write_len == len
            && before.is_appended == is_appended
            && before.len + len <= MAX_EXTENT_BYTES
        {
            before.len += len;
            before.digest = before.digest.then(digest);
            before.number = before.number.max(number);
            return;
        }
        if self.extents.len() == MAX_EXTENTS {
            return self.mark_incomparable(number);
        }
        let (offset, write_len) = (range.start, len);
        let extent = Extent { offset, len, write_len, digest, number, is_appended };
        self.extents.insert(range.start, extent);
    }

    /// The change with this number has changed content in a way that cannot be compared.
    pub(crate) fn mark_incomparable(&mut self, number: u64) {
        self.incomparable = self.incomparable.max(Some(number));
    }

    /// The content from `size` on was removed or replaced by zeros.
    pub(crate) fn truncate(&mut self, number: u64, size: u64) {
        self.overwrite(number, size..u64::MAX);
    }

    /// Removes the extents that are overwritten.
    fn overwrite(&mut self, number: u64, range: Range<u64>) {
        let before = self.extents.range(..range.start).next_back();
        let reaches_in = before
            .filter(|(_, extent)| extent.offset + extent.len > range.start)
            .map(|(at, _)| *at);
        let inside = self.extents.range(range.clone()).map(|(at, _)| *at);
        let overwritten: Vec<u64> = reaches_in.into_iter().chain(inside).collect();
        for at in overwritten {
            let Some(extent) = self.extents.remove(&at) else { continue };
            if extent.offset < range.start || extent.offset + extent.len > range.end {
                self.mark_incomparable(number);
            }
        }
    }

    /// All changes with smaller numbers are on the server's disk.
    pub(crate) fn mark_synced_before(&mut self, number: u64) {
        self.extents.retain(|_, extent| extent.number >= number);
        self.incomparable = self.incomparable.filter(|incomparable| *incomparable >= number);
    }

    pub(crate) fn clear(&mut self) {
        *self = UnstableWrites::default();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.incomparable.is_none()
    }

    /// The extents to compare; `None` if they do not cover all changes.
    pub(crate) fn extents(&self) -> Option<Vec<Extent>> {
        self.incomparable.is_none().then(|| self.extents.values().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: u8) -> Option<Digest> {
        Some(Digest::of(&[byte]))
    }

    fn extents(unstable: &UnstableWrites) -> Option<Vec<(u64, u64)>> {
        let extents = unstable.extents()?;
        Some(extents.iter().map(|extent| (extent.offset, extent.len)).collect())
    }

    #[test]
    fn every_lost_page_is_detected() {
        for len in [1, 5_000, FULL_DIGEST_BYTES, FULL_DIGEST_BYTES + 1, 131_072, 131_072 + 77] {
            let content: Vec<u8> = (0..len).map(|at| ((at * 31) >> 3) as u8 | 1).collect();
            let digest = Digest::of(&content);
            for page in 0..len.div_ceil(PAGE_BYTES) {
                let mut lost = content.clone();
                let end = len.min((page + 1) * PAGE_BYTES);
                lost[page * PAGE_BYTES..end].fill(0);
                assert_ne!(Digest::of(&lost), digest, "page {page} of {len}");
            }
            assert_ne!(Digest::of(&content[..len - 1]), digest, "{len} cut");
        }
    }

    #[test]
    fn writes_of_equal_length_become_one_extent() {
        let mut unstable = UnstableWrites::default();
        for number in 0..4 {
            unstable.record(number, number * 10..number * 10 + 10, digest(number as u8));
        }
        unstable.record(4, 40..47, digest(4));
        unstable.record(5, 100..110, digest(5));
        assert_eq!(extents(&unstable).unwrap(), [(0, 40), (40, 7), (100, 10)]);
        let first = unstable.extents().unwrap()[0];
        let expected = (1..4).fold(Digest::of(&[0]), |all, byte| all.then(Digest::of(&[byte])));
        assert_eq!((first.write_len, first.digest), (10, expected));
    }

    #[test]
    fn a_complete_overwrite_replaces_and_a_partial_one_is_incomparable() {
        let mut unstable = UnstableWrites::default();
        unstable.record(0, 0..10, digest(0));
        unstable.record(1, 20..30, digest(1));
        unstable.record(2, 0..40, digest(2));
        assert_eq!(extents(&unstable).unwrap(), [(0, 40)]);
        unstable.record(3, 10..20, digest(3));
        assert_eq!(extents(&unstable), None);
        unstable.mark_synced_before(3);
        assert_eq!(extents(&unstable), None, "the change that made it unknown is not synced");
        unstable.mark_synced_before(4);
        assert!(unstable.is_empty());
    }

    #[test]
    fn a_truncation_removes_extents_behind_it() {
        let mut unstable = UnstableWrites::default();
        unstable.record(0, 0..10, digest(0));
        unstable.record(1, 20..30, digest(1));
        unstable.truncate(2, 15);
        assert_eq!(extents(&unstable).unwrap(), [(0, 10)]);
        unstable.truncate(3, 5);
        assert_eq!(extents(&unstable), None);
    }

    #[test]
    fn too_many_extents_are_incomparable() {
        let mut unstable = UnstableWrites::default();
        for number in 0..MAX_EXTENTS as u64 {
            unstable.record(number, number * 20..number * 20 + 10, digest(1));
        }
        assert_eq!(extents(&unstable).unwrap().len(), MAX_EXTENTS);
        unstable.record(9999, 1 << 40..(1 << 40) + 1, digest(1));
        assert_eq!(extents(&unstable), None);
    }

    #[test]
    fn a_sync_keeps_writes_that_began_after_it() {
        let mut unstable = UnstableWrites::default();
        unstable.record(0, 0..10, digest(0));
        unstable.record(1, 20..30, digest(1));
        unstable.mark_synced_before(1);
        assert_eq!(extents(&unstable).unwrap(), [(20, 10)]);
    }
}
