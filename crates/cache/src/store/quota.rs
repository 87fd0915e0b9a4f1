//! The quota: how much a store takes on the disk, and whether more may be written.
//!
//! The bytes taken are one number in the file `usage`, which all processes change under its lock; a
//! scan by the housekeeping corrects it after a crash. Space is reserved before anything is
//! written, so the bound holds at every moment, and not only after a clean-up.
//!
//! A disk that is full or fails turns writing off for a minute, and logs one warning.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use base::Mutex;

use rustix::fs::StatVfs;

use crate::codec::{Reader, Writer};
use crate::dir_fd::{self, read_exact_at};

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(60);

/// The default bound on the size of a store.
const DEFAULT_SIZE_BYTES: u64 = 20 << 30;

/// The unit of disk space, for files whose blocks are not known.
const BLOCK_BYTES: u64 = 4096;

/// Inodes that must be free on a file system of any size: more than are used between two checks.
const LEAST_FILES: u64 = 64;

const USAGE_BYTES: usize = 16 + 16;

/// The disk space of `bytes` of content.
pub(crate) fn on_disk(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

/// The bounds of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Bytes that the store takes; `None` for the default.
    pub(crate) size: Option<u64>,
    /// Bytes of the disk that stay free; `None` for the default.
    pub(crate) free: Option<u64>,
}

/// Length of the bounds as a file.
pub(super) const BOUNDS_BYTES: u64 = 2 * 9 + 16;

impl Bounds {
    /// The bound on the bytes that the store takes on this disk.
    pub(crate) fn size_bytes(&self, disk: &StatVfs) -> u64 {
        self.size.unwrap_or_else(|| DEFAULT_SIZE_BYTES.min(disk.f_blocks * disk.f_frsize / 10))
    }

    /// Bytes to be left free on this disk.
    pub(crate) fn free_bytes(&self, disk: &StatVfs) -> u64 {
        self.free.unwrap_or(disk.f_blocks * disk.f_frsize / 20)
    }

    /// The encoded bounds.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        for bound in [self.size, self.free] {
            writer.u8(u8::from(bound.is_some())).u64(bound.unwrap_or(0));
        }
        writer.seal()
    }

    /// The decoded bounds; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Bounds> {
        let mut reader = Reader::sealed(bytes)?;
        let mut bound = || {
            let is_there = reader.flag()?;
            let bytes = reader.u64()?;
            Some(is_there.then_some(bytes))
        };
        Some(Bounds { size: bound()?, free: bound()? })
    }
}

/// The free space of a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeSpace {
    pub(crate) bytes: u64,
    /// Free inodes; `None` where the file system does not count them.
    files: Option<u64>,
    /// A hundredth of the disk, in inodes and in bytes.
    hundredth: (u64, u64),
}

impl FreeSpace {
    pub(crate) fn on(disk: &StatVfs) -> FreeSpace {
        FreeSpace {
            bytes: disk.f_bavail * disk.f_frsize,
            files: (disk.f_files > 0).then_some(disk.f_favail),
            hundredth: (disk.f_files / 100, disk.f_blocks * disk.f_frsize / 100),
        }
    }

    /// Whether `bytes` more in a few files leave `free_bytes`.
    pub(crate) fn fits(&self, bytes: u64, free_bytes: u64) -> bool {
        self.bytes >= free_bytes.saturating_add(bytes) && !self.lacks_files()
    }

    /// Bytes to evict for the free space and the next writes; 0 if there is enough.
    pub(crate) fn missing_bytes(&self, free_bytes: u64) -> u64 {
        let (soon, enough) =
            (self.hundredth.1.max(free_bytes / 10), 2 * self.hundredth.1.max(free_bytes / 10));
        match self.bytes < free_bytes.saturating_add(soon) {
            true => free_bytes.saturating_add(enough) - self.bytes,
            false => 0,
        }
    }

    /// Whether hardly any free inodes are left.
    pub(crate) fn lacks_files(&self) -> bool {
        self.files.is_some_and(|files| files < self.hundredth.0.max(LEAST_FILES))
    }
}

/// The number in the file `usage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    /// When the store was last scanned, in seconds since 1970; 0 for never.
    pub(crate) scanned_secs: i64,
}

