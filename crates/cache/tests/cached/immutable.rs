//! I2, I12: nothing of an immutable tree is requested twice.

use base::{Errno, Remote, RenameMode};
use cache::{CachedConfig, Mode, SubTrees};
use testkit::{Call, path};

use super::stage::{LONG_AGO, Stage, keep, list, open_store, pattern, read, size};

fn tree(stage: &Stage) {
    for file in 0..20 {
        stage.put(&format!("d/f{file}"), pattern(file, 1000 * usize::from(file)));
    }
    stage.put("d/e/deep", "deep");
    stage.memory.put_symlink("d/link", "f1");
    stage.put("large", pattern(9, 3 << 20));
}

async fn walk(cached: &std::sync::Arc<cache::Cached>) {
    assert_eq!(list(cached, "").await.unwrap(), ["d", "large"]);
    assert_eq!(list(cached, "d").await.unwrap().len(), 22);
    assert_eq!(list(cached, "d/e").await.unwrap(), ["deep"]);
    assert!(cached.lstat(&path("")).await.unwrap().is_dir());
    for file in 0..20u8 {
        let at = format!("d/f{file}");
        let content = pattern(file, 1000 * usize::from(file));
        assert_eq!(size(cached, &at).await, Ok(content.len() as u64));
        assert!(keep(cached, &at).await == content);
    }
    assert_eq!(keep(cached, "d/e/deep").await, b"deep");
    assert!(keep(cached, "large").await == pattern(9, 3 << 20));
    assert_eq!(cached.readlink(&path("d/link")).await.unwrap(), b"f1");
    assert_eq!(size(cached, "d/absent").await, Err(Errno::ENOENT));
    assert_eq!(read(cached, "d/absent").await, Err(Errno::ENOENT));
    assert_eq!(cached.readlink(&path("d/f1")).await, Err(Errno::EINVAL));
}

/// I12: after a remount, with the store opened again, the whole tree is read without a request.
#[tokio::test]
async fn after_a_remount_an_immutable_tree_is_read_without_a_request() {
    let stage = Stage::new();
    tree(&stage);
    walk(&stage.mount(Mode::Immutable)).await;
    stage.asked();
    // Not even for the presence of the server.
    stage.faulty.cut();
    let cached = stage.mount(Mode::Immutable);
    walk(&cached).await;
    assert_eq!(stage.asked(), 0);
    assert_eq!(cached.status().read_there_bytes, 0);
}

/// I1, I2: what another mount has seen since is not shown, also while the server is unreachable.
#[tokio::test]
async fn an_immutable_tree_stays_the_same_while_the_remote_is_unreachable() {
    let stage = Stage::new();
    stage.put("f", "old");
    let immutable = CachedConfig { mode: Mode::Immutable, stale_ok: true, ..stage.config() };
    let cached = stage.mount_with(immutable);
    assert_eq!(list(&cached, "").await.unwrap(), ["f"]);
    assert_eq!(keep(&cached, "f").await, b"old");
    stage.put("f", "newer");
    stage.put("g", "");
    let other = stage.mount(Mode::CloseToOpen);
    assert_eq!(list(&other, "").await.unwrap(), ["f", "g"]);
    assert_eq!(keep(&other, "f").await, b"newer");
    stage.faulty.cut();
    assert_eq!(list(&cached, "").await.unwrap(), ["f"]);
    assert_eq!(size(&cached, "f").await, Ok(3));
    // Its content is not recorded any more, and is never that of another size.
    assert_eq!(read(&cached, "f").await, Err(Errno::EHOSTDOWN));
    assert_eq!(size(&cached, "g").await, Err(Errno::ENOENT));
}

/// I2: the tree stays the same, also if the server's changes.
#[tokio::test]
async fn an_immutable_tree_does_not_show_changes_of_the_server() {
    let stage = Stage::new();
    tree(&stage);
    walk(&stage.mount(Mode::Immutable)).await;
    stage.memory.remove("d");
    stage.put("d/f1", "another");
    stage.put("large", "another");
    walk(&stage.mount(Mode::Immutable)).await;
}

