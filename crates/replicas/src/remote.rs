//! [`Replicas`] as a [`Remote`].

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Errno, Fh,
    FileKind, Location, Lock, LockKind, LockOwner, LockRange, Name, OpenFlags, Opened, Remote,
    RemotePath, RenameMode, Result, Seek, SetXattr, StatVfs, Window,
};
use bytes::Bytes;

use crate::gateways::{GatewaySet, Target};
use crate::listing::Listing;
use crate::member::Weight;
use crate::paths::first_specific;
use crate::recent_changes::ChangeKind;
use crate::replicas::Replicas;

#[async_trait]
impl Remote for Replicas {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        self.lstat_path(path).await
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        self.query(path, |remote| remote.readlink(path)).await
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let handle = self.open_dir_at(path, GatewaySet::default()).await?;
        Ok(Dh(self.listings.add(Listing::new(path, handle))))
    }

    async fn readdir(&self, dh: Dh) -> Result<Option<Vec<DirEntry>>> {
        self.next_entries(dh).await
    }

    fn closedir(&self, dh: Dh) {
        self.listings.remove(dh.0);
    }

    async fn open(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        self.open_file(path, flags).await
    }

    async fn fstat(&self, fh: Fh) -> Result<Attr> {
        let file = self.files.get(fh.0)?;
        let settled = file.open_path.settled();
        let answer = self.through_primary(&file, Weight::Small, |remote, fh| remote.fstat(fh));
        let (handle, attr) = answer.await?;
        file.note_attr(&handle, &attr, settled);
        Ok(attr)
    }

    async fn read(&self, fh: Fh, offset: u64, len: u32) -> Result<Data> {
        let file = self.files.get(fh.0)?;
        if self.gateways.is_striped(len)
            && let Some(stripe) = file.stripe(&self.context, len)
        {
            let call = stripe.member.remote.read(stripe.fh(), offset, len);
            let weight = Weight::Read(len);
            match self.gateways.call_while_usable(&stripe.member, weight, call).await {
                Ok(data) if data.len() == len as usize => return Ok(data),
                // The primary decides where the file ends.
                Ok(_) => {}
                Err(errno) => file.stripes.remove(&stripe, !errno.is_loss()),
            }
        }
        self.through_primary(&file, Weight::Read(len), |remote, fh| remote.read(fh, offset, len))
            .await
            .map(|(_, data)| data)
    }

    async fn write(&self, fh: Fh, offset: u64, data: Bytes) -> Result<()> {
        let file = self.files.get(fh.0)?;
        let weight = Weight::Write(u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?);
        self.change_file(&file, weight, |remote, fh| remote.write(fh, offset, data.clone())).await
    }

    async fn fsync(&self, fh: Fh) -> Result<()> {
        let file = self.files.get(fh.0)?;
        let changes = file.changes_begun();
        self.through_primary_only(&file, Weight::Slow, |remote, fh| remote.fsync(fh)).await?;
        file.synced(changes);
        Ok(())
    }

    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        // Only the gateway that has changed the entries can sync them.
        let changed = self.recent.get(path).map(|changed| changed.gateway);
        let changed = changed.filter(|gateway| self.must_stay(*gateway, true));
        let target = changed.map_or_else(|| self.query_target(path), Target::Only);
        let (_, answer) = self.gateways.query(path, target, |remote| remote.fsyncdir(path)).await?;
        answer
    }

    fn close(&self, fh: Fh) {
        self.files.remove(fh.0);
    }

    /// Closes the file, and returns the answer of its primary.
    async fn finish(&self, fh: Fh) -> Result<()> {
        let file = self.files.remove(fh.0).ok_or(Errno::EBADF)?;
        file.begin_finish();
        let handle = file.primary();
        self.call_primary(
            &file,
            &handle,
            Weight::Slow,
            |_, _| {
                let handle = handle.clone();
                Box::pin(async move { handle.finish().await })
            },
            false,
        )
        .await
    }

    async fn setattr(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        self.change_attrs(path, |remote| remote.setattr(path, change)).await
    }

    async fn fsetattr(&self, fh: Fh, change: AttrChange) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.open_path.note_change();
        self.change_file(&file, Weight::Small, |remote, fh| remote.fsetattr(fh, change)).await
    }

    async fn mkdir(&self, path: &RemotePath, perm: u32) -> Result<()> {
        self.change_one(path, ChangeKind::Created, |remote| remote.mkdir(path, perm)).await
    }

    async fn mkdir_default(&self, path: &RemotePath) -> Result<()> {
        self.change_one(path, ChangeKind::Created, |remote| remote.mkdir_default(path)).await
    }

    async fn rmdir(&self, path: &RemotePath) -> Result<()> {
        self.change_one(path, ChangeKind::Removed, |remote| remote.rmdir(path)).await
    }

    /// Removes a name through the primary of an open file, which knows that the file is open.
    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        self.change_one(path, ChangeKind::Removed, |remote| remote.unlink(path)).await?;
        self.open_paths.removed(path);
        Ok(())
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        self.change_one(path, ChangeKind::Created, |remote| remote.symlink(target, path)).await
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        let paths = [(existing, ChangeKind::Content), (new, ChangeKind::Created)];
        let target = first_specific(self.change_target(existing), self.change_target(new));
        self.change(target, &paths, |remote| remote.link(existing, new)).await
    }

    /// For a file, the primary of an open file that loses its name comes first, as for `unlink`,
    /// then that of the file that gets the name. For a directory, the gateway of the last change
    /// below it comes first.
    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        let target = match (self.recent.last_below(from), self.open_paths.get(to)) {
            (Some(gateway), _) => Target::PreferWaiting(gateway),
            (None, Some(_)) => first_specific(self.change_target(to), self.change_target(from)),
            (None, None) => first_specific(self.change_target(from), self.change_target(to)),
        };
        let paths: &[_] = match mode {
            _ if from == to => &[(from, ChangeKind::Content)],
            RenameMode::Exchange => &[(from, ChangeKind::Created), (to, ChangeKind::Created)],
            RenameMode::Replace | RenameMode::NoReplace => {
                &[(from, ChangeKind::Removed), (to, ChangeKind::Created)]
            }
        };
        self.change(target, paths, |remote| remote.rename(from, to, mode)).await?;
        self.open_paths.renamed(from, to, mode);
        if from != to {
            self.recent.renamed(from, to, mode);
        }
        Ok(())
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        self.query(path, |remote| remote.statvfs(path)).await
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.files.get(from.0.0)?, self.files.get(to.0.0)?);
        let source = source.primary();
        if source.member.index != target.primary().member.index {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change_file(&target, Weight::Slow, |remote, fh| {
            remote.copy((source.fh(), from.1), (fh, to.1), len)
        })
        .await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        self.change_one(path, ChangeKind::Created, |remote| remote.mknod(path, kind, perm, device))
            .await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        let file = self.files.get(fh.0)?;
        self.change_file(&file, Weight::Slow, |remote, fh| remote.fallocate(fh, how, offset, len))
            .await
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        let file = self.files.get(fh.0)?;
        let found =
            self.through_primary(&file, Weight::Small, |remote, fh| remote.seek(fh, offset, what));
        found.await.map(|(_, offset)| offset)
    }

    fn may_exceed_sftp(&self) -> bool {
        self.gateways.members.iter().any(|member| member.remote.may_exceed_sftp())
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        self.query(path, |remote| remote.getxattr(path, name)).await
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        self.query(path, |remote| remote.listxattr(path)).await
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        self.query(dir, |remote| remote.entries_with_xattrs(dir)).await
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        self.change_attrs(path, |remote| remote.setxattr(path, name, value.clone(), mode)).await
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        self.change_attrs(path, |remote| remote.removexattr(path, name)).await
    }

    async fn digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        self.query(path, |remote| remote.digest(path, attr, kind, effort)).await
    }

    fn suggested_window(&self) -> Window {
        self.gateways.window()
    }

    async fn locate(&self, path: &RemotePath) -> Result<Vec<Location>> {
        self.query(path, |remote| remote.locate(path)).await
    }

    /// When all gateways are left out.
    fn is_disconnected(&self) -> bool {
        self.gateways.usable() == 0
    }

    fn why_disconnected(&self) -> Option<String> {
        self.gateways.members.iter().find_map(|member| member.remote.why_disconnected())
    }

    async fn disconnected(&self) {
        self.gateways.none_usable().await;
    }

    /// Changes when a gateway, or the handle of a file, is lost with unsynced writes, unless it is
    /// back soon and its machine was not restarted: acknowledged data may be missing, or not be
    /// shown by the other gateways. It does not identify a machine.
    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        Ok(Some(Bytes::copy_from_slice(&self.gateways.losses().await.to_ne_bytes())))
    }

    fn has_locks(&self) -> bool {
        self.gateways.members.iter().all(|member| member.remote.has_locks())
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        let file = self.files.get(fh.0)?;
        file.note_lock();
        self.through_primary_only(&file, Weight::Slow, |remote, fh| remote.lock(fh, lock, wait))
            .await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        let file = self.files.get(fh.0)?;
        self.through_primary_only(&file, Weight::Slow, |remote, fh| remote.unlock(fh, owner, range))
            .await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        let file = self.files.get(fh.0)?;
        self.through_primary_only(&file, Weight::Slow, |remote, fh| remote.test_lock(fh, lock))
            .await
    }

    async fn lost_lock(&self, fh: Fh) {
        match self.files.get(fh.0) {
            Ok(file) => {
                let primary = file.primary();
                primary.member.remote.lost_lock(primary.fh()).await;
            }
            Err(_) => std::future::pending().await,
        }
    }
}
