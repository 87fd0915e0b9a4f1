//! The promises of `docs/semantics.md` that need no kernel and no network, each quoted by its
//! number.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Errno, FileKind, RenameMode, Timestamp};
use bytes::Bytes;
use testkit::{Call, MemRemote};
use vfs::{
    Config, Consistency, Entry, EntrySink, Handle, Ino, ListedEntry, LookupResult, OpenRequest, Vfs,
};

/// A configuration in which every open sends a request.
fn asking() -> Config {
    Config { open_revalidate: Duration::ZERO, ..Config::default() }
}

/// A time long past, not in the present second.
const LONG_AGO: i64 = 1_000_000_000;

fn mounted(config: Config) -> (Arc<MemRemote>, Vfs) {
    let remote = Arc::new(MemRemote::new());
    (remote.clone(), Vfs::new(remote, config))
}

async fn found(vfs: &Vfs, parent: Ino, name: &str) -> Entry {
    match vfs.lookup(parent, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry,
        LookupResult::Absent(_) => panic!("{name} is absent"),
    }
}

async fn absent(vfs: &Vfs, parent: Ino, name: &str) -> bool {
    matches!(vfs.lookup(parent, name.as_bytes()).await.unwrap(), LookupResult::Absent(_))
}

async fn open(vfs: &Vfs, ino: Ino, access: Access) -> vfs::Opened {
    vfs.open(ino, OpenRequest::plain(access)).await.unwrap()
}

async fn read(vfs: &Vfs, handle: Handle) -> Vec<u8> {
    vfs.read(handle, 0, 1 << 20).await.unwrap().to_vec()
}

async fn write(vfs: &Vfs, handle: Handle, offset: u64, data: &'static [u8]) {
    vfs.write(handle, offset, Bytes::from_static(data)).await.unwrap();
}

#[derive(Default)]
struct Names {
    names: Vec<String>,
    entries: Vec<Entry>,
    next: u64,
    room: usize,
}

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        self.names.len() < self.room
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        self.names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        self.entries.extend(entry.entry);
        self.next = entry.next_offset;
    }
}

async fn list(vfs: &Vfs, handle: vfs::DirHandle, offset: u64, room: usize) -> Names {
    let mut names = Names { room, ..Names::default() };
    vfs.readdir(handle, offset, true, &mut names).await.unwrap();
    names
}

/// A2: within one mount a read sees every write that returned before it, through any handle; so do
/// stat and truncate.
#[tokio::test]
async fn a2_reads_stats_and_truncates_wait_for_writes_on_their_way() {
    let remote = Arc::new(MemRemote::new());
    remote.put_file("f", "old old");
    let faulty = Arc::new(testkit::FaultyRemote::new(remote.clone()));
    let vfs = Vfs::new(faulty.clone(), Config::default());
    let file = found(&vfs, Ino::ROOT, "f").await;
    let writer = open(&vfs, file.ino, Access::Write).await;
    let reader = open(&vfs, file.ino, Access::Read).await;

    let gate = faulty.hold(Call::Write, 1);
    write(&vfs, writer.handle, 0, b"new").await;
    assert_eq!(remote.content("f"), b"old old", "acknowledged, and still in flight");
    let tail = vfs.read(reader.handle, 3, 4).await.unwrap();
    assert_eq!(tail.to_vec(), b" old", "a read of other bytes does not wait");
    assert_eq!(released(&gate, read(&vfs, reader.handle)).await, b"new old");

    let gate = faulty.hold(Call::Write, 1);
    write(&vfs, writer.handle, 7, b"!").await;
    let stat = released(&gate, vfs.getattr(file.ino)).await.unwrap();
    assert_eq!(stat.attr.size, 8);

    let gate = faulty.hold(Call::Write, 1);
    write(&vfs, writer.handle, 8, b"?").await;
    let cut = AttrChange { size: Some(3), ..AttrChange::default() };
    let stat = released(&gate, vfs.setattr(file.ino, cut, None)).await.unwrap();
    assert_eq!(stat.attr.size, 3);
    assert_eq!(remote.content("f"), b"new");
}

