//! `copy`: a tree of small files copied out and in, again, and again with one file in a hundred
//! changed.
//!
//! The first copy is what `tree` measures of programs that copy; here it stands beside the ones that
//! follow, which are the reason for programs that compare. Those that always copy everything have
//! no part in these.

use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::corpus::tree::digest;
use crate::corpus::{self, last_changed};
use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::{ERRAND_LIMIT, Place};
use crate::results::{LeftOut, Measured, SubjectInfo};
use crate::size::Size;
use crate::step::StepContext;
use crate::subject::Access;

use super::copying::{copies_trees, fresh, pull, push, removed_after};
use super::script::{check_installed, program, script};
use super::tree::expected::Expected;
use super::tree::{BYTES_PER_FILE, DEADLINE_FACTOR, SEED};
use super::{Step, Work};

/// The work.
pub struct Copy;

/// The tree, in the corpus and in a place.
const SOURCE: &str = "copy/source";

/// The same with some files changed.
const CHANGED: &str = "copy/changed";

/// One file in so many is changed.
const CHANGED_ONE_IN: usize = 100;

/// Programs that copy everything each time, or cannot copy into what is there.
const ALWAYS_ALL: [&str; 4] = ["scp", "sftp", "ftp", "tar"];

impl Work for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn about(&self) -> &'static str {
        "A tree copied out and in, once more, and once more with 1 % of its files changed"
    }

    fn check(&self) -> Result<(), LeftOut> {
        check_installed("copy", &[("rsync", "rsync")])
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let tree = u64::from(size.tree_files) * BYTES_PER_FILE;
        // There: both trees and what is copied in. Here: both trees and what is copied out.
        (3 * tree, 3 * tree)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<(), Failure> {
        let (source, changed) = (corpus.join(SOURCE), corpus.join(CHANGED));
        corpus::tree::make(&source, size.tree_files, SEED)?;
        let mut copy = program("cp");
        copy.arg("-a").arg("--").arg(&source).arg(&changed);
        executor.succeed(copy, ERRAND_LIMIT)?;
        change(&changed)?;
        for tree in [SOURCE, CHANGED] {
            Expected::of(&corpus.join(tree))?.save(&corpus.join(expected(tree)))?;
        }
        Ok(())
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        place.put(&corpus.join(SOURCE), Path::new(SOURCE))?;
        place.put(&corpus.join(CHANGED), Path::new(CHANGED))
    }

    fn steps(&self, _size: &Size) -> Vec<Box<dyn Step>> {
        let mut steps: Vec<Box<dyn Step>> = Vec::new();
        for way in [Way::Out, Way::In] {
            for turn in [Turn::First, Turn::Again, Turn::Changed] {
                steps.push(Box::new(CopyTree { way, turn }));
            }
        }
        steps
    }
}

/// Where it is told what a copy of a tree has to be.
fn expected(tree: &str) -> String {
    format!("{tree}.json")
}

/// Changes one file in [`CHANGED_ONE_IN`]: it gets longer, and younger by a day.
pub(super) fn change(tree: &Path) -> Result<(), Failure> {
    let mut files = Vec::new();
    let mut todo = vec![tree.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    let time = last_changed() + Duration::from_secs(86_400);
    for path in files.iter().step_by(CHANGED_ONE_IN) {
        let mut file = File::options().append(true).open(path)?;
        file.write_all(b"changed\n")?;
        file.set_times(FileTimes::new().set_modified(time))?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Again,
    Changed,
}

/// One copy, behind those that have to come before.
struct CopyTree {
    way: Way,
    turn: Turn,
}

impl Step for CopyTree {
    fn measure(&self) -> Measure {
        let (way, words) = match self.way {
            Way::Out => ("out", "copied out"),
            Way::In => ("in", "copied in"),
        };
        let (turn, more) = match self.turn {
            Turn::First => ("first", ""),
            Turn::Again => ("again", " again, nothing changed"),
            Turn::Changed => ("changed", " again, 1 % changed"),
        };
        let cache = match (self.way, self.turn) {
            (Way::Out, Turn::First) => Cache::Cold,
            _ => Cache::None,
        };
        Measure {
            id: format!("copy.{way}.{turn}"),
            title: format!("tree {words}{more} (a mount: rsync -a)"),
            unit: Unit::Seconds,
            cache,
        }
    }

    fn deadline_factor(&self) -> f64 {
        DEADLINE_FACTOR
    }

    fn concerns(&self, subject: &SubjectInfo) -> bool {
        let copies_all = subject.kind == "copy" && ALWAYS_ALL.contains(&subject.name.as_str());
        // A stream is of what is not there yet.
        let is_stream = subject.name == "sshoal-copy:tar";
        self.turn == Turn::First || !copies_all && !is_stream
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        copies_trees(access)
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let tree = if self.turn == Turn::Changed { CHANGED } else { SOURCE };
        let expected = Expected::load(&context.corpus.join(expected(tree)))?;
        let is_mount = matches!(context.access(), Access::Directory(_));
        let mut measured = match self.way {
            Way::Out => {
                let copy = context.scratch.join("out");
                let copied = |context: &mut StepContext<'_>, tree: &str| {
                    pull(context, Path::new(tree), &copy, sync)
                };
                let measured = self.turns(context, tree, copied)?;
                expected.check(&digest(&copy)?, is_mount)?;
                measured
            }
            Way::In => {
                let to = fresh("copy/in");
                removed_after(context, &to, |context| {
                    let copied = |context: &mut StepContext<'_>, tree: &str| {
                        let from: PathBuf = context.corpus.join(tree);
                        push(context, &from, &to, sync)
                    };
                    let measured = self.turns(context, tree, copied)?;
                    expected.check(&context.subject.place().digest(&to)?, is_mount)?;
                    Ok(measured)
                })?
            }
        };
        expected.fill(&mut measured);
        Ok(measured)
    }
}

impl CopyTree {
    /// The copy that counts, behind the one that it is compared with.
    fn turns(
        &self,
        context: &mut StepContext<'_>,
        tree: &str,
        mut copied: impl FnMut(&mut StepContext<'_>, &str) -> Result<Measured, Failure>,
    ) -> Result<Measured, Failure> {
        if self.turn != Turn::First {
            copied(context, SOURCE)?;
        }
        copied(context, tree)
    }
}

fn sync(from: &Path, to: &Path) -> Command {
    script(r#"rsync -a "$1/" "$2/""#, &[from, to])
}

#[cfg(test)]
mod tests;
