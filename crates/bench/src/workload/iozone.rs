//! `iozone`: the six tests of iozone by which SSHFS, NFS and SMB are compared: write, re-write,
//! read, re-read in sequence, random read and random write. The generator is our own.
//!
//! As with `iozone -e -c`, `fsync` and `close` are in the times of writing, those of the whole file
//! at random included. Written files are compared in the storage, by digest; reads are compared
//! block by block.
//!
//! The random tests are timed, with `O_DIRECT`; or they go over the whole file once in a random
//! order through the page cache, as `iozone -i 2` does; or both.
//!
//! SFTP without a file system and NFS without a kernel client take part, but for the re-read, since
//! they have no cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::corpus;
use crate::corpus::content::{self, Content};
use crate::executor::Executor;
use crate::failure::Result;
use crate::measure::{Cache, Unit};
use crate::results::{Measured, SubjectInfo};
use crate::size::{IozoneSize, Size};
use crate::step::StepContext;
use crate::worker::{Check, Job, Target, Transfer, Until, Walk};

use super::copying::{fresh, removed, same};
use super::generator::{Relay, aside, shown, timed};
use super::{DIRECTORY, Step, TRANSFER_FILES, Workload, measure};

/// Content of the file that is read.
const READ_SEED: u64 = 0x10;

/// Contents of the file that is written, then re-written, then written at random.
const WRITE_SEEDS: [u64; 3] = [0x11, 0x12, 0x13];

/// A record of the sequential tests. Those of the random tests are blocks of the content.
const SEQUENTIAL_BYTES: u32 = 64 << 10;

/// Requests in flight of SFTP without a file system; at most two megabytes in all.
const FLOOR_DEPTH: u32 = 32;

/// The file that the last step has left.
#[derive(Debug)]
struct Left {
    path: PathBuf,
    bytes: u64,
}

/// What the steps of a session leave to each other.
type Written = Arc<Relay<Left>>;

/// The body of a step.
type Body = fn(&mut StepContext<'_>, &Written, Data) -> Result<Measured>;

/// The workload.
#[derive(Debug, Default)]
pub struct Iozone {
    written: Written,
}

/// What is in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    Incompressible,
    Compressible,
}

impl Data {
    /// Those of a run.
    fn of(size: &IozoneSize) -> &'static [Data] {
        match size.compressible_for {
            [] => &[Data::Incompressible],
            _ => &[Data::Incompressible, Data::Compressible],
        }
    }

    fn seed(self, seed: u64) -> u64 {
        match self {
            Data::Incompressible => seed,
            Data::Compressible => content::compressible(seed),
        }
    }

    /// In front of ids and behind titles.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Data::Incompressible => ("", ""),
            Data::Compressible => ("compressible.", ", data that compress"),
        }
    }

    /// The file to read, for each length.
    fn read_file(self, bytes: u64) -> PathBuf {
        format!("iozone/{}read-{bytes}", self.words().0).into()
    }

    /// The digest of a written file, in the corpus.
    fn digest_file(self, corpus: &Path, seed: u64) -> PathBuf {
        corpus.join(format!("iozone/{}written-{seed:x}.sha256", self.words().0))
    }
}

fn lengths(size: &IozoneSize) -> Vec<u64> {
    let mut lengths = vec![size.sequential_bytes, size.random_bytes];
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
        let size = &size.iozone;
        let read = lengths(size).iter().sum::<u64>() * Data::of(size).len() as u64;
        (read + size.sequential_bytes.max(size.random_bytes), read)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<()> {
        let size = &size.iozone;
        for data in Data::of(size) {
            for bytes in lengths(size) {
                let path = data.read_file(bytes);
                corpus::file(corpus, &path.to_string_lossy(), bytes, data.seed(READ_SEED))?;
            }
            for seed in [WRITE_SEEDS[0], WRITE_SEEDS[1]] {
                let digest = corpus::digest_content(data.seed(seed), size.sequential_bytes);
                fs::write(data.digest_file(corpus, seed), digest)?;
            }
        }
        Ok(())
    }

    fn data(&self, size: &Size) -> Vec<PathBuf> {
        let files = |data: &Data| {
            let data = *data;
            lengths(&size.iozone).into_iter().map(move |bytes| data.read_file(bytes))
        };
        Data::of(&size.iozone).iter().flat_map(files).collect()
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        let size = &size.iozone;
        let mut steps = self.steps_on(size, Data::Incompressible);
        if Data::of(size).contains(&Data::Compressible) {
            let named = size.compressible_for;
            let concerns = |subject: &SubjectInfo| {
                named.contains(&subject.control_of.as_deref().unwrap_or(&subject.name))
            };
            let compressible = self.steps_on(size, Data::Compressible).into_iter();
            steps.extend(compressible.map(|step| step.only_for(concerns)));
        }
        steps
    }
}