/// The result of `operation`, which has to wait until `gate` is released.
async fn released<T>(gate: &testkit::faulty::Gate, operation: impl Future<Output = T>) -> T {
    let mut operation = Box::pin(operation);
    let early = std::future::poll_fn(|context| {
        std::task::Poll::Ready(operation.as_mut().poll(context).is_ready())
    });
    assert!(!early.await, "it did not wait");
    gate.release();
    operation.await
}

/// A3: an acknowledged write that fails is reported by the next close, with its reason, once.
#[tokio::test]
async fn a3_a_full_disk_is_reported_at_close_and_only_once() {
    let (remote, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (_, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    remote.set_pending(true);
    remote.edit(|tree| tree.set_capacity(Some(4)));
    write(&vfs, opened.handle, 0, b"too much").await;
    assert_eq!(vfs.flush(opened.handle).await, Err(Errno::ENOSPC));
    assert_eq!(vfs.flush(opened.handle).await, Ok(()));
    write(&vfs, opened.handle, 0, b"too much").await;
    assert_eq!(vfs.fsync(opened.handle).await, Err(Errno::ENOSPC));
}

/// A3, A4: an fsync reports every failed write to the file, through any handle.
#[tokio::test]
async fn a4_fsync_tells_of_writes_through_other_handles() {
    let (remote, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::Write);
    let (entry, writer) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    let other = open(&vfs, entry.ino, Access::Read).await;
    remote.set_pending(true);
    remote.edit(|tree| tree.set_capacity(Some(4)));
    write(&vfs, writer.handle, 0, b"too much").await;
    assert_eq!(vfs.fsync(other.handle).await, Err(Errno::ENOSPC));
    assert_eq!(vfs.fsync(other.handle).await, Ok(()));
    assert_eq!(vfs.fsync(writer.handle).await, Err(Errno::ENOSPC));
    assert_eq!(vfs.fsync(writer.handle).await, Ok(()));
    let later = open(&vfs, entry.ino, Access::Read).await;
    assert_eq!(vfs.fsync(later.handle).await, Ok(()));
}

/// A6: an open file stays the file that it was; a new open of its name gets the new one.
#[tokio::test]
async fn a6_a_replaced_file_is_another_inode() {
    let (remote, vfs) = mounted(asking());
    remote.put_file("f", "old");
    remote.set_mtime("f", LONG_AGO);
    let old = found(&vfs, Ino::ROOT, "f").await;
    let reader = open(&vfs, old.ino, Access::Read).await;
    assert_eq!(read(&vfs, reader.handle).await, b"old");

    remote.put_file("g", "newer");
    remote.move_to("g", "f");
    let again = vfs.open(old.ino, OpenRequest::plain(Access::Read)).await;
    assert_eq!(again, Err(Errno::ESTALE), "the kernel is to look the name up again");
    let new = found(&vfs, Ino::ROOT, "f").await;
    assert_ne!(new.ino, old.ino);
    let new_reader = open(&vfs, new.ino, Access::Read).await;
    assert!(!new_reader.keep_cache);
    assert_eq!(read(&vfs, new_reader.handle).await, b"newer");
    assert_eq!(read(&vfs, reader.handle).await, b"old");
    assert_eq!(vfs.getattr(old.ino).await.unwrap().attr.size, 3);
}

/// A6, detected by a lookup instead of an open, and not for a file that only grew.
#[tokio::test]
async fn a6_a_file_that_grew_is_still_the_same() {
    let config = Config { files: vfs::Timeout::fixed(Duration::ZERO), ..asking() };
    let (remote, vfs) = mounted(config);
    remote.put_file("log", "one");
    let log = found(&vfs, Ino::ROOT, "log").await;
    let reader = open(&vfs, log.ino, Access::Read).await;
    let change_in_place = || {
        remote.edit(|tree| {
            let path = testkit::path("log");
            let ino = tree.lookup(&path, testkit::tree::Follow::No).unwrap();
            tree.write(ino, 3, b" two").unwrap();
        });
    };
    change_in_place();
    assert_eq!(found(&vfs, Ino::ROOT, "log").await.ino, log.ino);
    assert_eq!(read(&vfs, reader.handle).await, b"one two");
    remote.put_file("other", "x");
    remote.move_to("other", "log");
    assert_ne!(found(&vfs, Ino::ROOT, "log").await.ino, log.ino);
}

/// A6, for two files that cannot be distinguished: the same size, within the same second. They
/// share no pages while both may be open; after a local change there is no doubt.
#[tokio::test]
async fn a6_files_that_cannot_be_told_apart_share_no_pages() {
    let (remote, vfs) = mounted(asking());
    let now = Timestamp::now().secs;
    for (name, content) in [("f", "old"), ("g", "new")] {
        remote.put_file(name, content);
        remote.set_mtime(name, now);
    }
    let file = found(&vfs, Ino::ROOT, "f").await;
    let first = open(&vfs, file.ino, Access::Read).await;
    assert!(!first.direct_io);
    assert_eq!(read(&vfs, first.handle).await, b"old");
    remote.move_to("g", "f");
    for _ in 0..2 {
        let second = open(&vfs, file.ino, Access::Read).await;
        assert!(second.direct_io && second.keep_cache, "{second:?}");
        assert_eq!(read(&vfs, second.handle).await, b"new");
        assert_eq!(read(&vfs, first.handle).await, b"old");
        vfs.release(second.handle);
    }
    vfs.release(first.handle);
    let alone = open(&vfs, file.ino, Access::Read).await;
    assert!(!alone.direct_io && !alone.keep_cache, "{alone:?}");

    let request = OpenRequest::plain(Access::ReadWrite);
    let (own, opened) = vfs.create(Ino::ROOT, b"own", 0o644, true, request).await.unwrap();
    write(&vfs, opened.handle, 0, b"own").await;
    vfs.flush(opened.handle).await.unwrap();
    for _ in 0..3 {
        assert!(!open(&vfs, own.ino, Access::Read).await.direct_io, "our own change");
    }
}

/// A7: a file that was unlinked while open stays usable.
#[tokio::test]
async fn a7_an_unlinked_file_lives_on_for_who_has_it_open() {
    let (_, vfs) = mounted(Config::default());
    let request = OpenRequest::plain(Access::ReadWrite);
    let (entry, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    vfs.unlink(Ino::ROOT, b"f").await.unwrap();
    assert!(absent(&vfs, Ino::ROOT, "f").await);
    write(&vfs, opened.handle, 0, b"still here").await;
    assert_eq!(read(&vfs, opened.handle).await, b"still here");
    let stat = vfs.getattr(entry.ino).await.unwrap();
    assert_eq!((stat.attr.size, stat.nlink), (10, 0));
    let cut = AttrChange { size: Some(5), ..AttrChange::default() };
    assert_eq!(vfs.setattr(entry.ino, cut, None).await.unwrap().attr.size, 5);
    vfs.release(opened.handle);
    vfs.forget(entry.ino, 1);
    assert_eq!((vfs.inodes(), vfs.handles()), (1, 0));
}

/// A removed directory that a process has open contains nothing that an fsync could save.
#[tokio::test]
async fn the_fsync_of_a_removed_directory_succeeds() {
    let (remote, vfs) = mounted(Config::default());
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    vfs.rmdir(Ino::ROOT, b"d").await.unwrap();
    assert_eq!(vfs.fsyncdir(dir.ino).await, Ok(()));
    // Removed by another machine: what was created in it may be lost.
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    remote.remove("d");
    assert!(vfs.fsyncdir(dir.ino).await.is_err());
}

/// A9: unreachable is neither empty nor absent.
#[tokio::test]
async fn a9_an_unreachable_server_is_no_empty_directory() {
    let remote = Arc::new(MemRemote::new());
    remote.put_file("d/f", "x");
    let faulty = Arc::new(testkit::FaultyRemote::new(remote));
    let vfs = Vfs::new(faulty.clone(), Config::default());
    let dir = found(&vfs, Ino::ROOT, "d").await;
    let handle = vfs.opendir(dir.ino).await.unwrap();
    faulty.cut();
    assert_eq!(vfs.lookup(dir.ino, b"f").await, Err(Errno::EHOSTDOWN));
    let mut names = Names { room: 10, ..Names::default() };
    assert_eq!(vfs.readdir(handle, 0, true, &mut names).await, Err(Errno::EHOSTDOWN));
    assert!(names.names.is_empty());
}

/// A10: offsets of an open directory stay valid while it changes.
#[tokio::test]
async fn a10_a_listing_survives_changes_of_its_directory() {
    let (remote, vfs) = mounted(Config::default());
    for index in 0..1000 {
        remote.put_file(&format!("d/f{index:04}"), "");
    }
    let dir = found(&vfs, Ino::ROOT, "d").await;
    let handle = vfs.opendir(dir.ino).await.unwrap();
    let mut seen = Vec::new();
    let mut offset = 0;
    loop {
        let part = list(&vfs, handle, offset, 7).await;
        if part.names.is_empty() {
            break;
        }
        offset = part.next;
        let last = part.names.last().unwrap().clone();
        if last.starts_with('f') {
            vfs.unlink(dir.ino, last.as_bytes()).await.unwrap();
            remote.put_file(&format!("d/new-{last}"), "");
        }
        seen.extend(part.names.into_iter().filter(|name| name.starts_with('f')));
    }
    seen.sort();
    let all: Vec<String> = (0..1000).map(|index| format!("f{index:04}")).collect();
    assert_eq!(seen, all);
    let again = list(&vfs, handle, 0, 10_000).await;
    assert!(again.names.iter().any(|name| name.starts_with("new-")), "begun anew");
    assert_eq!(again.names[..2], [".", ".."]);
}

/// A10, C6: the first read of an open directory shows local changes since it was opened, and, after
/// the time-out, changes by others: rewinddir(3) begins a listing, also the first one.
#[tokio::test(start_paused = true)]
async fn a10_a_listing_begins_with_its_first_read() {
    let (remote, vfs) = mounted(Config::default());
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap().ino;
    let request = OpenRequest::plain(Access::Write);
    for (made, name) in ["a", "b"].into_iter().enumerate() {
        // The first listing sends no request: this mount created the directory.
        let handle = vfs.opendir(dir).await.unwrap();
        let (_, opened) = vfs.create(dir, name.as_bytes(), 0o600, true, request).await.unwrap();
        vfs.release(opened.handle);
        let names = list(&vfs, handle, 0, 10).await.names;
        assert_eq!(names.len(), 2 + made + 1, "{names:?}");
        assert!(names.iter().any(|shown| shown == name), "{names:?}");
        vfs.releasedir(handle);
    }
    let handle = vfs.opendir(dir).await.unwrap();
    remote.put_file("d/elsewhere", "");
    tokio::time::advance(Duration::from_secs(21)).await;
    let names = list(&vfs, handle, 0, 10).await.names;
    assert!(names.iter().any(|shown| shown == "elsewhere"), "{names:?}");
}

/// The memory of a listing is bounded, since a server may list for ever.
#[tokio::test]
async fn a_very_long_listing_is_not_kept_whole() {
    const FILES: usize = (1 << 17) + 5_000;
    let (remote, vfs) = mounted(Config::default());
    remote.edit(|tree| {
        for index in 0..FILES {
            let path = testkit::path(&format!("f{index}"));
            let create = base::Create::Exclusive(0o644);
            tree.open_or_create(&path, testkit::tree::Follow::No, create).unwrap();
        }
    });
    let handle = vfs.opendir(Ino::ROOT).await.unwrap();
    let (mut seen, mut offset, mut early) = (0, 0, 0);
    loop {
        let mut names = Names { room: 1000, ..Names::default() };
        vfs.readdir(handle, offset, false, &mut names).await.unwrap();
        if names.names.is_empty() {
            break;
        }
        seen += names.names.len();
        offset = names.next;
        early = if early == 0 { offset } else { early };
    }
    assert_eq!(seen, FILES + 2);
    let mut names = Names { room: 1000, ..Names::default() };
    assert_eq!(vfs.readdir(handle, early, false, &mut names).await, Err(Errno::EINVAL));
    vfs.readdir(handle, offset - 10, false, &mut names).await.unwrap();
    assert_eq!(names.names.len(), 10);
    assert_eq!(list(&vfs, handle, 0, 5).await.names[..2], [".", ".."]);
}

/// C1, C2: the content of an unchanged file is kept over opens, that of a changed one is not.
#[tokio::test(start_paused = true)]
async fn c2_pages_are_kept_only_while_size_and_time_are_the_same() {
    let (remote, vfs) = mounted(asking());
    remote.put_file("f", "12345");
    remote.set_mtime("f", LONG_AGO);
    let file = found(&vfs, Ino::ROOT, "f").await;
    let reopen = async || {
        let request = OpenRequest::plain(Access::Read);
        let opened = match vfs.open(file.ino, request).await {
            // As the kernel does to learn the new size.
            Err(Errno::ESTALE) => {
                assert_eq!(found(&vfs, Ino::ROOT, "f").await.ino, file.ino);
                vfs.open(file.ino, request).await
            }
            opened => opened,
        };
        let opened = opened.unwrap();
        vfs.release(opened.handle);
        opened.keep_cache
    };
    assert!(!reopen().await, "nothing was read yet");
    assert!(reopen().await);
    remote.set_mtime("f", LONG_AGO + 1);
    assert!(!reopen().await);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(reopen().await);
    remote.put_file("f", "123456");
    remote.set_mtime("f", LONG_AGO + 1);
    assert!(!reopen().await);
}

/// C2: an open costs one call of the remote, and so does a close after writes.
#[tokio::test]
async fn c2_an_open_asks_the_server_once() {
    let (remote, vfs) = mounted(asking());
    remote.put_file("f", "x");
    let file = found(&vfs, Ino::ROOT, "f").await;
    for _ in 0..3 {
        remote.reset_calls();
        let opened = open(&vfs, file.ino, Access::Read).await;
        vfs.flush(opened.handle).await.unwrap();
        vfs.release(opened.handle);
        assert_eq!((remote.calls(Call::Open), remote.round_trips()), (1, 1));
    }
}

/// C3: content read within the second of its change is not trusted.
#[tokio::test(start_paused = true)]
async fn c3_a_second_change_in_the_same_second_is_seen() {
    let (remote, vfs) = mounted(asking());
    let now = Timestamp::now().secs;
    remote.put_file("f", "one");
    remote.set_mtime("f", now);
    let file = found(&vfs, Ino::ROOT, "f").await;
    let first = open(&vfs, file.ino, Access::Read).await;
    assert_eq!(read(&vfs, first.handle).await, b"one");
    vfs.release(first.handle);
    remote.put_file("f", "two");
    remote.set_mtime("f", now);
    assert!(!open(&vfs, file.ino, Access::Read).await.keep_cache);
}

/// C4, C5: an answer is valid for its time-out, and the kernel gets no longer one.
#[tokio::test(start_paused = true)]
async fn c4_a_change_is_seen_after_the_time_out() {
    let (remote, vfs) = mounted(Config::default());
    remote.put_file("f", "x");
    remote.set_perm("f", 0o644);
    let file = found(&vfs, Ino::ROOT, "f").await;
    assert_eq!((file.ttl, file.stat.ttl), (Duration::from_secs(1), Duration::from_secs(1)));
    remote.set_perm("f", 0o600);
    tokio::time::advance(Duration::from_millis(900)).await;
    let stat = vfs.getattr(file.ino).await.unwrap();
    assert_eq!((stat.attr.perm, stat.ttl), (0o644, Duration::from_millis(100)));
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.perm, 0o600);
    remote.remove("f");
    tokio::time::advance(Duration::from_secs(20)).await;
    let LookupResult::Absent(ttl) = vfs.lookup(Ino::ROOT, b"f").await.unwrap() else {
        panic!("there")
    };
    assert_eq!(ttl, Duration::from_secs(1));
}

/// C6: a change made through this mount is seen by it at once.
#[tokio::test]
async fn c6_own_changes_are_seen_at_once() {
    let (_, vfs) = mounted(Config::default());
    assert!(absent(&vfs, Ino::ROOT, "d").await);
    let dir = vfs.mkdir(Ino::ROOT, b"d", 0o755).await.unwrap();
    assert_eq!(found(&vfs, Ino::ROOT, "d").await.ino, dir.ino);
    let request = OpenRequest::plain(Access::Write);
    let (file, opened) = vfs.create(dir.ino, b"f", 0o600, true, request).await.unwrap();
    write(&vfs, opened.handle, 0, b"content").await;
    vfs.flush(opened.handle).await.unwrap();
    assert_eq!(found(&vfs, dir.ino, "f").await.stat.attr.size, 7);
    vfs.rename((dir.ino, b"f"), (Ino::ROOT, b"g"), RenameMode::Replace).await.unwrap();
    assert!(absent(&vfs, dir.ino, "f").await);
    let moved = found(&vfs, Ino::ROOT, "g").await;
    assert_eq!((moved.ino, moved.stat.number), (file.ino, file.stat.number));
    let chmod = AttrChange { perm: Some(0o640), ..AttrChange::default() };
    assert_eq!(vfs.setattr(file.ino, chmod, None).await.unwrap().attr.perm, 0o640);
    vfs.rmdir(Ino::ROOT, b"d").await.unwrap();
    assert!(absent(&vfs, Ino::ROOT, "d").await);
}

/// S1: under `strict` each call is a request to the server.
#[tokio::test]
async fn s1_strict_caches_nothing() {
    let config = Config { consistency: Consistency::Strict, ..Config::default() };
    let (remote, vfs) = mounted(config);
    remote.put_file("f", "x");
    let file = found(&vfs, Ino::ROOT, "f").await;
    assert_eq!((file.ttl, file.stat.ttl), (Duration::ZERO, Duration::ZERO));
    remote.reset_calls();
    vfs.getattr(file.ino).await.unwrap();
    vfs.getattr(file.ino).await.unwrap();
    found(&vfs, Ino::ROOT, "f").await;
    assert_eq!(remote.calls(Call::Lstat), 3);
    assert!(open(&vfs, file.ino, Access::Read).await.direct_io);
}

/// I1: under `immutable` cached data is valid for ever.
#[tokio::test(start_paused = true)]
async fn i1_immutable_asks_once() {
    let config = Config { consistency: Consistency::Immutable, ..Config::default() };
    let (remote, vfs) = mounted(config);
    remote.put_file("f", "x");
    let file = found(&vfs, Ino::ROOT, "f").await;
    remote.remove("f");
    remote.reset_calls();
    tokio::time::advance(Duration::from_secs(30 * 24 * 3600)).await;
    assert_eq!(found(&vfs, Ino::ROOT, "f").await.ino, file.ino);
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 1);
    assert_eq!(remote.round_trips(), 0);
    // An open has to be sent to the server, but its answer changes nothing.
    remote.put_file("f", "longer");
    let opened = open(&vfs, file.ino, Access::Read).await;
    assert!(opened.keep_cache && !opened.direct_io);
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.size, 1);
}

