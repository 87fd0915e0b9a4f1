//! Deferred opens, and attributes that are set without waiting: the promises of `docs/semantics.md`
//! about them, each quoted by its number.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Access, AttrChange, Errno, RenameMode, SetXattr, Timestamp};
use bytes::Bytes;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, FaultyRemote, MemRemote};
use vfs::{
    Config, Consistency, Entry, Handle, Ino, Invalidate, LookupResult, OpenRequest, Opened, Vfs,
};

const LONG_AGO: i64 = 1_000_000_000;

#[derive(Default)]
struct Invalidated(Mutex<Vec<Ino>>);

impl Invalidate for Invalidated {
    fn content(&self, ino: Ino) {
        self.0.lock().unwrap().push(ino);
    }
}

struct Mount {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    invalidated: Arc<Invalidated>,
    vfs: Vfs,
}

fn mounted(config: Config) -> Mount {
    mounted_on(MemRemote::new(), config)
}

fn mounted_on(remote: MemRemote, config: Config) -> Mount {
    let remote = Arc::new(remote);
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let invalidated = Arc::<Invalidated>::default();
    let vfs = Vfs::new(faulty.clone(), config);
    vfs.set_invalidate(invalidated.clone());
    Mount { remote, faulty, invalidated, vfs }
}

fn config() -> Config {
    Config { login: Some((0, 0)), ..Config::default() }
}

async fn found(vfs: &Vfs, name: &str) -> Entry {
    match vfs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry,
        LookupResult::Absent(_) => panic!("{name} is absent"),
    }
}

fn put(remote: &MemRemote, content: &str, mtime: i64) {
    remote.put_file("f", content);
    remote.set_mtime("f", mtime);
}

async fn open(vfs: &Vfs, ino: Ino) -> Opened {
    vfs.open(ino, OpenRequest::plain(Access::Read)).await.unwrap()
}

/// An open of a file whose pages the kernel has, so that the open is deferred.
async fn granted(vfs: &Vfs, remote: &MemRemote, ino: Ino) -> Opened {
    vfs.release(open(vfs, ino).await.handle);
    remote.reset_calls();
    let opened = open(vfs, ino).await;
    assert!(opened.keep_cache && remote.round_trips() == 0);
    opened
}

async fn read(vfs: &Vfs, handle: Handle) -> Vec<u8> {
    vfs.read(handle, 0, 1000).await.unwrap().to_vec()
}

/// C1: *B* reads what *A* has closed at least `open_revalidate` before *B*'s open.
#[tokio::test(start_paused = true)]
async fn c1_what_was_closed_a_second_ago_is_read() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "old", LONG_AGO);
    let file = found(&vfs, "f").await;
    vfs.release(open(&vfs, file.ino).await.handle);
    put(&remote, "new", LONG_AGO + 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    let opened = open(&vfs, file.ino).await;
    assert!(!opened.keep_cache);
    assert_eq!(read(&vfs, opened.handle).await, b"new");
}

/// C1, at once with `open_revalidate=0`.
#[tokio::test(start_paused = true)]
async fn c1_what_was_closed_is_read_at_once_when_each_open_asks() {
    let Mount { remote, vfs, .. } = mounted(Config { open_revalidate: Duration::ZERO, ..config() });
    put(&remote, "old", LONG_AGO);
    let file = found(&vfs, "f").await;
    vfs.release(open(&vfs, file.ino).await.handle);
    put(&remote, "new", LONG_AGO + 1);
    let opened = open(&vfs, file.ino).await;
    assert_eq!((opened.keep_cache, read(&vfs, opened.handle).await), (false, b"new".to_vec()));
}

