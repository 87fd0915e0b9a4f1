//! What is in the files of the workloads: a function of a seed and the place in the file.
//!
//! A file is a sequence of blocks of 4 KiB. A block is the seed's own 4 KiB of noise, each word
//! of it mixed with one key of the block, so that making or comparing a block costs as much as a
//! copy; the first word is the block's number in the open, so that a block at a wrong place can
//! be named. No two blocks have a string in common, and no compressor finds anything in them.
//!
//! Content that compresses ([`compressible`]) has text instead in most blocks, as a mix of texts
//! and programs has.

use std::fmt;
use std::io;

/// Bytes of a block, the unit in which content is made and compared.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes made or hashed at a time: in the processor's cache, and few enough calls.
pub(super) const PIECE_BYTES: usize = 64 * BLOCK_BYTES;

const WORD_BYTES: usize = 8;
const BLOCK_WORDS: usize = BLOCK_BYTES / WORD_BYTES;

/// The whole range of a word divided by the golden ratio: the usual step of such generators.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `x` over all bits of the result; the finalizer of SplitMix64 (Steele, Lea
/// and Flood, 2014).
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A sequence of numbers without end.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }
}

/// A number that two blocks of different data share by chance only, one of 2^64.
pub fn mark(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(WORD_BYTES).map(|bytes| {
        let mut word = [0; WORD_BYTES];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    mix(words
        .fold(bytes.len() as u64, |mark, word| (mark.rotate_left(29) ^ word).wrapping_mul(STEP)))
}

/// Of seeds whose content compresses.
const COMPRESSIBLE: u64 = 1 << 63;

/// The seed of content that belongs to this seed and compresses: to about two fifths by zlib.
pub const fn compressible(seed: u64) -> u64 {
    seed | COMPRESSIBLE
}

/// The content of one file of any length.
#[derive(Clone)]
pub struct Content {
    seed: u64,
    noise: Box<[u64; BLOCK_WORDS]>,
    /// Of content that compresses.
    text: Option<Text>,
}

/// Where what was read is not what had to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Of the first wrong byte's block in the file.
    pub offset_bytes: u64,
    /// What is there instead.
    pub found: Found,
}

/// What is where another block had to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing but zeros.
    Zeros,
    /// The block of this number of the same file.
    Block(u64),
    /// Something else, different from the byte of that index in the block on.
    Other(usize),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset_bytes;
        match self.found {
            Found::Zeros => write!(f, "zeros at offset {offset}"),
            Found::Block(number) => {
                let from = number * BLOCK_BYTES as u64;
                write!(f, "at offset {offset} are the data of offset {from}")
            }
            Found::Other(index) => write!(f, "other data at offset {}", offset + index as u64),
        }
    }
}

impl Content {
    /// The content that belongs to a seed. It compresses if the seed is from [`compressible`].
    pub fn new(seed: u64) -> Content {
        let mut random = Random(mix(seed ^ STEP));
        let mut noise = Box::new([0; BLOCK_WORDS]);
        noise.fill_with(|| random.next());
        let text = (seed & COMPRESSIBLE != 0).then(|| Text::new(seed));
        Content { seed, noise, text }
    }

    /// What a block is made of where it is not noise.
    fn text(&self, block: u64) -> Option<&Text> {
        self.text.as_ref().filter(|_| !is_noise(block))
    }

    fn key(&self, block: u64) -> u64 {
        mix(self.seed.wrapping_add(mix(block.wrapping_add(STEP))))
    }

    /// Fills `buffer` with what the file has from block `first` on. The last block may be a part.
    pub fn fill(&self, first: u64, buffer: &mut [u8]) {
        for (block, bytes) in (first..).zip(buffer.chunks_mut(BLOCK_BYTES)) {
            if bytes.len() < BLOCK_BYTES {
                // Only the last one of a file; its rest is made for nothing.
                bytes.copy_from_slice(&self.block(block)[..bytes.len()]);
                continue;
            }
            let key = self.key(block);
            if let Some(text) = self.text(block) {
                text.fill(key, &mut bytes[WORD_BYTES..]);
            } else {
                for (bytes, noise) in bytes.chunks_exact_mut(WORD_BYTES).zip(self.noise.iter()) {
                    bytes.copy_from_slice(&(noise ^ key).to_le_bytes());
                }
            }
            bytes[..WORD_BYTES].copy_from_slice(&block.to_le_bytes());
        }
    }

