//! The last bytes of a file, which identify it after it has grown.
//!
//! Other clients may append to a file that is only read here, such as a log that `tail -f` follows.
//! After a loss its size and mtime differ, although it is the same file. It is accepted if it is
//! only longer and newer, and if its old last bytes are unchanged: a file that replaced it has
//! other bytes there.
//!
//! A file that this mount writes to has the bytes that this mount wrote last: at their offset, or,
//! if they were appended, at the place where the end was thought to be or behind it, since it may
//! become longer by others as well.

use base::Data;
use bytes::Bytes;

use super::FileState;
use crate::change_log::Covered;

/// Bytes to compare. 16 bytes could be equal in two files by chance, as in tables of numbers.
const TAIL_BYTES: usize = 64;

/// The bytes that were read at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    bytes: [u8; TAIL_BYTES],
    /// Their offset in the file.
    pub(crate) offset: u64,
}

impl Tail {
    /// The length in bytes.
    pub(crate) const LEN: u32 = TAIL_BYTES as u32;

    /// Whether these are the same bytes.
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        self.bytes == bytes
    }

    /// The offset behind them: the size of the file at that time.
    pub(crate) fn end(&self) -> u64 {
        self.offset + TAIL_BYTES as u64
    }

    /// The last bytes of `data`, which was read from `offset` on. `None` if it is shorter, or if
    /// the bytes are all equal, which would not identify a file.
    fn of(data: &Data, offset: u64) -> Option<Tail> {
        let skip = data.len().checked_sub(TAIL_BYTES)?;
        let bytes: [u8; TAIL_BYTES] = data.slice(skip..data.len()).to_vec().try_into().ok()?;
        let is_distinctive = bytes.iter().any(|byte| *byte != bytes[0]);
        is_distinctive.then_some(Tail { bytes, offset: offset + skip as u64 })
    }
}

/// Bytes that this mount has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnWrite {
    /// The number of the change.
    number: u64,
    pub(crate) bytes: Bytes,
    /// They are at this offset; appended ones may be behind it.
    pub(crate) offset: u64,
    pub(crate) is_appended: bool,
}

impl OwnWrite {
    /// They end here; appended ones may end behind it.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl FileState {
    /// The change with this number has appended `data` when the file had at least `size` bytes.
    pub(crate) fn note_append(&mut self, number: u64, data: &[u8], size: u64) {
        self.note_own_write(number, data, size, true);
    }

    /// The change with this number has written `data` at `offset`.
    pub(crate) fn note_write(&mut self, number: u64, data: &[u8], offset: u64) {
        self.note_own_write(number, data, offset, false);
    }

    fn note_own_write(&mut self, number: u64, data: &[u8], offset: u64, is_appended: bool) {
        // The answers to two writes may be seen in the other order.
        let is_older = self.own_write.as_ref().is_some_and(|write| write.number > number);
        if data.is_empty() || is_older {
            return;
        }
        let skip = data.len().saturating_sub(TAIL_BYTES);
        // A copy, so that it does not keep a long write in memory.
        let bytes = Bytes::copy_from_slice(&data[skip..]);
        let offset = if is_appended { offset } else { offset + skip as u64 };
        self.own_write = Some(OwnWrite { number, bytes, offset, is_appended });
    }

    /// The bytes that this mount has written last, unless an unanswered change may have removed
    /// them.
    pub(crate) fn expected_write(&self) -> Option<OwnWrite> {
        let own = self.own_write.clone()?;
        let end = if own.is_appended { u64::MAX } else { own.end() };
        (self.log.covers(&(own.offset..end)) == Covered::Not).then_some(own)
    }

    /// `data` was read from `offset` on.
    pub(crate) fn note_read(&mut self, data: &Data, offset: u64) {
        let end = offset + data.len() as u64;
        if data.is_empty() || self.expected.size() != Some(end) || !self.log.is_idle() {
            return;
        }
        if self.tail.is_none_or(|tail| tail.end() != end) {
            self.tail = Tail::of(data, offset);
        }
    }

    /// The bytes that identify the file if it has grown; `None` if none were read, or if this mount
    /// has changed the file.
    pub(crate) fn tail_if_unchanged(&self) -> Option<Tail> {
        self.tail.filter(|tail| self.log.is_idle() && self.expected.size() == Some(tail.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_tail_has_the_last_bytes_if_they_are_distinctive() {
        let content: Vec<u8> = (0..100).collect();
        let data = Data::from(Bytes::from(content.clone()));
        let tail = Tail::of(&data, 1000).unwrap();
        assert_eq!((tail.offset, tail.end()), (1036, 1100));
        assert!(tail.matches(&content[36..]) && !tail.matches(&content[35..99]));
        assert_eq!(Tail::of(&data.slice(0..63), 0), None);
        assert_eq!(Tail::of(&Data::from(Bytes::from(vec![0; 100])), 0), None);
    }
}
