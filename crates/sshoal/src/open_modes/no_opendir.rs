//! Listings of mounts without OPENDIR requests (FUSE's no_opendir).
//!
//! If nothing changes, the kernel caches listings and need not send OPENDIR, as with files
//! ([`no_open`](super::no_open)). Its requests for entries that it has not cached have no handle; the
//! directory is opened here, and the handle kept until the end of the listing was requested, the
//! kernel forgets the inode, or [`MAX_OPEN`] other directories were listed since.

use std::sync::Arc;

use base::{Errno, Result};
use vfs::{DirHandle, Ino, ListedEntry, Listing, Vfs};

use super::lru::Lru;

/// Maximum number of directories kept open: more than are listed at a time. If one is released too
/// early, it is opened again and the listing continues at its offset.
const MAX_OPEN: usize = 32;

/// The directories that are being listed; see the [module](self).
#[derive(Default)]
pub struct NoOpendir(Lru<Directory, MAX_OPEN>);

/// An open directory, released when its last listing has ended.
struct Directory {
    vfs: Arc<Vfs>,
    handle: DirHandle,
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.vfs.releasedir(self.handle);
    }
}

impl NoOpendir {
    /// Lists as [`Vfs::readdir`] does. A listing from offset 0 gets a handle of its own.
    pub async fn readdir(
        &self,
        vfs: &Arc<Vfs>,
        ino: u64,
        offset: u64,
        plus: bool,
        listing: &mut (dyn Listing + Send),
    ) -> Result<()> {
        let known = if offset == 0 { None } else { self.0.get(ino) };
        let is_known = known.is_some();
        let mut directory = match known {
            Some(directory) => directory,
            None => self.open(vfs, ino).await?,
        };
        let mut counted = Counted { listing, pushed: false };
        let mut listed = vfs.readdir(directory.handle, offset, plus, &mut counted).await;
        if listed == Err(Errno::EINVAL) && is_known {
            // Another listing of the directory is too far ahead for one handle to serve both.
            directory = self.open(vfs, ino).await?;
            listed = vfs.readdir(directory.handle, offset, plus, &mut counted).await;
        }
        if listed.is_err() || !counted.pushed {
            self.forget(ino);
        }
        listed
    }

    async fn open(&self, vfs: &Arc<Vfs>, ino: u64) -> Result<Arc<Directory>> {
        let handle = vfs.opendir(Ino(ino)).await?;
        let directory = Arc::new(Directory { vfs: vfs.clone(), handle });
        self.0.insert(ino, directory.clone());
        Ok(directory)
    }

    /// Releases the handle of `ino`: the kernel has forgotten the inode, or the listing has ended.
    pub fn forget(&self, ino: u64) {
        self.0.remove(ino);
    }

    /// Releases all handles.
    pub fn clear(&self) {
        self.0.clear();
    }
}

/// Records whether an entry was listed.
struct Counted<'a> {
    listing: &'a mut (dyn Listing + Send),
    pushed: bool,
}

impl Listing for Counted<'_> {
    fn has_room(&self, name: &[u8]) -> bool {
        self.listing.has_room(name)
    }

    fn push(&mut self, entry: ListedEntry<'_>) {
        self.pushed = true;
        self.listing.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{Call, FaultyRemote, MemRemote};
    use vfs::{Config, Consistency};

    /// Accepts this many names at a time.
    struct Names(usize, Vec<(Vec<u8>, u64)>);

    impl Listing for Names {
        fn has_room(&self, _: &[u8]) -> bool {
            self.1.len() < self.0
        }

        fn push(&mut self, entry: ListedEntry<'_>) {
            self.1.push((entry.name.to_vec(), entry.next_offset));
        }
    }

    struct Stage {
        remote: Arc<FaultyRemote<MemRemote>>,
        vfs: Arc<Vfs>,
        no_opendir: NoOpendir,
    }

    impl Stage {
        fn new(files: usize) -> Stage {
            let remote = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
            for file in 0..files {
                remote.inner().put_file(&format!("f{file}"), "content");
            }
            let config = Config { consistency: Consistency::Immutable, ..Config::default() };
            let vfs = Arc::new(Vfs::new(remote.clone(), config));
            Stage { remote, vfs, no_opendir: NoOpendir::default() }
        }

        async fn list(&self, offset: u64, most: usize) -> Result<Vec<(Vec<u8>, u64)>> {
            let mut names = Names(most, Vec::new());
            self.no_opendir.readdir(&self.vfs, Ino::ROOT.0, offset, false, &mut names).await?;
            Ok(names.1)
        }

        fn open_directories(&self) -> usize {
            self.no_opendir.0.len()
        }
    }

    #[tokio::test]
    async fn a_directory_is_open_while_it_is_listed_and_no_longer() {
        let stage = Stage::new(10);
        let (mut offset, mut seen) = (0, Vec::new());
        loop {
            let names = stage.list(offset, 5).await.unwrap();
            let Some((_, next)) = names.last() else { break };
            offset = *next;
            seen.extend(names.into_iter().map(|(name, _)| name));
            assert_eq!(stage.open_directories(), 1);
        }
        assert_eq!(seen.len(), 12, "the dots too");
        assert_eq!(stage.open_directories(), 0, "its end was asked for");
        // A listing whose handle was released continues with the same entries.
        let rest = stage.list(7, 100).await.unwrap();
        assert_eq!(rest.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), seen[7..]);
        stage.no_opendir.forget(Ino::ROOT.0);
        assert_eq!(stage.open_directories(), 0);
    }

    #[tokio::test]
    async fn an_open_that_fails_says_so_and_leaves_nothing() {
        let stage = Stage::new(1);
        stage.remote.fail(Call::Opendir, 1, base::Errno::EACCES);
        assert_eq!(stage.list(0, 5).await, Err(base::Errno::EACCES));
        assert_eq!(stage.open_directories(), 0);
        assert_eq!(stage.list(0, 5).await.unwrap().len(), 3);
        stage.no_opendir.clear();
        assert_eq!(stage.open_directories(), 0);
    }
}
