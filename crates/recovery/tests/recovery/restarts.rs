//! Restarted servers, and the data that they may have lost.

use base::{AttrChange, Errno, Remote};
use bytes::Bytes;
use testkit::{Call, path};

use super::stage::{Stage, making, others_run, poll_once};

/// A server with a write verifier, and a file that was written in two parts and not synced.
async fn written(stage: &Stage) -> base::Fh {
    stage.faulty.set_write_verifier("first run");
    let fh = stage.create("f").await;
    stage.put(fh, 0, "0123456789").await.unwrap();
    // The verifier is requested in the background.
    others_run().await;
    stage.put(fh, 10, "abcdefghij").await.unwrap();
    assert_eq!(stage.recovering.status().files_unsynced, 1);
    fh
}

/// The machine crashes, and comes back with `content` in the file.
fn restarted(stage: &Stage, content: &str) {
    stage.faulty.cut();
    stage.server().put_file("f", content);
    stage.faulty.set_write_verifier("second run");
    stage.faulty.restore_without_handles(Errno::ESTALE);
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_lost_nothing_is_no_error() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    restarted(&stage, "0123456789abcdefghij");
    stage.put(fh, 20, "!").await.unwrap();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.content("f"), "0123456789abcdefghij!");
    assert_eq!(stage.recovering.status().files_unsynced, 0);
}

#[tokio::test(start_paused = true)]
async fn data_lost_by_a_restart_is_reported_by_the_next_fsync() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    restarted(&stage, "0123456789abcdefgh\0\0");
    assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::EIO));
    // Reported once.
    stage.put(fh, 10, "abcdefghij").await.unwrap();
    stage.recovering.fsync(fh).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn data_lost_by_a_restart_is_reported_by_the_next_write() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    restarted(&stage, "0123456789\0\0\0\0\0\0\0\0\0\0");
    // The loss is found when the file is reopened, also by a read.
    assert_eq!(stage.read(fh).await.unwrap().len(), 20);
    assert_eq!(stage.put(fh, 20, "!").await, Err(Errno::EIO));
    stage.put(fh, 10, "abcdefghij!").await.unwrap();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.content("f"), "0123456789abcdefghij!");
}

/// A4: the machine crashes while no handle of the file shows that: a flush has closed it, or the
/// handle is not used before another one is opened.
#[tokio::test(start_paused = true)]
async fn data_lost_by_an_unnoticed_restart_is_reported() {
    for (flushes, writes) in [(true, false), (true, true), (false, false), (false, true)] {
        let stage = Stage::new();
        let fh = written(&stage).await;
        if flushes {
            stage.recovering.flush(fh).await.unwrap();
        }
        restarted(&stage, "0123456789\0\0\0\0\0\0\0\0\0\0");
        let used = if flushes { fh } else { stage.create("f").await };
        let reported = match writes {
            true => stage.put(used, 0, "0").await,
            false => stage.recovering.fsync(used).await,
        };
        assert_eq!(reported, Err(Errno::EIO), "flushes: {flushes}, writes: {writes}");
        // Reported once.
        stage.put(used, 10, "abcdefghij").await.unwrap();
        stage.recovering.fsync(used).await.unwrap();
        for fh in [fh, used] {
            stage.recovering.close(fh);
        }
        stage.nothing_leaked().await;
    }
}

/// The connection is lost once more while the data is compared.
#[tokio::test(start_paused = true)]
async fn a_comparison_that_is_interrupted_is_repeated() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    stage.recovering.flush(fh).await.unwrap();
    restarted(&stage, "0123456789\0\0\0\0\0\0\0\0\0\0");
    stage.faulty.fail(Call::Read, 1, Errno::ESTALE);
    assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::EIO));
    assert_eq!(stage.faulty.not_reached(), 0);
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// The machine was restarted while no file was open. Data written since is not lost with a mere
/// connection.
#[tokio::test(start_paused = true)]
async fn a_restart_before_an_open_is_no_loss() {
    for flushes in [false, true] {
        let stage = Stage::new();
        let fh = written(&stage).await;
        stage.recovering.close(fh);
        restarted(&stage, "");
        let fh = stage.create("new").await;
        // These writes overlap, so they cannot be compared.
        stage.put(fh, 0, "0123456789").await.unwrap();
        stage.put(fh, 5, "ab").await.unwrap();
        if flushes {
            stage.recovering.flush(fh).await.unwrap();
        } else {
            stage.blink();
        }
        stage.recovering.fsync(fh).await.unwrap();
        stage.put(fh, 0, "x").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_restart_nothing_is_compared() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    stage.recovering.fstat(fh).await.unwrap();
    stage.faulty.reset_calls();
    stage.blink();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.faulty.calls(Call::Read), 0);
}

