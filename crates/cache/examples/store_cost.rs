//! The cost of the store in figures: verified reads against plain ones, look-ups of records by one
//! process and by several, filling.
//!
//! `cargo run --release -p cache --example store_cost -- [DIR]`; uses some 400 MiB in `DIR`.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Attr, DirEntry, FileKind, Name, RemotePath, Timestamp};
use bytes::Bytes;
use cache::{Digest, Listing, SourceId, Store, StoreConfig, Validator};

const LARGE_BYTES: usize = 256 << 20;
const REQUEST_BYTES: usize = 128 << 10;
const SMALL_READ_BYTES: usize = 4096;
const DIRS: u64 = 600;
const FILES: u64 = 9000;

fn main() {
    let dir: PathBuf = std::env::args_os().nth(1).unwrap_or("/var/tmp".into()).into();
    let dir = tempfile::tempdir_in(dir).expect("a directory for the store");
    for digests in [false, true] {
        fill_large(dir.path(), digests);
    }
    large(dir.path());
    small(dir.path());
}

fn open(dir: &Path, digests: bool) -> Store {
    let config = StoreConfig { size_bytes: Some(8 << 30), digests, ..StoreConfig::new(dir) };
    Store::open(config).expect("a store")
}

fn attr(size: usize) -> Attr {
    let mtime = Timestamp::from_secs(1_000_000);
    let (kind, size) = (FileKind::Regular, size as u64);
    Attr { kind, perm: 0o644, size, uid: 0, gid: 0, atime: mtime, mtime, inode: None }
}

fn content(number: u64, len: usize) -> Bytes {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(len).collect::<Vec<u8>>().into()
}

fn rate(what: &str, bytes: usize, time: Duration) {
    println!("{what:60} {:8.0} MB/s", bytes as f64 / 1e6 / time.as_secs_f64());
}

fn fill_large(dir: &Path, digests: bool) {
    let store = open(dir, digests);
    let (content, attr) = (content(u64::from(digests), LARGE_BYTES), attr(LARGE_BYTES));
    let path = RemotePath::parse(b"large").expect("a path");
    let partial = store.fetch(&SourceId::new(b"bench"), &path, Validator::of(&attr));
    let begun = Instant::now();
    for at in (0..LARGE_BYTES).step_by(REQUEST_BYTES) {
        partial.write(at as u64, &content.slice(at..at + REQUEST_BYTES));
    }
    partial.finish(&attr, false).expect("a content");
    let with = if digests { "with MD5, SHA-1, SHA-256" } else { "with blake3 alone" };
    rate(&format!("writing a content, {with}"), LARGE_BYTES, begun.elapsed());
    if digests {
        store.clear().expect("an empty store");
        drop(partial);
        fill_large(dir, false);
    }
}

fn large(dir: &Path) {
    let store = open(dir, false);
    let digest = Digest::of(&content(0, LARGE_BYTES));
    let object = store.object(&digest).expect("the large content");
    let file = std::fs::File::from(object.file().try_clone().expect("a descriptor"));
    // The page cache is warm for both, so the figures are processor time alone.
    for round in 1..=3 {
        let mut buffer = vec![0; REQUEST_BYTES];
        let plain = timed(|| {
            for at in (0..LARGE_BYTES).step_by(REQUEST_BYTES) {
                file.read_exact_at(&mut buffer, at as u64).expect("plain bytes");
            }
        });
        let compared = timed(|| {
            for at in (0..LARGE_BYTES).step_by(REQUEST_BYTES) {
                let read = object.read(at as u64, REQUEST_BYTES).expect("compared bytes");
                assert_eq!(read.len(), REQUEST_BYTES);
            }
        });
        rate(&format!("round {round}: plain sequential reads"), LARGE_BYTES, plain);
        rate(&format!("round {round}: compared sequential reads"), LARGE_BYTES, compared);
        let more = compared.saturating_sub(plain).as_secs_f64() * 1e12 / LARGE_BYTES as f64;
        println!("{:60} {more:8.0} ms for a GB", "  comparing costs");
    }
    random(&object, &file);
}

fn random(object: &cache::Object, file: &std::fs::File) {
    const READS: u64 = 50_000;
    let offset = |number: u64| {
        let blocks = (LARGE_BYTES / SMALL_READ_BYTES) as u64;
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks * SMALL_READ_BYTES as u64
    };
    let mut buffer = vec![0; SMALL_READ_BYTES];
    let plain = timed(|| {
        for number in 0..READS {
            file.read_exact_at(&mut buffer, offset(number)).expect("plain bytes");
        }
    });
    for round in ["first", "second"] {
        let compared = timed(|| {
            for number in 0..READS {
                object.read(offset(number), SMALL_READ_BYTES).expect("compared bytes");
            }
        });
        println!(
            "random reads of 4 KiB, {round} time: {:.1} us compared, {:.1} us plain",
            compared.as_secs_f64() * 1e6 / READS as f64,
            plain.as_secs_f64() * 1e6 / READS as f64
        );
    }
}

fn small(dir: &Path) {
    let store = open(dir, false);
    let source = SourceId::new(b"tree");
    let begun = Instant::now();
    for number in 0..FILES {
        let content = content(number, 2000 + (number as usize * 37) % 12_000);
        let attr = attr(content.len());
        let partial = store.fetch(&source, &path(number), Validator::of(&attr));
        partial.write(0, &content);
        partial.finish(&attr, false).expect("a small content");
    }
    each("writing small contents", FILES, begun.elapsed());
    let listing = |dir: u64| {
        let names = (0..FILES).filter(|number| number % DIRS == dir);
        let entries: Vec<_> = names
            .map(|number| DirEntry {
                name: path(number).file_name().expect("a name"),
                attr: Some(attr(1)),
            })
            .collect();
        Listing { entries: Arc::from(entries), seen_at: Timestamp::now() }
    };
    let begun = Instant::now();
    for number in 0..DIRS {
        store.record_directory(&source, &parent(number), &listing(number));
    }
    each("recording listings", DIRS, begun.elapsed());
    drop(store);
    let stores: Vec<_> = (0..2).map(|_| open(dir, false)).collect();
    for (store, who) in stores.iter().zip(["one process", "another at the same time"]) {
        for time in ["first", "second"] {
            let begun = Instant::now();
            for number in 0..DIRS {
                store.directory(&source, &parent(number)).expect("a listing");
            }
            each(&format!("{who}: {time} look-up of a listing"), DIRS, begun.elapsed());
        }
        let begun = Instant::now();
        for number in 0..FILES {
            store.file(&source, &path(number)).expect("a record");
        }
        each(&format!("{who}: look-up of a file"), FILES, begun.elapsed());
        let begun = Instant::now();
        for number in 0..FILES {
            let known = store.file(&source, &path(number)).expect("a record");
            let object = store.object(&known.digest).expect("a content");
            assert_eq!(object.read(0, 1 << 20).expect("its bytes").len() as u64, object.len());
        }
        each(&format!("{who}: look-up, open and read of a file"), FILES, begun.elapsed());
    }
}

fn parent(number: u64) -> RemotePath {
    RemotePath::parse(format!("a/b/c/d{}", number % DIRS).as_bytes()).expect("a path")
}

fn path(number: u64) -> RemotePath {
    parent(number).join(&Name::new(format!("f{number}").as_bytes()).expect("a name"))
}

fn each(what: &str, count: u64, time: Duration) {
    println!("{what:60} {:8.1} us each", time.as_secs_f64() * 1e6 / count as f64);
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}
