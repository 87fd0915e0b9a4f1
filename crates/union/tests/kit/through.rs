//! A directory of another remote as a remote that can report itself unreachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Fh, FileKind, Name,
    OpenFlags, Opened, Remote, RemotePath, RenameMode, Result, Seek, SetXattr, StatVfs, Watches,
};
use bytes::Bytes;
use tokio::sync::watch;

pub(crate) struct Through<R> {
    pub(crate) remote: R,
    names: Vec<Name>,
    away: watch::Sender<bool>,
    follows_links: AtomicBool,
}

impl<R: Remote> Through<R> {
    /// The directory at these names.
    pub(crate) fn new(remote: R, names: impl Into<Vec<Name>>) -> Through<R> {
        Through {
            remote,
            names: names.into(),
            away: watch::Sender::new(false),
            follows_links: AtomicBool::new(false),
        }
    }

    /// Lists the targets of links from now on, as an SFTP server does.
    #[allow(dead_code, reason = "not every test has links")]
    pub(crate) fn follow_links(&self) {
        self.follows_links.store(true, Ordering::Relaxed);
    }

    /// Reports itself unreachable from now on, or reachable. Requests pass through in either state.
    #[allow(dead_code, reason = "not every test has a remote that goes away")]
    pub(crate) fn set_away(&self, away: bool) {
        self.away.send_replace(away);
    }

    fn at(&self, path: &RemotePath) -> RemotePath {
        let mut at = RemotePath::from_names(&self.names);
        for name in path.names() {
            at.push(&Name::new(name).unwrap());
        }
        at
    }
}

#[async_trait]
impl<R: Remote> Remote for Through<R> {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.remote.lstat(&self.at(path)).await
    }

    /// The path takes the place of a digest.
    async fn digest(
        &self,
        path: &RemotePath,
        _attr: &Attr,
        _kind: DigestKind,
        _effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        Ok(Some(Bytes::copy_from_slice(self.at(path).as_bytes())))
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.remote.readlink(&self.at(path)).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        if self.follows_links.load(Ordering::Relaxed)
            && let Ok(target) = self.remote.readlink(&self.at(path)).await
        {
            return self.remote.opendir(&RemotePath::parse(&target).unwrap()).await;
        }
        self.remote.opendir(&self.at(path)).await
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        self.remote.readdir(dh).await
    }

    fn closedir(&self, dh: Dh) {
        self.remote.closedir(dh);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.remote.open(&self.at(path), flags).await
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.remote.fstat(fh).await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        self.remote.read(fh, offset, len).await
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        self.remote.write(fh, offset, data).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.remote.fsync(fh).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.remote.fsyncdir(&self.at(path)).await
    }

    fn close(&self, fh: Fh) {
        self.remote.close(fh);
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        self.remote.finish(fh).await
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        self.remote.flush(fh).await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.remote.setattr(&self.at(path), change).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.remote.fsetattr(fh, change).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.remote.mkdir(&self.at(path), perm).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.remote.rmdir(&self.at(path)).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.remote.unlink(&self.at(path)).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.remote.symlink(target, &self.at(path)).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.remote.link(&self.at(existing), &self.at(new)).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.remote.rename(&self.at(from), &self.at(to), mode).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.remote.statvfs(&self.at(path)).await
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        self.remote.copy(from, to, len).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        self.remote.mknod(&self.at(path), kind, perm, device).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        self.remote.fallocate(fh, how, offset, len).await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        self.remote.seek(fh, offset, what).await
    }

    fn may_exceed_sftp(&self) -> bool {
        self.remote.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.remote.getxattr(&self.at(path), name).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.remote.listxattr(&self.at(path)).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        self.remote.setxattr(&self.at(path), name, value, mode).await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        self.remote.removexattr(&self.at(path), name).await
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.remote.watches().filter(|_| self.names.is_empty())
    }

    fn is_disconnected(&self) -> bool {
        *self.away.borrow()
    }

    fn may_be_lost(&self) -> bool {
        self.remote.may_be_lost()
    }

    async fn disconnected(&self) {
        let mut away = self.away.subscribe();
        // The sender is owned by this remote.
        let _ = away.wait_for(|away| *away).await;
    }
}
