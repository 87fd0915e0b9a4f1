//! Statistics of a mount, for `status` and the log.

use std::collections::HashSet;

use base::RemotePath;
use base::metrics::Counter;

use crate::{Ino, Vfs};

/// Answers from memory and from the server since the mount began. Updated without locks.
#[derive(Debug, Default)]
pub struct Counters {
    /// Lookups of existing names that were answered from memory.
    pub lookups_cached: Counter,
    /// Lookups of absent names that were answered from memory.
    pub lookups_cached_absent: Counter,
    /// Lookups that the server was requested for, of existing and of absent names.
    pub lookups_requested: Counter,
    /// GETATTRs that were answered from memory.
    pub attributes_cached: Counter,
    /// GETATTRs that the server was requested for.
    pub attributes_requested: Counter,
    /// Opens without a request to the server.
    pub opens_deferred: Counter,
    /// The opens among them whose content was prefetched.
    pub opens_prefetched: Counter,
    /// Opens that were sent to the server. Those that create a file are not counted.
    pub opens_requested: Counter,
    /// READs that were answered with a prefetched small file.
    pub reads_prefetched: Counter,
    /// READs whose data the readahead had.
    pub reads_ahead: Counter,
    /// READs that waited for data that the readahead had requested.
    pub reads_waited: Counter,
    /// READs for which a request was sent to the server.
    pub reads_requested: Counter,
}

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
    /// The counters since the mount began.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A path of `ino`; `None` if it has no name, or is unknown.
    pub fn path_of(&self, ino: Ino) -> Option<RemotePath> {
        self.tree().path(ino)
    }

    /// The present statistics. Cheap, though it visits every open file.
    pub fn stats(&self) -> Stats {
        let written = self.written_inodes().into_iter();
        let dirty = written.filter(|inode| inode.writes.dirty_bytes() > 0).map(|inode| inode.ino);
        let dirty_files = dirty.collect::<HashSet<_>>().len();
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
            dirty_files,
            listed_names,
            listed_bytes,
            fetched_bytes: self.prefetch.files.kept_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, LookupResult, OpenRequest};
    use base::Access;
    use std::sync::Arc;
    use testkit::MemRemote;

    #[tokio::test]
    async fn answers_are_counted_by_their_origin() {
        let remote = Arc::new(MemRemote::new());
        remote.put_file("f", "content");
        let vfs = Vfs::new(remote, Config { login: Some((0, 0)), ..Config::default() });
        let mut ino = Ino::ROOT;
        for _ in 0..3 {
            if let LookupResult::Found(entry) = vfs.lookup(Ino::ROOT, b"f").await.unwrap() {
                ino = entry.ino;
            }
        }
        let counters = vfs.counters();
        assert_eq!((counters.lookups_requested.get(), counters.lookups_cached.get()), (1, 2));
        vfs.getattr(ino).await.unwrap();
        vfs.getattr(Ino::ROOT).await.unwrap();
        let attributes = (&counters.attributes_cached, &counters.attributes_requested);
        assert_eq!((attributes.0.get(), attributes.1.get()), (1, 1));
        let open = async || vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap();
        let first = open().await;
        assert_eq!(vfs.read(first.handle, 0, 4096).await.unwrap().len(), 7);
        assert_eq!((counters.opens_requested.get(), counters.opens_deferred.get()), (1, 0));
        assert_eq!((counters.reads_requested.get(), counters.reads_ahead.get()), (1, 0));
        vfs.release(first.handle);
        assert_eq!(vfs.path_of(ino).unwrap().as_bytes(), b"f");
        assert_eq!(vfs.path_of(Ino(77)), None);
    }
}
