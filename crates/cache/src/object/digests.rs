//! Digests of contents other than their names: made when a content is completed or when they are
//! asked for, kept beside it, and leading back to it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use base::DigestKind;

use super::CHUNK_BYTES;
use crate::digest::{Digest, Digests, UserHashers, hex};
use crate::store::places::Places;
use crate::store::shared::Shared;

/// Contents whose digests are kept in memory: a tree's worth, in some 3 MiB.
const KNOWN_DIGESTS: usize = 16_384;

impl Shared {
    /// All digests of a content, if they were made.
    pub(crate) fn digests_of(&self, digest: &Digest) -> Option<Digests> {
        if let Some(digests) = self.known_digests.get(digest) {
            return Some(digests);
        }
        let digests = self.about(digest)?.digests?;
        self.known_digests.insert(digests);
        Some(digests)
    }

    /// All digests of a content that is here; made by reading it if need be, as long as `goes_on`
    /// says so.
    pub(crate) fn make_digests(
        self: &Arc<Shared>,
        digest: &Digest,
        goes_on: &dyn Fn() -> bool,
    ) -> Option<Digests> {
        let digests = match self.digests_of(digest) {
            Some(digests) => digests,
            None => self.digests_read(digest, goes_on)?,
        };
        if self.aliases {
            add_aliases(&self.places(), &digests);
        }
        Some(digests)
    }

    fn digests_read(
        self: &Arc<Shared>,
        digest: &Digest,
        goes_on: &dyn Fn() -> bool,
    ) -> Option<Digests> {
        let object = self.open_object(digest)?;
        let mut hashers = UserHashers::default();
        let mut offset = 0;
        while offset < object.len() {
            let piece = object.read(offset, 8 * CHUNK_BYTES as usize).ok()?;
            hashers.update(&piece);
            offset += piece.len() as u64;
            if !goes_on() {
                return None;
            }
        }
        let digests = hashers.finish(*digest);
        self.add_to_about(digest, None, Some(digests));
        self.known_digests.insert(digests);
        Some(digests)
    }

    /// The content with this digest of another kind.
    pub(crate) fn find_alias(&self, kind: DigestKind, value: &[u8]) -> Option<Digest> {
        let digest = if kind == DigestKind::Blake3 {
            Digest::from_bytes(value.try_into().ok()?)
        } else {
            let name = hex(value);
            let folder = self.places().alias.sub(alias_folder(kind)?).ok()?;
            let folder = folder.sub(name.get(..2)?.as_bytes()).ok()?;
            Digest::from_hex(&folder.readlink(&name.as_bytes()[2..]).ok()?)?
        };
        // The name of the alias is not sealed by anything; what is known about the content is.
        let same = kind == DigestKind::Blake3 || self.digests_of(&digest)?.get(kind) == value;
        (same && self.object_bytes(&digest).is_some()).then_some(digest)
    }
}

const ALIASES: [DigestKind; 3] = [DigestKind::Md5, DigestKind::Sha1, DigestKind::Sha256];

fn alias_folder(kind: DigestKind) -> Option<&'static [u8]> {
    match kind {
        DigestKind::Md5 => Some(b"md5"),
        DigestKind::Sha1 => Some(b"sha1"),
        DigestKind::Sha256 => Some(b"sha256"),
        DigestKind::Blake3 => None,
    }
}

/// An alias is a symbolic link that is never followed: its text is the content's name, and it
/// takes an inode and no block. One that cannot be made is missed by nobody but a new fetch.
fn add_aliases(places: &Places, digests: &Digests) {
    for kind in ALIASES {
        let name = hex(&digests.get(kind));
        let made = || -> io::Result<()> {
            let folder = places.alias.make_sub(alias_folder(kind).unwrap_or_default())?;
            let folder = folder.make_sub(&name.as_bytes()[..2])?;
            folder.symlink(digests.blake3.to_hex().as_bytes(), &name.as_bytes()[2..])
        };
        if let Err(error) = made() {
            tracing::trace!("no alias of a digest: {error}");
        }
    }
}

pub(super) fn remove_aliases(places: &Places, digests: &Digests) {
    for kind in ALIASES {
        let name = hex(&digests.get(kind));
        let removed = || -> io::Result<()> {
            let folder = places.alias.sub(alias_folder(kind).unwrap_or_default())?;
            folder.sub(&name.as_bytes()[..2])?.unlink(&name.as_bytes()[2..])
        };
        let _ = removed();
    }
}

/// Digests in memory, of the contents that were asked for.
#[derive(Default)]
pub(crate) struct KnownDigests(Mutex<HashMap<Digest, Digests>>);

impl KnownDigests {
    fn get(&self, digest: &Digest) -> Option<Digests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest).copied()
    }

    pub(super) fn insert(&self, digests: Digests) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_DIGESTS {
            known.clear();
        }
        known.insert(digests.blake3, digests);
    }

    pub(super) fn remove(&self, digest: &Digest) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(digest);
    }
}