#[tokio::test(start_paused = true)]
async fn synced_data_is_not_compared() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    stage.recovering.fsync(fh).await.unwrap();
    stage.faulty.reset_calls();
    // This content is not the result of a crash alone.
    restarted(&stage, "xxxxxxxxxxxxxxxxxxxx");
    stage.put(fh, 0, "0").await.unwrap();
    assert_eq!(stage.faulty.calls(Call::Read), 0);
}

#[tokio::test(start_paused = true)]
async fn incomparable_data_is_treated_as_lost() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    // A part of the second write is overwritten, so its digest is no longer comparable.
    stage.put(fh, 12, "XY").await.unwrap();
    restarted(&stage, "0123456789abXYefghij");
    assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::EIO));
}

#[tokio::test(start_paused = true)]
async fn data_that_is_replayed_need_not_be_intact() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    let gate = stage.faulty.hold(Call::Write, 1);
    let mut write = stage.recovering.write(fh, 0, Bytes::from_static(b"9876543210jihgfedcba"));
    assert!(poll_once(&mut write).is_pending());
    restarted(&stage, "98765\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    drop(gate);
    write.await.unwrap();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.content("f"), "9876543210jihgfedcba");
}

#[tokio::test(start_paused = true)]
async fn a_truncated_file_is_compared_up_to_its_end() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    stage.put(fh, 20, "cut off").await.unwrap();
    let cut = AttrChange { size: Some(20), ..AttrChange::default() };
    stage.recovering.fsetattr(fh, cut).await.unwrap();
    restarted(&stage, "0123456789abcdefghij");
    stage.recovering.fsync(fh).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_write_verifier_is_trusted() {
    let stage = Stage::new();
    let fh = stage.open("f", making()).await;
    stage.put(fh, 0, "content").await.unwrap();
    others_run().await;
    stage.put(fh, 7, "!").await.unwrap();
    stage.blink();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.recovering.status().files_unsynced, 0);
}

/// The connection is lost before the server has sent its verifier.
#[tokio::test(start_paused = true)]
async fn incomparable_data_is_trusted_without_a_sign_of_a_restart() {
    let stage = Stage::new();
    let fh = stage.open("f", making()).await;
    stage.put(fh, 0, "0123456789").await.unwrap();
    stage.put(fh, 5, "ab").await.unwrap();
    stage.faulty.set_write_verifier("the only run");
    stage.blink();
    stage.put(fh, 7, "c").await.unwrap();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.content("f"), "01234abc89");
}

/// A server that cannot open another file at the moment is not asked again at each write.
#[tokio::test(start_paused = true)]
async fn a_failed_query_of_the_verifier_is_repeated_at_the_next_open() {
    let stage = Stage::new();
    stage.faulty.fail_write_verifier(Errno::EIO);
    for (name, opens) in [("f", 1), ("g", 2)] {
        let fh = stage.open(name, making()).await;
        for _ in 0..3 {
            others_run().await;
            stage.put(fh, 0, "content").await.unwrap();
        }
        others_run().await;
        assert_eq!(stage.faulty.write_verifier_calls(), opens);
    }
}

