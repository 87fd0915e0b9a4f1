//! Readahead: each byte is fetched once, used only while it is valid, and never delays a reader.

use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

use base::{Access, AttrChange, Errno};
use bytes::Bytes;
use testkit::tree::Follow;
use testkit::{Call, path};
use tokio::time::{advance, timeout};
use vfs::{Config, Consistency, Handle, Ino, LookupResult, OpenRequest};

use super::stage::{Mount, mounted};

const KIB: u64 = 1 << 10;

/// Bytes that the kernel reads at a time.
const STEP: u64 = 128 * KIB;

const SIZE: u64 = 4 << 20;

const LONG_AGO: i64 = 1_000_000_000;

/// Longer than anything here takes on the paused clock.
const A_WHILE: Duration = Duration::from_millis(100);

/// Opens send a request, and are not answered from caches.
fn config() -> Config {
    Config { open_revalidate: Duration::ZERO, ..Config::default() }
}

/// Bytes that show their position, and their content.
fn content(of: u8, size: u64) -> Vec<u8> {
    (0..size).map(|at| of ^ (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// The first content of the file.
static PLAIN: LazyLock<Vec<u8>> = LazyLock::new(|| content(0, SIZE));

impl Mount {
    /// A mount with the file `f`.
    fn with_file(config: Config) -> Mount {
        let mount = mounted(config);
        mount.remote.put_file("f", &*PLAIN);
        mount.remote.set_mtime("f", LONG_AGO);
        mount
    }

    async fn found(&self) -> Ino {
        match self.vfs.lookup(Ino::ROOT, b"f").await.unwrap() {
            LookupResult::Found(entry) => entry.ino,
            LookupResult::Absent(_) => panic!("the file is absent"),
        }
    }

    async fn open(&self, access: Access) -> (Ino, Handle) {
        let ino = self.found().await;
        (ino, self.vfs.open(ino, OpenRequest::plain(access)).await.unwrap().handle)
    }

    async fn at(&self, handle: Handle, offset: u64) -> Result<Vec<u8>, Errno> {
        self.vfs.read(handle, offset, STEP as u32).await.map(|data| data.to_vec())
    }

    /// Reads up to `until` in sequence.
    async fn read(&self, handle: Handle, from: u64, until: u64) -> Vec<u8> {
        let mut all = Vec::new();
        for offset in (from..until).step_by(STEP as usize) {
            all.extend(self.at(handle, offset).await.unwrap());
        }
        all
    }

    fn reads(&self) -> u64 {
        self.faulty.calls(Call::Read)
    }

    /// Waits until all requests are answered.
    async fn quiet(&self) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether `future` still waits when all other tasks are idle.
async fn waits<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
    timeout(A_WHILE, future).await.is_err()
}

/// The kernel requests whole pages. A remote that has returned everything up to the end would need
/// another request to recognize the end; so both are sent at the same time.
#[tokio::test(start_paused = true)]
async fn what_is_behind_the_end_is_asked_for_at_the_same_time() {
    // A change meanwhile is read as if there were one request.
    let others = ["six by", "six bytes and more", "six", "", "sixsix"];
    for (direct, now) in [false, true].into_iter().flat_map(|it| others.map(|now| (it, now))) {
        let mount = mounted(config());
        mount.remote.put_file("f", "six by");
        let request = OpenRequest { direct, ..OpenRequest::plain(Access::Read) };
        let opened = mount.vfs.open(mount.found().await, request).await.unwrap();
        mount.remote.put_file("f", now);
        let took = Duration::from_millis(10);
        mount.remote.set_latency(Some(took));
        let begun = tokio::time::Instant::now();
        assert_eq!(mount.at(opened.handle, 0).await.unwrap(), now.as_bytes());
        if now.len() >= 6 {
            assert_eq!((mount.reads(), begun.elapsed()), (2, took));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_byte_is_fetched_once_and_most_of_it_before_it_is_asked_for() {
    let mount = Mount::with_file(config());
    let (_, handle) = mount.open(Access::Read).await;
    mount.remote.set_latency(Some(Duration::from_millis(1)));
    let before = tokio::time::Instant::now();
    assert_eq!(mount.read(handle, 0, SIZE).await, *PLAIN);
    assert_eq!(mount.reads(), SIZE / STEP);
    let waits = before.elapsed().as_millis();
    assert!(waits <= u128::from(SIZE / STEP / 2), "{waits}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_fetched_ahead_where_that_is_not_wanted() {
    let strict = Config { consistency: Consistency::Strict, ..config() };
    for (config, direct) in
        [(Config { readahead_bytes: 0, ..config() }, false), (strict, false), (config(), true)]
    {
        let mount = Mount::with_file(config);
        let ino = mount.found().await;
        let request = OpenRequest { direct, ..OpenRequest::plain(Access::Read) };
        let handle = mount.vfs.open(ino, request).await.unwrap().handle;
        mount.read(handle, 0, SIZE / 2).await;
        assert_eq!(mount.reads(), SIZE / 2 / STEP);
    }
}

#[tokio::test(start_paused = true)]
async fn random_reads_fetch_what_was_asked_for() {
    let mount = Mount::with_file(config());
    let (_, handle) = mount.open(Access::Read).await;
    let mut state = 7u64;
    for _ in 0..200 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (state >> 33) % (SIZE / 4096);
        mount.vfs.read(handle, page * 4096, 4096).await.unwrap();
    }
    assert_eq!(mount.reads(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_fails_is_nobodys_error() {
    for nth in 1.. {
        let mount = Mount::with_file(config());
        let (_, handle) = mount.open(Access::Read).await;
        mount.faulty.fail(Call::Read, nth, Errno::EIO);
        let mut got = Vec::new();
        for offset in (0..SIZE).step_by(STEP as usize) {
            let read = mount.at(handle, offset).await;
            // The first request is the reader's own, and so is its error.
            assert_eq!(read.is_err(), nth == 1 && offset == 0, "{nth}");
            got.extend(match read {
                Ok(data) => data,
                Err(_) => mount.at(handle, offset).await.unwrap(),
            });
        }
        assert!(got == *PLAIN, "{nth}");
        if mount.faulty.not_reached() > 0 {
            assert!(nth > SIZE / STEP, "{nth}");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_hangs_holds_up_who_reads_there_and_nobody_else() {
    for nth in 2..8 {
        let mount = Mount::with_file(config());
        let (_, handle) = mount.open(Access::Read).await;
        // As a session delays one answer, but not those behind it.
        let gate = mount.faulty.hold_answer(Call::Read, nth);
        let hung = (nth - 1) * STEP;
        mount.read(handle, 0, hung).await;
        let mut stuck = Box::pin(mount.at(handle, hung));
        assert!(waits(stuck.as_mut()).await, "{nth}");
        assert!(gate.has_arrived());
        // Another reader of the same file, elsewhere in it.
        let elsewhere = mount.at(handle, SIZE / 2).await.unwrap();
        assert!(elsewhere == PLAIN[SIZE as usize / 2..][..STEP as usize]);
        // A second one there shares the fetch, and still has it when the first is cancelled.
        let mut second = Box::pin(mount.at(handle, hung));
        assert!(waits(second.as_mut()).await);
        let asked = mount.reads();
        drop(stuck);
        gate.release();
        assert!(second.await.unwrap() == PLAIN[hung as usize..][..STEP as usize]);
        assert_eq!(mount.reads(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn two_who_have_the_file_open_share_what_was_fetched() {
    let mount = Mount::with_file(config());
    let (_, one) = mount.open(Access::Read).await;
    mount.read(one, 0, SIZE / 2).await;
    mount.quiet().await;
    let asked = mount.reads();
    let ahead = asked * STEP - SIZE / 2;
    assert!(ahead > 0);
    // Its open finds the same content, long past the racy window.
    let (_, other) = mount.open(Access::Read).await;
    let read = mount.at(other, SIZE / 2).await.unwrap();
    assert!(read == PLAIN[SIZE as usize / 2..][..STEP as usize]);
    // The first open began with nothing to keep; if the second did too, there would be a new fetch.
    assert!(mount.at(one, SIZE / 2 + STEP).await.unwrap().len() as u64 == STEP);
    mount.quiet().await;
    assert!(mount.reads() <= asked + ahead / STEP, "{} {asked}", mount.reads());
}

/// C7
#[tokio::test(start_paused = true)]
async fn what_was_fetched_before_a_change_made_here_is_not_used() {
    let changes: [&str; 4] = ["write", "truncate", "cut by an open", "copy"];
    for change in changes {
        let mount = Mount::with_file(config());
        mount.remote.put_file("g", content(7, SIZE));
        let (ino, reader) = mount.open(Access::Read).await;
        let writer = mount.vfs.open(ino, OpenRequest::plain(Access::Write)).await.unwrap().handle;
        mount.read(reader, 0, SIZE / 2).await;
        mount.quiet().await;
        let from = SIZE / 2;
        let expected: &[u8] = match change {
            "write" => {
                mount.vfs.write(writer, from, Bytes::from_static(b"new")).await.unwrap();
                b"new"
            }
            "truncate" => {
                let cut = AttrChange { size: Some(from + 2), ..AttrChange::default() };
                mount.vfs.setattr(ino, cut, Some(writer)).await.unwrap();
                &PLAIN[from as usize..][..2]
            }
            "cut by an open" => {
                let request = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
                while mount.vfs.open(ino, request).await == Err(Errno::ESTALE) {}
                b""
            }
            _ => {
                let LookupResult::Found(other) = mount.vfs.lookup(Ino::ROOT, b"g").await.unwrap()
                else {
                    panic!("g is absent");
                };
                let plain = OpenRequest::plain(Access::Read);
                let other = mount.vfs.open(other.ino, plain).await.unwrap().handle;
                mount.vfs.copy_file_range((other, 0), (writer, from), STEP).await.unwrap();
                &content(7, STEP)
            }
        };
        let got = mount.at(reader, from).await.unwrap();
        assert!(got.starts_with(expected), "{change}");
        if expected.len() < 3 {
            assert_eq!(got.len(), expected.len(), "{change}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_on_its_way_when_a_write_began_is_not_used() {
    let mount = Mount::with_file(config());
    let (ino, reader) = mount.open(Access::Read).await;
    let writer = mount.vfs.open(ino, OpenRequest::plain(Access::Write)).await.unwrap().handle;
    // The server has read the old content; its answer comes late.
    let gates: Vec<_> = (1..=3).map(|nth| mount.faulty.hold_answer(Call::Read, nth)).collect();
    let mut pending = Box::pin(mount.at(reader, 0));
    assert!(waits(pending.as_mut()).await);
    assert_eq!((mount.reads(), mount.faulty.not_reached()), (3, 0));
    mount.vfs.write(writer, 2 * STEP, Bytes::from_static(b"new")).await.unwrap();
    drop(gates);
    pending.await.unwrap();
    assert!(mount.at(reader, 2 * STEP).await.unwrap().starts_with(b"new"));
}

/// C7
#[tokio::test(start_paused = true)]
async fn what_another_machine_changed_is_seen_when_it_is_known_and_after_a_few_seconds() {
    for told in [true, false] {
        let files = vfs::Timeout::fixed(Duration::from_secs(1));
        let mount = Mount::with_file(Config { files, ..config() });
        let (ino, reader) = mount.open(Access::Read).await;
        mount.read(reader, 0, SIZE / 2).await;
        mount.quiet().await;
        mount.remote.edit(|tree| {
            let ino = tree.lookup(&path("f"), Follow::No).unwrap();
            tree.write(ino, 0, &content(9, SIZE)).unwrap();
        });
        mount.remote.set_mtime("f", LONG_AGO + 5);
        if told {
            advance(Duration::from_secs(1)).await;
            mount.vfs.getattr(ino).await.unwrap();
        } else {
            advance(Duration::from_secs(4)).await;
        }
        let got = mount.read(reader, SIZE / 2, SIZE).await;
        assert!(got == content(9, SIZE)[SIZE as usize / 2..], "told: {told}");
    }
}

/// C7: a content that changed twice within the second of its validator must not come back after an
/// open has dropped the kernel's pages.
#[tokio::test(start_paused = true)]
async fn an_open_that_drops_the_pages_drops_what_was_fetched() {
    let mount = Mount::with_file(config());
    let now = base::Timestamp::now().secs;
    mount.remote.set_mtime("f", now);
    let (_, first) = mount.open(Access::Read).await;
    mount.read(first, 0, SIZE / 2).await;
    mount.quiet().await;
    mount.remote.put_file("f", content(9, SIZE));
    mount.remote.set_mtime("f", now);
    let request = OpenRequest::plain(Access::Read);
    let ino = mount.found().await;
    // The validator is the same, so the open cannot detect it; but the answer must not be from
    // before.
    let opened = mount.vfs.open(ino, request).await.unwrap();
    if !opened.keep_cache || opened.direct_io {
        let got = mount.at(opened.handle, SIZE / 2).await.unwrap();
        assert!(got == content(9, SIZE)[SIZE as usize / 2..][..STEP as usize]);
    } else {
        panic!("an unsettled content was trusted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_growing_file_is_read_to_its_end_each_time() {
    let mount = mounted(config());
    mount.remote.put_file("f", content(0, 3 * STEP / 2));
    let (_, handle) = mount.open(Access::Read).await;
    let mut at = mount.read(handle, 0, 2 * STEP).await.len() as u64;
    assert_eq!(at, 3 * STEP / 2);
    for _ in 0..20 {
        assert!(mount.at(handle, at).await.unwrap().is_empty());
        mount.remote.edit(|tree| {
            let ino = tree.lookup(&path("f"), Follow::No).unwrap();
            tree.write(ino, at, &content(0, at + 5000)[at as usize..]).unwrap();
        });
        let more = mount.at(handle, at).await.unwrap();
        assert!(more == content(0, at + 5000)[at as usize..], "{at}");
        at += more.len() as u64;
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_closed_leaves_nothing_on_its_way() {
    let mount = Mount::with_file(config());
    let (_, handle) = mount.open(Access::Read).await;
    let gate = mount.faulty.hold(Call::Read, 3);
    mount.read(handle, 0, STEP).await;
    gate.arrived().await;
    mount.vfs.release(handle);
    gate.over().await;
    mount.quiet().await;
    assert_eq!(mount.remote.open_handles(), 0);
}

#[tokio::test(start_paused = true)]
async fn readers_far_apart_are_each_read_ahead_of_within_the_bound() {
    let bound = 512 * KIB;
    let mount = Mount::with_file(Config { readahead_bytes: bound, ..config() });
    let (_, handle) = mount.open(Access::Read).await;
    let quarter = SIZE / 4;
    let mut got = vec![Vec::new(); 4];
    for offset in (0..quarter).step_by(STEP as usize) {
        for (reader, got) in got.iter_mut().enumerate() {
            let at = reader as u64 * quarter + offset;
            got.extend(mount.at(handle, at).await.unwrap());
            let read = (offset / STEP * 4 + reader as u64 + 1) * STEP;
            // Data behind the reader of the last quarter is never read.
            assert!(mount.reads() * STEP <= read + bound, "{}", mount.reads());
        }
    }
    assert!(got.concat() == *PLAIN);
}
