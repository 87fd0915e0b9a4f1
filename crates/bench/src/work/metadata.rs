//! `metadata`: how many small operations one caller gets done in a second.

use std::path::Path;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::Place;
use crate::results::{LeftOut, Measured};
use crate::size::Size;
use crate::step::StepContext;
use crate::subject::Access;
use crate::worker::{Entry, Operation};

use super::generator::{has_files, valued};
use super::names::{Chain, DIRECTORY, EMPTY, FILE, Look, SMALL, empty, fill, make};
use super::{Step, Work};

/// The files that are looked at.
const FILES: &str = "metadata/files";

/// Of a name on a disk, and of a file of 4 KiB.
const NAME_BYTES: u64 = 4096;

/// The work.
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

impl Work for Metadata {
    fn name(&self) -> &'static str {
        "metadata"
    }

    fn about(&self) -> &'static str {
        "Files created, looked at and removed a second, by one thread"
    }

    fn check(&self) -> Result<(), LeftOut> {
        Ok(())
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let bytes = u64::from(size.metadata_files) * NAME_BYTES;
        (3 * bytes, 3 * bytes)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<(), Failure> {
        make(&corpus.join(FILES), EMPTY, FILE, size.metadata_files)
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        place.put(&corpus.join(FILES), Path::new(FILES))?;
        place.warm(Path::new(FILES))
    }

    fn steps(&self, _size: &Size) -> Vec<Box<dyn Step>> {
        ALL.map(|kind| Box::new(Counted { kind, chain: self.chain.clone() }) as Box<dyn Step>)
            .into()
    }
}

/// The step of one kind.
#[derive(Debug)]
struct Counted {
    kind: Kind,
    chain: Chain,
}

impl Step for Counted {
    fn measure(&self) -> Measure {
        let (id, title, cache) = self.kind.words();
        let (id, title) = (format!("metadata.{id}"), format!("{title}, one thread"));
        Measure { id, title, unit: Unit::PerSecond, cache }
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        has_files(access)
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let names = context.size.metadata_files;
        let look = |warm| Look {
            directory: FILES,
            operation: Operation::Stat(EMPTY),
            prefix: FILE,
            names,
            operations: names,
            warm,
        };
        let measured = match self.kind {
            Kind::StatCold => look(false).run(context),
            Kind::StatHot => look(true).run(context),
            Kind::Create => fill(context, &self.chain, EMPTY, FILE, names),
            Kind::CreateSmall => fill(context, &self.chain, SMALL, FILE, names),
            Kind::Mkdir => fill(context, &self.chain, Entry::Directory, DIRECTORY, names),
            Kind::Unlink | Kind::Rmdir => empty(context, &self.chain),
        };
        valued(measured?, Unit::PerSecond)
    }
}

#[cfg(test)]
mod tests;