/// I2: a content that was evicted, and has changed on the server, is an error.
#[tokio::test]
async fn a_changed_file_without_cached_content_is_stale() {
    let stage = Stage::new();
    stage.put("f", "content");
    let cached = stage.mount(Mode::Immutable);
    assert_eq!(size(&cached, "f").await, Ok(7));
    stage.memory.put_file("f", "another");
    assert_eq!(read(&cached, "f").await, Err(Errno::ESTALE));
    assert_eq!(stage.memory.open_handles(), 0);
}

/// Records from the time when a tree could change are requested once more, and unchanged contents
/// are not fetched again.
#[tokio::test]
async fn records_of_a_mutable_tree_are_requested_once_more() {
    let stage = Stage::new();
    stage.put("d/same", "same");
    stage.put("d/changed", "before");
    let cached = stage.mount(Mode::CloseToOpen);
    list(&cached, "d").await.unwrap();
    for file in ["d/same", "d/changed"] {
        keep(&cached, file).await;
    }
    stage.put("d/changed", "afterwards");
    stage.put("d/new", "new");
    let cached = stage.mount(Mode::Immutable);
    assert_eq!(list(&cached, "d").await.unwrap(), ["changed", "new", "same"]);
    stage.asked();
    assert_eq!(keep(&cached, "d/same").await, b"same");
    assert_eq!(stage.asked(), 0);
    assert_eq!(keep(&cached, "d/changed").await, b"afterwards");
    assert_eq!(stage.faulty.calls(Call::Open), 1);
}

/// And records of an immutable tree are not used elsewhere.
#[tokio::test]
async fn records_of_an_immutable_tree_are_not_used_elsewhere() {
    let stage = Stage::new();
    // Too young: more of the same second may follow.
    stage.memory.put_file("f", "first");
    let mtime = stage.memory.attr("f").mtime.secs;
    let pinned = stage.mount(Mode::Immutable);
    assert_eq!(keep(&pinned, "f").await, b"first");
    stage.memory.put_file("f", "other");
    stage.memory.set_mtime("f", mtime);
    assert_eq!(read(&stage.mount(Mode::CloseToOpen), "f").await.unwrap(), b"other");
    assert_eq!(read(&stage.mount(Mode::Immutable), "f").await.unwrap(), b"first");
}

/// Only the immutable sub-trees are.
#[tokio::test]
async fn sub_trees_are_immutable_alone() {
    let stage = Stage::new();
    stage.put("src/v1/f", "one");
    stage.put("log", "log");
    let mut immutable = SubTrees::default();
    immutable.add(b"/src/*");
    let config = CachedConfig { immutable, ..stage.config() };
    for round in 0..2 {
        let cached = stage.mount_with(config.clone());
        stage.asked();
        assert_eq!(list(&cached, "src/v1").await.unwrap(), ["f"]);
        assert_eq!(keep(&cached, "src/v1/f").await, b"one");
        assert!(round == 0 || stage.asked() == 0);
        stage.asked();
        keep(&cached, "log").await;
        size(&cached, "log").await.unwrap();
        list(&cached, "src").await.unwrap();
        assert!(stage.asked() >= 3);
    }
    // A new revision beside it is found.
    stage.put("src/v2/f", "two");
    let cached = stage.mount_with(config);
    assert_eq!(list(&cached, "src").await.unwrap(), ["v1", "v2"]);
    assert_eq!(keep(&cached, "src/v2/f").await, b"two");
}

/// A change made here is visible here.
#[tokio::test]
async fn a_change_made_here_in_an_immutable_tree_is_visible() {
    let stage = Stage::new();
    stage.put("d/f", "content");
    stage.put("d/g", "g");
    let cached = stage.mount(Mode::Immutable);
    list(&cached, "d").await.unwrap();
    keep(&cached, "d/f").await;
    cached.unlink(&path("d/f")).await.unwrap();
    assert_eq!(size(&cached, "d/f").await, Err(Errno::ENOENT));
    assert_eq!(list(&cached, "d").await.unwrap(), ["g"]);
    cached.rename(&path("d"), &path("e"), base::RenameMode::Replace).await.unwrap();
    assert_eq!(size(&cached, "d/g").await, Err(Errno::ENOENT));
    assert_eq!(size(&cached, "e/g").await, Ok(1));
    stage.asked();
    assert_eq!(stage.memory.attr("e/g").mtime.secs, LONG_AGO);
    // Also after a remount.
    let cached = stage.mount(Mode::Immutable);
    assert_eq!(list(&cached, "e").await.unwrap(), ["g"]);
    assert_eq!(size(&cached, "d").await, Err(Errno::ENOENT));
}

