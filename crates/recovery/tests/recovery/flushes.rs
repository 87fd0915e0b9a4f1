//! A flush closes the file on the server and returns its answer. Another use of the handle finds
//! the file open.

use std::time::Duration;

use base::{Access, Create, Errno, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use testkit::{Call, path};
use tokio::time::Instant;

use super::stage::{Stage, Started, appending, making, others_run, poll_once};

/// A file with content, whose handle was flushed.
async fn flushed(stage: &Stage, flags: OpenFlags) -> base::Fh {
    let fh = stage.open("f", flags).await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.recovering.flush(fh).await.unwrap();
    assert_eq!(stage.server().open_handles(), 0, "it is closed at the server");
    stage.faulty.reset_calls();
    fh
}

#[tokio::test(start_paused = true)]
async fn a_flush_returns_the_servers_answer_to_a_close() {
    for lost_before in [false, true] {
        let stage = Stage::new();
        let fh = stage.create("f").await;
        stage.put(fh, 0, "content").await.unwrap();
        if lost_before {
            stage.faulty.fail_after(Call::Finish, 1, Errno::EHOSTDOWN);
        }
        stage.faulty.fail_after(Call::Finish, 1 + u64::from(lost_before), Errno::EDQUOT);
        assert_eq!(stage.recovering.flush(fh).await, Err(Errno::EDQUOT), "{lost_before}");
        assert_eq!(stage.faulty.not_reached(), 0);
        // The caller can retry.
        stage.put(fh, 0, "CONTENT").await.unwrap();
        assert_eq!(stage.recovering.flush(fh).await, Ok(()));
        assert_eq!(stage.content("f"), "CONTENT");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_after_a_flush_sends_no_request() {
    for finishes in [false, true] {
        let stage = Stage::new();
        let fh = flushed(&stage, making()).await;
        stage.recovering.flush(fh).await.unwrap();
        match finishes {
            true => stage.recovering.finish(fh).await.unwrap(),
            false => stage.recovering.close(fh),
        }
        for call in [Call::Open, Call::Close, Call::Finish] {
            assert_eq!(stage.faulty.calls(call), 0, "{call:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_use_reopens_the_file_once() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    // As a close does.
    stage.recovering.fstat(fh).await.unwrap();
    stage.recovering.flush(fh).await.unwrap();
    stage.faulty.reset_calls();
    let gate = stage.faulty.hold(Call::Open, 1);
    let recovering = &stage.recovering;
    let mut calls: Vec<Started<'_, _>> = vec![
        recovering.write(fh, 0, Bytes::from_static(b"AAAA")),
        recovering.write(fh, 2, Bytes::from_static(b"BBBB")),
        recovering.write(fh, 4, Bytes::from_static(b"CC")),
    ];
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    gate.arrived().await;
    let mut read = recovering.read(fh, 0, 100);
    assert!(poll_once(&mut read).is_pending());
    gate.release();
    let read = tokio::join!(read, async {
        for call in calls {
            assert_eq!(call.await, Ok(()));
        }
    });
    assert_eq!(read.0.unwrap().to_vec(), b"AABBCCt");
    assert_eq!(stage.content("f"), "AABBCCt");
    assert_eq!(stage.faulty.calls(Call::Open), 1);
    recovering.close(fh);
    stage.nothing_leaked().await;
}

/// A write that begins between the close and its reply finds the file open, too.
#[tokio::test(start_paused = true)]
async fn a_close_in_flight_does_not_block_others() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    let gate = stage.faulty.hold_answer(Call::Finish, 1);
    let mut flush = stage.recovering.flush(fh);
    assert!(poll_once(&mut flush).is_pending());
    stage.put(fh, 0, "CONTENT").await.unwrap();
    // The other descriptor is closed in the meantime.
    stage.recovering.flush(fh).await.unwrap();
    gate.release();
    assert_eq!(flush.await, Ok(()));
    assert_eq!(stage.content("f"), "CONTENT");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// A write that begins just before the close is refused by the inner remote. Only its own handle is
/// reopened: the others are not compared with a file that another client writes to.
#[tokio::test(start_paused = true)]
async fn a_write_that_a_close_overtakes_does_not_affect_other_handles() {
    for is_changed in [false, true] {
        let stage = Stage::new();
        let fh = stage.create("f").await;
        let other = stage.create("f").await;
        stage.put(fh, 0, "content").await.unwrap();
        stage.recovering.fstat(fh).await.unwrap();
        let gate = stage.faulty.hold(Call::Write, 1);
        stage.faulty.fail(Call::Write, 1, Errno::EBADF);
        let mut write = stage.recovering.write(fh, 0, Bytes::from_static(b"C"));
        let mut flush = stage.recovering.flush(fh);
        assert!(poll_once(&mut write).is_pending() && poll_once(&mut flush).is_pending());
        if is_changed {
            stage.server().put_file("f", "another content");
        }
        stage.faulty.reset_calls();
        gate.release();
        let (written, flushed) = tokio::join!(write, flush);
        assert_eq!(flushed, Ok(()));
        let expected = if is_changed { Err(Errno::ESTALE) } else { Ok(()) };
        assert_eq!((written, stage.faulty.calls(Call::Open)), (expected, 1), "{is_changed}");
        let content = if is_changed { "another content" } else { "Content" };
        assert_eq!(stage.read(other).await.unwrap(), content.as_bytes(), "{is_changed}");
        stage.recovering.close(fh);
        stage.recovering.close(other);
        stage.nothing_leaked().await;
    }
}

/// The same for a copy between two files.
#[tokio::test(start_paused = true)]
async fn a_copy_that_a_close_overtakes_does_not_affect_other_handles() {
    let stage = Stage::new();
    let (from, to) = (stage.create("from").await, stage.create("to").await);
    let other = stage.create("to").await;
    stage.put(from, 0, "content").await.unwrap();
    stage.recovering.fstat(from).await.unwrap();
    let gate = stage.faulty.hold(Call::Copy, 1);
    stage.faulty.fail(Call::Copy, 1, Errno::EBADF);
    let mut copy = stage.recovering.copy((from, 0), (to, 0), 7);
    let mut flush = stage.recovering.flush(from);
    assert!(poll_once(&mut copy).is_pending() && poll_once(&mut flush).is_pending());
    stage.faulty.reset_calls();
    gate.release();
    assert_eq!(tokio::join!(copy, flush), (Ok(7), Ok(())));
    assert_eq!((stage.content("to").as_str(), stage.faulty.calls(Call::Open)), ("content", 1));
    for fh in [from, to, other] {
        stage.recovering.close(fh);
    }
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_flushed_file_survives_unlink_and_rename() {
    let stage = Stage::new();
    let recovering = &stage.recovering;
    for what in ["unlink", "replace", "rename"] {
        let fh = flushed(&stage, making()).await;
        match what {
            "unlink" => recovering.unlink(&path("f")).await.unwrap(),
            "replace" => {
                stage.server().put_file("other", "other");
                recovering.rename(&path("other"), &path("f"), RenameMode::Replace).await.unwrap();
            }
            _ => recovering.rename(&path("f"), &path("new"), RenameMode::Replace).await.unwrap(),
        }
        stage.put(fh, 0, "C").await.unwrap();
        assert_eq!(stage.read(fh).await.unwrap(), b"Content", "{what}");
        match what {
            "replace" => assert_eq!(stage.content("f"), "other"),
            "rename" => assert_eq!(stage.content("new"), "Content"),
            _ => assert!(!stage.server().exists("f")),
        }
        recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// A file without a name could not be reopened.
#[tokio::test(start_paused = true)]
async fn a_removed_file_is_not_closed_by_a_flush() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.recovering.unlink(&path("f")).await.unwrap();
    assert_eq!(stage.recovering.flush(fh).await, Err(Errno::EOPNOTSUPP));
    stage.put(fh, 0, "C").await.unwrap();
    assert_eq!(stage.read(fh).await.unwrap(), b"Content");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// The file could be reopened neither by the name that is going nor by another.
#[tokio::test(start_paused = true)]
async fn a_file_whose_name_is_being_removed_is_not_closed_by_a_flush() {
    let stage = Stage::new();
    let recovering = &stage.recovering;
    for replace in [false, true] {
        let fh = stage.create("f").await;
        stage.put(fh, 0, "content").await.unwrap();
        stage.server().put_file("other", "other");
        let (name, other) = (path("f"), path("other"));
        let gate = stage.faulty.hold(if replace { Call::Rename } else { Call::Unlink }, 1);
        let mut removal: Started<'_, base::Result<()>> = match replace {
            true => recovering.rename(&other, &name, RenameMode::Replace),
            false => recovering.unlink(&name),
        };
        assert!(poll_once(&mut removal).is_pending());
        assert_eq!(recovering.flush(fh).await, Err(Errno::EOPNOTSUPP));
        gate.release();
        removal.await.unwrap();
        assert_eq!(stage.read(fh).await.unwrap(), b"content", "{replace}");
        stage.put(fh, 0, "C").await.unwrap();
        assert_eq!(stage.read(fh).await.unwrap(), b"Content", "{replace}");
        recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// The flush waits for the write verifier when the name is removed.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_removed_while_a_flush_begins_is_not_closed() {
    let stage = Stage::new();
    stage.faulty.set_write_verifier("the only run");
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    let mut flush: Started<'_, base::Result<()>> = stage.recovering.flush(fh);
    assert!(poll_once(&mut flush).is_pending());
    stage.recovering.unlink(&path("f")).await.unwrap();
    assert_eq!(flush.await, Err(Errno::EOPNOTSUPP));
    assert_eq!(stage.read(fh).await.unwrap(), b"content");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// The search has found the file by the name that is then removed.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_removed_while_it_is_reopened_has_no_name() {
    let stage = Stage::new();
    let recovering = &stage.recovering;
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.faulty.fail(Call::Read, 1, Errno::ESTALE);
    let gate = stage.faulty.hold_answer(Call::Open, 1);
    let removed = async {
        gate.arrived().await;
        recovering.unlink(&path("f")).await.unwrap();
        gate.release();
    };
    let (read, ()) = tokio::join!(stage.read(fh), removed);
    assert_eq!(read.unwrap(), b"content");
    assert_eq!(recovering.flush(fh).await, Err(Errno::EOPNOTSUPP));
    assert_eq!(stage.read(fh).await.unwrap(), b"content");
    // Another file of the same name and size is not this one.
    stage.server().put_file("f", "another");
    stage.blink();
    assert_eq!(stage.read(fh).await.err(), Some(Errno::ESTALE));
    recovering.close(fh);
    stage.nothing_leaked().await;
}

/// The creator of a file may write to it, whatever its mode is.
#[tokio::test(start_paused = true)]
async fn a_read_only_file_is_reopened_for_its_creator() {
    let stage = Stage::new();
    let flags = OpenFlags { create: Create::Exclusive(0o444), ..making() };
    let fh = flushed(&stage, flags).await;
    stage.put(fh, 0, "C").await.unwrap();
    assert_eq!(stage.content("f"), "Content");
    assert_eq!(stage.server().attr("f").perm, 0o444);
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// The file must be unchanged. For an append it may also have grown.
#[tokio::test(start_paused = true)]
async fn a_flushed_file_changed_by_others_is_not_written() {
    let stage = Stage::new();
    let fh = flushed(&stage, making()).await;
    let other =
        stage.recovering.open(&path("f"), OpenFlags::existing(Access::Read)).await.unwrap().fh;
    stage.server().put_file("f", "another content");
    assert_eq!(stage.put(fh, 0, "C").await, Err(Errno::ESTALE));
    assert_eq!(stage.content("f"), "another content");
    assert!(stage.read(other).await.is_ok(), "the handles that are open are not touched");
    stage.server().remove("f");
    assert_eq!(stage.put(fh, 0, "C").await, Err(Errno::ESTALE));
    stage.recovering.close(fh);
    stage.recovering.close(other);

    let fh = flushed(&stage, appending()).await;
    stage.server().put_file("f", "content, and theirs");
    stage.put(fh, 0, ", and mine").await.unwrap();
    assert_eq!(stage.content("f"), "content, and theirs, and mine");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// As a program that rotates logs does.
#[tokio::test(start_paused = true)]
async fn an_append_does_not_go_into_the_file_that_has_taken_the_name() {
    let others = "x".repeat(100_000);
    for theirs in ["another one, longer", "CONTENT", &others] {
        let stage = Stage::new();
        let fh = flushed(&stage, appending()).await;
        stage.server().rename(&path("f"), &path("f.1"), RenameMode::Replace).await.unwrap();
        stage.server().put_file("f", theirs);
        assert_eq!(stage.put(fh, 0, "mine").await, Err(Errno::ESTALE), "{theirs:.20}");
        assert_eq!(stage.content("f"), theirs);
        assert_eq!(stage.content("f.1"), "content");
        stage.recovering.close(fh);
    }
    // Others have emptied it before (copytruncate): what was appended here is at its beginning.
    let stage = Stage::new();
    stage.server().put_file("f", &others);
    let fh = stage.open("f", appending()).await;
    stage.server().put_file("f", "");
    stage.put(fh, 0, "mine").await.unwrap();
    stage.recovering.fstat(fh).await.unwrap();
    stage.recovering.flush(fh).await.unwrap();
    stage.server().put_file("f", ["mine", &*others, "theirs"].concat());
    stage.put(fh, 0, "mine").await.unwrap();
    stage.recovering.close(fh);
    // It has what was appended here, behind what others had appended before.
    let stage = Stage::new();
    let fh = flushed(&stage, appending()).await;
    let theirs = [&others, "content", &others].concat();
    stage.server().put_file("f", &theirs);
    stage.put(fh, 0, "mine").await.unwrap();
    assert!(stage.content("f").ends_with("xmine"));
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_reopens_a_flushed_file() {
    for (cut_before, flags) in [(true, making()), (false, making()), (true, appending())] {
        let stage = Stage::new();
        let fh = flushed(&stage, flags).await;
        if cut_before {
            stage.blink();
        } else {
            stage.faulty.fail_after(Call::Open, 1, Errno::EHOSTDOWN);
        }
        stage.put(fh, 0, "C").await.unwrap();
        let expected = if flags.append { "contentC" } else { "Content" };
        assert_eq!(stage.content("f"), expected);
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// The handle that was opened before the loss is as lost as the others: the append is not sent
/// through it, so its outcome is never in doubt.
#[tokio::test(start_paused = true)]
async fn a_handle_from_before_a_loss_is_not_used_after_it() {
    let stage = Stage::new();
    let fh = flushed(&stage, appending()).await;
    let other = stage.open("f", OpenFlags::existing(Access::Read)).await;
    let lost = stage.faulty.hold(Call::Read, 1);
    stage.faulty.fail(Call::Read, 1, Errno::ESTALE);
    let mut read = stage.recovering.read(other, 0, 100);
    assert!(poll_once(&mut read).is_pending());
    let gate = stage.faulty.hold_answer(Call::Open, 1);
    let mut append = stage.recovering.write(fh, 0, Bytes::from_static(b"C"));
    assert!(poll_once(&mut append).is_pending());
    gate.arrived().await;
    lost.release();
    assert!(poll_once(&mut read).is_pending(), "the loss is noticed");
    gate.release();
    assert!(poll_once(&mut append).is_pending());
    stage.faulty.restore_without_handles(Errno::ESTALE);
    let began = Instant::now();
    assert_eq!(append.await, Ok(()));
    assert_eq!(began.elapsed(), Duration::ZERO, "nothing is in doubt");
    read.await.unwrap();
    assert_eq!(stage.content("f"), "contentC");
    stage.recovering.close(fh);
    stage.recovering.close(other);
    stage.nothing_leaked().await;
}

/// Writes without a reply are replayed through the reopened file.
#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_replayed_writes() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.server().set_pending(true);
    let gate = stage.faulty.hold(Call::Write, 1);
    let mut write = stage.recovering.write(fh, 0, Bytes::from_static(b"content"));
    let mut flush = stage.recovering.flush(fh);
    assert!(poll_once(&mut write).is_pending() && poll_once(&mut flush).is_pending());
    gate.arrived().await;
    stage.cut_for(Duration::from_secs(3));
    assert_eq!(tokio::join!(write, flush), (Ok(()), Ok(())));
    assert_eq!(stage.content("f"), "content");
    stage.put(fh, 0, "C").await.unwrap();
    assert_eq!(stage.content("f"), "Content");
    stage.recovering.close(fh);
    others_run().await;
    stage.nothing_leaked().await;
}

/// The close has begun, so cancelling its caller has no effect.
#[tokio::test(start_paused = true)]
async fn a_cancelled_flush_has_closed_the_file() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    let gate = stage.faulty.hold(Call::Finish, 1);
    let mut flush = stage.recovering.flush(fh);
    assert!(poll_once(&mut flush).is_pending());
    drop(flush);
    gate.release();
    stage.put(fh, 0, "C").await.unwrap();
    assert_eq!(stage.content("f"), "Content");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}
