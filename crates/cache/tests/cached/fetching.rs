//! Which contents are kept, and which are not.

use base::{Access, Errno, OpenFlags, Remote};
use cache::{Mode, Store, StoreConfig, Warmed};
use testkit::faulty::Which;
use testkit::{Call, path};

use super::stage::{LONG_AGO, Stage, keep, pattern, read};

/// A file that changes while it is fetched is never kept, at any moment of the change: before or
/// after each request of the fetch, with its mtime set back or not.
#[tokio::test]
async fn a_file_that_changes_meanwhile_is_not_kept() {
    const LEN: usize = 1 << 20;
    let (before, after) = (pattern(1, LEN), pattern(2, LEN));
    let mut hits = 0;
    for nth in 1.. {
        for answered in [false, true] {
            let stage = Stage::new();
            stage.put("f", &before);
            let cached = stage.mount(Mode::CloseToOpen);
            let gate = match answered {
                true => stage.faulty.hold_answer(Which::Any, nth),
                false => stage.faulty.hold(Which::Any, nth),
            };
            let reading = cached.clone();
            let reader = tokio::spawn(async move { keep(&reading, "f").await });
            let arrived = tokio::select! {
                () = gate.arrived() => true,
                () = async { while !reader.is_finished() { tokio::task::yield_now().await } } => false,
            };
            if !arrived {
                assert!(nth > 3, "a fetch is more questions than that");
                assert!(hits >= 2, "no fetch was kept at all");
                return;
            }
            stage.memory.put_file("f", &after);
            gate.release();
            reader.await.unwrap();
            // Its present content, with an mtime long past.
            for mtime in [LONG_AGO + 1, LONG_AGO] {
                stage.memory.set_mtime("f", mtime);
                let content = read(&stage.mount(Mode::CloseToOpen), "f").await.unwrap();
                let kept = content == before && mtime == LONG_AGO;
                // Fetched whole before the change, and then a change that size and mtime do not
                // show.
                assert!(content == after || kept && cached.status().completed == 1);
                hits += usize::from(cached.status().completed == 1);
            }
        }
    }
}

/// A file that later has another content with the same size and mtime: a later mount does not
/// complete the parts that an earlier one has kept.
#[tokio::test]
async fn parts_of_two_mounts_are_not_put_together() {
    let (before, after) = (pattern(7, 2_500_000), pattern(8, 2_500_000));
    let stage = Stage::new();
    stage.put("f", &before);
    let cached = stage.mount(Mode::CloseToOpen);
    let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
    cached.read(opened.fh, 0, 1 << 20).await.unwrap();
    cached.close(opened.fh);
    cached.wait_idle().await;
    assert!(cached.presence(&path("f")).await.unwrap().present >= 1 << 20);
    drop(cached);
    let mtime = stage.memory.lstat(&path("f")).await.unwrap().mtime;
    stage.put("f", &after);
    stage.memory.set_mtime("f", mtime.secs);
    let later = stage.mount(Mode::CloseToOpen);
    assert!(keep(&later, "f").await == after);
    assert!(read(&stage.mount(Mode::CloseToOpen), "f").await.unwrap() == after);
}

/// The same with two mounts at the same time: a mount that could not keep its parts, since the
/// other mount held the files, does not continue those files when they are free, nor files that the
/// other mount has created in place of its own.
#[tokio::test]
async fn a_mount_does_not_continue_the_parts_of_another_one() {
    let (before, after) = (pattern(7, 2_500_000), pattern(8, 2_500_000));
    for is_held in [true, false] {
        let stage = Stage::new();
        stage.put("f", &before);
        let (one, other) = (stage.mount(Mode::CloseToOpen), stage.mount(Mode::CloseToOpen));
        let first = one.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
        read_range(&one, first.fh, 0..1 << 20).await;
        if !is_held {
            one.close(first.fh);
        }
        one.wait_idle().await;
        let second = other.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
        read_range(&other, second.fh, 1 << 20..2 << 20).await;
        other.close(second.fh);
        other.wait_idle().await;
        assert!(one.presence(&path("f")).await.unwrap().present > 0, "a part is here");
        stage.put("f", &after);
        if is_held {
            one.close(first.fh);
            one.wait_idle().await;
        }
        let last = if is_held { other } else { one };
        assert!(keep(&last, "f").await == after, "held: {is_held}");
        assert!(keep(&stage.mount(Mode::CloseToOpen), "f").await == after, "held: {is_held}");
    }
}

