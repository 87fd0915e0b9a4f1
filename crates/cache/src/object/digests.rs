//! Digests of contents other than their names: computed in the background or on request, stored
//! beside the content, and usable to find it.

use std::collections::HashMap;
use std::sync::Arc;

use base::{DigestKind, Mutex};

use super::CHUNK_BYTES;
use crate::digest::{Digest, Digests, UserHashers};
use crate::store::layout::Layout;
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
        let digests = match self.digests(digest) {
            Some(digests) => digests,
            None => self.read_digests(digest, may_continue)?,
        };
        if self.aliases {
            add_aliases(&self.layout(), &digests);
        }
        Some(digests)
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

    /// The content with this digest of any kind, if it is in the store. By digests of other kinds
    /// than BLAKE3 it is found after they were computed, in a store with aliases
    /// ([`crate::StoreConfig`]).
    pub fn content_of(&self, kind: DigestKind, value: &[u8]) -> Option<Digest> {
        let digest = if kind == DigestKind::Blake3 {
            Digest::from_bytes(value.try_into().ok()?)
        } else {
            let (dir, name) = alias(kind, value)?;
            decode_text(&self.layout().alias.below(&dir).ok()?.readlink(&name).ok()?)?
        };
        // The alias has no checksum; the content's metadata has one.
        let same = kind == DigestKind::Blake3 || self.digests(&digest)?.get(kind) == value;
        (same && self.object_bytes(&digest).is_some()).then_some(digest)
    }
}

/// The aliases of a content.
fn aliases(digests: &Digests) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let kinds = [DigestKind::Md5, DigestKind::Sha1, DigestKind::Sha256].into_iter();
    kinds.filter_map(|kind| alias(kind, &digests.get(kind)))
}

/// The directory of an alias, below `alias`, and its name; `None` for a digest of BLAKE3.
fn alias(kind: DigestKind, value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let dir = match kind {
        DigestKind::Md5 => "md5",
        DigestKind::Sha1 => "sha1",
        DigestKind::Sha256 => "sha256",
        DigestKind::Blake3 => return None,
    };
    let name = hex::encode(value);
    let (first, rest) = name.split_at_checked(2)?;
    Some((format!("{dir}/{first}").into(), rest.into()))
}

/// The letters of an alias, of five bits each.
const LETTERS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// The text of an alias: the digest in 52 letters. As 64 hexadecimal digits it would be too long
/// for ext4 to keep it in the inode, and would take a block.
fn encode_text(digest: &Digest) -> Vec<u8> {
    let bit = |at: usize| digest.as_bytes().get(at / 8).map_or(0, |byte| byte >> (at % 8) & 1);
    let letter = |at: usize| (0..5).fold(0, |value, more| value | bit(5 * at + more) << more);
    (0..52).map(|at| LETTERS[usize::from(letter(at))]).collect()
}

/// The digest in an alias, also in the hexadecimal form of earlier versions.
fn decode_text(text: &[u8]) -> Option<Digest> {
    if text.len() == 64 {
        return Digest::from_hex(text);
    }
    let mut bytes = [0; 32];
    for (at, letter) in text.iter().enumerate() {
        let value = LETTERS.iter().position(|known| known == letter)?;
        for bit in (0..5).filter(|bit| value >> bit & 1 == 1) {
            *bytes.get_mut((5 * at + bit) / 8)? |= 1 << ((5 * at + bit) % 8);
        }
    }
    (text.len() == 52).then(|| Digest::from_bytes(bytes))
}

/// An alias is a symbolic link that is never followed: its text is the content's name, and it takes
/// an inode and no block. Without it the content may be fetched once more.
fn add_aliases(layout: &Layout, digests: &Digests) {
    for (dir, name) in aliases(digests) {
        let made = layout.alias.make_below(&dir);
        let made = made.and_then(|dir_fd| dir_fd.symlink(&encode_text(&digests.blake3), &name));
        if let Err(error) = made {
            tracing::trace!("no alias of a digest: {error}");
        }
    }
}

pub(super) fn remove_aliases(layout: &Layout, digests: &Digests) {
    for (dir, name) in aliases(digests) {
        let _ = layout.alias.below(&dir).and_then(|dir_fd| dir_fd.unlink(&name));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_alias_is_read_back(bytes: [u8; 32], other in "[0-9a-w]{0,70}") {
            let digest = Digest::from_bytes(bytes);
            let text = encode_text(&digest);
            // The limit of ext4 for an inode, with the terminating zero.
            prop_assert!(text.len() < 60);
            prop_assert_eq!(decode_text(&text), Some(digest));
            prop_assert_eq!(decode_text(digest.to_hex().as_bytes()), Some(digest));
            if let Some(decoded) = decode_text(other.as_bytes()) {
                prop_assert!([52, 64].contains(&other.len()));
                let same = [encode_text(&decoded), decoded.to_hex().into_bytes()];
                prop_assert!(same.contains(&other.into_bytes()));
            }
        }
    }

    /// Fails when the format has changed; then it needs a new version (docs/cache-format.md).
    #[test]
    fn the_text_of_an_alias_is_that_of_version_1() {
        let digest = Digest::from_bytes(std::array::from_fn(|at| at as u8));
        assert_eq!(encode_text(&digest), b"0804g1g05g1e0441ao2og6o1f04219c2k85chb03pg6m1ek3uo70");
    }
}
