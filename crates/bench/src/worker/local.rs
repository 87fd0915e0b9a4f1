//! Reads and writes a file of a mounted or local file system, as an application does: one caller
//! that waits for each call.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::check::too_short;
use super::job::{Done, Order, Transfer};
use super::latencies::Latencies;
use super::walk::Walk;
use super::{Action, Clock};
use crate::corpus::content::BLOCK_BYTES;
use crate::failure::{Failure, Result};
use crate::quoting::shown;

/// Where `O_DIRECT` wants memory to begin; a page suffices for every file system.
const ALIGNMENT_BYTES: usize = 4096;

/// Opens with `O_DIRECT` if that is wanted and supported.
fn open(path: &Path, options: &OpenOptions, direct: bool) -> io::Result<File> {
    if direct {
        let flags = OFlags::DIRECT.bits().cast_signed();
        match options.clone().custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            opened => return opened,
        }
    }
    options.open(path)
}

/// The record of a number: where it begins, and its length.
pub(super) fn record(transfer: &Transfer, record_bytes: u32, number: u64) -> (u64, usize) {
    let offset = number * u64::from(record_bytes);
    let len = transfer.file_bytes.saturating_sub(offset).min(record_bytes.into());
    (offset, len as usize)
}

/// The order of the records of a transfer.
pub(super) fn walk(transfer: &Transfer, record_bytes: u32) -> Result<Walk> {
    if record_bytes == 0 || !(record_bytes as usize).is_multiple_of(BLOCK_BYTES) {
        return Err(Failure::failed(format!("records of {record_bytes} bytes")));
    }
    Ok(Walk::new(transfer.order, transfer.file_bytes.div_ceil(record_bytes.into())))
}

/// Reads and compares, or writes, as the transfer says. Whether written data arrived is for the
/// caller to check, at the storage.
pub(super) fn run(path: &Path, transfer: &Transfer, mut action: Action) -> Result<Done> {
    let failed = |what: &'static str| {
        move |error: io::Error| Failure::failed(format!("{what} {}: {error}", shown(path)))
    };
    let mut walk = walk(transfer, transfer.record_bytes)?;
    let mut memory = vec![0; transfer.record_bytes as usize + ALIGNMENT_BYTES];
    let aligned = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
    let buffer = &mut memory[aligned..];
    let (mut latencies, mut done) = (Latencies::new(), Done::default());
    let mut options = File::options();
    match &action {
        Action::Read(_) => options.read(true),
        Action::Write { create, .. } => options.write(true).create_new(*create),
    };

    let mut clock = Clock::start();
    let file = open(path, &options, transfer.direct).map_err(failed("open"))?;
    while !clock.is_over(transfer.until, done.operations, walk.records()) {
        let (offset, len) = record(transfer, transfer.record_bytes, walk.next().unwrap_or(0));
        let bytes = &mut buffer[..len];
        if let Action::Write { content, .. } = &action {
            clock.aside(|| content.fill(offset / BLOCK_BYTES as u64, bytes));
        }
        let begin = Instant::now();
        let moved = match &action {
            Action::Read(_) => read_full(&file, bytes, offset).map_err(failed("read"))?,
            Action::Write { .. } => {
                file.write_all_at(bytes, offset).map_err(failed("write"))?;
                len
            }
        };
        latencies.add(begin.elapsed());
        if moved < len {
            return Err(too_short(offset + moved as u64, transfer));
        }
        if let Action::Read(checker) = &mut action {
            clock.aside(|| checker.check(offset, bytes))?;
        }
        done.operations += 1;
        done.bytes += len as u64;
    }
    match &action {
        Action::Read(_) => {
            let found = clock.aside(|| file.metadata()).map_err(failed("stat"))?;
            if found.len() != transfer.file_bytes {
                return Err(too_short(found.len(), transfer));
            }
        }
        Action::Write { .. } => file.sync_all().map_err(failed("fsync"))?,
    }
    // What `close` itself fails with cannot be had here; what it loses is found at the storage.
    drop(file);
    done.seconds = clock.seconds();
    let latency = latencies.into_latency().filter(|_| transfer.order != Order::Sequential);
    Ok(Done { latency, verified: action.finish()?, ..done })
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