/// A8: another client appends as well, so the data is not where it is assumed to be. The verifier
/// becomes known between two opens.
#[tokio::test(start_paused = true)]
async fn a_live_handle_proves_that_the_server_did_not_restart() {
    let stage = Stage::new();
    stage.server().put_file("f", "");
    stage.faulty.set_write_verifier("the only run");
    let first = stage.open("f", super::stage::appending()).await;
    stage.put(first, 0, "mine ").await.unwrap();
    stage.server().put_file("f", "of another mine ");
    others_run().await;
    let second = stage.open("f", super::stage::appending()).await;
    stage.put(first, 0, "first ").await.unwrap();
    stage.put(second, 0, "second").await.unwrap();
    stage.recovering.fsync(first).await.unwrap();
    assert_eq!(stage.content("f"), "of another mine first second");
    // From now on the verifier is known.
    others_run().await;
    stage.put(first, 0, "!").await.unwrap();
    restarted(&stage, "of another mine first second\0");
    assert_eq!(stage.recovering.fsync(second).await, Err(Errno::EIO));
}

/// As above, but a flush has closed the only handle: a child process that inherits a descriptor
/// closes it.
#[tokio::test(start_paused = true)]
async fn a_flushed_handle_proved_that_the_server_had_not_restarted() {
    for answered in [true, false] {
        let stage = Stage::new();
        stage.server().put_file("f", "");
        stage.faulty.set_write_verifier("the only run");
        let first = stage.open("f", super::stage::appending()).await;
        let gate = stage.faulty.hold_answer(Call::Write, if answered { 9 } else { 1 });
        let mut write = stage.recovering.write(first, 0, Bytes::from_static(b"mine "));
        assert_eq!(poll_once(&mut write).is_pending(), !answered);
        let mut flush = stage.recovering.flush(first);
        assert!(poll_once(&mut flush).is_pending());
        gate.release();
        if !answered {
            write.await.unwrap();
        }
        flush.await.unwrap();
        stage.server().put_file("f", "of another mine ");
        let second = stage.open("f", super::stage::appending()).await;
        stage.put(first, 0, "first ").await.unwrap();
        stage.put(second, 0, "second").await.unwrap();
        stage.recovering.fsync(first).await.unwrap();
        assert_eq!(stage.content("f"), "of another mine first second", "{answered}");
    }
}

/// As above, but the file is opened again before the close has been answered: appended data is not
/// compared without a sign of a restart.
#[tokio::test(start_paused = true)]
async fn appended_data_is_trusted_without_a_sign_of_a_restart() {
    let stage = Stage::new();
    stage.server().put_file("f", "");
    stage.faulty.set_write_verifier("the only run");
    let first = stage.open("f", super::stage::appending()).await;
    stage.put(first, 0, "mine ").await.unwrap();
    let gate = stage.faulty.hold_answer(Call::Finish, 1);
    let mut flush = stage.recovering.flush(first);
    while stage.faulty.calls(Call::Finish) == 0 {
        assert!(poll_once(&mut flush).is_pending());
        others_run().await;
    }
    stage.server().put_file("f", "of another mine ");
    let path = path("f");
    let mut open = stage.recovering.open(&path, super::stage::appending());
    assert!(poll_once(&mut open).is_pending());
    others_run().await;
    gate.release();
    flush.await.unwrap();
    let second = open.await.unwrap().fh;
    stage.put(second, 0, "second").await.unwrap();
    stage.recovering.fsync(second).await.unwrap();
    assert_eq!(stage.content("f"), "of another mine second");
    for fh in [first, second] {
        stage.recovering.close(fh);
    }
    stage.nothing_leaked().await;
}

/// Other clients can only make a file longer, so appended data that is missing at its end is lost,
/// also without a sign of a restart.
#[tokio::test(start_paused = true)]
async fn appended_data_behind_the_end_of_the_file_is_lost() {
    let stage = super::files::telling_files_apart();
    stage.faulty.set_write_verifier("first run");
    let fh = stage.open("f", super::stage::appending()).await;
    // Acknowledged before the verifier is known.
    stage.put(fh, 0, "appended").await.unwrap();
    restarted(&stage, "app");
    assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::EIO));
    stage.recovering.close(fh);
    stage.nothing_leaked().await;
}

