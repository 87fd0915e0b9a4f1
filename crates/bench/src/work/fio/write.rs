//! The write jobs.
//!
//! A job writes over what earlier ones have left, so that nobody knows what is in the file. What
//! can be known is which blocks differ before and after: fio writes random data, and each record
//! once in a pass.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::corpus::content::mix;
use crate::failure::Failure;
use crate::measure::Measure;
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;
use crate::work::Step;
use crate::work::generator::{aside, at_place, has_files, shown, timed, valued};
use crate::worker::{Check, Fill, Job, Order, Start, Target, Transfer, Until};

use super::command::{job, verified_writes};
use super::output::Way;
use super::{DEADLINE_FACTOR, SEED, Shape, WRITE_FILE};

/// Records that fio writes and verifies itself after a job.
const VERIFIED: u64 = 200;

/// Of a look at the file.
const LOOK_BYTES: u32 = 1 << 20;

/// One of them.
#[derive(Debug)]
pub(super) struct Write(pub(super) Shape);

impl Write {
    fn by_fio(
        &self,
        context: &mut StepContext<'_>,
        path: &Path,
    ) -> Result<(Measured, Option<u64>), Failure> {
        let (figures, measured) = job(context, path, self.0, Way::Write)?;
        Ok((figures.into_measured(measured), None))
    }

    /// Gives the seed of what it has written too.
    fn by_generator(
        &self,
        context: &mut StepContext<'_>,
        target: Target,
    ) -> Result<(Measured, Option<u64>), Failure> {
        let seed = fresh_seed();
        let until = Until::Seconds(context.size.random_seconds);
        let transfer = self.0.transfer(target, context.size, context.seed, until);
        let job = Job::Write { transfer, fill: Fill { seed }, start: Start::Present, fsync: true };
        Ok((timed(context, &job)?.1, Some(seed)))
    }

    /// How many blocks of 4 KiB so many writes have changed.
    fn changed_blocks(&self, file_bytes: u64, writes: u64) -> u64 {
        let written = writes.saturating_mul(self.0.record_bytes().into());
        written.min(file_bytes) / 4096
    }
}

/// Of data that were in no file before.
fn fresh_seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    mix(SEED ^ (NEXT.fetch_add(1, Ordering::Relaxed) << 32))
}

/// Reads all of the file, at the place if that can be.
fn look(context: &mut StepContext<'_>, check: Check) -> Result<(), Failure> {
    let transfer = Transfer {
        target: at_place(context, Path::new(WRITE_FILE))?,
        file_bytes: context.size.random_file_bytes,
        record_bytes: LOOK_BYTES,
        order: Order::Sequential,
        until: Until::Pass,
        depth: 1,
        direct: false,
    };
    let transfer = match transfer.target {
        // In requests of the length that the server likes.
        Target::Sftp { .. } => Transfer { record_bytes: 0, depth: 32, ..transfer },
        _ => transfer,
    };
    aside(context, &Job::Read { transfer, check }).map(drop)
}

impl Step for Write {
    fn measure(&self) -> Measure {
        self.0.measure(true)
    }

    fn deadline_factor(&self) -> f64 {
        DEADLINE_FACTOR
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        has_files(access)
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let marks: PathBuf = context.scratch.join("marks");
        look(context, Check::Remember { marks: marks.clone() })?;
        let target = shown(context, Path::new(WRITE_FILE))?;
        let (mut measured, seed) = match &target {
            Target::Path(path) => self.by_fio(context, path)?,
            _ => self.by_generator(context, target)?,
        };
        context.settle(&mut measured)?;
        let blocks = self.changed_blocks(context.size.random_file_bytes, measured.operations);
        look(context, Check::Changed { marks, blocks, seed })?;
        if let Target::Path(path) = shown(context, Path::new(WRITE_FILE))? {
            verified_writes(context, &path, self.0, VERIFIED)?;
            // Nothing of it may be on its way when the next step looks.
            context.settle(&mut Measured::default())?;
        }
        valued(Measured { verified: true, ..measured }, self.0.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_blocks_change_than_there_are() {
        let changed = |shape, writes| Write(shape).changed_blocks(1 << 20, writes);
        assert_eq!(changed(Shape::Random, 0), 0);
        assert_eq!(changed(Shape::Random, 255), 255);
        assert_eq!(changed(Shape::Random, 256), 256);
        assert_eq!(changed(Shape::Random, 1_000_000), 256);
        assert_eq!(changed(Shape::Sequential, 3), 96);
        assert_eq!(changed(Shape::Sequential, 9), 256);
    }
}
