//! How long a close waits: for the writes, if its caller gets the result; otherwise not for a
//! server that makes no progress.

use std::cell::Cell;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Errno};
use bytes::Bytes;
use testkit::faulty::Gate;
use testkit::{Call, FaultyRemote, MemRemote};
use tokio::time::{Instant, timeout};
use vfs::{Caller, Config, Handle, Ino, OpenRequest, Vfs};

/// A close that should stop waiting has to return within this time.
const SOON: Duration = Duration::from_secs(2);

/// Longer than any close waits that should stop waiting.
const LONG: Duration = Duration::from_secs(3_600);

struct Mount {
    remote: Arc<MemRemote>,
    faulty: Arc<FaultyRemote<MemRemote>>,
    vfs: Vfs,
    ino: Ino,
    handle: Handle,
}

/// A mount with the file `f` open.
async fn mounted() -> Mount {
    let remote = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let config = Config { login: Some((0, 0)), ..Config::default() };
    let vfs = Vfs::new(faulty.clone(), config);
    let request = OpenRequest::plain(Access::ReadWrite);
    let (entry, opened) = vfs.create(Ino::ROOT, b"f", 0o644, true, request).await.unwrap();
    Mount { remote, faulty, vfs, ino: entry.ino, handle: opened.handle }
}

impl Mount {
    async fn write(&self, offset: u64, text: &str) {
        let text = Bytes::copy_from_slice(text.as_bytes());
        self.vfs.write(self.handle, offset, text).await.unwrap();
    }

    /// A write that is not answered until the gate is released.
    async fn written(&self) -> Gate {
        let gate = self.faulty.hold(Call::Write, 1);
        self.write(0, "content").await;
        gate.arrived().await;
        gate
    }

    /// A close by a caller in this state.
    async fn flush(&self, closer: Caller) -> Result<(), Errno> {
        self.vfs.flush_and_unlock(self.handle, None, || ready(closer)).await
    }

    /// The result of a close that should stop waiting, and when it returned.
    async fn freed(&self, closer: Caller) -> (Result<(), Errno>, Duration) {
        let begun = Instant::now();
        let result = timeout(SOON, self.flush(closer)).await.expect("kept waiting");
        (result, begun.elapsed())
    }
}

