//! `fio`: the four jobs of the comparison of NFS, SMB and SSHFS on a network storage: 128 KiB in
//! sequence with 4 requests in flight, 4 KiB at random with 32, direct I/O, by the real fio.
//!
//! The data are verified outside of the timed jobs, so that fio's figures do not include a
//! checksum. After a read job our generator reads a part of the file and compares it. Before and
//! after a write job all blocks of the file are read in the storage: exactly as many of them must
//! have changed as fio reports to have written. Then a second, short job has fio verify its writes.
//!
//! SFTP without a file system and NFS without a kernel client have no file for fio: our generator
//! does the same.

mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::corpus;
use crate::corpus::content::mix;
use crate::executor::Executor;
use crate::failure::Result;
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::size::Size;
use crate::step::StepContext;
use crate::worker::{Check, Job, Order, Target, Transfer, Until};

use super::generator::{aside, at_storage, shown, timed};
use super::{Step, TRANSFER_FILES, Workload, measure};
use program::{Direction, job, verified_writes};

/// Content of the file that is read, and of the other one before its first write.
const SEED: u64 = 0x20;

const READ_FILE: &str = "fio/read";
const WRITE_FILE: &str = "fio/write";

/// Reading the blocks of the file takes time too.
const DEADLINE_FACTOR: f64 = 2.0;

/// Records that are verified after a job.
const VERIFIED: u64 = 200;

/// Read at once when all blocks of the file are read.
const BLOCKS_BYTES: u32 = 1 << 20;

/// The body of a step.
type Body = fn(&mut StepContext<'_>, Shape) -> Result<Measured>;

/// The workload.
#[derive(Debug)]
pub struct Fio;

/// The shape of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// In front of the direction, in fio's `--rw`.
    prefix: &'static str,
    record_bytes: u32,
    depth: u32,
    unit: Unit,
    /// Each record once, instead of for a time.
    whole: bool,
}

const SEQUENTIAL: Shape = Shape {
    prefix: "",
    record_bytes: 128 << 10,
    depth: 4,
    unit: Unit::BytesPerSecond,
    whole: false,
};
const RANDOM: Shape =
    Shape { prefix: "rand", record_bytes: 4 << 10, depth: 32, unit: Unit::PerSecond, whole: false };

impl Shape {
    /// When a job of our generator ends.
    fn until(self, size: &Size) -> Until {
        if self.whole { Until::Pass } else { Until::Seconds(size.random_seconds) }
    }

    /// A job of this shape for our generator.
    fn transfer(self, context: &StepContext<'_>, target: Target, until: Until) -> Transfer {
        let bytes = context.size.fio.bytes;
        let transfer = match self.unit {
            Unit::BytesPerSecond => {
                Transfer { until, ..Transfer::pass(target, bytes, self.record_bytes) }
            }
            _ => Transfer::at_random(target, bytes, context.seed, until),
        };
        Transfer { depth: self.depth, direct: true, ..transfer }
    }

    /// The number of 4 KiB blocks that `writes` writes change.
    fn changed_blocks(self, file_bytes: u64, writes: u64) -> u64 {
        let written = writes.saturating_mul(self.record_bytes.into());
        written.min(file_bytes) / 4096
    }
}

