//! gzip in members: the data is split into blocks, and several threads compress them.
//!
//! A member is a complete gzip stream, and the concatenation of members is the concatenation of their
//! contents: every `gzip -d` reads it. So blocks can be compressed in parallel, and those that do not
//! shrink are stored.
//!
//! Invariants:
//! 1. Members are written in the order of their blocks.
//! 2. Each thread has at most [`BLOCKS_EACH`] blocks. Then the writer waits, here or in the output.
//! 3. The threads end with the encoder, after their last blocks.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::is_worth;

/// Length of a block in bytes. The first part of a block, as long as gzip's window of 32 KiB, shrinks
/// less than what follows: this is 2 % of the whole. Longer blocks come later to the other side.
const BLOCK_BYTES: usize = 512 << 10;

/// Threads at most: more than this is more than the other side's `gzip -d` takes.
const THREADS: usize = 4;

/// Blocks with each thread: one in work, and one that waits, so that none idles while the output is
/// written.
const BLOCKS_EACH: usize = 2;

/// Blocks that are stored when one has not shrunk, until the next is tried: 8 MiB, so that data that
/// does not shrink costs a sixteenth of the work.
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

/// Compresses what is written, on its way to `W`.
pub(crate) struct Members<W> {
    output: W,
    level: Compression,
    /// What is gathered for the next block.
    gathered: Vec<u8>,
    workers: Vec<Worker>,
    /// Blocks that went to the threads, and those that came back: each thread in its turn.
    sent: usize,
    taken: usize,
    gain: Gain,
}

/// What a thread is to compress.
struct Block {
    raw: Vec<u8>,
    level: Compression,
}

struct Worker {
    blocks: SyncSender<Block>,
    members: Receiver<io::Result<Member>>,
}

/// A block, compressed.
struct Member {
    raw_bytes: usize,
    bytes: Vec<u8>,
    /// It was tried, and not only stored.
    was_tried: bool,
}

impl<W: Write> Members<W> {
    /// `rate` is the link's in bytes a second, where it is known.
    pub(crate) fn new(output: W, rate: Option<f64>) -> Members<W> {
        Members {
            output,
            level: level(rate),
            gathered: Vec::with_capacity(BLOCK_BYTES),
            workers: Vec::new(),
            sent: 0,
            taken: 0,
            gain: Gain::default(),
        }
    }

    /// Compresses the rest, and gives the output back.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        // What is empty is a member, too.
        if self.sent == 0 || !self.gathered.is_empty() {
            self.send()?;
        }
        self.drain()?;
        Ok(self.output)
    }

    /// Gives what is gathered to the thread whose turn it is.
    fn send(&mut self) -> io::Result<()> {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        if self.workers.len() < most && self.sent == self.workers.len() {
            match Worker::start() {
                Ok(worker) => self.workers.push(worker),
                // Those that there are do it, only slower.
                Err(error) if self.workers.is_empty() => return Err(error),
                Err(error) => tracing::debug!("no further thread compresses: {error}"),
            }
        }
        if self.sent - self.taken >= self.workers.len() * BLOCKS_EACH {
            self.take()?;
        }
        let raw = std::mem::replace(&mut self.gathered, Vec::with_capacity(BLOCK_BYTES));
        let level = if self.gain.tries() { self.level } else { Compression::none() };
        let worker = &self.workers[self.sent % self.workers.len()];
        worker.blocks.send(Block { raw, level }).map_err(|_| gone())?;
        self.sent += 1;
        // What is ready goes out now, and not when the threads are full.
        while self.taken < self.sent {
            match self.workers[self.taken % self.workers.len()].members.try_recv() {
                Ok(member) => self.write_out(&member?)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(gone()),
            }
        }
        Ok(())
    }

    /// Waits for the next member, and writes it.
    fn take(&mut self) -> io::Result<()> {
        let worker = &self.workers[self.taken % self.workers.len()];
        let member = worker.members.recv().map_err(|_| gone())??;
        self.write_out(&member)
    }

    fn write_out(&mut self, member: &Member) -> io::Result<()> {
        self.taken += 1;
        if member.was_tried {
            self.gain.came_of(member.raw_bytes, member.bytes.len());
        }
        self.output.write_all(&member.bytes)
    }

    fn drain(&mut self) -> io::Result<()> {
        while self.taken < self.sent {
            self.take()?;
        }
        Ok(())
    }
}

impl<W: Write> Write for Members<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BLOCK_BYTES - self.gathered.len();
        let taken = bytes.len().min(room);
        self.gathered.extend_from_slice(&bytes[..taken]);
        if self.gathered.len() == BLOCK_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.gathered.is_empty() {
            self.send()?;
        }
        self.drain()?;
        self.output.flush()
    }
}

fn gone() -> io::Error {
    io::Error::other("a thread that compresses has ended")
}

impl Worker {
    fn start() -> io::Result<Worker> {
        let (blocks, work) = sync_channel::<Block>(BLOCKS_EACH);
        let (done, members) = sync_channel(BLOCKS_EACH);
        std::thread::Builder::new().name("gzip".to_owned()).spawn(move || {
            while let Ok(block) = work.recv() {
                if done.send(member(&block)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Worker { blocks, members })
    }
}

fn member(block: &Block) -> io::Result<Member> {
    let bytes = Vec::with_capacity(block.raw.len() / 2);
    let mut encoder = GzEncoder::new(bytes, block.level);
    encoder.write_all(&block.raw)?;
    let was_tried = block.level != Compression::none();
    Ok(Member { raw_bytes: block.raw.len(), bytes: encoder.finish()?, was_tried })
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
        let mut members = Members::new(Vec::new(), None);
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
        let mut members = Members::new(Broken(3 * BLOCK_BYTES), None);
        let written = members.write_all(&noise(64 * BLOCK_BYTES));
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
