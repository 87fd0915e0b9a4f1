//! `latency`: how long single operations take that a user waits for, one after the other: the
//! distribution, and not how many there are in a second.

mod copies;

use std::path::Path;

use crate::corpus;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::Place;
use crate::results::{LeftOut, Measured};
use crate::size::Size;
use crate::step::StepContext;
use crate::subject::Access;
use crate::worker::{Check, Entry, Job, Operation, Order, Transfer, Until};

use super::generator::{has_files, shown, timed, valued};
use super::names::{Chain, DIRECTORY, EMPTY, FILE, Look, empty, fill, make, rename, time_limit};
use super::{Step, Work};
use copies::Copies;

/// Of the file that is read.
const SEED: u64 = 0x40;

/// The file in which random places are read.
const LARGE: &str = "latency/large";

/// No longer than this: it only has to be longer than what anybody reads ahead.
const LARGE_BYTES: u64 = 256 << 20;

/// The directory of many names.
const MANY: &str = "latency/many";

/// The directory of directories that are listed.
const LISTED: &str = "latency/listed";

/// Names in a directory that is listed.
const LISTED_NAMES: u32 = 100;

/// So many names are known when known ones are asked for.
const KNOWN_NAMES: u32 = 100;

/// Block of a file system, by count of which names are told to need space.
const NAME_BYTES: u64 = 4096;

/// The work.
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

impl Work for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn about(&self) -> &'static str {
        "How long single operations take: stat, open, read, list, create, rename, remove"
    }

    fn check(&self) -> Result<(), LeftOut> {
        Ok(())
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
        make(&corpus.join(LISTED), Entry::Directory, DIRECTORY, listed_directories(size))?;
        for number in 0..listed_directories(size) {
            let name = crate::worker::NameJob::name(DIRECTORY, number);
            make(&corpus.join(LISTED).join(name), EMPTY, FILE, LISTED_NAMES)?;
        }
        corpus::file(corpus, LARGE, large_bytes(size), SEED).map(drop)
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        for path in [MANY, LISTED, LARGE].map(Path::new) {
            place.put(&corpus.join(path), path)?;
            place.warm(path)?;
        }
        Ok(())
    }

    fn steps(&self, _size: &Size) -> Vec<Box<dyn Step>> {
        ALL.map(|single| Box::new(Timed { single, chain: self.chain.clone() }) as Box<dyn Step>)
            .into()
    }
}

/// The step of one operation.
#[derive(Debug)]
struct Timed {
    single: Single,
    chain: Chain,
}

impl Timed {
    fn look(&self, operation: Operation, size: &Size) -> Look<'static> {
        let all = size.latency_operations;
        let look = Look {
            directory: MANY,
            operation,
            prefix: FILE,
            names: all,
            operations: all,
            warm: false,
        };
        match self.single {
            Single::StatKnown | Single::Open => {
                Look { names: KNOWN_NAMES.min(all), warm: true, ..look }
            }
            Single::StatAbsent => Look { prefix: "absent-", ..look },
            Single::List | Single::ListBeside => {
                let directories = listed_directories(size);
                let listed = Look { directory: LISTED, prefix: DIRECTORY, ..look };
                Look { names: directories, operations: directories, ..listed }
            }
            _ => look,
        }
    }

    fn read(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let size = context.size;
        let transfer = Transfer {
            target: shown(context, Path::new(LARGE))?,
            file_bytes: large_bytes(size),
            record_bytes: 4096,
            order: Order::Random { seed: context.seed },
            until: Until::Within {
                operations: size.latency_operations.into(),
                seconds: time_limit(size),
            },
            depth: 1,
            direct: false,
        };
        let job = Job::Read { transfer, check: Check::Content { seed: SEED } };
        Ok(timed(context, &job)?.1)
    }
}

impl Step for Timed {
    fn measure(&self) -> Measure {
        let (id, title, cache) = self.single.words();
        let (id, title) = (format!("latency.{id}"), title.to_owned());
        Measure { id, title, unit: Unit::Microseconds, cache }
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        match self.single {
            Single::ListBeside => matches!(access, Access::Directory(_)),
            _ => has_files(access),
        }
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let all = context.size.latency_operations;
        let listing = Operation::List { prefix: FILE.to_owned(), names: LISTED_NAMES };
        let looking = |operation| self.look(operation, context.size);
        let measured = match self.single {
            Single::StatUnknown | Single::StatKnown => looking(Operation::Stat(EMPTY)).run(context),
            Single::StatAbsent => looking(Operation::StatAbsent).run(context),
            Single::Open => looking(Operation::OpenClose).run(context),
            Single::List => looking(listing).run(context),
            Single::ListBeside => {
                let copies = Copies::start(context)?;
                let measured = looking(listing).run(context);
                let ended = copies.end(context.subject.place());
                measured.and_then(|measured| ended.map(|()| measured))
            }
            Single::Read => self.read(context),
            Single::Create => fill(context, &self.chain, EMPTY, FILE, all),
            Single::Mkdir => fill(context, &self.chain, Entry::Directory, DIRECTORY, all),
            Single::Rename => rename(context, &self.chain, "renamed-"),
            Single::Unlink | Single::Rmdir => empty(context, &self.chain),
        };
        valued(measured?, Unit::Microseconds)
    }
}

#[cfg(test)]
mod tests;
