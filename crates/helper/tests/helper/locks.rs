//! Locks, byte by byte: two clients of one file, and a program beside them.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use base::{LockFamily, LockKind, LockOwner, LockRange};
use helper::{Error, Options};
use rustix::fs::{FlockOperation, flock};
use sftp::codec::{Body, FileAttrs, LockFound, LockRequest, OpenFlags, Reply, Request};

use super::peer::Client;

const ONE: LockOwner = LockOwner { family: LockFamily::Posix, number: 1 };
const TWO: LockOwner = LockOwner { family: LockFamily::Posix, number: 2 };
const FLOCK: LockOwner = LockOwner { family: LockFamily::Flock, number: 1 };
const WRITE: Option<LockKind> = Some(LockKind::Write);

const EINTR: i32 = 4;
const EBADF: i32 = 9;
const EAGAIN: i32 = 11;

fn range(start: u64, last: u64) -> LockRange {
    LockRange::new(start, last).unwrap()
}

fn set(owner: LockOwner, range: LockRange, kind: Option<LockKind>, wait_ms: u32) -> LockRequest {
    LockRequest::Set { owner, range, kind, wait_ms }
}

/// The errno of a STATUS reply; 0 for success.
fn errno(reply: &Reply) -> i32 {
    match reply {
        Reply::Status { errno, .. } => errno.unwrap_or(0),
        other => panic!("{other:?}"),
    }
}

/// A client with an open file.
struct Locker {
    client: Client,
    handle: Vec<u8>,
}

impl Locker {
    fn of(dir: &Path) -> Locker {
        Locker::new(dir, false)
    }

    /// Replies go through a pipe, or through a socket.
    fn new(dir: &Path, is_pipe: bool) -> Locker {
        let options = Options { root: Some(dir.to_owned()), ..Options::default() };
        let mut client = if is_pipe { Client::by_pipe(options) } else { Client::new(options) };
        let attrs = FileAttrs::with_permissions(0o644);
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
        let handle = client.handle(Request::Open { path: b"f", flags, attrs }).to_vec();
        Locker { client, handle }
    }

    fn send(&mut self, id: u32, lock: LockRequest) {
        self.client.send(&[(id, Request::Lock { handle: &self.handle, lock })]);
    }

    fn call(&mut self, lock: LockRequest) -> Reply {
        self.client.call(Request::Lock { handle: &self.handle, lock })
    }

    fn set(&mut self, owner: LockOwner, range: LockRange, kind: Option<LockKind>) -> i32 {
        errno(&self.call(set(owner, range, kind, 0)))
    }
}

#[test]
fn a_waiting_request_delays_no_other_one_and_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Locker::of(dir.path()), Locker::of(dir.path()));
    assert_eq!(one.set(ONE, range(0, 9), WRITE), 0);
    two.send(70, set(TWO, range(5, 14), WRITE, 60_000));
    two.send(71, set(ONE, range(20, 29), WRITE, 0));
    let (id, reply) = two.client.receive();
    assert_eq!((id, errno(&reply)), (71, 0));
    let test = LockRequest::Test { owner: TWO, range: range(3, 40), kind: LockKind::Read };
    let found = LockFound(Some((range(3, 9), LockKind::Write)));
    match two.call(test) {
        Reply::Extended(body) => {
            let LockFound(Some((at, LockKind::Write))) = LockFound::decode(&body).unwrap() else {
                panic!("{body:?}")
            };
            assert!(at == range(0, 9) || at == range(20, 29), "{at:?}, not {found:?}");
        }
        other => panic!("{other:?}"),
    }
    two.send(72, LockRequest::Cancel { id: 70 });
    let mut answers = [two.client.receive(), two.client.receive()].map(|(id, it)| (id, errno(&it)));
    answers.sort_unstable();
    assert_eq!(answers, [(70, EINTR), (72, 0)]);
    // It is granted when it is free, and can still be cancelled.
    two.send(73, set(TWO, range(5, 14), WRITE, 10_000));
    assert_eq!(one.set(ONE, range(0, 9), None), 0);
    assert_eq!(two.client.receive().0, 73);
    assert_eq!(one.set(ONE, range(5, 5), WRITE), EAGAIN);
    two.send(74, LockRequest::Cancel { id: 73 });
    assert_eq!(two.client.receive().0, 74);
    assert_eq!(one.set(ONE, range(0, 14), WRITE), 0);
    // The time that the client has set.
    let begun = Instant::now();
    let late = errno(&two.call(set(TWO, range(0, 0), WRITE, 300)));
    assert_eq!(late, EAGAIN);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
    one.client.end().unwrap();
    assert_eq!(two.set(TWO, LockRange::WHOLE, None), 0);
    assert_eq!(two.set(TWO, range(0, 14), WRITE), 0, "all ended with the session");
    two.client.end().unwrap();
}

