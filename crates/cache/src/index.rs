//! The records of names: attributes, contents, link targets, listings.
//!
//! Each directory of a source has a file of records ([`log`]), which any number of processes read
//! and append to, with none in charge. The directories used last are cached in memory. This is
//! correct because each look-up reads the file's status, which shows the changes of other
//! processes: a microsecond, where a look-up in a database kept by another process would be a round
//! trip.
//!
//! A record that cannot be written is a miss later. Forgetting must not fail that way: where a
//! record of it cannot be appended the whole file is removed, and where that fails too, this
//! process ignores the index from then on.
//!
//! The lock of a cached directory is held while its file is read. Other directories do not wait.

pub(crate) mod directory;
pub(crate) mod log;
pub(crate) mod record;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{FileId, Mutex, Name, RemotePath};
use lru::LruCache;
use rustix::fs::OFlags;
use rustix::io::Errno;

use self::directory::Directory;
use self::log::{Loaded, NoRecords, SUB, Target};
use self::record::Record;
use crate::digest::Digest;
use crate::dir_fd::{is_use_due, note_use};
use crate::metadata::{KnownAttr, KnownFile, KnownLink, Listing, SourceId};
use crate::store::layout::Layout;
use crate::store::quota::on_disk;
use crate::store::shared::Shared;

type Key = (SourceId, RemotePath);

/// Cached directories, bounded in bytes.
pub(crate) struct Memory {
    bound_bytes: u64,
    /// Forgetting has failed: the index is ignored.
    distrusted: AtomicBool,
    kept: Mutex<Kept>,
}

struct Kept {
    directories: LruCache<Key, Entry>,
    bytes: u64,
}

#[derive(Default)]
struct Entry {
    loaded: Arc<Mutex<Loaded>>,
    bytes: u64,
}

impl Memory {
    pub(crate) fn new(bound_bytes: u64) -> Memory {
        let kept = Mutex::new(Kept { directories: LruCache::unbounded(), bytes: 0 });
        Memory { bound_bytes, distrusted: AtomicBool::new(false), kept }
    }

    fn get(&self, key: &Key) -> Arc<Mutex<Loaded>> {
        self.kept.lock().directories.get_or_insert_ref(key, Entry::default).loaded.clone()
    }

    /// Sets the size of a directory. Beyond the bound the ones used least recently are evicted. One
    /// directory stays, however large: reading it again at each look-up would cost more than its
    /// memory.
    fn weigh(&self, key: &Key, bytes: u64) {
        let mut kept = self.kept.lock();
        let Some(entry) = kept.directories.peek_mut(key) else { return };
        let before = std::mem::replace(&mut entry.bytes, bytes);
        kept.bytes = kept.bytes - before + bytes;
        while kept.bytes > self.bound_bytes
            && kept.directories.len() > 1
            && let Some((_, evicted)) = kept.directories.pop_lru()
        {
            kept.bytes -= evicted.bytes;
        }
    }

    fn of_source(&self, source: &SourceId) -> Vec<(RemotePath, Arc<Mutex<Loaded>>)> {
        let kept = self.kept.lock();
        let of_source = kept.directories.iter().filter(|((of, _), _)| of == source);
        of_source.map(|((_, path), entry)| (path.clone(), entry.loaded.clone())).collect()
    }

    fn remove(&self, key: &Key) {
        let mut kept = self.kept.lock();
        if let Some(entry) = kept.directories.pop(key) {
            kept.bytes -= entry.bytes;
        }
    }
}

/// The directory whose file has the records of a path, and the name in it. The root's are in its
/// own file, under the empty name.
fn split(path: &RemotePath) -> (RemotePath, Vec<u8>) {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => (parent, name.as_bytes().to_vec()),
        _ => (RemotePath::root(), Vec::new()),
    }
}

impl Shared {
    /// The record of the content of the file `path`.
    pub fn file(&self, source: &SourceId, path: &RemotePath) -> Option<KnownFile> {
        self.with_name(source, path, Directory::file)
    }

    /// The target of the symbolic link `path`.
    pub fn link(&self, source: &SourceId, path: &RemotePath) -> Option<KnownLink> {
        self.with_name(source, path, Directory::link)
    }

