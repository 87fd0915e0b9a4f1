//! The two files of a partial content: its bytes, with holes, and the map of present chunks.
//!
//! The map has a header that names the file and its source, and an entry for each chunk that was
//! written: its number, and the checksum of its bytes. An entry is appended after the bytes.
//! Nothing is synced: after a power loss the map may name chunks whose bytes never reached the
//! disk, which their checksums show when they are read.
//!
//! The process that holds the lock of the data file may write to both. Others leave them alone.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ChangeId, RemotePath};

use crate::codec::{CHECKSUM_BYTES, Reader, Writer};
use crate::dir_fd::{DirFd, read_exact_at, try_lock};
use crate::metadata::{SourceId, Validator};
use crate::object::{LARGEST_BYTES, chunk_count};

const MAGIC: &[u8; 8] = b"sshoalP1";

/// Of a file whose last change is identified.
const MAGIC_WITH_CHANGE: &[u8; 8] = b"sshoalP2";

/// Length of an entry of the map.
const ENTRY_BYTES: usize = 8 + CHECKSUM_BYTES;

/// Longest part of a map that is read: an entry for each chunk of the largest content, and some for
/// chunks that were fetched again after damage. Chunks of later entries are fetched again.
const MAX_MAP_BYTES: u64 = 512 << 20;

const _: () = assert!(chunk_count(LARGEST_BYTES) * ENTRY_BYTES as u64 <= MAX_MAP_BYTES / 4 * 3);

/// Longest header: more than the longest path of a system call.
const MAX_HEADER_BYTES: u64 = 64 << 10;

/// The state of a file whose content is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) source: SourceId,
    pub(crate) path: RemotePath,
    pub(crate) validator: Validator,
}

impl Subject {
    pub(crate) fn new(source: &SourceId, path: &RemotePath, validator: Validator) -> Subject {
        Subject { source: *source, path: path.clone(), validator }
    }

    pub(crate) fn key(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("sshoal cache 1 partial content");
        hasher.update(&self.header());
        *hasher.finalize().as_bytes()
    }

    /// The header of the map: its length, and its sealed fields.
    fn header(&self) -> Vec<u8> {
        let Validator { size, mtime, change } = self.validator;
        let mut writer = Writer::default();
        writer.raw(if change.is_some() { MAGIC_WITH_CHANGE } else { MAGIC });
        writer.raw(self.source.as_bytes()).u64(size).time(mtime);
        if let Some(change) = change {
            writer.u64(change.inode).time(change.ctime);
        }
        writer.string(self.path.as_bytes());
        let fields = writer.seal();
        [&(fields.len() as u32).to_le_bytes(), &fields[..]].concat()
    }

    /// The subject in the header of a map, and the header's length.
    fn read(map: &File) -> io::Result<Option<(Subject, u64)>> {
        let Some(len) = read_exact_at(map, 0, 4)? else { return Ok(None) };
        let len = u64::from(Reader::new(&len).u32().unwrap_or(u32::MAX));
        if len > MAX_HEADER_BYTES {
            return Ok(None);
        }
        let fields = read_exact_at(map, 4, len as usize)?;
        Ok(fields.and_then(|fields| Subject::decode(&fields)).map(|subject| (subject, 4 + len)))
    }

    fn decode(fields: &[u8]) -> Option<Subject> {
        let mut reader = Reader::sealed(fields)?;
        let has_change = match &reader.array()? {
            MAGIC => false,
            MAGIC_WITH_CHANGE => true,
            _ => return None,
        };
        let source = SourceId::from_bytes(reader.array()?);
        let (size, mtime) = (reader.u64()?, reader.time()?);
        let change = match has_change {
            true => Some(ChangeId { inode: reader.u64()?, ctime: reader.time()? }),
            false => None,
        };
        let path = RemotePath::parse(reader.string()?).ok()?;
        Some(Subject { source, path, validator: Validator { size, mtime, change } })
    }
}

/// Names of the two files.
pub(crate) struct Names {
    pub(crate) data: Vec<u8>,
    pub(crate) map: Vec<u8>,
}

impl Names {
    pub(crate) fn of(key: &[u8; 32]) -> Names {
        let hex = hex::encode(key);
        Names { data: format!("{hex}.data").into(), map: format!("{hex}.map").into() }
    }
}

/// A chunk in a map, with the checksum of its bytes.
pub(crate) type Entry = (u64, [u8; CHECKSUM_BYTES]);

