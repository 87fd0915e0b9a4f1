//! The entries of a listing: buffers of the size that the kernel requested, filled in the wire
//! format.
//!
//! An entry with an invalid name (see [`base::Name`]) makes the kernel reject the whole listing.

use base::{Entry, FileKind, Stat};

use crate::abi::{self, Wire};
use crate::attr::entry_out;

fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
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

/// Collects the entries of a listing. That of a READDIRPLUS has names with the result of their
/// lookup, that of a READDIR has names alone.
///
/// A pushed [`Entry`] **counts as one lookup from the moment of the push**. The session
/// forgets those that the kernel does not receive; the file system has nothing to undo.
#[derive(Debug)]
pub struct DirSink {
    buffer: Vec<u8>,
    capacity: usize,
    plus: bool,
    /// Node ids whose lookups the kernel counts when it receives the listing.
    counted: Vec<u64>,
}

impl DirSink {
    /// A sink for a listing of up to `capacity` bytes; `plus`: with lookups.
    pub fn new(capacity: usize, plus: bool) -> DirSink {
        let buffer = Vec::with_capacity(capacity.min(FIRST_CAPACITY));
        DirSink { buffer, capacity, plus, counted: Vec::new() }
    }

    /// Whether the listing has the results of lookups.
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    /// Whether an entry with a name of this length fits. To be asked before a lookup is counted.
    pub fn has_room(&self, name_len: usize) -> bool {
        let entry = if self.plus { abi::EntryOut::SIZE } else { 0 };
        self.buffer.len() + padded(entry + abi::Dirent::SIZE + name_len) <= self.capacity
    }

    /// Adds an entry to a listing with lookups and counts its lookup, unless there is no room: then it
    /// returns `false`, and neither happened.
    ///
    /// `name` and `next_offset` as with [`DirSink::push_name`]. `.` and `..` must go through that,
    /// since the kernel never counts a lookup for them.
    pub fn push(&mut self, entry: &Entry, next_offset: u64, name: &[u8]) -> bool {
        debug_assert!(self.plus && !matches!(name, b"." | b".."), "it is not looked up");
        if !self.has_room(name.len()) {
            return false;
        }
        let Stat { number, attr, .. } = entry.stat;
        self.counted.push(entry.ino.0);
        entry_out(entry).put(&mut self.buffer);
        put_dirent(&mut self.buffer, number, next_offset, Some(attr.kind), name);
        true
    }

    /// Adds a name alone if there is room. `false` if not: the name has to be added to the next
    /// listing. With lookups it has node id 0, so that the kernel looks it up when it needs to.
    ///
    /// `name` is a [`base::Name`], `.` or `..`. `ino` is what `readdir(3)` shows. `next_offset` is the offset at which a listing after this
    /// entry continues; it must not be zero. `.` and `..` are entries like any other. Without
    /// `kind`, a program has to look the entry up.
    pub fn push_name(
        &mut self,
        ino: u64,
        next_offset: u64,
        kind: impl Into<Option<FileKind>>,
        name: &[u8],
    ) -> bool {
        if !self.has_room(name.len()) {
            return false;
        }
        if self.plus {
            abi::EntryOut::default().put(&mut self.buffer);
        }
        put_dirent(&mut self.buffer, ino, next_offset, kind.into(), name);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// The node ids whose lookups are counted if the listing is delivered.
    pub(crate) fn take_counted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Attr, Ino, Timestamp};
    use std::time::Duration;

    fn entry(ino: u64) -> Entry {
        let (kind, time, ttl) = (FileKind::Regular, Timestamp::default(), Duration::ZERO);
        let attr =
            Attr { kind, perm: 0, size: 0, uid: 0, gid: 0, atime: time, mtime: time, inode: None };
        let stat = Stat { number: ino + 100, attr, nlink: 1, ctime: time, ttl };
        Entry { ino: Ino(ino), stat, ttl }
    }

    #[test]
    fn entries_fill_the_buffer_to_the_byte_and_no_further() {
        // 24 + 8, and 24 + 3 padded to 32.
        let mut sink = DirSink::new(64, false);
        assert!(sink.push_name(1, 1, FileKind::Regular, b"eight888"));
        assert!(sink.push_name(2, 2, FileKind::Directory, b"abc"));
        assert!(!sink.push_name(3, 3, FileKind::Regular, b"x"));
        assert_eq!(sink.bytes().len(), 64);
        let mut second = &sink.bytes()[32..];
        let dirent = abi::Dirent::take(&mut second).unwrap();
        assert_eq!(dirent, abi::Dirent { ino: 2, off: 2, namelen: 3, type_: 4 });
        assert_eq!(second, b"abc\0\0\0\0\0");
    }

    #[test]
    fn each_pushed_entry_is_counted() {
        let mut sink = DirSink::new(2 * 160 + 8, true);
        assert!(sink.push_name(1, 1, FileKind::Directory, b"."));
        assert!(sink.push(&entry(5), 2, b"five"));
        assert!(!sink.has_room(4));
        assert!(!sink.push(&entry(6), 4, b"none"));
        assert_eq!((sink.bytes().len(), sink.take_counted()), (2 * 160, vec![5]));
    }
}
