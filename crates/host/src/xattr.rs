//! Extended attributes, by the extensions of `sshoal helper`. Its replies contain the errno, so no
//! failure is probed.

use std::sync::Arc;

use base::{Errno, Name, RemotePath, Result, SetXattr};
use bytes::Bytes;
use sftp::codec::XattrFlags;

use crate::errno::from_sftp;
use crate::host::Host;
use crate::session::Session;

/// The access list that new entries of a directory get.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

impl Host {
    /// The session, the full path, and the flag that says whether a link is followed.
    async fn for_xattr(&self, path: &RemotePath) -> Result<(Arc<Session>, Vec<u8>, u32)> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        // The root may be a link to a directory.
        let follow = self.config().follow_symlinks || path.is_root();
        Ok((session, full, if follow { XattrFlags::FOLLOW } else { 0 }))
    }

    pub(crate) async fn get_xattr(&self, path: &RemotePath, name: &[u8]) -> Result<Bytes> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let value = session.client.getxattr(&full, name, XattrFlags(follow)).await;
        value.map_err(|error| from_sftp(&error))
    }

    pub(crate) async fn list_xattrs(&self, path: &RemotePath) -> Result<Vec<Bytes>> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let names = session.client.listxattr(&full, XattrFlags(follow)).await;
        names.map_err(|error| from_sftp(&error))
    }

    pub(crate) async fn set_xattr(
        &self,
        path: &RemotePath,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let mode = match mode {
            SetXattr::Either => 0,
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        let set = session.client.setxattr(&full, name, value, XattrFlags(follow | mode)).await;
        set.map_err(|error| from_sftp(&error))
    }

    pub(crate) async fn remove_xattr(&self, path: &RemotePath, name: &[u8]) -> Result<()> {
        let (session, full, follow) = self.for_xattr(path).await?;
        let removed = session.client.removexattr(&full, name, XattrFlags(follow)).await;
        removed.map_err(|error| from_sftp(&error))
    }

    pub(crate) async fn list_entries_with_xattrs(&self, dir: &RemotePath) -> Result<Vec<Name>> {
        let session = self.metadata().await?;
        // Their attributes are those of the targets.
        if self.config().follow_symlinks {
            return Err(Errno::EOPNOTSUPP);
        }
        let names = session.client.dirxattrs(&session.path(dir)?).await;
        let names = names.map_err(|error| from_sftp(&error))?;
        // An invalid name is no entry of a listing, either.
        Ok(names.iter().filter_map(|name| Name::new(name).ok()).collect())
    }

    /// Whether the directory of a new entry may have a default access list. Then permission bits
    /// that the entry lacks may be those that the list denies, and must not be added.
    pub(crate) async fn may_have_default_acl_above(
        &self,
        session: &Session,
        path: &RemotePath,
    ) -> Result<bool> {
        let Some(full) = path.parent().and_then(|parent| session.path(&parent).ok()) else {
            return Ok(false);
        };
        let flags = XattrFlags(XattrFlags::FOLLOW);
        match session.client.getxattr(&full, DEFAULT_ACL, flags).await {
            Ok(_) => Ok(true),
            Err(error) if error.ends_connection() => Err(from_sftp(&error)),
            Err(error) => Ok(!matches!(from_sftp(&error), Errno::ENODATA | Errno::EOPNOTSUPP)),
        }
    }
}
