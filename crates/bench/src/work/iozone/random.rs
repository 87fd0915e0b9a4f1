//! Blocks of 4 KiB of a file, one at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::corpus;
use crate::corpus::content::{self, Content};
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;
use crate::work::Step;
use crate::work::copying::removed;
use crate::work::generator::{Relay, has_files, shown, timed, valued};
use crate::worker::{Check, Fill, Job, Order, Start, Target, Transfer, Until, Walk};

use super::{BLOCK_BYTES, READ_SEED, WRITE_SEEDS, measure, read_file};

fn transfer(context: &StepContext<'_>, target: Target, file_bytes: u64) -> Transfer {
    Transfer {
        target,
        file_bytes,
        record_bytes: BLOCK_BYTES,
        order: Order::Random { seed: context.seed },
        until: Until::Seconds(context.size.random_seconds),
        depth: 1,
        direct: true,
    }
}

/// Random read.
#[derive(Debug)]
pub(super) struct RandomRead;

impl Step for RandomRead {
    fn measure(&self) -> Measure {
        let title = "random read, 4 KiB, one at a time, O_DIRECT where there is such a thing";
        measure("random-read", title, Unit::PerSecond, Cache::Direct)
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        has_files(access)
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        // The file was read just before; without O_DIRECT it would be a test of the page cache.
        context.session.forget(context.executor)?;
        let bytes = context.size.random_file_bytes;
        let target = shown(context, &read_file(bytes))?;
        let check = Check::Content { seed: READ_SEED };
        let job = Job::Read { transfer: transfer(context, target, bytes), check };
        valued(timed(context, &job)?.1, Unit::PerSecond)
    }
}

/// Random write.
#[derive(Debug)]
pub(super) struct RandomWrite {
    pub(super) written: Arc<Relay<PathBuf>>,
}

impl RandomWrite {
    fn write(&self, context: &mut StepContext<'_>, path: &Path) -> Result<Measured, Failure> {
        let target = shown(context, path)?;
        let transfer = transfer(context, target, context.size.file_bytes);
        let order = transfer.order;
        let fill = Fill { seed: WRITE_SEEDS[2] };
        let job = Job::Write { transfer, fill, start: Start::Present, fsync: true };
        let (done, mut measured) = timed(context, &job)?;
        context.settle(&mut measured)?;
        let expected = digest_after(context.size.file_bytes, order, done.operations);
        let found = context.subject.place().digest(path)?;
        if found != expected {
            return Err(Failure::wrong("the file at the place is not what was written"));
        }
        valued(Measured { verified: true, ..measured }, Unit::PerSecond)
    }
}

/// Of the re-written file after so many blocks of it were written in that order.
fn digest_after(file_bytes: u64, order: Order, operations: u64) -> String {
    let [_, old, new] = WRITE_SEEDS.map(Content::new);
    let walk = Walk::new(order, file_bytes.div_ceil(BLOCK_BYTES.into()));
    let mut is_new = vec![false; walk.records() as usize];
    let once = operations.min(walk.records()) as usize;
    walk.take(once).for_each(|block| is_new[block as usize] = true);
    corpus::digest_blocks(file_bytes, |first, bytes| {
        for (block, bytes) in (first..).zip(bytes.chunks_mut(content::BLOCK_BYTES)) {
            let content = if is_new[block as usize] { &new } else { &old };
            content.fill(block, bytes);
        }
    })
}

impl Step for RandomWrite {
    fn measure(&self) -> Measure {
        let title = "random write, 4 KiB, one at a time, O_DIRECT where there is such a thing, \
                     fsync and close included";
        measure("random-write", title, Unit::PerSecond, Cache::Direct)
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        has_files(access)
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let path = self.written.need(context)?;
        let measured = self.write(context, &path);
        removed(context, &path, measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_digest_goes_from_the_old_content_to_the_new() {
        let bytes = 40 * u64::from(BLOCK_BYTES);
        let order = Order::Random { seed: 1 };
        let whole = |seed| corpus::digest_content(seed, bytes);
        assert_eq!(digest_after(bytes, order, 0), whole(WRITE_SEEDS[1]));
        assert_eq!(digest_after(bytes, order, 40), whole(WRITE_SEEDS[2]));
        assert_eq!(digest_after(bytes, order, 1000), whole(WRITE_SEEDS[2]));
        let half = digest_after(bytes, order, 20);
        assert_ne!(half, digest_after(bytes, order, 21));
        assert_ne!(half, digest_after(bytes, Order::Random { seed: 2 }, 20));
    }
}
