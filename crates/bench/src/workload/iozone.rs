//! `iozone`: the six tests of iozone by which SSHFS, NFS and SMB are compared: write, re-write,
//! read, re-read in records of 64 KiB, random read and random write of 4 KiB.
//!
//! As with `iozone -e -c`, `fsync` and `close` are in the times of writing. Written files are
//! compared in the storage, by digest; reads are compared block by block. The generator is our own.
//!
//! SFTP without a file system and NFS without a kernel client take part, but for the re-read, since
//! they have no cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::corpus;
use crate::corpus::content::{self, Content};
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::measure::{Cache, Unit};
use crate::results::Measured;
use crate::size::Size;
use crate::step::StepContext;
use crate::worker::{Check, Job, Order, Target, Transfer, Until, Walk};

use super::copying::{fresh, removed};
use super::generator::{Relay, shown, timed, valued};
use super::{DIRECTORY, Step, TRANSFER_FILES, Workload, measure};

/// Content of the file that is read.
const READ_SEED: u64 = 0x10;

/// Contents of the file that is written, then re-written, then written at random.
const WRITE_SEEDS: [u64; 3] = [0x11, 0x12, 0x13];

/// Records of the published comparisons.
const RECORD_BYTES: u32 = 64 << 10;

/// Records of the random tests.
const BLOCK_BYTES: u32 = 4096;

/// Requests in flight of SFTP without a file system; at most two megabytes in all.
const FLOOR_DEPTH: u32 = 32;

/// The written file, while it has the data of the last of these steps.
type Written = Arc<Relay<PathBuf>>;

/// The body of a step.
type Body = fn(&mut StepContext<'_>, &Written) -> Result<Measured>;

/// The workload.
#[derive(Debug, Default)]
pub struct Iozone {
    written: Written,
}

/// The file to read, for each length.
fn read_file(bytes: u64) -> PathBuf {
    format!("iozone/read-{bytes}").into()
}

/// The digest of a written file, in the corpus.
fn digest_file(corpus: &Path, seed: u64) -> PathBuf {
    corpus.join(format!("iozone/written-{seed:x}.sha256"))
}

fn lengths(size: &Size) -> Vec<u64> {
    let mut lengths = vec![size.file_bytes, size.random_file_bytes];
    lengths.dedup();
    lengths
}

impl Workload for Iozone {
    fn name(&self) -> &'static str {
        "iozone"
    }

    fn about(&self) -> &'static str {
        "The six tests of iozone: a file written, re-written, read, re-read, and at random places"
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let read: u64 = lengths(size).iter().sum();
        (read + size.file_bytes, read)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<()> {
        for bytes in lengths(size) {
            corpus::file(&corpus.join("iozone"), &format!("read-{bytes}"), bytes, READ_SEED)?;
        }
        for seed in [WRITE_SEEDS[0], WRITE_SEEDS[1]] {
            fs::write(digest_file(corpus, seed), corpus::digest_content(seed, size.file_bytes))?;
        }
        Ok(())
    }

    fn data(&self, size: &Size) -> Vec<PathBuf> {
        lengths(size).into_iter().map(read_file).collect()
    }

    fn steps(&self, _size: &Size) -> Vec<Step> {
        let step = |id, title, unit, cache, accesses, body: Body| {
            let written = self.written.clone();
            let measure = measure("iozone", id, title, unit, cache);
            Step::new(measure, accesses, move |context| body(context, &written))
        };
        let (bytes, operations) = (Unit::BytesPerSecond, Unit::PerSecond);
        vec![
            step(
                "write",
                "sequential write, 64 KiB records, fsync and close included",
                bytes,
                Cache::None,
                TRANSFER_FILES,
                |context, written| write(context, written, false),
            ),
            step(
                "rewrite",
                "sequential re-write, 64 KiB records, fsync and close included",
                bytes,
                Cache::None,
                TRANSFER_FILES,
                |context, written| write(context, written, true),
            ),
            step(
                "read",
                "sequential read, 64 KiB records",
                bytes,
                Cache::Cold,
                TRANSFER_FILES,
                |context, _| read(context),
            ),
            step(
                "reread",
                "sequential re-read, 64 KiB records, file reopened",
                bytes,
                Cache::Hot,
                DIRECTORY,
                |context, _| read(context),
            ),
            step(
                "random-read",
                "random read, 4 KiB, one at a time, O_DIRECT where there is such a thing",
                operations,
                Cache::Direct,
                TRANSFER_FILES,
                |context, _| random_read(context),
            ),
            step(
                "random-write",
                "random write, 4 KiB, one at a time, O_DIRECT where there is such a thing, \
                 fsync and close included",
                operations,
                Cache::Direct,
                TRANSFER_FILES,
                random_write,
            ),
        ]
    }
}

