//! The record file of one directory: its place, its header, reading and appending.
//!
//! The file is in a tree of directories that mirrors the source's, so all records below a directory
//! can be removed by one rename. A record is appended by one write, under the file's lock; reading
//! needs no lock. A file with any damage is removed as a whole: the damaged part may contain a
//! record of forgetting.
//!
//! The header contains a random number on which all checksums depend: records of an older file of
//! the same directory are not valid here.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;

use base::RemotePath;
use rustix::fs::{OFlags, Stat};

use super::directory::Directory;
use super::record::{self, Record};
use crate::codec::Writer;
use crate::dir_fd::{self, DirFd, note_use, read_exact_at};
use crate::metadata::SourceId;
use crate::store::layout::Layout;

const MAGIC: &[u8; 8] = b"sshoalR1";

/// The name of the file in its directory. Names of sub-directories begin with [`SUB`].
pub(crate) const FILE_NAME: &[u8] = b"records";

/// The first letter of a sub-directory.
pub(crate) const SUB: u8 = b'd';

/// Longer files are not read: a directory of millions of names.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A file is compacted when it is longer than twice its live records, and this much more.
const SLACK_BYTES: u64 = 64 << 10;

/// Attempts to append to a file that other processes replace at the same time.
const ATTEMPTS: u32 = 5;

/// Time for which a file must have been unchanged before its status proves that its content is
/// unchanged.
const SETTLED_NANOS: i128 = 50_000_000;

/// The directory that a file is for.
pub(crate) struct Target<'a> {
    pub(crate) source: &'a SourceId,
    pub(crate) path: &'a RemotePath,
}

/// The content of a file that was read.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    status: Option<Status>,
    header: Vec<u8>,
    pub(crate) directory: Directory,
}

/// Shows whether a file is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    ino: u64,
    len: u64,
    changed_nanos: i128,
    /// The change is old enough for the next one to have another time.
    settled: bool,
}

/// Why there are no records.
pub(crate) enum NoRecords {
    Damaged,
    Unreadable,
}

impl Target<'_> {
    /// The directory of the file, below the index.
    pub(crate) fn dir(&self) -> Vec<u8> {
        let mut path = hex::encode(self.source.as_bytes()).into_bytes();
        for name in self.path.names() {
            path.extend_from_slice(&[b'/', SUB]);
            path.extend_from_slice(name);
        }
        path
    }

    /// The file, below the index.
    pub(crate) fn file(&self) -> Vec<u8> {
        [&self.dir()[..], b"/", FILE_NAME].concat()
    }

    fn new_header(&self) -> Vec<u8> {
        let number = RandomState::new().hash_one(std::time::SystemTime::now());
        self.header_with(&number.to_le_bytes())
    }

    fn header_with(&self, number: &[u8]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(MAGIC).raw(number).raw(self.source.as_bytes()).string(self.path.as_bytes());
        writer.seal()
    }

    /// Reads the header; `None` if it is not for this directory.
    fn read_header(&self, file: &File) -> io::Result<Option<Vec<u8>>> {
        let len = self.header_with(&[0; 8]).len();
        let Some(header) = read_exact_at(file, 0, len)? else { return Ok(None) };
        let expected = self.header_with(&header[8..16]);
        Ok((header == expected).then_some(header))
    }
}

