//! A generated tree of files like the sources of a program, and digests of trees.
//!
//! The made tree: directories up to seven deep, files whose sizes have a median of 4 KiB, a mean
//! of about 12 KiB and a tail to 300 KiB, text that `gzip` makes four times smaller, scripts that
//! may be executed. The same count and seed give the same tree on every machine. There are no
//! links in it: what is measured is speed, and some subjects cannot do with links what the
//! workloads ask of a tree (Debian's sshfs refuses to read one with `..` and cannot set its times,
//! `rclone mount` has none, `sftp -r` leaves them out).
//!
//! The other shape, [`TreeShape::Media`], has the same directories, and files with a mean of 600 KB
//! and a tail to 12 MB that do not compress.
//!
//! The digest of a tree is the SHA-256 of its listing: a line for each file and directory below
//! it, sorted bytewise by path. Permissions, owners and times are not part of it: not every
//! program that copies keeps them.

mod listing;

use std::collections::HashSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::content::{Content, Random, mix};
use super::last_changed;
use crate::size::TreeShape;

pub(crate) use listing::at;
pub use listing::{Listing, Tally, bytes_below, files, survey};

/// Makes `dir` with a tree of `files` files.
///
/// # Errors
/// Those of the file system; an existing name is an error.
pub fn make(dir: &Path, files: u32, shape: TreeShape, seed: u64) -> io::Result<()> {
    let plan = plan(files, shape, &mut Random(seed));
    fs::create_dir_all(dir)?;
    for directory in &plan.directories {
        fs::create_dir(dir.join(directory))?;
    }
    let mut prose = Prose::new(Random(seed ^ 0x7465_7874));
    for (index, file) in plan.files.iter().enumerate() {
        let contents = match shape {
            TreeShape::Sources => prose.text(file.bytes, index % RARE_EVERY == 0).into_bytes(),
            TreeShape::Media => noise(mix(seed ^ mix(index as u64)), file.bytes),
        };
        write_new(&dir.join(&file.path), file.executable, &contents)?;
    }
    Ok(())
}

/// Bytes that a file of such a tree takes on the average, with what its inode and the rest of its
/// last block take.
pub fn bytes_per_file(shape: TreeShape) -> u64 {
    match shape {
        TreeShape::Sources => 17 << 10,
        TreeShape::Media => 605_000,
    }
}

/// Contents that do not compress.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut contents = vec![0; bytes];
    // The highest bit is that of contents that compress.
    Content::new(seed >> 1).fill(0, &mut contents);
    contents
}

/// One file of this number contains [`RARE_WORD`], once.
const RARE_EVERY: usize = 50;

/// The mode is set apart, so that the caller's umask does not matter.
fn write_new(path: &Path, executable: bool, contents: &[u8]) -> io::Result<()> {
    let mode = if executable { 0o755 } else { 0o644 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(contents)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.set_modified(last_changed())
}

impl Random {
    /// Less than `bound`, which is not 0; the bias of a bound far below 2^64 does not matter here.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// One of them; there is at least one.
    fn one_of<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.below(these.len())]
    }

    /// In another order.
    fn shuffle<T>(&mut self, these: &mut [T]) {
        for last in (1..these.len()).rev() {
            these.swap(last, self.below(last + 1));
        }
    }
}

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
struct Prose {
    random: Random,
    words: Vec<String>,
}

impl Prose {
    fn new(mut random: Random) -> Prose {
        let words = (0..WORDS).map(|_| word(&mut random)).collect();
        Prose { random, words }
    }

