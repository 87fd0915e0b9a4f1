//! Promises of the in-memory remote alone; those of every remote are in `conformance.rs`.

use std::time::Duration;

use base::{
    Access, AttrChange, Create, Errno, FileKind, Name, OpenFlags, Remote, RenameMode, Timestamp,
};
use bytes::Bytes;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, ManualClock, MemRemote, path};

fn create(perm: u32) -> OpenFlags {
    OpenFlags { create: Create::IfAbsent(perm), ..OpenFlags::existing(Access::ReadWrite) }
}

fn limited(capacity_bytes: u64, inodes: u64) -> MemRemote {
    let limits = Limits { capacity_bytes: Some(capacity_bytes), inodes, ..Limits::default() };
    MemRemote::with(Options { limits, ..Options::default() })
}

#[tokio::test]
async fn round_trips_are_counted_by_operation() {
    let remote = MemRemote::new();
    let opened = remote.open(&path("a"), create(0o644)).await.unwrap();
    remote.write(opened.fh, 0, Bytes::from_static(b"x")).await.unwrap();
    remote.close(opened.fh);
    assert_eq!(remote.lstat(&path("b")).await, Err(Errno::ENOENT));
    assert_eq!(remote.calls(Call::Open), 1);
    assert_eq!(remote.calls(Call::Lstat), 1);
    assert_eq!(remote.calls(Call::Close), 1);
    assert_eq!(remote.round_trips(), 3);
    remote.put_file("c", "not a call");
    remote.reset_calls();
    assert_eq!(remote.round_trips(), 0);
}

#[tokio::test]
async fn beyond_the_capacity_the_part_that_fits_is_written() {
    let remote = limited(3 * 4096, 100);
    let fh = remote.open(&path("a"), create(0o644)).await.unwrap().fh;
    let full = remote.write(fh, 0, Bytes::from(vec![1; 4 * 4096])).await;
    assert_eq!(full, Err(Errno::ENOSPC));
    assert_eq!(remote.content("a"), vec![1; 3 * 4096]);
    let figures = remote.statvfs(&path("")).await.unwrap();
    assert_eq!((figures.blocks, figures.blocks_available), (3, 0));
    // Existing content can still be changed.
    remote.write(fh, 100, Bytes::from_static(b"again")).await.unwrap();
    // An open file keeps its space without a name, and frees it with its last handle.
    remote.unlink(&path("a")).await.unwrap();
    assert_eq!(remote.statvfs(&path("")).await.unwrap().blocks_free, 0);
    remote.close(fh);
    assert_eq!(remote.statvfs(&path("")).await.unwrap().blocks_free, 3);
    assert_eq!(remote.edit(|tree| tree.inodes()), 1);
}

#[tokio::test]
async fn beyond_the_inodes_nothing_is_created() {
    let remote = limited(1 << 20, 2);
    remote.mkdir(&path("a"), 0o755).await.unwrap();
    assert_eq!(remote.mkdir(&path("b"), 0o755).await, Err(Errno::ENOSPC));
    assert_eq!(remote.symlink(b"a", &path("b")).await, Err(Errno::ENOSPC));
    let opened = remote.open(&path("b"), create(0o644)).await;
    assert_eq!(opened.unwrap_err(), Errno::ENOSPC);
    remote.link(&path("a"), &path("c")).await.unwrap_err();
    assert_eq!(remote.names(""), ["a"]);
}

#[tokio::test]
async fn handles_are_limited_and_a_failed_open_changes_nothing() {
    let remote = MemRemote::with(Options { max_handles: 1, ..Options::default() });
    remote.put_file("a", "content");
    let dh = remote.opendir(&path("")).await.unwrap();
    let cut = OpenFlags { truncate: true, ..OpenFlags::existing(Access::Write) };
    assert_eq!(remote.open(&path("a"), cut).await.unwrap_err(), Errno::EMFILE);
    assert_eq!(remote.open(&path("b"), create(0o600)).await.unwrap_err(), Errno::EMFILE);
    assert_eq!(remote.content("a"), b"content");
    assert!(!remote.exists("b"));
    remote.closedir(dh);
    assert!(remote.open(&path("a"), cut).await.is_ok());
}

