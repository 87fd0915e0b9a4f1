//! `cache`: what is read through a mount, and read again when it is mounted anew.
//!
//! A subject that keeps what it has read on the disk reads it from there the second time: `local`
//! is what it can come near to, and the same subject without a cache shows what keeping costs the
//! first reader. A session's cache begins empty, and stays while the subject is mounted anew; what
//! it has on the disk is dropped from memory then, as the files of `local` are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::corpus;
use crate::corpus::tree::bytes_per_file;
use crate::executor::{Executor, find_program};
use crate::failure::{Failure, Result};
use crate::measure::{Cache as State, Unit};
use crate::results::{LeftOut, Measured};
use crate::size::{Size, TreeShape};
use crate::step::StepContext;
use crate::storage::SCRIPT_LIMIT;
use crate::worker::{Check, Job, Transfer, Until};

use super::copy::make_trees;
use super::copying::Expected;
use super::generator::{aside, shown, timed};
use super::tree::DEADLINE_FACTOR;
use super::tree::look::{archive, check_contents};
use super::{DIRECTORY, Step, Workload, check_installed, keeps_a_disk_cache, measure, script};

/// The workload.
pub struct Cache;

/// The tree, in the corpus and in a storage.
const FIRST: &str = "cache/first";

/// The same with one file in a hundred changed: another revision.
const SECOND: &str = "cache/second";

/// The large file.
const LARGE: &str = "cache/large";

/// What it has in it.
const LARGE_SEED: u64 = 0x50;

/// Where the digests of the files of the first tree are, one behind the other.
const DIGESTS: &str = "cache/digests";

/// Prints the digests of all files below `$1`, as the attribute has them, in the order of names.
const DIGEST_SCRIPT: &str = r#"cd -- "$1" && find . -type f -print0 | sort -z |
xargs -0 sha256sum -- | cut -c 1-64 | tr -d '\n'"#;

impl Workload for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn about(&self) -> &'static str {
        "A tree and a large file read, and read again when mounted anew; another revision; digests"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("tar", "tar"), ("find", "findutils")]
    }

    fn lacks(&self, _size: &Size) -> Vec<LeftOut> {
        check_installed("cache.digests", &[("getfattr", "attr")]).err().into_iter().collect()
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let trees = 2 * u64::from(size.tree_files) * bytes_per_file(TreeShape::Sources);
        let all = trees + size.file_bytes;
        // Here: what is laid out, and what a subject keeps of it.
        (all, 2 * all)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<()> {
        make_trees(FIRST, SECOND, size, corpus, executor)?;
        let digests =
            executor.succeed(script(DIGEST_SCRIPT, &[corpus.join(FIRST)]), SCRIPT_LIMIT)?;
        fs::write(corpus.join(DIGESTS), digests.output.stdout)?;
        corpus::file(corpus, LARGE, size.file_bytes, LARGE_SEED).map(drop)
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        [FIRST, SECOND, LARGE].map(PathBuf::from).into()
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        let file_bytes = size.file_bytes;
        let seconds =
            |id: &str, title: &str, cache| measure("cache", id, title, Unit::Seconds, cache);
        let tree = |id, title: &str, cache, tree| {
            let title = format!("{title}, tar cf - | wc -c");
            let step = Step::new(seconds(id, &title, cache), DIRECTORY, move |context| {
                read_tree(context, tree)
            });
            let step = step.with_deadline(DEADLINE_FACTOR);
            if id == "first" { step } else { step.with_disk_cache() }
        };
        let large = |id, title, reads| {
            let unit = match reads {
                Reads::Random => Unit::PerSecond,
                Reads::First | Reads::Remounted => Unit::BytesPerSecond,
            };
            let measure = measure("cache", id, title, unit, State::Cold);
            let step = Step::new(measure, DIRECTORY, move |context| read_large(context, reads));
            match reads {
                // It is read twice.
                Reads::First => step.over(2 * file_bytes),
                Reads::Remounted => step.over(file_bytes).with_disk_cache(),
                Reads::Random => step.with_disk_cache(),
            }
        };
        let stat = seconds("stat", "stat of each file of the tree", State::Hot);
        let mut steps = vec![
            tree("first", "tree read for the first time", State::Cold, FIRST),
            tree("remounted", "tree read again, mounted anew", State::Cold, FIRST),
            tree("again", "tree read once more", State::Hot, FIRST),
            Step::new(stat, DIRECTORY, stat_files),
            tree("revision", "tree with 1 % changed read, mounted anew", State::Cold, SECOND),
            large(
                "large.first",
                "large file read for the first time, 128 KiB records",
                Reads::First,
            ),
            large(
                "large.remounted",
                "large file read again, mounted anew, 128 KiB records",
                Reads::Remounted,
            ),
            large(
                "large.random",
                "large file, mounted anew, 4 KiB at random places",
                Reads::Random,
            ),
        ];
        if find_program("getfattr").is_some() {
            let title = "digest of each file of the tree, getfattr -n user.sha256";
            let step = Step::new(seconds("digests", title, State::Hot), DIRECTORY, read_digests);
            // No other subject has them.
            steps.insert(4, step.only_for(keeps_a_disk_cache));
        }
        steps
    }
}