/// The record of a directory is not older than a change of its entries.
#[tokio::test]
async fn a_directory_changed_here_is_requested_after_a_remount() {
    let stage = Stage::new();
    stage.put("a", "a");
    stage.put("f/x", "x");
    stage.memory.set_mtime("f", LONG_AGO);
    let cached = stage.mount(Mode::Immutable);
    let before = cached.lstat(&path("f")).await.unwrap();
    cached.rename(&path("a"), &path("f/a"), RenameMode::Replace).await.unwrap();
    let now = stage.memory.lstat(&path("f")).await.unwrap();
    assert_ne!(now.mtime, before.mtime);
    let cached = stage.mount(Mode::Immutable);
    assert_eq!(cached.lstat(&path("f")).await.unwrap().mtime, now.mtime);
}

/// I7 for two mounts of one store: a listing that the other mount requests before a change, and
/// records after it, is not used.
#[tokio::test]
async fn an_earlier_listing_of_another_mount_does_not_undo_a_change() {
    let stage = Stage::new();
    stage.put("d/old", "old");
    stage.put("d/kept", "kept");
    let (one, other) = (stage.mount(Mode::Immutable), stage.mount(Mode::Immutable));
    assert_eq!(list(&one, "d").await.unwrap(), ["kept", "old"]);
    assert_eq!(keep(&other, "d/kept").await, b"kept");
    other.mkdir(&path("d/new"), 0o755).await.unwrap();
    other.unlink(&path("d/old")).await.unwrap();
    // All its pending listings are recorded by now.
    one.wait_idle().await;
    assert!(other.lstat(&path("d/new")).await.unwrap().is_dir());
    assert_eq!(size(&other, "d/old").await, Err(Errno::ENOENT));
    assert_eq!(list(&other, "d").await.unwrap(), ["kept", "new"]);
    assert_eq!(size(&other, "d/kept").await, Ok(4));
}

/// A listing is valid at once, written or not, and later answers replace it.
#[tokio::test]
async fn a_listing_is_valid_before_it_is_written() {
    let stage = Stage::new();
    stage.put("d/f", "f");
    let cached = stage.mount(Mode::Immutable);
    list(&cached, "d").await.unwrap();
    stage.asked();
    assert_eq!(size(&cached, "d/f").await, Ok(1));
    assert_eq!(size(&cached, "d/absent").await, Err(Errno::ENOENT));
    assert_eq!(list(&cached, "d").await.unwrap(), ["f"]);
    assert_eq!(stage.asked(), 0);
}

/// After `sshoal cache clear` a mount opens files by names that it still knows. Offline, they are
/// found by the records of all directories above them.
#[tokio::test]
async fn the_directories_above_a_file_are_recorded_again() {
    let stage = Stage::new();
    tree(&stage);
    let cached = stage.mount(Mode::Immutable);
    walk(&cached).await;
    open_store(stage.dir.path()).clear().unwrap();
    assert_eq!(keep(&cached, "d/e/deep").await, b"deep");
    stage.asked();
    assert!(keep(&cached, "d/f1").await == pattern(1, 1000));
    let calls = [Call::Lstat, Call::Open, Call::Read].map(|call| stage.faulty.calls(call));
    assert_eq!(calls, [0, 1, 1]);
    drop(cached);
    let offline = CachedConfig { mode: Mode::Immutable, offline: true, ..stage.config() };
    let cached = stage.mount_with(offline);
    for dir in ["", "d", "d/e"] {
        assert!(cached.lstat(&path(dir)).await.unwrap().is_dir(), "{dir}");
    }
    assert_eq!(read(&cached, "d/e/deep").await.unwrap(), b"deep");
}
