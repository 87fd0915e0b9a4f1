//! Keeps a store within its bounds, and removes stale files.
//!
//! One process at a time does this, under the lock of the file `gc.lock`, on a thread of its own,
//! when a writer comes near the bounds. The least recently used items are evicted first, until a
//! tenth of the bound is free: a scan checks each file, so it does not pay for each file written.
//! The records of a directory follow those of the directories below it, and contents that were used
//! in the same hour. Pinned contents, and partial ones in use, stay. A content is pinned while a
//! pinned file has it: not after a later content of the file was recorded, or a listing lacks the
//! file.
//!
//! A content of more than one chunk stays while a process has it open: its space would not be free
//! before it is closed. A smaller one is evicted like any other; its readers keep it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::slice::Iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::RemotePath;
use rustix::fs::FileType;

use super::StoreError;
use super::layout::{Layout, unique_name};
use super::pins::Place;
use super::quota::{FreeSpace, Usage};
use super::scan::{self, Item, What};
use super::shared::Shared;
use crate::digest::Digest;
use crate::dir_fd::{DirFd, USE_SECS, try_lock};
use crate::index::log::{FILE_NAME, Target};
use crate::metadata::SourceId;
use crate::object::about::Origin;
use crate::partial::files::Names;

/// Time in seconds after which the store is scanned, also within its bounds.
const SCAN_SECS: i64 = 24 * 3600;

/// Pause after a clean-up that removed nothing, or found another process at work: each writer
/// without space requests the next one.
const PAUSE: Duration = Duration::from_secs(5);

/// How long a command waits for a clean-up by another process: more than the removal of some
/// million files takes.
const CLEANING_LIMIT: Duration = Duration::from_secs(600);

/// Interval at which a command that waits checks whether the clean-up is over.
const CLEANING_POLL: Duration = Duration::from_millis(20);

/// Further rounds of a clean-up while the file system lacks free inodes.
const MORE_ROUNDS: u32 = 4;

/// The result of a clean-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Bytes that the store takes now.
    pub kept_bytes: u64,
    /// Bytes that were removed.
    pub removed_bytes: u64,
    /// Contents, partial contents and directories' records that were removed.
    pub removed: u64,
    /// Another process is cleaning up; nothing was done.
    pub busy: bool,
}

impl Shared {
    /// Starts the housekeeping on a thread of its own, unless it is running.
    pub(crate) fn start_housekeeping(self: &Arc<Shared>) {
        let paused_until = *self.paused_until.lock();
        let rests = paused_until.is_some_and(|until| Instant::now() < until);
        if rests || self.housekeeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        let started = std::thread::Builder::new().name("cache-clean".into()).spawn(move || {
            shared.clean_if_needed();
            shared.housekeeping.store(false, Ordering::Release);
        });
        if started.is_err() {
            self.housekeeping.store(false, Ordering::Release);
        }
    }

    /// Empties the trash; scans only when the bounds are near or the last scan is long ago.
    fn clean_if_needed(&self) {
        let layout = self.layout();
        empty_trash(&layout);
        let usage = self.usage();
        let age = base::Timestamp::now().secs - usage.scanned_secs;
        let over = self.excess(&layout, usage.bytes) > 0;
        if (over || age.abs() > SCAN_SECS) && self.gc().removed == 0 {
            let until = Instant::now() + PAUSE;
            *self.paused_until.lock() = Some(until);
        }
    }

    /// Bytes to evict, so that some space is free afterwards; 0 within the bounds.
    fn excess(&self, layout: &Layout, bytes: u64) -> u64 {
        let Ok(disk) = layout.disk() else { return 0 };
        let limit = self.current_bounds().size_bytes(&disk);
        let left = FreeSpace::on(&disk);
        let over = if bytes > limit / 20 * 19 { bytes - limit / 10 * 9 } else { 0 };
        let short = left.missing_bytes(self.current_bounds().free_bytes(&disk));
        // The number of files that frees is not known yet.
        let files = if left.lacks_files() { bytes / 10 + 1 } else { 0 };
        over.max(short).max(files)
    }

    /// Turns writing off when nothing is left to evict and still too little is free: others have
    /// filled the disk.
    fn report_if_full(&self, layout: &Layout) {
        let Ok(disk) = layout.disk() else { return };
        let left = FreeSpace::on(&disk);
        if left.missing_bytes(self.current_bounds().free_bytes(&disk)) > 0 || left.lacks_files() {
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            self.health.failed("leaving some of the disk free", &full);
        }
    }