/// C1: the kernel may have dropped the reply with the new size, as long as it may use the old one.
#[tokio::test(start_paused = true)]
async fn c1_a_size_that_the_kernel_may_have_dropped_is_requested_again() {
    let Mount { remote, vfs, .. } = mounted(Config { open_revalidate: Duration::ZERO, ..config() });
    put(&remote, "old", LONG_AGO);
    let file = found(&vfs, "f").await;
    put(&remote, "longer", LONG_AGO + 1);
    tokio::time::advance(file.stat.ttl).await;
    found(&vfs, "f").await;
    let opened = open(&vfs, file.ino).await;
    assert!(opened.invalidate_attributes && !opened.keep_cache);
    // The kernel may also drop the reply that brings them, and use the old size for its pages.
    assert!(opened.direct_io);
    let again = open(&vfs, file.ino).await;
    assert!(!again.invalidate_attributes, "the kernel has requested them again");
    assert!(!again.direct_io);
    // No reply from before can arrive any more.
    put(&remote, "longer still", LONG_AGO + 2);
    tokio::time::advance(file.stat.ttl + Duration::from_secs(2)).await;
    found(&vfs, "f").await;
    assert!(!open(&vfs, file.ino).await.invalidate_attributes);
}

/// C4: the kernel caches the targets of links as content.
#[tokio::test(start_paused = true)]
async fn c4_the_target_of_a_replaced_link_is_dropped() {
    let Mount { remote, vfs, invalidated, .. } = mounted(config());
    remote.put_symlink("l", "old");
    let link = found(&vfs, "l").await;
    assert_eq!(vfs.readlink(link.ino).await.unwrap(), b"old");
    tokio::time::advance(Duration::from_secs(60)).await;
    found(&vfs, "l").await;
    assert!(invalidated.0.lock().unwrap().is_empty(), "it is the same");
    remote.remove("l");
    remote.put_symlink("l", "newer");
    tokio::time::advance(Duration::from_secs(60)).await;
    let link = found(&vfs, "l").await;
    assert_eq!(vfs.readlink(link.ino).await.unwrap(), b"newer");
    assert_eq!(*invalidated.0.lock().unwrap(), [link.ino]);
}

/// C1: the kernel takes the end of the data in a short reply for that of the file.
#[tokio::test(start_paused = true)]
async fn c1_a_size_that_a_short_read_shows_is_requested_again() {
    let Mount { remote, vfs, .. } = mounted(Config { open_revalidate: Duration::ZERO, ..config() });
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    let reader = open(&vfs, file.ino).await;
    put(&remote, "cut", LONG_AGO);
    assert_eq!(read(&vfs, reader.handle).await, b"cut");
    put(&remote, "CONTENT", LONG_AGO + 1);
    assert!(open(&vfs, file.ino).await.invalidate_attributes);
}

/// Such an open drops the kernel's pages, so it is not deferred because of them.
#[tokio::test(start_paused = true)]
async fn an_open_after_a_short_read_reads_what_the_server_has() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    let reader = open(&vfs, file.ino).await;
    put(&remote, "cut", LONG_AGO);
    assert_eq!(read(&vfs, reader.handle).await, b"cut");
    vfs.release(reader.handle);
    let plain = OpenRequest::plain(Access::Read);
    assert_eq!(vfs.open(file.ino, plain).await, Err(Errno::ESTALE), "another size");
    found(&vfs, "f").await;
    let again = open(&vfs, file.ino).await.handle;
    assert_eq!(vfs.read(again, 0, 1000).await.map(|data| data.to_vec()), Ok(b"cut".to_vec()));
}

/// C1: within one mount it holds at once.
#[tokio::test]
async fn c1_what_was_written_here_is_read_at_once() {
    let Mount { vfs, .. } = mounted(config());
    let request = OpenRequest::plain(Access::Write);
    let (file, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    for content in ["one", "two"] {
        vfs.write(opened.handle, 0, Bytes::from(content)).await.unwrap();
        let reader = open(&vfs, file.ino).await;
        assert_eq!(read(&vfs, reader.handle).await, content.as_bytes());
        vfs.release(reader.handle);
    }
    vfs.flush(opened.handle).await.unwrap();
    vfs.release(opened.handle);
    assert_eq!(read(&vfs, open(&vfs, file.ino).await.handle).await, b"two");
}

/// C2: an open without an answer of the server within `open_revalidate` sends a request, once.
#[tokio::test(start_paused = true)]
async fn c2_an_open_asks_once_a_second() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    vfs.release(open(&vfs, file.ino).await.handle);
    remote.reset_calls();
    for _ in 0..100 {
        let opened = open(&vfs, file.ino).await;
        vfs.flush(opened.handle).await.unwrap();
        vfs.release(opened.handle);
    }
    assert_eq!((remote.round_trips(), remote.calls(Call::Close)), (0, 0));
    tokio::time::advance(Duration::from_secs(1)).await;
    for _ in 0..100 {
        vfs.release(open(&vfs, file.ino).await.handle);
    }
    assert_eq!((remote.round_trips(), remote.calls(Call::Open)), (1, 1));
}

