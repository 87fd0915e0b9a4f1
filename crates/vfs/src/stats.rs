//! What there is, in numbers, for who looks at a mount from outside.

use std::collections::HashSet;
use std::sync::Arc;

use crate::Vfs;

/// How much of what there is at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Inodes that the kernel remembers, or that lead to them.
    pub inodes: usize,
    /// Open files.
    pub open_files: usize,
    /// Open directories.
    pub open_directories: usize,
    /// Bytes that were acknowledged to who wrote them and that the server has not acknowledged.
    pub dirty_bytes: u64,
    /// Changes of attributes of which that is so.
    pub dirty_changes: u64,
    /// The most bytes that may be so at one time.
    pub dirty_limit_bytes: u64,
    /// Files that they belong to.
    pub dirty_files: usize,
    /// Names kept in listings.
    pub listed_names: usize,
    /// Bytes that these listings take.
    pub listed_bytes: usize,
    /// Bytes of small files that were fetched before anybody has opened them.
    pub fetched_bytes: u64,
}

impl Vfs {
    /// What there is now. Cheap, though it looks at every open file.
    #[must_use]
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
            dirty_limit_bytes: self.config.dirty_bytes.into(),
            dirty_files: dirty.len(),
            listed_names,
            listed_bytes,
            fetched_bytes: self.prefetch.files.kept_bytes(),
        }
    }
}