/// Inodes: two names linked through this mount are one inode with the right link count.
#[tokio::test]
async fn links_made_here_share_an_inode() {
    let (_, vfs) = mounted(Config::default());
    let file = vfs.mknod(Ino::ROOT, b"a", FileKind::Regular, 0o644, (0, 0)).await.unwrap();
    let link = vfs.link(file.ino, Ino::ROOT, b"b").await.unwrap();
    assert_eq!((link.ino, link.stat.nlink), (file.ino, 2));
    assert_eq!(found(&vfs, Ino::ROOT, "b").await.stat.number, file.stat.number);
    vfs.unlink(Ino::ROOT, b"a").await.unwrap();
    let left = found(&vfs, Ino::ROOT, "b").await;
    assert_eq!((left.ino, left.stat.nlink), (file.ino, 1));
    vfs.rename((Ino::ROOT, b"b"), (Ino::ROOT, b"a"), RenameMode::Replace).await.unwrap();
    assert_eq!(found(&vfs, Ino::ROOT, "a").await.ino, file.ino);
}

/// Inodes: when one of two linked names becomes another file on the server, they are two.
#[tokio::test]
async fn linked_names_that_lead_to_different_files_are_parted() {
    let config = Config { files: vfs::Timeout::fixed(Duration::ZERO), ..asking() };
    let (remote, vfs) = mounted(config);
    remote.put_file("a", "same");
    let file = found(&vfs, Ino::ROOT, "a").await;
    vfs.link(file.ino, Ino::ROOT, b"b").await.unwrap();
    remote.remove("b");
    remote.put_file("b", "another");
    let b = found(&vfs, Ino::ROOT, "b").await;
    let opened = vfs.open(b.ino, OpenRequest::plain(Access::Read)).await;
    let opened = match opened {
        Err(Errno::ESTALE) => {
            let again = found(&vfs, Ino::ROOT, "b").await;
            open(&vfs, again.ino, Access::Read).await
        }
        opened => opened.unwrap(),
    };
    assert_eq!(read(&vfs, opened.handle).await, b"another");
    let a = found(&vfs, Ino::ROOT, "a").await;
    let opened = vfs.open(a.ino, OpenRequest::plain(Access::Read)).await.unwrap();
    assert_eq!(read(&vfs, opened.handle).await, b"same");
}

