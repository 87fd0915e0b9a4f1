//! Whole contents: files of raw bytes, named by their digest.
//!
//! Invariants:
//! 1. A file gets its name when all its bytes are written, and is never written to afterwards. So
//!    it can be used for a passthrough open or a `sendfile` as it is.
//! 2. No byte reaches a reader without a comparison with a checksum after it was read from the
//!    disk. A content of one chunk is compared with its name; of a larger one, whole chunks are
//!    compared with the checksums beside it ([`about`]), and parts of chunks with the checksums of
//!    blocks ([`blocks`], [`block_sums`]).
//! 3. A damaged content is removed, together with its metadata, and will be fetched again.
//!    Checksums of blocks that are missing or damaged are computed again from the chunk.
//!
//! A removed file stays readable for processes that have it open.

pub(crate) mod about;
pub(crate) mod block_sums;
pub(crate) mod blocks;
mod digests;
mod reading;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Mutex;

use bytes::Bytes;
use rustix::fs::Stat;

use self::about::{About, Origin};
use self::block_sums::BlockSumCache;
pub(crate) use self::digests::KnownDigests;
use self::reading::{ReadError, Wait};
use crate::codec::CHECKSUM_BYTES;
use crate::digest::{Digest, Digests};
use crate::dir_fd::{DirFd, lock_shared, note_use, read_exact_at, try_lock};
use crate::partial::chunks::chunk_range;
use crate::store::quota::on_disk;
use crate::store::shared::Shared;

/// The unit in which contents are verified and partial ones are kept: the length of the kernel's
/// usual read. Its checksum is 1/8192 of it. With a smaller unit more checksums would have to be
/// read at each open; for reads of a part there are those of blocks, which are read when needed.
pub const CHUNK_BYTES: u64 = 128 << 10;

/// The largest content that is kept, however large the store is: its checksums take 256 MiB, and
/// are in memory while it is open.
pub(crate) const LARGEST_BYTES: u64 = 2 << 40;

/// Bound on the small contents that open objects keep in memory: enough for hundreds of open files.
/// Beyond it they are read again at each read.
const HELD_BYTES: u64 = 32 << 20;

/// Time for which a file's status must have been unchanged before it proves that the bytes are
/// unchanged too: file systems count time in ticks of up to 10 ms.
const SETTLED_SECS: i64 = 2;

/// The number of chunks of a content.
pub(crate) const fn chunk_count(size: u64) -> u64 {
    size.div_ceil(CHUNK_BYTES)
}

/// The bytes on the disk differ from those written; the content has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cached content is damaged")]
pub struct Damaged;

/// A whole content, open: readable as long as the value lives, also if it is evicted.
#[derive(Clone)]
pub struct Object(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    digest: Digest,
    size: u64,
    ino: u64,
    file: Arc<OwnedFd>,
    body: Body,
    /// All of it was verified, at the open or by [`Object::verify`].
    verified: AtomicBool,
}

enum Body {
    /// One chunk, verified at the open, and kept in memory.
    Held(Bytes),
    /// One chunk, verified at each read.
    Small,
    Large {
        sums: Vec<[u8; CHECKSUM_BYTES]>,
        block_sums: BlockSumCache,
    },
}

/// Files of large contents that were verified as a whole, their status then, and when. The number
/// is bounded: a file that is not in it is verified again.
#[derive(Default)]
pub(crate) struct Verified(Mutex<HashMap<(Digest, u64), (Status, Instant)>>);

/// How long a verification is valid: a disk may lose data without a write.
const VERIFIED_FOR: Duration = Duration::from_secs(3600);

/// Bound on the files in it: some hundred kilobytes. The table is cleared then.
const MAX_VERIFIED: usize = 4096;

impl Verified {
    fn has(&self, key: &(Digest, u64), status: Status) -> bool {
        let files = self.0.lock();
        let known = files.get(key);
        known.is_some_and(|(known, at)| *known == status && at.elapsed() < VERIFIED_FOR)
    }

    fn note(&self, key: (Digest, u64), status: Status) {
        let mut files = self.0.lock();
        if files.len() >= MAX_VERIFIED {
            files.clear();
        }
        files.insert(key, (status, Instant::now()));
    }
}

