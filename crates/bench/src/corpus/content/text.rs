//! Blocks that compress: words of a vocabulary in a pseudo-random order.

use super::{STEP, mix};

/// Blocks in a row that are of one kind, 64 KiB: whole files of a mix.
const RUN_BLOCKS: u64 = 16;

/// One of this many runs does not compress, as in pictures and archives.
const RUNS_WITH_NOISE: u64 = 6;

/// Whether a block does not compress.
pub(super) fn is_noise(block: u64) -> bool {
    (block / RUN_BLOCKS) % RUNS_WITH_NOISE == RUNS_WITH_NOISE - 1
}

/// Words of the vocabulary; the fewer, the better it compresses.
const WORDS: usize = 512;

/// Letters of a word, with the blank behind it.
const LONGEST: usize = 12;

/// The vocabulary of a content.
#[derive(Clone)]
pub(super) struct Text(Vec<Word>);

/// A word and a blank.
#[derive(Clone, Copy)]
struct Word {
    letters: [u8; LONGEST],
    len: usize,
}

impl Text {
    pub(super) fn new(seed: u64) -> Text {
        let mut state = mix(seed ^ !STEP);
        let words = (0..WORDS).map(|_| {
            state = state.wrapping_add(STEP);
            word(mix(state))
        });
        Text(words.collect())
    }

    /// Fills a block with the text that belongs to a key.
    pub(super) fn fill(&self, key: u64, bytes: &mut [u8]) {
        let (mut filled, mut state) = (0, key);
        while filled < bytes.len() {
            state = state.wrapping_add(STEP);
            let random = mix(state);
            // The product of two numbers: some words are far more frequent than others.
            let product = ((random & u64::from(u32::MAX)) * (random >> 32)) >> 32;
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