/// A listing with attributes replaces lookups of all names, without further calls.
#[tokio::test]
async fn a_listing_answers_look_ups() {
    let (remote, vfs) = mounted(Config::default());
    for index in 0..300 {
        remote.put_file(&format!("f{index}"), "abc");
    }
    let handle = vfs.opendir(Ino::ROOT).await.unwrap();
    let listed = list(&vfs, handle, 0, 1000).await;
    assert_eq!(listed.names.len(), 102, "one batch at a time");
    assert_eq!(listed.entries.len(), 100);
    remote.reset_calls();
    let first = listed.entries[0];
    assert_eq!(vfs.getattr(first.ino).await.unwrap().attr.size, 3);
    assert_eq!(found(&vfs, Ino::ROOT, &listed.names[2]).await.ino, first.ino);
    assert_eq!(remote.round_trips(), 0);
    vfs.releasedir(handle);
    vfs.forget(first.ino, 1);
    for entry in listed.entries {
        vfs.forget(entry.ino, 1);
    }
    assert_eq!((vfs.inodes(), vfs.handles(), remote.open_handles()), (1, 0, 0));
}

/// A listing must not bring back the state before a local change.
#[tokio::test]
async fn a_listing_begun_before_a_write_does_not_tell_the_old_size() {
    let (remote, vfs) = mounted(Config::default());
    remote.put_file("f", "1");
    let file = found(&vfs, Ino::ROOT, "f").await;
    let handle = vfs.opendir(Ino::ROOT).await.unwrap();
    let opened = open(&vfs, file.ino, Access::Write).await;
    write(&vfs, opened.handle, 0, b"12345").await;
    let listed = list(&vfs, handle, 0, 10).await;
    assert_eq!(listed.names, [".", "..", "f"]);
    assert!(listed.entries.is_empty(), "its attributes may be older than the write");
}