/// Changes the number under its lock and returns the new one. `None` if the lock could not be
/// taken: the number is then a little wrong until the next scan.
pub(crate) fn change(
    file: &File,
    change: impl FnOnce(Usage) -> Usage,
) -> io::Result<Option<Usage>> {
    if !dir_fd::lock(file)? {
        return Ok(None);
    }
    let new = change(read(file)?);
    let written = write(file, new);
    rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock)?;
    written.map(|()| Some(new))
}

/// The present number; a damaged one is read as zero, never scanned.
pub(crate) fn read(file: &File) -> io::Result<Usage> {
    let bytes = read_exact_at(file, 0, USAGE_BYTES)?;
    let decode = |bytes: Vec<u8>| {
        let mut reader = Reader::sealed(&bytes)?;
        Some(Usage { bytes: reader.u64()?, scanned_secs: reader.u64()? as i64 })
    };
    Ok(bytes.and_then(decode).unwrap_or_default())
}

fn write(file: &File, usage: Usage) -> io::Result<()> {
    let mut writer = Writer::default();
    writer.u64(usage.bytes).u64(usage.scanned_secs as u64);
    file.write_all_at(&writer.seal(), 0)
}

/// Whether writes to the disk work.
#[derive(Debug, Default)]
pub(crate) struct Health {
    off: Mutex<Off>,
}

#[derive(Debug, Default)]
struct Off {
    until: Option<Instant>,
    why: String,
    told: bool,
}

impl Health {
    /// Whether writes may be tried.
    pub(crate) fn is_on(&self) -> bool {
        self.off.lock().until.is_none_or(|until| Instant::now() >= until)
    }

    /// Whether writes were off and are to be tried again; true once.
    pub(crate) fn resumes(&self) -> bool {
        let mut off = self.off.lock();
        let over = off.until.is_some_and(|until| Instant::now() >= until);
        if over {
            off.until = None;
        }
        over
    }

    /// Why writes are off, if they are.
    pub(crate) fn why_off(&self) -> Option<String> {
        let off = self.off.lock();
        off.until.is_some_and(|until| Instant::now() < until).then(|| off.why.clone())
    }

    /// Turns writes off after a failed one. The user is told the first time.
    pub(crate) fn failed(&self, doing: &str, error: &io::Error) {
        let why = format!("{doing}: {error}");
        let mut off = self.off.lock();
        off.until = Some(Instant::now() + RETRY);
        off.why.clone_from(&why);
        let first = !std::mem::replace(&mut off.told, true);
        drop(off);
        if first {
            tracing::warn!(
                "the cache cannot be written to ({why}); continuing without it, \
                 with a retry every minute"
            );
        } else {
            tracing::debug!("the cache cannot be written to ({why})");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_kept_and_a_damaged_one_is_zero() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file).unwrap(), Usage::default());
        let add = |usage: Usage| Usage { bytes: usage.bytes + 5, scanned_secs: 7 };
        assert_eq!(change(&file, add).unwrap(), Some(Usage { bytes: 5, scanned_secs: 7 }));
        assert_eq!(read(&file).unwrap().bytes, 5);
        file.write_all_at(&[1], 3).unwrap();
        assert_eq!(read(&file).unwrap(), Usage::default());
        assert_eq!(change(&file, add).unwrap(), Some(Usage { bytes: 5, scanned_secs: 7 }));
    }

    #[test]
    fn bounds_are_read_back() {
        for (size, free) in
            [(None, None), (Some(7), None), (None, Some(u64::MAX)), (Some(0), Some(1))]
        {
            let bounds = Bounds { size, free };
            let mut bytes = bounds.encode();
            assert_eq!(bytes.len() as u64, BOUNDS_BYTES);
            assert_eq!(Bounds::decode(&bytes), Some(bounds));
            bytes[1] ^= 9;
            assert_eq!(Bounds::decode(&bytes), None);
        }
    }

    #[test]
    fn a_failed_write_turns_writing_off() {
        let health = Health::default();
        assert!(health.is_on() && !health.resumes());
        health.failed("writing", &io::Error::from_raw_os_error(28));
        assert!(!health.is_on() && !health.resumes());
        assert!(health.why_off().unwrap().starts_with("writing: "));
    }
}
