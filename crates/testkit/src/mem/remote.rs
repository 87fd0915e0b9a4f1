//! The operations of [`Remote`] on a tree in memory.

use std::sync::Arc;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DirEntry, DirGuard, Errno, Fh, FileKind, Lock,
    LockKind, LockOwner, LockRange, Name, OpenFlags, OpenGuard, Opened, Remote, RemotePath,
    RenameMode, Result, Seek, SetXattr, StatVfs, Watches, stable_hash,
};
use bytes::Bytes;

use super::{Listing, MemRemote, Options, State};
use crate::call::Call;
use crate::tree::Follow;

#[async_trait]
impl Remote for MemRemote {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.call(Call::Lstat, |state, options| {
            let target = || state.tree.lookup(path, Follow::Yes).ok();
            let target = options.follow_symlinks.then(target).flatten();
            Ok(state.tree.attr(target.map_or_else(|| state.seen(path), Ok)?))
        })
        .await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.call(Call::Readlink, |state, _| state.tree.target(state.ino(path)?)).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        self.calls.count(Call::Opendir);
        let dh = self.state.lock().opendir(path, &self.options);
        // Closed if the call is dropped before its reply is delivered.
        let late = dh.ok().map(|dh| DirGuard::new(self, dh));
        self.answer_arrives().await;
        late.map(DirGuard::take);
        dh
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        self.call(Call::Readdir, |state, options| state.readdir(dh, options)).await
    }

    fn closedir(&self, dh: Dh) {
        self.calls.count(Call::Closedir);
        self.state.lock().closedir(dh);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.calls.count(Call::Open);
        let opened = self.state.lock().open(path, flags, &self.options);
        let late = opened.as_ref().ok().map(|opened| OpenGuard::new(self, opened.fh));
        self.answer_arrives().await;
        late.map(OpenGuard::take);
        opened
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        self.call(Call::Fstat, |state, _| Ok(state.tree.attr(state.file(fh)?.ino))).await
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        self.call(Call::Read, |state, options| {
            let file = state.file(fh)?.to_read()?;
            let mut rest = Bytes::from(state.tree.read(file.ino, offset, u64::from(len))?);
            let piece = options.read_piece_bytes.unwrap_or(usize::MAX).max(1);
            let mut data = Data::new();
            while !rest.is_empty() {
                data.push(rest.split_to(piece.min(rest.len())));
            }
            Ok(data)
        })
        .await
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        self.call(Call::Write, |state, _| {
            let file = state.file(fh)?.to_write()?;
            let offset = state.tree.offset_of_write(file, offset);
            state.tree.write(file.ino, offset, &data)
        })
        .await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        self.call(Call::Fsync, |state, _| state.file(fh).map(drop)).await
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        self.call(Call::Fsyncdir, |state, _| {
            state.tree.attr(state.ino(path)?).is_dir().then_some(()).ok_or(Errno::ENOTDIR)
        })
        .await
    }

    fn close(&self, fh: Fh) {
        self.calls.count(Call::Close);
        self.state.lock().close(fh);
        self.unlocked.notify_waiters();
    }

    async fn finish(&self, fh: Fh) -> Result<()> {
        self.call(Call::Finish, |state, _| {
            state.file(fh)?;
            state.close(fh);
            self.unlocked.notify_waiters();
            Ok(())
        })
        .await
    }

    async fn flush(&self, fh: Fh) -> Result<()> {
        self.call(Call::Flush, |state, _| state.file(fh).map(drop)).await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.call(Call::Setattr, |state, _| state.tree.set_attr(state.ino(path)?, &change)).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        self.call(Call::Fsetattr, |state, _| {
            let file = state.file(fh)?;
            if change.size.is_some() && !file.access.writes() {
                return Err(Errno::EINVAL);
            }
            state.tree.set_attr(file.ino, &change)
        })
        .await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.call(Call::Mkdir, |state, _| state.tree.mkdir(path, perm).map(drop)).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.call(Call::Rmdir, |state, _| state.tree.rmdir(path)).await
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.call(Call::Unlink, |state, _| state.tree.unlink(path)).await
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.call(Call::Symlink, |state, _| state.tree.symlink(target, path).map(drop)).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        self.call(Call::Link, |state, _| state.tree.link(existing, new)).await
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.call(Call::Rename, |state, _| state.tree.rename(from, to, mode)).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.call(Call::Statvfs, |state, _| state.statvfs(path)).await
    }

    fn has_locks(&self) -> bool {
        !self.pace.lock().without_locks
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        self.calls.count(Call::Lock);
        self.set_lock(fh, lock, wait).await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        self.call(Call::Unlock, |state, _| {
            self.check_locks()?;
            let unlocked = state.unlock(fh, owner, range);
            self.unlocked.notify_waiters();
            unlocked
        })
        .await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        self.call(Call::TestLock, |state, _| {
            self.check_locks()?;
            Ok(state.conflict(state.file(fh)?.ino, lock))
        })
        .await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        _device: (u32, u32),
    ) -> Result<()> {
        self.call(Call::Mknod, |state, _| state.tree.mknod(path, kind, perm).map(drop)).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        self.call(Call::Fallocate, |state, _| {
            let file = state.file(fh)?.to_write()?;
            state.tree.allocate(file.ino, how, offset, len)
        })
        .await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        self.call(Call::Seek, |state, _| state.tree.seek(state.file(fh)?.ino, offset, what)).await
    }

    fn may_exceed_sftp(&self) -> bool {
        true
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.call(Call::Getxattr, |state, _| state.tree.xattr(state.ino(path)?, name)).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.call(Call::Listxattr, |state, _| Ok(state.tree.xattrs(state.ino(path)?))).await
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        self.call(Call::EntriesWithXattrs, |state, _| {
            let mut entries = state.tree.list(state.ino(dir)?)?;
            entries.retain(|(_, ino)| !state.tree.xattrs(*ino).is_empty());
            Ok(entries.into_iter().map(|(name, _)| name).collect())
        })
        .await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        self.call(Call::Setxattr, |state, _| {
            state.tree.set_xattr(state.ino(path)?, name, value, mode)
        })
        .await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        self.call(Call::Removexattr, |state, _| state.tree.remove_xattr(state.ino(path)?, name))
            .await
    }

    async fn read_file(&self, path: &RemotePath, max_bytes: u32) -> Result<Option<(Attr, Data)>> {
        self.call(Call::ReadFile, |state, _| {
            let ino = state.ino(path)?;
            let attr = state.tree.attr(ino);
            if attr.kind != FileKind::Regular {
                return Err(Errno::EINVAL);
            }
            if attr.size > max_bytes.into() {
                return Ok(None);
            }
            let content = state.tree.read(ino, 0, attr.size)?;
            Ok(Some((attr, Data::from(Bytes::from(content)))))
        })
        .await
    }

    fn may_be_lost(&self) -> bool {
        self.options.may_be_lost
    }

    /// As `sshoal helper`, which also identifies files.
    fn reads_files(&self) -> bool {
        self.state.lock().tree.shows_inodes()
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.watches_if_offered()
    }

    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        Ok(self.write_verifier.lock().clone())
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        self.call(Call::Copy, |state, options| {
            let (source, target) =
                (state.file(from.0)?.to_read()?, state.file(to.0)?.to_copy_to()?);
            if source.ino == target.ino {
                return Err(Errno::EINVAL);
            }
            let len = len.min(options.copy_max_bytes);
            let data = state.tree.read(source.ino, from.1, len)?;
            state.tree.write(target.ino, to.1, &data)?;
            Ok(data.len() as u64)
        })
        .await
    }
}

