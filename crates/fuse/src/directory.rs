//! The entries of a listing: buffers of the size that the kernel requested, filled in the wire
//! format.
//!
//! An entry with an invalid name (empty, with `/` or NUL, longer than [`NAME_MAX`]) would make the
//! kernel reject the whole listing; it is left out and logged.

use base::FileKind;

use crate::abi::{self, Wire};
use crate::attr::Entry;

/// Longest name in a listing, in bytes: the limit of every supported kernel (`FUSE_NAME_MAX`).
pub const NAME_MAX: usize = 1024;

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

fn acceptable(name: &[u8]) -> bool {
    let good = !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.iter().any(|byte| matches!(byte, b'/' | 0));
    if !good {
        tracing::warn!(name = %name.escape_ascii(), "a name that no listing may have is left out");
    }
    good
}

/// `d_type` of an entry whose kind is not known.
const DT_UNKNOWN: u32 = 0;

fn put_dirent(
    buffer: &mut Vec<u8>,
    ino: u64,
    next_offset: u64,
    kind: Option<FileKind>,
    name: &[u8],
) {
    let type_ = kind.map_or(DT_UNKNOWN, |kind| kind.mode_bits() >> 12);
    abi::Dirent { ino, off: next_offset, namelen: name.len() as u32, type_ }.put(buffer);
    buffer.extend_from_slice(name);
    buffer.resize(padded(buffer.len()), 0);
}

/// Initial length of a listing's buffer: the kernel's usual size. It grows as needed.
const FIRST_CAPACITY: usize = 32 << 10;

/// Collects the entries of a READDIR.
#[derive(Debug)]
pub struct DirSink {
    buffer: Vec<u8>,
    capacity: usize,
}

impl DirSink {
    /// A sink for a listing of up to `capacity` bytes.
    pub fn new(capacity: usize) -> DirSink {
        DirSink { buffer: Vec::with_capacity(capacity.min(FIRST_CAPACITY)), capacity }
    }

    /// Whether an entry with a name of this length fits.
    pub fn has_room(&self, name_len: usize) -> bool {
        self.buffer.len() + padded(abi::Dirent::SIZE + name_len) <= self.capacity
    }

    /// Adds an entry if there is room. `false` if not: the entry has to be added to the next
    /// listing.
    ///
    /// `ino` is what `readdir(3)` shows. `next_offset` is the offset at which a listing after this
    /// entry continues; it must not be zero. `.` and `..` are entries like any other. Without
    /// `kind`, a program has to look the entry up.
    pub fn push(
        &mut self,
        ino: u64,
        next_offset: u64,
        kind: impl Into<Option<FileKind>>,
        name: &[u8],
    ) -> bool {
        if !acceptable(name) {
            return true;
        }
        let size = padded(abi::Dirent::SIZE + name.len());
        if self.buffer.len() + size > self.capacity {
            return false;
        }
        put_dirent(&mut self.buffer, ino, next_offset, kind.into(), name);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }
}

/// Collects the entries of a READDIRPLUS: names with the result of their lookup.
///
/// A pushed [`Entry`] with an `ino` **counts as one lookup from the moment of the push**. If the
/// listing is not delivered to the kernel, the session forgets all of them; the file system has
/// nothing to undo.
#[derive(Debug)]
pub struct PlusSink {
    buffer: Vec<u8>,
    capacity: usize,
    /// Node ids whose lookups the kernel counts when it receives the listing.
    counted: Vec<u64>,
    /// Node ids whose lookups the file system counted for entries that were left out.
    refused: Vec<u64>,
}