/// Data of several readers, in any order, makes up one content.
#[tokio::test]
async fn parts_make_a_whole() {
    const LEN: usize = 2_500_000;
    let content = pattern(7, LEN);
    let stage = Stage::new();
    stage.put("f", &content);
    for part in [3usize, 0, 2, 1, 4] {
        let cached = stage.mount(Mode::Immutable);
        let opened = cached.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap();
        let from = part * 500_000;
        let data = cached.read(opened.fh, from as u64, 500_000).await.unwrap().to_vec();
        assert!(data == content[from..from + 500_000]);
        cached.close(opened.fh);
        cached.wait_idle().await;
    }
    let cached = stage.mount(Mode::Immutable);
    let present = cached.presence(&path("f")).await.unwrap();
    stage.asked();
    assert!(keep(&cached, "f").await == content);
    // Chunks that were read in two parts may have been dropped.
    assert!(present.present > LEN as u64 / 2, "{present:?}");
    assert!(keep(&stage.mount(Mode::Immutable), "f").await == content);
    assert!(cached.presence(&path("f")).await.unwrap().whole);
}

/// `warm` fetches a file with several requests at once, and returns when it is in the store.
#[tokio::test]
async fn a_file_is_fetched_before_it_is_read() {
    let content = pattern(3, 5_000_001);
    let stage = Stage::new();
    stage.put("f", &content);
    stage.put("empty", "");
    stage.memory.put_dir("d");
    let cached = stage.mount(Mode::CloseToOpen);
    let told = std::sync::atomic::AtomicU64::new(0);
    let tell = |bytes| {
        told.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    };
    assert_eq!(cached.presence(&path("f")).await.unwrap().present, 0);
    assert_eq!(cached.warm(&path("f"), &tell).await, Ok(Warmed::Fetched(5_000_001)));
    assert_eq!(told.into_inner(), 5_000_001);
    let presence = cached.presence(&path("f")).await.unwrap();
    assert!(presence.whole && presence.present == 5_000_001, "{presence:?}");
    assert_eq!(cached.warm(&path("f"), &|_| ()).await, Ok(Warmed::Already));
    assert_eq!(cached.warm(&path("empty"), &|_| ()).await, Ok(Warmed::Fetched(0)));
    assert_eq!(cached.warm(&path("empty"), &|_| ()).await, Ok(Warmed::Already));
    assert_eq!(cached.warm(&path("d"), &|_| ()).await, Err(Errno::EISDIR));
    assert_eq!(cached.presence(&path("d")).await, Err(Errno::EISDIR));
    assert_eq!(cached.presence(&path("absent")).await, Err(Errno::ENOENT));
    let cached = stage.mount(Mode::CloseToOpen);
    stage.asked();
    assert!(read(&cached, "f").await.unwrap() == content);
    assert_eq!(stage.asked(), 1);
}

