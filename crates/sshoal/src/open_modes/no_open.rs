//! Reads and listings of mounts without OPEN and OPENDIR requests (FUSE's no_open and no_opendir).
//!
//! If nothing changes, neither on the server nor through the mount, the kernel need not send OPEN:
//! opening a file then costs no request, and most reads none either, since the pages stay cached. A
//! READ for other pages has no handle; the file is opened here, and the handle kept while the file
//! is being read. The same holds for directories, whose listings the kernel caches.
//!
//! Consequences: a user without permission gets the error from the read instead of the open. And no
//! RELEASE ends a handle; it is released when the end of its file was read or of its directory was
//! listed, when the kernel forgets the inode, when [`MAX_FILES`] other files were read, or
//! [`MAX_DIRECTORIES`] other directories listed, since, and at the next read of a file after
//! [`MAX_IDLE`].

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use base::{Access, Data, Errno, Mutex, Result};
use lru::LruCache;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use vfs::{DirHandle, EntrySink, Handle, Ino, OpenRequest, Vfs};

/// Maximum number of files kept open. Each may be a handle of the server, which has some hundreds
/// of them; most programs read no more than a few files at a time.
const MAX_FILES: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// How long a file stays open that is not read. The open after it finds that the file was changed,
/// although that was not to happen.
const MAX_IDLE: Duration = Duration::from_secs(3);

/// Maximum number of directories kept open: more than are listed at a time. If one is released too
/// early, it is opened again and the listing continues at its offset.
const MAX_DIRECTORIES: NonZeroUsize = NonZeroUsize::new(32).unwrap();

/// The files that are being read and the directories that are being listed; see the
/// [module](self).
///
/// What is removed from a table is dropped, and so released, without holding its lock.
pub struct NoOpen {
    files: Mutex<LruCache<u64, Reading>>,
    directories: Mutex<LruCache<u64, Arc<Directory>>>,
}

impl Default for NoOpen {
    fn default() -> NoOpen {
        let files = Mutex::new(LruCache::new(MAX_FILES));
        NoOpen { files, directories: Mutex::new(LruCache::new(MAX_DIRECTORIES)) }
    }
}

/// A file that is being read.
struct Reading {
    /// Opened at its first use.
    file: Arc<OnceCell<File>>,
    last_read_at: Instant,
}

/// An open file, released when its last read has ended.
struct File {
    vfs: Arc<Vfs>,
    handle: Handle,
}

impl Drop for File {
    fn drop(&mut self) {
        self.vfs.release(self.handle);
    }
}

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

impl NoOpen {
    /// Reads as [`Vfs::read`] does.
    pub async fn read(&self, vfs: &Arc<Vfs>, ino: u64, offset: u64, len: u32) -> Result<Data> {
        let cell = self.file(ino);
        let opening = async || {
            let request = OpenRequest::plain(Access::Read);
            let opened = vfs.open(Ino(ino), request).await?;
            Ok(File { vfs: vfs.clone(), handle: opened.handle })
        };
        let read = match cell.get_or_try_init(opening).await {
            Ok(file) => vfs.read(file.handle, offset, len).await,
            Err(error) => Err(error),
        };
        // A short read is the end of the file. Further reads are answered from the kernel's pages,
        // or open the file again.
        let is_last = read.as_ref().map_or(true, |data| data.len() < len as usize);
        let mut files = self.files.lock();
        let known = files.peek_mut(&ino).filter(|known| Arc::ptr_eq(&known.file, &cell));
        let removed = match known {
            Some(_) if is_last => files.pop(&ino),
            Some(known) => {
                known.last_read_at = Instant::now();
                None
            }
            None => None,
        };
        drop(files);
        drop(removed);
        read
    }

    /// The file in the table, which is opened at its first use.
    fn file(&self, ino: u64) -> Arc<OnceCell<File>> {
        let now = Instant::now();
        let mut files = self.files.lock();
        if let Some(known) = files.get_mut(&ino)
            && now.saturating_duration_since(known.last_read_at) < MAX_IDLE
        {
            known.last_read_at = now;
            return known.file.clone();
        }
        let file = Arc::<OnceCell<File>>::default();
        let removed = files.push(ino, Reading { file: file.clone(), last_read_at: now });
        drop(files);
        drop(removed);
        file
    }

