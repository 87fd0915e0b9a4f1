//! Reading contents, and verifying them.

use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, ReadWriteFlags};

use super::block_sums::BlockSumCache;
use super::blocks::{BLOCK_BYTES, BlockSums};
use super::{Body, CHUNK_BYTES, Inner, chunk_count};
use crate::codec::checksum_at;
use crate::digest::Digest;
use crate::partial::chunks::chunk_range;

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    ForDisk,
    /// Only the page cache is read. Where the file system does not support this, the read waits for
    /// the disk.
    No,
}

/// Why a read fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    Damaged,
    /// It would have to wait for the disk.
    WouldWait,
}

impl Inner {
    /// The verified bytes of `offset..end`, a range that is not empty and within the content.
    pub(super) fn read(&self, offset: u64, end: u64, wait: Wait) -> Result<Bytes, ReadError> {
        let wanted = offset as usize..end as usize;
        match &self.body {
            Body::Held(content) => Ok(content.slice(wanted)),
            Body::Small => Ok(self.read_small(wait)?.slice(wanted)),
            Body::Large { .. } => self.read_large(offset, end, wait),
        }
    }

    fn read_small(&self, wait: Wait) -> Result<Bytes, ReadError> {
        let content = pread(&self.file, 0, self.size as usize, wait)?;
        match Digest::of(&content) == self.digest {
            true => Ok(content.into()),
            false => Err(ReadError::Damaged),
        }
    }

    /// Reads whole blocks, and of chunks that are read in part no more than those.
    fn read_large(&self, offset: u64, end: u64, wait: Wait) -> Result<Bytes, ReadError> {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let stop = self.size.min(end.next_multiple_of(BLOCK_BYTES));
        let (first, last) = (start / CHUNK_BYTES, (stop - 1) / CHUNK_BYTES);
        let mut ends = [None; 2];
        for (sums, chunk) in ends.iter_mut().zip([first, last]) {
            let whole = chunk_range(chunk, self.size);
            if start <= whole.start && whole.end <= stop {
                continue;
            }
            *sums = self.block_sums(chunk, wait)?;
            if sums.is_none() {
                return self.read_chunks(offset, end, wait);
            }
        }
        let bytes = pread(&self.file, start, (stop - start) as usize, wait)?;
        let good = (first..=last).all(|chunk| {
            let whole = chunk_range(chunk, self.size);
            let (from, to) = (whole.start.max(start), whole.end.min(stop));
            let part = &bytes[(from - start) as usize..(to - start) as usize];
            let end = [first, last].iter().position(|end| *end == chunk);
            match end.and_then(|end| ends[end].as_ref()) {
                Some(sums) => sums.fit(((from - whole.start) / BLOCK_BYTES) as usize, part),
                None => self.is_chunk(chunk, part),
            }
        });
        if !good {
            // Perhaps the block checksums are wrong.
            return self.read_chunks(offset, end, wait);
        }
        Ok(Bytes::from(bytes).slice((offset - start) as usize..(end - start) as usize))
    }

    /// Reads whole chunks, and stores the block checksums of those of which a part was requested.
    fn read_chunks(&self, offset: u64, end: u64, wait: Wait) -> Result<Bytes, ReadError> {
        let (first, last) = (offset / CHUNK_BYTES, (end - 1) / CHUNK_BYTES);
        let start = first * CHUNK_BYTES;
        let stop = self.size.min((last + 1) * CHUNK_BYTES);
        let bytes = pread(&self.file, start, (stop - start) as usize, wait)?;
        for (chunk, bytes) in (first..).zip(bytes.chunks(CHUNK_BYTES as usize)) {
            if !self.is_chunk(chunk, bytes) {
                return Err(ReadError::Damaged);
            }
            let whole = chunk_range(chunk, self.size);
            if whole.start < offset || end < whole.end {
                self.note_block_sums(chunk, BlockSums::of(bytes));
            }
        }
        Ok(Bytes::from(bytes).slice((offset - start) as usize..(end - start) as usize))
    }

    fn is_chunk(&self, chunk: u64, bytes: &[u8]) -> bool {
        let Body::Large { sums, .. } = &self.body else { return false };
        sums.get(chunk as usize).is_some_and(|sum| checksum_at(bytes, chunk) == *sum)
    }

    /// Reads and verifies all chunks, for `each` in turn.
    pub(super) fn read_all(&self, mut each: impl FnMut(u64, &[u8])) -> Result<(), ReadError> {
        for chunk in 0..chunk_count(self.size) {
            let range = chunk_range(chunk, self.size);
            let bytes = self.read(range.start, range.end, Wait::ForDisk)?;
            each(chunk, &bytes);
        }
        Ok(())
    }

    pub(super) fn block_sum_cache(&self) -> Option<&BlockSumCache> {
        match &self.body {
            Body::Large { block_sums, .. } => Some(block_sums),
            Body::Held(_) | Body::Small => None,
        }
    }
}

/// Reads exactly `len` bytes from `offset`.
pub(super) fn pread(
    file: impl AsFd,
    offset: u64,
    len: usize,
    wait: Wait,
) -> Result<Vec<u8>, ReadError> {
    match wait {
        Wait::ForDisk => pread_waiting(file, offset, len),
        Wait::No => pread_now(file, offset, len),
    }
}

fn pread_waiting(file: impl AsFd, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = offset + bytes.len() as u64;
        match rustix::io::pread(&file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Err(ReadError::Damaged),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(ReadError::Damaged),
        }
    }
    // The allocator may have given more than was requested.
    bytes.truncate(len);
    Ok(bytes)
}

fn pread_now(file: impl AsFd, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let mut rest = [std::io::IoSliceMut::new(&mut bytes[filled..])];
        let at = offset + filled as u64;
        match rustix::io::preadv2(&file, &mut rest, at, ReadWriteFlags::NOWAIT) {
            // Some kernels return this for data that is not in the page cache, too.
            Ok(0) => return Err(ReadError::WouldWait),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ReadError::WouldWait),
            // A blocking read shows whether the file is damaged, or such reads are not supported.
            Err(_) => return pread_waiting(file, offset, len),
        }
    }
    Ok(bytes)
}
