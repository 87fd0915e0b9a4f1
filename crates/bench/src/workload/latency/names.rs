//! Directories of many names, and steps of one operation with each.
//!
//! No step takes longer than [`time_limit`], so that a slow link reduces the number of operations.
//! What was changed is compared at the storage, with the digest of the same tree made here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::corpus;
use crate::failure::Result;
use crate::results::Measured;
use crate::size::Size;
use crate::step::StepContext;
use crate::worker::{self, Entry, Job, NameJob, Operation, Order};

use crate::workload::copying::{fresh, removed, removed_after, same};
use crate::workload::generator::{Relay, timed};

/// In front of the numbers of files.
pub(super) const FILE: &str = "file-";

/// In front of the numbers of directories.
pub(super) const DIRECTORY_NAME: &str = "dir-";

/// The longest time of a step, in seconds.
pub(super) fn time_limit(size: &Size) -> f64 {
    4.0 * size.random_seconds
}

/// A job that does an operation once with each of some names, in sequence.
fn once(directory: PathBuf, operation: Operation, prefix: &str, names: u32) -> NameJob {
    NameJob {
        directory,
        operation,
        prefix: prefix.to_owned(),
        names,
        operations: names,
        seconds: None,
        order: Order::Sequential,
        make_directory: false,
        warm: false,
    }
}

/// Makes a directory of names in this process, on a local disk.
pub(super) fn make(path: &Path, entry: Entry, prefix: &str, names: u32) -> Result<()> {
    fs::create_dir_all(path)?;
    worker::run(&Job::Names(once(path.to_owned(), making(entry), prefix, names))).map(drop)
}

/// The operation that makes it.
pub(super) fn making(entry: Entry) -> Operation {
    match entry {
        Entry::EmptyFile => Operation::Create,
        Entry::Directory => Operation::Mkdir,
    }
}

/// An operation with existing names of a directory, in a random order.
pub(super) fn look(
    context: &StepContext<'_>,
    directory: impl AsRef<Path>,
    operation: Operation,
    prefix: &str,
    names: u32,
) -> Result<NameJob> {
    Ok(NameJob {
        order: Order::Random { seed: context.seed },
        seconds: Some(time_limit(context.size)),
        ..once(context.directory()?.join(directory), operation, prefix, names)
    })
}

/// A directory that a step has made, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    path: PathBuf,
    entry: Entry,
    prefix: &'static str,
    names: u32,
}

/// What the steps of one workload hand on.
pub(super) type Chain = Arc<Relay<Made>>;

/// Makes a new directory with names, as far as time suffices, and leaves it to the next step.
pub(super) fn fill(
    context: &mut StepContext<'_>,
    chain: &Chain,
    entry: Entry,
    prefix: &'static str,
    names: u32,
) -> Result<Measured> {
    if let Some(left) = chain.take(context) {
        context.subject.storage().remove(&left.path)?;
    }
    context.subject.storage().make_dir(Path::new("names"))?;
    let made = Made { path: fresh("names/new"), entry, prefix, names };
    let after = |made, done| Made { names: done, ..made };
    let (measured, made) = change(context, made, true, making(entry), after)?;
    chain.leave(context, made);
    Ok(measured)
}

/// Renames all that was made, and leaves it to the next.
pub(super) fn rename(
    context: &mut StepContext<'_>,
    chain: &Chain,
    prefix: &'static str,
) -> Result<Measured> {
    let made = chain.need(context)?;
    let operation = Operation::Rename { prefix: prefix.to_owned() };
    let after = |made, _| Made { prefix, ..made };
    let (measured, made) = change(context, made, false, operation, after)?;
    chain.leave(context, made);
    Ok(measured)
}

/// Removes all that was made.
pub(super) fn empty(context: &mut StepContext<'_>, chain: &Chain) -> Result<Measured> {
    let made = chain.need(context)?;
    let operation = match made.entry {
        Entry::EmptyFile => Operation::Unlink,
        Entry::Directory => Operation::Rmdir,
    };
    let path = made.path.clone();
    let (measured, _) =
        change(context, made, false, operation, |made, _| Made { names: 0, ..made })?;
    context.subject.storage().remove(&path)?;
    Ok(measured)
}

/// Does an operation with each name of a directory and compares what comes of it, which `after`
/// tells from what was there and how many operations were done. What fails leaves no directory.
fn change(
    context: &mut StepContext<'_>,
    made: Made,
    create: bool,
    operation: Operation,
    after: impl FnOnce(Made, u32) -> Made,
) -> Result<(Measured, Made)> {
    let path = made.path.clone();
    let change = |context: &mut StepContext<'_>| {
        let directory = context.directory()?.join(&made.path);
        // What is there is to be gone through to its end.
        let seconds = create.then(|| time_limit(context.size));
        let job = NameJob {
            make_directory: create,
            seconds,
            ..once(directory, operation, made.prefix, made.names)
        };
        let mut measured = timed(context, &Job::Names(job))?;
        context.settle(&mut measured)?;
        let made = after(made, u32::try_from(measured.operations).unwrap_or(u32::MAX));
        compare(context, &made)?;
        Ok((Measured { verified: true, ..measured }, made))
    };
    let changed = change(context);
    if changed.is_err() { removed(context, &path, changed) } else { changed }
}

/// How long changes made at the server, past the subject, are not shown.
pub(super) fn see_changes(context: &mut StepContext<'_>, names: u32) -> Result<Measured> {
    let path = fresh("latency/changed");
    // The step is part of such runs only.
    let local = context.subject.storage().local().expect("storage on this machine");
    let at = local.join(&path);
    make(&at, Entry::EmptyFile, FILE, names)?;
    removed_after(context, &path, |context| {
        let operation = Operation::SeeChange { at };
        let job = look(context, &path, operation, FILE, names)?;
        let operations = context.size.latency_operations;
        timed(context, &Job::Names(NameJob { operations, warm: true, ..job }))
    })
}

/// Whether the directory at the storage is as it has to be.
fn compare(context: &StepContext<'_>, made: &Made) -> Result<()> {
    let expected = context.scratch.join("expected");
    make(&expected, made.entry, made.prefix, made.names)?;
    let digest = corpus::digest(&expected)?;
    fs::remove_dir_all(&expected)?;
    let found = context.subject.storage().digest(&made.path)?;
    same(&found, &digest, "the directory in the storage is not what was made")
}
