//! Races and aliasing that once gave the kernel a wrong result. Each test describes the defect.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::{Access, AttrChange, Errno, Remote, RenameMode, Timestamp};
use bytes::Bytes;
use testkit::faulty::Gate;
use testkit::tree::Follow;
use testkit::{Call, FaultyRemote, MemRemote, path};
use vfs::{
    Config, Entry, EntrySink, Handle, Ino, ListedEntry, LookupResult, OpenRequest, Opened, Vfs,
};

/// A time long past, not in the present second.
const LONG_AGO: i64 = 1_000_000_000;

type Mounted = (Arc<MemRemote>, Arc<FaultyRemote<MemRemote>>, Vfs);

fn mounted(config: Config) -> Mounted {
    let remote = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let vfs = Vfs::new(faulty.clone(), config);
    (remote, faulty, vfs)
}

/// A configuration in which every open sends a request.
fn asking() -> Config {
    Config { open_revalidate: Duration::ZERO, ..Config::default() }
}

/// A configuration in which every lookup and every stat sends a request too.
fn uncached() -> Config {
    Config { files: vfs::Timeout::fixed(Duration::ZERO), ..asking() }
}

async fn found(vfs: &Vfs, parent: Ino, name: &str) -> Entry {
    match vfs.lookup(parent, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry,
        LookupResult::Absent(_) => panic!("{name} is absent"),
    }
}

async fn open(vfs: &Vfs, ino: Ino, access: Access) -> Opened {
    vfs.open(ino, OpenRequest::plain(access)).await.unwrap()
}

async fn read(vfs: &Vfs, handle: Handle) -> Vec<u8> {
    vfs.read(handle, 0, 1 << 20).await.unwrap().to_vec()
}

async fn write(vfs: &Vfs, handle: Handle, offset: u64, data: &'static [u8]) {
    vfs.write(handle, offset, Bytes::from_static(data)).await.unwrap();
}

/// Writes at the server, in place, and sets a time long past.
fn write_behind(remote: &MemRemote, at: &str, offset: u64, data: &[u8], mtime: i64) {
    remote.edit(|tree| {
        let ino = tree.lookup(&path(at), Follow::No).unwrap();
        tree.write(ino, offset, data).unwrap();
    });
    remote.set_mtime(at, mtime);
}

/// Polls once. Returns whether the future is ready.
async fn is_over<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

/// The result of `operation`, which has to wait until `gate` is released.
async fn released<T>(gate: &Gate, operation: impl Future<Output = T>) -> T {
    let mut operation = Box::pin(operation);
    assert!(!is_over(&mut operation).await, "it did not wait");
    gate.release();
    operation.await
}

#[derive(Default)]
struct Names {
    entries: Vec<(String, Option<Entry>)>,
    next: u64,
    room: usize,
}

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        self.entries.len() < self.room
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        self.entries.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.entry));
        self.next = entry.next_offset;
    }
}

async fn list(vfs: &Vfs, handle: vfs::DirHandle, offset: u64, room: usize) -> Names {
    let mut names = Names { room, ..Names::default() };
    vfs.readdir(handle, offset, true, &mut names).await.unwrap();
    names
}

/// C1: after an open the kernel used the size that it had got before, so a file that had grown was
/// read up to its old end.
#[tokio::test]
async fn an_open_of_what_has_grown_has_the_kernel_learn_the_size() {
    let (remote, _, vfs) = mounted(asking());
    remote.put_file("f", "hello");
    remote.set_mtime("f", LONG_AGO);
    let file = found(&vfs, Ino::ROOT, "f").await;
    assert!(file.stat.ttl > Duration::ZERO);
    write_behind(&remote, "f", 5, b" world", LONG_AGO + 1);
    let request = OpenRequest::plain(Access::Read);
    assert_eq!(vfs.open(file.ino, request).await, Err(Errno::ESTALE), "look it up again");
    let again = found(&vfs, Ino::ROOT, "f").await;
    assert_eq!((again.ino, again.stat.attr.size), (file.ino, 11));
    let opened = vfs.open(file.ino, request).await.unwrap();
    assert_eq!(read(&vfs, opened.handle).await, b"hello world");
}

