//! Statistics of a mount, for `status` and the log.

use std::collections::HashSet;
use std::sync::Arc;

use crate::Vfs;

/// The present state in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Inodes that the kernel knows, and the directories above them.
    pub inodes: usize,
    /// Open files.
    pub open_files: usize,
    /// Open directories.
    pub open_directories: usize,
    /// Bytes written that the server has not acknowledged yet.
    pub dirty_bytes: u64,
    /// Attribute changes that have returned and that the server has not acknowledged yet.
    pub dirty_changes: u64,
    /// Upper limit of `dirty_bytes`.
    pub dirty_limit_bytes: u64,
    /// Files with dirty bytes.
    pub dirty_files: usize,
    /// Names in the directory cache.
    pub listed_names: usize,
    /// Bytes of the directory cache.
    pub listed_bytes: usize,
    /// Bytes of small files that were prefetched and not opened yet.
    pub fetched_bytes: u64,
}

impl Vfs {
    /// The present statistics. Cheap, though it visits every open file.
    pub fn stats(&self) -> Stats {
        let mut dirty = HashSet::new();
        self.files.each(|file| {
            if file.inode.writes.dirty_bytes() > 0 {
                dirty.insert(Arc::as_ptr(&file.inode));
            }
        });
        let (inodes, (listed_names, listed_bytes)) = {
            let tree = self.tree();
            (tree.len(), tree.dir_cache_size())
        };
        Stats {
            inodes,
            open_files: self.files.len(),
            open_directories: self.directories.len(),
            dirty_bytes: self.dirty.bytes(),
            dirty_changes: self.dirty.changes(),
            dirty_limit_bytes: self.dirty.max_bytes().into(),
            dirty_files: dirty.len(),
            listed_names,
            listed_bytes,
            fetched_bytes: self.prefetch.files.kept_bytes(),
        }
    }
}
