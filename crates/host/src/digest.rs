//! Digests that `sshoal helper` computes.

use base::{Attr, DigestKind, Errno, RemotePath, Result};
use bytes::Bytes;
use sftp::Extension;
use sftp::codec::DigestAlgorithm;

use crate::attr::from_wire;
use crate::errno::from_sftp;
use crate::host::Host;

/// Requests for digests at the same time. A server computes each on a thread.
pub(crate) const MAX_REQUESTS: usize = 8;

impl Host {
    /// The digest of the regular file at `path`, if it has these attributes.
    pub(crate) async fn compute_digest(
        &self,
        path: &RemotePath,
        attr: &Attr,
        kind: DigestKind,
    ) -> Result<Option<Bytes>> {
        let session = self.metadata().await?;
        if !session.offers(Extension::Digest) {
            return Ok(None);
        }
        let full = session.path(path)?;
        let (algorithm, len) = match kind {
            DigestKind::Md5 => (DigestAlgorithm::MD5, 16),
            DigestKind::Sha1 => (DigestAlgorithm::SHA1, 20),
            DigestKind::Sha256 => (DigestAlgorithm::SHA256, 32),
            DigestKind::Blake3 => (DigestAlgorithm::BLAKE3, 32),
        };
        let Ok(_permit) = self.digests.acquire().await else { return Ok(None) };
        let found = loop {
            match session.client.digest(&full, algorithm).await.map_err(|error| from_sftp(&error)) {
                Err(Errno::EINPROGRESS) => {}
                // It is being changed, or is no regular file any more.
                Err(Errno::EBUSY | Errno::EINVAL | Errno::ELOOP) => return Ok(None),
                found => break found?,
            }
        };
        let read = from_wire(&found.attrs)?;
        let is_same = (read.kind, read.size, read.mtime) == (attr.kind, attr.size, attr.mtime)
            && read.is_same_file(attr) != Some(false);
        Ok((is_same && found.digest.len() == len).then_some(found.digest))
    }
}
