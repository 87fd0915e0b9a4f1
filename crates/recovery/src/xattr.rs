//! Extended attributes. Setting one is idempotent. What is not, the failure if it exists or if it
//! does not, is checked when the request was repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base::{Errno, RemotePath, Result, SetXattr};
use bytes::Bytes;

use crate::Core;
use crate::change::PendingChange;
use crate::change_log::Change;

/// The attribute that contains the permission bits, among others.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The access list that new entries of a directory get.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

impl Core {
    /// Whether permission bits that a new entry at `path` lacks may be those that the default
    /// access list of its directory denies. Such bits must not be added.
    pub(crate) async fn may_have_default_acl_above(&self, path: &RemotePath) -> Result<bool> {
        let parent = path.parent().unwrap_or_default();
        match self.inner.getxattr(&parent, DEFAULT_ACL).await {
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(false),
            Err(errno) if errno.is_loss() => Err(errno),
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// An access list is about to be set or removed: a file that is open at this path may have any
    /// permission bits from now on.
    async fn begin_set_acl(
        self: &Arc<Core>,
        path: &RemotePath,
        name: &[u8],
    ) -> Result<Option<PendingChange>> {
        if name != ACCESS_ACL {
            return Ok(None);
        }
        // Held even if the file is not open: an open may begin before the reply.
        let file = self.files.get_or_new(path);
        PendingChange::begin_without_handle(self, &file, Change::SetAcl).await.map(Some)
    }

    fn finish_set_acl(self: &Arc<Core>, path: &RemotePath, pending: Option<PendingChange>) {
        if let Some(pending) = pending {
            pending.happened(self);
            self.history.record_set_acl(path);
        }
    }

    pub(crate) async fn setxattr(
        self: &Arc<Core>,
        path: &RemotePath,
        name: &[u8],
        value: Bytes,
        mode: SetXattr,
    ) -> Result<()> {
        let pending = self.begin_set_acl(path, name).await?;
        let sent = AtomicU32::new(0);
        let set = self.with_retry(|| {
            sent.fetch_add(1, Ordering::Relaxed);
            self.inner.setxattr(path, name, value.clone(), mode)
        });
        match set.await {
            Err(Errno::EEXIST) if mode == SetXattr::Create && sent.into_inner() > 1 => {
                // The request without a reply may have created it.
                let found = self.with_retry(|| self.inner.getxattr(path, name)).await?;
                if found != value {
                    return Err(Errno::EEXIST);
                }
            }
            set => set?,
        }
        self.finish_set_acl(path, pending);
        Ok(())
    }

    pub(crate) async fn removexattr(
        self: &Arc<Core>,
        path: &RemotePath,
        name: &[u8],
    ) -> Result<()> {
        let pending = self.begin_set_acl(path, name).await?;
        let sent = AtomicU32::new(0);
        let removed = self.with_retry(|| {
            sent.fetch_add(1, Ordering::Relaxed);
            self.inner.removexattr(path, name)
        });
        match removed.await {
            // As for a file that is removed: the request without a reply has removed it.
            Err(Errno::ENODATA) if sent.into_inner() > 1 => {}
            removed => removed?,
        }
        self.finish_set_acl(path, pending);
        Ok(())
    }
}
