//! What is kept of what a program prints.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// Most bytes that are read at once; as much as a pipe holds.
const PIECE_BYTES: usize = 64 * 1024;

/// The first or last bytes of a stream.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: VecDeque<u8>,
    most_bytes: usize,
    end: Which,
    /// Some are gone.
    cut: bool,
}

/// Which bytes stay when there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    First,
    Last,
}

impl Kept {
    pub(super) fn new(end: Which, most_bytes: usize) -> Kept {
        Kept { bytes: VecDeque::new(), most_bytes, end, cut: false }
    }

    /// Reads once from a pipe that has something to read. `false` at its end.
    pub(super) fn read(&mut self, pipe: impl AsFd) -> bool {
        let mut piece = [0; PIECE_BYTES];
        match rustix::io::read(pipe, &mut piece) {
            Ok(0) => false,
            Ok(read) => {
                self.add(&piece[..read]);
                true
            }
            Err(error) => matches!(error, Errno::INTR | Errno::AGAIN),
        }
    }

    fn add(&mut self, piece: &[u8]) {
        self.bytes.extend(piece);
        let surplus = self.bytes.len().saturating_sub(self.most_bytes);
        self.cut |= surplus > 0;
        match self.end {
            Which::First => self.bytes.truncate(self.most_bytes),
            Which::Last => drop(self.bytes.drain(..surplus)),
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_asked_end_of_too_much_is_kept() {
        for (end, rest) in [(Which::First, "abcd"), (Which::Last, "defg")] {
            let mut kept = Kept::new(end, 4);
            kept.add(b"abc");
            assert!(!kept.is_cut());
            kept.add(b"defg");
            assert!(kept.is_cut());
            assert_eq!(kept.into_bytes(), rest.as_bytes());
        }
    }
}