/// The seed of the checksums in a file with this header.
fn checksum_seed(header: &[u8]) -> u64 {
    let (_, last) = header.split_at(header.len() - 8);
    last.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

impl Loaded {
    /// Whether a file with this status has exactly the loaded records.
    pub(crate) fn is_current(&self, stat: &Stat) -> bool {
        self.status.is_some_and(|status| status.settled && status.is_of(stat))
    }

    /// Reads the records that were not loaded yet.
    pub(crate) fn load(&mut self, index: &DirFd, target: &Target<'_>) -> Result<(), NoRecords> {
        let (file, stat) = match index.file_below(&target.file(), OFlags::RDONLY) {
            Err(error) if is_planted(&error) => return Err(NoRecords::Damaged),
            Err(_) => return Err(NoRecords::Unreadable),
            Ok(opened) => opened,
        };
        note_use(&file, &stat);
        let unreadable = |_| NoRecords::Unreadable;
        if self.read(&file, target).map_err(unreadable)? {
            return Ok(());
        }
        // A long record may be in the middle of being written: its writer holds the lock.
        let file = match open_to_lock(index, target) {
            Err(error) if is_planted(&error) => return Err(NoRecords::Damaged),
            opened => opened.map_err(unreadable)?,
        };
        if !dir_fd::lock(&file).unwrap_or(false) {
            return Err(NoRecords::Unreadable);
        }
        match self.read(&file, target).map_err(unreadable)? {
            true => Ok(()),
            false => Err(NoRecords::Damaged),
        }
    }

    /// Whether the records are undamaged, and the length of the file; `None` if it was removed,
    /// cannot be read, or is being written. Nothing is noted or removed.
    pub(crate) fn verify(index: &DirFd, target: &Target<'_>) -> Option<(bool, u64)> {
        let (file, stat) = match index.file_below(&target.file(), OFlags::RDONLY) {
            Err(error) if is_planted(&error) => return Some((false, 0)),
            opened => opened.ok()?,
        };
        let bytes = stat.st_size as u64;
        if Loaded::default().read(&file, target).ok()? {
            return Some((true, bytes));
        }
        // Its writer holds the lock.
        let file = open_to_lock(index, target).ok()?;
        let is_complete = dir_fd::try_lock(&file).unwrap_or(false);
        is_complete.then(|| Some((Loaded::default().read(&file, target).ok()?, bytes)))?
    }

    fn read(&mut self, file: &File, target: &Target<'_>) -> io::Result<bool> {
        let stat = rustix::fs::fstat(file)?;
        let len = stat.st_size as u64;
        let Some(header) = target.read_header(file)? else { return Ok(false) };
        let known = self.status.map(|status| status.len);
        let from = match known {
            Some(known) if header == self.header && known <= len => known,
            _ => {
                self.directory = Directory::default();
                header.len() as u64
            }
        };
        self.status = None;
        if len > MAX_FILE_BYTES {
            return Ok(false);
        }
        let Some(bytes) = read_exact_at(file, from, (len - from) as usize)? else {
            return Ok(false);
        };
        let Some(records) = record::decode_all(&bytes, checksum_seed(&header)) else {
            return Ok(false);
        };
        records.into_iter().for_each(|record| self.directory.add(record));
        self.header = header;
        self.status = Some(Status::of(&stat));
        Ok(true)
    }

    /// Whether most of the file is superseded records.
    pub(crate) fn is_wasteful(&self) -> bool {
        let len = self.status.map_or(0, |status| status.len);
        len > 2 * self.directory.live_bytes() + SLACK_BYTES
    }
}

impl Status {
    fn of(stat: &Stat) -> Status {
        let changed_nanos = changed_nanos(stat);
        let now = base::Timestamp::now();
        let now = i128::from(now.secs) * 1_000_000_000 + i128::from(now.nanos);
        let settled = now - changed_nanos > SETTLED_NANOS;
        Status { ino: stat.st_ino, len: stat.st_size as u64, changed_nanos, settled }
    }

    fn is_of(&self, stat: &Stat) -> bool {
        (self.ino, self.len, self.changed_nanos)
            == (stat.st_ino, stat.st_size as u64, changed_nanos(stat))
    }
}

fn changed_nanos(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

/// Opens the file so that it can be locked: NFS locks a file exclusively only if it is open for
/// writing.
fn open_to_lock(index: &DirFd, target: &Target<'_>) -> io::Result<File> {
    Ok(index.file_below(&target.file(), OFlags::RDWR)?.0)
}

/// Whether the entry at the file's place was not created by the store.
fn is_planted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Appends records to the file, which is created if it is absent and `make` is set. `space` is
/// called with the file's sizes before and after. Returns whether the records are in the file.
pub(crate) fn append(
    layout: &Layout,
    target: &Target<'_>,
    records: &[Record],
    make: bool,
    mut space: impl FnMut(u64, u64) -> bool,
) -> io::Result<bool> {
    for _ in 0..ATTEMPTS {
        let file = match open_to_lock(&layout.index, target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !make {
                    return Ok(true);
                }
                match create(layout, target, records, &mut space) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    created => return created,
                }
            }
            opened => opened?,
        };
        if !dir_fd::lock(&file)? {
            return Ok(false);
        }
        let stat = rustix::fs::fstat(&file)?;
        // If it has no name, it was replaced while this process waited.
        if stat.st_nlink > 0 {
            return add_at_end(&file, stat.st_size as u64, target, records, space);
        }
    }
    Ok(false)
}

/// Appends under the lock; a partial write is truncated.
fn add_at_end(
    file: &File,
    len: u64,
    target: &Target<'_>,
    records: &[Record],
    mut space: impl FnMut(u64, u64) -> bool,
) -> io::Result<bool> {
    let Some(header) = target.read_header(file)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "damaged records"));
    };
    let Some(bytes) = encode(records, checksum_seed(&header)) else { return Ok(false) };
    if !space(len, len + bytes.len() as u64) {
        return Ok(false);
    }
    let written = file.write_all_at(&bytes, len);
    if written.is_err() {
        file.set_len(len)?;
    }
    written.map(|()| true)
}