/// The subject of a map.
pub(crate) fn subject_of(map: &File) -> io::Result<Option<Subject>> {
    Ok(Subject::read(map)?.map(|(subject, _)| subject))
}

/// The subject of a map, and its chunks.
pub(crate) fn read_map(map: &File) -> io::Result<Option<(Subject, Vec<Entry>)>> {
    read_map_within(map, MAX_MAP_BYTES)
}

/// Reads at most `max_bytes` of the map.
fn read_map_within(map: &File, max_bytes: u64) -> io::Result<Option<(Subject, Vec<Entry>)>> {
    let Some((subject, start)) = Subject::read(map)? else { return Ok(None) };
    let len = map.metadata()?.len().min(max_bytes);
    let Some(bytes) = read_exact_at(map, start, len.saturating_sub(start) as usize)? else {
        return Ok(None);
    };
    let chunks = chunk_count(subject.validator.size);
    let entries = bytes.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
        let mut reader = Reader::new(entry);
        let entry = (reader.u64()?, reader.array()?);
        (entry.0 < chunks).then_some(entry)
    });
    Ok(Some((subject, entries.collect())))
}

/// The two files, open and locked.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) data: File,
    map: File,
    /// The offset of the next entry in the map.
    map_end: AtomicU64,
}

impl Files {
    /// Opens existing files. `None` if there are none, or another process holds them.
    pub(super) fn resume(
        dir_fd: &DirFd,
        subject: &Subject,
    ) -> io::Result<Option<(Files, Vec<Entry>)>> {
        let names = Names::of(&subject.key());
        let (data, _) = match dir_fd.read_write(&names.data) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        if !claim(dir_fd, &names, &data)? {
            return Ok(None);
        }
        let (map, _) = dir_fd.ensure(&names.map)?;
        let entries = match read_map(&map)? {
            Some((known, entries)) if known == *subject => entries,
            _ => {
                restart(&data, &map, subject)?;
                Vec::new()
            }
        };
        let files = Files { data, map_end: AtomicU64::new(end_of(&map, subject)?), map };
        Ok(Some((files, entries)))
    }

    /// Creates them. `None` if another process holds them.
    pub(super) fn create(dir_fd: &DirFd, subject: &Subject) -> io::Result<Option<Files>> {
        let names = Names::of(&subject.key());
        let (data, _) = dir_fd.ensure(&names.data)?;
        if !claim(dir_fd, &names, &data)? {
            return Ok(None);
        }
        let made = || {
            let (map, _) = dir_fd.ensure(&names.map)?;
            restart(&data, &map, subject)?;
            Ok((end_of(&map, subject)?, map))
        };
        match made() {
            Ok((end, map)) => Ok(Some(Files { data, map, map_end: AtomicU64::new(end) })),
            Err(error) => {
                let _ = dir_fd.unlink(&names.data);
                let _ = dir_fd.unlink(&names.map);
                Err(error)
            }
        }
    }

    /// Writes a chunk, and then its entry.
    pub(super) fn write(
        &self,
        chunk: u64,
        offset: u64,
        bytes: &[u8],
        entry: Entry,
    ) -> io::Result<()> {
        debug_assert_eq!(chunk, entry.0);
        self.data.write_all_at(bytes, offset)?;
        let mut writer = Writer::default();
        writer.u64(entry.0).raw(&entry.1);
        let at = self.map_end.fetch_add(ENTRY_BYTES as u64, Ordering::Relaxed);
        self.map.write_all_at(&writer.0, at)
    }
}

/// Locks the data file. `false` if another process holds it, or has completed it since it was
/// opened: it is a whole content then, which is never written to.
fn claim(dir_fd: &DirFd, names: &Names, data: &File) -> io::Result<bool> {
    Ok(try_lock(data)? && dir_fd.leads_to(&names.data, data))
}

/// Starts from nothing: no chunk is present.
fn restart(data: &File, map: &File, subject: &Subject) -> io::Result<()> {
    map.set_len(0)?;
    data.set_len(0)?;
    data.set_len(subject.validator.size)?;
    map.write_all_at(&subject.header(), 0)
}

