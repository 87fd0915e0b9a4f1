//! Implements [`Remote`] for [`Host`]; a long operation is in the module of its family. Extensions of
//! `sshoal helper` reply with the errno, so no failure of them is probed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{
    Allocation, Attr, AttrChange, Data, Dh, DigestEffort, DigestKind, DirEntry, Errno, Fh,
    FileKind, Lock, LockKind, LockOwner, LockRange, Name, OpenFlags, Opened, Remote, RemotePath,
    RenameMode, Result, Seek, SetXattr, StatVfs, Watches, Window,
};
use bytes::Bytes;
use sftp::codec::{FallocateMode, Whence, XattrFlags};
use sftp::{Extension, FileAttrs, StatusCode};

use crate::handles::OpenHandle;
use crate::host::Host;
use crate::listing::Listing;
use crate::open::is_failure;
use crate::probe::Probe;
use crate::range_lock::WHOLE_FILE;
use crate::session::Session;
use crate::{attr, chunk_request, errno, pipelined};

/// Longest target of a symbolic link, in bytes: Linux's `PATH_MAX` without the NUL.
const MAX_TARGET_BYTES: usize = 4095;

#[async_trait]
impl Remote for Host {
    async fn lstat(&self, path: &RemotePath) -> Result<Attr> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        // The root may be a link to a directory.
        let attrs = if path.is_root() {
            session.client.stat(&full).await
        } else if self.config().follow_symlinks {
            match pipelined::both(session.client.stat(&full), session.client.lstat(&full)).await {
                (Ok(attrs), _) => Ok(attrs),
                (Err(error), _) if error.ends_connection() => Err(error),
                // A dangling link is shown as a link.
                (Err(_), there) => there,
            }
        } else {
            session.client.lstat(&full).await
        };
        match attrs {
            Ok(attrs) => attr::from_wire(&attrs),
            // The most frequent error; a probe for a hidden cause is not worth a round trip.
            Err(error) if error.bare_status() == Some(StatusCode::NO_SUCH_FILE) => {
                Err(Errno::ENOENT)
            }
            Err(error) => Err(Probe(&session).general(&error, path).await),
        }
    }

    async fn readlink(&self, path: &RemotePath) -> Result<Vec<u8>> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        match session.client.readlink(&full).await {
            // Such a target is invalid, and the kernel would cut it at a NUL.
            Ok(target) if target.len() > MAX_TARGET_BYTES || target.contains(&0) => Err(Errno::EIO),
            Ok(target) => Ok(target.to_vec()),
            Err(error) => Err(Probe(&session).general(&error, path).await),
        }
    }

    async fn opendir(&self, path: &RemotePath) -> Result<Dh> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        match Listing::open(&session, full, self.config()).await {
            Ok(listing) => Ok(Dh(self.handles.dirs.add(listing))),
            Err(error) => Err(self.opendir_error(&session, &error, path).await),
        }
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
        let file = self.live_file(fh).await?;
        let open = &file.open;
        let stat = open.session.client.fstat(&open.handle);
        let attrs = match file.open_path.may_change() {
            true => chunk_request::in_order(&file.enter(WHOLE_FILE, false, Some(0)), stat).await,
            false => stat.await,
        };
        attr::from_wire(&attrs.map_err(|error| errno::from_handle(&error))?)
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

    /// OpenSSH's server has no fsync for handles of OPENDIR, but OPEN can open a directory for
    /// reading, and fsync accepts that handle.
    async fn fsyncdir(&self, path: &RemotePath) -> Result<()> {
        let session = self.metadata().await?;
        if !session.offers(Extension::Fsync) {
            let accepted = self.config().fsync_workaround;
            return accepted.then_some(()).ok_or(Errno::EOPNOTSUPP);
        }
        let full = session.path(path)?;
        let open = session.client.open(&full, sftp::OpenFlags::READ, FileAttrs::default());
        let handle = match open.await {
            Ok(handle) => handle,
            // The server cannot OPEN a directory.
            Err(error) if is_failure(&error) => return Err(Errno::EOPNOTSUPP),
            Err(error) => return Err(self.opendir_error(&session, &error, path).await),
        };
        let open = OpenHandle::new(session, handle);
        let synced = open.session.client.fsync(&open.handle).await;
        synced.map_err(|error| errno::from_handle(&error))
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
        if path.is_root() {
            return Err(Errno::EBUSY);
        }
        let session = self.metadata().await?;
        let full = session.path(path)?;
        match session.client.rmdir(&full).await {
            Ok(()) => Ok(()),
            Err(error) => Err(Probe(&session).rmdir(&error, path).await),
        }
    }

    async fn unlink(&self, path: &RemotePath) -> Result<()> {
        if path.is_root() {
            return Err(Errno::EISDIR);
        }
        let session = self.metadata().await?;
        let full = session.path(path)?;
        match session.client.remove(&full).await {
            Ok(()) => {
                self.handles.removed(path);
                Ok(())
            }
            Err(error) => Err(Probe(&session).unlink(&error, path).await),
        }
    }

    async fn symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() > MAX_TARGET_BYTES {
            return Err(Errno::ENAMETOOLONG);
        }
        let session = self.metadata().await?;
        let full = session.path(path)?;
        match session.client.symlink(target, &full).await {
            Ok(()) => Ok(()),
            Err(error) => Err(Probe(&session).create(&error, path).await),
        }
    }

    async fn link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
        if self.config().disable_hardlink {
            return Err(Errno::ENOSYS);
        }
        let session = self.metadata().await?;
        let (from, to) = (session.path(existing)?, session.path(new)?);
        match session.client.hardlink(&from, &to).await {
            Ok(()) => Ok(()),
            Err(error) => Err(Probe(&session).link(&error, existing, new).await),
        }
    }

    async fn rename(&self, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        self.rename_path(from, to, mode).await
    }

    async fn statvfs(&self, path: &RemotePath) -> Result<StatVfs> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        let statvfs = if session.offers(Extension::Statvfs) {
            session.client.statvfs(&full).await.map(|found| Ok(attr::statvfs(found)))
        } else {
            // Only if the path exists.
            session.client.stat(&full).await.map(|_| Err(Errno::EOPNOTSUPP))
        };
        match statvfs {
            Ok(result) => result,
            Err(error) => Err(Probe(&session).general(&error, path).await),
        }
    }

    async fn copy(&self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<u64> {
        self.copy_range(from, to, len).await
    }

    async fn mknod(
        &self,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        (major, minor): (u32, u32),
    ) -> Result<()> {
        let session = self.metadata().await?;
        if !session.offers(Extension::Mknod) {
            return Err(Errno::EOPNOTSUPP);
        }
        let full = session.path(path)?;
        let perm = perm & attr::PERM_BITS;
        let mknod = session.client.mknod(&full, kind.mode_bits() | perm, major, minor);
        let made = pipelined::both(mknod, session.client.lstat(&full)).await;
        self.finish_create(&session, path, perm, made).await
    }

    async fn fallocate(&self, fh: Fh, how: Allocation, offset: u64, len: u64) -> Result<()> {
        let file = self.live_file(fh).await?;
        let session = &file.open.session;
        if !session.offers(Extension::Fallocate) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (mode, keep_size) = match how {
            Allocation::Reserve { keep_size } => (0, keep_size),
            Allocation::PunchHole => (FallocateMode::PUNCH_HOLE, true),
            Allocation::Zero { keep_size } => (FallocateMode::ZERO_RANGE, keep_size),
        };
        let keep_size = if keep_size { FallocateMode::KEEP_SIZE } else { 0 };
        let mode = FallocateMode(mode | keep_size);
        let call =
            move |open: &OpenHandle| open.session.client.fallocate(&open.handle, mode, offset, len);
        let ticket = file.enter(WHOLE_FILE, true, Some(session.slot));
        let changed = chunk_request::change(&file.open, &self.pool.flow, ticket, [call]).await;
        changed.map_err(|error| errno::from_handle(&error))
    }

    async fn seek(&self, fh: Fh, offset: u64, what: Seek) -> Result<u64> {
        let file = self.live_file(fh).await?;
        let open = &file.open;
        let whence = match what {
            Seek::Data => Whence::DATA,
            Seek::Hole => Whence::HOLE,
        };
        let ticket = file.enter(WHOLE_FILE, false, Some(open.session.slot));
        let call = open.session.client.lseek(&open.handle, offset, whence);
        chunk_request::in_order(&ticket, call).await.map_err(|error| errno::from_handle(&error))
    }

    fn may_exceed_sftp(&self) -> bool {
        self.pool.may_exceed_sftp()
    }

    async fn getxattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let value = session.client.getxattr(&full, name, XattrFlags(follow)).await;
        value.map_err(|error| errno::from_sftp(&error))
    }

    async fn listxattr(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let names = session.client.listxattr(&full, XattrFlags(follow)).await;
        names.map_err(|error| errno::from_sftp(&error))
    }

    async fn entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        let session = self.metadata().await?;
        // Their attributes are those of the targets.
        if self.config().follow_symlinks {
            return Err(Errno::EOPNOTSUPP);
        }
        let names = session.client.dirxattrs(&session.path(dir)?).await;
        let names = names.map_err(|error| errno::from_sftp(&error))?;
        // An invalid name is no entry of a listing, either.
        Ok(names.iter().filter_map(|name| Name::new(name).ok()).collect())
    }

    async fn setxattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let mode = match mode {
            SetXattr::Either => 0,
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        let set = session.client.setxattr(&full, name, &value, XattrFlags(follow | mode)).await;
        set.map_err(|error| errno::from_sftp(&error))
    }

    async fn removexattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let removed = session.client.removexattr(&full, name, XattrFlags(follow)).await;
        removed.map_err(|error| errno::from_sftp(&error))
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
        let session = self.metadata().await?;
        if !session.offers(Extension::ReadFile) {
            return Err(Errno::EOPNOTSUPP);
        }
        let full = session.path(path)?;
        let follow = self.config().follow_symlinks;
        let found = session.client.read_file(&full, max_bytes, follow).await;
        let found = found.map_err(|error| errno::from_sftp(&error))?;
        let attr = attr::from_wire(&found.attrs)?;
        let is_whole =
            |data: &Bytes| data.len() as u64 == attr.size && data.len() <= max_bytes as usize;
        Ok(found.data.filter(is_whole).map(|data| (attr, Data::from(data))))
    }

    fn reads_files(&self) -> bool {
        self.pool.live(0).is_some_and(|session| session.offers(Extension::ReadFile))
    }

    fn suggested_window(&self) -> Window {
        self.pool.suggestion()
    }

    fn is_disconnected(&self) -> bool {
        self.pool.is_disconnected()
    }

    fn why_disconnected(&self) -> Option<String> {
        self.pool.why_disconnected()
    }

    async fn disconnected(&self) {
        self.pool.disconnected().await;
    }

    fn watches(&self) -> Option<Arc<dyn Watches>> {
        self.watches_if_offered()
    }

    async fn write_verifier(&self) -> Result<Option<Bytes>> {
        let session = self.metadata().await?;
        let run = session.boot_id().await.map_err(|error| errno::from_handle(&error))?;
        Ok(run.map(Bytes::copy_from_slice))
    }

    fn has_locks(&self) -> bool {
        self.pool.live(0).is_some_and(|session| session.offers(Extension::Lock))
    }

    async fn lock(&self, fh: Fh, lock: Lock, wait: bool) -> Result<()> {
        self.set_lock(fh, lock, wait).await
    }

    async fn unlock(&self, fh: Fh, owner: LockOwner, range: LockRange) -> Result<()> {
        self.request_lock(fh, owner, range, None, Duration::ZERO).await
    }

    async fn test_lock(&self, fh: Fh, lock: Lock) -> Result<Option<(LockRange, LockKind)>> {
        self.find_lock(fh, lock).await
    }
}

impl Host {
    /// The error of an OPENDIR that failed.
    async fn opendir_error(
        &self,
        session: &Arc<Session>,
        error: &sftp::Error,
        path: &RemotePath,
    ) -> Errno {
        let open_handles = self.handles.open_on(session.slot);
        Probe(session).opendir(error, path, open_handles).await
    }
}
