//! Reserved space and holes of open files.

use std::os::fd::AsFd;

use base::{Allocation, Errno, Result, Seek};
use rustix::fs::{FallocateFlags, SeekFrom};

use crate::attr::errno;

/// Reserves or frees a range of a file.
///
/// # Errors
/// Those of `fallocate(2)`.
pub fn fallocate(file: impl AsFd, how: Allocation, offset: u64, len: u64) -> Result<()> {
    let (mut flags, keep_size) = match how {
        Allocation::Reserve { keep_size } => (FallocateFlags::empty(), keep_size),
        Allocation::PunchHole => (FallocateFlags::PUNCH_HOLE, true),
        Allocation::Zero { keep_size } => (FallocateFlags::ZERO_RANGE, keep_size),
    };
    flags.set(FallocateFlags::KEEP_SIZE, keep_size);
    loop {
        match rustix::fs::fallocate(&file, flags, offset, len) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.map_err(errno),
        }
    }
}

/// The next data or hole of a file. Moves the position of the descriptor, which reads and writes at
/// an offset do not use.
///
/// # Errors
/// Those of `lseek(2)`: `ENXIO` if there is none.
pub fn seek(file: impl AsFd, offset: u64, what: Seek) -> Result<u64> {
    if i64::try_from(offset).is_err() {
        return Err(Errno::ENXIO);
    }
    let to = match what {
        Seek::Data => SeekFrom::Data(offset),
        Seek::Hole => SeekFrom::Hole(offset),
    };
    rustix::fs::seek(file, to).map_err(errno)
}