/// Ids are used again.
#[test]
fn a_cancelled_request_ends_no_earlier_lock_with_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Locker::of(dir.path()), Locker::of(dir.path()));
    assert_eq!(two.set(TWO, range(5, 9), WRITE), 0);
    for (wanted, result) in [(range(0, 4), 0), (range(5, 9), EAGAIN)] {
        one.send(70, set(ONE, wanted, WRITE, 0));
        let (id, reply) = one.client.receive();
        assert_eq!((id, errno(&reply)), (70, result));
    }
    one.send(71, LockRequest::Cancel { id: 70 });
    assert_eq!(one.client.receive().0, 71);
    assert_eq!(two.set(TWO, range(0, 4), WRITE), EAGAIN, "the lock is kept");
    one.client.end().unwrap();
    two.client.end().unwrap();
}

#[test]
fn requests_that_wait_are_bounded_and_end_with_their_handle() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Locker::of(dir.path()), Locker::of(dir.path()));
    assert_eq!(one.set(ONE, LockRange::WHOLE, WRITE), 0);
    for id in 0..80 {
        two.send(100 + id, set(TWO, range(id.into(), id.into()), WRITE, 10_000));
    }
    // Those that find no room are answered at once.
    for _ in 0..16 {
        let (id, reply) = two.client.receive();
        assert!(id >= 164, "{id}");
        assert_eq!(errno(&reply), EAGAIN);
    }
    let handle = two.handle.clone();
    two.client.send(&[(300, Request::Close { handle: &handle })]);
    let mut answers: Vec<(u32, i32)> =
        (0..65).map(|_| two.client.receive()).map(|(id, it)| (id, errno(&it))).collect();
    answers.sort_unstable();
    let expected: Vec<(u32, i32)> = (100..164).map(|id| (id, EBADF)).chain([(300, 0)]).collect();
    assert_eq!(answers, expected);
    // The end of the stream, with one that waits.
    let mut three = Locker::of(dir.path());
    three.send(400, set(TWO, range(0, 0), WRITE, 10_000));
    let begun = Instant::now();
    three.client.end().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    one.client.end().unwrap();
    two.client.end().unwrap();
}

#[test]
fn programs_of_the_server_are_excluded() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = Locker::of(dir.path());
    let file = File::open(dir.path().join("f")).unwrap();
    let try_lock = || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    assert_eq!(one.set(FLOCK, LockRange::WHOLE, WRITE), 0);
    assert!(!try_lock());
    assert_eq!(one.set(FLOCK, LockRange::WHOLE, None), 0);
    assert!(try_lock());
    assert_eq!(one.set(FLOCK, LockRange::WHOLE, Some(LockKind::Read)), EAGAIN);
    one.send(9, set(FLOCK, LockRange::WHOLE, WRITE, 10_000));
    flock(&file, FlockOperation::Unlock).unwrap();
    let (id, reply) = one.client.receive();
    assert_eq!((id, errno(&reply)), (9, 0));
    // With the last handle, also what its owner did not unlock.
    let handle = one.handle.clone();
    assert_eq!(errno(&one.client.call(Request::Close { handle: &handle })), 0);
    assert!(try_lock());
    one.client.end().unwrap();
}

