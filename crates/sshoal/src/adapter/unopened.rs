//! Files that the kernel reads without opening them here.
//!
//! Where nothing changes, neither on the server nor through the mount, the kernel needs not tell of
//! each open: an open costs it nothing then, and most reads neither, since the pages stay. A read
//! that it cannot answer comes without a handle, and gets one here, which is kept while the file is
//! being read.
//!
//! What follows from it: who may not read a file learns so from the read and not from the open, and
//! there is no close that could end a handle. So one goes when the end of its file was read, when
//! the kernel forgets the inode, and when [`MAX_KEPT`] others were read later.

use std::sync::Arc;

use base::{Access, Data, Result};
use tokio::sync::OnceCell;
use vfs::{Handle, Ino, OpenRequest, Vfs};

use super::kept::Kept;

/// Files that are kept open for those who read them. Each may be a handle at the server, which has
/// some hundreds of them, and most readers do not read more than a few files at a time.
const MAX_KEPT: usize = 64;

/// The files that are being read. See the [module](self).
#[derive(Default)]
pub struct Unopened(Kept<OnceCell<File>, MAX_KEPT>);

/// An open file; released when the last who reads it is done.
struct File {
    vfs: Arc<Vfs>,
    handle: Handle,
}

impl Drop for File {
    fn drop(&mut self) {
        self.vfs.release(self.handle);
    }
}

impl Unopened {
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
        // Who reads on asks for the rest, and gets it from the kernel's pages or by another open.
        if read.as_ref().map_or(true, |data| data.len() < len as usize) {
            self.0.forget_this(ino, &cell);
        }
        read
    }

    /// The kernel has forgotten `ino`, or part of its look-ups.
    pub fn forget(&self, ino: u64) {
        self.0.forget(ino);
    }

    /// Gives all of them back.
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
        unopened: Unopened,
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
            Stage { remote, vfs, unopened: Unopened::default() }
        }

        async fn file(&self, name: &str, content: &str) -> u64 {
            self.remote.inner().put_file(name, content);
            match self.vfs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap() {
                LookupResult::Found(entry) => entry.ino.0,
                LookupResult::Absent(_) => panic!("{name} is not there"),
            }
        }

        async fn read(&self, ino: u64, offset: u64, len: u32) -> Vec<u8> {
            self.unopened.read(&self.vfs, ino, offset, len).await.unwrap().to_vec()
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
        stage.unopened.forget(ino);
        assert_eq!(stage.vfs.handles(), 0);
    }

    #[tokio::test]
    async fn those_read_longest_ago_go_first_and_all_at_the_end() {
        let stage = Stage::new();
        let mut inos = Vec::new();
        for number in 0..MAX_KEPT + 1 {
            inos.push(stage.file(&format!("f{number}"), "content").await);
        }
        for ino in &inos[..MAX_KEPT] {
            stage.read(*ino, 0, 2).await;
        }
        stage.read(inos[0], 0, 2).await;
        stage.read(inos[MAX_KEPT], 0, 2).await;
        assert_eq!(stage.vfs.handles(), MAX_KEPT);
        let open: Vec<bool> = inos.iter().map(|ino| stage.unopened.0.get(*ino).is_some()).collect();
        assert!(open[0] && !open[1] && open[2] && open[MAX_KEPT]);
        stage.unopened.clear();
        assert_eq!(stage.vfs.handles(), 0);
    }

    #[tokio::test]
    async fn an_open_that_fails_is_tried_again() {
        let stage = Stage::new();
        let ino = stage.file("f", "content").await;
        stage.remote.fail(Call::Open, 1, base::Errno::EACCES);
        let failed = stage.unopened.read(&stage.vfs, ino, 0, 4).await;
        assert_eq!(failed, Err(base::Errno::EACCES));
        assert_eq!(stage.read(ino, 0, 4).await, b"cont");
    }

    /// Who gives up leaves nothing open.
    #[tokio::test]
    async fn a_read_that_was_given_up_can_be_made_again() {
        let stage = Stage::new();
        let ino = stage.file("f", "content").await;
        let gate = stage.remote.hold(Call::Open, 1);
        {
            let mut read = Box::pin(stage.unopened.read(&stage.vfs, ino, 0, 4));
            let pending = std::future::poll_fn(|context| {
                std::task::Poll::Ready(read.as_mut().poll(context).is_pending())
            });
            assert!(pending.await);
        }
        gate.release();
        assert_eq!(stage.read(ino, 0, 4).await, b"cont");
        stage.unopened.clear();
        assert_eq!(stage.vfs.handles(), 0);
    }
}
