//! C1, C3, T1, T2: which requests are sent where files may change, and what is shown.

use std::time::Duration;

use base::{Access, AttrChange, Errno, OpenFlags, Remote};
use cache::{CachedConfig, Mode};
use testkit::{Call, path};

use super::stage::{LONG_AGO, Stage, keep, list, pattern, read, size};

/// C3: an open of a cached file sends one request, and its reads send none.
#[tokio::test]
async fn an_open_of_a_cached_file_sends_one_request() {
    let stage = Stage::new();
    let content = pattern(1, 700_000);
    stage.put("d/f", &content);
    assert_eq!(keep(&stage.mount(Mode::CloseToOpen), "d/f").await, content);
    let cached = stage.mount(Mode::CloseToOpen);
    for _ in 0..3 {
        stage.asked();
        assert!(read(&cached, "d/f").await.unwrap() == content);
        assert_eq!((stage.faulty.calls(Call::Lstat), stage.asked()), (1, 1));
    }
    let status = cached.status();
    assert_eq!((status.hits, status.misses), (3, 0));
    assert_eq!((status.read_here_bytes, status.read_there_bytes), (2_100_000, 0));
    assert_eq!(stage.memory.open_handles(), 0);
}

/// A file that changed recently has a handle at the server, for the same price.
#[tokio::test]
async fn a_lively_file_is_opened_at_the_server() {
    let stage = Stage::new();
    stage.put("log", "one");
    let recently_changed = || CachedConfig { recent_change: Duration::MAX, ..stage.config() };
    keep(&stage.mount_with(recently_changed()), "log").await;
    let cached = stage.mount_with(recently_changed());
    stage.asked();
    let opened = cached.open(&path("log"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!(cached.read(opened.fh, 0, 100).await.unwrap().to_vec(), b"one");
    assert_eq!((stage.faulty.calls(Call::Open), stage.asked()), (1, 1));
    // It grows, and its reader sees that.
    stage.memory.put_file("log", "one two");
    assert_eq!(cached.fstat(opened.fh).await.unwrap().size, 7);
    assert_eq!(cached.read(opened.fh, 0, 100).await.unwrap().to_vec(), b"one two");
    cached.close(opened.fh);
}

/// C1: an open after another client's write shows the write.
#[tokio::test]
async fn a_changed_file_is_fetched_again() {
    let stage = Stage::new();
    stage.put("f", "old content");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    stage.memory.put_file("f", "new content");
    assert_eq!(read(&cached, "f").await.unwrap(), b"new content");
    // The same size, and an mtime long past, too: only the mtime differs.
    stage.put("f", "NEW CONTENT");
    stage.memory.set_mtime("f", LONG_AGO + 1);
    assert_eq!(read(&cached, "f").await.unwrap(), b"NEW CONTENT");
    cached.wait_idle().await;
    assert_eq!(read(&cached, "f").await.unwrap(), b"NEW CONTENT");
}

/// Each call for attributes or a listing sends a request.
#[tokio::test]
async fn each_call_for_attributes_or_a_listing_sends_a_request() {
    let stage = Stage::new();
    stage.put("d/f", "x");
    stage.memory.put_symlink("d/l", "f");
    let cached = stage.mount(Mode::CloseToOpen);
    for _ in 0..2 {
        stage.asked();
        assert_eq!(size(&cached, "d/f").await, Ok(1));
        assert_eq!(stage.asked(), 1);
        assert_eq!(list(&cached, "d").await.unwrap(), ["f", "l"]);
        assert_eq!(stage.faulty.calls(Call::Opendir), 1);
        assert_eq!(cached.readlink(&path("d/l")).await.unwrap(), b"f");
        assert_eq!(stage.faulty.calls(Call::Readlink), 1);
    }
    stage.memory.remove("d/f");
    assert_eq!(size(&cached, "d/f").await, Err(Errno::ENOENT));
    assert_eq!(list(&cached, "d").await.unwrap(), ["l"]);
    stage.memory.put_file("d/f", "back");
    assert_eq!(size(&cached, "d/f").await, Ok(4));
}

/// An mtime in the racy window proves nothing: such a file is not kept until it is older.
#[tokio::test(start_paused = true)]
async fn a_file_in_the_racy_window_is_not_kept() {
    let stage = Stage::new();
    stage.memory.put_file("f", "first");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    assert_eq!(cached.status().completed, 0);
    // The same second, the same size.
    let mtime = stage.memory.attr("f").mtime.secs;
    stage.memory.put_file("f", "other");
    stage.memory.set_mtime("f", mtime);
    assert_eq!(keep(&cached, "f").await, b"other");
    assert_eq!(cached.status().completed, 0);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(keep(&cached, "f").await, b"other");
    assert_eq!(cached.status().completed, 1);
    stage.asked();
    let recent_change = Duration::ZERO;
    let cached = stage.mount_with(CachedConfig { recent_change, ..stage.config() });
    assert_eq!(read(&cached, "f").await.unwrap(), b"other");
    assert_eq!(stage.asked(), 1);
}

/// A user who may no longer read a file is refused, though its content is cached.
#[tokio::test]
async fn a_file_with_changed_permissions_is_opened_at_the_server() {
    let stage = Stage::new();
    stage.put("f", "secret");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    stage.memory.set_perm("f", 0o000);
    stage.faulty.fail(Call::Open, 1, Errno::EACCES);
    assert_eq!(read(&cached, "f").await, Err(Errno::EACCES));
    assert_eq!(stage.faulty.not_reached(), 0);
}

/// An open file shows one content, that of its open.
#[tokio::test]
async fn an_open_file_shows_one_content() {
    let stage = Stage::new();
    stage.put("f", "the old one");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!(cached.read(opened.fh, 0, 4).await.unwrap().to_vec(), b"the ");
    stage.memory.put_file("g", "the new content");
    stage.memory.move_to("g", "f");
    assert_eq!(cached.read(opened.fh, 4, 100).await.unwrap().to_vec(), b"old one");
    assert_eq!(cached.fstat(opened.fh).await.unwrap().size, 11);
    assert_eq!(read(&cached, "f").await.unwrap(), b"the new content");
    cached.close(opened.fh);
}

/// Attributes of an open file that changed elsewhere are shown.
#[tokio::test]
async fn an_open_file_reports_its_current_attributes() {
    let stage = Stage::new();
    stage.put("f", "x");
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!(stage.memory.open_handles(), 0);
    stage.memory.set_perm("f", 0o600);
    assert_eq!(cached.fstat(opened.fh).await.unwrap().perm, 0o600);
    let change = AttrChange { perm: Some(0o640), ..AttrChange::default() };
    cached.fsetattr(opened.fh, change).await.unwrap();
    assert_eq!(stage.memory.attr("f").perm, 0o640);
    assert_eq!(cached.fstat(opened.fh).await.unwrap().perm, 0o640);
    cached.close(opened.fh);
}

/// Without a cache an open is one request and a read is one; the cache adds one, in the background,
/// which verifies the data.
#[tokio::test]
async fn the_first_read_costs_one_question_more() {
    let stage = Stage::new();
    stage.put("f", pattern(3, 100_000));
    let cached = stage.mount(Mode::CloseToOpen);
    keep(&cached, "f").await;
    assert_eq!((stage.faulty.calls(Call::Open), stage.faulty.calls(Call::Read)), (1, 1));
    assert_eq!((stage.faulty.calls(Call::Fstat), stage.asked()), (1, 3));
}
