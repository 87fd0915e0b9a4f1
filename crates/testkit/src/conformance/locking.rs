//! Rules for locks. A remote without locks refuses all of them.

use base::{
    Access, Errno, Fh, Lock, LockFamily, LockKind, LockOwner, LockRange, OpenFlags, Result,
};

use super::fixture::{Fixture, ok, poll_once};

const ONE: LockOwner = LockOwner { family: LockFamily::Posix, number: 1 };
const TWO: LockOwner = LockOwner { family: LockFamily::Posix, number: 2 };

fn range(start: u64, last: u64) -> LockRange {
    LockRange::new(start, last).expect("not empty")
}

fn flock(owner: LockOwner) -> LockOwner {
    LockOwner { family: LockFamily::Flock, ..owner }
}

/// A file, open for reading and writing. `None` if the remote has no locks, which is checked.
async fn file(fixture: &Fixture) -> Option<Fh> {
    let fh = fixture.open_rw("file").await;
    if fixture.has_locks() {
        return Some(fh);
    }
    let whole = LockRange::WHOLE;
    let refused = Err(Errno::EOPNOTSUPP);
    assert_eq!(fixture.lock(fh, Lock::new(ONE, whole, LockKind::Read), false).await, refused);
    assert_eq!(fixture.lock(fh, Lock::new(ONE, whole, LockKind::Read), true).await, refused);
    assert_eq!(fixture.unlock(fh, ONE, whole).await, refused);
    let tested = fixture.test_lock(fh, Lock::new(ONE, whole, LockKind::Read)).await;
    assert_eq!(tested, Err(Errno::EOPNOTSUPP));
    fixture.close(fh);
    None
}

async fn set(
    fixture: &Fixture,
    fh: Fh,
    owner: LockOwner,
    range: LockRange,
    kind: LockKind,
) -> Result<()> {
    fixture.lock(fh, Lock::new(owner, range, kind), false).await
}

/// Read locks share, write locks exclude, and only where ranges overlap.
pub async fn locks_exclude_each_other_by_range_and_kind(fixture: &Fixture) {
    use LockKind::{Read, Write};
    let Some(fh) = file(fixture).await else { return };
    ok("lock", "read", set(fixture, fh, ONE, range(0, 9), Read).await);
    ok("lock", "shared", set(fixture, fh, TWO, range(5, 14), Read).await);
    let excluded = Err(Errno::EAGAIN);
    assert_eq!(set(fixture, fh, TWO, range(9, 9), Write).await, excluded);
    ok("lock", "behind", set(fixture, fh, TWO, range(10, 14), Write).await);
    assert_eq!(set(fixture, fh, ONE, LockRange::WHOLE, Read).await, excluded);
    let found = fixture.test_lock(fh, Lock::new(ONE, range(3, 20), Read)).await;
    assert_eq!(found, Ok(Some((range(10, 14), Write))));
    assert_eq!(fixture.test_lock(fh, Lock::new(ONE, range(0, 9), Read)).await, Ok(None));
    // Part of a lock, up to the end of the file, past its size.
    ok("unlock", "a part", fixture.unlock(fh, TWO, range(0, 12)).await);
    ok("lock", "the part", set(fixture, fh, ONE, range(0, 12), Write).await);
    assert_eq!(set(fixture, fh, ONE, range(0, 13), Write).await, excluded);
    ok("unlock", "all", fixture.unlock(fh, TWO, LockRange::WHOLE).await);
    ok("lock", "all", set(fixture, fh, ONE, LockRange::WHOLE, Write).await);
    assert_eq!(set(fixture, fh, TWO, range(1 << 40, 1 << 40), Read).await, excluded);
    fixture.close(fh);
}

/// A lock of `flock` says nothing about those of `fcntl`, and needs no access.
pub async fn both_families_are_apart(fixture: &Fixture) {
    let Some(fh) = file(fixture).await else { return };
    let read = fixture.handle("file", OpenFlags::existing(Access::Read)).await;
    let whole = LockRange::WHOLE;
    ok("lock", "fcntl", set(fixture, fh, ONE, whole, LockKind::Write).await);
    ok("lock", "flock", set(fixture, read, flock(TWO), whole, LockKind::Write).await);
    let excluded = Err(Errno::EAGAIN);
    assert_eq!(set(fixture, fh, flock(ONE), whole, LockKind::Read).await, excluded);
    assert_eq!(set(fixture, read, TWO, whole, LockKind::Read).await, excluded);
    let refused = set(fixture, read, ONE, range(7, 7), LockKind::Write).await;
    assert_eq!(refused, Err(Errno::EBADF), "a write lock on a handle that only reads");
    ok("unlock", "flock", fixture.unlock(read, flock(TWO), whole).await);
    ok("lock", "flock", set(fixture, fh, flock(ONE), whole, LockKind::Read).await);
    ok("lock", "shared", set(fixture, read, flock(TWO), whole, LockKind::Read).await);
    fixture.close(read);
    fixture.close(fh);
}

