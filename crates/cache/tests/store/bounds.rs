//! Bounds: what is evicted, what is not, and the effect of a full disk.

use std::path::Path;
use std::time::{Duration, SystemTime};

use cache::{Store, StoreConfig, Validator};

use crate::world::{self, Found, source};

const WHOLE: Found = Found { record: true, content: true };

/// A store without digests, for which it would open contents itself: open ones are not evicted.
fn bounded(dir: &Path, size_bytes: u64) -> Store {
    let config = StoreConfig { digests: false, ..world::config(dir) };
    Store::open(StoreConfig { size_bytes: Some(size_bytes), ..config }).unwrap()
}

/// Bytes that the files below `dir` take.
fn disk_bytes(dir: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.path().symlink_metadata() else { continue };
        bytes += match metadata.is_dir() {
            true => disk_bytes(&entry.path()),
            false => std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
        };
    }
    bytes
}

/// Sets the last use of a file's content to `hours` ago.
fn age(dir: &Path, file: u64, hours: u64) {
    let digest = cache::Digest::of(&world::content(file, 1)).to_hex();
    let path = dir.join("v1/objects").join(&digest[..2]).join(&digest[2..]);
    let then = SystemTime::now() - Duration::from_secs(hours * 3600);
    let times = std::fs::FileTimes::new().set_accessed(then).set_modified(then);
    std::fs::File::open(path).unwrap().set_times(times).unwrap();
}

#[test]
fn the_store_stays_within_its_size_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 3 << 20;
    let store = bounded(dir.path(), limit);
    let mut kept = 0;
    for file in 0..150 {
        kept += u32::from(world::put(&store, file, 1).is_some());
        let used =
            disk_bytes(&dir.path().join("v1/objects")) + disk_bytes(&dir.path().join("v1/partial"));
        assert!(used <= limit, "{used} bytes after {file} files");
        if file % 20 == 0 {
            world::settled_bytes(&store);
        }
    }
    assert!(kept > 50, "only {kept} were kept");
    assert!(world::settled_bytes(&store) <= limit);
    assert!(store.status().evicted_bytes > 0);
    let found = (0..150).filter(|file| world::check_file(&store, *file) == WHOLE).count();
    assert!(found > 10, "only {found} are left");
}

#[test]
fn the_least_recently_used_contents_are_evicted_and_pinned_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 64 << 20);
    for file in 0..60 {
        world::put(&store, file, 1).unwrap();
        age(dir.path(), file, 1000 - file);
    }
    store.pin(&source(), &world::path(1)).unwrap();
    store.pin(&source(), &world::dir(3)).unwrap();
    // Used again: recorded with a resolution of an hour.
    assert_eq!(world::check_file(&store, 2), WHOLE);
    let used = world::settled_bytes(&store);
    drop(store);
    let store = bounded(dir.path(), used / 2);
    let report = world::settled_bytes(&store);
    assert!(report <= used / 2, "{report} of {used}");
    let held = |file| store.object_bytes(&cache::Digest::of(&world::content(file, 1))).is_some();
    for file in (0..60).filter(|file| file % world::DIRS == 3).chain([1, 2]) {
        assert!(held(file), "file {file} is pinned, or was used");
    }
    assert!(!held(0) && !held(4) && held(59));
    assert!(store.unpin(&source(), &world::dir(3)).unwrap());
    assert!(!store.unpin(&source(), &world::dir(3)).unwrap());
    assert_eq!(store.pins().len(), 1);
}

#[test]
fn a_partial_content_in_use_stays_and_an_abandoned_one_is_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 4 << 20);
    let fetch = |file| {
        let attr = world::attr(file, 1);
        let partial = store.fetch(&source(), &world::path(file), Validator::of(&attr));
        partial.write(0, &world::content(file, 1).slice(..cache::CHUNK_BYTES as usize));
        partial
    };
    let busy = fetch(0);
    drop(fetch(7));
    assert_eq!(store.list().len(), 2);
    drop(bounded(dir.path(), 1));
    let tiny = bounded(dir.path(), 1);
    world::settled_bytes(&tiny);
    let left = tiny.list();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].files[0].path, world::path(0));
    assert_eq!(busy.present_bytes(), cache::CHUNK_BYTES);
}

#[test]
fn a_content_too_large_for_the_store_is_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 20);
    let attr = base::Attr { size: 1 << 62, ..world::attr(0, 1) };
    let partial = store.fetch(&source(), &world::path(0), Validator::of(&attr));
    partial.write(0, &vec![1; 1 << 18].into());
    assert_eq!(partial.read(0, 10), None);
    assert_eq!(partial.missing(5..7).first(), Some(&(5..7)));
    assert_eq!(partial.finish(&attr, false), Err(cache::Unfinished::NotKept));
    assert!(store.list().is_empty());
    let status = store.status();
    assert_eq!((status.too_large, status.largest_content_bytes), (1, 1 << 19), "which is told");
    world::put(&store, 2, 1).unwrap();
    assert_eq!(store.status().too_large, 1);
}

