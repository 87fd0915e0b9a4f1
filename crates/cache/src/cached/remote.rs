//! [`Cached`] as a [`Remote`]. Changes are passed on; the open files that they affect are opened at
//! the server before.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Errno, Fh,
    FileKind, Location, Lock, LockKind, LockOwner, LockRange, Name, OpenFlags, Opened, Remote,
    RemotePath, RenameMode, Result, Seek, SetXattr, StatVfs, Watches, Window,
};
use bytes::Bytes;

use super::changes::Scope;
use super::{Cached, Core};

#[async_trait]
impl Remote for Cached {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.core.lstat(path).await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.core.readlink(path).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        self.core.opendir(path).await
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        self.core.readdir(dh).await
    }

    fn closedir(&self, dh: Dh) {
        self.core.listings.remove(dh.0);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.core.open(path, flags).await
    }

    async fn open_stored(&self, path: &RemotePath, attr: &Attr) -> Option<Opened> {
        self.core.open_stored(path, attr).await
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.core.fstat(fh).await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        self.core.read(fh, offset, len).await
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        // A file open for writing is open at the server.
        let fh = self.core.files.get(fh)?.open_server_handle().await?;
        self.core.inner.write(fh, offset, data).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        let fh = self.core.files.get(fh)?.open_server_handle().await?;
        self.core.inner.fsync(fh).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.core.may_change()?;
        self.core.inner.fsyncdir(path).await
    }

    fn close(&self, fh: Fh) {
        self.core.close(fh);
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        self.core.finish(fh).await
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        self.core.files.get(fh)?.flush().await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        let core = &self.core;
        let scope = Core::of_attributes(path, core.may_remove_rights(path, &change));
        let setattr = async {
            match change.size {
                Some(_) => {
                    core.files.switch_to_server(path).await;
                    core.files.read_linked_from_server();
                }
                None => core.files.open_on_server(&scope).await,
            }
            core.inner.setattr(path, change).await
        };
        core.changing(vec![scope.clone()], setattr).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        let core = &self.core;
        let file = core.files.get(fh)?;
        let path = file.path();
        let fsetattr = async {
            // Other files open under its name. For a file open for writing that was done at its
            // open.
            if let Some(path) = path.as_ref().filter(|_| !file.is_changing()) {
                core.files.open_on_server(&Scope::Entry(path.clone())).await;
            }
            core.inner.fsetattr(file.open_server_handle().await?, change).await
        };
        core.changing(path.iter().cloned().map(Scope::Entry).collect(), fsetattr).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.core.changing(Core::of_name(path), self.core.inner.mkdir(path, perm)).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        let core = &self.core;
        let directories = core.possible_directories(&[path]);
        let rmdir = async {
            core.store.abandon_below(&directories);
            core.inner.rmdir(path).await
        };
        core.changing(Core::of_name(path), rmdir).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        let core = &self.core;
        let unlink = async {
            core.files.open_on_server(&Scope::Subtree(path.clone())).await;
            core.inner.unlink(path).await?;
            core.files.removed(path);
            core.linked.remove(path);
            Ok(())
        };
        core.changing(Core::of_name(path), unlink).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.core.changing(Core::of_name(path), self.core.inner.symlink(target, path)).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        let core = &self.core;
        let mut scopes = Core::of_name(new);
        scopes.push(Scope::Subtree(existing.clone()));
        let link = async {
            core.files.switch_to_server(existing).await;
            core.inner.link(existing, new).await?;
            for name in [existing, new] {
                if core.linked.insert(name) {
                    tracing::warn!(
                        "very many hard links were made: other files in the same directories and \
                         below are not cached either, until the next mount"
                    );
                }
            }
            Ok(())
        };
        core.changing(scopes, link).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        let core = &self.core;
        let mut scopes = Core::of_name(from);
        scopes.extend(Core::of_name(to));
        let directories = core.possible_directories(&[from, to]);
        let rename = async {
            core.store.abandon_below(&directories);
            for path in [from, to] {
                core.files.open_on_server(&Scope::Subtree(path.clone())).await;
            }
            core.inner.rename(from, to, mode).await?;
            core.files.renamed(from, to, mode, &core.changes);
            core.linked.renamed(from, to, mode);
            Ok(())
        };
        core.changing(scopes, rename).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        if self.core.config.offline {
            // df(1) shows a file system without figures.
            let (block_size, fragment_size, name_max) = (4096, 4096, 255);
            let known = StatVfs { block_size, fragment_size, name_max, ..StatVfs::default() };
            return Ok(StatVfs { flags: StatVfs::READ_ONLY, ..known });
        }
        self.core.inner.statvfs(path).await
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.core.files.get(from.0)?, self.core.files.get(to.0)?);
        let from = (source.open_server_handle().await?, from.1);
        let to = (target.open_server_handle().await?, to.1);
        self.core.inner.copy(from, to, len).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        let mknod = self.core.inner.mknod(path, kind, perm, device);
        self.core.changing(Core::of_name(path), mknod).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        // A file open for writing is open at the server.
        let fh = self.core.files.get(fh)?.open_server_handle().await?;
        self.core.inner.fallocate(fh, how, offset, len).await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        if self.core.config.offline {
            return Err(Errno::EOPNOTSUPP);
        }
        let fh = self.core.files.get(fh)?.open_server_handle().await?;
        self.core.inner.seek(fh, offset, what).await
    }

    fn may_exceed_sftp(&self) -> bool {
        !self.core.config.offline && self.core.inner.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.core.has_xattrs()?;
        self.core.inner.getxattr(path, name).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.core.has_xattrs()?;
        self.core.inner.listxattr(path).await
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        self.core.has_xattrs()?;
        self.core.inner.entries_with_xattrs(dir).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        let set = self.core.inner.setxattr(path, name, value, mode);
        self.core.changing_xattr(path, name, set).await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        let removed = self.core.inner.removexattr(path, name);
        self.core.changing_xattr(path, name, removed).await
    }

    fn suggested_window(&self) -> Window {
        self.core.inner.suggested_window()
    }

    async fn locate(&self, path: &RemotePath) -> Result<Vec<Location>> {
        self.core.inner.locate(path).await
    }

    async fn digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        self.core.digest(path, attr, kind, effort).await
    }

    fn backing(&self, fh: Fh) -> Option<Arc<OwnedFd>> {
        self.core.backing(fh)
    }

    /// Offline it is never unreachable: no requests are sent.
    fn is_disconnected(&self) -> bool {
        !self.core.config.offline && self.core.inner.is_disconnected()
    }

    async fn disconnected(&self) {
        match self.core.config.offline {
            true => std::future::pending().await,
            false => self.core.inner.disconnected().await,
        }
    }

    /// The layer above decides what the reports mean, and opens what is valid by them with
    /// [`Remote::open_stored`].
    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.core.inner.watches().filter(|_| !self.core.config.offline)
    }

    fn has_locks(&self) -> bool {
        !self.core.config.offline && self.core.inner.has_locks()
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        // The cached content is that of the open, and the lock is for the present one.
        let file = self.core.files.get(fh)?;
        let server = file.open_server_handle().await?;
        file.read_from_server();
        self.core.inner.lock(server, lock, wait).await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        let server = self.core.files.get(fh)?.open_server_handle().await?;
        self.core.inner.unlock(server, owner, range).await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        let server = self.core.files.get(fh)?.open_server_handle().await?;
        self.core.inner.test_lock(server, lock).await
    }

    async fn lost_lock(&self, fh: Fh) {
        match self.core.files.get(fh).ok().and_then(|file| file.server_handle()) {
            Some(server) => self.core.inner.lost_lock(server).await,
            None => std::future::pending().await,
        }
    }
}