impl Iozone {
    /// The tests on such data.
    fn steps_on(&self, size: &IozoneSize, data: Data) -> Vec<Step> {
        let (before, behind) = data.words();
        let step = |id: &str, title: &str, unit, cache, accesses, body: Body| {
            let written = self.written.clone();
            let title = format!("{title}{behind}");
            let measure = measure("iozone", &format!("{before}{id}"), &title, unit, cache);
            Step::new(measure, accesses, move |context| body(context, &written, data))
        };
        let (synced, none) = (", fsync and close included", "");
        let sequential: [(_, _, _, _, _, Body); 4] = [
            ("write", "write", synced, Cache::None, TRANSFER_FILES, write),
            ("rewrite", "re-write", synced, Cache::None, TRANSFER_FILES, rewrite),
            ("read", "read", none, Cache::Cold, TRANSFER_FILES, read),
            ("reread", "re-read", ", file reopened", Cache::Hot, DIRECTORY, read),
        ];
        let mut steps = Vec::new();
        for (id, verb, how, cache, accesses, body) in sequential {
            let title = format!("sequential {verb}, 64 KiB records{how}");
            let step = step(id, &title, Unit::BytesPerSecond, cache, accesses, body);
            steps.push(step.over(size.sequential_bytes));
        }
        let one = "4 KiB, one at a time";
        let timed = "O_DIRECT where there is such a thing";
        let whole = "buffered, each record of the file once";
        let random: [(_, _, _, Body); 4] = [
            ("random-read", timed, Cache::Direct, |context, _, data| {
                // The file was read just before; without O_DIRECT the page cache would be measured.
                context.session.forget(context.executor)?;
                read_at_random(context, data, false)
            }),
            ("random-read-all", whole, Cache::Cold, |context, _, data| {
                read_at_random(context, data, true)
            }),
            ("random-write", timed, Cache::Direct, |context, written, data| {
                overwrite(context, written, data, false)
            }),
            ("random-write-all", whole, Cache::None, |context, written, data| {
                overwrite(context, written, data, true)
            }),
        ];
        for (id, how, cache, body) in random {
            let is_whole = id.ends_with("-all");
            if !(if is_whole { size.random.is_whole() } else { size.random.is_timed() }) {
                continue;
            }
            let title = match id.contains("write") {
                true => format!("random write, {one}, {how}, fsync and close included"),
                false => format!("random read, {one}, {how}"),
            };
            let step = step(id, &title, Unit::PerSecond, cache, TRANSFER_FILES, body);
            // The file may have to be written first.
            let passes = u64::from(is_whole) + u64::from(id.contains("write"));
            steps.push(step.over(passes * size.random_bytes));
        }
        steps
    }
}

/// The transfer of the sequential tests.
fn in_sequence(target: Target, file_bytes: u64) -> Transfer {
    // The floor uses the longest records of the server, not those of iozone.
    let is_floor = matches!(target, Target::Sftp { .. });
    let record_bytes = if is_floor { 0 } else { SEQUENTIAL_BYTES };
    Transfer { depth: FLOOR_DEPTH, ..Transfer::pass(target, file_bytes, record_bytes) }
}

fn write(context: &mut StepContext<'_>, written: &Written, data: Data) -> Result<Measured> {
    let storage = context.subject.storage();
    if let Some(left) = written.take(context) {
        storage.remove(&left.path)?;
    }
    storage.make_dir(Path::new("iozone"))?;
    write_in_sequence(context, written, data, fresh("iozone/new"), 0)
}

fn rewrite(context: &mut StepContext<'_>, written: &Written, data: Data) -> Result<Measured> {
    let path = written.need(context)?.path;
    write_in_sequence(context, written, data, path, 1)
}

/// Writes the content of a number, and leaves the file.
fn write_in_sequence(
    context: &mut StepContext<'_>,
    written: &Written,
    data: Data,
    path: PathBuf,
    number: usize,
) -> Result<Measured> {
    let measured = write_file(context, data, &path, number);
    if measured.is_err() {
        return removed(context, &path, measured);
    }
    written.leave(context, Left { path, bytes: context.size.iozone.sequential_bytes });
    measured
}