    /// A whole block.
    pub fn block(&self, block: u64) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        self.fill(block, &mut bytes);
        bytes
    }

    /// Whether `bytes` are a whole block of that number.
    pub fn is_block(&self, block: u64, bytes: &[u8]) -> bool {
        let Some((first, rest)) = bytes.split_first_chunk::<WORD_BYTES>() else {
            return false;
        };
        if bytes.len() != BLOCK_BYTES || u64::from_le_bytes(*first) != block {
            return false;
        }
        if self.text(block).is_some() {
            return self.block(block) == *bytes;
        }
        let key = self.key(block);
        // Or-ed together instead of ended at the first: so it is done in wide registers.
        let noise = self.noise[1..].iter().zip(rest.chunks_exact(WORD_BYTES));
        let differ = noise.fold(0, |differ, (noise, bytes)| {
            let word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            differ | (word ^ noise ^ key)
        });
        differ == 0
    }

    /// Compares what was read from block `first` on. The last block may be a part.
    ///
    /// # Errors
    /// The first block that is wrong.
    pub fn check(&self, first: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        for (block, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
            if !self.is_block(block, bytes) && self.block(block)[..bytes.len()] != *bytes {
                return Err(self.mismatch(block, bytes));
            }
        }
        Ok(())
    }

    fn mismatch(&self, block: u64, bytes: &[u8]) -> Mismatch {
        let offset_bytes = block * BLOCK_BYTES as u64;
        let claimed = bytes.first_chunk().map(|first| u64::from_le_bytes(*first));
        let right = self.block(block);
        let found = match claimed {
            _ if bytes.iter().all(|&byte| byte == 0) => Found::Zeros,
            Some(other) if other != block && self.block(other)[..bytes.len()] == *bytes => {
                Found::Block(other)
            }
            _ => {
                let differs = right.iter().zip(bytes).position(|(right, byte)| right != byte);
                Found::Other(differs.unwrap_or(bytes.len()))
            }
        };
        Mismatch { offset_bytes, found }
    }

    /// Writes the first `bytes` bytes of the content.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_to(&self, to: &mut impl io::Write, bytes: u64) -> io::Result<()> {
        pieces(bytes, |block, buffer| {
            self.fill(block, buffer);
            to.write_all(buffer)
        })
    }
}

/// Calls `each` with the number of the first block and the buffer of each piece of a file.
pub(super) fn pieces<E>(
    bytes: u64,
    mut each: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let len = buffer.len().min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
        each(offset / BLOCK_BYTES as u64, &mut buffer[..len])?;
        offset += len as u64;
    }
    Ok(())
}

/// Blocks in a row that are of one kind, 64 KiB: whole files of a mix.
const RUN_BLOCKS: u64 = 16;

/// One of this many runs does not compress, as in pictures and archives.
const RUNS_WITH_NOISE: u64 = 6;

/// Whether a block does not compress.
fn is_noise(block: u64) -> bool {
    (block / RUN_BLOCKS) % RUNS_WITH_NOISE == RUNS_WITH_NOISE - 1
}

/// Words of the vocabulary; the fewer, the better it compresses.
const WORDS: usize = 512;

/// Letters of a word, with the blank behind it.
const LONGEST: usize = 12;

/// The vocabulary of a content.
#[derive(Clone)]
struct Text(Vec<Word>);

/// A word and a blank.
#[derive(Clone, Copy)]
struct Word {
    letters: [u8; LONGEST],
    len: usize,
}

impl Text {
    fn new(seed: u64) -> Text {
        let mut random = Random(mix(seed ^ !STEP));
        Text((0..WORDS).map(|_| word(random.next())).collect())
    }

    /// Fills a block with the text that belongs to a key.
    fn fill(&self, key: u64, bytes: &mut [u8]) {
        let (mut filled, mut random) = (0, Random(key));
        while filled < bytes.len() {
            let number = random.next();
            // The product of two numbers: some words are far more frequent than others.
            let product = ((number & u64::from(u32::MAX)) * (number >> 32)) >> 32;
            let Word { letters, len } = &self.0[((product * WORDS as u64) >> 32) as usize];
            let rest = &mut bytes[filled..];
            // The same number of bytes for all words, which is fast; the next word is put over what
            // is too much.
            match rest.first_chunk_mut() {
                Some(first) => *first = *letters,
                None => rest.copy_from_slice(&letters[..rest.len()]),
            }
            filled += len;
        }
    }
}

