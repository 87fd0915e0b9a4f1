//! Digests that `sshoal helper` computes.

use std::time::Duration;

use base::{Attr, DigestKind, Errno, RemotePath, Result};
use bytes::Bytes;
use sftp::Extension;
use sftp::codec::DigestAlgorithm;
use tokio::time::Instant;

use crate::attr::from_wire;
use crate::errno::from_sftp;
use crate::host::Host;

/// Slowest reading of a file for its digest that is waited for, in bytes per second.
const SLOWEST_READING: u64 = 10_000_000;

/// Time for any digest beside the reading.
const OTHER_TIME: Duration = Duration::from_secs(60);

/// Least time between requests for one digest.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// Requests for digests at the same time, if all files are small. A server computes each on a
/// thread.
pub(crate) const MAX_REQUESTS: usize = 32;

/// Larger files than this are not small, and take as much as so many small ones.
const SMALL_BYTES: u64 = 1 << 20;
const LARGE_REQUESTS: u32 = 4;

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
        let share = if attr.size <= SMALL_BYTES { 1 } else { LARGE_REQUESTS };
        let Ok(_permit) = self.digests.acquire_many(share).await else { return Ok(None) };
        let limit = OTHER_TIME + Duration::from_secs(attr.size / SLOWEST_READING);
        let deadline = Instant::now() + limit;
        let found = loop {
            match session.client.digest(&full, algorithm).await.map_err(|error| from_sftp(&error)) {
                // The server answers this about once a second.
                Err(Errno::EINPROGRESS) if Instant::now() < deadline => {
                    tokio::time::sleep(MIN_PAUSE).await;
                }
                Err(Errno::EINPROGRESS) => return Ok(None),
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
