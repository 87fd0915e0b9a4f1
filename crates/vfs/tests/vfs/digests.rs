//! Digests are returned for contents that are known to be current, and for no others.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{
    Access, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Fh, OpenFlags, Remote,
    RemotePath, RenameMode, Result, StatVfs,
};
use bytes::Bytes;
use testkit::{Call, FaultyRemote, MemRemote, path};

use vfs::{Config, Ino, LookupResult, OpenRequest, Vfs};

/// A remote whose digest of a file is its size, and which records the attributes of each call.
struct Knowing(Arc<FaultyRemote<MemRemote>>);

#[async_trait]
impl Remote for Knowing {
    async fn digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        _: DigestKind,
        _: DigestEffort,
    ) -> Result<Option<Bytes>> {
        let now = self.0.inner().lstat(path).await?;
        Ok((now == *attr).then(|| Bytes::from(attr.size.to_be_bytes().to_vec())))
    }

    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.0.lstat(path).await
    }
    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.0.readlink(path).await
    }
    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        self.0.opendir(path).await
    }
    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        self.0.readdir(dh).await
    }
    fn closedir(&self, dh: Dh) {
        self.0.closedir(dh);
    }
    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<base::Opened> {
        self.0.open(path, flags).await
    }
    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.0.fstat(fh).await
    }
    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        self.0.read(fh, offset, len).await
    }
    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        self.0.write(fh, offset, data).await
    }
    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.0.fsync(fh).await
    }
    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.0.fsyncdir(path).await
    }
    fn close(&self, fh: Fh) {
        self.0.close(fh);
    }
    async fn finish(&self, fh: Fh) -> Result<()> {
        self.0.finish(fh).await
    }
    async fn flush(&self, fh: Fh) -> Result<()> {
        self.0.flush(fh).await
    }
    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.0.setattr(path, change).await
    }
    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.0.fsetattr(fh, change).await
    }
    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.0.mkdir(path, perm).await
    }
    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.0.rmdir(path).await
    }
    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.0.unlink(path).await
    }
    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.0.symlink(target, path).await
    }
    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.0.link(existing, new).await
    }
    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.0.rename(from, to, mode).await
    }
    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.0.statvfs(path).await
    }
    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        self.0.copy(from, to, len).await
    }
}

struct Stage {
    remote: Arc<FaultyRemote<MemRemote>>,
    vfs: Vfs,
}

impl Stage {
    fn new() -> Stage {
        let remote = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
        remote.inner().put_file("f", "content");
        let vfs = Vfs::new(Arc::new(Knowing(remote.clone())), Config::default());
        Stage { remote, vfs }
    }

    async fn look_up(&self, name: &str) -> Ino {
        match self.vfs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap() {
            LookupResult::Found(entry) => entry.ino,
            LookupResult::Absent(_) => panic!("{name} is not there"),
        }
    }

    async fn digest(&self, ino: Ino) -> Option<u64> {
        let told = self.vfs.digest(ino, DigestKind::Md5, DigestEffort::Known).await.unwrap();
        told.map(|bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_is_asked_only_when_it_told_nothing_lately() {
    let stage = Stage::new();
    let ino = stage.look_up("f").await;
    let asked = stage.remote.calls(Call::Lstat);
    assert_eq!(stage.digest(ino).await, Some(7));
    assert_eq!(stage.remote.calls(Call::Lstat), asked, "validated by the lookup");
    tokio::time::advance(Duration::from_secs(2)).await;
    stage.remote.inner().put_file("f", "longer content");
    assert_eq!(stage.digest(ino).await, Some(14), "of what it has become");
    assert_eq!(stage.remote.calls(Call::Lstat), asked + 1);
}

/// A caller that requests the digests of all files of a directory does not wait for each of them.
#[tokio::test(start_paused = true)]
async fn those_of_a_directory_are_validated_by_its_listing() {
    let stage = Stage::new();
    let mut inos = Vec::new();
    for number in 0..200 {
        let name = format!("f{number}");
        stage.remote.inner().put_file(&name, "content");
        inos.push(stage.look_up(&name).await);
    }
    tokio::time::advance(Duration::from_secs(100)).await;
    stage.remote.inner().put_file("f150", "longer content");
    let asked = stage.remote.calls(Call::Lstat);
    for (number, ino) in inos.into_iter().enumerate() {
        let size = if number == 150 { 14 } else { 7 };
        assert_eq!(stage.digest(ino).await, Some(size), "{number}");
    }
    let asked = stage.remote.calls(Call::Lstat) - asked;
    assert!(asked < 40, "{asked} questions for 200 files");
}

#[tokio::test]
async fn a_file_that_is_written_to_has_none_but_that_of_what_it_becomes() {
    let stage = Stage::new();
    let ino = stage.look_up("f").await;
    let opened = stage.vfs.open(ino, OpenRequest::plain(Access::Write)).await.unwrap();
    let gate = stage.remote.hold(Call::Write, 1);
    stage.vfs.write(opened.handle, 7, Bytes::from_static(b" and more")).await.unwrap();
    let mut digest = Box::pin(stage.digest(ino));
    let pending = std::future::poll_fn(|context| {
        std::task::Poll::Ready(digest.as_mut().poll(context).is_pending())
    });
    assert!(pending.await, "the write is waited for");
    gate.release();
    assert_eq!(digest.await, Some(16));
    stage.vfs.flush(opened.handle).await.unwrap();
    stage.vfs.release(opened.handle);
}

#[tokio::test]
async fn what_is_no_file_has_none() {
    let stage = Stage::new();
    stage.remote.symlink(b"f", &path("link")).await.unwrap();
    stage.remote.mkdir(&path("dir"), 0o755).await.unwrap();
    for name in ["link", "dir"] {
        let ino = stage.look_up(name).await;
        assert_eq!(stage.digest(ino).await, None, "{name}");
    }
    assert_eq!(stage.digest(Ino::ROOT).await, None);
}
