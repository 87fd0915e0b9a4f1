//! `metadata`: small operations per second, by one caller.

use std::path::{Path, PathBuf};

use crate::executor::Executor;
use crate::failure::Result;
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::size::Size;
use crate::step::StepContext;
use crate::worker::{Entry, Operation};

use super::generator::valued;
use super::names::{Chain, DIRECTORY_NAME, EMPTY, FILE, Look, SMALL, empty, fill, make};
use super::{OPEN_FILES, Step, Workload, measure};

/// The files that are looked at.
const FILES: &str = "metadata/files";

/// Space for a name or a file of 4 KiB.
const NAME_BYTES: u64 = 4096;

/// The body of a step, with the number of names.
type Body = fn(&mut StepContext<'_>, &Chain, u32) -> Result<Measured>;

/// The workload.
#[derive(Debug, Default)]
pub struct Metadata {
    chain: Chain,
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

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<()> {
        make(&corpus.join(FILES), EMPTY, FILE, size.metadata_files)
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        vec![FILES.into()]
    }

    /// What is removed was made just before.
    fn steps(&self, _size: &Size) -> Vec<Step> {
        let step = |id, title, cache, body: Body| {
            let title = format!("{title}, one thread");
            let measure = measure("metadata", id, &title, Unit::PerSecond, cache);
            let chain = self.chain.clone();
            Step::new(measure, OPEN_FILES, move |context| {
                let names = context.size.metadata_files;
                valued(body(context, &chain, names)?, Unit::PerSecond)
            })
        };
        let none = Cache::None;
        vec![
            step("stat", "stat", Cache::Cold, |context, _, _| stat(context, false)),
            step("stat-hot", "stat again", Cache::Hot, |context, _, _| stat(context, true)),
            step("create", "creation of empty files", none, |context, chain, names| {
                fill(context, chain, EMPTY, FILE, names)
            }),
            step("create-4k", "creation of files of 4 KiB", none, |context, chain, names| {
                fill(context, chain, SMALL, FILE, names)
            }),
            step("unlink", "removal of files", none, |context, chain, _| empty(context, chain)),
            step("mkdir", "creation of directories", none, |context, chain, names| {
                fill(context, chain, Entry::Directory, DIRECTORY_NAME, names)
            }),
            step("rmdir", "removal of directories", none, |context, chain, _| {
                empty(context, chain)
            }),
        ]
    }
}

fn stat(context: &mut StepContext<'_>, warm: bool) -> Result<Measured> {
    let names = context.size.metadata_files;
    let operation = Operation::Stat(EMPTY);
    let look = Look { directory: FILES, operation, prefix: FILE, names, operations: names, warm };
    look.run(context)
}

#[cfg(test)]
mod tests;
