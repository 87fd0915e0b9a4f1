//! What the store knows about names: the words in which it is asked and told.

use std::fmt;
use std::sync::Arc;

use base::{Attr, DirEntry, FileKind, Timestamp};

use crate::digest::{Digest, hex};

/// Seconds that a time of change must lie back before it says that a content is still the same.
///
/// SFTP carries whole seconds: a file that changed at 12:00:00.2 can change again at 12:00:00.8
/// with the same time and the same size. One second covers that, another the file systems whose
/// clock is a tick behind the machine's, and the two seconds of FAT. This is git's rule.
pub const RACY_SECS: i64 = 2;

/// What says that a cached content is current: the size and the time of the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validator {
    /// Bytes of the file.
    pub size: u64,
    /// Its time of last change, as the server tells it.
    pub mtime: Timestamp,
}

impl Validator {
    /// The validator in `attr`.
    #[must_use]
    pub fn of(attr: &Attr) -> Validator {
        Validator { size: attr.size, mtime: attr.mtime }
    }

    /// Whether a content that was read while the clock said `now` may still change without a sign.
    ///
    /// `now` is the server's or this machine's clock, whichever is earlier. A time of change in
    /// the future is racy for ever.
    #[must_use]
    pub fn is_racy(&self, now: Timestamp) -> bool {
        self.mtime.secs.saturating_add(RACY_SECS) > now.secs
    }
}

/// Which source a path belongs to. The caller decides what makes two sources the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId([u8; 32]);

impl SourceId {
    /// The source with this identity: equal bytes are the same source, in every process.
    #[must_use]
    pub fn new(identity: &[u8]) -> SourceId {
        SourceId(blake3::derive_key("sshoal cache 1 source", identity))
    }

    /// The source whose [`SourceId::as_bytes`] are these.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> SourceId {
        SourceId(bytes)
    }

    /// The 32 bytes that stand for the identity.
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

/// A file whose whole content was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// The attributes with which the content was read.
    pub attr: Attr,
    /// The content. Whether the store still has it, [`crate::Store::object`] tells.
    pub digest: Digest,
    /// The content may have changed without a sign after it was read
    /// ([`Validator::is_racy`]): only a new fetch of the file makes it certain again.
    pub racy: bool,
    /// When the content was read, by this machine's clock.
    pub fetched_at: Timestamp,
}

impl KnownFile {
    /// What says that the content is current.
    #[must_use]
    pub fn validator(&self) -> Validator {
        Validator::of(&self.attr)
    }

    /// The content that the file has now, given that `attr` is what the server says now; `None`
    /// where there is doubt.
    #[must_use]
    pub fn current(&self, attr: &Attr) -> Option<Digest> {
        let same = attr.kind == FileKind::Regular && self.validator() == Validator::of(attr);
        (same && !self.racy).then_some(self.digest)
    }
}

/// A directory that was listed from its beginning to its end: a name that is not in it was absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The directory's own attributes, as they were before it was listed.
    pub attr: Option<Attr>,
    /// Its entries in the server's order, without `.` and `..`.
    pub entries: Arc<[DirEntry]>,
    /// When the listing began, by this machine's clock.
    pub seen_at: Timestamp,
}

/// The target of a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLink {
    /// The attributes of the link itself, where they were seen.
    pub attr: Option<Attr>,
    /// The target, as stored.
    pub target: Arc<[u8]>,
    /// When it was read, by this machine's clock.
    pub seen_at: Timestamp,
}

/// The attributes of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAttr {
    /// As `lstat` had them.
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