    /// Lists as [`Vfs::readdir`] does. A listing from offset 0 gets a handle of its own.
    pub async fn readdir(
        &self,
        vfs: &Arc<Vfs>,
        ino: u64,
        offset: u64,
        plus: bool,
        listing: &mut (dyn EntrySink + Send),
    ) -> Result<()> {
        let known = if offset == 0 { None } else { self.directories.lock().get(&ino).cloned() };
        let is_known = known.is_some();
        let mut directory = match known {
            Some(directory) => directory,
            None => self.open_directory(vfs, ino).await?,
        };
        let mut listed = vfs.readdir(directory.handle, offset, plus, listing).await;
        if listed == Err(Errno::EINVAL) && is_known {
            // Another listing of the directory is too far ahead for one handle to serve both.
            directory = self.open_directory(vfs, ino).await?;
            listed = vfs.readdir(directory.handle, offset, plus, listing).await;
        }
        if listed != Ok(true) {
            let removed = self.directories.lock().pop(&ino);
            drop(removed);
        }
        listed.map(drop)
    }

    async fn open_directory(&self, vfs: &Arc<Vfs>, ino: u64) -> Result<Arc<Directory>> {
        let handle = vfs.opendir(Ino(ino)).await?;
        let directory = Arc::new(Directory { vfs: vfs.clone(), handle });
        let removed = self.directories.lock().push(ino, directory.clone());
        drop(removed);
        Ok(directory)
    }

    /// Releases the handles of `ino`: the kernel has forgotten the inode, or some of its lookups.
    pub fn forget(&self, ino: u64) {
        let removed = (self.files.lock().pop(&ino), self.directories.lock().pop(&ino));
        drop(removed);
    }

