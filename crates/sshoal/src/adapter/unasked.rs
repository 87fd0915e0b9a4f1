//! Directories that the kernel lists without opening them here.
//!
//! As with files ([`unopened`](super::unopened)): where nothing changes, the kernel keeps listings,
//! and to open a directory needs not be told. What it has not listed yet it asks for without a
//! handle, which is made here, and kept until the end of the listing was asked for, the kernel
//! forgets the inode, or [`MAX_KEPT`] others were listed later.

use std::sync::Arc;

use base::{Errno, Result};
use vfs::{DirHandle, Ino, ListedEntry, Listing, Vfs};

use super::kept::Kept;

/// Directories that are kept open for those who list them: more than are listed at once. One that
/// goes too early is listed again, from where it was.
const MAX_KEPT: usize = 32;

/// The directories that are being listed. See the [module](self).
#[derive(Default)]
pub struct Unasked(Kept<Directory, MAX_KEPT>);

/// An open directory; released when the last who lists it is done.
struct Directory {
    vfs: Arc<Vfs>,
    handle: DirHandle,
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.vfs.releasedir(self.handle);
    }
}

impl Unasked {
    /// Lists as [`Vfs::readdir`] does. Whoever begins has a listing of his own.
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
            // Somebody else lists it as well, and is too far ahead for one handle to serve both.
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
        self.0.keep(ino, directory.clone());
        Ok(directory)
    }

    /// The kernel has forgotten `ino`, or nobody lists it any more.
    pub fn forget(&self, ino: u64) {
        self.0.forget(ino);
    }

    /// Gives all of them back.
    pub fn clear(&self) {
        self.0.clear();
    }
}

/// Notes whether there was anything to list.
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

    /// Takes so many names at a time.
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
        unasked: Unasked,
    }

    impl Stage {
        fn new(files: usize) -> Stage {
            let remote = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
            for file in 0..files {
                remote.inner().put_file(&format!("f{file}"), "content");
            }
            let config = Config { consistency: Consistency::Immutable, ..Config::default() };
            let vfs = Arc::new(Vfs::new(remote.clone(), config));
            Stage { remote, vfs, unasked: Unasked::default() }
        }

        async fn list(&self, offset: u64, most: usize) -> Result<Vec<(Vec<u8>, u64)>> {
            let mut names = Names(most, Vec::new());
            self.unasked.readdir(&self.vfs, Ino::ROOT.0, offset, false, &mut names).await?;
            Ok(names.1)
        }

        fn kept(&self) -> usize {
            self.unasked.0.len()
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
            assert_eq!(stage.kept(), 1);
        }
        assert_eq!(seen.len(), 12, "the dots too");
        assert_eq!(stage.kept(), 0, "its end was asked for");
        // Whoever goes on with one that is gone gets the same.
        let rest = stage.list(7, 100).await.unwrap();
        assert_eq!(rest.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), seen[7..]);
        stage.unasked.forget(Ino::ROOT.0);
        assert_eq!(stage.kept(), 0);
    }

    #[tokio::test]
    async fn an_open_that_fails_says_so_and_leaves_nothing() {
        let stage = Stage::new(1);
        stage.remote.fail(Call::Opendir, 1, base::Errno::EACCES);
        assert_eq!(stage.list(0, 5).await, Err(base::Errno::EACCES));
        assert_eq!(stage.kept(), 0);
        assert_eq!(stage.list(0, 5).await.unwrap().len(), 3);
        stage.unasked.clear();
        assert_eq!(stage.kept(), 0);
    }
}
