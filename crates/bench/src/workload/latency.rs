//! `latency`: the distribution of the times of single operations, one after the other.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::corpus;
use crate::executor::{Background, Executor};
use crate::failure::Failure;
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::size::Size;
use crate::step::StepContext;
use crate::storage::Storage;
use crate::subject::Access;
use crate::worker::{Check, Entry, Job, Operation, Order, Transfer, Until};

use super::copying::fresh;
use super::generator::{shown, timed, valued};
use super::names::{
    Chain, DIRECTORY_NAME, EMPTY, FILE, Look, empty, fill, make, rename, time_limit,
};
use super::{DIRECTORY, OPEN_FILES, Step, Workload, measure};

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

/// The workload.
#[derive(Debug, Default)]
pub struct Latency {
    chain: Chain,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Single {
    StatUnknown,
    StatKnown,
    StatAbsent,
    Open,
    Read,
    List,
    ListBeside,
    Create,
    Rename,
    Unlink,
    Mkdir,
    Rmdir,
}

/// In the order in which they run: what changes comes from what was made just before.
const ALL: [Single; 12] = [
    Single::StatUnknown,
    Single::StatKnown,
    Single::StatAbsent,
    Single::Open,
    Single::Read,
    Single::List,
    Single::ListBeside,
    Single::Create,
    Single::Rename,
    Single::Unlink,
    Single::Mkdir,
    Single::Rmdir,
];

impl Single {
    /// Its id, title, and what is cached.
    fn words(self) -> (&'static str, &'static str, Cache) {
        match self {
            Single::StatUnknown => {
                ("stat-unknown", "stat of a name not asked for before", Cache::Cold)
            }
            Single::StatKnown => ("stat-known", "stat of a name asked for before", Cache::Hot),
            Single::StatAbsent => ("stat-absent", "stat of a name that is not there", Cache::Cold),
            Single::Open => ("open", "open and close of a known file", Cache::Hot),
            Single::Read => ("read-4k", "read of 4 KiB at a random place of a file", Cache::Cold),
            Single::List => ("list", "listing of a directory of 100 names", Cache::Cold),
            Single::ListBeside => {
                ("list-beside", "the same beside two large copies, out and in", Cache::Cold)
            }
            Single::Create => ("create", "creation of an empty file", Cache::None),
            Single::Rename => ("rename", "rename of a file", Cache::None),
            Single::Unlink => ("unlink", "removal of a file", Cache::None),
            Single::Mkdir => ("mkdir", "creation of a directory", Cache::None),
            Single::Rmdir => ("rmdir", "removal of a directory", Cache::None),
        }
    }
}

fn listed_directories(size: &Size) -> u32 {
    (size.latency_operations / 20).clamp(10, 100)
}

fn large_bytes(size: &Size) -> u64 {
    size.random_file_bytes.min(LARGE_BYTES)
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

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<(), Failure> {
        make(&corpus.join(MANY), EMPTY, FILE, size.latency_operations)?;
        make(&corpus.join(LISTED), Entry::Directory, DIRECTORY_NAME, listed_directories(size))?;
        for number in 0..listed_directories(size) {
            let name = crate::worker::NameJob::name(DIRECTORY_NAME, number);
            make(&corpus.join(LISTED).join(name), EMPTY, FILE, LISTED_NAMES)?;
        }
        corpus::file(corpus, LARGE, large_bytes(size), SEED).map(drop)
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, storage: &dyn Storage) -> Result<(), Failure> {
        for path in [MANY, LISTED, LARGE].map(Path::new) {
            storage.put(&corpus.join(path), path)?;
            storage.warm(path)?;
        }
        Ok(())
    }

    fn steps(&self, _size: &Size) -> Vec<Step> {
        let step = |single: Single| {
            let (id, title, cache) = single.words();
            let measure = measure("latency", id, title, Unit::Microseconds, cache);
            let accesses = if single == Single::ListBeside { DIRECTORY } else { OPEN_FILES };
            let chain = self.chain.clone();
            Step::new(measure, accesses, move |context| {
                valued(single.run(context, &chain)?, Unit::Microseconds)
            })
        };
        ALL.map(step).into()
    }
}

impl Single {
    fn run(self, context: &mut StepContext<'_>, chain: &Chain) -> Result<Measured, Failure> {
        let all = context.size.latency_operations;
        let listing = Operation::List { prefix: FILE.to_owned(), names: LISTED_NAMES };
        let look = |operation| self.look(operation, context.size);
        match self {
            Single::StatUnknown | Single::StatKnown => look(Operation::Stat(EMPTY)).run(context),
            Single::StatAbsent => look(Operation::StatAbsent).run(context),
            Single::Open => look(Operation::OpenClose).run(context),
            Single::List => look(listing).run(context),
            Single::ListBeside => {
                let copies = Copies::start(context)?;
                let measured = look(listing).run(context);
                let ended = copies.end(context.subject.storage());
                measured.and_then(|measured| ended.map(|()| measured))
            }
            Single::Read => read(context),
            Single::Create => fill(context, chain, EMPTY, FILE, all),
            Single::Mkdir => fill(context, chain, Entry::Directory, DIRECTORY_NAME, all),
            Single::Rename => rename(context, chain, "renamed-"),
            Single::Unlink | Single::Rmdir => empty(context, chain),
        }
    }

