//! The metadata file of a content: checksums of its chunks, its other digests, and the files that
//! had it. From the last the index can be rebuilt.
//!
//! It is written under another name and renamed, and sealed by a checksum: it is complete, or it
//! does not exist. A content of one chunk needs none: its name is its checksum.

use std::io;

use base::{Attr, RemotePath, Timestamp};

use super::{CHUNK_BYTES, LARGEST_BYTES, chunk_count};
use crate::codec::{CHECKSUM_BYTES, Reader, Writer};
use crate::digest::{Digest, Digests};
use crate::dir_fd::DirFd;
use crate::metadata::{SourceId, same_but_atime};

const MAGIC: &[u8; 8] = b"sshoalA1";

/// Bound on the files remembered for one content. A tree has hundreds of empty files; the index has
/// all of them, and only a rebuilt index is limited to the latest.
const ORIGINS: usize = 16;

/// Longest file that is read: the checksums of the largest content, and the files that had it.
const MAX_BYTES: u64 = (256 << 20) + (1 << 20);

const _: () = assert!(chunk_count(LARGEST_BYTES) * CHECKSUM_BYTES as u64 <= MAX_BYTES - (1 << 20));

/// A file that had the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) source: SourceId,
    pub(crate) path: RemotePath,
    pub(crate) attr: Attr,
    pub(crate) fetched_at: Timestamp,
}

/// The metadata of one content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) digests: Option<Digests>,
    /// Oldest first.
    pub(crate) origins: Vec<Origin>,
    /// One per chunk; none for a content of one chunk.
    pub(crate) sums: Vec<[u8; CHECKSUM_BYTES]>,
}

impl About {
    pub(crate) fn new(digest: Digest, size: u64, sums: Vec<[u8; CHECKSUM_BYTES]>) -> About {
        About { digest, size, digests: None, origins: Vec::new(), sums }
    }

    /// Adds a file, replacing its older entry. Returns whether that is a change.
    pub(crate) fn add(&mut self, origin: Origin) -> bool {
        let same = |old: &Origin| old.source == origin.source && old.path == origin.path;
        if let Some(at) = self.origins.iter().position(same) {
            let old = &mut self.origins[at];
            if same_but_atime(&old.attr, &origin.attr) {
                return false;
            }
            self.origins.remove(at);
        }
        if self.origins.len() == ORIGINS {
            self.origins.remove(0);
        }
        self.origins.push(origin);
        true
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(MAGIC).raw(self.digest.as_bytes()).u64(self.size);
        match &self.digests {
            Some(known) => writer.u8(1).raw(&known.md5).raw(&known.sha1).raw(&known.sha256),
            None => writer.u8(0),
        };
        writer.u32(self.origins.len() as u32);
        for origin in &self.origins {
            writer.raw(origin.source.as_bytes()).string(origin.path.as_bytes());
            writer.attr(&origin.attr).time(origin.fetched_at);
        }
        for sum in &self.sums {
            writer.raw(sum);
        }
        writer.seal()
    }

    /// `None` for anything but the output of [`About::encode`] for this digest.
    pub(crate) fn decode(bytes: &[u8], digest: &Digest) -> Option<About> {
        let mut reader = Reader::sealed(bytes)?;
        if reader.array()? != *MAGIC || reader.digest()? != *digest {
            return None;
        }
        let size = reader.u64()?;
        let digests = match reader.flag()? {
            true => Some(Digests {
                md5: reader.array()?,
                sha1: reader.array()?,
                sha256: reader.array()?,
                blake3: *digest,
            }),
            false => None,
        };
        let count = reader.u32()? as usize;
        let origins: Option<Vec<_>> =
            (0..count.min(ORIGINS)).map(|_| decode_origin(&mut reader)).collect();
        let mut sums = Vec::new();
        while !reader.is_empty() {
            sums.push(reader.array()?);
        }
        let expected = if size > CHUNK_BYTES { chunk_count(size) } else { 0 };
        let about = About { digest: *digest, size, digests, origins: origins?, sums };
        (about.sums.len() as u64 == expected).then_some(about)
    }

    /// Reads it from `dir_fd`; `Ok(None)` if it is damaged.
    pub(crate) fn load(dir_fd: &DirFd, name: &[u8], digest: &Digest) -> io::Result<Option<About>> {
        let bytes = dir_fd.read_whole(name, MAX_BYTES)?;
        Ok(bytes.and_then(|bytes| About::decode(&bytes, digest)))
    }
}

fn decode_origin(reader: &mut Reader<'_>) -> Option<Origin> {
    Some(Origin {
        source: SourceId::from_bytes(reader.array()?),
        path: RemotePath::parse(reader.string()?).ok()?,
        attr: reader.attr()?,
        fetched_at: reader.time()?,
    })
}

#[cfg(test)]
mod tests {
    use base::FileKind;
    use proptest::prelude::*;

    use super::*;

    fn origin(path: &str, mtime: i64) -> Origin {
        let mtime = Timestamp::from_secs(mtime);
        Origin {
            source: SourceId::new(b"host"),
            path: RemotePath::parse(path.as_bytes()).unwrap(),
            attr: Attr {
                kind: FileKind::Regular,
                perm: 0o644,
                size: 3,
                uid: 1,
                gid: 2,
                atime: mtime,
                mtime,
                inode: None,
            },
            fetched_at: Timestamp::from_secs(99),
        }
    }

    fn about() -> About {
        let digest = Digest::of(b"abc");
        let mut about = About::new(digest, CHUNK_BYTES + 1, vec![[1; 16], [2; 16]]);
        about.digests =
            Some(Digests { md5: [1; 16], sha1: [2; 20], sha256: [3; 32], blake3: digest });
        about.add(origin("a/b", 5));
        about
    }

    #[test]
    fn metadata_with_any_flipped_bit_is_rejected() {
        let about = about();
        let bytes = about.encode();
        assert_eq!(About::decode(&bytes, &about.digest), Some(about.clone()));
        assert_eq!(About::decode(&bytes, &Digest::of(b"other")), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(About::decode(&flipped, &about.digest), None);
        }
    }

    /// Fails when the format has changed; then it needs a new version (docs/cache-format.md).
    #[test]
    fn the_format_is_that_of_version_1() {
        let digest = Digest::of(&about().encode());
        assert_eq!(
            digest.to_hex(),
            "5ee698fce693be8087049b2769fdf2b8e3fd756b8d00ff09fd9b1ed61bf183eb"
        );
    }

    #[test]
    fn checksums_must_be_as_many_as_chunks() {
        let mut about = about();
        about.sums.pop();
        assert_eq!(About::decode(&about.encode(), &about.digest), None);
    }

    #[test]
    fn the_latest_places_are_kept() {
        let mut about = about();
        assert!(!about.add(origin("a/b", 5)), "known");
        for number in 0..20 {
            assert!(about.add(origin(&format!("f{number}"), 5)));
        }
        assert_eq!(about.origins.len(), ORIGINS);
        assert!(about.add(origin("f7", 6)));
        assert_eq!(about.origins.last(), Some(&origin("f7", 6)));
        assert_eq!(about.origins.len(), ORIGINS);
        assert_eq!(About::decode(&about.encode(), &about.digest), Some(about));
    }

    proptest! {
        #[test]
        fn no_sealed_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let digest = Digest::of(b"abc");
            let mut writer = Writer::default();
            writer.raw(MAGIC).raw(digest.as_bytes()).raw(&bytes);
            if let Some(about) = About::decode(&writer.seal(), &digest) {
                prop_assert_eq!(About::decode(&about.encode(), &digest), Some(about));
            }
        }
    }
}
