//! [`Union`] as a [`Remote`]: dispatches every operation to its module.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Errno, Fh,
    FileKind, Location, Lock, LockKind, LockOwner, LockRange, Name, OpenFlags, Opened, Remote,
    RemotePath, RenameMode, Result, Seek, SetXattr, StatVfs, Watches, Window,
};
use bytes::Bytes;

use crate::union::Union;
use crate::{change, create, listing, lookup, remove, rename, space, xattr};

#[async_trait]
impl Remote for Union {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        lookup::lstat(&self.tree(), path).await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        lookup::readlink(&self.tree(), path).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let listing = listing::opendir(&self.tree(), path).await?;
        Ok(Dh(self.directories.add(listing)))
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        self.directories.get(dh.0)?.next().await
    }

    fn closedir(&self, dh: Dh) {
        self.directories.remove(dh.0);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let (file, attr) = create::open(&self.tree(), path, flags, self.policies.create).await?;
        Ok(Opened { fh: Fh(self.files.add(file)), attr })
    }

    async fn open_stored(&self, path: &RemotePath, attr: &Attr) -> Option<Opened> {
        let (file, attr) = lookup::open_stored(&self.tree(), path, *attr).await?;
        Some(Opened { fh: Fh(self.files.add(file)), attr })
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.files.get(fh.0)?.attr().await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.read(file.fh(), offset, len).await
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.write(file.fh(), offset, data).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.fsync(file.fh()).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        change::fsyncdir(&self.tree(), path).await
    }

    fn close(&self, fh: Fh) {
        self.files.remove(fh.0);
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        let file = self.files.remove(fh.0).ok_or(Errno::EBADF)?;
        file.lent.finish().await
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.flush(file.fh()).await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        change::setattr(&self.tree(), path, change, self.policies.action).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.check_writable()?;
        file.branch.remote.fsetattr(file.fh(), change).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        create::mkdir(&self.tree(), path, perm, self.policies.create).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        remove::rmdir(&self.tree(), path).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        remove::unlink(&self.tree(), path, self.policies.action).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        create::symlink(&self.tree(), target, path, self.policies.create).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        rename::link(&self.tree(), existing, new).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        rename::rename(&self.tree(), from, to, mode, self.policies.action).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        space::statvfs(&self.tree(), path).await
    }

    /// `EOPNOTSUPP` between two branches.
    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.files.get(from.0.0)?, self.files.get(to.0.0)?);
        if !Arc::ptr_eq(&source.branch, &target.branch) {
            return Err(Errno::EOPNOTSUPP);
        }
        source.branch.remote.copy((source.fh(), from.1), (target.fh(), to.1), len).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        create::mknod(&self.tree(), path, (kind, perm, device), self.policies.create).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.check_writable()?;
        file.branch.remote.fallocate(file.fh(), how, offset, len).await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.seek(file.fh(), offset, what).await
    }

    fn may_exceed_sftp(&self) -> bool {
        self.tree().given().iter().any(|branch| branch.remote.may_exceed_sftp())
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        let tree = self.tree();
        let (branch, at) = xattr::shown(&tree, path).await?;
        branch.call(branch.remote.getxattr(&at, name)).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        let tree = self.tree();
        let (branch, at) = xattr::shown(&tree, path).await?;
        branch.call(branch.remote.listxattr(&at)).await
    }

    /// `EOPNOTSUPP` where several branches may have entries.
    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        let tree = self.tree();
        match tree.sole_branch(dir) {
            Some((branch, at)) => branch.call(branch.remote.entries_with_xattrs(&at)).await,
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        let tree = self.tree();
        for (branch, at) in xattr::changed(&tree, path, self.policies.action).await? {
            branch.call(branch.remote.setxattr(&at, name, value.clone(), mode)).await?;
        }
        Ok(())
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        let tree = self.tree();
        for (branch, at) in xattr::changed(&tree, path, self.policies.action).await? {
            branch.call(branch.remote.removexattr(&at, name)).await?;
        }
        Ok(())
    }

    fn suggested_window(&self) -> Window {
        self.window()
    }

    async fn locate(&self, path: &RemotePath) -> Result<Vec<Location>> {
        lookup::locate(&self.tree(), path).await
    }

    async fn digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        lookup::digest(&self.tree(), path, *attr, kind, effort).await
    }

    fn backing(&self, fh: Fh) -> Option<Arc<OwnedFd>> {
        let file = self.files.get(fh.0).ok()?;
        file.branch.remote.backing(file.fh())
    }

    fn is_disconnected(&self) -> bool {
        self.is_required_away(None)
    }

    async fn disconnected(&self) {
        self.required_away(None).await;
    }

    fn is_disconnected_at(&self, path: &RemotePath) -> bool {
        self.is_required_away(Some(path))
    }

    async fn disconnected_at(&self, path: &RemotePath) {
        self.required_away(Some(path)).await;
    }

    fn serving(&self, fh: Fh) -> Option<Arc<dyn Remote>> {
        Some(self.files.get(fh.0).ok()?.branch.remote.clone())
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        let is_any = self.tree().given().iter().any(|branch| branch.remote.watches().is_some());
        is_any.then(|| self.watches.clone() as _)
    }

    fn has_locks(&self) -> bool {
        self.tree().given().iter().all(|branch| branch.remote.has_locks())
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.lock(file.fh(), lock, wait).await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.unlock(file.fh(), owner, range).await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        let file = self.files.get(fh.0)?;
        file.branch.remote.test_lock(file.fh(), lock).await
    }

    async fn lost_lock(&self, fh: Fh) {
        match self.files.get(fh.0) {
            Ok(file) => file.branch.remote.lost_lock(file.fh()).await,
            Err(_) => std::future::pending().await,
        }
    }
}
