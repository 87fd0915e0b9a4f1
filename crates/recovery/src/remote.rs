//! The [`Remote`] implementation of [`Recovering`]; a long operation is in the module of its family.

use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Errno, Fh,
    FileKind, Location, Lock, LockKind, LockOwner, LockRange, Name, OpenFlags, Opened, Remote,
    RemotePath, RenameMode, Result, Seek, SetXattr, StatVfs, Watches, Window,
};
use bytes::Bytes;

use crate::Recovering;
use crate::change_log::Change;
use crate::name_history::NameState;

#[async_trait]
impl Remote for Recovering {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        let core = &self.core;
        let requested = core.history.now();
        let answer = core.with_retry(|| core.inner.lstat(path)).await;
        match &answer {
            Ok(attr) => core.history.record_reply(path, NameState::present(attr), requested),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                core.history.record_reply(path, NameState::Absent, requested);
            }
            Err(_) => {}
        }
        answer
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.core.with_retry(|| self.core.inner.readlink(path)).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        self.core.opendir(path).await
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        self.core.readdir(dh).await
    }

    fn closedir(&self, dh: Dh) {
        self.core.directories.close(dh);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.core.open(path, flags).await
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.core.fstat(fh).await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let core = &self.core;
        let handle = core.files.handle(fh)?;
        core.wait_for_queue(&handle.file).await?;
        let data =
            core.retry_with_handles([&handle], |[fh]| core.inner.read(fh, offset, len)).await?;
        handle.file.lock().note_read(&data, offset);
        Ok(data)
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let core = &self.core;
        let appends = core.files.handle(fh)?.flags.append;
        let change = match appends {
            true => Change::Append { end: offset, data, arrived: 0 },
            false => Change::Write { offset, data },
        };
        core.change(fh, change).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.core.fsync(fh).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.core.with_retry(|| self.core.inner.fsyncdir(path)).await
    }

    fn close(&self, fh: Fh) {
        self.core.files.close(fh);
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        self.core.finish(fh).await
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        self.core.flush(fh).await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.core.setattr(path, change).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.core.change(fh, Change::SetAttr(change)).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.core.mkdir(path, Some(perm)).await
    }

    async fn mkdir_default(&self, path: &RemotePath) -> Result<()> {
        self.core.mkdir(path, None).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.core.rmdir(path).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.core.unlink(path).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.core.symlink(target, path).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.core.link(existing, new).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.core.rename(from, to, mode).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.core.with_retry(|| self.core.inner.statvfs(path)).await
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        self.core.copy(from, to, len).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        self.core.mknod(path, kind, perm, device).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        self.core.fallocate(fh, how, offset, len).await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        let core = &self.core;
        let handle = core.files.handle(fh)?;
        core.wait_for_queue(&handle.file).await?;
        core.retry_with_handles([&handle], |[fh]| core.inner.seek(fh, offset, what)).await
    }

    fn may_exceed_sftp(&self) -> bool {
        self.core.inner.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.core.with_retry(|| self.core.inner.getxattr(path, name)).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.core.with_retry(|| self.core.inner.listxattr(path)).await
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        self.core.with_retry(|| self.core.inner.entries_with_xattrs(dir)).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        self.core.setxattr(path, name, value, mode).await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        self.core.removexattr(path, name).await
    }

    async fn digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        self.core.with_retry(|| self.core.inner.digest(path, attr, kind, effort)).await
    }

    async fn read_file(&self, path: &RemotePath, max_bytes: u32) -> Result<Option<(Attr, Data)>> {
        self.core.with_retry(|| self.core.inner.read_file(path, max_bytes)).await
    }

    fn reads_files(&self) -> bool {
        self.core.inner.reads_files()
    }

    fn suggested_window(&self) -> Window {
        self.core.inner.suggested_window()
    }

    async fn locate(&self, path: &RemotePath) -> Result<Vec<Location>> {
        self.core.with_retry(|| self.core.inner.locate(path)).await
    }

    fn is_disconnected(&self) -> bool {
        self.core.connection.is_disconnected()
    }

    async fn disconnected(&self) {
        self.core.connection.disconnected().await;
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.core.inner.watches()
    }

    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        self.core.with_retry(|| self.core.inner.write_verifier()).await
    }

    fn has_locks(&self) -> bool {
        self.core.inner.has_locks()
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        self.core.lock(fh, lock, wait).await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        self.core.unlock(fh, owner, range).await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        let handle = self.core.files.handle(fh)?;
        let test = |[fh]: [Fh; 1]| self.core.inner.test_lock(fh, lock);
        self.core.retry_with_handles([&handle], test).await
    }

    async fn lost_lock(&self, fh: Fh) {
        self.core.lost_lock(fh).await;
    }
}
