//! Digests: returned for current contents, and used to avoid fetching a content twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use base::{Access, Attr, DigestEffort, DigestKind, Errno, OpenFlags, Remote, RemotePath, Result};
use bytes::Bytes;
use cache::{Cached, CachedConfig, Digest, DigestSource, Mode};
use testkit::{Call, MemRemote, path};

use super::stage::{LONG_AGO, Stage, keep, list, pattern, read};

async fn digest(
    cached: &Arc<Cached>,
    at: &str,
    kind: DigestKind,
    effort: DigestEffort,
) -> Option<String> {
    let attr = cached.lstat(&path(at)).await.unwrap();
    let digest = cached.digest(&path(at), &attr, kind, effort).await.unwrap()?;
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Known digests cost no request and are those of the content.
#[tokio::test]
async fn known_digests_cost_no_request() {
    let stage = Stage::new();
    stage.put("f", "abc");
    let cached = stage.mount(Mode::CloseToOpen);
    assert_eq!(digest(&cached, "f", DigestKind::Md5, DigestEffort::Known).await, None);
    keep(&cached, "f").await;
    let cached = stage.mount(Mode::CloseToOpen);
    let attr = cached.lstat(&path("f")).await.unwrap();
    stage.asked();
    for (kind, expected) in [
        (DigestKind::Md5, "900150983cd24fb0d6963f7d28e17f72"),
        (DigestKind::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
        (DigestKind::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (DigestKind::Blake3, "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
    ] {
        let told = cached.digest(&path("f"), &attr, kind, DigestEffort::Known).await.unwrap();
        let told: String = told.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(told, expected);
    }
    assert_eq!(stage.asked(), 0);
}

/// Data that was just read is waited for, also during other reads.
#[tokio::test]
async fn a_file_read_just_before_has_a_digest() {
    let stage = Stage::new();
    stage.put("f", "abc");
    stage.put("g", pattern(1, 300_000));
    let cached = stage.mount(Mode::CloseToOpen);
    for at in ["f", "g"] {
        let content = read(&cached, at).await.unwrap();
        let told = digest(&cached, at, DigestKind::Blake3, DigestEffort::Known).await;
        assert_eq!(told, Some(Digest::of(&content).to_hex()));
    }
}

/// The digests of an empty file are known without a read.
#[tokio::test]
async fn an_empty_file_has_digests_without_a_read() {
    let stage = Stage::new();
    stage.put("f", "");
    let cached = stage.mount(Mode::CloseToOpen);
    let told = digest(&cached, "f", DigestKind::Md5, DigestEffort::Known).await;
    assert_eq!(told.as_deref(), Some("d41d8cd98f00b204e9800998ecf8427e"));
    // A file that was just created may still get bytes.
    stage.memory.put_file("g", "");
    assert_eq!(digest(&cached, "g", DigestKind::Md5, DigestEffort::Known).await, None);
}

/// The digest of a former content is not returned for the present one.
#[tokio::test]
async fn a_changed_file_has_no_known_digest() {
    let stage = Stage::new();
    stage.put("f", "abc");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    stage.memory.put_file("f", "abd");
    assert_eq!(digest(&cached, "f", DigestKind::Sha1, DigestEffort::Known).await, None);
    stage.put("f", "ab");
    assert_eq!(digest(&cached, "f", DigestKind::Sha1, DigestEffort::Known).await, None);
}

/// With the effort allowed, the content is fetched; if it is uncertain, no digest is returned.
#[tokio::test(start_paused = true)]
async fn an_unknown_digest_is_computed_on_request() {
    let stage = Stage::new();
    stage.put("f", "abc");
    stage.memory.put_dir("d");
    let cached = stage.mount(Mode::CloseToOpen);
    let told = digest(&cached, "f", DigestKind::Md5, DigestEffort::Compute).await;
    assert_eq!(told.as_deref(), Some("900150983cd24fb0d6963f7d28e17f72"));
    assert_eq!(digest(&cached, "d", DigestKind::Md5, DigestEffort::Compute).await, None);
    // It changes before it can be read.
    stage.put("g", "abc");
    let attr = cached.lstat(&path("g")).await.unwrap();
    stage.put("g", "abcd");
    let told = cached.digest(&path("g"), &attr, DigestKind::Md5, DigestEffort::Compute).await;
    assert_eq!(told, Ok(None));
}

/// Recently changed files are waited for, once per directory.
#[tokio::test(start_paused = true)]
async fn many_that_were_changed_a_moment_ago_are_waited_for_once() {
    let stage = Stage::new();
    for file in 0..20 {
        stage.memory.put_file(&format!("d/f{file}"), "abc");
    }
    let cached = stage.mount(Mode::CloseToOpen);
    let begun = tokio::time::Instant::now();
    for file in 0..20 {
        let at = format!("d/f{file}");
        let told = digest(&cached, &at, DigestKind::Md5, DigestEffort::Compute).await;
        assert_eq!(told.as_deref(), Some("900150983cd24fb0d6963f7d28e17f72"), "{at}");
    }
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(4), "{took:?}");
}

/// Computes the digests at the server.
struct AtServer {
    memory: Arc<MemRemote>,
    calls: AtomicU64,
    lies: bool,
}

#[async_trait]
impl DigestSource for AtServer {
    async fn digests(&self, files: &[(RemotePath, Attr)]) -> Result<Vec<Option<Bytes>>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.lies { Err(Errno::EIO) } else { Ok(blake3_of(&self.memory, files)) }
    }
}

fn blake3_of(memory: &MemRemote, files: &[(RemotePath, Attr)]) -> Vec<Option<Bytes>> {
    let digest = |(path, _): &(RemotePath, Attr)| {
        let content = memory.content(&path.to_string());
        Some(Bytes::copy_from_slice(Digest::of(&content).as_bytes()))
    };
    files.iter().map(digest).collect()
}

const FILES: u8 = 100;

fn revision(stage: &Stage, at: &str, changed: u8) {
    for file in 0..FILES {
        let seed = if file < changed { file + 100 } else { file };
        stage.put(&format!("{at}/f{file}"), pattern(seed, 10_000));
    }
}

async fn read_revision(cached: &Arc<Cached>, stage: &Stage, at: &str) {
    list(cached, at).await.unwrap();
    for file in 0..FILES {
        let name = format!("{at}/f{file}");
        assert!(keep(cached, &name).await == stage.memory.content(&name), "{name}");
    }
}

/// Another revision of a tree, at another path, costs its listing and the difference.
#[tokio::test]
async fn another_revision_costs_only_the_difference() {
    for mode in [Mode::CloseToOpen, Mode::Immutable] {
        let stage = Stage::new();
        revision(&stage, "v1", 0);
        revision(&stage, "v2", 1);
        let calls = AtomicU64::new(0);
        let source = Arc::new(AtServer { memory: stage.memory.clone(), calls, lies: false });
        let config = CachedConfig { mode, digest_source: Some(source.clone()), ..stage.config() };
        let cached = stage.mount_with(config);
        read_revision(&cached, &stage, "v1").await;
        let first = cached.status().read_there_bytes;
        stage.faulty.reset_calls();
        read_revision(&cached, &stage, "v2").await;
        let second = cached.status().read_there_bytes - first;
        assert_eq!((first, second), (1_000_000, 10_000), "{mode:?}");
        assert_eq!(stage.faulty.calls(Call::Open), 1);
        // One query for all files of a directory.
        assert_eq!(source.calls.load(Ordering::Relaxed), 2);
        // And with the store kept, no content.
        let cached = stage.mount(mode);
        read_revision(&cached, &stage, "v2").await;
        assert_eq!(cached.status().read_there_bytes, 0);
    }
}

/// The server's digest of a content that has changed since is not used.
#[tokio::test]
async fn a_server_digest_of_a_former_content_is_not_used() {
    let stage = Stage::new();
    stage.put("v1/f", "content");
    let calls = AtomicU64::new(0);
    let source = Arc::new(AtServer { memory: stage.memory.clone(), calls, lies: false });
    let config = CachedConfig { digest_source: Some(source), ..stage.config() };
    let cached = stage.mount_with(config);
    keep(&cached, "v1/f").await;
    stage.put("v2/f", "content");
    stage.put("v2/g", "content");
    list(&cached, "v2").await.unwrap();
    assert_eq!(read(&cached, "v2/f").await.unwrap(), b"content");
    stage.memory.put_file("v2/g", "CONTENT");
    stage.memory.set_mtime("v2/g", LONG_AGO + 5);
    assert_eq!(read(&cached, "v2/g").await.unwrap(), b"CONTENT");
}

/// A source that returns its digests when it is released.
struct Held {
    memory: Arc<MemRemote>,
    computed: tokio::sync::Notify,
    released: tokio::sync::Notify,
}

#[async_trait]
impl DigestSource for Held {
    async fn digests(&self, files: &[(RemotePath, Attr)]) -> Result<Vec<Option<Bytes>>> {
        let digests = blake3_of(&self.memory, files);
        self.computed.notify_one();
        self.released.notified().await;
        Ok(digests)
    }
}

/// A digest that was computed before a change made here, and arrives after it, is not used, also if
/// size and mtime do not show the change.
#[tokio::test]
async fn a_digest_from_before_a_change_is_not_used() {
    let stage = Stage::new();
    stage.put("v1/f", "content");
    stage.put("v2/f", "content");
    keep(&stage.mount(Mode::CloseToOpen), "v1/f").await;
    let (computed, released) = Default::default();
    let source = Arc::new(Held { memory: stage.memory.clone(), computed, released });
    let config = CachedConfig { digest_source: Some(source.clone()), ..stage.config() };
    let cached = stage.mount_with(config);
    let reading = cached.clone();
    let early = tokio::spawn(async move { read(&reading, "v2/f").await });
    source.computed.notified().await;
    let flags = OpenFlags::existing(Access::Write);
    let writer = cached.open(&path("v2/f"), flags).await.unwrap().fh;
    cached.write(writer, 0, Bytes::from_static(b"CONTENT")).await.unwrap();
    cached.finish(writer).await.unwrap();
    stage.memory.set_mtime("v2/f", LONG_AGO);
    source.released.notify_one();
    assert_eq!(early.await.unwrap().unwrap(), b"CONTENT");
    // A change ends what is cached of a file; the next query is answered at once.
    source.released.notify_one();
    assert_eq!(read(&cached, "v2/f").await.unwrap(), b"CONTENT");
}

/// A listing that is too long to be recorded is read once, and not to its end.
#[tokio::test(start_paused = true)]
async fn a_huge_directory_is_not_queried() {
    let stage = Stage::new();
    for file in 0..202_000 {
        stage.memory.put_file(&format!("d/f{file}"), "");
    }
    for file in 0..3 {
        stage.put(&format!("d/f{file}"), "content");
    }
    let calls = AtomicU64::new(0);
    let source = Arc::new(AtServer { memory: stage.memory.clone(), calls, lies: false });
    let config = CachedConfig { digest_source: Some(source), ..stage.config() };
    let cached = stage.mount_with(config);
    for file in 0..3 {
        assert_eq!(read(&cached, &format!("d/f{file}")).await.unwrap(), b"content");
        tokio::time::sleep(std::time::Duration::from_secs(70)).await;
    }
    assert_eq!(stage.faulty.calls(Call::Opendir), 1);
}

/// A source that fails costs only the savings.
#[tokio::test]
async fn without_digests_everything_is_fetched() {
    let stage = Stage::new();
    revision(&stage, "v1", 0);
    let calls = AtomicU64::new(0);
    let source = Arc::new(AtServer { memory: stage.memory.clone(), calls, lies: true });
    let config = CachedConfig { digest_source: Some(source.clone()), ..stage.config() };
    let cached = stage.mount_with(config);
    read_revision(&cached, &stage, "v1").await;
    assert_eq!(cached.status().read_there_bytes, 1_000_000);
    assert_eq!(source.calls.load(Ordering::Relaxed), 1);
}