    /// Evicts down to the bounds, and removes stale files. Long.
    pub fn gc(&self) -> GcReport {
        let Ok(lock) = gc_lock(&self.layout()) else { return GcReport::default() };
        match try_lock(&lock) {
            Ok(true) => self.gc_locked(),
            _ => GcReport { busy: true, ..GcReport::default() },
        }
    }

    fn gc_locked(&self) -> GcReport {
        let layout = self.layout();
        empty_trash(&layout);
        sweep_tmp(&layout);
        self.write_notes();
        self.release_reservation();
        let before = self.usage().bytes;
        let mut items = scan::all(&layout);
        let found: u64 = items.iter().map(|item| item.bytes).sum();
        let scanned_secs = base::Timestamp::now().secs;
        // Files that others write meanwhile may be counted or not; too many bytes are the safer
        // side.
        let usage = self.change_usage(|usage| {
            let bytes = found + usage.bytes.saturating_sub(before);
            Usage { bytes, scanned_secs }
        });
        let bytes = usage.map_or(found, |usage| usage.bytes);
        sort_for_eviction(&mut items);
        let mut items = items.iter();
        let mut report = self.evict(&layout, &mut items, self.excess(&layout, bytes));
        // How many inodes an eviction frees shows only afterwards.
        for _ in 0..MORE_ROUNDS {
            let left = bytes.saturating_sub(report.removed_bytes);
            let lacks = layout.disk().is_ok_and(|disk| FreeSpace::on(&disk).lacks_files());
            if !lacks || report.removed == 0 {
                break;
            }
            let more = self.evict(&layout, &mut items, left / 10 + 1);
            report.removed += more.removed;
            report.removed_bytes += more.removed_bytes;
        }
        empty_trash(&layout);
        self.report_if_full(&layout);
        GcReport { kept_bytes: bytes.saturating_sub(report.removed_bytes), ..report }
    }

    /// Evicts the next `items` until `excess` bytes are free.
    fn evict(&self, layout: &Layout, items: &mut Iter<'_, Item>, excess: u64) -> GcReport {
        let mut report = GcReport::default();
        if excess == 0 {
            return report;
        }
        let pins = self.pins();
        let pinned = self.pinned_contents(layout, &pins);
        while report.removed_bytes < excess {
            let Some(item) = items.next() else { break };
            let keeps = matches!(&item.what, What::Object(digest, _) if pinned.contains(digest));
            if !keeps && !self.is_pinned(&pins, &item.what) && self.remove(layout, item) {
                report.removed += 1;
                report.removed_bytes += item.bytes;
            }
        }
        self.counters.evicted_bytes.fetch_add(report.removed_bytes, Ordering::Relaxed);
        report
    }

    /// The bytes of the pinned contents in the store. Long.
    pub fn pinned_bytes(&self) -> u64 {
        let pinned = self.pinned_contents(&self.layout(), &self.pins());
        pinned.iter().filter_map(|digest| self.object_bytes(digest)).sum()
    }

    /// The contents of pinned files, from the index. In the metadata of a content another process
    /// may not have written its files yet.
    fn pinned_contents(&self, layout: &Layout, pins: &[Place]) -> HashSet<Digest> {
        let mut directories = Vec::new();
        if !pins.is_empty() {
            scan::records(layout, &mut directories);
        }
        let mut pinned = HashSet::new();
        for item in directories {
            let What::Records(source, path) = item.what else { continue };
            let covered = |path: &RemotePath| pins.iter().any(|pin| pin.covers(&source, path));
            let has_pinned =
                covered(&path) || pins.iter().any(|pin| pin.is_listed_in(&source, &path));
            if !has_pinned || self.is_absent(&source, &path) {
                continue;
            }
            for (path, digest) in self.contents_in(&source, &path, covered) {
                if !self.is_unlisted(&source, &path) {
                    pinned.insert(digest);
                }
            }
        }
        pinned
    }