impl Workload for Fio {
    fn name(&self) -> &'static str {
        "fio"
    }

    fn about(&self) -> &'static str {
        "The four fio jobs of the NAS comparison: 128 KiB in sequence, 4 KiB at random, direct I/O"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("fio", "fio")]
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        (2 * size.fio.bytes, size.fio.bytes)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<()> {
        let file = corpus::file(corpus, READ_FILE, size.fio.bytes, SEED)?;
        // Each storage has a copy of its own.
        Ok(fs::hard_link(file, corpus.join(WRITE_FILE))?)
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        vec![READ_FILE.into(), WRITE_FILE.into()]
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        let in_sequence = "sequential %, 128 KiB, depth 4, direct";
        let at_random = "random %, 4 KiB, depth 32, direct";
        let jobs: [(_, _, _, Body); 4] = [
            ("read", in_sequence, SEQUENTIAL, read),
            ("write", in_sequence, SEQUENTIAL, write),
            ("randread", at_random, RANDOM, read),
            ("randwrite", at_random, RANDOM, write),
        ];
        let step = |(id, title, shape, body): (&str, &str, Shape, Body), whole: bool| {
            let is_write = id.ends_with("write");
            let (verb, behind) =
                if is_write { ("write", ", fsync at the end") } else { ("read", "") };
            let id = format!("{id}{}", if whole { "-all" } else { "" });
            let once = if whole { ", each record of the file once" } else { "" };
            let title = format!("fio: {}{once}{behind}", title.replace('%', verb));
            let measure = measure("fio", &id, &title, shape.unit, Cache::Direct);
            let shape = Shape { whole, ..shape };
            let step = Step::new(measure, TRANSFER_FILES, move |context| body(context, shape));
            // All blocks of the file are read before and after it is written.
            let passes = u64::from(whole) + 2 * u64::from(is_write);
            step.with_deadline(DEADLINE_FACTOR).over(passes * size.fio.bytes)
        };
        let mut steps = Vec::new();
        if size.fio.jobs.is_timed() {
            steps.extend(jobs.map(|job| step(job, false)));
        }
        if size.fio.jobs.is_whole() {
            // As published: write before read.
            steps.extend([1, 0, 3, 2].map(|number| step(jobs[number], true)));
        }
        steps
    }
}

fn read(context: &mut StepContext<'_>, shape: Shape) -> Result<Measured> {
    let target = shown(context, Path::new(READ_FILE))?;
    let check = Check::Content { seed: SEED };
    if let Target::Path(path) = &target {
        let measured = job(context, path, shape, Direction::Read)?;
        let transfer = shape.transfer(context, target, Until::Operations(VERIFIED));
        // From all over the file, also after a sequential job.
        let transfer = Transfer { order: Order::Random { seed: context.seed }, ..transfer };
        aside(context, &Job::Read { transfer, check })?;
        Ok(Measured { verified: true, ..measured })
    } else {
        let transfer = shape.transfer(context, target, shape.until(context.size));
        timed(context, &Job::Read { transfer, check })
    }
}

/// A job overwrites data of earlier jobs, so the content of the file is not known. Known is which
/// blocks differ before and after: fio writes random data, and each record once in a pass.
fn write(context: &mut StepContext<'_>, shape: Shape) -> Result<Measured> {
    let marks = context.scratch.join("marks");
    read_blocks(context, Check::Remember { marks: marks.clone() })?;
    let target = shown(context, Path::new(WRITE_FILE))?;
    let (mut measured, seed) = if let Target::Path(path) = &target {
        (job(context, path, shape, Direction::Write)?, None)
    } else {
        let seed = fresh_seed();
        let transfer = shape.transfer(context, target, shape.until(context.size));
        let job = Job::Write { transfer, seed, create: false };
        (timed(context, &job)?, Some(seed))
    };
    context.settle(&mut measured)?;
    let blocks = shape.changed_blocks(context.size.fio.bytes, measured.operations);
    read_blocks(context, Check::Changed { marks, blocks, seed })?;
    if let Target::Path(path) = shown(context, Path::new(WRITE_FILE))? {
        verified_writes(context, &path, shape, VERIFIED)?;
        // The next step must not find writes in flight.
        context.settle(&mut Measured::default())?;
    }
    Ok(Measured { verified: true, ..measured })
}

/// The seed of content that was in no file before.
fn fresh_seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Half of all seeds are of content that compresses.
    mix(SEED ^ (NEXT.fetch_add(1, Ordering::Relaxed) << 32)) >> 1
}

/// Reads all of the written file, in the storage if this machine can reach it.
fn read_blocks(context: &mut StepContext<'_>, check: Check) -> Result<()> {
    let target = at_storage(context, Path::new(WRITE_FILE))?;
    // Over SFTP by requests of the greatest length that the server allows.
    let (record_bytes, depth) = match target {
        Target::Sftp { .. } => (0, 32),
        _ => (BLOCKS_BYTES, 1),
    };
    let bytes = context.size.fio.bytes;
    let transfer = Transfer { depth, ..Transfer::pass(target, bytes, record_bytes) };
    aside(context, &Job::Read { transfer, check })
}

#[cfg(test)]
mod tests;
