//! A disk that is full or fails: the store stops writing, warns once, and serves its contents.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cache::Store;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::world::{self, source};

const VARIABLE: &str = "SSHOAL_CACHE_FULL";

/// Counts warnings.
struct Warnings(Arc<AtomicU64>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Runs a test of this module again: with a directory that is a small file system, or under limits,
/// which only a process of its own can have. `$0` is the directory, `$@` the command.
fn again(test: &str, script: &str) -> Option<tempfile::TempDir> {
    if std::env::var_os(VARIABLE).is_some() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = sandbox::namespace::command()
        .args(["sh", "-c", script])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args([&format!("full_disk::{test}"), "--exact", "--nocapture"])
        .env(VARIABLE, dir.path())
        .output()
        .unwrap();
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    assert!(output.status.success() && words.contains("1 passed"), "{words}");
    Some(dir)
}

fn dir() -> PathBuf {
    std::env::var_os(VARIABLE).unwrap().into()
}

fn count_warnings() -> Arc<AtomicU64> {
    let warnings = Arc::new(AtomicU64::new(0));
    tracing::subscriber::set_global_default(Warnings(warnings.clone())).unwrap();
    warnings
}

fn hits(store: &Store, files: &[u64]) -> usize {
    files.iter().filter(|file| world::check_file(store, **file).content).count()
}

#[test]
fn a_disk_that_others_have_filled_turns_writing_off() {
    let script = "mount -t tmpfs -o size=1m,mode=700 none \"$0\" && exec \"$@\"";
    if again("a_disk_that_others_have_filled_turns_writing_off", script).is_some() {
        return;
    }
    let warnings = count_warnings();
    let store = world::open(&dir());
    assert!((1..6).all(|file| world::put(&store, file, 1).is_some()));
    let open = store.object(&cache::Digest::of(&world::content(2, 1))).unwrap();
    let ballast = std::fs::File::create(dir().join("ballast")).unwrap();
    // The space that the store evicts is filled too, until it has nothing left to evict. Until then
    // there may be space for a file for a moment.
    for round in 0.. {
        assert!(round < 1000, "the store goes on writing");
        while (&ballast).write_all(&[0; 4096]).is_ok() {}
        let put = world::put(&store, 8, 1);
        world::settled_bytes(&store);
        if put.is_none() && store.status().off.is_some() {
            break;
        }
    }
    assert_eq!(world::put(&store, 9, 1), None);
    // Forgetting works, also without space to record it.
    for file in 0..10 {
        store.forget(&source(), &world::path(file));
        assert_eq!(store.file(&source(), &world::path(file)), None);
    }
    assert_eq!(open.read(0, 10_000).unwrap(), world::content(2, 1));
    assert_eq!(warnings.load(Ordering::Relaxed), 1);
    drop(ballast);
    std::fs::remove_file(dir().join("ballast")).unwrap();
    assert!(world::put(&world::open(&dir()), 2, 1).is_some(), "there is space again");
}

#[test]
fn a_disk_filled_by_the_store_alone_leads_to_eviction() {
    for (limit, least) in [("size=1m", 10), ("nr_inodes=700", 10)] {
        let script = format!("mount -t tmpfs -o {limit},mode=700 none \"$0\" && exec \"$@\"");
        let test = "a_disk_filled_by_the_store_alone_leads_to_eviction";
        if again(test, &script).is_some() {
            continue;
        }
        let store = world::open(&dir());
        let mut kept = Vec::new();
        for file in (0..600).filter(|file| file % 7 > 1) {
            if world::put(&store, file, 1).is_some() {
                kept.push(file);
            } else {
                world::settled_bytes(&store);
            }
        }
        assert!(store.status().off.is_none(), "{:?}", store.status());
        assert!(kept.last() > Some(&550), "{kept:?}");
        assert!(hits(&store, &kept) > least);
        assert!(store.status().evicted_bytes > 0);
        return;
    }
}

#[test]
fn a_write_that_fails_turns_writing_off_with_one_warning() {
    // Files longer than 8 blocks cannot be written.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    if again("a_write_that_fails_turns_writing_off_with_one_warning", script).is_some() {
        return;
    }
    let warnings = count_warnings();
    let store = world::open(&dir());
    let known = world::put(&store, 2, 1).unwrap();
    assert_eq!(world::put(&store, 7, 1), None);
    assert!(store.status().off.unwrap().contains("too large"), "said why");
    assert_eq!(world::put(&store, 3, 1), None, "off");
    assert!(world::check_file(&store, 2).content, "and still read");
    assert_eq!(store.file(&source(), &world::path(2)), Some(known));
    assert_eq!(world::put(&world::open(&dir()), 14, 1), None);
    // One of each open store.
    assert_eq!(warnings.load(Ordering::Relaxed), 2);
    assert!(store.verify(|_| {}).is_clean());
}
