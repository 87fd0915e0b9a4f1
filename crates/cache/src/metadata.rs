//! The types of the store's interface: validators, sources, and records of names.

use std::fmt;
use std::sync::Arc;

use base::{Attr, ChangeId, DirEntry, Timestamp};

use crate::digest::Digest;

/// Age in seconds from which on an mtime proves that a content is unchanged.
///
/// SFTP carries whole seconds: a file that changed at 12:00:00.2 can change again at 12:00:00.8
/// with the same time and the same size. One second covers that, another the file systems whose
/// clock is a tick behind the machine's, and the two seconds of FAT. This is git's rule.
pub const RACY_SECS: i64 = 2;

/// Decides whether a cached content is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validator {
    /// Bytes of the file.
    pub size: u64,
    /// The mtime, as reported by the server.
    pub mtime: Timestamp,
    /// What plain SFTP does not report. The number of the device may change when the server is
    /// started again, so it is left out.
    pub change: Option<ChangeId>,
}

impl Validator {
    /// The validator in `attr`.
    pub fn of(attr: &Attr) -> Validator {
        Validator { size: attr.size, mtime: attr.mtime, change: attr.change() }
    }

    /// Whether a content with this validator is that of a file that the server reports with the
    /// validator `reported`. Where the server reports no change, size and mtime decide.
    pub fn is_current(&self, reported: &Validator) -> bool {
        match reported.change {
            Some(_) => self == reported,
            None => self.has_size_and_mtime_of(reported),
        }
    }

    /// Whether size and mtime are equal, as far as both are known: plain SFTP reports whole
    /// seconds.
    pub fn has_size_and_mtime_of(&self, other: &Validator) -> bool {
        let same_mtime = match (self.change, other.change) {
            (Some(_), Some(_)) => self.mtime == other.mtime,
            _ => self.mtime.secs == other.mtime.secs,
        };
        self.size == other.size && same_mtime
    }
}

/// When the content changed last, as far as it is known: the mtime can be set to any time.
pub(crate) fn changed_at(attr: &Attr) -> Timestamp {
    attr.ctime().unwrap_or(attr.mtime)
}

/// The source of a path. The caller decides which sources are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId([u8; 32]);

impl SourceId {
    /// The source with this identity: equal bytes are the same source, in every process.
    pub fn new(identity: &[u8]) -> SourceId {
        SourceId(blake3::derive_key("sshoal cache 1 source", identity))
    }

    /// The source with these [`SourceId::as_bytes`].
    pub fn from_bytes(bytes: [u8; 32]) -> SourceId {
        SourceId(bytes)
    }

    /// The 32 bytes that represent the identity.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceId({})", hex::encode(&self.0[..4]))
    }
}

/// The record of a file whose whole content was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// The attributes with which the content was read.
    pub attr: Attr,
    /// The content. `Store::object` returns it if it is still in the store.
    pub digest: Digest,
    /// The content may have changed without a change of the validator after it was read
    /// ([`RACY_SECS`]): only a new fetch of the file makes it certain again.
    pub racy: bool,
    /// When the name led to the content, by this machine's clock: when the file was opened.
    pub fetched_at: Timestamp,
}

impl KnownFile {
    /// The validator of the content.
    pub fn validator(&self) -> Validator {
        Validator::of(&self.attr)
    }
}

/// The record of a directory that was listed completely: a name that is not in it was absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its entries in the server's order, without `.` and `..`.
    pub entries: Arc<[DirEntry]>,
    /// When the listing began, by this machine's clock.
    pub seen_at: Timestamp,
}

impl Listing {
    /// Whether both have the same entries, except for their atimes.
    pub(crate) fn has_entries_of(&self, other: &Listing) -> bool {
        let same = |(one, other): (&DirEntry, &DirEntry)| {
            let attrs = match (&one.attr, &other.attr) {
                (Some(one), Some(other)) => same_but_atime(one, other),
                (None, None) => true,
                _ => false,
            };
            one.name == other.name && attrs
        };
        self.entries.len() == other.entries.len()
            && self.entries.iter().zip(other.entries.iter()).all(same)
    }
}

/// Whether only the atime differs, which changes by reading.
pub(crate) fn same_but_atime(one: &Attr, other: &Attr) -> bool {
    *one == Attr { atime: one.atime, ..*other }
}

/// The record of a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLink {
    /// The target, as stored.
    pub target: Arc<[u8]>,
    /// When it was requested, by this machine's clock.
    pub seen_at: Timestamp,
}

/// The record of a name's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAttr {
    /// The attributes as returned by `lstat`.
    pub attr: Attr,
    /// When they were requested, by this machine's clock.
    pub seen_at: Timestamp,
}
