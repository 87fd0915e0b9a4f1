//! `metadata`: small operations per second, by one caller.

use std::path::Path;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::size::Size;
use crate::step::StepContext;
use crate::storage::Storage;
use crate::worker::{Entry, Operation};

use super::generator::valued;
use super::names::{Chain, DIRECTORY_NAME, EMPTY, FILE, Look, SMALL, empty, fill, make};
use super::{OPEN_FILES, Step, Workload, measure};

/// The files that are looked at.
const FILES: &str = "metadata/files";

/// Space for a name or a file of 4 KiB.
const NAME_BYTES: u64 = 4096;

/// The workload.
#[derive(Debug, Default)]
pub struct Metadata {
    chain: Chain,
}

/// What is done with each name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    StatCold,
    StatHot,
    CreateSmall,
    Create,
    Unlink,
    Mkdir,
    Rmdir,
}

/// In the order in which they run: what is removed was made just before.
const ALL: [Kind; 7] = [
    Kind::StatCold,
    Kind::StatHot,
    Kind::Create,
    Kind::CreateSmall,
    Kind::Unlink,
    Kind::Mkdir,
    Kind::Rmdir,
];

impl Kind {
    /// Its id, title, and what is cached.
    fn words(self) -> (&'static str, &'static str, Cache) {
        match self {
            Kind::StatCold => ("stat", "stat", Cache::Cold),
            Kind::StatHot => ("stat-hot", "stat again", Cache::Hot),
            Kind::Create => ("create", "creation of empty files", Cache::None),
            Kind::CreateSmall => ("create-4k", "creation of files of 4 KiB", Cache::None),
            Kind::Unlink => ("unlink", "removal of files", Cache::None),
            Kind::Mkdir => ("mkdir", "creation of directories", Cache::None),
            Kind::Rmdir => ("rmdir", "removal of directories", Cache::None),
        }
    }
}

impl Workload for Metadata {
    fn name(&self) -> &'static str {
        "metadata"
    }

    fn about(&self) -> &'static str {
        "Files created, looked at and removed a second, by one thread"
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let bytes = u64::from(size.metadata_files) * NAME_BYTES;
        (3 * bytes, 3 * bytes)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<(), Failure> {
        make(&corpus.join(FILES), EMPTY, FILE, size.metadata_files)
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, storage: &dyn Storage) -> Result<(), Failure> {
        storage.put(&corpus.join(FILES), Path::new(FILES))?;
        storage.warm(Path::new(FILES))
    }

    fn steps(&self, _size: &Size) -> Vec<Step> {
        let step = |kind: Kind| {
            let (id, title, cache) = kind.words();
            let title = format!("{title}, one thread");
            let measure = measure("metadata", id, &title, Unit::PerSecond, cache);
            let chain = self.chain.clone();
            Step::new(measure, OPEN_FILES, move |context| {
                valued(kind.run(context, &chain)?, Unit::PerSecond)
            })
        };
        ALL.map(step).into()
    }
}

impl Kind {
    fn run(self, context: &mut StepContext<'_>, chain: &Chain) -> Result<Measured, Failure> {
        let names = context.size.metadata_files;
        let stat = |warm| Look {
            directory: FILES,
            operation: Operation::Stat(EMPTY),
            prefix: FILE,
            names,
            operations: names,
            warm,
        };
        match self {
            Kind::StatCold => stat(false).run(context),
            Kind::StatHot => stat(true).run(context),
            Kind::Create => fill(context, chain, EMPTY, FILE, names),
            Kind::CreateSmall => fill(context, chain, SMALL, FILE, names),
            Kind::Mkdir => fill(context, chain, Entry::Directory, DIRECTORY_NAME, names),
            Kind::Unlink | Kind::Rmdir => empty(context, chain),
        }
    }
}

#[cfg(test)]
mod tests;
