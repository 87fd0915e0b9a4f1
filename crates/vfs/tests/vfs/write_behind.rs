//! Writes in flight: coalesced, in order, bounded, and visible to every later call.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Errno};
use bytes::Bytes;
use testkit::faulty::Gate;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Call, FaultyRemote, MemRemote};
use tokio::time::timeout;
use vfs::{
    Config, Consistency, Handle, Ino, Invalidate, LookupResult, OpenRequest, PageCache, Vfs,
};

/// Longer than anything here takes on the paused clock.
const A_WHILE: Duration = Duration::from_millis(100);

const PAGE: usize = 4096;

struct Mount {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    vfs: Vfs,
    ino: Ino,
    handle: Handle,
    expected: Vec<u8>,
}

fn request() -> OpenRequest {
    OpenRequest::plain(Access::ReadWrite)
}

/// A mount with the file `f` open.
async fn mounted(config: Config, request: OpenRequest) -> Mount {
    let remote = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let vfs = Vfs::new(faulty.clone(), config);
    let (entry, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    let (ino, handle) = (entry.ino, opened.handle);
    Mount { remote, faulty, vfs, ino, handle, expected: Vec::new() }
}

impl Mount {
    async fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), Errno> {
        let end = offset + data.len();
        self.expected.resize(self.expected.len().max(end), 0);
        self.expected[offset..end].copy_from_slice(data);
        self.vfs.write(self.handle, offset as u64, Bytes::copy_from_slice(data)).await
    }

    /// Page `number`, filled with that number.
    async fn page(&mut self, number: usize) {
        self.write(number * PAGE, &[number as u8 + 1; PAGE]).await.unwrap();
    }

    /// Pages 0 to 4: the first is not answered yet, and the others are coalesced.
    async fn gathered(&mut self) -> Gate {
        let gate = self.faulty.hold_answer(Call::Write, 1);
        for number in 0..5 {
            self.page(number).await;
        }
        gate.arrived().await;
        assert_eq!(self.writes(), 1);
        gate
    }

    fn writes(&self) -> u64 {
        self.faulty.calls(Call::Write)
    }

    fn is_there(&self) -> bool {
        self.remote.content("f") == self.expected
    }
}