/// The end of the last whole entry.
fn end_of(map: &File, subject: &Subject) -> io::Result<u64> {
    let start = subject.header().len() as u64;
    let entries = map.metadata()?.len().saturating_sub(start) / ENTRY_BYTES as u64;
    Ok(start + entries * ENTRY_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use base::Timestamp;

    use super::*;
    use crate::digest::Digest;

    fn subject() -> Subject {
        Subject {
            source: SourceId::new(b"source"),
            path: RemotePath::parse(b"a/b").unwrap(),
            validator: Validator { size: 1 << 20, mtime: Timestamp::from_secs(5), change: None },
        }
    }

    #[test]
    fn the_subject_is_read_back() {
        let change = Some(ChangeId { inode: 7, ctime: Timestamp { secs: -8, nanos: 9 } });
        let validator = Validator { change, ..subject().validator };
        for subject in [subject(), Subject { validator, ..subject() }] {
            assert_eq!(Subject::decode(&subject.header()[4..]), Some(subject));
        }
    }

    /// Fails when the format has changed; then it needs a new version (docs/cache-format.md).
    #[test]
    fn the_format_is_that_of_version_1() {
        assert_eq!(
            Digest::of(&subject().header()).to_hex(),
            "a8c2d739724e6aca5440b4f6dbbdc2e6aba9c8e1617cb33e36412ed58b5bb511"
        );
        assert_eq!(
            hex::encode(subject().key()),
            "345fdfa13a446ee2025a3122461dc8e17ae4d9d9903e19f08660f416dc3c83cc"
        );
    }

    #[test]
    fn a_map_of_something_else_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let dir_fd = DirFd::at(dir.path()).unwrap();
        let files = Files::create(&dir_fd, &subject()).unwrap().unwrap();
        files.write(1, 1 << 17, b"x", (1, [7; CHECKSUM_BYTES])).unwrap();
        assert!(Files::resume(&dir_fd, &subject()).unwrap().is_none(), "locked");
        drop(files);
        let (_, entries) = Files::resume(&dir_fd, &subject()).unwrap().unwrap();
        assert_eq!(entries, [(1, [7; CHECKSUM_BYTES])]);
        let names = Names::of(&subject().key());
        std::fs::write(dir.path().join(String::from_utf8(names.map).unwrap()), "else").unwrap();
        let (files, entries) = Files::resume(&dir_fd, &subject()).unwrap().unwrap();
        assert_eq!(entries, []);
        assert_eq!(files.data.metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_file_that_was_completed_meanwhile_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dir_fd = DirFd::at(dir.path()).unwrap();
        let names = Names::of(&subject().key());
        let files = Files::create(&dir_fd, &subject()).unwrap().unwrap();
        let (opened, _) = dir_fd.read_write(&names.data).unwrap();
        dir_fd.rename(&names.data, &dir_fd, b"content").unwrap();
        drop(files);
        assert!(!claim(&dir_fd, &names, &opened).unwrap());
    }

    #[test]
    fn of_a_map_that_is_too_long_the_beginning_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::create(&DirFd::at(dir.path()).unwrap(), &subject()).unwrap().unwrap();
        for chunk in 0..3 {
            files.write(chunk, 0, b"", (chunk, [1; CHECKSUM_BYTES])).unwrap();
        }
        let len = files.map.metadata().unwrap().len();
        for (max_bytes, count) in [(len, 3), (len - 1, 2), (len - ENTRY_BYTES as u64, 2)] {
            let (known, entries) = read_map_within(&files.map, max_bytes).unwrap().unwrap();
            assert_eq!((known, entries.len()), (subject(), count));
        }
    }

    #[test]
    fn map_entries_beyond_the_end_and_torn_ones_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let dir_fd = DirFd::at(dir.path()).unwrap();
        let files = Files::create(&dir_fd, &subject()).unwrap().unwrap();
        for chunk in [7, 8, u64::MAX] {
            files.write(chunk, 0, b"", (chunk, [1; CHECKSUM_BYTES])).unwrap();
        }
        let end = files.map.metadata().unwrap().len();
        files.map.write_all_at(&[1; 5], end).unwrap();
        drop(files);
        let (files, entries) = Files::resume(&dir_fd, &subject()).unwrap().unwrap();
        assert_eq!(entries, [(7, [1; CHECKSUM_BYTES])]);
        // The next entry overwrites the torn one.
        files.write(3, 0, b"", (3, [2; CHECKSUM_BYTES])).unwrap();
        drop(files);
        let (_, entries) = Files::resume(&dir_fd, &subject()).unwrap().unwrap();
        assert_eq!(entries.len(), 2);
    }
}