#[tokio::test]
async fn times_come_from_the_clock_in_whole_seconds() {
    let clock = ManualClock::at(1_000);
    let remote = MemRemote::with(Options { clock: clock.clone().into(), ..Options::default() });
    remote.mkdir(&path("d"), 0o755).await.unwrap();
    clock.advance(10);
    let fh = remote.open(&path("d/f"), create(0o644)).await.unwrap().fh;
    assert_eq!(remote.attr("d").mtime, Timestamp::from_secs(1_010));
    clock.advance(10);
    remote.write(fh, 0, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(remote.fstat(fh).await.unwrap().mtime, Timestamp::from_secs(1_020));
    assert_eq!(remote.attr("d").mtime, Timestamp::from_secs(1_010));
    clock.advance(10);
    let cut = AttrChange { size: Some(0), ..AttrChange::default() };
    remote.setattr(&path("d/f"), cut).await.unwrap();
    assert_eq!(remote.attr("d/f").mtime, Timestamp::from_secs(1_030));
    let time = Timestamp { secs: 77, nanos: 999 };
    let change = AttrChange { mtime: Some(time), atime: Some(time), ..AttrChange::default() };
    remote.fsetattr(fh, change).await.unwrap();
    assert_eq!(remote.attr("d/f").mtime, Timestamp::from_secs(77));
    clock.advance(10);
    remote.rename(&path("d/f"), &path("f"), RenameMode::Replace).await.unwrap();
    for dir in ["d", ""] {
        assert_eq!(remote.attr(dir).mtime, Timestamp::from_secs(1_040), "{dir:?}");
    }
    assert_eq!(remote.attr("f").mtime, Timestamp::from_secs(77));
}

#[tokio::test(start_paused = true)]
async fn an_answer_takes_the_latency_and_the_effect_does_not() {
    let remote = MemRemote::new();
    remote.set_latency(Some(Duration::from_millis(100)));
    let before = tokio::time::Instant::now();
    let at = path("a");
    let mut call = remote.mkdir(&at, 0o755);
    let waiting = tokio::time::timeout(Duration::from_millis(99), &mut call).await;
    assert!(waiting.is_err());
    assert!(remote.exists("a"));
    call.await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_millis(100));
}

#[tokio::test]
async fn a_pending_answer_is_never_ready_at_once() {
    let remote = MemRemote::new();
    remote.put_file("a", "x");
    remote.set_pending(true);
    let at = path("a");
    let mut call = remote.open(&at, OpenFlags::existing(Access::Read));
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(call.as_mut().poll(&mut context).is_pending());
    assert_eq!(remote.open_handles(), 1);
    drop(call);
    assert_eq!(remote.open_handles(), 0, "the handle of a dropped open leaked");
    let opened = remote.open(&at, OpenFlags::existing(Access::Read)).await.unwrap();
    assert_eq!(remote.read(opened.fh, 0, 10).await.unwrap().to_vec(), b"x");
}

#[tokio::test]
async fn a_read_is_split_into_chunks() {
    let options = Options { read_piece_bytes: Some(4), ..Options::default() };
    let remote = MemRemote::with(options);
    remote.put_file("a", "0123456789");
    let fh = remote.open(&path("a"), OpenFlags::existing(Access::Read)).await.unwrap().fh;
    let data = remote.read(fh, 0, 100).await.unwrap();
    let lengths: Vec<usize> = data.pieces().iter().map(Bytes::len).collect();
    assert_eq!((lengths, data.to_vec()), (vec![4, 4, 2], b"0123456789".to_vec()));
}

#[tokio::test]
async fn links_in_the_middle_of_a_path_are_followed_as_a_server_does() {
    let remote = MemRemote::new();
    remote.put_file("d/e/f", "here");
    remote.put_symlink("up", "d/e");
    remote.put_symlink("d/abs", "/d/./e/");
    remote.put_symlink("d/e/back", "../../up/..");
    remote.put_symlink("loop", "loop");
    remote.put_symlink("file", "d/e/f");
    for at in ["up/f", "d/abs/f", "d/e/back/e/f"] {
        assert_eq!(remote.lstat(&path(at)).await.unwrap().size, 4, "{at}");
    }
    assert_eq!(remote.lstat(&path("loop/x")).await, Err(Errno::ELOOP));
    assert_eq!(remote.lstat(&path("file/x")).await, Err(Errno::ENOTDIR));
    assert_eq!(remote.lstat(&path("loop")).await.unwrap().kind, FileKind::Symlink);
}

#[tokio::test]
async fn a_listing_continues_over_changes_and_removal() {
    let options = Options { listing_batch: 3, listing_attrs: false, ..Options::default() };
    let remote = MemRemote::with(options);
    for number in 0..10 {
        remote.put_file(&format!("d/{number}"), "");
    }
    let dh = remote.opendir(&path("d")).await.unwrap();
    let first = remote.readdir(dh).await.unwrap().unwrap();
    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|entry| entry.attr.is_none()));
    let mut seen: Vec<Name> = first.into_iter().map(|entry| entry.name).collect();
    let gone = (0..10).map(|n| n.to_string()).find(|n| seen.iter().all(|s| s.to_string() != *n));
    let gone = gone.unwrap();
    remote.remove(&format!("d/{gone}"));
    while let Some(batch) = remote.readdir(dh).await.unwrap() {
        seen.extend(batch.into_iter().map(|entry| entry.name));
    }
    assert_eq!(seen.len(), 9);
    assert!(seen.iter().all(|name| name.to_string() != gone));
    let again = remote.opendir(&path("d")).await.unwrap();
    remote.remove("d");
    assert_eq!(remote.readdir(again).await, Ok(None));
    remote.closedir(again);
    remote.closedir(dh);
    assert_eq!(remote.open_handles(), 0);
    assert_eq!(remote.edit(|tree| tree.inodes()), 1);
}