    fn is_pinned(&self, pins: &[Place], what: &What) -> bool {
        if pins.is_empty() {
            return false;
        }
        match what {
            What::Object(digest, _) => self.about(digest).is_some_and(|about| {
                about.origins.iter().any(|Origin { source, path, .. }| {
                    pins.iter().any(|pin| pin.covers(source, path))
                        && self.may_have(source, path, digest)
                })
            }),
            What::Partial(_) => false,
            What::Records(source, path) => {
                // Offline, a pinned file is found by the records of all directories above it.
                pins.iter().any(|pin| pin.source == *source && pin.path.is_within(path))
                    || pins.iter().any(|pin| pin.covers(source, path))
                        && !self.is_absent(source, path)
            }
        }
    }

    /// Removes one item; `false` when that is not possible now.
    fn remove(&self, layout: &Layout, item: &Item) -> bool {
        match &item.what {
            What::Object(digest, _) => {
                // Not if it was used, or fetched again, after the scan.
                !self.is_open(digest)
                    && self.remove_object_if(digest, |stat| stat.st_atime == item.used_secs) > 0
            }
            What::Partial(key) => {
                let names = Names::of(key);
                if scan::is_busy(layout, &names.data) {
                    return false;
                }
                let removed = layout.partial.unlink(&names.data).is_ok();
                let _ = layout.partial.unlink(&names.map);
                self.release_if(removed, item.bytes)
            }
            What::Records(source, path) => {
                let target = Target { source, path };
                let removed = layout
                    .index
                    .below(&target.dir())
                    .and_then(|dir_fd| dir_fd.unlink(FILE_NAME))
                    .is_ok();
                prune(&layout.index, &target.dir());
                self.release_if(removed, item.bytes)
            }
        }
    }

    fn release_if(&self, removed: bool, bytes: u64) -> bool {
        if removed {
            self.release(bytes);
        }
        removed
    }

    /// Evicts as [`Shared::gc`], after any process that does so now. Long.
    pub fn gc_when_free(&self) -> Result<GcReport, StoreError> {
        let lock = gc_lock(&self.layout());
        let lock = lock.map_err(|error| StoreError::io(&self.dir, "opening gc.lock", error))?;
        self.wait_for_clean_up(&lock)?;
        Ok(self.gc_locked())
    }