/// Whether `future` still waits when all other tasks are idle.
async fn waits<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
    timeout(A_WHILE, future).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_write_goes_out_at_once_and_what_follows_it_together() {
    let mut mount = mounted(Config::default(), request()).await;
    mount.page(0).await;
    assert_eq!(mount.writes(), 1);
    tokio::time::sleep(A_WHILE).await;
    mount.faulty.reset_calls();
    let gate = mount.gathered().await;
    gate.release();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(mount.writes(), 2, "sent when the first was answered");
    assert!(mount.is_there());
    assert_eq!(mount.vfs.flush(mount.handle).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn what_fills_a_request_is_sent() {
    let mut mount = mounted(Config::default(), request()).await;
    let gate = mount.gathered().await;
    // A request has 128 KiB, as the in-memory remote suggests.
    for number in 5..1 + 3 * 32 + 1 {
        mount.page(number).await;
    }
    assert_eq!(mount.writes(), 1 + 3);
    gate.release();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(mount.writes(), 1 + 4);
    assert!(mount.is_there());
}

#[tokio::test(start_paused = true)]
async fn what_is_gathered_is_sent_when_anything_asks() {
    for who in ["read", "stat", "fsync", "flush", "truncate", "chmod", "drain", "another", "copy"] {
        let mut mount = mounted(Config::default(), request()).await;
        let second = mount.vfs.open(mount.ino, request()).await.unwrap().handle;
        let (target, to) = mount.vfs.create(Ino::ROOT, b"g", 0o644, true, request()).await.unwrap();
        let gate = mount.gathered().await;
        let (vfs, ino, handle) = (&mount.vfs, mount.ino, mount.handle);
        let mut asks: Pin<Box<dyn Future<Output = bool>>> = match who {
            "read" => Box::pin(async {
                vfs.read(second, 4 * PAGE as u64, 1).await.unwrap().to_vec() == [5]
            }),
            "stat" => {
                Box::pin(async { vfs.getattr(ino).await.unwrap().attr.size == 5 * PAGE as u64 })
            }
            "fsync" => Box::pin(async { vfs.fsync(handle).await.is_ok() }),
            "flush" => Box::pin(async { vfs.flush(handle).await.is_ok() }),
            "truncate" => Box::pin(async {
                let cut = AttrChange { size: Some(1), ..AttrChange::default() };
                vfs.setattr(ino, cut, None).await.unwrap().attr.size == 1
            }),
            "chmod" => Box::pin(async {
                let change = AttrChange { perm: Some(0o600), ..AttrChange::default() };
                vfs.setattr(ino, change, Some(handle)).await.is_ok()
            }),
            "drain" => Box::pin(async {
                vfs.drain().await;
                true
            }),
            "another" => Box::pin(async {
                vfs.write(second, 4 * PAGE as u64, Bytes::from_static(b"x")).await.is_ok()
            }),
            _ => Box::pin(async {
                let copied = vfs.copy_file_range((handle, 0), (to.handle, 0), PAGE as u64 * 5);
                copied.await == Ok(PAGE as u64 * 5)
            }),
        };
        // A read of bytes that only the second request has does not wait for the first.
        let apart = matches!(who, "read" | "another");
        let answer = timeout(A_WHILE, asks.as_mut()).await;
        assert_eq!(answer.is_ok(), apart, "{who}: the first has not been answered");
        let sent = if who == "another" { 3 } else { 2 };
        assert_eq!(mount.faulty.calls(Call::Write), sent, "{who}");
        gate.release();
        assert!(if let Ok(right) = answer { right } else { asks.await }, "{who}");
        vfs.forget(target.ino, 1);
        vfs.drain().await;
        let there = mount.remote.content("f");
        match who {
            "truncate" => assert_eq!(there, [1]),
            "another" => assert_eq!(there[4 * PAGE..4 * PAGE + 2], [b'x', 5]),
            _ => assert!(mount.is_there(), "{who}"),
        }
    }
}

/// A2: the requested name may be another hard link of the file, unknown to this mount.
#[tokio::test(start_paused = true)]
async fn what_is_gathered_is_sent_before_any_name_is_asked_for() {
    let mut mount = mounted(Config::default(), request()).await;
    let linked = mount.vfs.link(mount.ino, Ino::ROOT, b"g").await.unwrap();
    mount.vfs.forget(linked.ino, 1);
    let _gate = mount.gathered().await;
    mount.vfs.lookup(Ino::ROOT, b"other").await.unwrap();
    assert_eq!(mount.writes(), 2);
    assert!(mount.remote.content("g") == mount.expected);
}

/// A2: so is an append that the kernel may have split, once its second part is overdue.
#[tokio::test(start_paused = true)]
async fn what_may_be_cut_is_sent_before_any_name_is_asked_for_a_moment_later() {
    let append = OpenRequest { append: true, ..request() };
    let mount = mounted(Config::default(), append).await;
    let linked = mount.vfs.link(mount.ino, Ino::ROOT, b"g").await.unwrap();
    mount.vfs.forget(linked.ino, 1);
    mount.vfs.write(mount.handle, 4090, Bytes::from_static(b"first,")).await.unwrap();
    mount.vfs.lookup(Ino::ROOT, b"other").await.unwrap();
    assert_eq!(mount.writes(), 0, "the rest may be to come");
    tokio::time::advance(Duration::from_millis(20)).await;
    mount.vfs.lookup(Ino::ROOT, b"third").await.unwrap();
    assert_eq!((mount.writes(), mount.remote.content("g")), (1, b"first,".to_vec()));
}

/// A2: over another session, a read of a hole could overtake the write behind it, and would find
/// the end of the file.
#[tokio::test(start_paused = true)]
async fn a2_a_read_of_a_hole_waits_for_the_write_behind_it() {
    let hole = 5 * PAGE as u64;
    for truncates in [false, true] {
        let mut mount = mounted(Config::default(), request()).await;
        let second = mount.vfs.open(mount.ino, request()).await.unwrap().handle;
        if truncates {
            // The known end of the file is not that of the writes from before.
            mount.page(9).await;
            let cut = AttrChange { size: Some(0), ..AttrChange::default() };
            mount.vfs.setattr(mount.ino, cut, None).await.unwrap();
            mount.expected.clear();
        }
        mount.page(0).await;
        mount.page(1).await;
        mount.vfs.drain().await;
        // The requests of one handle stay in order here, so the write has taken effect.
        let gate = mount.faulty.hold_answer(Call::Write, 1);
        mount.page(9).await;
        for handle in [mount.handle, second] {
            let mut before = Box::pin(mount.vfs.read(handle, 0, 2 * PAGE as u32));
            assert!(!waits(before.as_mut()).await, "the server has had these");
            let mut behind = Box::pin(mount.vfs.read(handle, hole, 100));
            assert!(waits(behind.as_mut()).await);
        }
        gate.release();
        mount.vfs.drain().await;
        let gate = mount.faulty.hold(Call::Write, 1);
        mount.page(19).await;
        let mut read = Box::pin(mount.vfs.read(second, 3 * hole, 100));
        assert!(waits(read.as_mut()).await);
        gate.release();
        assert_eq!(read.await.unwrap().to_vec(), [0; 100]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_through_the_same_handle_waits_for_no_answer_but_its_own() {
    let mut mount = mounted(Config::default(), request()).await;
    let gate = mount.gathered().await;
    let mut apart = Box::pin(mount.vfs.read(mount.handle, 0, 1));
    assert!(!waits(apart.as_mut()).await);
    assert_eq!(mount.writes(), 1, "the coalesced writes are of other bytes");
    drop(apart);
    let read = mount.vfs.read(mount.handle, 3 * PAGE as u64, 1).await.unwrap();
    assert_eq!((read.to_vec(), mount.writes()), (vec![4], 2));
    gate.release();
}

#[tokio::test(start_paused = true)]
async fn what_does_not_go_on_is_sent_in_order() {
    let mut mount = mounted(Config::default(), request()).await;
    let gate = mount.gathered().await;
    // In the middle of the coalesced writes.
    mount.write(2 * PAGE, b"over").await.unwrap();
    assert_eq!(mount.writes(), 3);
    // Large and contiguous: not coalesced.
    mount.write(2 * PAGE + 4, &[9; 64 << 10]).await.unwrap();
    assert_eq!(mount.writes(), 4);
    mount.write(2 * PAGE, b"once more").await.unwrap();
    gate.release();
    assert_eq!(mount.vfs.flush(mount.handle).await, Ok(()));
    assert!(mount.is_there());
}

#[tokio::test(start_paused = true)]
async fn what_is_appended_stays_in_order_and_in_one_piece() {
    let append = OpenRequest { append: true, ..request() };
    let mount = mounted(Config::default(), append).await;
    let gate = mount.faulty.hold_answer(Call::Write, 1);
    let mut expected = Vec::new();
    for number in 0..100u8 {
        // At any offset: the kernel may be wrong about the end.
        let line = vec![number; 3000];
        expected.extend(&line);
        mount.vfs.write(mount.handle, 7, line.into()).await.unwrap();
    }
    gate.release();
    assert_eq!(mount.vfs.flush(mount.handle).await, Ok(()));
    assert!(mount.remote.content("f") == expected);
    assert_eq!(mount.writes(), 100);
}

/// A2 over a server that executes requests of one file at the same time.
#[tokio::test(start_paused = true)]
async fn a_size_from_before_the_last_write_is_not_believed() {
    for append in [false, true] {
        let remote = Arc::new(MemRemote::new());
        remote.put_file("f", "one");
        let faulty = Arc::new(FaultyRemote::new(remote.clone()));
        let vfs = Vfs::new(faulty.clone(), Config::default());
        let LookupResult::Found(entry) = vfs.lookup(Ino::ROOT, b"f").await.unwrap() else {
            panic!("absent");
        };
        let request = OpenRequest { append, ..request() };
        let opened = vfs.open(entry.ino, request).await.unwrap();
        let gate = faulty.hold(Call::Fstat, 1);
        vfs.write(opened.handle, 3, Bytes::from_static(b"two")).await.unwrap();
        let mut flush = Box::pin(vfs.flush(opened.handle));
        assert!(waits(flush.as_mut()).await);
        remote.put_file("f", "one");
        gate.release();
        assert_eq!(flush.await, Ok(()));
        remote.put_file("f", "onetwo");
        vfs.release(opened.handle);
        assert_eq!(vfs.getattr(entry.ino).await.unwrap().attr.size, 6, "append: {append}");
    }
}

/// As with Go's `pkg/sftp`.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_append_gets_the_end_of_the_file() {
    let limits = Limits { ignores_append: true, ..Limits::default() };
    let remote = Arc::new(MemRemote::with(Options { limits, ..Options::default() }));
    remote.put_file("f", "one\n");
    let vfs = Vfs::new(remote.clone(), Config::default());
    let append = OpenRequest { append: true, ..request() };
    let LookupResult::Found(entry) = vfs.lookup(Ino::ROOT, b"f").await.unwrap() else {
        panic!("absent");
    };
    let opened = vfs.open(entry.ino, append).await.unwrap();
    for (at, line) in [(4, "two\n"), (8, "three\n")] {
        vfs.write(opened.handle, at, Bytes::from_static(line.as_bytes())).await.unwrap();
    }
    assert_eq!(vfs.flush(opened.handle).await, Ok(()));
    assert_eq!(remote.content("f"), b"one\ntwo\nthree\n");
}

/// A8: the kernel splits a write at the end of a page; no append of another machine gets in
/// between.
#[tokio::test(start_paused = true)]
async fn the_parts_of_an_append_go_together() {
    let append = OpenRequest { append: true, ..request() };
    let mount = mounted(Config::default(), append).await;
    let write =
        |at: u64, data: &'static [u8]| mount.vfs.write(mount.handle, at, Bytes::from_static(data));
    // Nor does the end of the write before separate them.
    let gate = mount.faulty.hold_answer(Call::Write, 1);
    write(4089, b"#").await.unwrap();
    write(4090, b"first,").await.unwrap();
    gate.release();
    gate.over().await;
    assert_eq!(mount.writes(), 1);
    mount.faulty.reset_calls();
    write(4096, b" second\n").await.unwrap();
    assert_eq!((mount.writes(), mount.remote.content("f")), (1, b"#first, second\n".to_vec()));
    write(8190, b"a\n").await.unwrap();
    assert_eq!(mount.writes(), 1, "it may have been cut");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(mount.writes(), 2, "but it was not");
    write(4095, b"b").await.unwrap();
    assert_eq!(mount.vfs.flush(mount.handle).await, Ok(()));
    assert_eq!(mount.remote.content("f"), b"#first, second\na\nb");
}

/// A8: nor does a request for the file by any name, or the close of another handle.
#[tokio::test(start_paused = true)]
async fn what_others_do_does_not_part_an_append() {
    let append = OpenRequest { append: true, ..request() };
    for others_do in ["open", "look up", "flush", "release"] {
        let config = Config { open_revalidate: Duration::ZERO, ..Config::default() };
        let mount = mounted(config, append).await;
        let (vfs, remote) = (&mount.vfs, &mount.remote);
        let other = vfs.open(mount.ino, append).await.unwrap().handle;
        let second = vec![b'2'; 100_000];
        let asks = async || match others_do {
            "open" => drop(vfs.open(mount.ino, request()).await.unwrap()),
            "look up" => drop(vfs.lookup(Ino::ROOT, b"absent").await.unwrap()),
            "flush" => vfs.flush(other).await.unwrap(),
            _ => vfs.release(other),
        };
        vfs.write(mount.handle, 4090, Bytes::from_static(b"first,")).await.unwrap();
        let rest = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(remote.content("f"), b"", "{others_do}");
            vfs.write(mount.handle, 4096, second.clone().into()).await.unwrap();
        };
        tokio::join!(asks(), rest);
        vfs.flush(mount.handle).await.unwrap();
        assert_eq!(mount.writes(), 1, "{others_do}");
        assert!(remote.content("f") == [b"first,", &second[..]].concat(), "{others_do}");
        // A request waits briefly, and sees it.
        vfs.write(mount.handle, 106_484, Bytes::from_static(b"whole ")).await.unwrap();
        let asked_at = tokio::time::Instant::now();
        assert_eq!(vfs.getattr(mount.ino).await.unwrap().attr.size, 100_012, "{others_do}");
        assert!(asked_at.elapsed() < Duration::from_millis(30), "{others_do}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_once_by_the_next_call_with_its_reason() {
    // The one that was sent at once, the coalesced ones, and the one behind them.
    for nth in 1..=3 {
        for next in ["write", "fsync", "flush"] {
            let mut mount = mounted(Config::default(), request()).await;
            mount.faulty.fail_after(Call::Write, nth, Errno::ENOSPC);
            let gate = mount.faulty.hold(Call::Write, 1);
            let mut told = Vec::new();
            for number in 0..5 {
                told.push(mount.write(number * PAGE, &[1; PAGE]).await);
            }
            told.push(mount.write(20 * PAGE, b"apart").await);
            assert_eq!(told, [Ok(()); 6], "{nth}: none has been answered");
            gate.release();
            tokio::time::sleep(A_WHILE).await;
            assert_eq!((mount.writes(), mount.faulty.not_reached()), (3, 0));
            let told = [
                match next {
                    "write" => mount.write(0, b"next").await,
                    "fsync" => mount.vfs.fsync(mount.handle).await,
                    _ => mount.vfs.flush(mount.handle).await,
                },
                mount.vfs.flush(mount.handle).await,
                mount.vfs.fsync(mount.handle).await,
            ];
            assert_eq!(told, [Err(Errno::ENOSPC), Ok(()), Ok(())], "{nth} {next}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_a_writer_waits_and_does_not_fail() {
    for (dirty_bytes, dirty_file_bytes) in [(1 << 16, 1 << 30), (1 << 30, 1 << 16)] {
        let config = Config { dirty_bytes, dirty_file_bytes, ..Config::default() };
        let mut mount = mounted(config, request()).await;
        let gate = mount.faulty.hold_answer(Call::Write, 1);
        for number in 0..16 {
            mount.page(number).await;
        }
        let data = Bytes::from_static(&[17; PAGE]);
        let mut write = Box::pin(mount.vfs.write(mount.handle, 16 * PAGE as u64, data.clone()));
        assert!(waits(write.as_mut()).await);
        // A cancelled write has written nothing, and leaves the room to others.
        drop(write);
        gate.release();
        mount.vfs.drain().await;
        assert!(mount.is_there());
        let large = vec![1; 1 << 20];
        assert_eq!(mount.write(0, &large).await, Ok(()), "larger than the bound");
        assert_eq!(mount.vfs.flush(mount.handle).await, Ok(()));
        assert!(mount.is_there());
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_file_is_written_to_its_end() {
    let mut mount = mounted(Config::default(), request()).await;
    let gate = mount.gathered().await;
    mount.vfs.release(mount.handle);
    assert_eq!(mount.writes(), 2);
    gate.release();
    mount.vfs.drain().await;
    assert!(mount.is_there());
    while mount.remote.open_handles() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn synchronous_writes_past_the_page_cache_are_on_disk_when_they_return() {
    for (direct, fsyncs) in [(true, 3), (false, 0)] {
        let sync = OpenRequest { sync: true, direct, ..request() };
        let mut mount = mounted(Config::default(), sync).await;
        for number in 0..3 {
            mount.page(number).await;
        }
        // Through the page cache, the kernel sends FSYNC.
        assert_eq!(mount.faulty.calls(Call::Fsync), fsyncs);
        assert!(mount.is_there());
        if direct {
            mount.faulty.fail(Call::Fsync, 1, Errno::EIO);
            assert_eq!(mount.write(0, b"x").await, Err(Errno::EIO));
            mount.faulty.fail(Call::Write, 1, Errno::ENOSPC);
            assert_eq!(mount.write(0, b"x").await, Err(Errno::ENOSPC));
            assert_eq!(mount.vfs.flush(mount.handle).await, Ok(()), "reported already");
        }
    }
}

/// A4: through the page cache, the kernel sends FSYNC.
#[tokio::test(start_paused = true)]
async fn a4_a_single_synchronous_write_past_the_page_cache_is_on_disk_when_it_returns() {
    for (direct, fsyncs) in [(true, 1), (false, 0)] {
        let mount = mounted(Config::default(), OpenRequest { direct, ..request() }).await;
        let write = |appends, synchronous| {
            let data = Bytes::from_static(b"x");
            mount.vfs.write_in_mode(mount.handle, 0, data, appends, synchronous)
        };
        for (number, appends) in [false, true].into_iter().enumerate() {
            write(appends, false).await.unwrap();
            assert_eq!(mount.faulty.calls(Call::Fsync), number as u64 * fsyncs);
            write(appends, true).await.unwrap();
            assert_eq!(mount.faulty.calls(Call::Fsync), (number as u64 + 1) * fsyncs);
        }
        if direct {
            mount.faulty.fail(Call::Fsync, 1, Errno::EIO);
            assert_eq!(write(false, true).await, Err(Errno::EIO));
        }
    }
}

/// The largest size of a file is unknown until the server refuses an offset.
#[tokio::test(start_paused = true)]
async fn a_write_far_past_the_end_waits_for_its_answer() {
    let mount = mounted(Config::default(), request()).await;
    let write = |offset: u64| mount.vfs.write(mount.handle, offset, Bytes::from_static(b"x"));
    const TIB: u64 = 1 << 40;
    assert_eq!(write(1 << 62).await, Err(Errno::EFBIG));
    assert_eq!(mount.vfs.fsync(mount.handle).await, Ok(()), "reported once");
    write(TIB - 1).await.unwrap();
    mount.vfs.fsync(mount.handle).await.unwrap();
    let gate = mount.faulty.hold(Call::Write, 1);
    let mut far = pin!(write(3 * TIB));
    assert!(waits(far.as_mut()).await);
    gate.release();
    far.await.unwrap();
    // Now the end is known.
    let gate = mount.faulty.hold(Call::Write, 1);
    for offset in [0, 3 * TIB + 1, 4 * TIB] {
        write(offset).await.unwrap();
    }
    gate.release();
    mount.vfs.fsync(mount.handle).await.unwrap();
}

/// The files whose pages the kernel was told to drop.
#[derive(Default)]
struct Dropped(std::sync::Mutex<Vec<Ino>>);

impl Invalidate for Dropped {
    fn content(&self, ino: Ino) {
        self.0.lock().unwrap().push(ino);
    }
}

/// A3: after a write has failed, no reader gets its bytes from the kernel's pages: not through a
/// descriptor that is open, and not after another open, however pages are compared.
#[tokio::test(start_paused = true)]
async fn a3_pages_of_a_failed_write_are_dropped() {
    let same_time = Config { page_cache: PageCache::SameTime, ..Config::default() };
    let always = Config { page_cache: PageCache::Always, ..Config::default() };
    let timeout = Config { consistency: Consistency::Timeout, ..Config::default() };
    for config in [Config::default(), same_time, always, timeout] {
        for failing in [Call::Write, Call::Flush] {
            let mut mount = mounted(config.clone(), request()).await;
            let kernel = Arc::<Dropped>::default();
            mount.vfs.set_invalidate(kernel.clone());
            mount.page(0).await;
            let reader = mount.vfs.open(mount.ino, request()).await.unwrap();
            // The size stays the same, so that the pages are not dropped because of another one.
            mount.faulty.fail(failing, 1, Errno::ENOSPC);
            mount.write(0, b"new").await.unwrap();
            assert_eq!(mount.vfs.flush(mount.handle).await, Err(Errno::ENOSPC));
            assert_eq!(*kernel.0.lock().unwrap(), [mount.ino], "{failing:?} {config:?}");
            let again = mount.vfs.open(mount.ino, OpenRequest::plain(Access::Read)).await.unwrap();
            assert!(!again.keep_cache, "{failing:?} {config:?}");
            for opened in [reader, again] {
                mount.vfs.release(opened.handle);
            }
        }
    }
}

/// Other errors are reported once.
#[tokio::test(start_paused = true)]
async fn a_descriptor_whose_file_is_another_one_stays_stale() {
    for (errno, stays) in [(Errno::ESTALE, true), (Errno::ENOSPC, false)] {
        let mut mount = mounted(Config::default(), request()).await;
        mount.faulty.fail(Call::Write, 1, errno);
        mount.write(0, b"new").await.unwrap();
        assert_eq!(mount.vfs.flush(mount.handle).await, Err(errno));
        for _ in 0..2 {
            assert_eq!(mount.write(0, b"new").await.is_err(), stays, "{errno:?}");
            assert_eq!(mount.vfs.flush(mount.handle).await.is_err(), stays, "{errno:?}");
        }
        mount.vfs.release(mount.handle);
        assert_eq!(mount.vfs.lost_write(), None, "{errno:?}: it was reported");
    }
}

/// A close that has stopped waiting is followed by the release of the file.
#[tokio::test(start_paused = true)]
async fn a_flush_of_everything_waits_for_files_that_were_released() {
    let mut mount = mounted(Config::default(), request()).await;
    let gate = mount.faulty.hold(Call::Write, 1);
    mount.page(0).await;
    mount.vfs.release(mount.handle);
    assert_eq!(mount.vfs.stats().dirty_files, 1);
    let mut flushed = pin!(mount.vfs.flush_all());
    assert!(timeout(A_WHILE, &mut flushed).await.is_err());
    gate.release();
    flushed.await;
    assert_eq!(mount.remote.content("f"), mount.expected);
    assert_eq!(mount.vfs.stats().dirty_files, 0);
}

/// The kernel forgets a closed file while its data is in flight; the next lookup makes no other
/// inode, which would know nothing of the writes.
#[tokio::test(start_paused = true)]
async fn a2_writes_of_a_forgotten_file_are_waited_for() {
    let mut mount = mounted(Config::default(), request()).await;
    let gate = mount.faulty.hold(Call::Write, 1);
    mount.page(0).await;
    mount.vfs.release(mount.handle);
    mount.vfs.forget(mount.ino, 1);
    let ino = {
        let mut looked = pin!(async {
            match mount.vfs.lookup(Ino::ROOT, b"f").await.unwrap() {
                LookupResult::Found(entry) => entry.ino,
                LookupResult::Absent(_) => panic!("it was created"),
            }
        });
        assert!(timeout(A_WHILE, &mut looked).await.is_err(), "it shows an older size");
        gate.release();
        looked.await
    };
    assert_eq!(mount.vfs.getattr(ino).await.unwrap().attr.size, PAGE as u64);
    mount.vfs.forget(ino, 1);
    assert_eq!(mount.vfs.inodes(), 1, "nothing keeps it");
}
