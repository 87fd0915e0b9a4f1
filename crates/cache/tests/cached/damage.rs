//! Stores that are damaged, cleared or unusable: the bytes come from the server, and no other byte
//! is shown.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::{Access, Errno, OpenFlags, Remote};
use cache::{CachedConfig, Mode};
use testkit::path;

use super::stage::{LONG_AGO, Stage, keep, list, pattern, read, size};

/// All files below `dir`.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found.sort();
    found
}

/// The files of whole contents.
fn objects(stage: &Stage) -> Vec<PathBuf> {
    let mut found = files(&stage.dir.path().join("store"));
    found.retain(|file| file.iter().any(|part| part == "objects"));
    assert!(!found.is_empty(), "nothing is kept");
    found
}

/// Flips a bit of the byte at `place`, modulo the length.
pub(crate) fn flip(file: &Path, place: u64) {
    let Ok(open) = fs::OpenOptions::new().read(true).write(true).open(file) else { return };
    let len = open.metadata().expect("an open file has a size").len();
    if len > 0 {
        let mut byte = [0];
        open.read_exact_at(&mut byte, place % len).expect("it is there");
        open.write_all_at(&[byte[0] ^ 0x10], place % len).expect("it can be written");
    }
}

/// A damaged content is fetched again by its next reader, and is whole then.
#[tokio::test]
async fn a_damaged_content_is_repaired() {
    let stage = Stage::new();
    let contents = [("small", pattern(1, 5000)), ("large", pattern(2, 3 << 20))];
    for (name, content) in &contents {
        stage.put(name, content);
        keep(&stage.mount(Mode::CloseToOpen), name).await;
    }
    for file in objects(&stage) {
        flip(&file, 4000);
    }
    let cached = stage.mount(Mode::CloseToOpen);
    for (name, content) in &contents {
        assert!(read(&cached, name).await.unwrap() == *content, "{name}");
        cached.wait_idle().await;
    }
    assert!(cached.status().read_there_bytes > 0);
    let cached = stage.mount(Mode::CloseToOpen);
    for (name, content) in &contents {
        assert!(keep(&cached, name).await == *content, "{name}");
        assert!(keep(&cached, name).await == *content, "{name}");
    }
    assert!(cached.presence(&path("small")).await.unwrap().whole);
}

/// A content that is damaged while it is open, and has changed on the server, is an error.
#[tokio::test]
async fn damage_and_a_change_together_are_an_error() {
    let stage = Stage::new();
    stage.put("f", pattern(1, 1 << 20));
    keep(&stage.mount(Mode::CloseToOpen), "f").await;
    let cached = stage.mount(Mode::CloseToOpen);
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    for file in objects(&stage) {
        flip(&file, 700_000);
    }
    stage.memory.put_file("f", pattern(2, 1 << 20));
    assert_eq!(cached.read(opened.fh, 600_000, 200_000).await.err(), Some(Errno::ESTALE));
    cached.close(opened.fh);
    assert!(read(&cached, "f").await.unwrap() == pattern(2, 1 << 20));
    assert_eq!(stage.memory.open_handles(), 0);
}

/// Offline, damage is an error and not other bytes.
#[tokio::test]
async fn damage_is_an_error_offline() {
    let stage = Stage::new();
    stage.put("f", pattern(1, 5000));
    let cached = stage.mount(Mode::CloseToOpen);
    list(&cached, "").await.unwrap();
    keep(&cached, "f").await;
    drop(cached);
    for file in objects(&stage) {
        flip(&file, 100);
    }
    let cached = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    assert_eq!(read(&cached, "f").await.err(), Some(Errno::EIO));
    assert_eq!(size(&cached, "f").await, Ok(5000));
}

/// A file given to the kernel was verified as a whole, since its reads are not verified.
#[tokio::test]
async fn only_a_verified_content_becomes_a_backing_file() {
    use std::io::Read;
    let stage = Stage::new();
    let content = pattern(1, 1 << 20);
    stage.put("f", &content);
    let config = || CachedConfig { backing: true, ..stage.config() };
    let cached = stage.mount_with(config());
    keep(&cached, "f").await;
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    let file = cached.backing(opened.fh).expect("the content is here");
    let mut given = Vec::new();
    fs::File::from(file.try_clone().unwrap()).read_to_end(&mut given).unwrap();
    assert!(given == content);
    cached.close(opened.fh);
    drop((file, cached));
    for file in objects(&stage) {
        flip(&file, 1 << 19);
    }
    let cached = stage.mount_with(config());
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert!(cached.backing(opened.fh).is_none());
    let read = cached.read(opened.fh, 0, 1 << 20).await.unwrap();
    assert!(read.to_vec() == content);
    cached.close(opened.fh);
}

/// A store that was cleared works as an empty one.
#[tokio::test]
async fn a_store_that_was_emptied_is_filled_again() {
    let stage = Stage::new();
    stage.put("f", "content");
    let cached = stage.mount(Mode::Immutable);
    keep(&cached, "f").await;
    for file in objects(&stage) {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(keep(&cached, "f").await, b"content");
    stage.memory.set_mtime("f", LONG_AGO);
    assert_eq!(keep(&stage.mount(Mode::Immutable), "f").await, b"content");
}
