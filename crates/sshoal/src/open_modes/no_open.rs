//! Reads of mounts without OPEN requests (FUSE's no_open).
//!
//! If nothing changes, neither on the server nor through the mount, the kernel need not send OPEN:
//! opening a file then costs no request, and most reads none either, since the pages stay cached. A
//! READ for other pages has no handle; the file is opened here, and the handle kept while the file is
//! being read.
//!
//! Consequences: a user without permission gets the error from the read instead of the open. And no
//! RELEASE ends a handle; it is released when the end of its file was read, when the kernel forgets
//! the inode, and when [`MAX_OPEN`] other files were read since.

use std::sync::Arc;

use base::{Access, Data, Result};
use tokio::sync::OnceCell;
use vfs::{Handle, Ino, OpenRequest, Vfs};

use super::lru::Lru;

/// Maximum number of files kept open. Each may be a handle of the server, which has some hundreds of
/// them; most programs read no more than a few files at a time.
const MAX_OPEN: usize = 64;

/// The files that are being read; see the [module](self).
#[derive(Default)]
pub struct NoOpen(Lru<OnceCell<File>, MAX_OPEN>);

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

impl NoOpen {
    /// Reads as [`Vfs::read`] does.
    pub async fn read(&self, vfs: &Arc<Vfs>, ino: u64, offset: u64, len: u32) -> Result<Data> {
        let cell = self.0.get_or_default(ino);
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
        if read.as_ref().map_or(true, |data| data.len() < len as usize) {
            self.0.remove_if_same(ino, &cell);
        }
        read
    }

    /// Releases the handle of `ino`: the kernel has forgotten the inode, or some of its lookups.
    pub fn forget(&self, ino: u64) {
        self.0.remove(ino);
    }

    /// Releases all handles.
    pub fn clear(&self) {
        self.0.clear();
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

    #[tokio::test]
    async fn the_least_recently_read_files_are_released_first_and_all_at_the_end() {
        let stage = Stage::new();
        let mut inos = Vec::new();
        for number in 0..MAX_OPEN + 1 {
            inos.push(stage.file(&format!("f{number}"), "content").await);
        }
        for ino in &inos[..MAX_OPEN] {
            stage.read(*ino, 0, 2).await;
        }
        stage.read(inos[0], 0, 2).await;
        stage.read(inos[MAX_OPEN], 0, 2).await;
        assert_eq!(stage.vfs.handles(), MAX_OPEN);
        let open: Vec<bool> = inos.iter().map(|ino| stage.no_open.0.get(*ino).is_some()).collect();
        assert!(open[0] && !open[1] && open[2] && open[MAX_OPEN]);
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