fn write_file(
    context: &mut StepContext<'_>,
    data: Data,
    path: &Path,
    number: usize,
) -> Result<Measured> {
    let size = &context.size.iozone;
    let transfer = in_sequence(shown(context, path)?, size.sequential_bytes);
    let seed = WRITE_SEEDS[number];
    let job = Job::Write { transfer, seed: data.seed(seed), create: number == 0 };
    let mut measured = timed(context, &job)?;
    context.settle(&mut measured)?;
    compare(context, path, &fs::read_to_string(data.digest_file(context.corpus, seed))?)?;
    Ok(Measured { verified: true, ..measured })
}

fn compare(context: &StepContext<'_>, path: &Path, digest: &str) -> Result<()> {
    let found = context.subject.storage().digest(path)?;
    same(&found, digest, "the file in the storage is not what was written")
}

/// Read and re-read.
fn read(context: &mut StepContext<'_>, _: &Written, data: Data) -> Result<Measured> {
    let size = &context.size.iozone;
    let target = shown(context, &data.read_file(size.sequential_bytes))?;
    let check = Check::Content { seed: data.seed(READ_SEED) };
    let job = Job::Read { transfer: in_sequence(target, size.sequential_bytes), check };
    timed(context, &job)
}

/// The transfer of the timed tests, and of those of the whole file.
fn at_random(context: &StepContext<'_>, target: Target, whole: bool) -> Transfer {
    let size = &context.size.iozone;
    let until = match whole {
        true => Until::Pass,
        false => Until::Seconds(context.size.random_seconds),
    };
    let transfer = Transfer::at_random(target, size.random_bytes, context.seed, until);
    Transfer { direct: !whole, ..transfer }
}

fn read_at_random(context: &mut StepContext<'_>, data: Data, whole: bool) -> Result<Measured> {
    let target = shown(context, &data.read_file(context.size.iozone.random_bytes))?;
    let check = Check::Content { seed: data.seed(READ_SEED) };
    let job = Job::Read { transfer: at_random(context, target, whole), check };
    timed(context, &job)
}

/// The test of the whole file is the last one; it has the file that the timed one has left.
fn overwrite(
    context: &mut StepContext<'_>,
    written: &Written,
    data: Data,
    whole: bool,
) -> Result<Measured> {
    let path = file_to_overwrite(context, written, data)?;
    let measured = write_at_random(context, data, &path, whole);
    if measured.is_err() || whole || !context.size.iozone.random.is_whole() {
        return removed(context, &path, measured);
    }
    written.leave(context, Left { path, bytes: context.size.iozone.random_bytes });
    measured
}

/// The re-written file, or one of the length of the random tests, written through the subject as
/// iozone itself does it.
fn file_to_overwrite(
    context: &mut StepContext<'_>,
    written: &Written,
    data: Data,
) -> Result<PathBuf> {
    let size = &context.size.iozone;
    let left = written.need(context)?;
    if left.bytes == size.random_bytes {
        return Ok(left.path);
    }
    context.subject.storage().remove(&left.path)?;
    let path = fresh("iozone/new");
    let transfer = in_sequence(shown(context, &path)?, size.random_bytes);
    let job = Job::Write { transfer, seed: data.seed(WRITE_SEEDS[1]), create: true };
    let made = aside(context, &job).and_then(|()| context.session.settle(context.executor));
    match made {
        Ok(()) => Ok(path),
        Err(failure) => removed(context, &path, Err(failure)),
    }
}

fn write_at_random(
    context: &mut StepContext<'_>,
    data: Data,
    path: &Path,
    whole: bool,
) -> Result<Measured> {
    let transfer = at_random(context, shown(context, path)?, whole);
    let job = Job::Write { transfer, seed: data.seed(WRITE_SEEDS[2]), create: false };
    let mut measured = timed(context, &job)?;
    context.settle(&mut measured)?;
    let Job::Write { transfer, .. } = job else { unreachable!("it is a write") };
    compare(context, path, &digest_after(data, &transfer, measured.operations))?;
    Ok(Measured { verified: true, ..measured })
}

/// The digest of the re-written file after some records of it were written as `transfer` says.
fn digest_after(data: Data, transfer: &Transfer, operations: u64) -> String {
    let Transfer { file_bytes, order, .. } = *transfer;
    let [old, new] = [WRITE_SEEDS[1], WRITE_SEEDS[2]].map(|seed| Content::new(data.seed(seed)));
    let walk = Walk::new(order, file_bytes.div_ceil(content::BLOCK_BYTES as u64));
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