/// Its metadata would be too long to be read again.
#[test]
fn a_content_too_large_for_the_format_is_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 60);
    let attr = base::Attr { size: (2 << 40) + 1, ..world::attr(0, 1) };
    let partial = store.fetch(&source(), &world::path(0), Validator::of(&attr));
    assert_eq!(partial.finish(&attr, false), Err(cache::Unfinished::NotKept));
    let status = store.status();
    assert_eq!((status.too_large, status.largest_content_bytes), (1, 2 << 40));
}

#[test]
fn some_of_the_disk_stays_free() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { free_bytes: Some(u64::MAX / 2), ..world::config(dir.path()) };
    let store = Store::open(config).unwrap();
    assert_eq!(world::put(&store, 0, 1), None);
    store.record_attr(
        &source(),
        &world::path(1),
        &cache::KnownAttr { attr: world::attr(1, 1), seen_at: base::Timestamp::now() },
    );
    assert_eq!(store.attr(&source(), &world::path(1)), None);
    world::settled_bytes(&store);
    assert!(store.status().off.unwrap().contains("free"), "and that is told");
}

/// The metadata of a content may be lost with the process that deferred it.
#[test]
fn pinned_contents_without_metadata_are_not_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 30);
    for file in 2..7 {
        world::put(&store, file, 1).unwrap();
    }
    store.pin(&source(), &world::path(3)).unwrap();
    assert_eq!(store.pinned_bytes(), world::content(3, 1).len() as u64);
    store.pin(&source(), &world::path(5)).unwrap();
    let both = [3, 5].map(|file| world::content(file, 1).len() as u64);
    assert_eq!(store.pinned_bytes(), both.iter().sum::<u64>());
    store.unpin(&source(), &world::path(5)).unwrap();
    drop(store);
    let digest = cache::Digest::of(&world::content(3, 1)).to_hex();
    let about = dir.path().join("v1/objects").join(&digest[..2]);
    std::fs::remove_file(about.join(format!("{}.about", &digest[2..]))).unwrap();
    let store = bounded(dir.path(), 1);
    world::settled_bytes(&store);
    assert_eq!(world::check_file(&store, 3), WHOLE);
    assert!([2, 4, 5, 6].iter().all(|file| !world::check_file(&store, *file).content));
}

/// Only contents that a pinned file has at present are exempt from eviction.
#[test]
fn replaced_and_removed_contents_of_a_pinned_tree_are_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 30);
    for number in [3, 4] {
        store.pin(&source(), &world::dir(number)).unwrap();
    }
    let contents = [(3, 1), (3, 2), (8, 1), (13, 1), (4, 1)];
    for (file, version) in contents {
        world::put(&store, file, version).unwrap();
    }
    // File 13 was removed, and the directory of file 4.
    let seen_at = base::Timestamp::now();
    let listing = cache::Listing { seen_at, ..world::listing(3, 13, 1) };
    store.record_directory(&source(), &world::dir(3), &listing);
    let kept = base::DirEntry { name: world::dir(3).file_name().unwrap(), attr: None };
    let root = cache::Listing { entries: [kept].into(), seen_at };
    store.record_directory(&source(), &base::RemotePath::root(), &root);
    drop(store);
    let store = bounded(dir.path(), 1);
    world::settled_bytes(&store);
    let held = contents.map(|(file, version)| {
        store.object_bytes(&cache::Digest::of(&world::content(file, version))).is_some()
    });
    assert_eq!(held, [false, true, true, false, false]);
}

/// Offline, a pinned file is found by the records of all directories above it.
#[test]
fn the_records_above_a_pin_are_not_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 30);
    let above = [base::RemotePath::root(), world::dir(3)];
    for path in &above {
        let attr = base::Attr { kind: base::FileKind::Directory, ..world::attr(0, 1) };
        let known = cache::KnownAttr { attr, seen_at: base::Timestamp::now() };
        store.record_attr(&source(), path, &known);
    }
    world::put(&store, 3, 1).unwrap();
    store.pin(&source(), &world::path(3)).unwrap();
    drop(store);
    let store = bounded(dir.path(), 1);
    world::settled_bytes(&store);
    assert_eq!(world::check_file(&store, 3), WHOLE);
    assert!(above.iter().all(|path| store.attr(&source(), path).is_some()));
}

