//! Digests of file contents.
//!
//! A digest is returned only for a content that is known to be current, by the same rule as for a
//! deferred open: a recent answer of the server is enough, else one request is sent. A file has no
//! digest while it is written to through this mount.

use std::sync::Arc;

use base::{Attr, DigestEffort, DigestKind, Errno, FileKind, Result};
use bytes::Bytes;

use crate::inode::Inode;
use crate::{Ino, Vfs};

impl Vfs {
    /// The digest of the present content of the file `ino`; `None` if it is not known, or while the
    /// content is doubtful, and for everything that is not a regular file.
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
        let stale = self.serves_stale(ino);
        let mut known = self.validated(&inode.state(), inode.kind, stale);
        if known.is_none() {
            known = self.validated_by_listing(&inode).await;
        }
        let attr = match known {
            Some(attr) => attr,
            None => self.fetch_attr(&inode).await?,
        };
        let path = match self.path(ino) {
            // Without a name no digest can be found.
            Err(Errno::ESTALE) => return Ok(None),
            path => path?,
        };
        let digest = self.remote.digest(&path, &attr, kind, effort).await?;
        // After a local change or a rename it may be of another content.
        let is_unchanged =
            inode.state().unchanged_since(stamp.seq) && !self.moved_since(&inode, &path, stamp);
        Ok(digest.filter(|_| is_unchanged))
    }
    /// The attributes of a file from a listing of its directory, so that a caller that requests the
    /// digests of many files in it does not wait for each.
    async fn validated_by_listing(&self, inode: &Arc<Inode>) -> Option<Attr> {
        // For an open file, its handle is a better source.
        if inode.state().open.iter().any(|open| open.remote.opened().is_some()) {
            return None;
        }
        let (dir, _) = self.tree().used_name(inode.ino)?;
        self.prefetch.note_piecemeal_lookup(&self.shared, dir);
        let path = self.tree().path(dir)?;
        self.prefetch.await_listing(&path).await;
        self.cached_listing_attr(inode)?;
        let stale = self.serves_stale(inode.ino);
        self.validated(&inode.state(), inode.kind, stale)
    }
}
