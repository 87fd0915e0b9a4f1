//! `cache`: what is read through a mount, and read again when it is mounted anew.
//!
//! A subject that keeps what it has read on the disk reads it from there the second time: `local`
//! is what it can come near to, and the same subject without a cache shows what keeping costs the
//! first reader. A session's cache begins empty, and what it has on the disk is dropped from memory
//! before each cold step, as the files of `local` are.

mod large;
mod trees;

use std::fs;
use std::path::Path;

use crate::corpus;
use crate::executor::{Executor, find_program};
use crate::failure::Failure;
use crate::measure::{Cache as State, Measure, Unit};
use crate::place::{ERRAND_LIMIT, Place};
use crate::results::LeftOut;
use crate::size::Size;

use super::copy::change;
use super::script::{check_installed, program, script};
use super::tree::expected::Expected;
use super::tree::{BYTES_PER_FILE, SEED};
use super::{Step, Work};
use large::Large;
use trees::{Digests, Read, Stat};

/// The work.
pub struct Cache;

/// The tree, in the corpus and in a place.
const FIRST: &str = "cache/first";

/// The same with one file in a hundred changed: another revision.
const SECOND: &str = "cache/second";

/// The large file.
const LARGE: &str = "cache/large";

/// What it has in it.
const LARGE_SEED: u64 = 0x50;

/// Where it is told what a tree is.
fn expected(tree: &str) -> String {
    format!("{tree}.json")
}

/// Where the digests of the files of the first tree are, one behind the other.
const DIGESTS: &str = "cache/digests";

/// Prints the digests of all files below `$1`, as the attribute has them, in the order of names.
const DIGEST_SCRIPT: &str = r#"cd -- "$1" && find . -type f -print0 | sort -z |
xargs -0 sha256sum -- | cut -c 1-64 | tr -d '\n'"#;

impl Work for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn about(&self) -> &'static str {
        "A tree and a large file read, and read again when mounted anew; another revision; digests"
    }

    fn check(&self) -> Result<(), LeftOut> {
        check_installed("cache", &[("tar", "tar"), ("find", "findutils")])
    }

    fn lacks(&self, _size: &Size) -> Vec<LeftOut> {
        check_installed("cache.digests", &[("getfattr", "attr")]).err().into_iter().collect()
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let trees = 2 * u64::from(size.tree_files) * BYTES_PER_FILE;
        let all = trees + size.random_file_bytes;
        // Here: what is laid out, and what a subject keeps of it.
        (all, 2 * all)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<(), Failure> {
        let (first, second) = (corpus.join(FIRST), corpus.join(SECOND));
        corpus::tree::make(&first, size.tree_files, SEED)?;
        let mut copy = program("cp");
        copy.arg("-a").arg("--").arg(&first).arg(&second);
        executor.succeed(copy, ERRAND_LIMIT)?;
        change(&second)?;
        for tree in [FIRST, SECOND] {
            Expected::of(&corpus.join(tree))?.save(&corpus.join(expected(tree)))?;
        }
        let digests = executor.succeed(script(DIGEST_SCRIPT, &[first]), ERRAND_LIMIT)?;
        fs::write(corpus.join(DIGESTS), digests.output.stdout)?;
        corpus::file(corpus, LARGE, size.random_file_bytes, LARGE_SEED).map(drop)
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        for path in [FIRST, SECOND, LARGE].map(Path::new) {
            place.put(&corpus.join(path), path)?;
        }
        place.warm(Path::new(LARGE))
    }

    fn steps(&self, _size: &Size) -> Vec<Box<dyn Step>> {
        let mut steps: Vec<Box<dyn Step>> = vec![
            Box::new(Read::First),
            Box::new(Read::Remounted),
            Box::new(Read::Again),
            Box::new(Stat),
            Box::new(Read::Revision),
            Box::new(Large::First),
            Box::new(Large::Remounted),
            Box::new(Large::Random),
        ];
        if find_program("getfattr").is_some() {
            steps.insert(4, Box::new(Digests));
        }
        steps
    }
}

/// A measure of this work.
fn measure(id: &str, title: &str, unit: Unit, cache: State) -> Measure {
    Measure { id: format!("cache.{id}"), title: title.to_owned(), unit, cache }
}

#[cfg(test)]
mod tests;
