//! The last bytes of a file, by which it is known again when it has grown meanwhile.
//!
//! Others may put something to the end of a file that is only read here: a log that is followed.
//! After a loss its size and time are not what they were, and yet it is the same file. It is taken
//! for that if it only became longer and newer, and what was its end is still there: in a file that
//! was put in its place, other bytes are there.

use base::Data;

use super::FileState;

/// Bytes that are kept, at most. Sixteen could stand at the same place of two files by chance, as
/// in tables of figures.
const TAIL_BYTES: usize = 64;

/// What was read at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    bytes: [u8; TAIL_BYTES],
    /// Where it begins in the file.
    pub(crate) offset: u64,
}

impl Tail {
    /// The length in bytes.
    pub(crate) const LEN: u32 = TAIL_BYTES as u32;

    /// Whether these are the same bytes.
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        self.bytes == bytes
    }

    /// Where it ends: the size of the file then.
    pub(crate) fn end(&self) -> u64 {
        self.offset + TAIL_BYTES as u64
    }

    /// The end of what was read from `offset` on. A file that is shorter, or ends with always the
    /// same byte, is not known by that.
    fn of(data: &Data, offset: u64) -> Option<Tail> {
        let skip = data.len().checked_sub(TAIL_BYTES)?;
        let bytes: [u8; TAIL_BYTES] = data.slice(skip..data.len()).to_vec().try_into().ok()?;
        let is_distinctive = bytes.iter().any(|byte| *byte != bytes[0]);
        is_distinctive.then_some(Tail { bytes, offset: offset + skip as u64 })
    }
}

impl FileState {
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

    /// By what the file is known if it has grown; `None` if it is not, or was changed here.
    pub(crate) fn tail_if_unchanged(&self) -> Option<Tail> {
        self.tail.filter(|tail| self.log.is_idle() && self.expected.size() == Some(tail.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn it_is_of_the_last_bytes_if_they_tell_anything() {
        let content: Vec<u8> = (0..100).collect();
        let data = Data::from(Bytes::from(content.clone()));
        let tail = Tail::of(&data, 1000).unwrap();
        assert_eq!((tail.offset, tail.end()), (1036, 1100));
        assert!(tail.matches(&content[36..]) && !tail.matches(&content[35..99]));
        assert_eq!(Tail::of(&data.slice(0..63), 0), None);
        assert_eq!(Tail::of(&Data::from(Bytes::from(vec![0; 100])), 0), None);
    }
}
