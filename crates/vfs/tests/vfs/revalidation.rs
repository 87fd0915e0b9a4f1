//! Revalidation of files before they are opened again: the number of requests and waits, and that
//! it does not change the promises about opens.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Errno};
use testkit::{Call, FaultyRemote, MemRemote};
use tokio::time::{Instant, advance};
use vfs::{
    Config, Consistency, Entry, Handle, Ino, LookupResult, OpenRequest, Opened, PageCache, Timeout,
    Vfs,
};

const LONG_AGO: i64 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);
const ROUND_TRIP: Duration = Duration::from_millis(10);

struct Mount {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    vfs: Arc<Vfs>,
    files: Vec<Entry>,
}

/// Without listings, so that only the order of opens is known.
fn config() -> Config {
    let (dirs, negative) = (Timeout::fixed(Duration::ZERO), Duration::ZERO);
    Config { login: Some((0, 0)), dirs, negative, ..Config::default() }
}

fn name(number: usize) -> String {
    format!("f{number}")
}

fn put(remote: &MemRemote, number: usize, content: &str, mtime: i64) {
    remote.put_file(&name(number), content);
    remote.set_mtime(&name(number), mtime);
}

/// This many files, each of which was opened once, a second ago.
async fn opened_before(config: Config, files: usize) -> Mount {
    let remote = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let vfs = Arc::new(Vfs::new(faulty.clone(), config));
    let mut mount = Mount { remote, faulty, vfs, files: Vec::new() };
    for number in 0..files {
        put(&mount.remote, number, "old", LONG_AGO);
        let file = found(&mount.vfs, number).await;
        mount.files.push(file);
        mount.open(number).await;
    }
    advance(SECOND).await;
    mount.reset();
    mount
}

async fn found(vfs: &Vfs, number: usize) -> Entry {
    match vfs.lookup(Ino::ROOT, name(number).as_bytes()).await.unwrap() {
        LookupResult::Found(entry) => entry,
        LookupResult::Absent(_) => panic!("{number} is absent"),
    }
}

async fn read(vfs: &Vfs, handle: Handle) -> Vec<u8> {
    vfs.read(handle, 0, 1000).await.unwrap().to_vec()
}

impl Mount {
    async fn try_open(&self, number: usize) -> Result<Opened, Errno> {
        self.vfs.open(self.files[number].ino, OpenRequest::plain(Access::Read)).await
    }

    /// Opens, reads and closes a file. Returns whether the kernel's pages are kept.
    async fn open(&self, number: usize) -> bool {
        let opened = self.try_open(number).await.unwrap();
        if !opened.keep_cache {
            read(&self.vfs, opened.handle).await;
        }
        self.vfs.flush(opened.handle).await.unwrap();
        self.vfs.release(opened.handle);
        opened.keep_cache
    }

    fn reset(&self) {
        self.remote.reset_calls();
        self.faulty.reset_calls();
    }

    /// The numbers of opens and of lstat requests at the remote.
    fn asked(&self) -> (u64, u64) {
        (self.faulty.calls(Call::Open), self.faulty.calls(Call::Lstat))
    }

    async fn settle(&self) {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }
}

/// C2: each file that is opened in the earlier order is revalidated once, and few are waited for.
#[tokio::test(start_paused = true)]
async fn c2_what_followed_last_time_is_validated_together() {
    const FILES: usize = 1000;
    let mount = opened_before(config(), FILES).await;
    mount.remote.set_latency(Some(ROUND_TRIP));
    for round in 0..3 {
        let begun = Instant::now();
        for number in 0..FILES {
            assert!(mount.open(number).await, "{number}");
        }
        let waits = begun.elapsed().as_millis() / ROUND_TRIP.as_millis();
        assert!(waits <= FILES as u128 / 40, "{waits} round trips in round {round}");
        let (opens, lstats) = mount.asked();
        assert!(opens <= 2 && opens + lstats == FILES as u64, "{opens} and {lstats}");
        advance(SECOND).await;
        mount.reset();
    }
}

/// C1: a change before the revalidation of a file is visible, a later one a second later.
#[tokio::test(start_paused = true)]
async fn c1_what_was_closed_before_it_was_asked_about_is_read() {
    let mount = opened_before(config(), 3).await;
    put(&mount.remote, 1, "new", LONG_AGO + 1);
    mount.open(0).await;
    mount.settle().await;
    assert_eq!(mount.asked(), (1, 2));
    let opened = mount.try_open(1).await.unwrap();
    assert_eq!((opened.keep_cache, read(&mount.vfs, opened.handle).await), (false, b"new".into()));
    put(&mount.remote, 2, "newer", LONG_AGO + 1);
    assert!(mount.open(2).await, "asked about less than a second ago");
    advance(SECOND).await;
    assert_eq!(mount.try_open(2).await, Err(Errno::ESTALE), "the kernel knows another size");
    assert!(!mount.open(2).await);
}