    /// The recorded attributes of `path` that were seen last: by themselves, with a content, or in
    /// the listing of its directory. `None` also if a later listing lacks the name.
    pub fn attr(&self, source: &SourceId, path: &RemotePath) -> Option<KnownAttr> {
        self.with_name(source, path, Directory::attr)
    }

    /// Whether the listing of its directory has the name of `path`; `None` without a listing. A
    /// look-up by name, where [`Shared::directory`] would make the caller search.
    pub fn is_listed(&self, source: &SourceId, path: &RemotePath) -> Option<bool> {
        self.with_name(source, path, Directory::lists)
    }

    /// The complete listing of the directory `path`.
    pub fn directory(&self, source: &SourceId, path: &RemotePath) -> Option<Listing> {
        self.with_directory(source, path.clone(), Directory::listing)
    }

    /// The attributes recorded for single names in the directory `path` that `listing`, which was
    /// just read, may not replace: newer ones, and all if some of its own are unknown.
    pub(crate) fn attrs_beside(
        &self,
        source: &SourceId,
        path: &RemotePath,
        listing: &Listing,
    ) -> Vec<(Vec<u8>, KnownAttr)> {
        let has_all = listing.entries.iter().all(|entry| entry.attr.is_some());
        let attrs = self.with_directory(source, path.clone(), |directory| {
            let wanted =
                directory.attrs().filter(|(_, it)| !has_all || it.seen_at > listing.seen_at);
            Some(wanted.map(|(name, known)| (name.to_vec(), *known)).collect())
        });
        attrs.unwrap_or_default()
    }

    /// Whether a name in the directory `path` was seen after its listing, and differs from it.
    pub(crate) fn contradicts_listing(&self, source: &SourceId, path: &RemotePath) -> bool {
        let contradicts = |directory: &Directory| Some(directory.contradicts_listing());
        self.with_directory(source, path.clone(), contradicts).unwrap_or(false)
    }

    /// Whether the listing of its directory proves that `path` is absent.
    pub(crate) fn is_unlisted(&self, source: &SourceId, path: &RemotePath) -> bool {
        let is_absent = |directory: &Directory, name: &[u8]| Some(directory.is_absent(name));
        // The root is in no listing.
        !path.is_root() && self.with_name(source, path, is_absent).unwrap_or(false)
    }