/// Changes with any write to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Status {
    size: i64,
    changed_secs: i64,
    changed_nanos: u64,
}

impl Object {
    /// The digest.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Whether the content is empty.
    pub fn is_empty(&self) -> bool {
        self.0.size == 0
    }

    /// Reads up to `len` bytes from `offset`; fewer only at the end. Reads the disk: where the
    /// checksums of blocks are known, some KiB more than requested at each end, else a chunk more.
    pub fn read(&self, offset: u64, len: usize) -> Result<Bytes, Damaged> {
        // `None` is not returned when waiting for the disk.
        self.read_as(offset, len, Wait::ForDisk).map(Option::unwrap_or_default)
    }

    /// Reads up to `len` bytes without waiting for the disk: `None` where some of them would have
    /// to be read from there; the file system has started to read them. Where the file system does
    /// not support this, it waits for the disk.
    pub fn read_now(&self, offset: u64, len: usize) -> Result<Option<Bytes>, Damaged> {
        self.read_as(offset, len, Wait::No)
    }

    fn read_as(&self, offset: u64, len: usize, wait: Wait) -> Result<Option<Bytes>, Damaged> {
        let end = self.0.size.min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(Some(Bytes::new()));
        }
        match self.0.read(offset, end, wait) {
            Ok(read) => Ok(Some(read)),
            Err(ReadError::WouldWait) => Ok(None),
            Err(ReadError::Damaged) => Err(self.0.remove_damaged()),
        }
    }

    /// Reads and verifies all of it, once per process and file, as long as the file is not written
    /// to. For callers that read the [`Object::file`] themselves.
    pub fn verify(&self) -> Result<(), Damaged> {
        if self.is_verified() {
            return Ok(());
        }
        let (key, status) = ((self.0.digest, self.0.ino), self.0.status());
        let verified = &self.0.shared.verified;
        if !status.is_some_and(|status| verified.has(&key, status)) {
            self.0.read_all(|_, _| ()).map_err(|_| self.0.remove_damaged())?;
            // The status from before the first byte was read.
            status.into_iter().for_each(|status| verified.note(key, status));
        }
        self.0.verified.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether all of it was verified before.
    pub(crate) fn is_verified(&self) -> bool {
        self.0.verified.load(Ordering::Acquire)
    }

    /// Reads and verifies all of it, for `each` in turn, and repairs the checksums of its blocks.
    pub(crate) fn verify_with(&self, mut each: impl FnMut(&[u8])) -> Result<(), Damaged> {
        let mut damaged = 0;
        let read = self.0.read_all(|chunk, bytes| {
            damaged += u64::from(self.0.repair_block_sums(chunk, bytes));
            each(bytes);
        });
        if damaged > 0 {
            self.0.shared.damaged("checksum of a content");
        }
        read.map_err(|_| self.0.remove_damaged())
    }

    /// Removes it: it is not the content of its name.
    pub(crate) fn remove_damaged(&self) {
        self.0.remove_damaged();
    }

    /// The file, open for reading only.
    pub fn file(&self) -> Arc<OwnedFd> {
        self.0.file.clone()
    }
}

impl Inner {
    /// The status of the file, if it is old enough to show the next change.
    fn status(&self) -> Option<Status> {
        let stat = rustix::fs::fstat(&self.file).ok()?;
        let settled = base::Timestamp::now().secs - stat.st_ctime >= SETTLED_SECS;
        settled.then_some(Status {
            size: stat.st_size,
            changed_secs: stat.st_ctime,
            changed_nanos: stat.st_ctime_nsec as u64,
        })
    }

    fn remove_damaged(&self) -> Damaged {
        self.shared.remove_object(&self.digest, self.ino);
        self.shared.damaged("content");
        Damaged
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match &self.body {
            Body::Held(content) => self.shared.counters.held_bytes.give_back(content.len() as u64),
            Body::Small => {}
            Body::Large { block_sums, .. } => block_sums.release(&self.shared),
        }
    }
}

/// The names of a content's files.
pub(crate) struct Names {
    /// The directory in `objects`.
    pub(crate) dir: Vec<u8>,
    pub(crate) content: Vec<u8>,
    pub(crate) about: Vec<u8>,
    /// The table of checksums of blocks.
    pub(crate) blocks: Vec<u8>,
}

