//! What requests about extended attributes have in common, and default access lists.

use std::sync::Arc;

use base::{Errno, RemotePath, Result};
use sftp::codec::XattrFlags;

use crate::errno::from_sftp;
use crate::host::Host;
use crate::session::Session;

/// The access list that new entries of a directory get.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

impl Host {
    /// The session, the full path, and the flag that says whether a link is followed.
    pub(crate) async fn for_xattr(
        &self,
        path: &RemotePath,
    ) -> Result<(Arc<Session>, Vec<u8>, u32)> {
        let session = self.metadata().await?;
        let full = session.path(path)?;
        // The root may be a link to a directory.
        let follow = self.config().follow_symlinks || path.is_root();
        Ok((session, full, if follow { XattrFlags::FOLLOW } else { 0 }))
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
