//! Without the server, the cache is shown, and a name is never absent only because it is unknown.

use std::sync::Arc;

use base::{Access, Errno, OpenFlags, Remote, RenameMode};
use cache::{CachedConfig, Mode};
use testkit::mem::Options;
use testkit::{MemRemote, path};

use super::stage::{EIO, Stage, keep, list, pattern, read, size};

async fn filled() -> Stage {
    let stage = Stage::new();
    stage.put("d/here", pattern(1, 300_000));
    stage.put("d/listed", "listed");
    stage.put("unlisted/f", "x");
    stage.memory.put_symlink("d/link", "here");
    let cached = stage.mount(Mode::CloseToOpen);
    list(&cached, "").await.unwrap();
    list(&cached, "d").await.unwrap();
    cached.readlink(&path("d/link")).await.unwrap();
    keep(&cached, "d/here").await;
    stage
}

/// Calls that are not cached fail with `missing`.
async fn shows_what_is_here(cached: &std::sync::Arc<cache::Cached>, missing: Errno) {
    assert_eq!(list(cached, "").await.unwrap(), ["d", "unlisted"]);
    assert_eq!(list(cached, "d").await.unwrap(), ["here", "link", "listed"]);
    assert!(read(cached, "d/here").await.unwrap() == pattern(1, 300_000));
    assert_eq!(cached.readlink(&path("d/link")).await.unwrap(), b"here");
    assert_eq!(size(cached, "d/listed").await, Ok(6));
    assert_eq!(size(cached, "d/absent").await, Err(Errno::ENOENT));
    // Known to exist, and not cached.
    assert_eq!(read(cached, "d/listed").await, Err(missing));
    assert_eq!(list(cached, "unlisted").await, Err(missing));
    assert_eq!(size(cached, "unlisted/f").await, Err(missing));
    assert_eq!(read(cached, "unlisted/absent").await, Err(missing));
    // Not a regular file.
    assert_eq!(read(cached, "d").await, Err(Errno::EISDIR));
    assert_eq!(list(cached, "d/here").await, Err(Errno::ENOTDIR));
}

#[tokio::test]
async fn offline_shows_cached_files_only() {
    let stage = filled().await;
    let cached = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    stage.asked();
    shows_what_is_here(&cached, EIO).await;
    assert!(cached.status().missed_offline >= 4);
    for changed in [
        cached.mkdir(&path("new"), 0o755).await,
        cached.unlink(&path("d/here")).await,
        cached.setattr(&path("d/here"), base::AttrChange::default()).await,
    ] {
        assert_eq!(changed, Err(Errno::EROFS));
    }
    assert_eq!(cached.statvfs(&path("")).await.unwrap().blocks, 0);
    assert_eq!(stage.asked(), 0);
}

/// An empty file is complete when its attributes are known.
#[tokio::test]
async fn offline_an_empty_file_is_read() {
    for mode in [Mode::CloseToOpen, Mode::Immutable] {
        let stage = Stage::new();
        stage.put("empty", "");
        stage.put("full", "content");
        let cached = stage.mount(mode);
        list(&cached, "").await.unwrap();
        cached.wait_idle().await;
        drop(cached);
        let offline = CachedConfig { mode, offline: true, ..stage.config() };
        let cached = stage.mount_with(offline);
        let read_back = read(&cached, "empty").await;
        assert_eq!(read_back.as_deref(), Ok(&b""[..]), "{mode:?}");
        assert_eq!(read(&cached, "full").await, Err(EIO), "{mode:?}");
    }
}

/// With `stale_ok` the cache is shown while the remote is unreachable, and the server's state
/// afterwards. A call that is not cached ends as without a cache.
#[tokio::test]
async fn stale_ok_shows_cached_files_while_the_remote_is_unreachable() {
    let stage = filled().await;
    let cached = stage.mount_with(CachedConfig { stale_ok: true, ..stage.config() });
    stage.faulty.cut();
    shows_what_is_here(&cached, Errno::EHOSTDOWN).await;
    assert_eq!(cached.status().missed_offline, 0);
    stage.faulty.restore();
    assert_eq!(read(&cached, "d/listed").await.unwrap(), b"listed");
    assert_eq!(list(&cached, "unlisted").await.unwrap(), ["f"]);
}

/// `stale_ok` is changed while the cache is in use.
#[tokio::test]
async fn stale_ok_is_turned_on_and_off() {
    let stage = filled().await;
    let cached = stage.mount(Mode::CloseToOpen);
    stage.faulty.cut();
    cached.set_stale_ok(true);
    shows_what_is_here(&cached, Errno::EHOSTDOWN).await;
    cached.set_stale_ok(false);
    assert_eq!(size(&cached, "d/here").await, Err(Errno::EHOSTDOWN));
    assert_eq!(read(&cached, "d/here").await, Err(Errno::EHOSTDOWN));
    assert_eq!(list(&cached, "d").await, Err(Errno::EHOSTDOWN));
}