/// Reads a tree as an archive.
fn read_tree(context: &mut StepContext<'_>, name: &str) -> Result<Measured> {
    let tree = context.directory()?.join(name);
    let expected = Expected::load(context.corpus, name)?;
    let (_, measured) = context.timed(archive(&tree))?;
    check_contents(context, &tree, &context.corpus.join(name))?;
    Ok(expected.fill(measured))
}

/// Each file below `$1`, in the order of names.
const STAT_SCRIPT: &str = r#"cd -- "$1" && find . -type f -print0 | sort -z |
xargs -0 stat -c %s -- | wc -l"#;

/// `stat` of each file, to compare [`read_digests`] with.
fn stat_files(context: &mut StepContext<'_>) -> Result<Measured> {
    let tree = context.directory()?.join(FIRST);
    let files = Expected::load(context.corpus, FIRST)?.0.files;
    let (output, measured) = context.timed(script(STAT_SCRIPT, &[&tree]))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.trim().parse() != Ok(files) {
        return Err(Failure::wrong(format!("stat found {text:?} of {files} files")));
    }
    Ok(Measured { operations: files, verified: true, ..measured })
}

/// The digests of all files, one behind the other.
const ATTRIBUTE_SCRIPT: &str = r#"cd -- "$1" && find . -type f -print0 | sort -z |
xargs -0 getfattr --only-values -n user.sha256 --"#;

/// Digits of a SHA-256.
const DIGITS: u64 = 64;

/// The digest of each file by its extended attribute.
fn read_digests(context: &mut StepContext<'_>) -> Result<Measured> {
    let tree = context.directory()?.join(FIRST);
    // Digests are made in idle time, or by the first request.
    context.aside(script(ATTRIBUTE_SCRIPT, &[&tree]))?;
    let (output, measured) = context.timed(script(ATTRIBUTE_SCRIPT, &[&tree]))?;
    let expected = fs::read(context.corpus.join(DIGESTS))?;
    let found = output.stdout.trim_ascii();
    if found.len() < expected.len() {
        return Err(Failure::failed("some files have no digest"));
    }
    if found != expected {
        return Err(Failure::wrong("a file has the digest of other contents"));
    }
    let operations = expected.len() as u64 / DIGITS;
    Ok(Measured { operations, verified: true, ..measured })
}

/// How the large file is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    First,
    Remounted,
    Random,
}

/// Bytes of a sequential read.
const SEQUENTIAL_BYTES: u32 = 128 << 10;

/// Random reads at most.
const RANDOM_READS: u64 = 20_000;

fn read_large(context: &mut StepContext<'_>, reads: Reads) -> Result<Measured> {
    let size = context.size;
    let (target, bytes) = (shown(context, Path::new(LARGE))?, size.file_bytes);
    let until = Until::Within { operations: RANDOM_READS, seconds: size.random_seconds };
    let transfer = match reads {
        Reads::Random => Transfer::at_random(target, bytes, context.seed, until),
        Reads::First | Reads::Remounted => Transfer::pass(target, bytes, SEQUENTIAL_BYTES),
    };
    let job = Job::Read { transfer, check: Check::Content { seed: LARGE_SEED } };
    let measured = timed(context, &job)?;
    if reads == Reads::First {
        // Data that the cache's disk was too slow for are fetched by the next reader.
        aside(context, &job)?;
    }
    Ok(measured)
}

#[cfg(test)]
mod tests;
