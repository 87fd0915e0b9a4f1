//! The three instruments of the faulty remote: failing, holding, cutting.

use std::sync::Arc;
use std::task::{Context, Waker};

use base::{Access, Create, Errno, OpenFlags, Opened, Remote};
use bytes::Bytes;
use testkit::faulty::Which;
use testkit::{Call, FaultyRemote, MemRemote, path};

fn faulty() -> Arc<FaultyRemote<MemRemote>> {
    let inner = MemRemote::new();
    inner.put_file("a", "content");
    Arc::new(FaultyRemote::new(Arc::new(inner)))
}

fn read_write() -> OpenFlags {
    OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::ReadWrite) }
}

async fn open(remote: &FaultyRemote<MemRemote>) -> Opened {
    remote.open(&path("a"), read_write()).await.unwrap()
}

#[tokio::test]
async fn the_nth_call_fails_once_before_it_took_effect() {
    let remote = faulty();
    remote.fail(Call::Mkdir, 2, Errno::EIO);
    remote.mkdir(&path("x"), 0o755).await.unwrap();
    remote.lstat(&path("a")).await.unwrap();
    assert_eq!(remote.mkdir(&path("y"), 0o755).await, Err(Errno::EIO));
    assert!(!remote.inner().exists("y"));
    assert_eq!(remote.not_reached(), 0);
    remote.mkdir(&path("y"), 0o755).await.unwrap();
    assert_eq!(remote.calls(Call::Mkdir), 3);
    assert_eq!(remote.inner().calls(Call::Mkdir), 2);
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_has_taken_effect() {
    let remote = faulty();
    remote.fail_after(Which::Any, 1, Errno::ETIMEDOUT);
    assert_eq!(remote.mkdir(&path("x"), 0o755).await, Err(Errno::ETIMEDOUT));
    assert!(remote.inner().exists("x"));
    remote.fail_after(Which::Any, 1, Errno::ETIMEDOUT);
    assert_eq!(remote.open(&path("a"), read_write()).await.unwrap_err(), Errno::ETIMEDOUT);
    assert_eq!(remote.inner().open_handles(), 0);
    remote.fail_after(Which::Any, 1, Errno::ETIMEDOUT);
    assert_eq!(remote.opendir(&path("")).await, Err(Errno::ETIMEDOUT));
    assert_eq!(remote.inner().open_handles(), 0);
    // It failed by itself: the caller gets that error.
    remote.fail_after(Which::Any, 1, Errno::ETIMEDOUT);
    assert_eq!(remote.lstat(&path("absent")).await, Err(Errno::ENOENT));
}

#[tokio::test]
async fn a_loop_over_n_ends_after_the_last_call() {
    let mut failed = 0;
    for nth in 1.. {
        let remote = faulty();
        remote.fail(Which::Any, nth, Errno::EIO);
        let story = async {
            let opened = remote.open(&path("a"), read_write()).await?;
            let written = remote.write(opened.fh, 0, Bytes::from_static(b"x")).await;
            remote.close(opened.fh);
            written?;
            remote.lstat(&path("a")).await
        };
        let result = story.await;
        assert_eq!(remote.inner().open_handles(), 0);
        if remote.not_reached() > 0 {
            assert!(result.is_ok());
            break;
        }
        assert_eq!(result, Err(Errno::EIO));
        failed += 1;
    }
    assert_eq!(failed, 3, "open, write and lstat; close is no round trip");
}

#[tokio::test]
async fn a_permanent_fault_lasts_until_cleared() {
    let remote = faulty();
    remote.fail_always(Call::Lstat, Errno::EACCES);
    for _ in 0..3 {
        assert_eq!(remote.lstat(&path("a")).await, Err(Errno::EACCES));
    }
    assert_eq!(remote.not_reached(), 0);
    remote.clear();
    remote.lstat(&path("a")).await.unwrap();
}

#[tokio::test]
async fn a_held_call_waits_before_the_remote_and_lets_others_pass() {
    let remote = faulty();
    let gate = remote.hold(Call::Mkdir, 1);
    assert!(!gate.has_arrived());
    let held = tokio::spawn({
        let remote = remote.clone();
        async move { remote.mkdir(&path("x"), 0o755).await }
    });
    gate.arrived().await;
    assert!(!remote.inner().exists("x"));
    remote.mkdir(&path("y"), 0o755).await.unwrap();
    gate.release();
    held.await.unwrap().unwrap();
    gate.over().await;
    assert!(remote.inner().exists("x"));
}

#[tokio::test]
async fn a_held_reply_has_the_earlier_state() {
    let remote = faulty();
    let gate = remote.hold_answer(Call::Lstat, 1);
    let absent = remote.hold_answer(Call::Lstat, 2);
    let asking = |at: &'static str| {
        let remote = remote.clone();
        async move { remote.lstat(&path(at)).await }
    };
    let old = tokio::spawn(asking("a"));
    gate.arrived().await;
    let nothing = tokio::spawn(asking("b"));
    absent.arrived().await;
    remote.inner().put_file("a", "longer content");
    remote.inner().put_file("b", "");
    drop((gate, absent));
    assert_eq!(old.await.unwrap().unwrap().size, 7);
    assert_eq!(nothing.await.unwrap(), Err(Errno::ENOENT));
}