    /// Releases all handles.
    pub fn clear(&self) {
        let empty = NoOpen::default();
        std::mem::swap(&mut *self.files.lock(), &mut *empty.files.lock());
        std::mem::swap(&mut *self.directories.lock(), &mut *empty.directories.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{Call, FaultyRemote, MemRemote};
    use vfs::{Config, Consistency, LookupResult};

    struct Stage {
        remote: Arc<FaultyRemote<MemRemote>>,
        vfs: Arc<Vfs>,
        no_open: NoOpen,
    }

    impl Stage {
        fn new() -> Stage {
            let remote = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
            let config = Config {
                consistency: Consistency::Immutable,
                readahead_bytes: 0,
                ..Config::default()
            };
            let vfs = Arc::new(Vfs::new(remote.clone(), config));
            Stage { remote, vfs, no_open: NoOpen::default() }
        }

        async fn file(&self, name: &str, content: &str) -> u64 {
            self.remote.inner().put_file(name, content);
            match self.vfs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap() {
                LookupResult::Found(entry) => entry.ino.0,
                LookupResult::Absent(_) => panic!("{name} is not there"),
            }
        }

        async fn read(&self, ino: u64, offset: u64, len: u32) -> Vec<u8> {
            self.no_open.read(&self.vfs, ino, offset, len).await.unwrap().to_vec()
        }
    }

    #[tokio::test]
    async fn a_file_is_open_while_it_is_read_and_no_longer() {
        let stage = Stage::new();
        let ino = stage.file("f", "0123456789").await;
        assert_eq!(stage.read(ino, 0, 4).await, b"0123");
        assert_eq!(stage.vfs.handles(), 1);
        assert_eq!(stage.read(ino, 4, 4).await, b"4567");
        assert_eq!(stage.remote.calls(Call::Open), 1, "the same handle");
        assert_eq!(stage.read(ino, 8, 4).await, b"89");
        assert_eq!(stage.vfs.handles(), 0, "its end was read");
        assert_eq!(stage.read(ino, 0, 2).await, b"01");
        stage.no_open.forget(ino);
        assert_eq!(stage.vfs.handles(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_in_place_is_noticed_by_a_later_read() {
        let stage = Stage::new();
        let ino = stage.file("f", "0123456789").await;
        assert_eq!(stage.read(ino, 0, 4).await, b"0123");
        tokio::time::advance(MAX_IDLE).await;
        assert_eq!(stage.read(ino, 4, 4).await, b"4567");
        assert_eq!((stage.remote.calls(Call::Open), stage.vfs.handles()), (2, 1));
        stage.remote.inner().put_file("f", "cut");
        let answer = stage.no_open.read(&stage.vfs, ino, 0, 8).await;
        assert_eq!(answer, Err(Errno::ESTALE), "it ends early");
        stage.remote.inner().put_file("f", "9876543210");
        stage.remote.inner().set_mtime("f", 1);
        tokio::time::advance(MAX_IDLE).await;
        let answer = stage.no_open.read(&stage.vfs, ino, 0, 4).await;
        assert_eq!(answer, Err(Errno::ESTALE), "it has another mtime");
    }

    #[tokio::test]
    async fn the_least_recently_read_files_are_released_first_and_all_at_the_end() {
        let stage = Stage::new();
        let mut inos = Vec::new();
        for number in 0..MAX_FILES.get() + 1 {
            inos.push(stage.file(&format!("f{number}"), "content").await);
        }
        for ino in &inos[..MAX_FILES.get()] {
            stage.read(*ino, 0, 2).await;
        }
        stage.read(inos[0], 0, 2).await;
        stage.read(inos[MAX_FILES.get()], 0, 2).await;
        assert_eq!(stage.vfs.handles(), MAX_FILES.get());
        let open: Vec<bool> =
            inos.iter().map(|ino| stage.no_open.files.lock().contains(ino)).collect();
        assert!(open[0] && !open[1] && open[2] && open[MAX_FILES.get()]);
        stage.no_open.clear();
        assert_eq!(stage.vfs.handles(), 0);
    }

    #[tokio::test]
    async fn an_open_that_fails_is_tried_again() {
        let stage = Stage::new();
        let ino = stage.file("f", "content").await;
        stage.remote.fail(Call::Open, 1, base::Errno::EACCES);
        let failed = stage.no_open.read(&stage.vfs, ino, 0, 4).await;
        assert_eq!(failed, Err(base::Errno::EACCES));
        assert_eq!(stage.read(ino, 0, 4).await, b"cont");
    }

    /// A cancelled read leaves nothing open.
    #[tokio::test]
    async fn a_cancelled_read_can_be_repeated() {
        let stage = Stage::new();
        let ino = stage.file("f", "content").await;
        let gate = stage.remote.hold(Call::Open, 1);
        {
            let mut read = Box::pin(stage.no_open.read(&stage.vfs, ino, 0, 4));
            let pending = std::future::poll_fn(|context| {
                std::task::Poll::Ready(read.as_mut().poll(context).is_pending())
            });
            assert!(pending.await);
        }
        gate.release();
        assert_eq!(stage.read(ino, 0, 4).await, b"cont");
        stage.no_open.clear();
        assert_eq!(stage.vfs.handles(), 0);
    }
}

#[cfg(test)]
mod listing_tests {
    use super::*;
    use testkit::{Call, FaultyRemote, MemRemote};
    use vfs::{Config, Consistency, ListedEntry};

    /// Accepts this many names at a time.
    struct Names(usize, Vec<(Vec<u8>, u64)>);

    impl EntrySink for Names {
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
        no_open: NoOpen,
    }

    impl Stage {
        fn new(files: usize) -> Stage {
            let remote = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
            for file in 0..files {
                remote.inner().put_file(&format!("f{file}"), "content");
            }
            let config = Config { consistency: Consistency::Immutable, ..Config::default() };
            let vfs = Arc::new(Vfs::new(remote.clone(), config));
            Stage { remote, vfs, no_open: NoOpen::default() }
        }

        async fn list(&self, offset: u64, most: usize) -> Result<Vec<(Vec<u8>, u64)>> {
            let mut names = Names(most, Vec::new());
            self.no_open.readdir(&self.vfs, Ino::ROOT.0, offset, false, &mut names).await?;
            Ok(names.1)
        }

        fn open_directories(&self) -> usize {
            self.no_open.directories.lock().len()
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
        stage.no_open.forget(Ino::ROOT.0);
        assert_eq!(stage.open_directories(), 0);
    }

    #[tokio::test]
    async fn an_open_that_fails_says_so_and_leaves_nothing() {
        let stage = Stage::new(1);
        stage.remote.fail(Call::Opendir, 1, base::Errno::EACCES);
        assert_eq!(stage.list(0, 5).await, Err(base::Errno::EACCES));
        assert_eq!(stage.open_directories(), 0);
        assert_eq!(stage.list(0, 5).await.unwrap().len(), 3);
        stage.no_open.clear();
        assert_eq!(stage.open_directories(), 0);
    }
}