/// What the store would not keep is not transferred.
#[tokio::test]
async fn a_file_that_cannot_be_kept_is_not_fetched() {
    let stage = Stage::new();
    stage.put("f", pattern(3, 3 << 20));
    let store = |size_bytes, free_bytes| {
        let (size_bytes, free_bytes) = (Some(size_bytes), Some(free_bytes));
        let dir = stage.dir.path().join("store");
        Store::open(StoreConfig { size_bytes, free_bytes, ..StoreConfig::new(dir) }).unwrap()
    };
    let small = store(1 << 20, 0);
    let full = store(1 << 30, u64::MAX / 2);
    while full.gc().busy {}
    assert!(full.status().off.is_some());
    for (store, result) in [(small, Warmed::TooLarge), (full, Warmed::NotKept)] {
        let cached = stage.mount_on(store, stage.config());
        assert_eq!(cached.warm(&path("f"), &|_| ()).await, Ok(result));
        assert_eq!(stage.faulty.calls(Call::Read), 0);
        // The caller reads it nevertheless.
        assert!(read(&cached, "f").await.unwrap() == pattern(3, 3 << 20));
        stage.faulty.reset_calls();
    }
}

/// Data of files that were read in part and are open does not keep others from being cached.
#[tokio::test]
async fn open_files_do_not_take_all_memory_for_pending_data() {
    // Less than the bytes after which the server is queried; together more than the bound on
    // pending data.
    const PART: u32 = 4000 << 10;
    const OPEN: usize = 36;
    const PIECE: u32 = 50 << 10;
    let (stage, content) = (Stage::new(), pattern(3, 1_000_000));
    stage.put("large", pattern(1, PART as usize + 1));
    stage.put("read", &content);
    stage.put("warmed", &content);
    let cached = stage.mount(Mode::CloseToOpen);
    for _ in 0..OPEN {
        let opened = cached.open(&path("large"), OpenFlags::existing(Access::Read)).await.unwrap();
        for at in (0..PART).step_by(PIECE as usize) {
            cached.read(opened.fh, u64::from(at), PIECE).await.unwrap();
        }
    }
    assert!(keep(&cached, "read").await == content);
    let warmed = path("warmed");
    let warming = cached.warm(&warmed, &|_| ());
    let warmed = tokio::time::timeout(std::time::Duration::from_secs(20), warming).await;
    assert_eq!(warmed.expect("it does not hang"), Ok(Warmed::Fetched(1_000_000)));
    assert!(keep(&cached, "read").await == content);
    assert!(cached.presence(&path("read")).await.unwrap().whole);
}

/// A recently changed file is waited for.
#[tokio::test(start_paused = true)]
async fn a_young_file_is_fetched_when_its_time_is_past() {
    let stage = Stage::new();
    stage.memory.put_file("f", "content");
    let cached = stage.mount(Mode::CloseToOpen);
    assert_eq!(cached.warm(&path("f"), &|_| ()).await, Ok(Warmed::Fetched(7)));
    assert!(cached.presence(&path("f")).await.unwrap().whole);
}

/// One listing shows the times of all files, however many there are.
#[tokio::test(start_paused = true)]
async fn one_wait_is_enough_for_all_young_files_of_a_huge_directory() {
    let stage = Stage::new();
    let mut names: Vec<_> = (0..202_000).map(|file| format!("f{file}")).collect();
    // In the order of the listing.
    names.sort_by_key(|name| base::stable_hash(name.as_bytes()));
    names.iter().for_each(|name| stage.put(&format!("d/{name}"), ""));
    let young = [201_998, 201_999].map(|at: usize| format!("d/{}", names[at]));
    young.iter().for_each(|file| stage.memory.put_file(file, "content"));
    let cached = stage.mount(Mode::CloseToOpen);
    assert_eq!(cached.warm(&path(&young[0]), &|_| ()).await, Ok(Warmed::Fetched(7)));
    let since = tokio::time::Instant::now();
    assert_eq!(cached.warm(&path(&young[1]), &|_| ()).await, Ok(Warmed::Fetched(7)));
    assert!(since.elapsed().as_secs() < 1);
}

