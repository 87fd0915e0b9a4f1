//! Operations on paths: lstat, readlink, opendir, mkdir, mknod, rmdir, unlink, symlink, link,
//! statvfs.

use std::sync::Arc;

use base::{Attr, Errno, FileKind, RemotePath, Result, StatVfs};
use sftp::{Extension, FileAttrs, StatusCode};

use crate::errno::from_sftp;
use crate::host::Host;
use crate::listing::Listing;
use crate::open::missing_bits;
use crate::probe::Probe;
use crate::session::Session;
use crate::{attr, pipelined};

/// Longest target of a symbolic link, in bytes: Linux's `PATH_MAX` without the NUL.
const MAX_TARGET_BYTES: usize = 4095;

/// Reply for a server without STATVFS: 1000 GiB, all free, as in sshfs.
const PLACEHOLDER_STATVFS: StatVfs = StatVfs {
    block_size: 4096,
    fragment_size: 4096,
    blocks: 250 << 20,
    blocks_free: 250 << 20,
    blocks_available: 250 << 20,
    files: 1_000_000_000,
    files_free: 1_000_000_000,
    files_available: 1_000_000_000,
    fsid: 0,
    name_max: 255,
    flags: 0,
};

impl Host {
    pub(crate) async fn lstat_path(&self, path: &RemotePath) -> Result<Attr> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        // The root may be a link to a directory.
        let attrs = if path.is_root() {
            session.client.stat(&full).await
        } else if self.config().follow_symlinks {
            match pipelined::both(session.client.stat(&full), session.client.lstat(&full)).await {
                (Ok(attrs), _) => Ok(attrs),
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

    pub(crate) async fn read_link(&self, path: &RemotePath) -> Result<Vec<u8>> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        match session.client.readlink(&full).await {
            // Such a target is invalid, and the kernel would cut it at a NUL.
            Ok(target) if target.len() > MAX_TARGET_BYTES || target.contains(&0) => Err(Errno::EIO),
            Ok(target) => Ok(target.to_vec()),
            Err(error) => Err(Probe(&session).general(&error, path).await),
        }
    }

    pub(crate) async fn open_dir(&self, path: &RemotePath) -> Result<Listing> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        match Listing::open(&session, full, self.config()).await {
            Ok(listing) => Ok(listing),
            Err(error) => Err(self.opendir_error(&session, &error, path).await),
        }
    }

    /// The error of an OPENDIR that failed.
    pub(crate) async fn opendir_error(
        &self,
        session: &Arc<Session>,
        error: &sftp::Error,
        path: &RemotePath,
    ) -> Errno {
        let open_handles = self.handles.open_on(session.slot);
        Probe(session).opendir(error, path, open_handles).await
    }

    /// Without `perm`, the server decides.
    pub(crate) async fn make_dir(&self, path: &RemotePath, perm: Option<u32>) -> Result<()> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        let perm = perm.map(|perm| perm & attr::PERM_BITS);
        let attrs = perm.map(FileAttrs::with_permissions).unwrap_or_default();
        let made =
            pipelined::both(session.client.mkdir(&full, attrs), session.client.lstat(&full)).await;
        self.finish_create(&session, path, perm.unwrap_or(0), made).await
    }

    /// Creates a FIFO, a socket or a device.
    pub(crate) async fn make_node(
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

    /// The result of creating an entry that is no file, followed by an LSTAT: it gets at least the
    /// bits of `perm`. A loss before it has them is a loss of the request.
    async fn finish_create(
        &self,
        session: &Arc<Session>,
        path: &RemotePath,
        perm: u32,
        made: (sftp::Result<()>, sftp::Result<FileAttrs>),
    ) -> Result<()> {
        match made {
            (Ok(()), Err(error)) if error.ends_connection() => Err(from_sftp(&error)),
            (Ok(()), after) => {
                let are = after.ok().and_then(|attrs| attrs.permissions);
                if let Some(wanted) = are.and_then(|are| missing_bits(perm, are & attr::PERM_BITS))
                    && !self.may_have_default_acl_above(session, path).await?
                {
                    let wanted = FileAttrs::with_permissions(wanted);
                    match session.client.setstat(&session.path(path)?, wanted).await {
                        Err(error) if error.ends_connection() => return Err(from_sftp(&error)),
                        // The server may insist on fewer bits.
                        _ => {}
                    }
                }
                Ok(())
            }
            (Err(error), Ok(_)) if crate::open::is_failure(&error) => Err(Errno::EEXIST),
            (Err(error), _) => Err(Probe(session).create(&error, path).await),
        }
    }

    pub(crate) async fn remove_dir(&self, path: &RemotePath) -> Result<()> {
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

    pub(crate) async fn remove_name(&self, path: &RemotePath) -> Result<()> {
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

    pub(crate) async fn make_symlink(&self, target: &[u8], path: &RemotePath) -> Result<()> {
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

    pub(crate) async fn make_link(&self, existing: &RemotePath, new: &RemotePath) -> Result<()> {
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

    pub(crate) async fn statvfs_path(&self, path: &RemotePath) -> Result<StatVfs> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        let statvfs = if session.offers(Extension::Statvfs) {
            session.client.statvfs(&full).await.map(attr::statvfs)
        } else {
            // Only if the path exists.
            session.client.stat(&full).await.map(|_| PLACEHOLDER_STATVFS)
        };
        match statvfs {
            Ok(statvfs) => Ok(statvfs),
            Err(error) => Err(Probe(&session).general(&error, path).await),
        }
    }
}
