//! `iozone`: the six tests of iozone by which SSHFS, NFS and SMB are compared: write, re-write,
//! read, re-read in records of 64 KiB, random read and random write of 4 KiB.
//!
//! As with `iozone -e -c`, `fsync` and `close` are in the times of writing. What was written is
//! compared at the place, by digest; what is read is compared block by block. The generator is
//! our own.
//!
//! The floor takes part: `ssh cat` reads and writes in sequence, and SFTP without a file system
//! does all but the re-read, for which it has no memory.

mod random;
mod sequence;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::corpus;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::Place;
use crate::results::LeftOut;
use crate::size::Size;

use super::generator::Relay;
use super::{Step, Work};
use random::{RandomRead, RandomWrite};
use sequence::{Read, Write};

/// Of the file that is read.
const READ_SEED: u64 = 0x10;

/// Of the file that is written at first, then over it, and then here and there in it.
const WRITE_SEEDS: [u64; 3] = [0x11, 0x12, 0x13];

/// iozone's record of the published comparisons.
const RECORD_BYTES: u32 = 64 << 10;

/// Of the random tests.
const BLOCK_BYTES: u32 = 4096;

/// The work.
#[derive(Debug, Default)]
pub struct Iozone {
    /// The file that was written, while it has what the last of these steps has written.
    written: Arc<Relay<PathBuf>>,
}

/// The file of that length that is read; one where both lengths are the same.
fn read_file(bytes: u64) -> PathBuf {
    format!("iozone/read-{bytes}").into()
}

/// Where the digest of the whole file of a seed is in the corpus.
fn digest_file(corpus: &Path, seed: u64) -> PathBuf {
    corpus.join(format!("iozone/written-{seed:x}.sha256"))
}

fn lengths(size: &Size) -> Vec<u64> {
    let mut lengths = vec![size.file_bytes, size.random_file_bytes];
    lengths.dedup();
    lengths
}

fn measure(id: &str, title: &str, unit: Unit, cache: Cache) -> Measure {
    Measure { id: format!("iozone.{id}"), title: title.to_owned(), unit, cache }
}

impl Work for Iozone {
    fn name(&self) -> &'static str {
        "iozone"
    }

    fn about(&self) -> &'static str {
        "The six tests of iozone: a file written, re-written, read, re-read, and at random places"
    }

    fn check(&self) -> Result<(), LeftOut> {
        Ok(())
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        let read: u64 = lengths(size).iter().sum();
        (read + size.file_bytes, read)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<(), Failure> {
        for bytes in lengths(size) {
            corpus::file(&corpus.join("iozone"), &format!("read-{bytes}"), bytes, READ_SEED)?;
        }
        for seed in [WRITE_SEEDS[0], WRITE_SEEDS[1]] {
            fs::write(digest_file(corpus, seed), corpus::digest_content(seed, size.file_bytes))?;
        }
        Ok(())
    }

    fn lay_out(&self, size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        for file in lengths(size).into_iter().map(read_file) {
            place.put(&corpus.join(&file), &file)?;
            place.warm(&file)?;
        }
        Ok(())
    }

    fn steps(&self, _size: &Size) -> Vec<Box<dyn Step>> {
        vec![
            Box::new(Write { again: false, written: self.written.clone() }),
            Box::new(Write { again: true, written: self.written.clone() }),
            Box::new(Read { again: false }),
            Box::new(Read { again: true }),
            Box::new(RandomRead),
            Box::new(RandomWrite { written: self.written.clone() }),
        ]
    }
}

#[cfg(test)]
mod tests;