/// A fetch that fails, at any request, leaves no wrong bytes and no open handle.
#[tokio::test]
async fn a_fetch_that_fails_leaves_nothing_wrong() {
    let content = pattern(4, 600_000);
    for nth in 1.. {
        let stage = Stage::new();
        stage.put("f", &content);
        let cached = stage.mount(Mode::CloseToOpen);
        stage.faulty.fail(Which::Any, nth, Errno::EIO);
        let first = read(&cached, "f").await;
        cached.wait_idle().await;
        assert!(first.is_err() || first.unwrap() == content);
        assert!(stage.faulty.not_reached() > 0 || nth <= 8);
        assert!(keep(&cached, "f").await == content);
        assert!(keep(&stage.mount(Mode::CloseToOpen), "f").await == content);
        while stage.memory.open_handles() > 0 {
            tokio::task::yield_now().await;
        }
        if stage.faulty.not_reached() > 0 {
            return;
        }
    }
}

/// Contents of any size are kept and shown unchanged.
#[tokio::test]
async fn every_size_is_kept() {
    let stage = Stage::new();
    let chunk = 128 << 10;
    for len in [0, 1, 4095, chunk - 1, chunk, chunk + 1, 3 * chunk, (2 << 20) + 7] {
        let at = format!("f{len}");
        let content = pattern(len as u8, len);
        stage.put(&at, &content);
        assert!(keep(&stage.mount(Mode::CloseToOpen), &at).await == content);
        let cached = stage.mount(Mode::CloseToOpen);
        assert!(read(&cached, &at).await.unwrap() == content, "{len}");
        assert_eq!(cached.status().read_there_bytes, 0, "{len}");
        assert_eq!((cached.status().hits, cached.status().misses), (1, 0), "{len}");
    }
}

/// Reads `range` of a file as a mount does that has opened it as `fh`.
async fn read_range(cached: &cache::Cached, fh: base::Fh, range: std::ops::Range<u64>) {
    for at in range.step_by(128 << 10) {
        cached.read(fh, at, 128 << 10).await.unwrap();
    }
}

/// The metadata file that records where a content was found.
fn note_of(stage: &Stage, content: &[u8]) -> std::path::PathBuf {
    let hex = cache::Digest::of(content).to_hex();
    stage.dir.path().join("store/v1/objects").join(&hex[..2]).join(format!("{}.about", &hex[2..]))
}

/// At the end of a mount all data is in the store, also of open files, and deferred records are
/// written, though the store is not closed.
#[tokio::test]
async fn the_end_of_a_mount_puts_everything_away() {
    let stage = Stage::new();
    let (small, large) = (pattern(1, 70_000), pattern(2, 1 << 20));
    stage.put("small", &small);
    stage.put("large", &large);
    let cached = stage.mount(Mode::CloseToOpen);
    assert!(read(&cached, "small").await.unwrap() == small);
    let opened = cached.open(&path("large"), OpenFlags::existing(Access::Read)).await.unwrap();
    read_range(&cached, opened.fh, 0..512 << 10).await;
    cached.shutdown().await;
    let another = stage.mount(Mode::CloseToOpen);
    assert_eq!(another.presence(&path("large")).await.unwrap().present, 512 << 10);
    assert!(another.presence(&path("small")).await.unwrap().whole);
    assert!(note_of(&stage, &small).exists());
    cached.close(opened.fh);
}

/// A silent server does not delay the end of a mount for long, nor prevent the writes that do not
/// need it.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_mount_does_not_wait_for_a_silent_server() {
    let stage = Stage::new();
    let small = pattern(1, 70_000);
    stage.put("small", &small);
    stage.put("large", pattern(2, 1 << 20));
    let cached = stage.mount(Mode::CloseToOpen);
    assert!(read(&cached, "small").await.unwrap() == small);
    cached.wait_idle().await;
    let opened = cached.open(&path("large"), OpenFlags::existing(Access::Read)).await.unwrap();
    read_range(&cached, opened.fh, 0..512 << 10).await;
    let _gate = stage.faulty.hold(Call::Fstat, 1);
    let began = tokio::time::Instant::now();
    cached.shutdown().await;
    assert!(began.elapsed() < std::time::Duration::from_secs(10));
    assert!(note_of(&stage, &small).exists());
}