/// C2: the thread of an open may drop the kernel's pages later than another open is answered.
#[tokio::test(start_paused = true)]
async fn c2_older_pages_are_dropped_by_each_open_of_a_changed_file_for_a_second() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "old", LONG_AGO);
    let file = found(&vfs, "f").await;
    vfs.release(open(&vfs, file.ino).await.handle);
    let again = open(&vfs, file.ino).await;
    assert!(again.keep_cache, "there was nothing to drop");
    vfs.release(again.handle);
    put(&remote, "new", LONG_AGO + 1);
    tokio::time::advance(Duration::from_secs(30)).await;
    found(&vfs, "f").await;
    for _ in 0..3 {
        let opened = open(&vfs, file.ino).await;
        assert_eq!((opened.keep_cache, read(&vfs, opened.handle).await), (false, b"new".to_vec()));
        vfs.release(opened.handle);
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(open(&vfs, file.ino).await.keep_cache);
}

/// C2: an open that is not for plain reading is never deferred; nor is one that the login may not
/// read.
#[tokio::test]
async fn c2_only_plain_reading_is_granted() {
    let Mount { remote, vfs, .. } = mounted(Config { login: Some((77, 77)), ..config() });
    put(&remote, "content", LONG_AGO);
    remote.set_perm("f", 0o644);
    let asks = async |request: OpenRequest| {
        let file = found(&vfs, "f").await;
        vfs.release(open(&vfs, file.ino).await.handle);
        remote.reset_calls();
        vfs.release(vfs.open(file.ino, request).await.unwrap().handle);
        remote.calls(Call::Open) > 0
    };
    let plain = OpenRequest::plain(Access::Read);
    assert!(!asks(plain).await);
    for request in [
        OpenRequest::plain(Access::Write),
        OpenRequest::plain(Access::ReadWrite),
        OpenRequest { direct: true, ..plain },
        OpenRequest { append: true, ..OpenRequest::plain(Access::Write) },
    ] {
        assert!(asks(request).await, "{request:?}");
    }
    remote.set_perm("f", 0o640);
    let Mount { vfs, .. } =
        Mount { vfs: Vfs::new(remote.clone(), config_of(77)), ..mounted(config()) };
    let file = found(&vfs, "f").await;
    vfs.release(open(&vfs, file.ino).await.handle);
    remote.reset_calls();
    vfs.release(open(&vfs, file.ino).await.handle);
    assert_eq!(remote.calls(Call::Open), 1, "its group is not known to be ours");
}

fn config_of(uid: u32) -> Config {
    Config { login: Some((uid, uid)), ..config() }
}

/// T2, I1: while attributes are valid, an open sends no request.
#[tokio::test(start_paused = true)]
async fn t2_opens_cost_nothing_while_attributes_count() {
    for consistency in [Consistency::Timeout, Consistency::Immutable] {
        let time = vfs::Timeout::fixed(Duration::from_secs(60));
        let Mount { remote, vfs, .. } = mounted(Config { consistency, files: time, ..config() });
        put(&remote, "content", LONG_AGO);
        let file = found(&vfs, "f").await;
        vfs.release(open(&vfs, file.ino).await.handle);
        remote.reset_calls();
        tokio::time::advance(Duration::from_secs(59)).await;
        vfs.release(open(&vfs, file.ino).await.handle);
        assert_eq!(remote.round_trips(), 0, "{consistency:?}");
    }
}

