//! Locks across a lost connection. Owner 1 is behind the link, owner 2 is another client.

use std::time::Duration;

use base::{
    Access, Errno, Fh, Lock, LockFamily, LockKind, LockOwner, LockRange, OpenFlags, Remote,
};
use bytes::Bytes;
use recovery::RetryPolicy;
use testkit::{Call, path};

use super::stage::{Stage, Started, making, others_run, poll_once};

const OWN: LockOwner = LockOwner { family: LockFamily::Posix, number: 1 };
const OTHER: LockOwner = LockOwner { family: LockFamily::Posix, number: 2 };
const WHOLE: LockRange = LockRange::WHOLE;

fn range(start: u64, last: u64) -> LockRange {
    LockRange::new(start, last).unwrap()
}

async fn locked(stage: &Stage) -> Fh {
    let fh = stage.create("f").await;
    stage.put(fh, 0, "before").await.unwrap();
    stage.recovering.lock(fh, Lock::new(OWN, range(0, 9), LockKind::Write), false).await.unwrap();
    stage.recovering.lock(fh, Lock::new(OWN, range(20, 29), LockKind::Read), false).await.unwrap();
    fh
}

/// The other client, with a handle of its own at the server.
async fn other(stage: &Stage) -> Fh {
    stage.server().open(&path("f"), OpenFlags::existing(Access::ReadWrite)).await.unwrap().fh
}

async fn try_other(stage: &Stage, fh: Fh, range: LockRange, kind: LockKind) -> Result<(), Errno> {
    stage.server().lock(fh, Lock::new(OTHER, range, kind), false).await
}

/// The server has ended the session.
fn lose_session(stage: &Stage) {
    stage.faulty.cut();
    stage.server().end_locks();
    stage.faulty.restore_without_handles(Errno::ESTALE);
}

#[tokio::test(start_paused = true)]
async fn locks_are_set_again_before_anything_else() {
    let stage = Stage::new();
    let fh = locked(&stage).await;
    let there = other(&stage).await;
    // A write without an answer is replayed behind the locks.
    let held = stage.faulty.hold(Call::Write, 1);
    let mut writing: Started<'_, _> = Box::pin(stage.put(fh, 0, "after!"));
    assert!(poll_once(&mut writing).is_pending());
    lose_session(&stage);
    drop(held);
    let relocked = stage.faulty.hold(Call::Lock, 1);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut writing).await.is_err());
    assert_eq!(stage.content("f"), "before", "not before the lock");
    relocked.release();
    assert_eq!(writing.await, Ok(()));
    assert_eq!(stage.content("f"), "after!");
    for (at, kind) in [(range(5, 5), LockKind::Read), (range(25, 25), LockKind::Write)] {
        assert_eq!(try_other(&stage, there, at, kind).await, Err(Errno::EAGAIN));
    }
    assert_eq!(try_other(&stage, there, range(10, 25), LockKind::Read).await, Ok(()));
    // What was unlocked is not set again.
    stage.recovering.unlock(fh, OWN, WHOLE).await.unwrap();
    lose_session(&stage);
    assert_eq!(stage.read(fh).await.unwrap(), b"after!");
    assert_eq!(stage.server().locked_ranges(), 0);
    stage.server().close(there);
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_has_lost_its_lock_gets_errors_until_it_unlocks() {
    let stage = Stage::new();
    let fh = locked(&stage).await;
    let reader = stage.open("f", OpenFlags::existing(Access::Read)).await;
    let there = other(&stage).await;
    let mut lost: Started<'_, _> = Box::pin(stage.recovering.lost_lock(fh));
    assert!(poll_once(&mut lost).is_pending());
    let held = stage.faulty.hold(Call::Write, 1);
    let mut writing: Started<'_, _> = Box::pin(stage.put(fh, 0, "after!"));
    assert!(poll_once(&mut writing).is_pending());
    stage.faulty.cut();
    stage.server().end_locks();
    try_other(&stage, there, range(29, 29), LockKind::Write).await.unwrap();
    stage.faulty.restore_without_handles(Errno::ESTALE);
    drop(held);
    // Under the lock of another one, it must not be replayed.
    assert_eq!(writing.await, Err(Errno::EIO));
    assert_eq!(stage.content("f"), "before");
    lost.await;
    assert_eq!(stage.read(fh).await, Err(Errno::EIO));
    assert_eq!(stage.read(reader).await, Err(Errno::EIO), "the same file");
    assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::EIO));
    let again = stage.recovering.lock(fh, Lock::new(OWN, range(0, 0), LockKind::Read), true).await;
    assert_eq!(again, Err(Errno::EIO), "it believes to have the others");
    // All or nothing: the other client may lock the rest.
    assert_eq!(try_other(&stage, there, WHOLE, LockKind::Write).await, Ok(()));
    stage.recovering.unlock(fh, OWN, range(0, 9)).await.unwrap();
    assert_eq!(stage.read(fh).await, Err(Errno::EIO));
    // A later open knows nothing of it.
    let later = stage.open("f", making()).await;
    assert_eq!(stage.read(later).await.unwrap(), b"before");
    stage.recovering.unlock(fh, OWN, WHOLE).await.unwrap();
    assert_eq!(stage.read(fh).await.unwrap(), b"before");
    stage.server().close(there);
    stage.recovering.lock(fh, Lock::new(OWN, WHOLE, LockKind::Write), false).await.unwrap();
    for fh in [fh, reader, later] {
        stage.recovering.close(fh);
    }
    stage.nothing_leaked().await;
    assert_eq!(stage.server().locked_ranges(), 0);
}

