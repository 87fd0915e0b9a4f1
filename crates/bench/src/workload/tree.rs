//! `tree`: a tree of sources listed, searched, copied and removed.
//!
//! It is the made tree of [`crate::corpus::tree`], or the user's own, without its symbolic links.
//! The output of the programs on a mount is compared with their output on the original, and copies
//! with the original itself. A made tree of media is only copied.

pub(super) mod look;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::corpus;
use crate::corpus::tree::{Listing, bytes_per_file};
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::size::{Scale, Size, TreeShape};
use crate::step::StepContext;
use crate::storage::SCRIPT_LIMIT;
use crate::subject::Direction;

use super::copying::{Expected, OnMount, copy_local, copy_trees, fresh, removed_after};
use super::{COPY_TREES, DIRECTORY, Step, Workload, measure, program, script};
use look::Question;

/// The workload.
pub struct Tree;

/// The same tree in every run, so that runs can be compared.
pub(super) const SEED: u64 = 1;

/// Where the tree is, in the corpus and in a storage.
const SOURCE: &str = "tree/source";

/// The same as an archive, in the corpus.
const ARCHIVE: &str = "tree/source.tar";

/// Removes the symbolic links below `$1`.
const WITHOUT_LINKS: &str = r#"find "$1" -type l -exec rm -- {} +"#;

/// A tree of small files is where a slow subject is slowest.
pub(super) const DEADLINE_FACTOR: f64 = 3.0;

/// Bytes of the tree on a disk.
fn bytes(size: &Size) -> u64 {
    match &size.tree_source {
        Some(source) => corpus::tree::bytes_below(source),
        None => u64::from(size.tree_files) * bytes_per_file(size.tree_shape),
    }
}

/// Whether the tree is only copied.
fn is_only_copied(size: &Size) -> bool {
    size.tree_source.is_none() && size.tree_shape == TreeShape::Media
}

impl Workload for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn about(&self) -> &'static str {
        "A tree of sources listed, searched, archived, copied out and in, unpacked and removed"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("rsync", "rsync"), ("tar", "tar"), ("find", "findutils")]
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let tree = bytes(size);
        // In the storage: the tree and its copy. Locally: the tree, its archive, its copy.
        (2 * tree, 3 * tree)
    }

    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<()> {
        let source = corpus.join(SOURCE);
        match &size.tree_source {
            None => corpus::tree::make(&source, size.tree_files, size.tree_shape, SEED)?,
            Some(own) => {
                copy_local(own, &source, executor)?;
                // Not every program that copies keeps links.
                executor.succeed(script(WITHOUT_LINKS, &[&source]), SCRIPT_LIMIT)?;
            }
        }
        Expected::save(corpus, SOURCE)?;
        if is_only_copied(size) {
            return Ok(());
        }
        let archive = script(r#"tar -C "$1" -cf "$2" ."#, &[source, corpus.join(ARCHIVE)]);
        executor.succeed(archive, SCRIPT_LIMIT)?;
        Ok(())
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        vec![SOURCE.into()]
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        let word = match size.tree_source {
            None => corpus::tree::RARE_WORD,
            Some(_) => "TODO",
        };
        let (cold, hot) = (Cache::Cold, Cache::Hot);
        let look = |question, cache| look::step(question, cache, word);
        let copy_out = "tree copied out (a mount: rsync -a)";
        let copy_in = "tree copied in (a mount: rsync -a)";
        let bytes = bytes(size);
        if is_only_copied(size) {
            let media = |id, title: &str, cache, direction| {
                let title = format!("{title}, files of 600 KB on the average");
                copy(id, &title, cache, direction, SOURCE, rsync).over(bytes)
            };
            return vec![
                media("media.copy_out", copy_out, cold, Direction::Out),
                media("media.copy_in", copy_in, Cache::None, Direction::In),
            ];
        }
        let mut steps = vec![
            look(Question::Find, cold),
            look(Question::List, cold),
            look(Question::List, hot),
            look(Question::Archive, cold),
            look(Question::Archive, hot),
            look(Question::Search, cold),
            copy("copy_out", copy_out, cold, Direction::Out, SOURCE, rsync),
            copy("copy_in", copy_in, Cache::None, Direction::In, SOURCE, rsync),
            on_mounts(copy(
                "extract",
                "tree unpacked, tar xf",
                Cache::None,
                Direction::In,
                ARCHIVE,
                unpack,
            )),
            Step::new(
                measure("tree", "rm", "tree removed, rm -rf", Unit::Seconds, cold),
                DIRECTORY,
                remove,
            )
            .with_deadline(DEADLINE_FACTOR),
        ];
        if size.scale != Scale::Quick {
            steps.insert(1, look(Question::FindSize, cold));
            steps.insert(7, look(Question::Search, hot));
            let title = "tree copied in, cp -r";
            let cp = copy("cp_in", title, Cache::None, Direction::In, SOURCE, cp);
            steps.insert(10, on_mounts(cp));
        }
        steps.into_iter().map(|step| step.over(bytes)).collect()
    }
}

/// A copy of the tree or its archive; `on_mount` makes the command for a mount.
fn copy(
    id: &str,
    title: &str,
    cache: Cache,
    direction: Direction,
    source: &'static str,
    on_mount: OnMount,
) -> Step {
    let measure = measure("tree", id, title, Unit::Seconds, cache);
    let step = Step::new(measure, COPY_TREES, move |context| {
        copy_trees(context, direction, &[source], "tree/in", SOURCE, on_mount)
    });
    step.with_deadline(DEADLINE_FACTOR)
}

fn on_mounts(step: Step) -> Step {
    Step { accesses: DIRECTORY, ..step }
}

/// Removes a copy of the tree that was put into the storage without the subject, which is why the
/// measure is cold: a client with a cached listing may rightly report that there is no such tree.
/// A target and the local disk have all of it cached then, and drop their caches again.
fn remove(context: &mut StepContext<'_>) -> Result<Measured> {
    let above = fresh("tree/rm");
    let expected = Expected::load(context.corpus, SOURCE)?;
    removed_after(context, &above, |context| {
        let tree = above.join("source");
        context.subject.storage().put(&context.corpus.join(SOURCE), &tree)?;
        if context.subject.info().is_there() {
            context.session.forget(context.executor)?;
        }
        let mut command = program("rm");
        command.arg("-rf").arg(context.directory()?.join(&tree));
        let mut measured = context.timed(command)?.1;
        context.settle(&mut measured)?;
        if context.subject.storage().digest(&above)? != Listing::default().digest() {
            return Err(Failure::wrong("rm: the removed tree is still there"));
        }
        Ok(expected.fill(measured))
    })
}

pub(super) fn rsync(from: &Path, to: &Path) -> Command {
    script(r#"rsync -a "$1/" "$2/""#, &[from, to])
}

fn cp(from: &Path, to: &Path) -> Command {
    let mut command = program("cp");
    command.arg("-r").arg(from).arg(to);
    command
}

/// As a user: without the owners in the archive.
fn unpack(from: &Path, to: &Path) -> Command {
    script(r#"mkdir "$2" && tar --no-same-owner -C "$2" -xf "$1""#, &[from, to])
}

#[cfg(test)]
mod tests;
