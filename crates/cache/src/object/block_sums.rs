//! The cached block checksums of an open content: read from its table when needed, kept in memory
//! within a bound, and computed where they are missing.
//!
//! The table is optional. An entry that is missing or damaged is computed from its chunk, after
//! that has been verified with the checksum in `.about`, and written back.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::Mutex;

use super::blocks::{BlockSums, ENTRY_BYTES, TABLE_FROM_BYTES};
use super::reading::{ReadError, Wait, pread};
use super::{Inner, Names, chunk_count};
use crate::digest::Digest;
use crate::dir_fd::DirFd;
use crate::store::layout::Layout;
use crate::store::quota::on_disk;
use crate::store::shared::Shared;

/// Entries that are read together: those of 8 MiB of content, in 17 KiB. Reading a single one takes
/// as long.
const GROUP: u64 = 64;

/// Bound on the block checksums in memory, of all open and partial contents: those of 8 GiB. Beyond
/// it they are read, or computed, again.
const MAX_BYTES: u64 = 16 << 20;

/// The block checksums of an open content.
#[derive(Default)]
pub(super) struct BlockSumCache(Mutex<Loaded>);

#[derive(Default)]
struct Loaded {
    groups: HashMap<u64, Vec<Option<BlockSums>>>,
    /// `None` until it is opened, `Some(None)` if it is missing.
    table: Option<Option<Arc<File>>>,
}

impl BlockSumCache {
    /// Releases the memory.
    pub(super) fn release(&self, shared: &Shared) {
        let groups = std::mem::take(&mut self.0.lock().groups);
        shared.release_sums(groups.values().map(Vec::len).sum());
    }
}

impl Shared {
    /// Reserves memory for the checksums of this many chunks, if there is some.
    pub(crate) fn reserve_sums(&self, chunks: usize) -> bool {
        let bytes = (chunks * size_of::<BlockSums>()) as u64;
        self.counters.sums_bytes.take(bytes, MAX_BYTES)
    }

    /// Releases the memory for the checksums of this many chunks.
    pub(crate) fn release_sums(&self, chunks: usize) {
        self.counters.sums_bytes.give_back((chunks * size_of::<BlockSums>()) as u64);
    }
}

impl Inner {
    /// The block checksums of a chunk, if they were computed before.
    pub(super) fn block_sums(
        &self,
        chunk: u64,
        wait: Wait,
    ) -> Result<Option<BlockSums>, ReadError> {
        let Some(cache) = self.block_sum_cache() else { return Ok(None) };
        let (group, at) = (chunk / GROUP, (chunk % GROUP) as usize);
        if let Some(known) = cache.0.lock().groups.get(&group) {
            return Ok(known.get(at).copied().flatten());
        }
        let read = self.read_group(group, wait)?;
        let sums = read.get(at).copied().flatten();
        self.cache_group(group, read);
        Ok(sums)
    }

    /// Stores the block checksums of a verified chunk, in memory and in the table.
    pub(super) fn note_block_sums(&self, chunk: u64, sums: BlockSums) {
        let Some(cache) = self.block_sum_cache() else { return };
        let (group, at) = (chunk / GROUP, (chunk % GROUP) as usize);
        if let Some(known) = cache.0.lock().groups.get_mut(&group).and_then(|it| it.get_mut(at)) {
            *known = Some(sums);
        }
        let entry = sums.encode(&self.digest, chunk);
        // Without the entry the next open of the content computes them again.
        if let Some(table) = self.writable_table()
            && let Err(error) = table.write_all_at(&entry, chunk * ENTRY_BYTES as u64)
        {
            tracing::debug!("checksums of a content are not kept: {error}");
        }
    }

    /// Compares the table's entry of a chunk with the verified chunk, and repairs it if it differs.
    /// Returns whether it was damaged.
    pub(super) fn repair_block_sums(&self, chunk: u64, bytes: &[u8]) -> bool {
        let (right, known) = (BlockSums::of(bytes), self.block_sums(chunk, Wait::ForDisk));
        if self.size < TABLE_FROM_BYTES || known.is_ok_and(|known| known == Some(right)) {
            return false;
        }
        let hole = self.table().is_none_or(|table| {
            let mut entry = [0; ENTRY_BYTES];
            let read = table.read_at(&mut entry, chunk * ENTRY_BYTES as u64);
            read.is_ok_and(|len| entry[..len].iter().all(|byte| *byte == 0))
        });
        self.note_block_sums(chunk, right);
        !hole
    }

