//! Which directories and files a made tree has.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::contents::name;
use super::random::Random;

/// A tree before it is written. Directories stand before what is in them.
pub(super) struct Plan {
    pub(super) directories: Vec<PathBuf>,
    pub(super) files: Vec<PlannedFile>,
}

pub(super) struct PlannedFile {
    pub(super) path: PathBuf,
    pub(super) bytes: usize,
    pub(super) executable: bool,
}

/// Files for each directory, on the average. Kernel sources have 16, those of a library 8.
const FILES_PER_DIRECTORY: usize = 12;

/// Directories below each other.
const DEPTH: usize = 7;

/// What comes after the dot, how many in a hundred have it, and whether those may be executed.
const SUFFIXES: [(&str, usize, bool); 6] = [
    ("c", 48, false),
    ("h", 34, false),
    ("txt", 6, false),
    ("S", 3, false),
    ("mk", 4, false),
    ("sh", 5, true),
];

/// Sizes below which so many of a thousand files are; between two of them, evenly spread.
const SIZES: [(usize, usize); 11] = [
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

pub(super) fn plan(files: u32, random: &mut Random) -> Plan {
    let files = files as usize;
    let mut taken = HashSet::new();
    let directories = directories(files / FILES_PER_DIRECTORY, &mut taken, random);
    let files = sizes(files, random)
        .into_iter()
        .map(|bytes| file(bytes, &directories, &mut taken, random))
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
    directories: &[PathBuf],
    taken: &mut HashSet<PathBuf>,
    random: &mut Random,
) -> PlannedFile {
    let (suffix, executable) = suffix(random.below(100));
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

fn suffix(mut hundredth: usize) -> (&'static str, bool) {
    for (suffix, share, executable) in SUFFIXES {
        if hundredth < share {
            return (suffix, executable);
        }
        hundredth -= share;
    }
    unreachable!("the shares add up to a hundred")
}

/// As many sizes, one from each of as many equal parts of the distribution, in any order: so the
/// sum is nearly the same for every seed, also of a small tree.
fn sizes(files: usize, random: &mut Random) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..files)
        .map(|part| size_at((part * STEPS + random.below(STEPS)) * 1_000 / files, STEPS))
        .collect();
    random.shuffle(&mut sizes);
    sizes
}

/// How finely a part of the distribution is divided.
const STEPS: usize = 1_000;

/// The size at `place` of `1000 * steps`.
fn size_at(place: usize, steps: usize) -> usize {
    let upper =
        SIZES.iter().position(|&(share, _)| share * steps > place).unwrap_or(SIZES.len() - 1);
    let ((from, low), (to, high)) = (SIZES[upper - 1], SIZES[upper]);
    low + (high - low) * (place - from * steps) / ((to - from) * steps)
}