    /// The operation with names that exist, or never did.
    fn look(self, operation: Operation, size: &Size) -> Look<'static> {
        let all = size.latency_operations;
        let look = Look {
            directory: MANY,
            operation,
            prefix: FILE,
            names: all,
            operations: all,
            warm: false,
        };
        match self {
            Single::StatKnown | Single::Open => {
                Look { names: KNOWN_NAMES.min(all), warm: true, ..look }
            }
            Single::StatAbsent => Look { prefix: "absent-", ..look },
            Single::List | Single::ListBeside => {
                let directories = listed_directories(size);
                let listed = Look { directory: LISTED, prefix: DIRECTORY_NAME, ..look };
                Look { names: directories, operations: directories, ..listed }
            }
            _ => look,
        }
    }
}

fn read(context: &mut StepContext<'_>) -> Result<Measured, Failure> {
    let size = context.size;
    let operations = size.latency_operations.into();
    let transfer = Transfer {
        target: shown(context, Path::new(LARGE))?,
        file_bytes: large_bytes(size),
        record_bytes: 4096,
        order: Order::Random { seed: context.seed },
        until: Until::Within { operations, seconds: time_limit(size) },
        depth: 1,
        direct: false,
    };
    let job = Job::Read { transfer, check: Check::Content { seed: SEED } };
    Ok(timed(context, &job)?.1)
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
    fn start(context: &StepContext<'_>) -> Result<Copies, Failure> {
        let Access::Directory(dir) = context.access() else {
            return Err(Failure::failed("it has no files that can be copied"));
        };
        let written = fresh("latency/copied");
        let out = copy(context.executor, &dir.join(LARGE), Path::new("/dev/null"))?;
        let into = copy(context.executor, &context.corpus.join(LARGE), &dir.join(&written))?;
        thread::sleep(WARM_UP);
        Ok(Copies { running: [out, into], written })
    }

    /// Ends them. An error if one of them had ended before: then nothing ran beside it.
    fn end(self, storage: &dyn Storage) -> Result<(), Failure> {
        let ended = self.running.iter().find(|copy| !copy.is_running());
        let failed = ended
            .map(|copy| Failure::failed(format!("a copy ended before its time: {}", copy.words())));
        let Copies { running, written } = self;
        drop(running);
        let removed = storage.remove(&written);
        failed.map_or(removed, Err)
    }
}

fn copy(executor: &Executor, from: &Path, to: &Path) -> Result<Background, Failure> {
    let mut command = Command::new("sh");
    command.args(["-c", COPY, "copy"].map(OsStr::new)).args([from, to]);
    executor.spawn(command)
}

#[cfg(test)]
mod tests;
