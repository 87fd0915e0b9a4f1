//! gzip in members: the data is split into blocks, and several threads compress them.
//!
//! A member is a complete gzip stream, and the concatenation of members is the concatenation of
//! their contents: every `gzip -d` reads it. So blocks can be compressed in parallel, and those
//! that do not shrink are stored.
//!
//! Invariants:
//! 1. Members are written in the order of their blocks.
//! 2. Each block has a thread. If there are too many, the writer waits, here or in the output.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::thread::JoinHandle;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::is_worth;

/// Length of a block in bytes. The first part of a block, as long as gzip's window of 32 KiB,
/// shrinks less than what follows: this is 2 % of the whole. Longer blocks come later to the other
/// side.
const BLOCK_BYTES: usize = 512 << 10;

/// Processors at most: more than this is more than the other side's `gzip -d` takes.
const PROCESSORS: usize = 4;

/// Blocks for each processor, so that none idles while the output is written.
const BLOCKS_EACH: usize = 2;

/// Blocks that are stored when one has not shrunk, until the next is tried: 8 MiB, so that data
/// that does not shrink costs a sixteenth of the work.
const STORED_BLOCKS: u32 = 15;

/// A rate of the link, in bytes a second, below which there is time for the better compression. The
/// better one makes text a fifth smaller and takes four times as long.
const SLOW_LINK: f64 = 8e6;

/// How well it is compressed on a link of this rate, in bytes a second, if that is known.
/// Measured with kernel sources: level 1 comes to 0.35 at 230 MB/s, 2 to 0.27 at 150, 3 to 0.24 at
/// 125, 6 to 0.22 at 55.
fn level(rate: Option<f64>) -> Compression {
    match rate {
        Some(rate) if rate < SLOW_LINK => Compression::new(6),
        _ => Compression::new(2),
    }
}

/// Writes bytes to `W`, compressed or as they are.
pub(crate) struct Encoder<W> {
    output: W,
    /// `None` without compression.
    level: Option<Compression>,
    /// What is gathered for the next block.
    gathered: Vec<u8>,
    /// The blocks in work, in their order.
    working: VecDeque<JoinHandle<io::Result<Member>>>,
    has_begun: bool,
    gain: Gain,
}

/// A block, compressed.
struct Member {
    raw_bytes: usize,
    bytes: Vec<u8>,
    /// It was tried, and not only stored.
    was_tried: bool,
}

impl<W: Write> Encoder<W> {
    /// With compression by gzip, for a link of that rate in bytes a second, if it is known; there is
    /// no fast enough library for zstd without C.
    pub(crate) fn new(compresses: bool, output: W, rate: Option<f64>) -> Encoder<W> {
        Encoder {
            output,
            level: compresses.then(|| level(rate)),
            gathered: Vec::new(),
            working: VecDeque::new(),
            has_begun: false,
            gain: Gain::default(),
        }
    }

    /// Compresses the rest, and gives the output back.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        // What is empty is a member, too.
        if let Some(level) = self.level
            && (!self.has_begun || !self.gathered.is_empty())
        {
            self.send(level)?;
        }
        self.drain()?;
        Ok(self.output)
    }

    /// Gives what is gathered to a thread.
    fn send(&mut self, level: Compression) -> io::Result<()> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if self.working.len() >= processors.min(PROCESSORS) * BLOCKS_EACH {
            self.take()?;
        }
        let raw = std::mem::replace(&mut self.gathered, Vec::with_capacity(BLOCK_BYTES));
        let level = if self.gain.tries() { level } else { Compression::none() };
        let thread = std::thread::Builder::new().name("gzip".to_owned());
        self.working.push_back(thread.spawn(move || member(&raw, level))?);
        self.has_begun = true;
        // What is ready goes out now, and not when there are too many threads.
        while self.working.front().is_some_and(JoinHandle::is_finished) {
            self.take()?;
        }
        Ok(())
    }

    /// Waits for the next member, and writes it.
    fn take(&mut self) -> io::Result<()> {
        let Some(thread) = self.working.pop_front() else { return Ok(()) };
        let ended = |_| io::Error::other("a thread that compresses has ended");
        let member = thread.join().map_err(ended)??;
        if member.was_tried {
            self.gain.came_of(member.raw_bytes, member.bytes.len());
        }
        self.output.write_all(&member.bytes)
    }

    fn drain(&mut self) -> io::Result<()> {
        while !self.working.is_empty() {
            self.take()?;
        }
        Ok(())
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(level) = self.level else { return self.output.write(bytes) };
        let room = BLOCK_BYTES - self.gathered.len();
        let taken = bytes.len().min(room);
        self.gathered.extend_from_slice(&bytes[..taken]);
        if self.gathered.len() == BLOCK_BYTES {
            self.send(level)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(level) = self.level
            && !self.gathered.is_empty()
        {
            self.send(level)?;
        }
        self.drain()?;
        self.output.flush()
    }
}

