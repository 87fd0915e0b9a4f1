//! `fio`: the four jobs of the comparison of NFS, SMB and SSHFS on a network storage: 128 KiB in
//! sequence with 4 requests in flight, 4 KiB at random with 32, direct I/O, by the real fio.
//!
//! The data are verified beside fio, so that its own figures are not those of a checksum. After a
//! read job our generator reads a part of the file in the same way and compares it. Around a write
//! job the file is looked at where it is: exactly as many blocks have to have changed as fio says
//! to have written. After it a second, short job has fio verify what it writes.
//!
//! The floor, SFTP without a file system, does the same by our generator.

mod command;
mod output;
mod read;
mod write;

use std::path::Path;
use std::time::Duration;

use crate::corpus;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::{Cache, Measure, Unit};
use crate::place::Place;
use crate::results::LeftOut;
use crate::size::Size;
use crate::worker::{Order, Target, Transfer, Until};

use super::script::check_installed;
use super::{Step, Work};
use read::Read;
use write::Write;

/// Of the file that is read, and of the other one before it is written for the first time.
const SEED: u64 = 0x20;

const READ_FILE: &str = "fio/read";
const WRITE_FILE: &str = "fio/write";

/// The looks at the file cost time too.
const DEADLINE_FACTOR: f64 = 2.0;

/// The work.
#[derive(Debug)]
pub struct Fio;

/// The two shapes of the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// 128 KiB in sequence, depth 4.
    Sequential,
    /// 4 KiB at random, depth 32.
    Random,
}

impl Shape {
    fn record_bytes(self) -> u32 {
        match self {
            Shape::Sequential => 128 << 10,
            Shape::Random => 4 << 10,
        }
    }

    fn depth(self) -> u32 {
        match self {
            Shape::Sequential => 4,
            Shape::Random => 32,
        }
    }

    fn unit(self) -> Unit {
        match self {
            Shape::Sequential => Unit::BytesPerSecond,
            Shape::Random => Unit::PerSecond,
        }
    }

    /// The same for our generator.
    fn transfer(self, target: Target, size: &Size, seed: u64, until: Until) -> Transfer {
        let order = match self {
            Shape::Sequential => Order::Sequential,
            Shape::Random => Order::Random { seed },
        };
        Transfer {
            target,
            file_bytes: size.random_file_bytes,
            record_bytes: self.record_bytes(),
            order,
            until,
            depth: self.depth(),
            direct: true,
        }
    }

    fn measure(self, write: bool) -> Measure {
        let (id, title) = match (self, write) {
            (Shape::Sequential, false) => ("read", "sequential read, 128 KiB, depth 4, direct"),
            (Shape::Sequential, true) => {
                ("write", "sequential write, 128 KiB, depth 4, direct, fsync at the end")
            }
            (Shape::Random, false) => ("randread", "random read, 4 KiB, depth 32, direct"),
            (Shape::Random, true) => {
                ("randwrite", "random write, 4 KiB, depth 32, direct, fsync at the end")
            }
        };
        let (id, title) = (format!("fio.{id}"), format!("fio: {title}"));
        Measure { id, title, unit: self.unit(), cache: Cache::Direct }
    }
}

fn run_time(size: &Size) -> Duration {
    Duration::from_secs_f64(size.random_seconds)
}

impl Work for Fio {
    fn name(&self) -> &'static str {
        "fio"
    }

    fn about(&self) -> &'static str {
        "The four fio jobs of the NAS comparison: 128 KiB in sequence, 4 KiB at random, direct I/O"
    }

    fn check(&self) -> Result<(), LeftOut> {
        check_installed("fio", &[("fio", "fio")])
    }

    fn space(&self, size: &Size) -> (u64, u64) {
        (2 * size.random_file_bytes, size.random_file_bytes)
    }

    fn make(&self, size: &Size, corpus: &Path, _executor: &Executor) -> Result<(), Failure> {
        corpus::file(corpus, READ_FILE, size.random_file_bytes, SEED).map(drop)
    }

    fn lay_out(&self, _size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure> {
        for file in [READ_FILE, WRITE_FILE].map(Path::new) {
            place.put(&corpus.join(READ_FILE), file)?;
            place.warm(file)?;
        }
        Ok(())
    }

    fn steps(&self, _size: &Size) -> Vec<Box<dyn Step>> {
        vec![
            Box::new(Read(Shape::Sequential)),
            Box::new(Write(Shape::Sequential)),
            Box::new(Read(Shape::Random)),
            Box::new(Write(Shape::Random)),
        ]
    }
}

#[cfg(test)]
mod tests;