/// C1: the same defect if no name is looked up again (`/proc/self/fd`), and if the file grows all
/// the time: the second open succeeds, and the kernel goes on requesting the size.
#[tokio::test]
async fn an_open_is_sent_back_to_its_name_once_only() {
    let (remote, _, vfs) = mounted(asking());
    remote.put_file("f", "hello");
    remote.put_file("g", "hello");
    let f = found(&vfs, Ino::ROOT, "f").await;
    let g = found(&vfs, Ino::ROOT, "g").await;
    write_behind(&remote, "f", 5, b" world", LONG_AGO);
    write_behind(&remote, "g", 5, b" world", LONG_AGO);
    let request = OpenRequest::plain(Access::Read);
    assert_eq!(vfs.open(f.ino, request).await, Err(Errno::ESTALE));
    assert!(vfs.open(f.ino, request).await.is_ok());

    assert_eq!(vfs.open(g.ino, request).await, Err(Errno::ESTALE));
    let again = found(&vfs, Ino::ROOT, "g").await;
    assert_eq!((again.stat.attr.size, again.stat.ttl), (11, Duration::ZERO));
    write_behind(&remote, "g", 11, b"!", LONG_AGO);
    assert!(vfs.open(g.ino, request).await.is_ok());
    assert_eq!(vfs.getattr(g.ino).await.unwrap().attr.size, 12);
}

/// A read was short at the old end of a file, after a `stat` had given the kernel a greater size:
/// the rest of the page was shown as zeros.
#[tokio::test]
async fn a_read_does_not_end_before_the_size_that_was_told_meanwhile() {
    let (remote, faulty, vfs) = mounted(uncached());
    remote.put_file("log", "hello");
    let log = found(&vfs, Ino::ROOT, "log").await;
    let opened = open(&vfs, log.ino, Access::Read).await;
    let gate = faulty.hold_answer(Call::Read, 1);
    let grown = async {
        while !gate.has_arrived() {
            tokio::task::yield_now().await;
        }
        write_behind(&remote, "log", 5, b" world", LONG_AGO);
        assert_eq!(vfs.getattr(log.ino).await.unwrap().attr.size, 11);
        gate.release();
    };
    let (content, ()) = tokio::join!(read(&vfs, opened.handle), grown);
    assert_eq!(content, b"hello world");
    // If the kernel has got too great a size, reads end nevertheless.
    let (empty, _) = tokio::join!(vfs.read(opened.handle, 11, 10), vfs.getattr(log.ino));
    assert_eq!(empty.unwrap().len(), 0);
}