/// A request in flight when the remote becomes unreachable is answered from the cache.
#[tokio::test]
async fn stale_ok_answers_requests_in_flight_when_the_remote_becomes_unreachable() {
    let stage = filled().await;
    let cached = stage.mount_with(CachedConfig { stale_ok: true, ..stage.config() });
    let gate = stage.faulty.hold(testkit::Call::Lstat, 1);
    let asking = cached.clone();
    let waiting = tokio::spawn(async move { size(&asking, "d/listed").await });
    gate.arrived().await;
    stage.faulty.cut();
    assert_eq!(waiting.await.unwrap(), Ok(6));
}

/// L9: with `stale_ok` a call that is not cached waits for the remote, as without a cache.
#[tokio::test]
async fn stale_ok_waits_for_the_remote_if_nothing_is_cached() {
    let stage = filled().await;
    stage.put("unlisted/link", "");
    stage.memory.remove("unlisted/link");
    stage.memory.put_symlink("unlisted/link", "f");
    let cached = stage.mount_with(CachedConfig { stale_ok: true, ..stage.config() });
    stage.faulty.stall();
    stage.asked();
    let (a, b, c, d) = (cached.clone(), cached.clone(), cached.clone(), cached.clone());
    let listing = tokio::spawn(async move { list(&a, "unlisted").await });
    let looking = tokio::spawn(async move { size(&b, "unlisted/f").await });
    let reading = tokio::spawn(async move { read(&c, "d/listed").await });
    let link = tokio::spawn(async move { d.readlink(&path("unlisted/link")).await });
    let mut asked = 0;
    while asked < 4 {
        tokio::task::yield_now().await;
        asked += stage.asked();
    }
    assert_eq!(read(&cached, "d/here").await.unwrap(), pattern(1, 300_000));
    assert!(!listing.is_finished() && !looking.is_finished());
    assert!(!reading.is_finished() && !link.is_finished());
    stage.faulty.restore();
    assert_eq!(listing.await.unwrap().unwrap(), ["f", "link"]);
    assert_eq!(looking.await.unwrap(), Ok(1));
    assert_eq!(reading.await.unwrap().unwrap(), b"listed");
    assert_eq!(link.await.unwrap().unwrap(), b"f");
}

/// Without either option an unreachable remote is an error of its own.
#[tokio::test]
async fn away_is_never_absent() {
    let stage = filled().await;
    let cached = stage.mount(Mode::CloseToOpen);
    stage.faulty.cut();
    assert_eq!(size(&cached, "d/here").await, Err(Errno::EHOSTDOWN));
    assert_eq!(read(&cached, "d/here").await, Err(Errno::EHOSTDOWN));
    assert_eq!(list(&cached, "d").await, Err(Errno::EHOSTDOWN));
}

/// Cached parts of a large file are shown, and the others are an error.
#[tokio::test]
async fn the_cached_part_of_a_file_is_shown_offline() {
    let stage = Stage::new();
    let content = pattern(5, 3 << 20);
    stage.put("f", &content);
    let cached = stage.mount(Mode::CloseToOpen);
    list(&cached, "").await.unwrap();
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    cached.read(opened.fh, 0, 1 << 20).await.unwrap();
    cached.close(opened.fh);
    cached.wait_idle().await;
    let cached = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    stage.asked();
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    let part = cached.read(opened.fh, 1000, 500_000).await.unwrap().to_vec();
    assert!(part == content[1000..501_000]);
    assert_eq!(cached.read(opened.fh, 2 << 20, 1000).await.err(), Some(EIO));
    assert_eq!(cached.read(opened.fh, 1 << 20, 1).await.err(), Some(EIO));
    assert!(cached.read(opened.fh, 3 << 20, 10).await.unwrap().is_empty());
    cached.close(opened.fh);
    assert_eq!(stage.asked(), 0);
}

/// I8: the last answer is valid, in any order of the writes.
#[tokio::test]
async fn a_name_that_reappeared_is_not_absent() {
    let stage = Stage::new();
    stage.put("d/x", "x");
    let cached = stage.mount_with(CachedConfig { stale_ok: true, ..stage.config() });
    assert_eq!(list(&cached, "d").await.unwrap(), ["x"]);
    assert_eq!(keep(&cached, "d/x").await, b"x");
    // Renamed, listed, and renamed back by others.
    stage.memory.rename(&path("d/x"), &path("d/y"), RenameMode::Replace).await.unwrap();
    assert_eq!(list(&cached, "d").await.unwrap(), ["y"]);
    stage.memory.rename(&path("d/y"), &path("d/x"), RenameMode::Replace).await.unwrap();
    assert_eq!(size(&cached, "d/x").await, Ok(1));
    cached.wait_idle().await;
    stage.faulty.cut();
    assert_eq!(size(&cached, "d/x").await, Ok(1));
    assert_eq!(read(&cached, "d/x").await.unwrap(), b"x");
    stage.faulty.restore();
    // And the other way round: removed, and seen to be.
    stage.memory.remove("d/x");
    assert!(list(&cached, "d").await.unwrap().is_empty());
    stage.faulty.cut();
    assert_eq!(size(&cached, "d/x").await, Err(Errno::ENOENT));
}

