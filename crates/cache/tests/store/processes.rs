//! Several processes that use one store.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cache::{CHUNK_BYTES, Store, StoreConfig, Validator};

use crate::world::{self, Numbers, source};

/// The parameters of a child: its store, its seed, and its time in milliseconds.
const VARIABLE: &str = "SSHOAL_CACHE_CHILD";

/// Files that children write.
pub(crate) const FILES: u64 = 40;

/// Versions of each.
pub(crate) const VERSIONS: u64 = 3;

/// Less than all files together, so that some are always being evicted.
pub(crate) const LIMIT_BYTES: u64 = 4 << 20;

pub(crate) fn open(dir: &Path) -> Store {
    let config = StoreConfig { size_bytes: Some(LIMIT_BYTES), ..world::config(dir) };
    Store::open(config).unwrap()
}

/// Starts this program again, to use the store in `dir`, and waits until it does.
pub(crate) fn start(dir: &Path, seed: u64, time: Duration) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["processes::child", "--exact", "--nocapture"])
        .env(VARIABLE, format!("{} {seed} {}", dir.display(), time.as_millis()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("child is at work")), "the child has failed");
    child
}

/// The work of a child; without parameters it checks the work itself.
#[test]
fn child() {
    let Ok(told) = std::env::var(VARIABLE) else {
        let dir = tempfile::tempdir().unwrap();
        work(dir.path(), 1, Duration::from_millis(300));
        return;
    };
    let told: Vec<&str> = told.split(' ').collect();
    let time = Duration::from_millis(told[2].parse().unwrap());
    work(Path::new(told[0]), told[1].parse().unwrap(), time);
}

fn work(dir: &Path, seed: u64, time: Duration) {
    let store = open(dir);
    println!("\nchild is at work");
    let mut numbers = Numbers::new(seed);
    let end = Instant::now() + time;
    let (mut steps, mut hits) = (0, 0);
    // A busy machine may be slow.
    while Instant::now() < end || hits == 0 && steps < 10_000 {
        step(&store, &mut numbers, &mut hits);
        steps += 1;
    }
    let status = store.status();
    assert_eq!(status.damaged, 0, "{status:?}");
    assert_eq!(status.off, None);
    assert!(hits > 0, "no content was found in {steps} steps: {status:?}");
}

fn step(store: &Store, numbers: &mut Numbers, hits: &mut u64) {
    let (file, version) = (numbers.below(FILES), numbers.below(VERSIONS));
    let dir = file % world::DIRS;
    match numbers.below(20) {
        0..=6 => {
            world::put(store, file, version);
        }
        7..=12 => *hits += u64::from(world::check_file(store, file).content),
        13 => {
            let listing = world::listing(dir, FILES, version);
            store.record_directory(&source(), &world::dir(dir), &listing);
            store.record_link(&source(), &world::link_path(dir), &world::link_of(dir));
        }
        14 | 15 => {
            world::check_dir(store, dir, FILES);
        }
        16 => {
            world::check_partial(store, file, version);
        }
        17 => begin(store, file, version),
        18 => store.forget(&source(), &world::path(file)),
        _ if numbers.below(10) == 0 => {
            store.gc();
        }
        _ => store.forget(&source(), &world::dir(dir)),
    }
}

/// Fetches the beginning of a file, if it is a large one.
fn begin(store: &Store, file: u64, version: u64) {
    let attr = world::attr(file, version);
    let partial = store.fetch(&source(), &world::path(file), Validator::of(&attr));
    if attr.size > CHUNK_BYTES {
        partial.write(0, &world::content(file, version).slice(..CHUNK_BYTES as usize));
    }
}

/// Checks that everything in the store is right.
pub(crate) fn check_all(store: &Store) -> u64 {
    let mut hits = 0;
    for file in 0..FILES {
        hits += u64::from(world::check_file(store, file).content);
        for version in 0..VERSIONS {
            world::check_partial(store, file, version);
        }
    }
    for dir in 0..world::DIRS {
        world::check_dir(store, dir, FILES);
    }
    hits
}

fn end_of(mut child: Child) {
    let mut words = String::new();
    let ended = child.wait().unwrap();
    child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    child.stdout.take().unwrap().read_to_string(&mut words).unwrap();
    assert!(ended.success(), "{words}");
}

#[test]
fn processes_share_a_store_while_it_is_cleaned_and_cleared() {
    let time = Duration::from_secs(if world::is_big() { 180 } else { 3 });
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> = (2..4).map(|seed| start(dir.path(), seed, time)).collect();
    let store = open(dir.path());
    let end = Instant::now() + time;
    let mut report = 0;
    while Instant::now() < end {
        report += u64::from(store.gc().removed > 0);
        check_all(&store);
        if report % 50 == 49 {
            store.clear().unwrap();
        }
    }
    children.into_iter().for_each(end_of);
    assert_eq!(store.status().damaged, 0);
    let report = store.verify(|_| {});
    assert!(report.is_clean(), "{report:?}");
    assert!(world::settled_bytes(&store) <= LIMIT_BYTES);
}

#[test]
fn a_file_being_fetched_by_another_process_is_not_fetched_twice() {
    let dir = tempfile::tempdir().unwrap();
    // Two open stores are to each other as two processes: locks are of open files.
    let (one, two) = (world::open(dir.path()), world::open(dir.path()));
    let (content, attr) = (world::content(7, 1), world::attr(7, 1));
    let fetch = |store: &Store| store.fetch(&source(), &world::path(7), Validator::of(&attr));
    let first = fetch(&one);
    first.write(0, &content.slice(..CHUNK_BYTES as usize));
    let second = fetch(&two);
    second.write(0, &content);
    assert_eq!(second.present_bytes(), 0);
    assert!(second.finish(&attr, false).is_err());
    first.write(0, &content);
    let known = first.finish(&attr, false).unwrap();
    assert_eq!(two.file(&source(), &world::path(7)), Some(known));
    assert!(world::check_file(&two, 7).content);
}

#[test]
fn a_cleared_partial_content_does_not_replace_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (world::open(dir.path()), world::open(dir.path()));
    let (content, attr) = (world::content(7, 1), world::attr(7, 1));
    let fetch = |store: &Store| store.fetch(&source(), &world::path(7), Validator::of(&attr));
    let first = fetch(&one);
    first.write(0, &content);
    two.clear().unwrap();
    let second = fetch(&two);
    second.write(0, &content.slice(..CHUNK_BYTES as usize));
    assert!(first.finish(&attr, false).is_err(), "its files are gone");
    assert_eq!(second.present_bytes(), CHUNK_BYTES);
    second.write(0, &content);
    let known = second.finish(&attr, false).unwrap();
    assert_eq!(one.file(&source(), &world::path(7)), Some(known));
    assert!(world::check_file(&one, 7).content);
    assert_eq!((one.status().damaged, two.status().damaged), (0, 0));
}
