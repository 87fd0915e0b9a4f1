//! Text like that of sources, from a made-up vocabulary.

use super::random::Random;

/// A word that one file in fifty has, and the vocabulary has not.
pub const RARE_WORD: &str = "zyxomma";

/// Words in use. The fewer, the better it compresses.
const WORDS: usize = 1500;

/// Of what words are made.
const SYLLABLES: [&str; 40] = [
    "al", "ber", "cal", "dor", "en", "fer", "gan", "hol", "ib", "jor", "kel", "lin", "mar", "nod",
    "or", "pel", "qua", "ret", "sin", "tor", "ul", "ven", "wid", "yar", "ze", "buf", "ctl", "dev",
    "ent", "fun", "get", "hash", "init", "key", "len", "map", "ptr", "set", "tab", "val",
];

/// Between words, as in sources; most are spaces.
const MARKS: [&str; 16] =
    [" ", " ", " ", " ", " ", " ", "(", ")", ", ", "; ", " = ", "->", "_", " * ", " {", " == "];

/// Writes texts, one after the other.
pub(super) struct Prose {
    random: Random,
    words: Vec<String>,
}

impl Prose {
    pub(super) fn new(mut random: Random) -> Prose {
        let words = (0..WORDS).map(|_| word(&mut random)).collect();
        Prose { random, words }
    }

    /// A text of so many bytes, with the rare word in a line of its own if there is room.
    pub(super) fn text(&mut self, bytes: usize, rare: bool) -> String {
        let mut text = String::with_capacity(bytes + 200);
        if rare && bytes > 2 * RARE_WORD.len() {
            text.push_str(RARE_WORD);
            text.push('\n');
        }
        let mut lines = vec![self.line()];
        while text.len() < bytes {
            // Sources say many things more than once.
            let mut next = self.random.below(lines.len());
            if self.random.below(3) > 0 {
                next = lines.len();
                lines.push(self.line());
            }
            text.push_str(&lines[next]);
        }
        text.truncate(bytes);
        text
    }

    fn line(&mut self) -> String {
        let mut line = "\t".repeat(self.random.below(4));
        for _ in 0..self.random.below(8) {
            let index = self.common_index();
            line.push_str(&self.words[index]);
            line.push_str(MARKS[self.random.below(MARKS.len())]);
        }
        line.push('\n');
        line
    }

    /// Some words are far more frequent than others, as in any text.
    fn common_index(&mut self) -> usize {
        let mut bound = self.words.len();
        for _ in 0..2 {
            bound = 1 + self.random.below(bound);
        }
        self.random.below(bound)
    }
}

/// A word of one to three syllables.
fn word(random: &mut Random) -> String {
    let count = 1 + random.below(3);
    (0..count).map(|_| SYLLABLES[random.below(SYLLABLES.len())]).collect()
}

/// The name of a file or directory, without what comes after the dot.
pub(super) fn name(random: &mut Random) -> String {
    let count = 1 + random.below(2);
    let words: Vec<String> = (0..count).map(|_| word(random)).collect();
    let mark = ["_", "-"][random.below(2)];
    words.join(mark)
}