/// The transfer of the sequential tests.
fn in_sequence(target: Target, file_bytes: u64) -> Transfer {
    // The floor uses the longest records of the server, not those of iozone.
    let record_bytes = match target {
        Target::Sftp { .. } => 0,
        Target::Path(_) | Target::Nfs { .. } => RECORD_BYTES,
    };
    Transfer { depth: FLOOR_DEPTH, ..Transfer::pass(target, file_bytes, record_bytes) }
}

/// Write and re-write.
fn write(context: &mut StepContext<'_>, written: &Written, again: bool) -> Result<Measured> {
    let path = if again {
        written.need(context)?
    } else {
        let storage = context.subject.storage();
        if let Some(left) = written.take(context) {
            storage.remove(&left)?;
        }
        storage.make_dir(Path::new("iozone"))?;
        fresh("iozone/new")
    };
    let measured = write_file(context, &path, again);
    if measured.is_err() {
        return removed(context, &path, measured);
    }
    written.leave(context, path);
    measured
}

fn write_file(context: &mut StepContext<'_>, path: &Path, again: bool) -> Result<Measured> {
    let transfer = in_sequence(shown(context, path)?, context.size.file_bytes);
    let seed = WRITE_SEEDS[usize::from(again)];
    let job = Job::Write { transfer, seed, create: !again };
    let (_, mut measured) = timed(context, &job)?;
    context.settle(&mut measured)?;
    compare(context, path, &fs::read_to_string(digest_file(context.corpus, seed))?)?;
    valued(Measured { verified: true, ..measured }, Unit::BytesPerSecond)
}

fn compare(context: &StepContext<'_>, path: &Path, digest: &str) -> Result<()> {
    if context.subject.storage().digest(path)? == digest {
        return Ok(());
    }
    Err(Failure::wrong("the file in the storage is not what was written"))
}

/// Read and re-read.
fn read(context: &mut StepContext<'_>) -> Result<Measured> {
    let bytes = context.size.file_bytes;
    let target = shown(context, &read_file(bytes))?;
    let check = Check::Content { seed: READ_SEED };
    let job = Job::Read { transfer: in_sequence(target, bytes), check };
    valued(timed(context, &job)?.1, Unit::BytesPerSecond)
}

/// The transfer of the random tests.
fn at_random(context: &StepContext<'_>, target: Target, file_bytes: u64) -> Transfer {
    let until = Until::Seconds(context.size.random_seconds);
    Transfer { direct: true, ..Transfer::at_random(target, file_bytes, context.seed, until) }
}

fn random_read(context: &mut StepContext<'_>) -> Result<Measured> {
    // The file was read just before; without O_DIRECT the page cache would be measured.
    context.session.forget(context.executor)?;
    let bytes = context.size.random_file_bytes;
    let target = shown(context, &read_file(bytes))?;
    let check = Check::Content { seed: READ_SEED };
    let job = Job::Read { transfer: at_random(context, target, bytes), check };
    valued(timed(context, &job)?.1, Unit::PerSecond)
}

fn random_write(context: &mut StepContext<'_>, written: &Written) -> Result<Measured> {
    let path = written.need(context)?;
    let measured = random_write_to(context, &path);
    removed(context, &path, measured)
}

fn random_write_to(context: &mut StepContext<'_>, path: &Path) -> Result<Measured> {
    let bytes = context.size.file_bytes;
    let transfer = at_random(context, shown(context, path)?, bytes);
    let order = transfer.order;
    let job = Job::Write { transfer, seed: WRITE_SEEDS[2], create: false };
    let (done, mut measured) = timed(context, &job)?;
    context.settle(&mut measured)?;
    compare(context, path, &digest_after(bytes, order, done.operations))?;
    valued(Measured { verified: true, ..measured }, Unit::PerSecond)
}

/// The digest of the re-written file after some blocks of it were written in this order.
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

#[cfg(test)]
mod tests;
