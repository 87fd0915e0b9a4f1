//! Digests of contents, for who asks.
//!
//! A digest is told only of a content that is known to be current, by the same rule by which an open
//! needs not ask: what the server told of the file lately counts, else it is asked once. A file that
//! is written to through this mount has none until that is over.

use std::sync::Arc;

use base::{Attr, DigestEffort, DigestKind, Errno, FileKind, Result};
use bytes::Bytes;

use crate::inode::Inode;
use crate::{Ino, Vfs};

impl Vfs {
    /// The digest of the content that the file `ino` has; `None` where it is not known, or while
    /// there is doubt, and of whatever is no regular file.
    pub async fn digest(
        &self,
        ino: Ino,
        kind: DigestKind,
        effort: DigestEffort,
    ) -> Result<Option<Bytes>> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Regular {
            return Ok(None);
        }
        inode.writes.drained().await;
        let stamp = self.stamp_request();
        let mut known = self.validated(&inode.state(), inode.kind);
        if known.is_none() {
            known = self.validated_by_listing(&inode).await;
        }
        let attr = match known {
            Some(attr) => attr,
            None => self.fetch_attr(&inode).await?,
        };
        let path = match self.path(ino) {
            // Without a name nothing can be known of it.
            Err(Errno::ESTALE) => return Ok(None),
            path => path?,
        };
        let digest = self.remote.digest(&path, &attr, kind, effort).await?;
        // Changed or renamed here meanwhile, it may have been that of another content.
        let is_unchanged =
            inode.state().unchanged_since(stamp.seq) && !self.moved_since(&inode, &path, stamp);
        Ok(digest.filter(|_| is_unchanged))
    }
    /// The attributes of a file by a listing of its directory: who asks for the digests of many
    /// files there does not wait for each.
    async fn validated_by_listing(&self, inode: &Arc<Inode>) -> Option<Attr> {
        // What is open is told of better by its handle.
        if inode.state().open.iter().any(|open| open.remote.opened().is_some()) {
            return None;
        }
        let (dir, _) = self.tree().first_name(inode.ino)?;
        self.shared.note_piecemeal_lookup(dir);
        let path = self.tree().path(dir)?;
        self.await_listing(&path).await;
        self.cached_listing_attr(inode)?;
        self.validated(&inode.state(), inode.kind)
    }
}