/// S1: under `strict` each open sends a request.
#[tokio::test]
async fn s1_each_open_asks() {
    let strict = Config { consistency: Consistency::Strict, ..config() };
    let Mount { remote, vfs, .. } = mounted(strict);
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    for _ in 0..2 {
        remote.reset_calls();
        vfs.release(open(&vfs, file.ino).await.handle);
        assert_eq!(remote.calls(Call::Open), 1);
    }
}

/// A6: an open of a file with no local content gets the file that its name leads to at that time.
#[tokio::test]
async fn a6_without_pages_an_open_is_an_open() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "old", LONG_AGO);
    let file = found(&vfs, "f").await;
    let opened = open(&vfs, file.ino).await;
    remote.put_file("g", "another");
    remote.move_to("g", "f");
    assert_eq!(read(&vfs, opened.handle).await, b"old");
}

/// All users of a deferred handle share one open.
#[tokio::test]
async fn granted_opens_share_a_handle() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    let (first, second) = (granted(&vfs, &remote, file.ino).await, open(&vfs, file.ino).await);
    let reads = (read(&vfs, first.handle).await, read(&vfs, second.handle).await);
    assert_eq!(reads, (b"content".to_vec(), b"content".to_vec()));
    assert_eq!(remote.calls(Call::Open), 1);
    vfs.release(first.handle);
    vfs.release(second.handle);
    assert_eq!(remote.open_handles(), 0);
}

/// A6: a file of which the kernel may show pages is not continued with another content.
#[tokio::test]
async fn a6_pages_are_not_continued_with_another_content() {
    let Mount { remote, invalidated, vfs, .. } = mounted(config());
    put(&remote, "old", LONG_AGO);
    let file = found(&vfs, "f").await;
    let second = granted(&vfs, &remote, file.ino).await;
    put(&remote, "new", LONG_AGO + 1);
    for _ in 0..2 {
        assert_eq!(vfs.read(second.handle, 0, 10).await, Err(Errno::ESTALE));
    }
    assert_eq!(invalidated.0.lock().unwrap()[0], file.ino);
    vfs.release(second.handle);
    let third = open(&vfs, file.ino).await;
    assert!(!third.keep_cache);
    assert_eq!(read(&vfs, third.handle).await, b"new");
    vfs.release(third.handle);
    assert_eq!(remote.open_handles(), 0);
}

/// A6: a local change that writes nothing does not explain another content, and neither do caches
/// that are invalidated. A file with another identity is not continued in any case.
#[tokio::test]
async fn a6_only_a_local_write_explains_another_content() {
    let atime = AttrChange { atime: Some(Timestamp::from_secs(77)), ..AttrChange::default() };
    for shows_inodes in [false, true] {
        // Times of a file with an identity are set through its handle, which is opened for that.
        let last = if shows_inodes { "xattr" } else { "atime" };
        for change in ["all", "link", last] {
            let limits = Limits { shows_inodes, ..Limits::default() };
            let remote = MemRemote::with(Options { limits, ..Options::default() });
            let Mount { remote, invalidated, vfs, .. } = mounted_on(remote, config());
            put(&remote, "old", LONG_AGO);
            let file = found(&vfs, "f").await;
            let opened = granted(&vfs, &remote, file.ino).await;
            match change {
                "link" => {
                    vfs.link(file.ino, Ino::ROOT, b"link").await.unwrap();
                }
                "xattr" => {
                    let value = Bytes::from_static(b"value");
                    vfs.setxattr(file.ino, b"user.x", value, SetXattr::Either).await.unwrap();
                }
                "atime" => {
                    vfs.setattr(file.ino, atime, None).await.unwrap();
                }
                _ => vfs.invalidate_all(),
            }
            remote.put_file("g", "another");
            remote.set_mtime("g", LONG_AGO + 1);
            remote.move_to("g", "f");
            for _ in 0..2 {
                let data = vfs.read(opened.handle, 0, 10).await;
                assert_eq!(data, Err(Errno::ESTALE), "{change}, {shows_inodes}");
            }
            assert_eq!(invalidated.0.lock().unwrap()[0], file.ino);
            vfs.release(opened.handle);
            assert_eq!(remote.open_handles(), 0);
        }
    }
}