/// I8: a listing shows what there was when it began.
#[tokio::test]
async fn what_was_seen_during_a_listing_is_newer_than_the_listing() {
    let stage = Stage::new();
    stage.put("d/f", "old");
    let cached = stage.mount_with(CachedConfig { stale_ok: true, ..stage.config() });
    let dh = cached.opendir(&path("d")).await.unwrap();
    assert_eq!(cached.readdir(dh).await.unwrap().unwrap().len(), 1);
    stage.put("d/f", "newer");
    stage.put("d/new", "x");
    assert_eq!((size(&cached, "d/f").await, size(&cached, "d/new").await), (Ok(5), Ok(1)));
    assert!(cached.readdir(dh).await.unwrap().is_none());
    cached.closedir(dh);
    stage.faulty.cut();
    // While the listing is pending, and after it was written.
    for _ in 0..2 {
        assert_eq!((size(&cached, "d/f").await, size(&cached, "d/new").await), (Ok(5), Ok(1)));
        cached.wait_idle().await;
    }
    drop(cached);
    let cached = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    assert_eq!((size(&cached, "d/f").await, size(&cached, "d/new").await), (Ok(5), Ok(1)));
}

/// I8: a listing that is equal to the one before is newer than what was seen in between.
#[tokio::test]
async fn an_equal_listing_is_newer_than_what_was_seen_before() {
    let stage = Stage::new();
    stage.put("d/f", "old");
    let cached = stage.mount(Mode::CloseToOpen);
    assert_eq!(list(&cached, "d").await.unwrap(), ["f"]);
    cached.wait_idle().await;
    stage.put("d/f", "newer");
    stage.put("d/new", "x");
    assert_eq!((size(&cached, "d/f").await, size(&cached, "d/new").await), (Ok(5), Ok(1)));
    stage.memory.remove("d/new");
    stage.put("d/f", "old");
    assert_eq!(list(&cached, "d").await.unwrap(), ["f"]);
    cached.wait_idle().await;
    drop(cached);
    let cached = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    assert_eq!(size(&cached, "d/f").await, Ok(3));
    assert_eq!(size(&cached, "d/new").await, Err(Errno::ENOENT));
}

/// I8: a server may list names without attributes.
#[tokio::test]
async fn a_listing_without_attributes_hides_none() {
    let options = Options { listing_attrs: false, ..Options::default() };
    let stage = Stage::over(Arc::new(MemRemote::with(options)));
    stage.put("d/f", "old");
    let cached = stage.mount(Mode::CloseToOpen);
    for content in ["old", "newer"] {
        stage.put("d/f", content);
        for _ in 0..2 {
            assert_eq!(list(&cached, "d").await.unwrap(), ["f"]);
            cached.wait_idle().await;
            assert_eq!(size(&cached, "d/f").await, Ok(content.len() as u64));
        }
    }
    stage.put("d/g", "");
    assert_eq!(list(&cached, "d").await.unwrap(), ["f", "g"]);
    cached.wait_idle().await;
    drop(cached);
    let cached = stage.mount_with(CachedConfig { offline: true, ..stage.config() });
    assert_eq!((size(&cached, "d/f").await, size(&cached, "d/g").await), (Ok(5), Err(EIO)));
}

/// I8: what was seen last is valid, with `immutable` or without it.
#[tokio::test]
async fn what_was_seen_last_is_shown_offline() {
    let (usual, immutable) = (Mode::CloseToOpen, Mode::Immutable);
    for (first, last) in [(usual, immutable), (immutable, usual)] {
        let stage = Stage::new();
        stage.put("old", "x");
        stage.memory.put_symlink("link", "old");
        let cached = stage.mount(first);
        assert_eq!(list(&cached, "").await.unwrap(), ["link", "old"]);
        cached.readlink(&path("link")).await.unwrap();
        cached.wait_idle().await;
        stage.memory.remove("old");
        stage.memory.remove("link");
        stage.memory.put_symlink("link", "new");
        stage.put("new/f", "content");
        let cached = stage.mount(last);
        assert_eq!(list(&cached, "").await.unwrap(), ["link", "new"]);
        assert_eq!(list(&cached, "new").await.unwrap(), ["f"]);
        cached.readlink(&path("link")).await.unwrap();
        keep(&cached, "new/f").await;
        for mode in [first, last] {
            let offline = CachedConfig { offline: true, mode, ..stage.config() };
            let cached = stage.mount_with(offline);
            assert_eq!(list(&cached, "").await.unwrap(), ["link", "new"], "{first:?}");
            assert_eq!(size(&cached, "old").await, Err(Errno::ENOENT), "{first:?}");
            assert_eq!(read(&cached, "new/f").await.unwrap(), b"content", "{first:?}");
            assert_eq!(cached.readlink(&path("link")).await.unwrap(), b"new", "{first:?}");
        }
    }
}