impl PlusSink {
    /// A sink for a listing of up to `capacity` bytes.
    pub fn new(capacity: usize) -> PlusSink {
        PlusSink {
            buffer: Vec::with_capacity(capacity.min(FIRST_CAPACITY)),
            capacity,
            counted: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Whether an entry with a name of this length fits. To be asked before a look-up is counted.
    pub fn has_room(&self, name_len: usize) -> bool {
        let size = padded(abi::EntryOut::SIZE + abi::Dirent::SIZE + name_len);
        self.buffer.len() + size <= self.capacity
    }

    /// Adds an entry and counts its look-up, unless there is no room: then the answer is `false`,
    /// and neither happened.
    ///
    /// `next_offset` as with [`DirSink::push`]. `.` and `..` must go through
    /// [`PlusSink::push_name`], since the kernel never counts a look-up for them.
    pub fn push(&mut self, entry: &Entry, next_offset: u64, name: &[u8]) -> bool {
        if !self.has_room(name.len()) {
            return false;
        }
        let dots = matches!(name, b"." | b"..");
        if dots || !acceptable(name) {
            if entry.ino != 0 {
                self.refused.push(entry.ino);
            }
            return !dots || self.push_name(entry.attr.ino, next_offset, entry.attr.kind, name);
        }
        if entry.ino != 0 {
            self.counted.push(entry.ino);
        }
        entry.wire().put(&mut self.buffer);
        put_dirent(&mut self.buffer, entry.attr.ino, next_offset, Some(entry.attr.kind), name);
        true
    }

    /// Adds a name alone (node id 0), so that the kernel looks it up when it wants to know more.
    pub fn push_name(
        &mut self,
        ino: u64,
        next_offset: u64,
        kind: impl Into<Option<FileKind>>,
        name: &[u8],
    ) -> bool {
        if !acceptable(name) {
            return true;
        }
        if !self.has_room(name.len()) {
            return false;
        }
        abi::EntryOut::default().put(&mut self.buffer);
        put_dirent(&mut self.buffer, ino, next_offset, kind.into(), name);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// The look-ups to forget: those of left-out entries, and all others if the listing was not
    /// `delivered`.
    pub(crate) fn owed_forgets(&mut self, delivered: bool) -> Vec<u64> {
        let mut inos = std::mem::take(&mut self.refused);
        let counted = std::mem::take(&mut self.counted);
        if !delivered {
            inos.extend(counted);
        }
        inos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attr;
    use std::time::Duration;

    fn entry(ino: u64) -> Entry {
        Entry {
            ino,
            generation: 0,
            attr: Attr::new(ino + 100, FileKind::Regular),
            attr_ttl: Duration::ZERO,
            entry_ttl: Duration::ZERO,
        }
    }

    #[test]
    fn entries_fill_the_buffer_to_the_byte_and_no_further() {
        // 24 + 8, and 24 + 3 padded to 32.
        let mut sink = DirSink::new(64);
        assert!(sink.push(1, 1, FileKind::Regular, b"eight888"));
        assert!(sink.push(2, 2, FileKind::Directory, b"abc"));
        assert!(!sink.push(3, 3, FileKind::Regular, b"x"));
        assert_eq!(sink.bytes().len(), 64);
        let mut second = &sink.bytes()[32..];
        let dirent = abi::Dirent::take(&mut second).unwrap();
        assert_eq!(dirent, abi::Dirent { ino: 2, off: 2, namelen: 3, type_: 4 });
        assert_eq!(second, b"abc\0\0\0\0\0");
    }

    #[test]
    fn invalid_names_are_left_out_of_a_listing() {
        let mut sink = DirSink::new(4096);
        for name in [&b""[..], b"a/b", b"a\0b", &[b'x'; NAME_MAX + 1]] {
            assert!(sink.push(1, 1, FileKind::Regular, name));
        }
        assert!(sink.bytes().is_empty());
        assert!(sink.push(1, 1, FileKind::Regular, &[b'x'; NAME_MAX]));
    }

    #[test]
    fn only_undelivered_lookups_are_forgotten() {
        let full = || {
            let mut sink = PlusSink::new(3 * 160 + 8);
            assert!(sink.push_name(1, 1, FileKind::Directory, b"."));
            assert!(sink.push(&entry(5), 2, b"five"));
            assert!(sink.push(&entry(7), 5, b"a/b"));
            assert!(sink.push(&entry(0), 3, b"zero"));
            assert!(!sink.has_room(4));
            assert!(!sink.push(&entry(6), 4, b"none"));
            sink
        };
        assert_eq!(full().owed_forgets(true), [7]);
        assert_eq!(full().owed_forgets(false), [7, 5]);
        assert_eq!(full().bytes().len(), 3 * 160);
    }

    #[test]
    fn lookups_of_dot_entries_are_never_counted() {
        let mut sink = PlusSink::new(4096);
        assert!(sink.push(&entry(5), 1, b".."));
        let mut bytes = sink.bytes();
        let wire = abi::EntryOut::take(&mut bytes).unwrap();
        assert_eq!(wire.nodeid, 0);
        assert_eq!(abi::Dirent::take(&mut bytes).unwrap().ino, 105);
        assert_eq!(sink.owed_forgets(true), [5]);
    }
}
