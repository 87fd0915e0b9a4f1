//! The types of the store's interface: validators, sources, and records of names.

use std::fmt;
use std::sync::Arc;

use base::{Attr, DirEntry, FileKind, Timestamp};

use crate::digest::{Digest, hex};

/// Age in seconds from which on an mtime proves that a content is unchanged.
///
/// SFTP carries whole seconds: a file that changed at 12:00:00.2 can change again at 12:00:00.8
/// with the same time and the same size. One second covers that, another the file systems whose
/// clock is a tick behind the machine's, and the two seconds of FAT. This is git's rule.
pub const RACY_SECS: i64 = 2;

/// Decides whether a cached content is current: size and mtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validator {
    /// Bytes of the file.
    pub size: u64,
    /// The mtime, as reported by the server.
    pub mtime: Timestamp,
}

impl Validator {
    /// The validator in `attr`.
    #[must_use]
    pub fn of(attr: &Attr) -> Validator {
        Validator { size: attr.size, mtime: attr.mtime }
    }

    /// Whether a content that was read while the clock said `now` may still change without a change
    /// of the validator.
    ///
    /// `now` is the server's or this machine's clock, whichever is earlier. An mtime in the future
    /// is always racy.
    #[must_use]
    pub fn is_racy(&self, now: Timestamp) -> bool {
        self.mtime.secs.saturating_add(RACY_SECS) > now.secs
    }
}

/// The source of a path. The caller decides which sources are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId([u8; 32]);

impl SourceId {
    /// The source with this identity: equal bytes are the same source, in every process.
    #[must_use]
    pub fn new(identity: &[u8]) -> SourceId {
        SourceId(blake3::derive_key("sshoal cache 1 source", identity))
    }

    /// The source with these [`SourceId::as_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> SourceId {
        SourceId(bytes)
    }

    /// The 32 bytes that represent the identity.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceId({})", hex(&self.0[..4]))
    }
}

/// The record of a file whose whole content was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// The attributes with which the content was read.
    pub attr: Attr,
    /// The content. [`crate::Store::object`] returns it if it is still in the store.
    pub digest: Digest,
    /// The content may have changed without a change of the validator after it was read
    /// ([`Validator::is_racy`]): only a new fetch of the file makes it certain again.
    pub racy: bool,
    /// When the content was read, by this machine's clock.
    pub fetched_at: Timestamp,
}

impl KnownFile {
    /// The validator of the content.
    #[must_use]
    pub fn validator(&self) -> Validator {
        Validator::of(&self.attr)
    }

    /// The content that the file has now, given its present attributes `attr`; `None` if that is
    /// not certain.
    #[must_use]
    pub fn current(&self, attr: &Attr) -> Option<Digest> {
        let same = attr.kind == FileKind::Regular && self.validator() == Validator::of(attr);
        (same && !self.racy).then_some(self.digest)
    }
}

/// The record of a directory that was listed completely: a name that is not in it was absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The directory's own attributes, as they were before the listing.
    pub attr: Option<Attr>,
    /// Its entries in the server's order, without `.` and `..`.
    pub entries: Arc<[DirEntry]>,
    /// When the listing began, by this machine's clock.
    pub seen_at: Timestamp,
}

/// The record of a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLink {
    /// The attributes of the link itself, where known.
    pub attr: Option<Attr>,
    /// The target, as stored.
    pub target: Arc<[u8]>,
    /// When it was read, by this machine's clock.
    pub seen_at: Timestamp,
}

/// The record of a name's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAttr {
    /// The attributes as returned by `lstat`.
    pub attr: Attr,
    /// When they were seen, by this machine's clock.
    pub seen_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(size: u64, mtime: i64) -> Attr {
        let mtime = Timestamp::from_secs(mtime);
        Attr { kind: FileKind::Regular, perm: 0o644, size, uid: 1, gid: 1, atime: mtime, mtime }
    }

    #[test]
    fn a_time_of_change_counts_when_two_seconds_have_passed() {
        let validator = Validator::of(&attr(1, 100));
        let racy_at = |secs, nanos| validator.is_racy(Timestamp { secs, nanos });
        assert!(racy_at(50, 0), "in the future");
        assert!(racy_at(100, 0));
        assert!(racy_at(101, 999_999_999));
        assert!(!racy_at(102, 0));
    }

    #[test]
    fn a_content_is_current_only_with_its_own_size_and_time() {
        let digest = Digest::of(b"");
        let known =
            KnownFile { attr: attr(3, 9), digest, racy: false, fetched_at: Timestamp::now() };
        assert_eq!(known.current(&Attr { perm: 0o600, ..attr(3, 9) }), Some(digest));
        assert_eq!(known.current(&attr(4, 9)), None);
        assert_eq!(known.current(&attr(3, 10)), None);
        assert_eq!(known.current(&Attr { kind: FileKind::Symlink, ..attr(3, 9) }), None);
        assert_eq!(KnownFile { racy: true, ..known }.current(&attr(3, 9)), None);
    }
}
