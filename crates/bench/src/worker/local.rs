//! Reads and writes a file of a mounted or local file system, as an application does: one caller
//! that waits for each call.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::check::{Checker, too_short};
use super::clock::{Clock, Latencies};
use super::job::{Check, Done, Fill, Order, Start, Transfer};
use super::walk::Walk;
use crate::corpus::content::{BLOCK_BYTES, Content};
use crate::failure::Failure;

/// Where `O_DIRECT` wants memory to begin; a page suffices for every file system.
const ALIGNMENT_BYTES: usize = 4096;

/// Memory for one record that begins at a page.
struct Aligned {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let memory = vec![0; len + ALIGNMENT_BYTES];
        let begin = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
        Aligned { memory, begin, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.len]
    }
}

/// Opens with `O_DIRECT` if that is wanted and supported; returns whether it did.
fn open(path: &Path, options: &OpenOptions, direct: bool) -> io::Result<(File, bool)> {
    if direct {
        let flags = OFlags::DIRECT.bits().cast_signed();
        match options.clone().custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            opened => return Ok((opened?, true)),
        }
    }
    Ok((options.open(path)?, false))
}

fn named(what: &str, path: &Path) -> impl Fn(io::Error) -> Failure {
    let words = format!("{what} {}", path.display().to_string().escape_debug());
    move |error| Failure::failed(format!("{words}: {error}"))
}

/// The record of a number: where it begins, and its length.
pub(super) fn record(transfer: &Transfer, record_bytes: u32, number: u64) -> (u64, usize) {
    let offset = number * u64::from(record_bytes);
    let len = transfer.file_bytes.saturating_sub(offset).min(record_bytes.into());
    (offset, len as usize)
}

/// The order of the records of a transfer.
pub(super) fn walk(transfer: &Transfer, record_bytes: u32) -> Result<Walk, Failure> {
    if record_bytes == 0 || !(record_bytes as usize).is_multiple_of(BLOCK_BYTES) {
        return Err(Failure::failed(format!("records of {record_bytes} bytes")));
    }
    Ok(Walk::new(transfer.order, transfer.file_bytes.div_ceil(record_bytes.into())))
}

/// Reads as the transfer says, and compares.
pub(super) fn read(path: &Path, transfer: &Transfer, check: &Check) -> Result<Done, Failure> {
    let mut walk = walk(transfer, transfer.record_bytes)?;
    let mut checker = Checker::new(check, transfer)?;
    let mut buffer = Aligned::new(transfer.record_bytes as usize);
    let (mut latencies, mut done) = (Latencies::new(), Done::default());
    let failed = named("read", path);

    let mut clock = Clock::start();
    let (file, direct) =
        open(path, File::options().read(true), transfer.direct).map_err(named("open", path))?;
    while !clock.is_over(transfer.until, done.operations, walk.records()) {
        let (offset, len) = record(transfer, transfer.record_bytes, walk.next().unwrap_or(0));
        let begin = Instant::now();
        let got = read_full(&file, &mut buffer.bytes()[..len], offset).map_err(&failed)?;
        latencies.add(begin.elapsed());
        if got < len {
            return Err(too_short(offset + got as u64, transfer));
        }
        clock.aside(|| checker.check(offset, &buffer.bytes()[..len]))?;
        done.operations += 1;
        done.bytes += len as u64;
    }
    let length = clock.aside(|| file.metadata().map(|found| found.len())).map_err(&failed)?;
    drop(file);
    done.seconds = clock.seconds();
    if length != transfer.file_bytes {
        return Err(too_short(length, transfer));
    }
    checker.finish()?;
    let latency = matches!(transfer.order, Order::Random { .. }).then(|| latencies.into_latency());
    Ok(Done { latency: latency.flatten(), verified: true, direct, ..done })
}

/// Reads until the buffer is full or the file ends; gives how much it was.
fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Writes as the transfer says. Whether it arrived is for the caller to see, at the storage.
pub(super) fn write(
    path: &Path,
    transfer: &Transfer,
    fill: &Fill,
    start: Start,
    fsync: bool,
) -> Result<Done, Failure> {
    let mut walk = walk(transfer, transfer.record_bytes)?;
    let content = Content::new(fill.seed);
    let mut buffer = Aligned::new(transfer.record_bytes as usize);
    let (mut latencies, mut done) = (Latencies::new(), Done::default());
    let mut options = File::options();
    options.write(true).create_new(start == Start::Absent);

    let mut clock = Clock::start();
    let (file, direct) = open(path, &options, transfer.direct).map_err(named("open", path))?;
    while !clock.is_over(transfer.until, done.operations, walk.records()) {
        let (offset, len) = record(transfer, transfer.record_bytes, walk.next().unwrap_or(0));
        let bytes = &mut buffer.bytes()[..len];
        clock.aside(|| content.fill(offset / BLOCK_BYTES as u64, bytes));
        let begin = Instant::now();
        file.write_all_at(bytes, offset).map_err(named("write", path))?;
        latencies.add(begin.elapsed());
        done.operations += 1;
        done.bytes += len as u64;
    }
    if fsync {
        file.sync_all().map_err(named("fsync", path))?;
    }
    // What `close` itself fails with cannot be had here; what it loses is found at the storage.
    drop(file);
    done.seconds = clock.seconds();
    let latency = matches!(transfer.order, Order::Random { .. }).then(|| latencies.into_latency());
    Ok(Done { latency: latency.flatten(), direct, ..done })
}