#[tokio::test]
async fn dropping_a_held_open_closes_what_it_opened() {
    let remote = faulty();
    let gate = remote.hold_answer(Call::Open, 1);
    let held = tokio::spawn({
        let remote = remote.clone();
        async move { remote.open(&path("a"), read_write()).await }
    });
    gate.arrived().await;
    assert_eq!(remote.inner().open_handles(), 1);
    held.abort();
    gate.over().await;
    assert!(held.await.unwrap_err().is_cancelled());
    assert_eq!(remote.inner().open_handles(), 0);
}

/// Polls `call` once.
fn start<F: Future>(call: &mut std::pin::Pin<Box<F>>) -> bool {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test]
async fn calls_on_one_handle_queue_behind_a_held_one() {
    let remote = faulty();
    let (one, other) = (open(&remote).await.fh, open(&remote).await.fh);
    let gate = remote.hold(Call::Write, 1);
    let write = |fh, text: &'static str| Box::pin(remote.write(fh, 0, Bytes::from(text)));
    let mut first = write(one, "1111");
    let mut second = write(one, "222");
    let mut third = write(one, "33");
    let mut elsewhere = write(other, "4444444");
    assert!(!start(&mut first) && !start(&mut second) && !start(&mut third));
    assert!(start(&mut elsewhere), "another handle has nothing to wait for");
    // A dropped call leaves the queue, and does not admit others past the first.
    drop(second);
    assert!(!start(&mut third));
    assert_eq!(remote.inner().content("a"), b"4444444");
    // A close queues as well.
    remote.close(one);
    assert_eq!(remote.inner().open_handles(), 2);
    gate.release();
    let (first, third) = tokio::join!(first, third);
    assert_eq!((first, third), (Ok(()), Ok(())));
    assert_eq!(remote.inner().content("a"), b"3311444");
    while remote.inner().open_handles() > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_cut_fails_calls_in_flight_and_later_ones() {
    let remote = faulty();
    let fh = open(&remote).await.fh;
    remote.inner().set_pending(true);
    let _gate = remote.hold(Call::Lstat, 1);
    let at = path("a");
    let mut held = Box::pin(remote.lstat(&at));
    let mut opening = Box::pin(remote.open(&at, read_write()));
    let mut reading = Box::pin(remote.read(fh, 0, 10));
    assert!(!start(&mut held) && !start(&mut opening) && !start(&mut reading));
    remote.cut();
    assert_eq!(held.await, Err(Errno::EHOSTDOWN));
    // Even if the link is back before they are polled again.
    remote.restore();
    assert_eq!(opening.await.unwrap_err(), Errno::EHOSTDOWN);
    assert_eq!(reading.await, Err(Errno::EHOSTDOWN));
    assert_eq!(remote.inner().open_handles(), 1, "the open that was under way leaked");
    assert_eq!(remote.read(fh, 0, 10).await.unwrap().to_vec(), b"content");
    remote.cut();
    assert_eq!(remote.lstat(&at).await, Err(Errno::EHOSTDOWN));
    assert_eq!(remote.read(fh, 0, 10).await, Err(Errno::EHOSTDOWN));
    remote.restore_without_handles(Errno::ESTALE);
    assert_eq!(remote.read(fh, 0, 10).await, Err(Errno::ESTALE));
    let anew = open(&remote).await.fh;
    assert_eq!(remote.read(anew, 0, 10).await.unwrap().to_vec(), b"content");
    remote.close(fh);
    remote.close(anew);
    assert_eq!(remote.inner().open_handles(), 0);
}

#[tokio::test]
async fn a_remote_that_is_cut_off_is_away() {
    let remote = faulty();
    let mut gone = Box::pin(remote.disconnected());
    assert!(!remote.is_disconnected() && !start(&mut gone));
    assert_eq!(remote.write_verifier().await, Ok(None));
    remote.set_write_verifier("a run");
    assert_eq!(remote.write_verifier().await, Ok(Some(Bytes::from_static(b"a run"))));
    remote.cut();
    assert!(remote.is_disconnected() && start(&mut gone));
    assert_eq!(remote.write_verifier().await, Err(Errno::EHOSTDOWN));
    assert_eq!(remote.locate(&path("a")).await, Err(Errno::EHOSTDOWN));
    remote.restore();
    assert!(!remote.is_disconnected());
}
