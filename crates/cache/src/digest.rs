//! Digests of whole contents, and their hashers.

use std::fmt;

use base::DigestKind;
use bytes::Bytes;
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The blake3 digest of a whole content: its name in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `content`.
    pub fn of(content: &[u8]) -> Digest {
        Digest(*blake3::hash(content).as_bytes())
    }

    /// The digest with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits, in lower case.
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }

    /// The digest with this [`Digest::to_hex`] text; `None` for any other text.
    pub fn from_hex(text: &[u8]) -> Option<Digest> {
        unhex(text).map(Digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// All digests of one content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// MD5
    pub md5: [u8; 16],
    /// SHA-1
    pub sha1: [u8; 20],
    /// SHA-256
    pub sha256: [u8; 32],
    /// BLAKE3, the name in the store
    pub blake3: Digest,
}

impl Digests {
    /// The digests of the empty content.
    pub(crate) fn of_nothing() -> Digests {
        UserHashers::default().finish(Digest::of(b""))
    }

    /// The digest of this kind, as raw bytes.
    pub fn get(&self, kind: DigestKind) -> Bytes {
        match kind {
            DigestKind::Md5 => Bytes::copy_from_slice(&self.md5),
            DigestKind::Sha1 => Bytes::copy_from_slice(&self.sha1),
            DigestKind::Sha256 => Bytes::copy_from_slice(&self.sha256),
            DigestKind::Blake3 => Bytes::copy_from_slice(self.blake3.as_bytes()),
        }
    }
}

/// The hashers of the digests that users ask for, fed piece by piece.
#[derive(Default)]
pub(crate) struct UserHashers {
    md5: Md5,
    sha1: Sha1,
    sha256: Sha256,
}

impl UserHashers {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.sha1.update(bytes);
        self.sha256.update(bytes);
    }

    pub(crate) fn finish(self, blake3: Digest) -> Digests {
        Digests {
            md5: self.md5.finalize().into(),
            sha1: self.sha1.finalize().into(),
            sha256: self.sha256.finalize().into(),
            blake3,
        }
    }
}

/// The `N` bytes with these hexadecimal digits; upper case is refused, so that one content has one
/// name.
pub(crate) fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    (!text.iter().any(u8::is_ascii_uppercase)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_known_programs() {
        let mut hashers = UserHashers::default();
        hashers.update(b"a");
        hashers.update(b"bc");
        let digests = hashers.finish(Digest::of(b"abc"));
        assert_eq!(hex::encode(digests.md5), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(hex::encode(digests.sha1), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(
            hex::encode(digests.get(DigestKind::Sha256)),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            digests.blake3.to_hex(),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
    }

    #[test]
    fn hex_is_read_back_and_nothing_else_is() {
        let digest = Digest::of(b"x");
        let text = digest.to_hex();
        assert_eq!(Digest::from_hex(text.as_bytes()), Some(digest));
        assert_eq!(Digest::from_hex(text.to_uppercase().as_bytes()), None);
        assert_eq!(Digest::from_hex(&text.as_bytes()[1..]), None);
        assert_eq!(Digest::from_hex(text.replace(&text[..1], "g").as_bytes()), None);
    }
}