/// A1: the kernel does not fill a file that has become shorter with zeros.
#[tokio::test]
async fn a1_what_has_become_shorter_before_its_first_read_is_stale() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    let opened = granted(&vfs, &remote, file.ino).await;
    put(&remote, "short", LONG_AGO + 1);
    assert_eq!(vfs.read(opened.handle, 0, 10).await, Err(Errno::ESTALE));
    vfs.release(opened.handle);
    let again = match vfs.open(file.ino, OpenRequest::plain(Access::Read)).await {
        Err(Errno::ESTALE) => open(&vfs, found(&vfs, "f").await.ino).await,
        opened => opened.unwrap(),
    };
    assert_eq!(read(&vfs, again.handle).await, b"short");
}

/// A1: local writes since the open do not make another content.
#[tokio::test(start_paused = true)]
async fn a1_a_reader_that_was_granted_while_a_writer_opened_reads_what_was_written() {
    let Mount { remote, faulty, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    vfs.release(open(&vfs, file.ino).await.handle);
    let gate = faulty.hold(Call::Open, 1);
    let mut writing = Box::pin(vfs.open(file.ino, OpenRequest::plain(Access::Write)));
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut writing).await.is_err());
    let reader = open(&vfs, file.ino).await;
    assert!(reader.keep_cache, "deferred");
    gate.release();
    let writer = writing.await.unwrap();
    vfs.write(writer.handle, 0, Bytes::from_static(b"written")).await.unwrap();
    vfs.flush(writer.handle).await.unwrap();
    let got = vfs.read(reader.handle, 0, 1000).await.map(|data| data.to_vec());
    assert_eq!(got.as_deref(), Ok(b"written".as_slice()));
    vfs.release(writer.handle);
    vfs.release(reader.handle);
}

/// A7: a file that this mount unlinks or replaces stays usable for its open descriptors, even if
/// their handle was deferred.
#[tokio::test]
async fn a7_what_is_removed_here_lives_on() {
    for rename in [false, true] {
        let Mount { remote, vfs, .. } = mounted(config());
        put(&remote, "content", LONG_AGO);
        remote.put_file("g", "other");
        let file = found(&vfs, "f").await;
        let opened = granted(&vfs, &remote, file.ino).await;
        let names = ((Ino::ROOT, &b"g"[..]), (Ino::ROOT, &b"f"[..]));
        match rename {
            true => vfs.rename(names.0, names.1, RenameMode::Replace).await.unwrap(),
            false => vfs.unlink(Ino::ROOT, b"f").await.unwrap(),
        }
        assert_eq!(read(&vfs, opened.handle).await, b"content");
    }
}

/// A7: a file that another machine has removed before the first read fails with ESTALE.
#[tokio::test]
async fn a7_what_another_machine_removes_before_the_first_read_is_stale() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    let opened = granted(&vfs, &remote, file.ino).await;
    remote.remove("f");
    assert_eq!(vfs.read(opened.handle, 0, 10).await, Err(Errno::ESTALE));
    assert!(matches!(vfs.lookup(Ino::ROOT, b"f").await.unwrap(), LookupResult::Absent(_)));
}