/// The connection with the locks is lost while the server executes the parts of an append that came
/// over another one.
#[tokio::test(start_paused = true)]
async fn a_refused_append_to_a_locked_file_may_have_arrived_in_part() {
    for retry_policy in [RetryPolicy::Hard, RetryPolicy::None] {
        let stage = Stage::with(retry_policy);
        let fh = stage.open("f", super::stage::appending()).await;
        stage.put(fh, 0, "before ").await.unwrap();
        let lock = Lock::new(OWN, WHOLE, LockKind::Write);
        stage.recovering.lock(fh, lock, false).await.unwrap();
        stage.faulty.fail(Call::Write, 1, Errno::ESTALE);
        stage.server().put_file("f", "before app");
        stage.server().end_locks();
        assert_eq!(stage.put(fh, 0, "appended").await, Ok(()));
        assert_eq!(stage.content("f"), "before appended");
        let there = other(&stage).await;
        assert_eq!(try_other(&stage, there, WHOLE, LockKind::Read).await, Err(Errno::EAGAIN));
        stage.server().close(there);
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// The server has not noticed the loss: the former session holds the locks for a while.
#[tokio::test(start_paused = true)]
async fn a_lock_of_the_former_session_is_waited_for() {
    for (policy, is_in_time) in [
        (RetryPolicy::Hard, true),
        (RetryPolicy::Soft(Duration::from_secs(30)), true),
        (RetryPolicy::Soft(Duration::from_secs(3)), false),
    ] {
        let stage = Stage::with(policy);
        let fh = locked(&stage).await;
        let there = other(&stage).await;
        stage.faulty.cut();
        stage.server().end_locks();
        try_other(&stage, there, range(3, 3), LockKind::Write).await.unwrap();
        stage.faulty.restore_without_handles(Errno::ESTALE);
        let mut reading: Started<'_, _> = Box::pin(stage.read(fh));
        let early = tokio::time::timeout(Duration::from_secs(2), &mut reading).await;
        assert!(early.is_err(), "it waits for the lock");
        tokio::time::sleep(Duration::from_secs(3)).await;
        stage.server().close(there);
        assert_eq!(reading.await.is_ok(), is_in_time, "{policy:?}");
        let expected = if is_in_time { Ok(b"before".to_vec()) } else { Err(Errno::EIO) };
        assert_eq!(stage.read(fh).await, expected, "{policy:?}");
        stage.recovering.close(fh);
    }
}

/// Another client has replaced or changed the file: nothing can be reclaimed.
#[tokio::test(start_paused = true)]
async fn the_locks_of_a_file_that_is_gone_are_lost() {
    let stage = Stage::new();
    let fh = locked(&stage).await;
    stage.faulty.cut();
    stage.server().put_file("f", "another content");
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(stage.read(fh).await, Err(Errno::EIO));
    // A later open knows nothing of it.
    let later = stage.open("f", OpenFlags { truncate: true, ..making() }).await;
    assert_eq!(stage.put(later, 0, "new").await, Ok(()));
    assert_eq!(stage.content("f"), "new");
    stage.recovering.close(later);
    assert_eq!(stage.recovering.unlock(fh, OWN, WHOLE).await, Ok(()));
    assert_eq!(stage.read(fh).await, Err(Errno::ESTALE), "what it would be without a lock");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_lock_survives_a_loss_and_can_be_dropped() {
    let stage = Stage::new();
    let fh = locked(&stage).await;
    let there = other(&stage).await;
    try_other(&stage, there, range(50, 50), LockKind::Write).await.unwrap();
    for dropped in [true, false] {
        let mut waiting: Started<'_, _> = Box::pin(stage.recovering.lock(
            fh,
            Lock::new(OWN, range(40, 59), LockKind::Write),
            true,
        ));
        assert!(poll_once(&mut waiting).is_pending());
        stage.blink();
        let short = Duration::from_secs(5);
        assert!(tokio::time::timeout(short, &mut waiting).await.is_err(), "it is locked");
        if dropped {
            drop(waiting);
            continue;
        }
        stage.server().unlock(there, OTHER, WHOLE).await.unwrap();
        assert_eq!(waiting.await, Ok(()));
    }
    assert_eq!(try_other(&stage, there, range(40, 40), LockKind::Read).await, Err(Errno::EAGAIN));
    stage.server().close(there);
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// `flock(2)` removes a lock before it converts it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_a_failed_conversion_has_removed_is_not_set_again() {
    let [own, theirs] = [OWN, OTHER].map(|it| LockOwner { family: LockFamily::Flock, ..it });
    for waits in [false, true] {
        let stage = Stage::new();
        let fh = stage.create("f").await;
        stage.put(fh, 0, "content").await.unwrap();
        let there = other(&stage).await;
        let try_other = |kind| stage.server().lock(there, Lock::new(theirs, WHOLE, kind), false);
        stage.recovering.lock(fh, Lock::new(own, WHOLE, LockKind::Read), false).await.unwrap();
        try_other(LockKind::Read).await.unwrap();
        let mut converting: Started<'_, _> =
            Box::pin(stage.recovering.lock(fh, Lock::new(own, WHOLE, LockKind::Write), waits));
        match waits {
            true => assert!(poll_once(&mut converting).is_pending()),
            false => assert_eq!(converting.as_mut().await, Err(Errno::EAGAIN)),
        }
        try_other(LockKind::Write).await.unwrap();
        stage.blink();
        let read = tokio::time::timeout(Duration::from_secs(5), stage.read(fh)).await;
        assert_eq!(read.unwrap().unwrap(), b"content", "there is no lock to be set again");
        if waits {
            let long = tokio::time::timeout(Duration::from_secs(60), &mut converting).await;
            assert!(long.is_err(), "it is locked");
            stage.server().unlock(there, theirs, WHOLE).await.unwrap();
            assert_eq!(converting.as_mut().await, Ok(()));
            lose_session(&stage);
            assert_eq!(stage.read(fh).await.unwrap(), b"content");
            assert_eq!(try_other(LockKind::Read).await, Err(Errno::EAGAIN), "it is set again");
        }
        drop(converting);
        stage.server().close(there);
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// A lock would end with the handle that a flush closes.
#[tokio::test(start_paused = true)]
async fn a_locked_file_is_not_closed_by_a_flush() {
    let stage = Stage::new();
    let fh = locked(&stage).await;
    assert_eq!(stage.recovering.flush(fh).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(stage.server().locked_ranges(), 2);
    stage.recovering.unlock(fh, OWN, WHOLE).await.unwrap();
    assert_eq!(stage.recovering.flush(fh).await, Ok(()));
    assert_eq!(stage.server().open_handles(), 0);
    // The next lock opens it again.
    stage.recovering.lock(fh, Lock::new(OWN, WHOLE, LockKind::Write), false).await.unwrap();
    stage.recovering.write(fh, 0, Bytes::from_static(b"after!")).await.unwrap();
    stage.recovering.finish(fh).await.unwrap();
    others_run().await;
    assert_eq!((stage.server().locked_ranges(), stage.content("f")), (0, "after!".to_owned()));
}

/// A server of another kind serves the new connection.
#[tokio::test(start_paused = true)]
async fn locks_are_lost_if_the_server_has_none_any_more() {
    let stage = Stage::new();
    let fh = locked(&stage).await;
    stage.faulty.cut();
    stage.server().end_locks();
    stage.server().set_has_locks(false);
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(stage.read(fh).await, Err(Errno::EIO));
    stage.recovering.unlock(fh, OWN, WHOLE).await.unwrap();
    assert_eq!(stage.read(fh).await.unwrap(), b"before");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}
