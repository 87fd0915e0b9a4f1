//! Implements [`Remote`] for [`Host`]; each operation is in the module of its family.

use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Errno, Fh,
    FileKind, Lock, LockKind, LockOwner, LockRange, Name, OpenFlags, Opened, Remote, RemotePath,
    RenameMode, Result, Seek, SetXattr, StatVfs, Watches, Window,
};
use bytes::Bytes;

use crate::host::Host;

#[async_trait]
impl Remote for Host {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.lstat_path(path).await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.read_link(path).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        Ok(Dh(self.handles.dirs.add(self.open_dir(path).await?)))
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        let listing = self.handles.dirs.get(dh.0)?;
        if !listing.session().is_alive() {
            self.metadata().await?;
            return Err(Errno::ESTALE);
        }
        listing.next().await
    }

    fn closedir(&self, dh: Dh) {
        self.handles.dirs.remove(dh.0);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.open_file(path, flags).await
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.stat_file(fh).await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        self.read_file(fh, offset, len).await
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        self.write_file(fh, offset, data).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.fsync_file(fh).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.fsync_dir(path).await
    }

    fn close(&self, fh: Fh) {
        self.handles.files.remove(fh.0);
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        self.finish_file(fh).await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.change_path(path, change).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.change_file(fh, change).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.make_dir(path, Some(perm)).await
    }

    async fn mkdir_default(&self, path: &RemotePath) -> Result<()> {
        self.make_dir(path, None).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.remove_dir(path).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.remove_name(path).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.make_symlink(target, path).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.make_link(existing, new).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.rename_path(from, to, mode).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.statvfs_path(path).await
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        self.copy_range(from, to, len).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        self.make_node(path, kind, perm, device).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        self.allocate(fh, how, offset, len).await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        self.seek_file(fh, offset, what).await
    }

    fn may_exceed_sftp(&self) -> bool {
        self.pool.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.get_xattr(path, name).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.list_xattrs(path).await
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        self.list_entries_with_xattrs(dir).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        self.set_xattr(path, name, &value, mode).await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        self.remove_xattr(path, name).await
    }

    async fn digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        match effort {
            DigestEffort::Known => Ok(None),
            DigestEffort::Compute => self.compute_digest(path, attr, kind).await,
        }
    }

    async fn read_file(&self, path: &RemotePath, max_bytes: u32) -> Result<Option<(Attr, Data)>> {
        self.read_whole_file(path, max_bytes).await
    }

    fn reads_files(&self) -> bool {
        self.pool.live(0).is_some_and(|session| session.offers(sftp::Extension::ReadFile))
    }

    fn suggested_window(&self) -> Window {
        self.pool.suggestion()
    }

    fn is_disconnected(&self) -> bool {
        self.pool.is_disconnected()
    }

    async fn disconnected(&self) {
        self.pool.disconnected().await;
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.watches_if_offered()
    }

    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        let session = self.metadata().await?;
        let run = session.boot_id().await.map(Bytes::copy_from_slice);
        // A lost session cannot say that the server has no boot id.
        if run.is_none() && !session.is_alive() {
            return Err(Errno::EHOSTDOWN);
        }
        Ok(run)
    }

    fn has_locks(&self) -> bool {
        self.offers_locks()
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        self.set_lock(fh, lock, wait).await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        self.remove_lock(fh, owner, range).await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        self.find_lock(fh, lock).await
    }
}
