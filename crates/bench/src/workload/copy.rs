//! `copy`: a tree of small files copied out and in, again, and again with one file in a hundred
//! changed.
//!
//! Programs that always copy everything have only the first copy, which `tree` measures too.

use std::fs::{File, FileTimes};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::corpus::tree::bytes_per_file;
use crate::corpus::{self, last_changed};
use crate::executor::Executor;
use crate::failure::Result;
use crate::measure::{Cache, Unit};
use crate::size::{Size, TreeShape};
use crate::subject::Direction;

use super::copying::{Expected, copy_local, copy_trees};
use super::tree::{DEADLINE_FACTOR, SEED, rsync};
use super::{COPY_TREES, Step, Workload, measure};

/// The workload.
pub struct Copy;

/// The tree, in the corpus and in a storage.
const SOURCE: &str = "copy/source";

/// The tree with some files changed.
const CHANGED: &str = "copy/changed";

/// One file of this number is changed.
const CHANGED_ONE_IN: usize = 100;

/// Programs that copy everything each time, or cannot copy over an existing tree, with any options.
const ALWAYS_ALL: [&str; 6] = ["scp", "hpnssh", "sftp", "ftp", "tar", "sshoal-copy:tar"];

impl Workload for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn about(&self) -> &'static str {
        "A tree copied out and in, once more, and once more with 1 % of its files changed"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("rsync", "rsync")]
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let tree = u64::from(size.tree_files) * bytes_per_file(TreeShape::Sources);
        // In the storage: both trees and the copy. Locally: both trees and the copy.
        (3 * tree, 3 * tree)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<()> {
        make_trees(SOURCE, CHANGED, size, corpus, executor)
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        vec![SOURCE.into(), CHANGED.into()]
    }

    fn steps(&self, _size: &Size) -> Vec<Step> {
        let mut steps = Vec::new();
        for (direction, way, words, cache) in [
            (Direction::Out, "out", "copied out", Cache::Cold),
            (Direction::In, "in", "copied in", Cache::None),
        ] {
            let turns: [(_, _, _, &'static [&str]); 3] = [
                ("first", "", cache, &[SOURCE]),
                ("again", " again, nothing changed", Cache::None, &[SOURCE, SOURCE]),
                ("changed", " again, 1 % changed", Cache::None, &[SOURCE, CHANGED]),
            ];
            for (turn, more, cache, sources) in turns {
                let title = format!("tree {words}{more} (a mount: rsync -a)");
                let measure =
                    measure("copy", &format!("{way}.{turn}"), &title, Unit::Seconds, cache);
                let step = Step::new(measure, COPY_TREES, move |context| {
                    let last = sources.last().copied().unwrap_or(SOURCE);
                    copy_trees(context, direction, sources, "copy/in", last, rsync)
                });
                let step = step.with_deadline(DEADLINE_FACTOR);
                steps.push(step.only_for(move |it| turn == "first" || !it.is_any_of(&ALWAYS_ALL)));
            }
        }
        steps
    }
}

/// Makes a tree and its changed copy in the corpus, with what copies of them have to be.
pub(super) fn make_trees(
    source: &str,
    changed: &str,
    size: &Size,
    corpus: &Path,
    executor: &Executor,
) -> Result<()> {
    corpus::tree::make(&corpus.join(source), size.tree_files, TreeShape::Sources, SEED)?;
    copy_local(&corpus.join(source), &corpus.join(changed), executor)?;
    change(&corpus.join(changed))?;
    Expected::save(corpus, source)?;
    Expected::save(corpus, changed)
}

/// Makes one file in [`CHANGED_ONE_IN`] longer, and a day younger.
fn change(tree: &Path) -> Result<()> {
    let time = last_changed() + Duration::from_secs(86_400);
    for path in corpus::tree::files(tree)?.iter().step_by(CHANGED_ONE_IN) {
        let mut file = File::options().append(true).open(path)?;
        file.write_all(b"changed\n")?;
        file.set_times(FileTimes::new().set_modified(time))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