/// A word of two to eleven letters.
fn word(mut random: u64) -> Word {
    let len = 3 + (random % (LONGEST as u64 - 2)) as usize;
    let mut letters = [b' '; LONGEST];
    for letter in &mut letters[..len - 1] {
        random = mix(random.wrapping_add(STEP));
        *letter = b'a' + (random % 26) as u8;
    }
    Word { letters, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    /// Contents of both kinds.
    const SEEDS: [u64; 2] = [SEED, compressible(SEED)];

    fn blocks_of(seed: u64, first: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count * BLOCK_BYTES];
        Content::new(seed).fill(first, &mut bytes);
        bytes
    }

    fn blocks(first: u64, count: usize) -> Vec<u8> {
        blocks_of(SEED, first, count)
    }

    fn found_in(seed: u64, first: u64, bytes: &[u8]) -> Option<Mismatch> {
        Content::new(seed).check(first, bytes).err()
    }

    fn found(first: u64, bytes: &[u8]) -> Option<Mismatch> {
        found_in(SEED, first, bytes)
    }

    #[test]
    fn right_content_passes_also_when_its_last_block_is_a_part() {
        for seed in SEEDS {
            let bytes = blocks_of(seed, 5, 3);
            for len in [0, 1, 7, 8, 9, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, bytes.len()] {
                assert_eq!(found_in(seed, 5, &bytes[..len]), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn every_flipped_byte_is_found_where_it_is() {
        for seed in SEEDS {
            let right = blocks_of(seed, 0, 2);
            let content = Content::new(seed);
            for index in 0..2 * BLOCK_BYTES {
                let mut bytes = right.clone();
                bytes[index] ^= 0x10;
                let mismatch = content.check(0, &bytes).expect_err("a flipped byte was not found");
                let block = index / BLOCK_BYTES;
                assert_eq!(mismatch.offset_bytes, (block * BLOCK_BYTES) as u64);
                assert_eq!(mismatch.found, Found::Other(index % BLOCK_BYTES));
            }
        }
    }

    /// Bytes that zlib, in the format of gzip, makes of these.
    fn compressed(bytes: &[u8]) -> usize {
        use std::io::{Seek, Write};
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        let mut gzip = std::process::Command::new("gzip");
        gzip.args(["-6", "-c"]).stdin(file).output().unwrap().stdout.len()
    }

    #[test]
    fn one_content_compresses_as_a_mix_of_texts_and_programs_and_the_other_does_not() {
        let noise = blocks_of(SEED, 0, 1024);
        assert!(compressed(&noise) > noise.len() * 99 / 100);
        let text = blocks_of(compressible(SEED), 0, 1024);
        let ratio = text.len() as f64 / compressed(&text) as f64;
        assert!((2.0..3.0).contains(&ratio), "zlib makes it {ratio} times smaller");
    }

    #[test]
    fn zeros_and_swapped_blocks_are_named() {
        let mut bytes = blocks(10, 4);
        bytes[BLOCK_BYTES..2 * BLOCK_BYTES].fill(0);
        let mismatch = found(10, &bytes).expect("zeros were not found");
        assert_eq!(mismatch.to_string(), format!("zeros at offset {}", 11 * BLOCK_BYTES));

        let (mut left, right) = (blocks(1, 1), blocks(2, 1));
        left.splice(0..0, right);
        let mismatch = found(1, &left).expect("swapped blocks were not found");
        assert_eq!(mismatch.found, Found::Block(2));
        assert_eq!(mismatch.to_string(), "at offset 4096 are the data of offset 8192");
    }

    #[test]
    fn content_of_another_seed_is_wrong_in_every_block() {
        for seed in [SEED + 1, compressible(SEED), compressible(SEED + 1)] {
            let other = Content::new(seed);
            for (block, own) in (0..100).flat_map(|block| SEEDS.map(|own| (block, own))) {
                assert!(own == seed || !other.is_block(block, &blocks_of(own, block, 1)));
            }
        }
    }

    #[test]
    fn no_string_of_eight_bytes_comes_twice() {
        let bytes = blocks(0, 64);
        let mut words: Vec<&[u8]> = bytes.windows(WORD_BYTES).step_by(3).collect();
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        // Block numbers are mostly zeros, and so windows over them may be equal.
        assert!(all - words.len() < 64 * 4, "{} of {all} come again", all - words.len());
    }

    #[test]
    fn marks_tell_blocks_apart() {
        let mut marks: Vec<u64> = (0..1000).map(|block| mark(&blocks(block, 1))).collect();
        marks.extend((1..=BLOCK_BYTES).map(|len| mark(&vec![0; len])));
        for index in 0..BLOCK_BYTES {
            let mut bytes = blocks(0, 1);
            bytes[index] ^= 1;
            marks.push(mark(&bytes));
        }
        let all = marks.len();
        marks.sort_unstable();
        marks.dedup();
        assert_eq!(marks.len(), all);
    }

    #[test]
    fn written_content_is_filled_content() {
        let mut written = Vec::new();
        let bytes = 70 * BLOCK_BYTES + 13;
        for seed in SEEDS {
            written.clear();
            Content::new(seed).write_to(&mut written, bytes as u64).unwrap();
            assert_eq!(written, blocks_of(seed, 0, 71)[..bytes]);
        }
    }
}