    /// Whether a listing proves that `path`, or a directory above it, is absent.
    pub(crate) fn is_absent(&self, source: &SourceId, path: &RemotePath) -> bool {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            if self.is_unlisted(source, &path) {
                return true;
            }
            at = path.parent();
        }
        false
    }

    /// Whether the file `path` may have this content: nothing is recorded of its directory, or this
    /// content is recorded for it. No listing may prove that it is absent.
    pub(crate) fn may_have(&self, source: &SourceId, path: &RemotePath, digest: &Digest) -> bool {
        let is_recorded = |directory: &Directory, name: &[u8]| {
            Some(directory.file(name).is_some_and(|known| known.digest == *digest))
        };
        self.with_name(source, path, is_recorded).unwrap_or(true) && !self.is_absent(source, path)
    }

    /// The files in the directory `path` that are `wanted`, with their contents.
    pub(crate) fn contents_in(
        &self,
        source: &SourceId,
        path: &RemotePath,
        wanted: impl Fn(&RemotePath) -> bool,
    ) -> Vec<(RemotePath, Digest)> {
        let files = self.with_directory(source, path.clone(), |directory| {
            let named = directory.files().filter_map(|(name, known)| {
                let path = path.join(&Name::new(name).ok()?);
                wanted(&path).then_some((path, known.digest))
            });
            Some(named.collect())
        });
        files.unwrap_or_default()
    }

    /// The names of the file `id` with a recorded content, in the directories cached in memory.
    pub(crate) fn names_with_content(&self, source: &SourceId, id: FileId) -> Vec<RemotePath> {
        let directories = self.memory.of_source(source);
        let find = |(path, loaded): (RemotePath, Arc<Mutex<Loaded>>)| {
            let loaded = loaded.lock();
            let has_id = |(_, known): &(&[u8], &KnownFile)| known.attr.id() == Some(id);
            let (name, _) = loaded.directory.files().find(has_id)?;
            Some(path.join(&Name::new(name).ok()?))
        };
        directories.into_iter().filter_map(find).collect()
    }

    /// What the records of its directory have of `path`.
    fn with_name<T>(
        &self,
        source: &SourceId,
        path: &RemotePath,
        find: impl FnOnce(&Directory, &[u8]) -> Option<T>,
    ) -> Option<T> {
        let (parent, name) = split(path);
        self.with_directory(source, parent, |directory| find(directory, &name))
    }

    fn with_directory<T>(
        &self,
        source: &SourceId,
        path: RemotePath,
        find: impl FnOnce(&Directory) -> Option<T>,
    ) -> Option<T> {
        if self.memory.distrusted.load(Ordering::Relaxed) {
            return None;
        }
        let layout = self.layout();
        let key = (*source, path);
        let target = Target { source: &key.0, path: &key.1 };
        let Ok(stat) = layout.index.stat(&target.file()) else {
            self.memory.remove(&key);
            return None;
        };
        let entry = self.memory.get(&key);
        let mut loaded = entry.lock();
        if !loaded.is_current(&stat) {
            if let Err(why) = loaded.load(&layout.index, &target) {
                self.without_records(&layout, &key, why);
                return None;
            }
            if loaded.is_wasteful()
                && self.may_write()
                && let Err(error) = log::compact(&layout, &target, &loaded)
            {
                self.write_failed(&layout, "rewriting records", &error);
            }
            self.memory.weigh(&key, loaded.directory.memory_bytes());
        } else if is_use_due(&stat)
            && let Ok((file, stat)) = layout.index.file_below(&target.file(), OFlags::RDONLY)
        {
            note_use(&file, &stat);
        }
        find(&loaded.directory)
    }

    fn without_records(&self, layout: &Layout, key: &Key, why: NoRecords) {
        self.memory.remove(key);
        if let NoRecords::Damaged = why {
            let target = Target { source: &key.0, path: &key.1 };
            remove_file(layout, &target).unwrap_or_default();
            self.damaged("record");
        }
    }

    /// Appends to the records of the directory `path`.
    pub(crate) fn record(
        self: &Arc<Shared>,
        source: &SourceId,
        path: &RemotePath,
        records: &[Record],
    ) {
        if !self.may_write() {
            return;
        }
        let layout = self.layout();
        let target = Target { source, path };
        let space = |before: u64, after: u64| {
            let more = on_disk(after) - on_disk(before);
            // A new file needs a directory.
            let more = more + if before == 0 { on_disk(1) } else { 0 };
            more == 0 || self.reserve(more)
        };
        match log::append(&layout, &target, records, true, space) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.without_records(&layout, &(*source, path.clone()), NoRecords::Damaged);
            }
            Err(error) => self.write_failed(&layout, "writing a record", &error),
        }
    }

    pub(crate) fn record_name(
        self: &Arc<Shared>,
        source: &SourceId,
        path: &RemotePath,
        record: impl FnOnce(Vec<u8>) -> Record,
    ) {
        let (parent, name) = split(path);
        self.record(source, &parent, &[record(name)]);
    }

    /// Records the contents of many files, those of a directory by one write.
    pub(crate) fn record_files(self: &Arc<Shared>, files: &[(SourceId, RemotePath, KnownFile)]) {
        let mut directories: HashMap<Key, Vec<Record>> = HashMap::new();
        for (source, path, known) in files {
            let (parent, name) = split(path);
            let records = directories.entry((*source, parent)).or_default();
            records.push(Record::File(name, *known));
        }
        for ((source, directory), records) in directories {
            self.record(&source, &directory, &records);
        }
    }

    /// Records a listing, which must be complete: names that are not in it are taken for absent.
    pub fn record_directory(
        self: &Arc<Shared>,
        source: &SourceId,
        path: &RemotePath,
        listing: &Listing,
    ) {
        let record = match self.directory(source, path) {
            Some(known) if known.has_entries_of(listing) => Record::SeenAgain(listing.seen_at),
            _ => Record::Listing(listing.clone()),
        };
        self.record(source, path, &[record]);
    }

    /// Forgets `path`, all below it, and the listing of its directory. When this returns, no
    /// process finds their records; after a power loss the latest forgetting may be undone. Records
    /// that other processes write at the same time, or have read and not recorded yet, may stay.
    pub fn forget(self: &Arc<Shared>, source: &SourceId, path: &RemotePath) {
        if !path.is_root() {
            self.forget_entry(source, path);
        }
        match trash_below(&self.layout(), source, path) {
            Ok(false) => {}
            Ok(true) => self.start_housekeeping(),
            Err(error) => self.distrust(&error),
        }
    }

    /// Forgets `path` and the listing of its directory, but nothing below it, nor its own listing.
    pub fn forget_entry(&self, source: &SourceId, path: &RemotePath) {
        let (parent, name) = split(path);
        self.forget_in(&self.layout(), source, &parent, Record::Forget(name));
    }

    /// Forgets the attributes of the directory `path`, not those of its entries.
    pub fn forget_attr(&self, source: &SourceId, path: &RemotePath) {
        let (parent, name) = split(path);
        let known = self.with_directory(source, parent.clone(), |above| above.attr(&name));
        if known.is_some() {
            self.forget_in(&self.layout(), source, &parent, Record::Forget(name));
        }
    }

    /// Forgets the listing of the directory `path`, not the records of its names.
    pub fn forget_listing(&self, source: &SourceId, path: &RemotePath) {
        self.forget_in(&self.layout(), source, path, Record::ForgetListing);
    }

    fn forget_in(&self, layout: &Layout, source: &SourceId, path: &RemotePath, record: Record) {
        let target = Target { source, path };
        let appended = log::append(layout, &target, &[record], false, |_, _| true);
        if matches!(appended, Ok(true)) {
            return;
        }
        if let Err(error) = remove_file(layout, &target) {
            self.distrust(&error);
        }
    }

    fn distrust(&self, error: &io::Error) {
        if !self.memory.distrusted.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a change could not be recorded in the cache ({error}): \
                 its records of names are not used until the next mount"
            );
        }
    }

    /// Handles a failed write. An error caused by a name, or by other processes in the directory,
    /// says nothing about the disk.
    pub(crate) fn write_failed(&self, layout: &Layout, doing: &str, error: &io::Error) {
        let number = error.raw_os_error().map(Errno::from_raw_os_error);
        let harmless = match number {
            Some(
                Errno::NAMETOOLONG
                | Errno::ILSEQ
                | Errno::INVAL
                | Errno::EXIST
                | Errno::LOOP
                | Errno::NOTDIR
                | Errno::MFILE
                | Errno::NFILE,
            ) => true,
            Some(Errno::NOENT) => !layout.is_gone(),
            _ => false,
        };
        if harmless {
            tracing::debug!("the cache did not keep something, {doing}: {error}");
        } else {
            self.health.failed(doing, error);
        }
    }
}

