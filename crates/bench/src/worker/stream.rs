//! Reads the output, or writes the input, of `ssh HOST cat`: what a connection carries at best.
//!
//! The remote command prints a byte when it runs, and so logging in is not timed. When it takes a
//! file it prints another one when it has it; the timed part ends there.

use std::io::{self, Read, Write};

use super::check::{Checker, too_short};
use super::clock::{Clock, used};
use super::job::{Done, Invocation, Transfer};
use super::sftp::Connection;
use crate::corpus::content::{BLOCK_BYTES, Content};
use crate::failure::Failure;

/// Read at once: more than ssh ever has.
const READ_BYTES: usize = 256 << 10;

/// Waits for the byte that the remote command prints.
fn await_mark(connection: &mut Connection) -> Result<(), Failure> {
    let marked = connection.stream.read_exact(&mut [0]);
    marked.map_err(|error| connection.failure(&error))
}

/// Reads all of it, and compares.
pub(super) fn read(
    ssh: &Invocation,
    transfer: &Transfer,
    mut checker: Checker,
) -> Result<Done, Failure> {
    let mut connection = Connection::start(ssh)?;
    let mut buffer = vec![0; READ_BYTES];
    await_mark(&mut connection)?;

    let before = used();
    let clock = Clock::start();
    let (mut done, mut kept) = (Done { before, ..Done::default() }, 0);
    loop {
        let got = match connection.stream.read(&mut buffer[kept..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got.map_err(|error| connection.failure(&error))?,
        };
        let filled = kept + got;
        // Whole blocks are compared; the rest waits at the front for what completes it.
        let whole = if got == 0 { filled } else { filled - filled % BLOCK_BYTES };
        checker.check(done.bytes, &buffer[..whole])?;
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
        done.bytes += whole as u64;
        if got == 0 {
            break;
        }
    }
    done.seconds = clock.seconds();
    if !connection.finish()? {
        return Err(connection.failure(&io::ErrorKind::UnexpectedEof.into()));
    }
    if done.bytes != transfer.file_bytes {
        return Err(too_short(done.bytes, transfer));
    }
    checker.finish()?;
    Ok(Done { operations: 1, verified: true, ..done })
}

/// Writes all of it.
pub(super) fn write(
    ssh: &Invocation,
    transfer: &Transfer,
    content: &Content,
) -> Result<Done, Failure> {
    let mut connection = Connection::start(ssh)?;
    let mut buffer = vec![0; READ_BYTES];
    await_mark(&mut connection)?;

    let before = used();
    let clock = Clock::start();
    let mut bytes = 0;
    while bytes < transfer.file_bytes {
        let left = usize::try_from(transfer.file_bytes - bytes).unwrap_or(usize::MAX);
        let part = &mut buffer[..left.min(READ_BYTES)];
        content.fill(bytes / BLOCK_BYTES as u64, part);
        let sent = connection.stream.write_all(part);
        sent.map_err(|error| connection.failure(&error))?;
        bytes += part.len() as u64;
    }
    let ended = connection.stream.shutdown(std::net::Shutdown::Write);
    ended.map_err(|error| connection.failure(&error))?;
    await_mark(&mut connection)?;
    let seconds = clock.seconds();
    if !connection.finish()? {
        return Err(connection.failure(&io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Done { seconds, bytes, operations: 1, before, ..Done::default() })
}