    /// The table's entries of a group.
    fn read_group(&self, group: u64, wait: Wait) -> Result<Vec<Option<BlockSums>>, ReadError> {
        let first = group * GROUP;
        let count = GROUP.min(chunk_count(self.size).saturating_sub(first)) as usize;
        let Some(table) = self.table() else { return Ok(vec![None; count]) };
        let len = table.metadata().map_or(0, |stat| stat.len());
        let start = first * ENTRY_BYTES as u64;
        let len = len.saturating_sub(start).min((count * ENTRY_BYTES) as u64) as usize;
        let bytes = match pread(&table, start, len, wait) {
            Err(ReadError::Damaged) => Vec::new(),
            read => read?,
        };
        let mut entries = bytes.chunks_exact(ENTRY_BYTES).zip(first..);
        let mut next = || {
            let (entry, chunk) = entries.next()?;
            BlockSums::decode(entry, &self.digest, chunk)
        };
        Ok((0..count).map(|_| next()).collect())
    }

    fn cache_group(&self, group: u64, read: Vec<Option<BlockSums>>) {
        let Some(cache) = self.block_sum_cache() else { return };
        if !self.shared.reserve_sums(read.len()) {
            // Releases its own groups first: other open contents may not be in use.
            cache.release(&self.shared);
            if !self.shared.reserve_sums(read.len()) {
                return;
            }
        }
        let old = cache.0.lock().groups.insert(group, read);
        self.shared.release_sums(old.map_or(0, |old| old.len()));
    }

    /// The table, if it exists.
    fn table(&self) -> Option<Arc<File>> {
        let cache = self.block_sum_cache()?;
        if self.size < TABLE_FROM_BYTES {
            return None;
        }
        if let Some(table) = cache.0.lock().table.clone() {
            return table;
        }
        let names = Names::of(&self.digest);
        let opened = self.shared.layout().objects.sub(&names.dir);
        let opened = opened.and_then(|dir_fd| dir_fd.read_write(&names.blocks));
        let table = opened.ok().map(|(table, _)| Arc::new(table));
        cache.0.lock().table = Some(table.clone());
        table
    }

    /// The table; created if it is absent.
    fn writable_table(&self) -> Option<Arc<File>> {
        if self.size < TABLE_FROM_BYTES || !self.shared.may_write() {
            return None;
        }
        if let Some(table) = self.table() {
            return Some(table);
        }
        let names = Names::of(&self.digest);
        let dir_fd = self.shared.layout().objects.sub(&names.dir).ok()?;
        // An evicted content is readable while it is open, but gets no new files.
        dir_fd.stat(&names.content).ok().filter(|stat| stat.st_ino == self.ino)?;
        if !self.shared.reserve_quietly(table_bytes(self.size)) {
            return None;
        }
        let table = Arc::new(dir_fd.ensure(&names.blocks).ok()?.0);
        self.block_sum_cache()?.0.lock().table = Some(Some(table.clone()));
        Some(table)
    }
}

/// The disk space that the table of a content of `size` bytes takes.
pub(crate) fn table_bytes(size: u64) -> u64 {
    match size < TABLE_FROM_BYTES {
        true => 0,
        false => on_disk(chunk_count(size) * ENTRY_BYTES as u64),
    }
}

/// Tables up to this size are written as a whole when their content is kept: those of some 60 GiB.
/// Larger ones are filled as parts are read.
const WHOLE_TABLE_BYTES: usize = 128 << 20;

/// Writes the table of a content before it gets its name, with the known checksums of its chunks.
pub(crate) fn write_table(
    layout: &Layout,
    dir_fd: &DirFd,
    digest: &Digest,
    size: u64,
    known: &HashMap<u64, BlockSums>,
) -> std::io::Result<()> {
    let len = chunk_count(size) as usize * ENTRY_BYTES;
    if known.is_empty() || len > WHOLE_TABLE_BYTES {
        return Ok(());
    }
    let mut table = vec![0; len];
    for (chunk, entry) in (0..).zip(table.chunks_exact_mut(ENTRY_BYTES)) {
        if let Some(sums) = known.get(&chunk) {
            entry.copy_from_slice(&sums.encode(digest, chunk));
        }
    }
    layout.put(dir_fd, &Names::of(digest).blocks, &table)
}