/// C1: an answer is as old as its request. One that took long validates nothing.
#[tokio::test(start_paused = true)]
async fn c1_an_answer_counts_from_its_question() {
    let mount = opened_before(config(), 2).await;
    let gate = mount.faulty.hold_answer(Call::Lstat, 1);
    mount.open(0).await;
    mount.settle().await;
    put(&mount.remote, 1, "new", LONG_AGO + 1);
    advance(SECOND).await;
    gate.release();
    mount.settle().await;
    mount.reset();
    let opened = mount.try_open(1).await.unwrap();
    assert_eq!(mount.asked().0, 1);
    assert_eq!((opened.keep_cache, read(&mount.vfs, opened.handle).await), (false, b"new".into()));
}

/// C1: an answer whose request was sent before a local change validates nothing.
#[tokio::test(start_paused = true)]
async fn c1_what_is_written_here_outdates_a_question_on_its_way() {
    let mount = opened_before(config(), 2).await;
    let gate = mount.faulty.hold_answer(Call::Lstat, 1);
    mount.open(0).await;
    mount.settle().await;
    let writer = OpenRequest::plain(Access::Write);
    let writer = mount.vfs.open(mount.files[1].ino, writer).await.unwrap().handle;
    mount.vfs.write(writer, 0, "NEW".into()).await.unwrap();
    mount.vfs.flush(writer).await.unwrap();
    mount.vfs.release(writer);
    gate.release();
    mount.settle().await;
    let opened = mount.try_open(1).await.unwrap();
    assert_eq!(read(&mount.vfs, opened.handle).await, b"NEW");
}

/// C2: with `open_revalidate=0` each open sends its own request, and so does an open without pages.
#[tokio::test(start_paused = true)]
async fn c2_nothing_is_asked_ahead_where_nothing_is_granted() {
    let each_asks = Config { open_revalidate: Duration::ZERO, ..config() };
    let no_pages = Config { page_cache: PageCache::Never, ..config() };
    let strict = Config { consistency: Consistency::Strict, ..config() };
    let others = Config { login: Some((7, 7)), ..config() };
    for config in [each_asks, no_pages, strict, others] {
        let mount = opened_before(config, 20).await;
        for number in 0..20 {
            mount.remote.set_perm(&name(number), 0o640);
        }
        for _ in 0..2 {
            mount.reset();
            for number in 0..20 {
                mount.open(number).await;
            }
            advance(SECOND).await;
        }
        assert_eq!(mount.asked(), (20, 0));
    }
}

/// T2: while attributes are valid no request is sent; when they expire, all are sent together.
#[tokio::test(start_paused = true)]
async fn t2_what_counts_is_not_asked_about() {
    let config = Config { consistency: Consistency::Timeout, ..config() };
    let mount = opened_before(config, 50).await;
    for number in 0..50 {
        mount.open(number).await;
    }
    assert_eq!(mount.asked(), (0, 0));
    advance(SECOND * 3600).await;
    for number in 0..50 {
        mount.open(number).await;
    }
    assert_eq!(mount.asked(), (1, 49));
}

/// An open of a file with a revalidation in flight waits for that answer, not for others, and sends
/// its own request if it does not arrive.
#[tokio::test(start_paused = true)]
async fn an_open_waits_for_its_own_answer_alone() {
    let mount = opened_before(config(), 4).await;
    let gate = mount.faulty.hold(Call::Lstat, 2);
    mount.open(0).await;
    assert!(mount.open(1).await && mount.open(3).await);
    assert_eq!(mount.asked(), (1, 3));
    let begun = Instant::now();
    assert!(mount.open(2).await, "by an open of its own");
    assert!((Duration::from_millis(100)..SECOND / 2).contains(&begun.elapsed()));
    assert_eq!(mount.asked(), (2, 3));
    gate.release();
    mount.settle().await;
    // One that shares the answer.
    advance(SECOND).await;
    mount.reset();
    let gate = mount.faulty.hold(Call::Lstat, 1);
    mount.open(0).await;
    let mut second = Box::pin(mount.open(1));
    tokio::select! {
        biased;
        _ = &mut second => panic!("there is no answer yet"),
        () = mount.settle() => gate.release(),
    }
    assert!(second.await);
    assert_eq!(mount.asked().0, 1);
}

