//! Digests of files, so that a client need not read them.
//!
//! A digest is that of the content which a file has while its time of change (ctime) stays. The
//! time of change has the granularity of the kernel's clock, so a file that was just changed is
//! read only when a further change would show.
//!
//! A request computes for a limited time. What it has computed until then is kept for the next
//! request, so that no request is silent for long, and a client that has gone causes no more work.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use digest::DynDigest;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use sftp::codec::{DigestAlgorithm, FileDigest, Reply};

use crate::server::Server;
use crate::status::Result;

/// How long a request computes.
const LIMIT: Duration = Duration::from_secs(1);

/// The time after a change in which a further change may get the same time: two ticks of the
/// slowest kernel clock.
const GRANULARITY: Duration = Duration::from_millis(20);

/// Digests that are kept. All are dropped then.
const MAX_FINISHED: usize = 4096;

/// Computations that are kept. No other one is then.
const MAX_BEGUN: usize = 16;

/// A version of a file: device, inode, time of change and size.
pub(crate) type FileVersion = (u64, u64, (i64, i64), u64);

/// Digests that were computed, and computations that were begun.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    finished: HashMap<(FileVersion, u32), Bytes>,
    begun: HashMap<(FileVersion, u32), Computation>,
}

struct Computation {
    hasher: Box<dyn DynDigest + Send>,
    offset: u64,
}

impl std::fmt::Debug for Computation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Computation").field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl Computation {
    fn new(algorithm: DigestAlgorithm) -> Result<Computation> {
        let hasher: Box<dyn DynDigest + Send> = match algorithm {
            DigestAlgorithm::MD5 => Box::new(md5::Md5::default()),
            DigestAlgorithm::SHA1 => Box::new(sha1::Sha1::default()),
            DigestAlgorithm::SHA256 => Box::new(sha2::Sha256::default()),
            DigestAlgorithm::BLAKE3 => Box::new(blake3::Hasher::new()),
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(Computation { hasher, offset: 0 })
    }

    /// Continues until the end of the file, or until `deadline`. Returns whether it is the end.
    fn advance(&mut self, file: &OwnedFd, deadline: Instant) -> Result<bool> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let len = match rustix::io::pread(file, &mut buffer, self.offset) {
                Err(Errno::INTR) => continue,
                len => len?,
            };
            if len == 0 {
                return Ok(true);
            }
            self.hasher.update(&buffer[..len]);
            self.offset += len as u64;
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}

impl Server {
    /// The digest of a regular file. `EINPROGRESS` if it is not known yet: the client then repeats
    /// the request. `EBUSY` if the file was changed meanwhile.
    pub(crate) fn digest(&self, path: &[u8], algorithm: DigestAlgorithm) -> Result<Reply> {
        let deadline = Instant::now() + LIMIT;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = self.paths.open(path, flags, Mode::empty())?;
        let mut stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        if was_just_changed(&stat) {
            std::thread::sleep(GRANULARITY);
            stat = fstat(&file)?;
            if was_just_changed(&stat) {
                return Err(Errno::BUSY.into());
            }
        }
        let key = (version(&stat), algorithm.0);
        let known = self.digests.lock().finished.get(&key).cloned();
        let digest = match known {
            Some(digest) => digest,
            None => self.compute(&file, key, algorithm, deadline)?,
        };
        let attrs = self.attributes(&file)?;
        if version(&fstat(&file)?) != key.0 {
            return Err(Errno::BUSY.into());
        }
        Ok(Reply::extended(&FileDigest { attrs, digest }))
    }

    fn compute(
        &self,
        file: &OwnedFd,
        key: (FileVersion, u32),
        algorithm: DigestAlgorithm,
        deadline: Instant,
    ) -> Result<Bytes> {
        let begun = self.digests.lock().begun.remove(&key);
        let mut computation = match begun {
            Some(begun) => begun,
            None => Computation::new(algorithm)?,
        };
        let is_complete = computation.advance(file, deadline)?;
        if version(&fstat(file)?) != key.0 {
            return Err(Errno::BUSY.into());
        }
        let mut digests = self.digests.lock();
        if !is_complete {
            let is_full = digests.begun.len() >= MAX_BEGUN;
            match digests.begun.entry(key) {
                // Another request for it has come further.
                Entry::Occupied(other) if other.get().offset >= computation.offset => {}
                Entry::Occupied(mut other) => *other.get_mut() = computation,
                Entry::Vacant(_) if is_full => return Err(Errno::BUSY.into()),
                Entry::Vacant(place) => {
                    place.insert(computation);
                }
            }
            return Err(Errno::INPROGRESS.into());
        }
        let digest = Bytes::from(computation.hasher.finalize());
        if digests.finished.len() >= MAX_FINISHED {
            digests.finished.clear();
        }
        digests.finished.insert(key, digest.clone());
        Ok(digest)
    }
}

#[allow(clippy::unnecessary_cast, reason = "on some machines these fields have other widths")]
pub(crate) fn version(stat: &Stat) -> FileVersion {
    let ctime = (stat.st_ctime as i64, stat.st_ctime_nsec as i64);
    (stat.st_dev as u64, stat.st_ino as u64, ctime, stat.st_size as u64)
}

/// Whether a further change could get the same time as the last one.
#[allow(clippy::unnecessary_cast, reason = "on some machines these fields have other widths")]
fn was_just_changed(stat: &Stat) -> bool {
    let now = clock_gettime(ClockId::Realtime);
    let nanos = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
    let age = nanos(now.tv_sec as i64, now.tv_nsec as i64)
        - nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i64);
    // A time in the future is of another machine's clock, and does not come nearer by waiting.
    (0..GRANULARITY.as_nanos() as i128).contains(&age)
}