impl Names {
    pub(crate) fn of(digest: &Digest) -> Names {
        let hex = digest.to_hex();
        let (dir, content) = hex.split_at(2);
        Names {
            dir: dir.into(),
            content: content.into(),
            about: format!("{content}.about").into_bytes(),
            blocks: format!("{content}.blocks").into_bytes(),
        }
    }
}

impl Shared {
    /// A whole content. It stays readable while the value lives, also if it is evicted. A content
    /// of one chunk is read at once.
    /// A damaged one is removed, as far as that shows without reading a large one.
    pub fn object(self: &Arc<Shared>, digest: &Digest) -> Option<Object> {
        let names = Names::of(digest);
        let dir_fd = self.layout().objects.sub(&names.dir).ok()?;
        let (file, stat) = dir_fd.read_only(&names.content).ok()?;
        note_use(&file, &stat);
        let about = match stat.st_size as u64 > CHUNK_BYTES {
            true => self.about_large(&dir_fd, &names, digest, stat.st_ino)?,
            false => None,
        };
        let opened = self.checked_object(digest, file, &stat, about);
        // If nothing was there to remove, another process has just done it.
        if opened.is_none() && self.remove_object(digest, stat.st_ino) > 0 {
            self.damaged("content");
        }
        opened
    }

    /// The metadata of a large content; `Some(None)` if it is damaged.
    fn about_large(
        &self,
        dir_fd: &DirFd,
        names: &Names,
        digest: &Digest,
        ino: u64,
    ) -> Option<Option<About>> {
        match About::load(dir_fd, &names.about, digest) {
            Ok(about) => Some(about),
            // Left behind by two processes, one removing and one writing. It cannot be used.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.remove_object(digest, ino);
                None
            }
            // A file that cannot be opened now (too many open files, for example) is not damaged.
            Err(_) => None,
        }
    }

    fn checked_object(
        self: &Arc<Shared>,
        digest: &Digest,
        file: File,
        stat: &Stat,
        about: Option<About>,
    ) -> Option<Object> {
        let size = stat.st_size as u64;
        let body = if size > CHUNK_BYTES {
            // Until it is closed, so that it is not evicted. If that fails, it may be.
            let _ = lock_shared(&file);
            let about = about.filter(|about| about.size == size)?;
            Body::Large { sums: about.sums, block_sums: BlockSumCache::default() }
        } else {
            let content = read_exact_at(&file, 0, size as usize).ok()??;
            if Digest::of(&content) != *digest {
                return None;
            }
            self.hold(content)
        };
        let (file, verified) =
            (Arc::new(OwnedFd::from(file)), AtomicBool::new(size <= CHUNK_BYTES));
        let (shared, digest, ino) = (self.clone(), *digest, stat.st_ino);
        Some(Object(Arc::new(Inner { shared, digest, size, ino, file, body, verified })))
    }

    fn hold(&self, content: Vec<u8>) -> Body {
        match self.counters.held_bytes.take(content.len() as u64, HELD_BYTES) {
            true => Body::Held(content.into()),
            false => Body::Small,
        }
    }

    /// The length of a content, if it is in the store. The content is not read, so it may be
    /// damaged.
    pub fn object_bytes(&self, digest: &Digest) -> Option<u64> {
        let names = Names::of(digest);
        let dir_fd = self.layout().objects.sub(&names.dir).ok()?;
        let size = dir_fd.stat(&names.content).ok()?.st_size as u64;
        (size <= CHUNK_BYTES || dir_fd.stat(&names.about).is_ok()).then_some(size)
    }

    /// Whether a process has this content of more than one chunk open.
    pub(crate) fn is_open(&self, digest: &Digest) -> bool {
        let names = Names::of(digest);
        let opened = self.layout().objects.sub(&names.dir);
        let Ok((file, stat)) = opened.and_then(|dir_fd| dir_fd.read_only(&names.content)) else {
            return false;
        };
        // Over NFS this lock fails, since the file is not open for writing.
        stat.st_size as u64 > CHUNK_BYTES && !try_lock(&file).unwrap_or(true)
    }

    /// Removes a content and its metadata, if it is still the file `ino`: it may have been repaired
    /// meanwhile. Returns the bytes that it took on the disk.
    fn remove_object(&self, digest: &Digest, ino: u64) -> u64 {
        self.remove_object_if(digest, |stat| stat.st_ino == ino)
    }

    /// Removes a content and its metadata, if its file meets the `condition`. Returns the bytes
    /// that it took on the disk.
    pub(crate) fn remove_object_if(
        &self,
        digest: &Digest,
        condition: impl FnOnce(&Stat) -> bool,
    ) -> u64 {
        let names = Names::of(digest);
        let layout = self.layout();
        let Ok(dir_fd) = layout.objects.sub(&names.dir) else { return 0 };
        let Ok(stat) = dir_fd.stat(&names.content) else { return 0 };
        if !condition(&stat) {
            return 0;
        }
        let space = |name| dir_fd.stat(name).map_or(0, |stat| on_disk(stat.st_size as u64));
        let beside = space(&names.about) + space(&names.blocks);
        // The content first: after a kill the rest is no content, and is swept up.
        if dir_fd.unlink(&names.content).is_err() {
            return 0;
        }
        let _ = dir_fd.unlink(&names.about);
        let _ = dir_fd.unlink(&names.blocks);
        self.known_digests.remove(digest);
        let bytes = on_disk(stat.st_size as u64) + beside;
        self.release(bytes);
        bytes
    }

    pub(crate) fn about(&self, digest: &Digest) -> Option<About> {
        let names = Names::of(digest);
        let dir_fd = self.layout().objects.sub(&names.dir).ok()?;
        About::load(&dir_fd, &names.about, digest).ok().flatten()
    }

    /// Records that a file has this content, and the content's digests if they are new.
    pub(crate) fn add_to_about(
        &self,
        digest: &Digest,
        origin: Option<Origin>,
        digests: Option<Digests>,
    ) {
        let names = Names::of(digest);
        let layout = self.layout();
        let Ok(dir_fd) = layout.objects.sub(&names.dir) else { return };
        let Ok(stat) = dir_fd.stat(&names.content) else { return };
        let size = stat.st_size as u64;
        let known = About::load(&dir_fd, &names.about, digest);
        let is_new = known.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        let mut about = match known {
            Ok(Some(about)) if about.size == size => about,
            _ if size <= CHUNK_BYTES => About::new(*digest, size, Vec::new()),
            _ => return,
        };
        let mut changed = origin.is_some_and(|origin| about.add(origin));
        if about.digests.is_none() && digests.is_some() {
            about.digests = digests;
            changed = true;
        }
        let space = if is_new { on_disk(1) } else { 0 };
        if !changed || !self.may_write() || !self.reserve_quietly(space) {
            return;
        }
        // Others may be reading the file.
        match layout.put(&dir_fd, &names.about, &about.encode()) {
            Ok(()) => about.digests.into_iter().for_each(|known| self.known_digests.insert(known)),
            Err(error) => self.write_failed(&layout, "writing a content's metadata", &error),
        }
    }
}

/// Reads a chunk of a partial content's file.
pub(crate) fn read_chunk_of(file: &File, chunk: u64, size: u64) -> Option<Vec<u8>> {
    let range = chunk_range(chunk, size);
    read_exact_at(file, range.start, (range.end - range.start) as usize).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verification_is_valid_while_the_file_has_the_same_status() {
        let verified = Verified::default();
        let status = |changed_secs| Status { size: 7, changed_secs, changed_nanos: 5 };
        let key = |ino| (Digest::of(b"content"), ino);
        verified.note(key(1), status(100));
        assert!(verified.has(&key(1), status(100)));
        assert!(!verified.has(&key(1), status(101)), "written to");
        assert!(!verified.has(&key(2), status(100)), "another file under the same name");
        verified.note(key(1), status(101));
        assert!(!verified.has(&key(1), status(100)));
        for ino in 2..2 * MAX_VERIFIED as u64 {
            verified.note(key(ino), status(100));
        }
        assert!(verified.0.lock().len() <= MAX_VERIFIED);
    }
}