    /// Takes the lock of a clean-up when no process has it.
    fn wait_for_clean_up(&self, lock: &File) -> Result<(), StoreError> {
        let failed = |error| StoreError::io(&self.dir, "waiting for another clean-up", error);
        let deadline = Instant::now() + CLEANING_LIMIT;
        while !try_lock(lock).map_err(failed)? {
            if Instant::now() > deadline {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(CLEANING_POLL);
        }
        Ok(())
    }

    /// Removes everything but the pins, also while mounts use it: they fetch again. Long.
    pub fn clear(&self) -> Result<(), StoreError> {
        let layout = self.layout();
        // If it cannot be opened, no process evicts.
        let lock = gc_lock(&layout);
        if let Ok(lock) = &lock {
            self.wait_for_clean_up(lock)?;
        }
        let removed = || -> io::Result<()> {
            for dir_fd in [&layout.objects, &layout.index, &layout.partial] {
                for (name, _) in dir_fd.names()? {
                    layout.move_to_trash(dir_fd, &name)?;
                }
            }
            // A directory of earlier versions.
            layout.move_to_trash(&layout.root, b"alias")?;
            Ok(())
        };
        removed().map_err(|error| StoreError::io(&self.dir, "removing its contents", error))?;
        let scanned_secs = base::Timestamp::now().secs;
        self.change_usage(|_| Usage { bytes: 0, scanned_secs });
        empty_trash(&layout);
        Ok(())
    }
}

/// Sorts items in the order in which they are evicted. The records of a directory follow contents
/// that were used in the same hour, which is the resolution of these times, and the records of all
/// directories below it: offline, a file is found by the records of all directories above it.
fn sort_for_eviction(items: &mut [Item]) {
    let mut last_used: HashMap<(SourceId, RemotePath), i64> = HashMap::new();
    for item in items.iter() {
        let What::Records(source, path) = &item.what else { continue };
        let mut next = Some(path.clone());
        while let Some(dir) = next {
            next = dir.parent();
            let latest = last_used.entry((*source, dir)).or_insert(i64::MIN);
            if *latest >= item.used_secs {
                // So it is for all directories above this one.
                break;
            }
            *latest = item.used_secs;
        }
    }
    items.sort_by_cached_key(|item| match &item.what {
        What::Records(source, path) => {
            let used_secs = last_used[&(*source, path.clone())];
            (used_secs.saturating_add(USE_SECS), Reverse(path.as_bytes().len()))
        }
        What::Object(..) | What::Partial(_) => (item.used_secs, Reverse(usize::MAX)),
    });
}

/// The file whose lock a clean-up has.
fn gc_lock(layout: &Layout) -> io::Result<File> {
    Ok(layout.root.ensure(b"gc.lock")?.0)
}

/// Removes empty directories of the index, from the deepest up.
fn prune(index: &DirFd, path: &[u8]) {
    let mut path = path;
    while let Some(at) = path.iter().rposition(|byte| *byte == b'/') {
        let (above, name) = (&path[..at], &path[at + 1..]);
        // Fails if it is not empty, which ends the loop.
        if !index.below(above).is_ok_and(|above| above.rmdir(name).is_ok()) {
            return;
        }
        path = above;
    }
}

/// Removes the trash, of any depth: the entries of a directory are moved up first.
fn empty_trash(layout: &Layout) {
    let Ok(trash) = layout.trash() else { return };
    // Bounded by the entries; other processes may add some at the same time.
    loop {
        let names = trash.names().unwrap_or_default();
        let removed =
            names.iter().filter(|(name, kind)| remove_from_trash(&trash, name, *kind)).count();
        if removed == 0 {
            return;
        }
    }
}

/// Returns whether a part of it was removed.
fn remove_from_trash(trash: &DirFd, name: &[u8], kind: FileType) -> bool {
    if kind != FileType::Directory {
        return trash.unlink(name).is_ok();
    }
    let Ok(dir_fd) = trash.sub(name) else { return false };
    for (inner, kind) in dir_fd.names().unwrap_or_default() {
        let _ = match kind {
            FileType::Directory => dir_fd.rename(&inner, trash, &unique_name()),
            _ => dir_fd.unlink(&inner),
        };
    }
    trash.rmdir(name).is_ok()
}

fn sweep_tmp(layout: &Layout) {
    for (name, _) in layout.tmp.names().unwrap_or_default() {
        if let Ok(stat) = layout.tmp.stat(&name) {
            scan::remove_stale(&layout.tmp, &name, &stat);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use base::{Attr, FileKind, Timestamp};
    use testkit::path;

    use super::*;
    use crate::object::Names as ObjectNames;
    use crate::{SourceId, Store, StoreConfig, Validator};

    const LONG_AGO: u64 = 1_000_000_000;

    /// Keeps a content that was last used long ago.
    fn put_old(store: &Store, name: &str) -> Digest {
        let content = name.as_bytes().to_vec();
        let (kind, size, mtime) =
            (FileKind::Regular, content.len() as u64, Timestamp::from_secs(LONG_AGO as i64));
        let attr =
            Attr { kind, perm: 0o644, size, uid: 0, gid: 0, atime: mtime, mtime, inode: None };
        let partial = store.fetch(&SourceId::new(b"source"), &path(name), Validator::of(&attr));
        partial.write(0, &content.into());
        let digest = partial.finish(&attr, false).expect("all bytes were written").digest;
        let names = ObjectNames::of(&digest);
        let dir_fd = store.layout().objects.sub(&names.dir).unwrap();
        let (file, _) = dir_fd.read_only(&names.content).unwrap();
        let then = UNIX_EPOCH + Duration::from_secs(LONG_AGO);
        file.set_times(std::fs::FileTimes::new().set_accessed(then)).unwrap();
        digest
    }

    #[test]
    fn a_content_used_after_the_scan_is_not_evicted() {
        let dir = tempfile::tempdir().unwrap();
        let (size_bytes, free_bytes) = (Some(1 << 30), Some(0));
        let config = StoreConfig { size_bytes, free_bytes, ..StoreConfig::new(dir.path()) };
        let store = Store::open(config).unwrap();
        let [used, unused] = ["used", "unused"].map(|name| put_old(&store, name));
        let mut items = Vec::new();
        scan::objects(&store.layout(), &mut items);
        assert_eq!(items.len(), 2);
        assert!(store.object(&used).is_some());
        let report = store.evict(&store.layout(), &mut items.iter(), u64::MAX);
        assert_eq!(report.removed, 1);
        assert!(store.object(&used).is_some() && store.object(&unused).is_none());
    }
}