impl State {
    fn open(&mut self, path: &RemotePath, flags: OpenFlags, options: &Options) -> Result<Opened> {
        // First, so that a failed open has not created or truncated anything.
        let fh = self.new_handle(options)?;
        let file = self.tree.open(path, Follow::No, flags, 0)?;
        self.files.insert(fh, file);
        Ok(Opened { fh: Fh(fh), attr: self.tree.attr(file.ino) })
    }

    fn opendir(&mut self, path: &RemotePath, options: &Options) -> Result<Dh> {
        let dh = self.new_handle(options)?;
        let ino = self.seen(path)?;
        let mut entries = self.tree.list(ino)?;
        // In an order that is not sorted, like a hashed directory's.
        entries.sort_by_key(|(name, _)| stable_hash(name.as_bytes()));
        let names = entries.into_iter().map(|(name, _)| name).collect();
        self.tree.hold(ino);
        self.listings.insert(dh, Listing { ino, names });
        Ok(Dh(dh))
    }

    /// The next names that still exist.
    fn readdir(&mut self, dh: Dh, options: &Options) -> Result<Option<Vec<DirEntry>>> {
        let listing = self.listings.get_mut(&dh.0).ok_or(Errno::EBADF)?;
        let mut batch = Vec::new();
        while batch.len() < options.listing_batch.max(1) {
            let Some(name) = listing.names.pop_front() else {
                break;
            };
            if let Some(ino) = self.tree.child(listing.ino, &name)
                && !(options.listing_attrs && self.unseen.contains_key(&ino))
            {
                let attr = options.listing_attrs.then(|| self.tree.attr(ino));
                batch.push(DirEntry { name, attr });
            }
        }
        Ok((!batch.is_empty()).then_some(batch))
    }
}
