//! A flush: the file is closed below and its answer told, and whoever goes on with the handle finds the
//! file open.

use std::time::Duration;

use base::{Access, Create, Errno, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use testkit::{Call, path};

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
async fn a_flush_returns_what_the_server_answers_to_a_close() {
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
        // It can be tried again.
        stage.put(fh, 0, "CONTENT").await.unwrap();
        assert_eq!(stage.recovering.flush(fh).await, Ok(()));
        assert_eq!(stage.content("f"), "CONTENT");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_more_is_asked_when_the_handle_is_given_back() {
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
async fn the_next_user_opens_the_file_once() {
    let stage = Stage::new();
    let fh = flushed(&stage, making()).await;
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

/// A write that begins between the close and its answer finds the file open, too.
#[tokio::test(start_paused = true)]
async fn a_close_on_its_way_is_in_nobody_s_way() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    let gate = stage.faulty.hold_answer(Call::Finish, 1);
    let mut flush = stage.recovering.flush(fh);
    assert!(poll_once(&mut flush).is_pending());
    stage.put(fh, 0, "CONTENT").await.unwrap();
    // The other descriptor is closed meanwhile.
    stage.recovering.flush(fh).await.unwrap();
    gate.release();
    assert_eq!(flush.await, Ok(()));
    assert_eq!(stage.content("f"), "CONTENT");
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn what_this_mount_does_to_its_names_takes_no_file_away() {
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

/// What has no name any more could not be opened again.
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

/// Whoever makes a file may write to it, whatever its permissions are.
#[tokio::test(start_paused = true)]
async fn a_file_that_may_not_be_written_is_opened_again_for_its_maker() {
    let stage = Stage::new();
    let flags = OpenFlags { create: Create::Exclusive(0o444), ..making() };
    let fh = flushed(&stage, flags).await;
    stage.put(fh, 0, "C").await.unwrap();
    assert_eq!(stage.content("f"), "Content");
    assert_eq!(stage.server().attr("f").perm, 0o444);
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// The file must be what it was. Whoever appends needs only the same file grown.
#[tokio::test(start_paused = true)]
async fn what_others_have_changed_meanwhile_is_not_written_to() {
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

#[tokio::test(start_paused = true)]
async fn a_loss_opens_the_file_again_as_any_other() {
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

/// Writes whose answers were lost are sent again through the file as it was opened again.
#[tokio::test(start_paused = true)]
async fn a_flush_is_behind_writes_that_are_sent_again() {
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

/// The close has begun: that nobody waits for it changes nothing.
#[tokio::test(start_paused = true)]
async fn a_flush_that_is_given_up_has_closed_the_file() {
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