    /// A text of `bytes` bytes, with the rare word in a line of its own if there is room.
    fn text(&mut self, bytes: usize, rare: bool) -> String {
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
fn name(random: &mut Random) -> String {
    let count = 1 + random.below(2);
    let words: Vec<String> = (0..count).map(|_| word(random)).collect();
    let mark = ["_", "-"][random.below(2)];
    words.join(mark)
}

/// A tree before it is written. Directories stand before what is in them.
struct Plan {
    directories: Vec<PathBuf>,
    files: Vec<PlannedFile>,
}

struct PlannedFile {
    path: PathBuf,
    bytes: usize,
    executable: bool,
}

/// Files for each directory, on the average. Kernel sources have 16, those of a library 8.
const FILES_PER_DIRECTORY: usize = 12;

/// Directories below each other.
const DEPTH: usize = 7;

/// What comes after the dot, how many in a hundred have it, and whether those may be executed.
type Suffix = (&'static str, usize, bool);

/// Of sources.
const SUFFIXES: [Suffix; 6] = [
    ("c", 48, false),
    ("h", 34, false),
    ("txt", 6, false),
    ("S", 3, false),
    ("mk", 4, false),
    ("sh", 5, true),
];

/// Of media.
const MEDIA_SUFFIXES: [Suffix; 4] =
    [("png", 50, false), ("ogg", 30, false), ("dat", 15, false), ("so", 5, true)];

/// Parts in a thousand of the files, and the size below which they are; linear in between.
type Share = (usize, usize);

/// Of sources.
const SIZES: [Share; 11] = [
    (0, 40),
    (50, 300),
    (100, 600),
    (250, 1_500),
    (500, 4_096),
    (750, 10_500),
    (900, 26_000),
    (950, 45_000),
    (990, 120_000),
    (999, 250_000),
    (1_000, 300_000),
];

/// Of media. Their mean is 600 KB.
const MEDIA_SIZES: [Share; 9] = [
    (0, 1_000),
    (100, 4_000),
    (250, 20_000),
    (500, 100_000),
    (750, 420_000),
    (900, 1_400_000),
    (970, 4_000_000),
    (995, 7_500_000),
    (1_000, 12_000_000),
];

fn plan(files: u32, shape: TreeShape, random: &mut Random) -> Plan {
    let (shares, suffixes): (&[Share], &[Suffix]) = match shape {
        TreeShape::Sources => (&SIZES, &SUFFIXES),
        TreeShape::Media => (&MEDIA_SIZES, &MEDIA_SUFFIXES),
    };
    let files = files as usize;
    let mut taken = HashSet::new();
    let directories = directories(files / FILES_PER_DIRECTORY, &mut taken, random);
    let files = sizes(files, shares, random)
        .into_iter()
        .map(|bytes| file(bytes, suffixes, &directories, &mut taken, random))
        .collect();
    Plan { directories, files }
}

fn directories(count: usize, taken: &mut HashSet<PathBuf>, random: &mut Random) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::with_capacity(count);
    while directories.len() < count {
        // One in six is at the top; any other is in one that is there.
        let parent = match directories.is_empty() || random.below(6) == 0 {
            true => PathBuf::new(),
            false => random.one_of(&directories).clone(),
        };
        if parent.components().count() < DEPTH {
            directories.push(fresh(&parent, "", taken, random));
        }
    }
    directories
}

fn file(
    bytes: usize,
    suffixes: &[Suffix],
    directories: &[PathBuf],
    taken: &mut HashSet<PathBuf>,
    random: &mut Random,
) -> PlannedFile {
    let (suffix, executable) = suffix(suffixes, random.below(100));
    let path = fresh(&somewhere(directories, random), &format!(".{suffix}"), taken, random);
    PlannedFile { path, bytes, executable }
}

/// One in fifty is at the top.
fn somewhere(directories: &[PathBuf], random: &mut Random) -> PathBuf {
    match directories.is_empty() || random.below(50) == 0 {
        true => PathBuf::new(),
        false => random.one_of(directories).clone(),
    }
}

/// A path that nothing has yet.
fn fresh(
    parent: &Path,
    ending: &str,
    taken: &mut HashSet<PathBuf>,
    random: &mut Random,
) -> PathBuf {
    loop {
        let path = parent.join(name(random) + ending);
        if taken.insert(path.clone()) {
            return path;
        }
    }
}

fn suffix(suffixes: &[Suffix], mut hundredth: usize) -> (&'static str, bool) {
    for &(suffix, share, executable) in suffixes {
        if hundredth < share {
            return (suffix, executable);
        }
        hundredth -= share;
    }
    unreachable!("the shares add up to a hundred")
}

/// As many sizes, one from each of as many equal parts of the distribution, in any order: so the
/// sum is nearly the same for every seed, also of a small tree.
fn sizes(files: usize, shares: &[Share], random: &mut Random) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..files)
        .map(|part| size_at(shares, (part * STEPS + random.below(STEPS)) * 1_000 / files))
        .collect();
    random.shuffle(&mut sizes);
    sizes
}

/// How finely a part of the distribution is divided.
const STEPS: usize = 1_000;

/// The size at `place` of `1000 * STEPS`.
fn size_at(shares: &[Share], place: usize) -> usize {
    let upper =
        shares.iter().position(|&(share, _)| share * STEPS > place).unwrap_or(shares.len() - 1);
    let ((from, low), (to, high)) = (shares[upper - 1], shares[upper]);
    low + (high - low) * (place - from * STEPS) / ((to - from) * STEPS)
}

#[cfg(test)]
mod tests;