fn create(
    layout: &Layout,
    target: &Target<'_>,
    records: &[Record],
    mut space: impl FnMut(u64, u64) -> bool,
) -> io::Result<bool> {
    let header = target.new_header();
    let Some(bytes) = encode(records, checksum_seed(&header)) else { return Ok(false) };
    let bytes = [header, bytes].concat();
    if !space(0, bytes.len() as u64) {
        return Ok(false);
    }
    let dir_fd = layout.index.make_below(&target.dir())?;
    let (tmp, file) = layout.tmp_file()?;
    let made =
        file.write_all_at(&bytes, 0).and_then(|()| layout.tmp.rename_new(&tmp, &dir_fd, FILE_NAME));
    if made.is_err() {
        let _ = layout.tmp.unlink(&tmp);
    }
    made.map(|()| true)
}

/// Rewrites the file with the records of `loaded`, if it is still the file that was loaded.
pub(crate) fn compact(layout: &Layout, target: &Target<'_>, loaded: &Loaded) -> io::Result<()> {
    let dir_fd = layout.index.below(&target.dir())?;
    let (file, _) = dir_fd.read_write(FILE_NAME)?;
    match dir_fd::try_lock(&file)? {
        true => rewrite(layout, target, loaded, &dir_fd, &file),
        false => Ok(()),
    }
}

/// Replaces the locked `file` of `dir_fd`, unless another process has removed it: its records were
/// forgotten then.
fn rewrite(
    layout: &Layout,
    target: &Target<'_>,
    loaded: &Loaded,
    dir_fd: &DirFd,
    file: &File,
) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if !loaded.status.is_some_and(|status| status.is_of(&stat)) {
        return Ok(());
    }
    let header = target.new_header();
    let Some(bytes) = encode(&loaded.directory.records(), checksum_seed(&header)) else {
        return Ok(());
    };
    let (tmp, new) = layout.tmp_file()?;
    let written = new.write_all_at(&[header, bytes].concat(), 0);
    if written.is_ok() && dir_fd.leads_to(FILE_NAME, file) {
        return layout.tmp.rename(&tmp, dir_fd, FILE_NAME);
    }
    layout.tmp.unlink(&tmp).and(written)
}

fn encode(records: &[Record], seed: u64) -> Option<Vec<u8>> {
    let encoded: Option<Vec<_>> = records.iter().map(|record| record.encode(seed)).collect();
    Some(encoded?.concat())
}

#[cfg(test)]
mod tests {
    use base::Timestamp;

    use super::*;
    use crate::metadata::KnownLink;

    #[test]
    fn a_file_is_locked_by_a_descriptor_that_may_write() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let (source, path) = (SourceId::new(b"source"), RemotePath::root());
        let target = Target { source: &source, path: &path };
        assert!(append(&layout, &target, &[Record::ForgetListing], true, |_, _| true).unwrap());
        let file = open_to_lock(&layout.index, &target).unwrap();
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(flags.contains(OFlags::RDWR), "{flags:?}");
    }

    /// The file, or its directory, is removed while it is rewritten.
    #[test]
    fn a_compaction_does_not_restore_forgotten_records() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let (source, path) = (SourceId::new(b"source"), RemotePath::parse(b"d").unwrap());
        let target = Target { source: &source, path: &path };
        let record = |name: &[u8]| {
            let link = KnownLink { target: (*b"to").into(), seen_at: Timestamp::now() };
            let records = [Record::Link(name.to_vec(), link)];
            assert!(append(&layout, &target, &records, true, |_, _| true).unwrap());
        };
        let load = || {
            let mut loaded = Loaded::default();
            loaded.load(&layout.index, &target).map(|()| loaded).ok()
        };
        for removes_all in [false, true] {
            record(b"old");
            let loaded = load().unwrap();
            let dir_fd = layout.index.below(&target.dir()).unwrap();
            let (file, _) = dir_fd.read_write(FILE_NAME).unwrap();
            if removes_all {
                let (above, name) = (Target { path: &RemotePath::root(), ..target }, b"dd");
                let above = layout.index.below(&above.dir()).unwrap();
                layout.move_to_trash(&above, name).unwrap();
            } else {
                layout.move_to_trash(&dir_fd, FILE_NAME).unwrap();
            }
            rewrite(&layout, &target, &loaded, &dir_fd, &file).unwrap();
            assert!(load().is_none());
            record(b"new");
            rewrite(&layout, &target, &loaded, &dir_fd, &file).unwrap();
            let now = load().unwrap().directory;
            assert!(now.link(b"new").is_some() && now.link(b"old").is_none());
            assert_eq!(layout.tmp.names().unwrap(), []);
        }
    }
}