/// A future that is dropped at any point leaves neither a handle nor a lookup behind.
#[tokio::test(start_paused = true)]
async fn dropped_operations_leave_nothing_behind() {
    for polls in 0..12 {
        let (remote, vfs) = mounted(Config::default());
        remote.put_file("d/f", "x");
        remote.set_pending(true);
        let operations = async {
            let dir = found(&vfs, Ino::ROOT, "d").await;
            let undo_dir = scopeguard(|| vfs.forget(dir.ino, 1));
            let file = found(&vfs, dir.ino, "f").await;
            let undo_file = scopeguard(|| vfs.forget(file.ino, 1));
            let opened = open(&vfs, file.ino, Access::ReadWrite).await;
            let undo_open = scopeguard(|| vfs.release(opened.handle));
            write(&vfs, opened.handle, 0, b"y").await;
            vfs.flush(opened.handle).await.unwrap();
            drop((undo_open, undo_file, undo_dir));
        };
        let mut operations = Box::pin(operations);
        for _ in 0..polls {
            if futures_poll(&mut operations).await {
                break;
            }
        }
        drop(operations);
        vfs.drain().await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!((vfs.inodes(), vfs.handles(), remote.open_handles()), (1, 0, 0), "{polls}");
    }
}

fn scopeguard(undo: impl FnMut()) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(undo)
}

/// Polls once; `true` when the future is ready.
async fn futures_poll(future: &mut (impl Future<Output = ()> + Unpin)) -> bool {
    let mut future = std::pin::Pin::new(future);
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready()))
        .await
}