/// Offline, a content is found by the records of all directories above it. They are written before
/// it, and read while it is.
#[test]
fn the_records_above_a_content_are_evicted_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 30);
    let attr = base::Attr { kind: base::FileKind::Directory, ..world::attr(0, 1) };
    let known = cache::KnownAttr { attr, seen_at: base::Timestamp::now() };
    store.record_attr(&source(), &base::RemotePath::root(), &known);
    for file in 0..40 {
        world::put(&store, file, 1).unwrap();
    }
    let used = world::settled_bytes(&store);
    drop(store);
    // The records of the top were not used for long.
    let sources = std::fs::read_dir(dir.path().join("v1/index")).unwrap();
    let top = sources.last().unwrap().unwrap().path().join("records");
    let then = SystemTime::now() - Duration::from_secs(100 * 3600);
    let times = std::fs::FileTimes::new().set_accessed(then).set_modified(then);
    std::fs::File::open(top).unwrap().set_times(times).unwrap();
    let store = bounded(dir.path(), used / 2);
    world::settled_bytes(&store);
    let found: Vec<Found> = (0..40).map(|file| world::check_file(&store, file)).collect();
    let left = found.iter().filter(|found| **found == WHOLE).count();
    assert!((1..40).contains(&left), "{left} contents are left");
    assert!(found.iter().all(|found| found.record), "{found:?}");
    assert!(store.attr(&source(), &base::RemotePath::root()).is_some());
}

/// The commands wait for a clean-up by another process, which may have other bounds.
#[test]
fn a_clean_up_that_is_requested_follows_one_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 30);
    for file in 2..7 {
        world::put(&store, file, 1).unwrap();
    }
    drop(store);
    let lock = std::fs::File::create(dir.path().join("v1/gc.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let store = bounded(dir.path(), 1);
    assert!(store.gc().busy);
    let cleaning = std::thread::spawn({
        let store = store.clone();
        move || store.gc_when_free().unwrap()
    });
    std::thread::yield_now();
    assert!(!cleaning.is_finished());
    drop(lock);
    assert!(!cleaning.join().unwrap().busy);
    assert!((2..7).all(|file| !world::check_file(&store, file).content));
}

/// Removing an open content frees nothing.
#[test]
fn a_large_content_stays_while_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = bounded(dir.path(), 1 << 30);
    let [open, closed] = [0, 7].map(|file| {
        world::put(&store, file, 1).unwrap();
        age(dir.path(), file, 1000);
        cache::Digest::of(&world::content(file, 1))
    });
    let object = store.object(&open).unwrap();
    age(dir.path(), 0, 1000);
    let small = bounded(dir.path(), 1);
    world::settled_bytes(&small);
    assert!(small.object_bytes(&open).is_some() && small.object_bytes(&closed).is_none());
    drop(object);
    world::settled_bytes(&small);
    assert!(small.object_bytes(&open).is_none());
}

/// The file that counts the bytes is removed while a store is open: all processes count in a new
/// one, and a scan finds what was there before.
#[test]
fn the_size_is_counted_again_when_its_file_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 64 << 20;
    let store = bounded(dir.path(), limit);
    assert!((0..20).all(|file| world::put(&store, file, 1).is_some()));
    let before = world::settled_bytes(&store);
    std::fs::remove_file(dir.path().join("v1/usage")).unwrap();
    assert!((20..40).all(|file| world::put(&store, file, 1).is_some()));
    let settled = world::settled_bytes(&store);
    assert!(settled > before, "{settled}, and {before} before the removal");
    assert!(dir.path().join("v1/usage").exists(), "other processes would count in a new one");
    assert_eq!(bounded(dir.path(), limit).status().used_bytes, settled);
}

/// Records in memory are in use, too.
#[test]
fn a_look_up_in_memory_is_a_use_of_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let store = world::open(dir.path());
    store.record_directory(&source(), &world::dir(1), &world::listing(1, 5, 1));
    let records = records_below(&dir.path().join("v1/index"));
    assert_eq!(records.len(), 1);
    let records = std::fs::File::open(&records[0]).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(48 * 3600);
    let times = std::fs::FileTimes::new().set_accessed(long_ago);
    // Unchanged for so long that its status proves it.
    records.set_times(times.set_modified(long_ago)).unwrap();
    let looked_up_at = || {
        assert!(store.directory(&source(), &world::dir(1)).is_some());
        records.metadata().unwrap().accessed().unwrap()
    };
    let is_recent = |used: SystemTime| used > long_ago + Duration::from_secs(47 * 3600);
    assert!(is_recent(looked_up_at()));
    records.set_times(times).unwrap();
    assert!(is_recent(looked_up_at()), "it was not read again");
}

/// The files of records below `dir`.
fn records_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(records_below(&path)),
            path => found.extend(path.ends_with("records").then_some(path)),
        }
    }
    found
}