fn member(raw: &[u8], level: Compression) -> io::Result<Member> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(raw.len() / 2), level);
    encoder.write_all(raw)?;
    let was_tried = level != Compression::none();
    Ok(Member { raw_bytes: raw.len(), bytes: encoder.finish()?, was_tried })
}

/// Which blocks are worth the work.
#[derive(Default)]
struct Gain {
    /// So many are stored from now on.
    stored: u32,
    /// The last of which it is known has not shrunk.
    in_vain: bool,
}

impl Gain {
    /// Whether the next one is to be tried.
    fn tries(&mut self) -> bool {
        if self.stored > 0 {
            self.stored -= 1;
            return false;
        }
        if self.in_vain {
            // Until it is known what comes of this one.
            self.stored = STORED_BLOCKS;
        }
        true
    }

    /// What came of one that was tried.
    fn came_of(&mut self, raw_bytes: usize, bytes: usize) {
        let was_in_vain =
            std::mem::replace(&mut self.in_vain, !is_worth(raw_bytes as u64, bytes as u64));
        match (was_in_vain, self.in_vain) {
            (false, true) => self.stored = STORED_BLOCKS,
            (true, false) => self.stored = 0,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::bufread::MultiGzDecoder;
    use proptest::prelude::*;

    use super::*;

    /// Bytes in which no compressor finds anything.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    fn text(len: usize) -> Vec<u8> {
        b"so and so, and so on; ".iter().copied().cycle().take(len).collect()
    }

    fn packed(writes: &[Vec<u8>], flushes: bool) -> Vec<u8> {
        let mut members = Encoder::new(true, Vec::new(), None);
        for bytes in writes {
            members.write_all(bytes).unwrap();
            if flushes {
                members.flush().unwrap();
            }
        }
        members.finish().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> Vec<u8> {
        let mut unpacked = Vec::new();
        MultiGzDecoder::new(bytes).read_to_end(&mut unpacked).unwrap();
        unpacked
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn what_is_written_is_read_again(
            runs in prop::collection::vec((any::<bool>(), 0..3 * BLOCK_BYTES / 2), 0..5),
            flushes in any::<bool>(),
        ) {
            let writes: Vec<Vec<u8>> = runs
                .iter()
                .map(|(is_text, len)| if *is_text { text(*len) } else { noise(*len) })
                .collect();
            prop_assert!(unpacked(&packed(&writes, flushes)) == writes.concat());
        }
    }

    #[test]
    fn text_gets_small_and_noise_does_not_get_large() {
        let len = 40 * BLOCK_BYTES;
        assert!(packed(&[text(len)], false).len() < len / 50);
        let stored = packed(&[noise(len)], false).len();
        assert!(stored > len && stored < len + len / 1000, "{stored}");
        // Text that comes behind what did not shrink is compressed again.
        let both = packed(&[noise(len), text(len)], false).len();
        assert!(both < len + len / 2, "{both}");
    }

    #[test]
    fn what_does_not_shrink_is_seldom_tried() {
        let mut gain = Gain::default();
        let tried = (0..160).filter(|_| {
            let tries = gain.tries();
            if tries {
                gain.came_of(1000, 990);
            }
            tries
        });
        assert_eq!(tried.count(), 10);
        let mut gain = Gain::default();
        gain.came_of(1000, 300);
        assert!(gain.tries() && gain.tries());
    }

    #[test]
    fn a_slow_link_leaves_time_for_more() {
        assert_eq!(level(Some(1e6)), Compression::new(6));
        assert_eq!((level(Some(20e6)), level(None)), (Compression::new(2), Compression::new(2)));
    }

    /// Takes some bytes, and no more.
    struct Broken(usize);

    impl Write for Broken {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_output_that_ends_is_told_of() {
        let mut members = Encoder::new(true, Broken(3 * BLOCK_BYTES), None);
        let written = members.write_all(&noise(64 * BLOCK_BYTES));
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
