//! The bytes of one file, with holes.
//!
//! Invariants: no page lies wholly past `size`; bytes of the last page past `size` are zero, so
//! that extending a file never shows what was truncated before.

use std::collections::BTreeMap;

/// Unit of storage in bytes, and of the capacity.
pub(crate) const PAGE: u64 = 4096;

/// The bytes of one file. Pages that were never written are holes and read as zeros.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    size: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

/// The part of page `index` that lies in `start..end`, as a range of file offsets.
fn part(index: u64, start: u64, end: u64) -> (u64, u64) {
    (start.max(index * PAGE), end.min((index + 1) * PAGE))
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Number of stored pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Up to `len` bytes from `offset`; fewer at the end.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(len));
        if offset >= end {
            return Vec::new();
        }
        let mut bytes = vec![0; (end - offset) as usize];
        for (index, page) in self.pages.range(offset / PAGE..=(end - 1) / PAGE) {
            let (from, to) = part(*index, offset, end);
            let start = index * PAGE;
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
        }
        bytes
    }

    /// How many of `len` bytes at `offset` can be written with `free` more pages.
    pub(crate) fn fitting(&self, offset: u64, len: u64, free: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let wanted = offset / PAGE..=(offset + len - 1) / PAGE;
        let mut missing = wanted.filter(|index| !self.pages.contains_key(index));
        match missing.nth(usize::try_from(free).unwrap_or(usize::MAX)) {
            Some(first_too_many) => (first_too_many * PAGE).saturating_sub(offset).min(len),
            None => len,
        }
    }

    /// Writes `data` at `offset`; extends the file if necessary.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        for index in offset / PAGE..=(end - 1) / PAGE {
            let (from, to) = part(index, offset, end);
            let start = index * PAGE;
            let page = self.pages.entry(index).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        self.size = self.size.max(end);
    }

    /// Makes the bytes from `start` to `end` zeros: whole pages become holes.
    pub(crate) fn zero(&mut self, start: u64, end: u64) {
        let end = end.min(self.size);
        if start >= end {
            return;
        }
        let ends_file = end == self.size;
        self.pages.retain(|index, page| {
            let (from, to) = part(*index, start, end);
            if from >= to {
                return true;
            }
            let first = index * PAGE;
            page[(from - first) as usize..(to - first) as usize].fill(0);
            from > first || to < first + PAGE && !ends_file
        });
    }

    /// The offset of the next data, or of the next hole, at or after `offset`.
    pub(crate) fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let is_data = |offset: u64| self.pages.contains_key(&(offset / PAGE));
        if is_data(offset) == data {
            return Some(offset);
        }
        if data {
            return self.pages.range(offset / PAGE..).next().map(|(index, _)| index * PAGE);
        }
        let mut at = offset;
        while at < self.size && is_data(at) {
            at = (at / PAGE + 1) * PAGE;
        }
        Some(at.min(self.size))
    }

    /// Truncates the file to `size` bytes, or extends it with a hole.
    pub(crate) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE));
            if let Some(last) = self.pages.get_mut(&(size / PAGE)) {
                last[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_content_does_not_return() {
        let mut content = Content::default();
        content.write(0, &[7; 10_000]);
        content.set_size(5_000);
        content.set_size(10_000);
        assert_eq!(content.read(4_990, 20), [[7; 10], [0; 10]].concat());
        assert_eq!(content.pages(), 2);
        content.set_size(0);
        assert_eq!(content.pages(), 0);
    }

    #[test]
    fn holes_cost_nothing_and_read_as_zeros() {
        let mut content = Content::default();
        content.write(1 << 40, b"end");
        assert_eq!((content.size(), content.pages()), ((1 << 40) + 3, 1));
        assert_eq!(content.read((1 << 40) - 2, 100), b"\0\0end");
        assert_eq!(content.read(1 << 41, 1), b"");
    }

    #[test]
    fn zeros_are_holes_where_they_fill_pages() {
        let mut content = Content::default();
        content.write(0, &[7; 20_000]);
        content.zero(4_000, 13_000);
        assert_eq!(content.pages(), 3);
        assert_eq!(content.read(3_999, 3), [7, 0, 0]);
        assert_eq!(content.read(12_999, 2), [0, 7]);
        assert_eq!([content.seek(0, false), content.seek(4096, true)], [Some(4096), Some(12_288)]);
        assert_eq!(
            [content.seek(12_288, false), content.seek(19_999, true)],
            [Some(20_000), Some(19_999)]
        );
        assert_eq!([content.seek(20_000, false), content.seek(20_000, true)], [None, None]);
        content.zero(12_288, 30_000);
        assert_eq!((content.size(), content.pages(), content.seek(4096, true)), (20_000, 1, None));
    }

    #[test]
    fn only_pages_within_the_capacity_fit() {
        let mut content = Content::default();
        assert_eq!(content.fitting(100, 10_000, 0), 0);
        assert_eq!(content.fitting(100, 10_000, 2), 8_092);
        assert_eq!(content.fitting(100, 10_000, 3), 10_000);
        content.write(0, &[1; 5_000]);
        assert_eq!(content.fitting(100, 10_000, 0), 8_092);
        assert_eq!(content.fitting(0, 0, 0), 0);
    }
}
