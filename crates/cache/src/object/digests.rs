//! Digests of contents other than their names: computed in the background or on request, and stored
//! beside the content.

use std::collections::HashMap;
use std::sync::Arc;

use base::Mutex;

use super::CHUNK_BYTES;
use crate::digest::{Digest, Digests, UserHashers};
use crate::store::shared::Shared;

/// Bound on the contents whose digests are kept in memory: a tree's worth, in some 3 MiB.
const KNOWN_DIGESTS: usize = 16_384;

impl Shared {
    /// All digests of a content, if they were computed before. Reads memory, or one file.
    pub fn digests(&self, digest: &Digest) -> Option<Digests> {
        if let Some(digests) = self.known_digests.get(digest) {
            return Some(digests);
        }
        let digests = self.about(digest)?.digests?;
        self.known_digests.insert(digests);
        Some(digests)
    }

    /// All digests of a content in the store; computed by reading it if necessary, as long as
    /// `may_continue` returns true.
    pub(crate) fn make_digests(
        self: &Arc<Shared>,
        digest: &Digest,
        may_continue: &dyn Fn() -> bool,
    ) -> Option<Digests> {
        self.digests(digest).or_else(|| self.read_digests(digest, may_continue))
    }

    fn read_digests(
        self: &Arc<Shared>,
        digest: &Digest,
        may_continue: &dyn Fn() -> bool,
    ) -> Option<Digests> {
        let object = self.object(digest)?;
        let mut hashers = UserHashers::default();
        let mut offset = 0;
        while offset < object.len() {
            let piece = object.read(offset, 8 * CHUNK_BYTES as usize).ok()?;
            hashers.update(&piece);
            offset += piece.len() as u64;
            if !may_continue() {
                return None;
            }
        }
        let digests = hashers.finish(*digest);
        self.add_to_about(digest, None, Some(digests));
        self.known_digests.insert(digests);
        Some(digests)
    }
}

/// Digests in memory, of the contents requested.
#[derive(Default)]
pub(crate) struct KnownDigests(Mutex<HashMap<Digest, Digests>>);

impl KnownDigests {
    fn get(&self, digest: &Digest) -> Option<Digests> {
        self.0.lock().get(digest).copied()
    }

    pub(super) fn insert(&self, digests: Digests) {
        let mut known = self.0.lock();
        if known.len() >= KNOWN_DIGESTS {
            known.clear();
        }
        known.insert(digests.blake3, digests);
    }

    pub(super) fn remove(&self, digest: &Digest) {
        self.0.lock().remove(digest);
    }
}