/// A chmod through this mount that removes the right to read does not affect open files.
#[tokio::test]
async fn what_is_open_is_opened_before_its_mode_is_changed() {
    let Mount { remote, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    let opened = granted(&vfs, &remote, file.ino).await;
    let none = AttrChange { perm: Some(0), ..AttrChange::default() };
    vfs.setattr(file.ino, none, None).await.unwrap();
    assert_eq!(remote.open_handles(), 1);
    assert_eq!(read(&vfs, opened.handle).await, b"content");
}

/// A2, A6: an open file stays the same when this mount truncates it or sets its times.
#[tokio::test]
async fn what_is_open_is_opened_before_its_size_or_time_is_changed() {
    let times = AttrChange { mtime: Some(Timestamp::from_secs(77)), ..AttrChange::default() };
    let size = AttrChange { size: Some(3), ..AttrChange::default() };
    for (change, content) in [(times, b"content".as_slice()), (size, b"con")] {
        let Mount { remote, vfs, .. } = mounted(config());
        put(&remote, "content", LONG_AGO);
        let file = found(&vfs, "f").await;
        let opened = granted(&vfs, &remote, file.ino).await;
        vfs.setattr(file.ino, change, None).await.unwrap();
        let got = vfs.read(opened.handle, 0, 1000).await.map(|data| data.to_vec());
        assert_eq!(got.as_deref(), Ok(content), "{change:?}");
        vfs.release(opened.handle);
        assert_eq!(remote.open_handles(), 0);
    }
}

/// A5: a cancelled reader does not take the handle that is being opened from others.
#[tokio::test]
async fn a5_a_reader_gives_up_while_the_open_hangs() {
    let Mount { remote, faulty, vfs, .. } = mounted(config());
    put(&remote, "content", LONG_AGO);
    let file = found(&vfs, "f").await;
    let (first, second) = (granted(&vfs, &remote, file.ino).await, open(&vfs, file.ino).await);
    let gate = faulty.hold(Call::Open, 1);
    let mut reading = Box::pin(vfs.read(first.handle, 0, 10));
    let mut other = Box::pin(vfs.read(second.handle, 0, 10));
    tokio::select! {
        biased;
        _ = &mut reading => panic!("it did not wait"),
        _ = &mut other => panic!("it did not wait"),
        () = gate.arrived() => {}
    }
    drop(reading);
    gate.release();
    assert_eq!(other.await.unwrap().to_vec(), b"content");
    assert_eq!(remote.calls(Call::Open), 1);
}

/// A3: mode and times of a file that is being created are set without waiting, before its close
/// returns.
#[tokio::test(start_paused = true)]
async fn a3_attributes_of_a_new_file_go_along_with_its_writes() {
    let trip = Duration::from_millis(1);
    let Mount { remote, vfs, .. } = mounted(config());
    remote.set_latency(Some(trip));
    let start = tokio::time::Instant::now();
    let request = OpenRequest::plain(Access::Write);
    let (file, opened) = vfs.create(Ino::ROOT, b"f", 0o600, true, request).await.unwrap();
    vfs.write(opened.handle, 0, Bytes::from_static(b"content")).await.unwrap();
    let (uid, gid) = (Some(file.stat.attr.uid), Some(file.stat.attr.gid));
    let owner = AttrChange { uid, gid, ..AttrChange::default() };
    let mode = AttrChange { perm: Some(0o640), ..AttrChange::default() };
    let time = Some(Timestamp::from_secs(LONG_AGO));
    let times = AttrChange { atime: time, mtime: time, ..AttrChange::default() };
    for change in [owner, mode, times] {
        let stat = vfs.setattr(file.ino, change, None).await.unwrap();
        assert_eq!((stat.attr.size, stat.ttl), (7, Duration::ZERO), "{change:?}");
    }
    vfs.flush(opened.handle).await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 2, "one round trip to make it, one to close it");
    let stat = vfs.getattr(file.ino).await.unwrap();
    assert_eq!((stat.attr.perm, stat.attr.size, stat.attr.mtime.secs), (0o640, 7, LONG_AGO));
    assert_eq!(start.elapsed().as_millis(), 2, "the close has recorded the attributes");
}

/// A3: and if one of them fails, the close reports it, once.
#[tokio::test]
async fn a3_a_mode_that_could_not_be_set_is_told_by_the_close() {
    let Mount { faulty, vfs, .. } = mounted(config());
    let request = OpenRequest::plain(Access::Write);
    let (file, opened) = vfs.create(Ino::ROOT, b"f", 0o600, true, request).await.unwrap();
    let gate = faulty.hold(Call::Fsetattr, 1);
    faulty.fail(Call::Fsetattr, 1, Errno::EROFS);
    let mode = AttrChange { perm: Some(0o640), ..AttrChange::default() };
    vfs.setattr(file.ino, mode, None).await.unwrap();
    gate.release();
    assert_eq!(vfs.flush(opened.handle).await, Err(Errno::EROFS));
    assert_eq!(vfs.flush(opened.handle).await, Ok(()));
    assert_eq!(vfs.getattr(file.ino).await.unwrap().attr.perm, 0o600);
}