fn remove_file(layout: &Layout, target: &Target<'_>) -> io::Result<()> {
    let removed = layout
        .index
        .below(&target.dir())
        .and_then(|dir_fd| layout.move_to_trash(&dir_fd, log::FILE_NAME));
    absent_is_fine(removed)
}

/// Removes all records below `path`; returns whether there were any.
fn trash_below(layout: &Layout, source: &SourceId, path: &RemotePath) -> io::Result<bool> {
    let dir_fd = Target { source, path }.dir();
    let (above, name) = match dir_fd.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (layout.index.below(&dir_fd[..at]), &dir_fd[at + 1..]),
        None => (layout.index.below(b"."), &dir_fd[..]),
    };
    debug_assert!(path.is_root() || name.first() == Some(&SUB));
    let thrown = above.and_then(|above| {
        let existed = above.stat(name).is_ok();
        if existed { layout.move_to_trash(&above, name).map(|()| true) } else { Ok(false) }
    });
    match thrown {
        Ok(existed) => Ok(existed),
        Err(error) => absent_is_fine(Err(error)).map(|()| false),
    }
}

/// A path that cannot exist has no records. `move_to_trash` renames; a disk that refuses even that
/// keeps the records to be forgotten.
fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    let fine = |error: &io::Error| {
        let number = error.raw_os_error().map(Errno::from_raw_os_error);
        matches!(
            number,
            Some(Errno::NOENT | Errno::NAMETOOLONG | Errno::NOTDIR | Errno::ILSEQ | Errno::LOOP)
        )
    };
    match result {
        Err(error) if fine(&error) => Ok(()),
        result => result,
    }
}
