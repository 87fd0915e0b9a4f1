//! `latency`: the distribution of the times of single operations, one after the other.

mod names;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::corpus;
use crate::executor::{Background, Executor};
use crate::failure::{Failure, Result};
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::size::Size;
use crate::step::StepContext;
use crate::storage::Storage;
use crate::worker::{Check, Entry, Job, NameJob, Operation, Transfer, Until};

use super::copying::fresh;
use super::generator::{shown, timed};
use super::{DIRECTORY, Step, TRANSFER_FILES, Workload, measure};
use names::{
    Chain, DIRECTORY_NAME, FILE, empty, fill, look, make, rename, see_changes, time_limit,
};

/// Content of the file that is read.
const SEED: u64 = 0x40;

/// The file in which random places are read.
const LARGE: &str = "latency/large";

/// Its greatest length: longer than any readahead.
const LARGE_BYTES: u64 = 256 << 20;

/// The directory of many names.
const MANY: &str = "latency/many";

/// The directory of directories that are listed.
const LISTED: &str = "latency/listed";

/// Names in a directory that is listed.
const LISTED_NAMES: u32 = 100;

/// Names that are known when known ones are looked up.
const KNOWN_NAMES: u32 = 100;

/// Space for a name: a block of a file system.
const NAME_BYTES: u64 = 4096;

/// The body of a step.
type Body = fn(&mut StepContext<'_>, &Chain) -> Result<Measured>;

/// The workload.
#[derive(Debug, Default)]
pub struct Latency {
    chain: Chain,
}

fn listed_directories(size: &Size) -> u32 {
    (size.latency_operations / 20).clamp(10, 100)
}

fn large_bytes(size: &Size) -> u64 {
    size.file_bytes.min(LARGE_BYTES)
}

impl Workload for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn about(&self) -> &'static str {
        "How long single operations take: stat, open, read, list, create, rename, remove"
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let listed = listed_directories(size) * LISTED_NAMES;
        let laid_out =
            2 * large_bytes(size) + u64::from(size.latency_operations + listed) * NAME_BYTES;
        let made = u64::from(size.latency_operations) * NAME_BYTES;
        (laid_out + made, laid_out + made)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<()> {
        make(&corpus.join(MANY), Entry::EmptyFile, FILE, size.latency_operations)?;
        make(&corpus.join(LISTED), Entry::Directory, DIRECTORY_NAME, listed_directories(size))?;
        for number in 0..listed_directories(size) {
            let name = NameJob::name(DIRECTORY_NAME, number);
            make(&corpus.join(LISTED).join(name), Entry::EmptyFile, FILE, LISTED_NAMES)?;
        }
        corpus::file(corpus, LARGE, large_bytes(size), SEED).map(drop)
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        [MANY, LISTED, LARGE].map(PathBuf::from).into()
    }

    /// What is changed was made just before.
    fn steps(&self, _size: &Size) -> Vec<Step> {
        let step = |id, title, cache, body: Body| {
            let measure = measure("latency", id, title, Unit::Microseconds, cache);
            let accesses = if id == "read-4k" { TRANSFER_FILES } else { DIRECTORY };
            let chain = self.chain.clone();
            Step::new(measure, accesses, move |context| body(context, &chain))
        };
        let (cold, hot, none) = (Cache::Cold, Cache::Hot, Cache::None);
        vec![
            step("stat-unknown", "stat of a name not asked for before", cold, |context, _| {
                unknown(context, Operation::Stat(Entry::EmptyFile), FILE)
            }),
            step("stat-known", "stat of a name asked for before", hot, |context, _| {
                known(context, Operation::Stat(Entry::EmptyFile))
            }),
            step("stat-absent", "stat of a name that is not there", cold, |context, _| {
                unknown(context, Operation::StatAbsent, "absent-")
            }),
            step("open", "open and close of a known file", hot, |context, _| {
                known(context, Operation::OpenClose)
            }),
            step("read-4k", "read of 4 KiB at a random place of a file", cold, |context, _| {
                read(context)
            }),
            step("list", "listing of a directory of 100 names", cold, |context, _| list(context)),
            step(
                "list-beside",
                "the same beside two large copies, out and in",
                cold,
                |context, _| {
                    let copies = Copies::start(context)?;
                    let measured = list(context);
                    let ended = copies.end(context.subject.storage());
                    measured.and_then(|measured| ended.map(|()| measured))
                },
            ),
            step("create", "creation of an empty file", none, |context, chain| {
                fill(context, chain, Entry::EmptyFile, FILE, context.size.latency_operations)
            }),
            step("rename", "rename of a file", none, |context, chain| {
                rename(context, chain, "renamed-")
            }),
            step("unlink", "removal of a file", none, empty),
            step("mkdir", "creation of a directory", none, |context, chain| {
                let names = context.size.latency_operations;
                fill(context, chain, Entry::Directory, DIRECTORY_NAME, names)
            }),
            step("rmdir", "removal of a directory", none, empty),
            step("see-change", "time until a change at the server is shown", hot, |context, _| {
                see_changes(context, KNOWN_NAMES.min(context.size.latency_operations))
            })
            .at_local_storage(),
        ]
    }
}

