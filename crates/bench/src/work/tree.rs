//! `tree`: what one does with a tree of sources: list it, search it, copy it, remove it.
//!
//! It is the made tree of [`crate::corpus::tree`], or the user's own. What the programs say of it
//! through a mount is compared with what they say of the original, and what was copied with the
//! original itself.

mod copy;
pub(super) mod expected;
pub(super) mod look;

use std::fs;
use std::path::{Path, PathBuf};

use crate::corpus;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::{ERRAND_LIMIT, Place};
use crate::results::LeftOut;
use crate::size::{Scale, Size};

use super::script::{check_installed, program, script};
use super::{Step, Work};
use copy::{Copy, Way};
use expected::Expected;
use look::{Look, Question};

/// The work.
pub struct Tree;

/// The same tree in every run, so that runs can be compared.
pub(super) const SEED: u64 = 1;

/// Mean size of a made file, with what its inode and the rest of its last block take.
pub(super) const BYTES_PER_FILE: u64 = 17 << 10;

/// Where the tree is, in the corpus and in a place.
const SOURCE: &str = "tree/source";

/// The same as an archive, in the corpus.
const ARCHIVE: &str = "tree/source.tar";

/// What a copy of it has to be, in the corpus.
const EXPECTED: &str = "tree/expected.json";

/// A tree of small files is where a slow subject is slowest.
pub(super) const DEADLINE_FACTOR: f64 = 3.0;

impl Work for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn about(&self) -> &'static str {
        "A tree of sources listed, searched, archived, copied out and in, unpacked and removed"
    }

    fn check(&self) -> Result<(), LeftOut> {
        check_installed("tree", &[("rsync", "rsync"), ("tar", "tar"), ("find", "findutils")])
    }

    fn lacks(&self, size: &Size) -> Vec<LeftOut> {
        match &size.tree_source {
            Some(source) if !source.is_dir() => vec![LeftOut {
                name: "tree".to_owned(),
                why: format!("{} is not a directory", printable(source)),
                remedy: Some("name the directory of a tree of sources".to_owned()),
            }],
            _ => Vec::new(),
        }
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let tree = match &size.tree_source {
            Some(source) => corpus::tree::bytes_below(source),
            None => u64::from(size.tree_files) * BYTES_PER_FILE,
        };
        // There: the tree and what is copied in. Here: the tree, its archive, what is copied out.
        (2 * tree, 3 * tree)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<(), Failure> {
        let source = corpus.join(SOURCE);
        match &size.tree_source {
            None => corpus::tree::make(&source, size.tree_files, SEED)?,
            Some(own) => {
                fs::create_dir_all(&source)?;
                let mut copy = program("cp");
                copy.arg("-a").arg("--").arg(own.join(".")).arg(&source);
                executor.succeed(copy, ERRAND_LIMIT)?;
            }
        }
        Expected::of(&source)?.save(&corpus.join(EXPECTED))?;
        let archive = script(r#"tar -C "$1" -cf "$2" ."#, &[source, corpus.join(ARCHIVE)]);
        executor.succeed(archive, ERRAND_LIMIT)?;
        Ok(())
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        place.put(&corpus.join(SOURCE), Path::new(SOURCE))
    }

    fn steps(&self, size: &Size) -> Vec<Box<dyn Step>> {
        if !self.lacks(size).is_empty() {
            return Vec::new();
        }
        let word = match size.tree_source {
            None => corpus::tree::RARE_WORD,
            Some(_) => "TODO",
        };
        let look = |question, cache| Box::new(Look { question, cache, word }) as Box<dyn Step>;
        let copy = |way| Box::new(Copy { way }) as Box<dyn Step>;
        let (cold, hot) = (Cache::Cold, Cache::Hot);
        let mut steps = vec![
            look(Question::Find, cold),
            look(Question::List, cold),
            look(Question::List, hot),
            look(Question::Archive, cold),
            look(Question::Archive, hot),
            look(Question::Search, cold),
            copy(Way::Out),
            copy(Way::In),
            copy(Way::Unpack),
            copy(Way::Remove),
        ];
        if size.scale != Scale::Quick {
            steps.insert(1, look(Question::FindSize, cold));
            steps.insert(2, look(Question::Usage, cold));
            steps.insert(8, look(Question::Search, hot));
            steps.insert(11, copy(Way::CopyIn));
        }
        steps
    }
}

/// A measure of this work.
fn measure(step: &str, title: &str, cache: Cache) -> Measure {
    let state = match cache {
        Cache::Cold => ".cold",
        Cache::Hot => ".hot",
        Cache::Direct | Cache::None => "",
    };
    Measure {
        id: format!("tree.{step}{state}"),
        title: title.to_owned(),
        unit: Unit::Seconds,
        cache,
    }
}

fn printable(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

/// The tree where a mount shows it.
fn shown(dir: &Path) -> PathBuf {
    dir.join(SOURCE)
}

#[cfg(test)]
mod tests;