async fn waits<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
    timeout(LONG, future).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn who_leaves_does_not_wait_for_a_remote_that_stands_still() {
    for closer in [Caller::Exiting, Caller::Killed] {
        let mount = mounted().await;
        let gate = mount.written().await;
        let (result, took) = mount.freed(closer).await;
        assert_eq!(result, Ok(()));
        assert!(took >= Duration::from_millis(500), "{took:?}: an answer may take a moment");
        mount.vfs.release(mount.handle);
        assert_eq!(mount.remote.content("f"), b"");
        gate.release();
        mount.vfs.drain().await;
        assert_eq!(mount.remote.content("f"), b"content");
        assert_eq!(mount.remote.open_handles(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn who_leaves_waits_as_long_as_there_are_answers() {
    let mount = mounted().await;
    let gates: Vec<Gate> = (1..=8).map(|nth| mount.faulty.hold(Call::Write, nth)).collect();
    // Not contiguous, so that each is a request of its own.
    for number in 0..8 {
        mount.write(number * 10_000, "content").await;
    }
    let asked = Cell::new(0);
    let closer = || {
        asked.set(asked.get() + 1);
        ready(Caller::Exiting)
    };
    let mut flush = std::pin::pin!(mount.vfs.flush_and_unlock(mount.handle, None, closer));
    for gate in &gates {
        assert!(timeout(Duration::from_millis(900), &mut flush).await.is_err());
        gate.release();
    }
    assert_eq!(flush.await, Ok(()));
    assert!(asked.get() > 8, "it was looked after");
    // A killed process does not wait, whatever the server does.
    let gates: Vec<Gate> = (1..=8).map(|nth| mount.faulty.hold(Call::Write, nth)).collect();
    for number in 0..8 {
        mount.write(number * 10_000, "content").await;
    }
    let mut flush = std::pin::pin!(mount.flush(Caller::Killed));
    assert!(timeout(Duration::from_millis(400), &mut flush).await.is_err());
    gates[0].release();
    assert_eq!(timeout(Duration::from_millis(400), &mut flush).await, Ok(Ok(())));
    gates.iter().for_each(Gate::release);
    mount.vfs.drain().await;
}

#[tokio::test(start_paused = true)]
async fn who_is_told_waits_for_ever_and_can_be_freed() {
    let mount = mounted().await;
    let gate = mount.written().await;
    let mut flush = Box::pin(mount.flush(Caller::Alive));
    assert!(waits(flush.as_mut()).await);
    drop(flush);
    // It is still in flight, and the next close waits for it.
    let mut again = Box::pin(mount.flush(Caller::Alive));
    assert!(waits(again.as_mut()).await);
    gate.release();
    assert_eq!(again.await, Ok(()));
    assert_eq!(mount.remote.content("f"), b"content");
}

#[tokio::test(start_paused = true)]
async fn who_is_killed_while_he_waits_is_let_go() {
    let mount = mounted().await;
    let _gate = mount.written().await;
    let killed = Cell::new(false);
    let closer = || ready(if killed.get() { Caller::Killed } else { Caller::Alive });
    let mut flush = Box::pin(mount.vfs.flush_and_unlock(mount.handle, None, closer));
    assert!(waits(flush.as_mut()).await);
    killed.set(true);
    assert_eq!(timeout(SOON, flush).await, Ok(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_about_a_close_that_is_over_soon() {
    let mount = mounted().await;
    let gate = mount.written().await;
    let closer = || {
        panic!("asked");
        #[allow(unreachable_code)]
        ready(Caller::Exiting)
    };
    let mut flush = Box::pin(mount.vfs.flush_and_unlock(mount.handle, None, closer));
    assert!(timeout(Duration::from_millis(300), flush.as_mut()).await.is_err());
    gate.release();
    assert_eq!(flush.await, Ok(()));
    // Nothing is in flight.
    assert_eq!(mount.vfs.flush_and_unlock(mount.handle, None, closer).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn what_went_wrong_is_the_next_holders_to_hear() {
    let mount = mounted().await;
    mount.faulty.fail(Call::Write, 1, Errno::ENOSPC);
    let gate = mount.faulty.hold(Call::Fstat, 1);
    mount.write(0, "content").await;
    assert_eq!(mount.freed(Caller::Exiting).await.0, Ok(()), "it gets no result");
    gate.release();
    assert_eq!(mount.flush(Caller::Alive).await, Err(Errno::ENOSPC));
    assert_eq!(mount.flush(Caller::Alive).await, Ok(()), "reported once");
    assert_eq!(mount.vfs.lost_write(), None);
    // If there is none, the error is logged.
    let gate = mount.faulty.hold(Call::Write, 1);
    mount.faulty.fail(Call::Write, 1, Errno::EDQUOT);
    mount.write(0, "content").await;
    assert_eq!(mount.freed(Caller::Killed).await.0, Ok(()));
    mount.vfs.release(mount.handle);
    gate.release();
    mount.vfs.drain().await;
    assert_eq!(mount.vfs.lost_write(), Some(Errno::EDQUOT));
}

/// Mode and times are acknowledged as writes are, and the end of a mount waits for them too.
#[tokio::test(start_paused = true)]
async fn the_end_waits_for_changes_of_attributes() {
    let mount = mounted().await;
    let gate = mount.faulty.hold(Call::Fsetattr, 1);
    let chmod = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    mount.vfs.setattr(mount.ino, chmod, Some(mount.handle)).await.unwrap();
    assert_eq!(mount.freed(Caller::Killed).await.0, Ok(()));
    mount.vfs.release(mount.handle);
    assert_eq!((mount.vfs.stats().dirty_bytes, mount.vfs.stats().dirty_changes), (0, 1));
    let mut end = Box::pin(mount.vfs.drain());
    assert!(waits(end.as_mut()).await);
    assert_eq!(mount.remote.attr("f").perm, 0o644);
    gate.release();
    end.await;
    assert_eq!(mount.remote.attr("f").perm, 0o600);
    assert_eq!(mount.vfs.stats().dirty_changes, 0);
}

/// A server that does not support attribute changes by handle refuses all of them: after the first
/// refusal, which the close reports, each call gets its own error.
#[tokio::test(start_paused = true)]
async fn after_a_refusal_attributes_are_waited_for() {
    let mount = mounted().await;
    mount.faulty.fail(Call::Fsetattr, 1, Errno::EPERM);
    let chmod = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    mount.vfs.setattr(mount.ino, chmod, Some(mount.handle)).await.unwrap();
    assert_eq!(mount.flush(Caller::Alive).await, Err(Errno::EPERM));
    let request = OpenRequest::plain(Access::ReadWrite);
    let (entry, opened) = mount.vfs.create(Ino::ROOT, b"g", 0o644, true, request).await.unwrap();
    mount.faulty.fail(Call::Fsetattr, 1, Errno::EPERM);
    let refused = mount.vfs.setattr(entry.ino, chmod, Some(opened.handle)).await;
    assert_eq!(refused, Err(Errno::EPERM));
    assert_eq!(mount.vfs.flush(opened.handle).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_next_close_learns_what_was_written() {
    let mount = mounted().await;
    let gate = mount.written().await;
    assert_eq!(mount.freed(Caller::Exiting).await.0, Ok(()));
    gate.release();
    mount.vfs.drain().await;
    mount.faulty.reset_calls();
    assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
    assert_eq!(mount.faulty.calls(Call::Fstat), 1);
    assert_eq!(mount.vfs.getattr(mount.ino).await.unwrap().attr.size, 7);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_says_at_a_close_is_told() {
    let mount = mounted().await;
    mount.write(0, "content").await;
    assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
    // Only the last close requests the answer to this.
    mount.write(0, "CONTENT").await;
    let request = OpenRequest::plain(Access::Write);
    let other = mount.vfs.open(mount.ino, request).await.unwrap().handle;
    mount.faulty.fail_after(Call::Finish, 1, Errno::EDQUOT);
    let gate = mount.faulty.hold_answer(Call::Finish, 1);
    mount.vfs.release(mount.handle);
    gate.arrived().await;
    // The end of the mount waits for it.
    let mut drain = Box::pin(mount.vfs.drain());
    assert!(timeout(SOON, drain.as_mut()).await.is_err());
    gate.release();
    drain.await;
    assert_eq!(mount.vfs.fsync(other).await, Err(Errno::EDQUOT), "reported to other open files");
    assert_eq!(mount.vfs.lost_write(), Some(Errno::EDQUOT));
    mount.vfs.release(other);
    mount.vfs.drain().await;
    assert_eq!(mount.remote.open_handles(), 0);
}

/// A file that was only read is closed without a request for the answer, and an answer that is lost
/// with the connection does not mean that acknowledged writes were lost.
#[tokio::test(start_paused = true)]
async fn only_a_file_that_was_written_is_finished() {
    let mount = mounted().await;
    mount.write(0, "content").await;
    assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
    let request = OpenRequest::plain(Access::ReadWrite);
    let reader = mount.vfs.open(mount.ino, request).await.unwrap().handle;
    mount.vfs.release(reader);
    mount.vfs.drain().await;
    assert_eq!(mount.faulty.calls(Call::Finish), 0);
    mount.write(0, "CONTENT").await;
    assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
    mount.faulty.cut();
    mount.vfs.release(mount.handle);
    timeout(SOON, mount.vfs.drain()).await.expect("a link that is away is not waited for");
    assert_eq!(mount.faulty.calls(Call::Finish), 1);
    assert_eq!(mount.vfs.lost_write(), None);
}

/// A3: the server's answer to its close is the result of close(2), and the request is sent in the
/// same round trip as the writes.
#[tokio::test(start_paused = true)]
async fn a3_a_close_returns_what_the_server_answers_to_its_close() {
    let mount = mounted().await;
    mount.write(0, "content").await;
    mount.faulty.fail_after(Call::Flush, 1, Errno::EDQUOT);
    let gate = mount.faulty.hold_answer(Call::Write, 1);
    mount.write(7, ", and more").await;
    gate.arrived().await;
    let mut flush = Box::pin(mount.flush(Caller::Alive));
    assert!(timeout(SOON, flush.as_mut()).await.is_err());
    assert_eq!(mount.faulty.calls(Call::Flush), 1, "it does not wait for the write");
    gate.release();
    assert_eq!(flush.await, Err(Errno::EDQUOT));
    let other = mount.vfs.open(mount.ino, OpenRequest::plain(Access::Write)).await.unwrap().handle;
    mount.vfs.release(mount.handle);
    mount.vfs.drain().await;
    assert_eq!(mount.vfs.lost_write(), None, "it was reported");
    mount.vfs.release(other);
}

/// A3: also while another descriptor of the file is written to all the time.
#[tokio::test(start_paused = true)]
async fn a3_a_close_is_answered_while_another_descriptor_is_written() {
    let mount = mounted().await;
    let other = mount.vfs.open(mount.ino, OpenRequest::plain(Access::Write)).await.unwrap().handle;
    mount.write(0, "content").await;
    mount.faulty.fail_after(Call::Flush, 1, Errno::EDQUOT);
    let gates: Vec<Gate> = (1..=2).map(|nth| mount.faulty.hold(Call::Write, nth)).collect();
    let elsewhere = |offset| mount.vfs.write(other, offset, Bytes::from_static(b"other"));
    elsewhere(10_000).await.unwrap();
    let mut flush = Box::pin(mount.flush(Caller::Alive));
    assert!(timeout(SOON, flush.as_mut()).await.is_err());
    elsewhere(20_000).await.unwrap();
    gates[0].release();
    assert!(timeout(SOON, flush.as_mut()).await.is_err());
    gates[1].release();
    assert_eq!(flush.await, Err(Errno::EDQUOT));
}

/// Descriptors that share an open file are closed one after the other: the file is closed at the
/// server once, and not at all without writes.
#[tokio::test(start_paused = true)]
async fn a_file_is_closed_at_the_server_by_the_first_close_after_a_write() {
    let mount = mounted().await;
    assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
    assert_eq!(mount.faulty.calls(Call::Flush), 0);
    for _ in 0..3 {
        mount.write(0, "content").await;
        assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
        assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
        assert_eq!(mount.faulty.calls(Call::Flush), 1);
    }
    // The answer to the later writes.
    mount.faulty.fail_after(Call::Finish, 1, Errno::ENOSPC);
    mount.vfs.release(mount.handle);
    mount.vfs.drain().await;
    assert_eq!(mount.vfs.lost_write(), Some(Errno::ENOSPC));
}

/// If a close stops waiting, its answer goes to the log and into the exit code.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_close_that_is_given_up_is_not_lost() {
    let mount = mounted().await;
    mount.write(0, "content").await;
    mount.faulty.fail_after(Call::Flush, 1, Errno::EDQUOT);
    let gate = mount.faulty.hold_answer(Call::Flush, 1);
    assert_eq!(mount.freed(Caller::Killed).await.0, Ok(()));
    gate.release();
    mount.vfs.release(mount.handle);
    mount.vfs.drain().await;
    assert_eq!(mount.vfs.lost_write(), Some(Errno::EDQUOT));
    assert_eq!(mount.remote.open_handles(), 0);
}

/// The end of a mount waits for the answers to closes, after the background work has ended.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_close_at_the_end_of_the_mount_is_not_lost() {
    for closed_before in [false, true] {
        let mount = mounted().await;
        mount.write(0, "content").await;
        mount.faulty.fail_after(Call::Finish, 1, Errno::EDQUOT);
        let gate = mount.faulty.hold_answer(Call::Finish, 1);
        if closed_before {
            mount.vfs.release(mount.handle);
        }
        mount.vfs.end_background();
        mount.vfs.release(mount.handle);
        let mut drain = Box::pin(mount.vfs.drain());
        assert!(timeout(SOON, drain.as_mut()).await.is_err());
        gate.release();
        drain.await;
        assert_eq!(mount.vfs.lost_write(), Some(Errno::EDQUOT));
        assert_eq!(mount.remote.open_handles(), 0);
    }
}

/// If the connection is lost, the server's answer to the close is unknown; the writes were
/// acknowledged.
#[tokio::test(start_paused = true)]
async fn a_close_whose_answer_is_lost_is_no_failed_write() {
    for error in [Errno::EHOSTDOWN, Errno::ESTALE, Errno::EOPNOTSUPP] {
        let mount = mounted().await;
        mount.write(0, "content").await;
        mount.faulty.fail_after(Call::Flush, 1, error);
        assert_eq!(mount.flush(Caller::Alive).await, Ok(()));
        assert_eq!(mount.vfs.lost_write(), None);
        mount.vfs.release(mount.handle);
    }
}

/// A3: a child process that was forked while the file was open closes it in its execve(2), and does
/// not learn the result. The error stays for its parent.
#[tokio::test(start_paused = true)]
async fn an_error_is_reported_to_a_caller_that_can_use_it() {
    for closer in [Caller::Exiting, Caller::Killed] {
        for fails_at_close in [false, true] {
            let mount = mounted().await;
            let failing = if fails_at_close { Call::Flush } else { Call::Write };
            mount.faulty.fail(failing, 1, Errno::ENOSPC);
            mount.write(0, "content").await;
            let _ = mount.flush(closer).await;
            assert_eq!(mount.flush(Caller::Alive).await, Err(Errno::ENOSPC), "{closer:?}");
            assert_eq!(mount.flush(Caller::Alive).await, Ok(()), "once");
            mount.vfs.release(mount.handle);
            assert_eq!(mount.vfs.lost_write(), None);
        }
    }
}

/// A3: also if the parent closes the file while the close of the child process waits for the
/// server's answer.
#[tokio::test(start_paused = true)]
async fn a3_a_close_waits_for_the_answer_to_another_close_of_the_open_file() {
    let mount = mounted().await;
    mount.write(0, "content").await;
    mount.faulty.fail_after(Call::Flush, 1, Errno::EDQUOT);
    let gate = mount.faulty.hold_answer(Call::Flush, 1);
    let mut child = Box::pin(mount.flush(Caller::Exiting));
    assert!(timeout(Duration::from_millis(100), child.as_mut()).await.is_err());
    let mut parent = Box::pin(mount.flush(Caller::Alive));
    assert!(timeout(Duration::from_millis(100), parent.as_mut()).await.is_err());
    gate.release();
    let _ = child.await;
    assert_eq!(parent.await, Err(Errno::EDQUOT));
}

/// A3: also if that close has stopped waiting for the answer, or was interrupted.
#[tokio::test(start_paused = true)]
async fn a3_a_close_waits_for_the_answer_that_another_close_did_not_wait_for() {
    for closer in [Caller::Exiting, Caller::Killed, Caller::Alive] {
        let mount = mounted().await;
        mount.write(0, "content").await;
        mount.faulty.fail_after(Call::Flush, 1, Errno::EDQUOT);
        let gate = mount.faulty.hold_answer(Call::Flush, 1);
        if closer == Caller::Alive {
            let mut interrupted = Box::pin(mount.flush(closer));
            assert!(timeout(SOON, interrupted.as_mut()).await.is_err());
        } else {
            assert_eq!(mount.freed(closer).await.0, Ok(()));
        }
        let mut close = Box::pin(mount.flush(Caller::Alive));
        assert!(waits(close.as_mut()).await, "{closer:?}");
        gate.release();
        assert_eq!(close.await, Err(Errno::EDQUOT), "{closer:?}");
        assert_eq!(mount.flush(Caller::Alive).await, Ok(()), "once");
        assert_eq!(mount.vfs.fsync(mount.handle).await, Ok(()), "once");
        mount.vfs.release(mount.handle);
        mount.vfs.drain().await;
        assert_eq!((mount.faulty.calls(Call::Flush), mount.vfs.lost_write()), (1, None));
    }
}

/// A3: the answer to the close of the descriptor that writes in the other mode is waited for, too.
#[tokio::test(start_paused = true)]
async fn a3_a_close_waits_for_the_answer_about_writes_in_the_other_mode() {
    let mount = mounted().await;
    let data = Bytes::from_static(b"appended");
    mount.vfs.write_in_mode(mount.handle, 0, data, true, false).await.unwrap();
    mount.faulty.fail_after(Call::Flush, 1, Errno::EDQUOT);
    let gate = mount.faulty.hold_answer(Call::Flush, 1);
    assert_eq!(mount.freed(Caller::Killed).await.0, Ok(()));
    let mut close = Box::pin(mount.flush(Caller::Alive));
    assert!(waits(close.as_mut()).await);
    gate.release();
    assert_eq!(close.await, Err(Errno::EDQUOT));
}

/// A3: an error that no caller could use is logged, and shows in the exit code of the mount.
#[tokio::test(start_paused = true)]
async fn an_error_that_only_an_exiting_caller_got_is_a_lost_write() {
    let mount = mounted().await;
    mount.faulty.fail(Call::Write, 1, Errno::ENOSPC);
    mount.write(0, "content").await;
    let _ = mount.flush(Caller::Exiting).await;
    mount.vfs.release(mount.handle);
    assert_eq!(mount.vfs.lost_write(), Some(Errno::ENOSPC));
}

/// The answer to a close arrives behind that to a later open, over another session, and is older.
#[tokio::test(start_paused = true)]
async fn attributes_of_a_close_give_way_to_those_of_a_later_open() {
    let mount = mounted().await;
    mount.write(0, "content").await;
    let gate = mount.faulty.hold_answer(Call::Fstat, 1);
    let mut flush = std::pin::pin!(mount.flush(Caller::Alive));
    assert!(timeout(Duration::from_millis(1), &mut flush).await.is_err());
    gate.arrived().await;
    mount.remote.put_file("f", "other content");
    let request = OpenRequest::plain(Access::Read);
    let reader = mount.vfs.open(mount.ino, request).await.unwrap().handle;
    gate.release();
    assert_eq!(flush.await, Ok(()));
    assert_eq!(mount.vfs.getattr(mount.ino).await.unwrap().attr.size, 13);
    mount.vfs.release(reader);
}