/// The kernel knows the size that its own writes lead to, and needs no further reply.
#[tokio::test]
async fn an_open_after_own_writes_is_not_sent_back() {
    let (_, _, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (file, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    write(&vfs, opened.handle, 0, b"12345").await;
    vfs.flush(opened.handle).await.unwrap();
    assert!(vfs.open(file.ino, OpenRequest::plain(Access::Read)).await.is_ok());
}

/// A3: the second of two closes of one open file returned before its writes were at the server.
#[tokio::test]
async fn each_close_of_an_open_file_waits_for_its_writes() {
    let (_, faulty, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    let gate = faulty.hold(Call::Write, 1);
    write(&vfs, opened.handle, 0, b"data").await;
    let mut first = Box::pin(vfs.flush(opened.handle));
    assert!(!is_over(&mut first).await);
    // The second close waits for the first one.
    let second = released(&gate, vfs.flush(opened.handle));
    assert_eq!(tokio::join!(first, second), (Ok(()), Ok(())));
}

/// A3: a close that was interrupted made the next one return too early.
#[tokio::test]
async fn a_close_after_an_interrupted_one_waits_and_reports() {
    let (remote, faulty, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    let gate = faulty.hold(Call::Write, 1);
    write(&vfs, opened.handle, 0, b"too much").await;
    let mut interrupted = Box::pin(vfs.flush(opened.handle));
    assert!(!is_over(&mut interrupted).await);
    drop(interrupted);
    remote.edit(|tree| tree.set_capacity(Some(0)));
    assert_eq!(released(&gate, vfs.flush(opened.handle)).await, Err(Errno::ENOSPC));
}

/// It was interrupted before it had requested the server's answer.
#[tokio::test]
async fn a_close_after_an_interrupted_one_asks_the_server() {
    let (_, faulty, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (entry, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    let other = open(&vfs, entry.ino, Access::Write).await;
    let gate = faulty.hold(Call::Write, 1);
    write(&vfs, other.handle, 0, b"other").await;
    write(&vfs, opened.handle, 100, b"own").await;
    let mut interrupted = Box::pin(vfs.flush(opened.handle));
    assert!(!is_over(&mut interrupted).await);
    drop(interrupted);
    faulty.fail(Call::Flush, 1, Errno::EDQUOT);
    assert_eq!(released(&gate, vfs.flush(opened.handle)).await, Err(Errno::EDQUOT));
}

/// C6: a listing gave a renamed file the attributes of the file that had the name before.
#[tokio::test]
async fn a_listing_does_not_tell_of_what_was_replaced_by_a_rename() {
    let (remote, _, vfs) = mounted(Config::default());
    remote.put_file("a", "the longer one of both");
    remote.put_file("b", "short");
    let handle = vfs.opendir(Ino::ROOT).await.unwrap();
    let begun = list(&vfs, handle, 0, 3).await;
    assert_eq!(begun.entries[2].0, "a");
    vfs.rename((Ino::ROOT, b"a"), (Ino::ROOT, b"b"), RenameMode::Replace).await.unwrap();
    let rest = list(&vfs, handle, begun.next, 10).await;
    assert_eq!(rest.entries.len(), 1);
    assert!(rest.entries[0].1.is_none(), "{:?}", rest.entries[0]);
    assert_eq!(found(&vfs, Ino::ROOT, "b").await.stat.attr.size, 22);
}

/// C6: a listing gave a new file the attributes of a removed one with the same name.
#[tokio::test]
async fn a_listing_does_not_tell_of_what_was_made_anew() {
    let (remote, _, vfs) = mounted(Config::default());
    remote.put_file("f", "old content");
    let handle = vfs.opendir(Ino::ROOT).await.unwrap();
    let begun = list(&vfs, handle, 0, 2).await;
    vfs.unlink(Ino::ROOT, b"f").await.unwrap();
    let made = vfs.mknod(Ino::ROOT, b"f", base::FileKind::Regular, 0o644, (0, 0)).await.unwrap();
    let rest = list(&vfs, handle, begun.next, 10).await;
    assert!(rest.entries[0].1.is_none(), "{:?}", rest.entries[0]);
    assert_eq!(vfs.getattr(made.ino).await.unwrap().attr.size, 0);
}

/// A prefetched listing replaced the newer result of a stat in the kernel.
#[tokio::test(start_paused = true)]
async fn a_listing_does_not_bring_back_what_was_known_before() {
    let (remote, _, vfs) = mounted(Config::default());
    remote.put_file("f", "one");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let handle = vfs.opendir(Ino::ROOT).await.unwrap();
    let begun = list(&vfs, handle, 0, 2).await;
    write_behind(&remote, "f", 3, b" two", LONG_AGO);
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 7);
    let rest = list(&vfs, handle, begun.next, 10).await;
    assert!(rest.entries[0].1.is_none(), "{:?}", rest.entries[0]);
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 7);
}

/// A2: after a chmod that overlapped with a write, the size from before the write was valid again.
#[tokio::test]
async fn a_chmod_does_not_bring_back_the_size_from_before_a_write() {
    let (_, faulty, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (file, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    let gate = faulty.hold(Call::Setattr, 1);
    let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    let mut chmod = Box::pin(vfs.setattr(file.ino, change, None));
    assert!(!is_over(&mut chmod).await);
    write(&vfs, opened.handle, 0, b"12345").await;
    vfs.drain().await;
    let stat = released(&gate, chmod).await.unwrap();
    assert_eq!((stat.attr.size, stat.attr.perm), (5, 0o600));
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 5);
}

/// A6: a file that grew between two requests was taken for another one (`tail -F` starts again).
#[tokio::test]
async fn a_file_that_grows_while_it_is_looked_at_is_the_same() {
    let (remote, faulty, vfs) = mounted(uncached());
    remote.put_file("log", "1");
    let log = found(&vfs, Ino::ROOT, "log").await;
    open(&vfs, log.ino, Access::Read).await;
    write_behind(&remote, "log", 1, b"2", LONG_AGO);
    let gate = faulty.hold(Call::Fstat, 1);
    let mut looking = Box::pin(found(&vfs, Ino::ROOT, "log"));
    assert!(!is_over(&mut looking).await);
    write_behind(&remote, "log", 2, b"3", LONG_AGO + 1);
    gate.release();
    assert_eq!(looking.await.ino, log.ino);

    write_behind(&remote, "log", 3, b"4", LONG_AGO + 2);
    let gate = faulty.hold(Call::Fstat, 1);
    let mut opening = Box::pin(open(&vfs, log.ino, Access::Read));
    assert!(!is_over(&mut opening).await);
    write_behind(&remote, "log", 4, b"5", LONG_AGO + 3);
    gate.release();
    assert_eq!(read(&vfs, opening.await.handle).await, b"12345");
}

/// A6: an open with O_TRUNC put two files under one inode, if the name had been replaced while the
/// old file was open.
#[tokio::test]
async fn truncating_what_has_replaced_an_open_file_makes_another_inode() {
    let (remote, _, vfs) = mounted(asking());
    remote.put_file("f", "old");
    remote.set_mtime("f", LONG_AGO);
    let old = found(&vfs, Ino::ROOT, "f").await;
    let reader = open(&vfs, old.ino, Access::Read).await;
    remote.put_file("g", "newer");
    remote.move_to("g", "f");
    let request = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
    assert_eq!(vfs.open(old.ino, request).await, Err(Errno::ESTALE));
    let new = found(&vfs, Ino::ROOT, "f").await;
    assert_ne!(new.ino, old.ino);
    let writer = vfs.open(new.ino, request).await.unwrap();
    write(&vfs, writer.handle, 0, b"mine").await;
    vfs.flush(writer.handle).await.unwrap();
    assert_eq!(read(&vfs, reader.handle).await, b"old");
    assert_eq!(vfs.getattr(old.ino).await.unwrap().attr.size, 3);
    assert_eq!(remote.content("f"), b"mine");
}

/// A6: an open with O_TRUNC of a file that was not replaced leads to the same inode, also for its
/// open handles.
#[tokio::test]
async fn truncating_an_open_file_keeps_its_inode() {
    let (remote, _, vfs) = mounted(Config::default());
    remote.put_file("f", "old");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let reader = open(&vfs, file.ino, Access::Read).await;
    let request = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
    vfs.open(file.ino, request).await.unwrap();
    assert_eq!(read(&vfs, reader.handle).await, b"");
    assert_eq!(found(&vfs, Ino::ROOT, "f").await.ino, file.ino);
}

/// Inodes: linked names were separated if the file was read between two requests.
#[tokio::test]
async fn linked_names_stay_together_when_the_file_is_read() {
    let (remote, faulty, vfs) = mounted(uncached());
    remote.put_file("a", "same");
    let file = found(&vfs, Ino::ROOT, "a").await;
    vfs.link(file.ino, Ino::ROOT, b"b").await.unwrap();
    write_behind(&remote, "a", 4, b"!", LONG_AGO);
    let gate = faulty.hold(Call::Lstat, 2);
    let mut opening = Box::pin(open(&vfs, file.ino, Access::Read));
    assert!(!is_over(&mut opening).await);
    remote.edit(|tree| {
        let ino = tree.lookup(&path("a"), Follow::No).unwrap();
        let read = AttrChange { atime: Some(Timestamp::from_secs(7)), ..AttrChange::default() };
        tree.set_attr(ino, &read).unwrap();
    });
    gate.release();
    opening.await;
    assert_eq!(found(&vfs, Ino::ROOT, "a").await.ino, file.ino);
    assert_eq!(found(&vfs, Ino::ROOT, "b").await.ino, file.ino);
}

/// C6: a lookup below a directory that was being renamed found nothing, and this was cached for a
/// second.
#[tokio::test]
async fn a_look_up_below_a_renamed_directory_asks_by_the_new_path() {
    let (remote, faulty, vfs) = mounted(Config::default());
    remote.put_file("d/sub/f", "x");
    let d = found(&vfs, Ino::ROOT, "d").await;
    let sub = found(&vfs, d.ino, "sub").await;
    let renamed = faulty.hold_answer(Call::Rename, 1);
    let (from, to) = ((Ino::ROOT, &b"d"[..]), (Ino::ROOT, &b"e"[..]));
    let mut renaming = Box::pin(vfs.rename(from, to, RenameMode::Replace));
    assert!(!is_over(&mut renaming).await);
    let told = faulty.hold_answer(Call::Lstat, 1);
    let mut looking = Box::pin(found(&vfs, sub.ino, "f"));
    assert!(!is_over(&mut looking).await);
    renamed.release();
    renaming.await.unwrap();
    told.release();
    assert_eq!(looking.await.stat.attr.size, 1);
}

/// An open file is found by a handle that is still valid, even if an older one is not.
#[tokio::test]
async fn a_handle_from_before_a_lost_connection_does_not_hide_a_newer_one() {
    let (_, faulty, vfs) = mounted(uncached());
    let request = OpenRequest::plain(Access::ReadWrite);
    let (file, _) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    faulty.cut();
    faulty.restore_without_handles(Errno::ESTALE);
    let newer = open(&vfs, file.ino, Access::ReadWrite).await;
    vfs.unlink(Ino::ROOT, b"f").await.unwrap();
    write(&vfs, newer.handle, 0, b"12345").await;
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 5);
    let cut = AttrChange { size: Some(2), ..AttrChange::default() };
    assert_eq!(vfs.setattr(file.ino, cut, None).await.unwrap().attr.size, 2);
}

/// A2: a synchronous write whose caller was interrupted was still in flight, and not recorded.
#[tokio::test]
async fn an_interrupted_write_is_still_waited_for() {
    let (_, faulty, vfs) = mounted(Config { sync_writes: true, ..Config::default() });
    let request = OpenRequest::plain(Access::Write);
    let (file, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    let gate = faulty.hold(Call::Write, 1);
    let mut writing = Box::pin(vfs.write(opened.handle, 0, Bytes::from_static(b"12345")));
    assert!(!is_over(&mut writing).await);
    drop(writing);
    let stat = released(&gate, vfs.getattr(file.ino)).await.unwrap();
    assert_eq!(stat.attr.size, 5);
}

/// The error of a write that a caller waits for goes to that caller only.
#[tokio::test]
async fn the_error_of_a_page_written_back_is_told_at_once() {
    let (remote, faulty, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    remote.edit(|tree| tree.set_capacity(Some(0)));
    let gate = faulty.hold(Call::Write, 1);
    let page = vfs.write_back(opened.handle, 0, Bytes::from_static(b"page"));
    assert_eq!(released(&gate, page).await, Err(Errno::ENOSPC));
    assert_eq!(vfs.flush(opened.handle).await, Ok(()));
}

/// The kernel takes a page whose write-back has failed for clean, and gives the error to any close.
#[tokio::test]
async fn a_page_is_written_back_although_a_write_has_failed() {
    let (remote, faulty, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    faulty.fail(Call::Write, 1, Errno::ENOSPC);
    vfs.write(opened.handle, 0, Bytes::from_static(b"lost")).await.unwrap();
    vfs.write_back(opened.handle, 4, Bytes::from_static(b"page")).await.unwrap();
    assert_eq!(remote.content("f"), b"\0\0\0\0page");
    assert_eq!(vfs.flush(opened.handle).await, Err(Errno::ENOSPC));
}

/// Cached owners may be outdated: another machine has changed the owner since.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_owner_is_made_although_the_cached_owner_is_the_new_one() {
    let (remote, _, vfs) = mounted(Config { login: Some((0, 0)), ..Config::default() });
    remote.put_file("f", "content");
    remote.put_dir("d");
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(Ino::ROOT, b"new", 0o644, true, request).await.unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    for (name, handle) in [("f", None), ("d", None), ("new", Some(opened.handle))] {
        remote.set_mtime(name, LONG_AGO);
        let ino = found(&vfs, Ino::ROOT, name).await.ino;
        let gid = remote.attr(name).gid;
        let change = |gid| AttrChange { gid: Some(gid), ..AttrChange::default() };
        remote.setattr(&path(name), change(gid + 1)).await.unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
        let changed = vfs.setattr(ino, change(gid), handle).await.unwrap();
        assert_eq!((changed.attr.gid, remote.attr(name).gid), (gid, gid), "{name}");
    }
}

/// The size that the write would have made was shown.
#[tokio::test]
async fn a_write_that_fails_at_once_leaves_no_size_behind() {
    let (_, faulty, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (entry, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    faulty.fail(Call::Write, 1, Errno::EFBIG);
    let far = vfs.write(opened.handle, 1 << 50, Bytes::from_static(b"x")).await;
    assert_eq!(far, Err(Errno::EFBIG));
    let mtime = Some(Timestamp::from_secs(LONG_AGO));
    let change = AttrChange { mtime, ..AttrChange::default() };
    let changed = vfs.setattr(entry.ino, change, Some(opened.handle)).await.unwrap();
    assert_eq!(changed.attr.size, 0);
    assert_eq!(vfs.getattr(entry.ino).await.unwrap().attr.size, 0);
}

/// A log grew while its open was in flight, and another answer showed that first: the handle had
/// the known size, the open did not, and so the log was taken for two files.
#[tokio::test(start_paused = true)]
async fn an_open_that_is_answered_late_of_a_file_that_grows_is_of_that_file() {
    let (remote, faulty, vfs) = mounted(uncached());
    remote.put_file("log", "one");
    remote.set_mtime("log", LONG_AGO);
    let log = found(&vfs, Ino::ROOT, "log").await;
    let follower = open(&vfs, log.ino, Access::Read).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    let gate = faulty.hold_answer(Call::Open, 1);
    let mut late = Box::pin(vfs.open(log.ino, OpenRequest::plain(Access::Read)));
    assert!(!is_over(&mut late).await);
    tokio::time::advance(Duration::from_secs(1)).await;
    write_behind(&remote, "log", 3, b" two", LONG_AGO + 10);
    assert_eq!(vfs.getattr(log.ino).await.unwrap().attr.size, 7);
    let opened = released(&gate, late).await.expect("the same file");
    assert_eq!(read(&vfs, opened.handle).await, b"one two");
    assert_eq!(found(&vfs, Ino::ROOT, "log").await.ino, log.ino);
    // Another file is still distinguished from it, however late the answer.
    let gate = faulty.hold_answer(Call::Open, 1);
    remote.put_file("new", "one two three");
    remote.edit(|tree| tree.rename(&path("new"), &path("log"), RenameMode::Replace)).unwrap();
    let mut late = Box::pin(vfs.open(log.ino, OpenRequest::plain(Access::Read)));
    assert!(!is_over(&mut late).await);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(vfs.getattr(log.ino).await.unwrap().attr.size, 7, "by the handles that are open");
    assert_eq!(released(&gate, late).await.map(drop), Err(Errno::ESTALE));
    vfs.release(follower.handle);
    vfs.release(opened.handle);
}

/// A truncating open was answered after a second one, which had got the file that another machine
/// renamed to the name in between. The truncations kept the files from being compared: both became
/// one inode, which got the size of the file that had lost its name.
#[tokio::test(start_paused = true)]
async fn truncating_opens_around_a_replacement_are_of_one_file() {
    let (remote, faulty, vfs) = mounted(asking());
    remote.put_file("f", "replaced");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let truncating = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
    for is_first_closed in [false, true] {
        let gate = faulty.hold_answer(Call::Open, 1);
        let mut late = Box::pin(vfs.open(file.ino, truncating));
        assert!(!is_over(&mut late).await);
        remote.put_file("new", "new");
        remote.edit(|tree| tree.rename(&path("new"), &path("f"), RenameMode::Replace)).unwrap();
        let first = vfs.open(file.ino, truncating).await.unwrap();
        write(&vfs, first.handle, 0, b"of the first").await;
        vfs.flush(first.handle).await.unwrap();
        if is_first_closed {
            vfs.release(first.handle);
        }
        let opened = released(&gate, late).await.unwrap();
        write(&vfs, opened.handle, 0, b"late").await;
        vfs.flush(opened.handle).await.unwrap();
        assert_eq!(remote.content("f"), b"late");
        assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 4);
        assert_eq!(found(&vfs, Ino::ROOT, "f").await.ino, file.ino);
        vfs.release(opened.handle);
        if !is_first_closed {
            vfs.release(first.handle);
        }
    }
}

/// While a file was written to, an open by its name was not compared with it, and so a file that
/// had taken the name became the same inode.
#[tokio::test(start_paused = true)]
async fn what_replaces_a_file_that_is_being_written_is_another_inode() {
    let (remote, faulty, vfs) = mounted(asking());
    remote.put_file("log", "log");
    let log = found(&vfs, Ino::ROOT, "log").await;
    let writer = open(&vfs, log.ino, Access::Write).await;
    let reading = OpenRequest::plain(Access::Read);
    for is_replaced in [false, true] {
        let gate = faulty.hold(Call::Write, 1);
        write(&vfs, writer.handle, 3, b" of the writer").await;
        if is_replaced {
            remote.put_file("new", "new");
            let (from, to) = (path("new"), path("log"));
            remote.edit(|tree| tree.rename(&from, &to, RenameMode::Replace)).unwrap();
        }
        let mut opening = Box::pin(vfs.open(log.ino, reading));
        assert!(!is_over(&mut opening).await, "it is compared after the write");
        let opened = released(&gate, opening).await;
        assert_eq!(opened.err(), is_replaced.then_some(Errno::ESTALE));
        if let Ok(opened) = opened {
            assert_eq!(read(&vfs, opened.handle).await, b"log of the writer");
            vfs.release(opened.handle);
        }
    }
    let new = found(&vfs, Ino::ROOT, "log").await;
    assert_ne!(new.ino, log.ino);
    let opened = open(&vfs, new.ino, Access::Read).await;
    assert_eq!(read(&vfs, opened.handle).await, b"new");
    vfs.release(opened.handle);
    vfs.release(writer.handle);
}

/// A truncation, and the writes after it, kept a file that was opened by O_TRUNC from being
/// compared with the open file that had had the name.
#[tokio::test(start_paused = true)]
async fn what_is_opened_truncating_after_a_replacement_is_another_inode() {
    let truncating = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
    for creates in [false, true] {
        let (remote, _faulty, vfs) = mounted(asking());
        remote.put_file("log", "log");
        let log = found(&vfs, Ino::ROOT, "log").await;
        let writer = open(&vfs, log.ino, Access::ReadWrite).await;
        let create = || vfs.create(Ino::ROOT, b"log", 0o644, false, truncating);
        let (same, opened) = create().await.unwrap();
        assert_eq!(same.ino, log.ino);
        vfs.release(opened.handle);
        write(&vfs, writer.handle, 0, b"of the writer").await;
        vfs.fsync(writer.handle).await.unwrap();
        remote.put_file("new", "new");
        remote.edit(|tree| tree.rename(&path("new"), &path("log"), RenameMode::Replace)).unwrap();
        if creates {
            let (new, opened) = create().await.unwrap();
            assert_ne!(new.ino, log.ino);
            write(&vfs, opened.handle, 0, b"created").await;
            vfs.flush(opened.handle).await.unwrap();
            assert_eq!(remote.content("log"), b"created");
            vfs.release(opened.handle);
        } else {
            assert_eq!(vfs.open(log.ino, truncating).await.unwrap_err(), Errno::ESTALE);
        }
        assert_eq!(read(&vfs, writer.handle).await, b"of the writer");
        vfs.release(writer.handle);
    }
}

/// An open was answered after a second one, of the file that had taken the name. A third file with
/// the size and time of the first one had taken it by then: compared with the name, the first file
/// passed for the one of the inode, and a reader got pages of both.
#[tokio::test(start_paused = true)]
async fn an_open_answered_late_is_compared_with_the_open_file_and_not_with_the_name() {
    let (remote, faulty, vfs) = mounted(asking());
    let put = |content: &str| {
        remote.put_file("new", content);
        remote.set_mtime("new", 1_000_000_000);
        remote.edit(|tree| tree.rename(&path("new"), &path("f"), RenameMode::Replace)).unwrap();
    };
    put("longer1");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let reading = OpenRequest::plain(Access::Read);
    let gate = faulty.hold_answer(Call::Open, 1);
    let mut late = Box::pin(vfs.open(file.ino, reading));
    assert!(!is_over(&mut late).await);
    put("short");
    // The kernel has the size of the first file, so the first open is sent back to a lookup.
    assert_eq!(vfs.open(file.ino, reading).await.unwrap_err(), Errno::ESTALE);
    assert_eq!(found(&vfs, Ino::ROOT, "f").await.ino, file.ino);
    let opened = vfs.open(file.ino, reading).await.unwrap();
    put("longer2");
    assert_eq!(released(&gate, late).await.unwrap_err(), Errno::ESTALE);
    assert_eq!(read(&vfs, opened.handle).await, b"short");
    assert_ne!(found(&vfs, Ino::ROOT, "f").await.ino, file.ino);
    vfs.release(opened.handle);
}

/// A file whose size changes with each open was opened with the kernel's old size: the kernel
/// showed the rest of the last page as zeros.
#[tokio::test(start_paused = true)]
async fn an_open_with_a_wrong_size_in_the_kernel_bypasses_the_page_cache() {
    let (remote, _faulty, vfs) = mounted(asking());
    remote.put_file("f", "longest");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let reading = OpenRequest::plain(Access::Read);
    remote.put_file("f", "longer");
    assert_eq!(vfs.open(file.ino, reading).await.unwrap_err(), Errno::ESTALE);
    remote.put_file("f", "short");
    let opened = vfs.open(file.ino, reading).await.unwrap();
    assert!(opened.direct_io);
    assert_eq!(read(&vfs, opened.handle).await, b"short");
    vfs.release(opened.handle);
    // The kernel looks the name up, and gets the present size.
    found(&vfs, Ino::ROOT, "f").await;
    // It may drop that reply, since it has received another one meanwhile.
    let opened = vfs.open(file.ino, reading).await.unwrap();
    assert!(opened.direct_io && opened.invalidate_attributes);
    vfs.release(opened.handle);
    let opened = vfs.open(file.ino, reading).await.unwrap();
    assert!(!opened.direct_io);
    vfs.release(opened.handle);
}

/// A file was cut, and another process has requested its attributes while a read was in flight,
/// which were cached: the kernel has taken them, so it ignores the end of the data.
#[tokio::test(start_paused = true)]
async fn a_short_read_never_shows_zeros_up_to_an_older_size() {
    for direct in [false, true] {
        let (remote, faulty, vfs) = mounted(Config::default());
        remote.put_file("f", "much longer");
        let file = found(&vfs, Ino::ROOT, "f").await;
        let request = OpenRequest { direct, ..OpenRequest::plain(Access::Read) };
        let opened = vfs.open(file.ino, request).await.unwrap();
        let gate = faulty.hold_answer(Call::Read, 1);
        let mut reading = Box::pin(vfs.read(opened.handle, 0, 4096));
        remote.put_file("f", "short");
        assert!(!is_over(&mut reading).await);
        assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 11);
        gate.release();
        match (direct, reading.await) {
            (false, answer) => assert_eq!(answer.unwrap_err(), Errno::ESTALE),
            // No page is filled.
            (true, data) => assert_eq!(data.unwrap().to_vec(), b"short"),
        }
        vfs.release(opened.handle);
    }
}

/// Two reads of a file that was cut are in flight, as when the kernel reads ahead on both sides of a
/// cached page: it uses the size that the first reply shows, and ignores that of the second.
#[tokio::test(start_paused = true)]
async fn a_short_read_never_shows_zeros_up_to_the_end_of_another_one() {
    let (remote, faulty, vfs) = mounted(asking());
    remote.put_file("f", "much longer");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let opened = open(&vfs, file.ino, Access::Read).await;
    remote.put_file("f", "cut");
    let gate = faulty.hold_answer(Call::Read, 1);
    let mut first = Box::pin(vfs.read(opened.handle, 0, 8));
    assert!(!is_over(&mut first).await);
    assert_eq!(vfs.read(opened.handle, 8, 8).await.unwrap().to_vec(), b"");
    gate.release();
    assert_eq!(first.await.unwrap_err(), Errno::ESTALE);
    // The kernel requests the page again.
    assert_eq!(read(&vfs, opened.handle).await, b"cut");
    vfs.release(opened.handle);
}

/// A file ends before a size that the kernel has got while a read was in flight: the kernel showed
/// zeros in between.
#[tokio::test(start_paused = true)]
async fn a_short_read_never_shows_zeros_up_to_a_newer_size() {
    let (remote, faulty, vfs) = mounted(uncached());
    remote.put_file("f", "short");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let opened = open(&vfs, file.ino, Access::Read).await;
    let gate = faulty.hold_answer(Call::Read, 1);
    let mut reading = Box::pin(vfs.read(opened.handle, 0, 4096));
    assert!(!is_over(&mut reading).await);
    remote.put_file("f", "much longer");
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 11);
    remote.put_file("f", "short");
    gate.release();
    assert_eq!(reading.await.unwrap_err(), Errno::ESTALE);
    // The kernel corrects a size that it had before the read.
    assert_eq!(read(&vfs, opened.handle).await, b"short");
    vfs.release(opened.handle);
}