/// An operation with each of many names that were not looked up before.
fn unknown(context: &mut StepContext<'_>, operation: Operation, prefix: &str) -> Result<Measured> {
    let job = look(context, MANY, operation, prefix, context.size.latency_operations)?;
    timed(context, &Job::Names(job))
}

/// An operation with names that were looked up before.
fn known(context: &mut StepContext<'_>, operation: Operation) -> Result<Measured> {
    let operations = context.size.latency_operations;
    let job = look(context, MANY, operation, FILE, KNOWN_NAMES.min(operations))?;
    timed(context, &Job::Names(NameJob { operations, warm: true, ..job }))
}

fn list(context: &mut StepContext<'_>) -> Result<Measured> {
    let operation = Operation::List { prefix: FILE.to_owned(), names: LISTED_NAMES };
    let names = listed_directories(context.size);
    let job = look(context, LISTED, operation, DIRECTORY_NAME, names)?;
    timed(context, &Job::Names(job))
}

fn read(context: &mut StepContext<'_>) -> Result<Measured> {
    let size = context.size;
    let operations = size.latency_operations.into();
    let until = Until::Within { operations, seconds: time_limit(size) };
    let target = shown(context, Path::new(LARGE))?;
    let transfer = Transfer::at_random(target, large_bytes(size), context.seed, until);
    let job = Job::Read { transfer, check: Check::Content { seed: SEED } };
    timed(context, &job)
}

/// Time to full speed, also over a long link.
const WARM_UP: Duration = Duration::from_secs(2);

/// Copies a file again and again. Its pages are dropped behind it, or only the first copy would use
/// the link.
const COPY: &str =
    r#"while dd if="$1" of="$2" bs=1M iflag=nocache conv=notrunc status=none; do :; done"#;

/// A copy out of the subject and one into it, that run beside a measurement. Dropping it ends
/// them, and leaves the written file.
#[derive(Debug)]
struct Copies {
    running: [Background; 2],
    written: PathBuf,
}

impl Copies {
    /// Starts them, if the subject is a file system.
    fn start(context: &StepContext<'_>) -> Result<Copies> {
        let dir = context.directory()?;
        let written = fresh("latency/copied");
        let out = copy(context.executor, &dir.join(LARGE), Path::new("/dev/null"))?;
        let into = copy(context.executor, &context.corpus.join(LARGE), &dir.join(&written))?;
        thread::sleep(WARM_UP);
        Ok(Copies { running: [out, into], written })
    }

    /// Ends them. An error if one of them had ended before: then nothing ran beside it.
    fn end(self, storage: &dyn Storage) -> Result<()> {
        let ended = self.running.iter().find(|copy| !copy.is_running());
        let failed = ended
            .map(|copy| Failure::failed(format!("a copy ended before its time: {}", copy.words())));
        let Copies { running, written } = self;
        drop(running);
        let removed = storage.remove(&written);
        failed.map_or(removed, Err)
    }
}

fn copy(executor: &Executor, from: &Path, to: &Path) -> Result<Background> {
    let mut command = Command::new("sh");
    command.args(["-c", COPY, "copy"].map(OsStr::new)).args([from, to]);
    executor.spawn(command)
}

#[cfg(test)]
mod tests;