/// A5: an open that waits for an answer can be cancelled at once.
#[tokio::test(start_paused = true)]
async fn a5_an_open_that_waits_is_given_up() {
    let mount = opened_before(config(), 2).await;
    let _gate = mount.faulty.hold(Call::Lstat, 1);
    mount.open(0).await;
    let waiting = tokio::time::timeout(ROUND_TRIP, mount.try_open(1)).await;
    assert!(waiting.is_err());
    assert_eq!((mount.vfs.handles(), mount.remote.open_handles()), (0, 0));
}

/// Whatever happens to a revalidation, the open that follows gets the right result.
#[tokio::test(start_paused = true)]
async fn a_question_that_fails_is_nobodys_error() {
    let mount = opened_before(config(), 5).await;
    mount.faulty.fail_always(Call::Lstat, Errno::EHOSTDOWN);
    assert!(mount.open(0).await);
    mount.settle().await;
    mount.faulty.clear();
    mount.remote.remove(&name(1));
    mount.reset();
    assert_eq!(mount.try_open(1).await, Err(Errno::ESTALE));
    assert!(mount.open(2).await && mount.open(3).await && mount.open(4).await);
    assert_eq!(mount.asked(), (1, 3), "revalidated once more, since an open had to wait");
}

/// A6: a file that has taken the name meanwhile is another file for the open handles of the old
/// one.
#[tokio::test(start_paused = true)]
async fn a6_a_replaced_file_is_not_taken_for_the_one_that_is_open() {
    let mount = opened_before(config(), 2).await;
    advance(SECOND).await;
    // Open at the remote.
    let file = mount.files[1].ino;
    let held = mount.vfs.open(file, OpenRequest::plain(Access::Read)).await.unwrap().handle;
    advance(SECOND).await;
    mount.remote.remove(&name(1));
    put(&mount.remote, 1, "another", LONG_AGO + 7);
    mount.open(0).await;
    mount.settle().await;
    assert_eq!(mount.try_open(1).await, Err(Errno::ESTALE));
    assert_ne!(found(&mount.vfs, 1).await.ino, file);
    assert_eq!(read(&mount.vfs, held).await, b"old");
}

/// A file that the kernel forgets, or that is removed locally, during its revalidation.
#[tokio::test(start_paused = true)]
async fn what_is_gone_meanwhile_is_not_brought_back() {
    let mount = opened_before(config(), 3).await;
    let (one, two) = (mount.faulty.hold(Call::Lstat, 1), mount.faulty.hold_answer(Call::Lstat, 2));
    mount.open(0).await;
    mount.settle().await;
    mount.vfs.forget(mount.files[1].ino, 1);
    mount.vfs.unlink(Ino::ROOT, name(2).as_bytes()).await.unwrap();
    one.release();
    two.release();
    mount.settle().await;
    let gone = mount.vfs.lookup(Ino::ROOT, name(2).as_bytes()).await.unwrap();
    assert!(matches!(gone, LookupResult::Absent(_)));
    mount.vfs.forget(mount.files[2].ino, 1);
    mount.vfs.forget(mount.files[0].ino, 1);
    assert_eq!((mount.vfs.inodes(), mount.remote.open_handles()), (1, 0));
}

/// Readers that never open the same files again cost a few requests for each open.
#[tokio::test(start_paused = true)]
async fn wrong_guesses_cost_no_more_than_the_opens() {
    const FILES: usize = 400;
    let mount = opened_before(config(), FILES).await;
    let mut opens = 0;
    // Of each hundred only the first is ever opened again.
    for _ in 0..20 {
        for number in (0..FILES).step_by(100) {
            mount.open(number).await;
            opens += 1;
        }
        advance(SECOND).await;
    }
    let (_, lstats) = mount.asked();
    assert!(lstats <= 3 * (FILES + opens) as u64, "{lstats} for {opens} opens, and those before");
    mount.reset();
    for number in (0..FILES).step_by(100) {
        mount.open(number).await;
    }
    assert!(mount.asked().1 <= 4, "what was asked about in vain is left alone");
}

/// If answers never arrive, the number of requests is bounded.
#[tokio::test(start_paused = true)]
async fn questions_on_their_way_are_bounded() {
    const FILES: usize = 2000;
    let mount = opened_before(config(), FILES).await;
    let _gates: Vec<_> =
        (1..=FILES as u64).map(|nth| mount.faulty.hold(Call::Lstat, nth)).collect();
    for number in (0..FILES).step_by(50) {
        mount.open(number).await;
    }
    assert!(mount.asked().1 <= 256, "{:?}", mount.asked());
    mount.vfs.end_background();
    assert_eq!(mount.remote.open_handles(), 0);
}