/// A client that has lost its power sends no end of the stream.
#[test]
fn a_client_with_a_lease_that_takes_no_replies_loses_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("long"), vec![7; 200_000]).unwrap();
    for is_pipe in [false, true] {
        let (mut one, mut two) = (Locker::new(dir.path(), is_pipe), Locker::of(dir.path()));
        assert_eq!(errno(&one.call(LockRequest::Lease { seconds: 1 })), 0);
        assert_eq!(one.set(ONE, LockRange::WHOLE, WRITE), 0);
        let flags = OpenFlags::READ;
        let attrs = FileAttrs::default();
        let long = one.client.handle(Request::Open { path: b"long", flags, attrs });
        // More than streams have room for. The last request arrives long before the server blocks.
        let read = |id| (id, Request::Read { handle: &long, offset: 0, len: 200_000 });
        one.client.send(&(0..50).map(read).collect::<Vec<_>>());
        assert_eq!(errno(&two.call(set(TWO, LockRange::WHOLE, WRITE, 10_000))), 0);
        let ended = one.client.end();
        assert!(matches!(ended, Err(Error::Stream(_))), "{ended:?}");
        two.client.end().unwrap();
    }
}

/// The server waits already, without a limit, for a client that gets a lock then.
#[test]
fn a_client_that_takes_no_replies_loses_also_a_lock_that_it_has_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("long"), vec![7; 200_000]).unwrap();
    for is_pipe in [false, true] {
        let (mut one, mut two) = (Locker::new(dir.path(), is_pipe), Locker::of(dir.path()));
        assert_eq!(errno(&one.call(LockRequest::Lease { seconds: 1 })), 0);
        assert_eq!(two.set(TWO, LockRange::WHOLE, WRITE), 0);
        let (flags, attrs) = (OpenFlags::READ, FileAttrs::default());
        let long = one.client.handle(Request::Open { path: b"long", flags, attrs });
        one.send(70, set(ONE, LockRange::WHOLE, WRITE, 10_000));
        let read = |id| (id, Request::Read { handle: &long, offset: 0, len: 200_000 });
        one.client.send(&(0..50).map(read).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(500));
        // Until the other one has it.
        while two.set(TWO, LockRange::WHOLE, WRITE) == 0 {
            assert_eq!(two.set(TWO, LockRange::WHOLE, None), 0);
            std::thread::sleep(Duration::from_millis(200));
        }
        assert_eq!(errno(&two.call(set(TWO, LockRange::WHOLE, WRITE, 10_000))), 0);
        let ended = one.client.end();
        assert!(matches!(ended, Err(Error::Stream(_))), "{ended:?}");
        two.client.end().unwrap();
    }
}

/// The server waits already, without a lock to watch, for the next request of a client that gets a
/// lock then.
#[test]
fn a_silent_client_with_a_lease_loses_also_a_lock_that_it_has_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Locker::of(dir.path()), Locker::of(dir.path()));
    assert_eq!(errno(&one.call(LockRequest::Lease { seconds: 1 })), 0);
    assert_eq!(two.set(TWO, LockRange::WHOLE, WRITE), 0);
    one.send(70, set(ONE, LockRange::WHOLE, WRITE, 10_000));
    // Until the other one has it.
    while two.set(TWO, LockRange::WHOLE, WRITE) == 0 {
        assert_eq!(two.set(TWO, LockRange::WHOLE, None), 0);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(errno(&two.call(set(TWO, LockRange::WHOLE, WRITE, 10_000))), 0);
    let ended = one.client.end();
    assert!(matches!(ended, Err(Error::Silent(_))), "{ended:?}");
    two.client.end().unwrap();
}

#[test]
fn a_silent_client_with_a_lease_loses_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Locker::of(dir.path()), Locker::of(dir.path()));
    assert_eq!(errno(&one.call(LockRequest::Lease { seconds: 1 })), 0);
    // Without locks it may be silent.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(one.set(ONE, LockRange::WHOLE, WRITE), 0);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(errno(&one.call(LockRequest::Lease { seconds: 1 })), 0, "it is alive");
    }
    let begun = Instant::now();
    assert_eq!(errno(&two.call(set(TWO, LockRange::WHOLE, WRITE, 10_000))), 0);
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    let ended = one.client.end();
    assert!(matches!(ended, Err(Error::Silent(_))), "{ended:?}");
    two.client.end().unwrap();
}