/// Appended data may be elsewhere in the file; other data may not.
#[tokio::test(start_paused = true)]
async fn lost_data_is_found_behind_appended_data() {
    for (content, expected) in
        [("of another mine at 16", Ok(())), ("of another mine \0\0\0\0\0", Err(Errno::EIO))]
    {
        let stage = Stage::new();
        stage.server().put_file("f", "");
        stage.faulty.set_write_verifier("first run");
        let appending = stage.open("f", super::stage::appending()).await;
        let writing = stage.open("f", base::OpenFlags::existing(base::Access::Write)).await;
        let append = stage.recovering.write(appending, 0, Bytes::from_static(b"mine "));
        let write = stage.recovering.write(writing, 16, Bytes::from_static(b"at 16"));
        assert_eq!(tokio::join!(append, write), (Ok(()), Ok(())));
        restarted(&stage, content);
        assert_eq!(stage.recovering.fsync(writing).await, expected, "{content}");
        for fh in [appending, writing] {
            stage.recovering.close(fh);
        }
        stage.nothing_leaked().await;
    }
}

/// The verifier of synced writes is not that of later ones.
#[tokio::test(start_paused = true)]
async fn an_unnoticed_restart_before_a_write_is_no_loss_of_it() {
    let stage = Stage::new();
    let fh = written(&stage).await;
    stage.recovering.fsync(fh).await.unwrap();
    stage.faulty.set_write_verifier("second run");
    let open = || stage.open("f", base::OpenFlags::existing(base::Access::Write));
    let second = open().await;
    others_run().await;
    stage.put(second, 0, "abcdef").await.unwrap();
    // What is overwritten in part cannot be compared.
    stage.put(second, 2, "X").await.unwrap();
    let third = open().await;
    for fh in [fh, second, third] {
        stage.recovering.fsync(fh).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn appends_found_in_the_file_are_compared() {
    let stage = Stage::new();
    stage.faulty.set_write_verifier("first run");
    let fh = stage.open("f", super::stage::appending()).await;
    others_run().await;
    stage.put(fh, 0, "acked ").await.unwrap();
    let gate = stage.faulty.hold_answer(Call::Write, 1);
    let mut append = stage.recovering.write(fh, 0, Bytes::from_static(b"in doubt"));
    assert!(poll_once(&mut append).is_pending());
    restarted(&stage, "acked in do");
    drop(gate);
    append.await.unwrap();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.content("f"), "acked in doubt");
}

/// L6: overlapping writes cannot be compared. They need not be if only a connection was lost.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_was_only_disconnected_has_lost_nothing() {
    for runs_on in [true, false] {
        let stage = Stage::pool();
        let fh = stage.create("f").await;
        others_run().await;
        stage.put(fh, 0, "aaaaaaaa").await.unwrap();
        stage.put(fh, 4, "bbbbbbbb").await.unwrap();
        if !runs_on {
            stage.faulty.set_write_verifier("another");
        }
        stage.blink();
        let expected = if runs_on { Ok(()) } else { Err(Errno::EIO) };
        assert_eq!(stage.recovering.fsync(fh).await, expected, "runs on: {runs_on}");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}

/// A4: the gateway's machine crashes while a flush has closed the file.
#[tokio::test(start_paused = true)]
async fn data_lost_by_a_restarted_gateway_is_reported_for_a_flushed_file() {
    for is_noticed in [true, false] {
        let stage = Stage::pool();
        let fh = stage.create("f").await;
        others_run().await;
        stage.put(fh, 0, "content").await.unwrap();
        stage.recovering.flush(fh).await.unwrap();
        stage.faulty.cut();
        if is_noticed {
            stage.recovering.lstat(&path("")).await.unwrap();
        }
        stage.server().put_file("f", "\0\0\0\0\0\0\0");
        stage.faulty.set_write_verifier("another");
        stage.faulty.restore_without_handles(Errno::ESTALE);
        assert_eq!(stage.recovering.fsync(fh).await, Err(Errno::EIO), "noticed: {is_noticed}");
        stage.recovering.close(fh);
        stage.nothing_leaked().await;
    }
}