/// As the system does: another owner may get the lock.
pub async fn a_failed_conversion_of_flock_removes_the_old_lock(fixture: &Fixture) {
    let Some(fh) = file(fixture).await else { return };
    let other = fixture.open_rw("file").await;
    let (one, two, whole) = (flock(ONE), flock(TWO), LockRange::WHOLE);
    ok("lock", "one", set(fixture, fh, one, whole, LockKind::Read).await);
    ok("lock", "two", set(fixture, other, two, whole, LockKind::Read).await);
    assert_eq!(set(fixture, fh, one, whole, LockKind::Write).await, Err(Errno::EAGAIN));
    ok("lock", "alone", set(fixture, other, two, whole, LockKind::Write).await);
    fixture.close(fh);
    fixture.close(other);
}

/// A caller waits until the lock is free.
pub async fn a_waiting_lock_is_set_after_an_unlock(fixture: &Fixture) {
    let Some(fh) = file(fixture).await else { return };
    let other = fixture.open_rw("file").await;
    for owner in [ONE, flock(ONE)] {
        let waiter = LockOwner { number: 7, ..owner };
        ok("lock", owner, set(fixture, fh, owner, LockRange::WHOLE, LockKind::Write).await);
        let mut waiting = Box::pin(fixture.lock(
            other,
            Lock::new(waiter, LockRange::WHOLE, LockKind::Write),
            true,
        ));
        assert!(poll_once(&mut waiting).is_pending(), "it is locked");
        let short = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(short, &mut waiting).await.is_err(), "it is still locked");
        ok("unlock", owner, fixture.unlock(fh, owner, LockRange::WHOLE).await);
        ok("lock", "when its time has come", waiting.await);
        let excluded = set(fixture, fh, owner, LockRange::WHOLE, LockKind::Read).await;
        assert_eq!(excluded, Err(Errno::EAGAIN));
        ok("unlock", waiter, fixture.unlock(other, waiter, LockRange::WHOLE).await);
    }
    fixture.close(fh);
    fixture.close(other);
}

/// Whether its caller was waiting, or about to get the lock: the locks are as before.
pub async fn a_dropped_call_leaves_the_locks_as_they_were(fixture: &Fixture) {
    let Some(fh) = file(fixture).await else { return };
    ok("lock", "before", set(fixture, fh, ONE, range(5, 9), LockKind::Read).await);
    ok("lock", "other", set(fixture, fh, TWO, range(7, 7), LockKind::Read).await);
    let mut waiting =
        Box::pin(fixture.lock(fh, Lock::new(ONE, range(0, 9), LockKind::Write), true));
    assert!(poll_once(&mut waiting).is_pending(), "it is locked");
    let short = std::time::Duration::from_millis(30);
    assert!(tokio::time::timeout(short, &mut waiting).await.is_err());
    drop(waiting);
    ok("unlock", "other", fixture.unlock(fh, TWO, LockRange::WHOLE).await);
    for polls in 0..4 {
        let mut call =
            Box::pin(fixture.lock(fh, Lock::new(ONE, range(0, 9), LockKind::Write), false));
        for _ in 0..polls {
            if poll_once(&mut call).is_ready() {
                // It was not dropped in time.
                ok("unlock", "set", fixture.unlock(fh, ONE, range(0, 4)).await);
                ok("lock", "again", set(fixture, fh, ONE, range(5, 9), LockKind::Read).await);
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        // The call may have been executed, but its lock does not stay.
        let mut attempts = 0;
        while let Err(errno) = set(fixture, fh, TWO, range(0, 9), LockKind::Read).await {
            assert_eq!((errno, attempts < 200), (Errno::EAGAIN, true), "a lock was left");
            attempts += 1;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        ok("unlock", "all", fixture.unlock(fh, TWO, LockRange::WHOLE).await);
        let kept = set(fixture, fh, TWO, range(9, 9), LockKind::Write).await;
        assert_eq!(kept, Err(Errno::EAGAIN), "the lock from before was lost after {polls} polls");
    }
    fixture.close(fh);
}

/// With its last handle, an owner loses its locks; those of others stay.
pub async fn locks_end_with_their_handles(fixture: &Fixture) {
    let Some(fh) = file(fixture).await else { return };
    let other = fixture.open_rw("file").await;
    ok("lock", "one", set(fixture, fh, ONE, range(0, 4), LockKind::Write).await);
    ok("lock", "two", set(fixture, other, TWO, range(5, 9), LockKind::Write).await);
    fixture.close(fh);
    let three = LockOwner { number: 3, ..ONE };
    let free = fixture.lock(other, Lock::new(three, range(0, 4), LockKind::Write), true);
    let limit = std::time::Duration::from_secs(20);
    ok("lock", "free", tokio::time::timeout(limit, free).await.expect("it ends"));
    let excluded = set(fixture, other, three, range(9, 9), LockKind::Read).await;
    assert_eq!(excluded, Err(Errno::EAGAIN));
    let refused = set(fixture, fh, ONE, range(0, 0), LockKind::Read).await;
    assert_eq!(refused, Err(Errno::EBADF), "the handle is closed");
    fixture.close(other);
}
