//! Waiting for a connection: without limit, for a limited time, not at all; and cancellation.

use std::sync::Arc;
use std::time::Duration;

use base::{AttrChange, Errno, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use recovery::{Config, ConnectionState, Recovering, RetryPolicy};
use testkit::{Call, FaultyRemote, MemRemote, path};
use tokio::time::Instant;

use super::stage::{Stage, Started, making, others_run, poll_once};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn hard_waits_without_limit() {
    let stage = Stage::new();
    stage.server().put_file("f", "content");
    stage.cut_for(HOUR);
    let began = Instant::now();
    assert_eq!(stage.recovering.lstat(&path("f")).await.unwrap().size, 7);
    assert!(began.elapsed() >= HOUR);
    assert!(began.elapsed() < HOUR + Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(!stage.recovering.is_disconnected());
}

#[tokio::test(start_paused = true)]
async fn a_restored_link_is_noticed_soon() {
    let stage = Stage::new();
    stage.cut_for(HOUR);
    let began = Instant::now();
    stage.recovering.lstat(&path("")).await.unwrap();
    assert!(began.elapsed() < HOUR + Duration::from_secs(5), "{:?}", began.elapsed());
}

/// A host that was not reached at mount time is known to be disconnected before the first call.
#[tokio::test(start_paused = true)]
async fn a_remote_disconnected_from_the_start_is_known_to_be() {
    let faulty = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
    faulty.cut();
    let recovering = Recovering::new(faulty.clone(), Config::default());
    assert!(recovering.is_disconnected());
    let began = Instant::now();
    recovering.disconnected().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    faulty.restore();
    recovering.lstat(&path("")).await.unwrap();
    assert!(!recovering.is_disconnected());
}

/// A caller that can do without the server is free long before an attempt to connect has failed.
#[tokio::test(start_paused = true)]
async fn a_silent_server_after_a_loss_is_disconnected_soon() {
    let stage = Stage::new();
    stage.server().put_file("f", "content");
    stage.faulty.fail(Call::Readlink, 1, Errno::ETIMEDOUT);
    // The requests then: the repeated call, the probe, and the next probe.
    let gates = [
        stage.faulty.hold(Call::Readlink, 2),
        stage.faulty.hold(Call::Lstat, 1),
        stage.faulty.hold(Call::Lstat, 2),
    ];
    let at = path("f");
    let mut call = stage.recovering.readlink(&at);
    let began = Instant::now();
    tokio::select! {
        _ = &mut call => panic!("nothing is answered"),
        () = stage.recovering.disconnected() => {}
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(stage.recovering.is_disconnected());
    gates.iter().for_each(testkit::faulty::Gate::release);
    assert_eq!(call.await.unwrap_err(), Errno::EINVAL);
    others_run().await;
    assert!(!stage.recovering.is_disconnected());
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_after_a_loss_does_not_disconnect() {
    let stage = Stage::new();
    stage.server().put_file("f", "content");
    stage.faulty.fail(Call::Readlink, 1, Errno::ETIMEDOUT);
    let gate = stage.faulty.hold(Call::Readlink, 2);
    let at = path("f");
    let mut call = stage.recovering.readlink(&at);
    tokio::select! {
        _ = &mut call => panic!("it is not answered"),
        () = stage.recovering.disconnected() => panic!("others are answered"),
        () = tokio::time::sleep(HOUR) => {}
    }
    gate.release();
    assert_eq!(call.await.unwrap_err(), Errno::EINVAL);
}

#[tokio::test(start_paused = true)]
async fn soft_waits_for_its_time_limit() {
    let limit = Duration::from_secs(20);
    let stage = Stage::with(RetryPolicy::Soft(limit));
    let fh = stage.create("f").await;
    stage.faulty.cut();
    let began = Instant::now();
    let at = path("f");
    let root = path("");
    let (lstat, write, mkdir, readdir) = tokio::join!(
        stage.recovering.lstat(&at),
        stage.put(fh, 0, "lost"),
        stage.recovering.mkdir(&at, 0o755),
        stage.recovering.opendir(&root),
    );
    assert_eq!(lstat.unwrap_err(), Errno::ETIMEDOUT);
    assert_eq!(write, Err(Errno::ETIMEDOUT));
    assert_eq!(mkdir, Err(Errno::ETIMEDOUT));
    assert_eq!(readdir, Err(Errno::ETIMEDOUT));
    assert!(began.elapsed() >= limit && began.elapsed() < limit * 2, "{:?}", began.elapsed());
    // A new call has its own deadline.
    let began = Instant::now();
    assert_eq!(stage.recovering.lstat(&at).await.unwrap_err(), Errno::ETIMEDOUT);
    assert!(began.elapsed() >= limit);
    stage.faulty.restore_without_handles(Errno::ESTALE);
    // The cancelled call is not sent later.
    stage.put(fh, 0, "x").await.unwrap();
    assert_eq!(stage.content("f"), "x");
}

/// L8: later calls do not wait for an attempt to connect, which takes longer than the time limit.
#[tokio::test(start_paused = true)]
async fn a_silent_server_is_disconnected_before_a_short_time_limit() {
    let limit = Duration::from_secs(1);
    let stage = Stage::with(RetryPolicy::Soft(limit));
    let at = path("f");
    stage.faulty.fail(Call::Readlink, 1, Errno::ETIMEDOUT);
    // The requests then: the repeated call, and all probes.
    let _gates = [
        stage.faulty.hold(Call::Readlink, 2),
        stage.faulty.hold(Call::Lstat, 1),
        stage.faulty.hold(Call::Lstat, 2),
    ];
    let began = Instant::now();
    assert_eq!(stage.recovering.readlink(&at).await, Err(Errno::ETIMEDOUT));
    assert!(began.elapsed() >= limit && began.elapsed() < limit * 2, "{:?}", began.elapsed());
    assert!(stage.recovering.is_disconnected());
    assert_eq!(stage.recovering.readlink(&at).await, Err(Errno::ETIMEDOUT));
    assert_eq!(stage.faulty.calls(Call::Readlink), 2);
}

#[tokio::test(start_paused = true)]
async fn soft_survives_a_short_break() {
    let stage = Stage::with(RetryPolicy::Soft(Duration::from_secs(20)));
    let fh = stage.create("f").await;
    stage.cut_for(Duration::from_secs(10));
    stage.put(fh, 0, "kept").await.unwrap();
    stage.recovering.fsync(fh).await.unwrap();
    assert_eq!(stage.content("f"), "kept");
}

#[tokio::test(start_paused = true)]
async fn soft_limits_a_repeated_copy() {
    let limit = Duration::from_secs(20);
    let stage = Stage::with(RetryPolicy::Soft(limit));
    let (from, to) = (stage.create("from").await, stage.create("to").await);
    stage.put(from, 0, "content").await.unwrap();
    stage.faulty.fail(Call::Copy, 1, Errno::EHOSTDOWN);
    let gate = stage.faulty.hold(Call::Copy, 2);
    let began = Instant::now();
    let copy = stage.recovering.copy((from, 0), (to, 0), 7);
    let copied = tokio::time::timeout(HOUR, copy).await.expect("it ends at the limit");
    assert_eq!(copied, Err(Errno::ETIMEDOUT));
    assert!(began.elapsed() >= limit && began.elapsed() < limit * 2, "{:?}", began.elapsed());
    // A new call has its own deadline.
    gate.release();
    assert_eq!(stage.recovering.copy((from, 0), (to, 0), 7).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn without_retries_errors_are_immediate_and_files_are_reopened() {
    let stage = Stage::with(RetryPolicy::None);
    let fh = stage.create("f").await;
    stage.put(fh, 0, "before").await.unwrap();
    stage.faulty.cut();
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(stage.recovering.lstat(&path("f")).await.unwrap_err(), Errno::EHOSTDOWN);
        assert_eq!(stage.put(fh, 0, "lost").await, Err(Errno::EHOSTDOWN));
        assert_eq!(stage.read(fh).await, Err(Errno::EHOSTDOWN));
        assert_eq!(stage.recovering.mkdir(&path("d"), 0o755).await, Err(Errno::EHOSTDOWN));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(stage.recovering.is_disconnected());
    stage.faulty.restore_without_handles(Errno::ESTALE);
    while stage.recovering.is_disconnected() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(stage.read(fh).await.unwrap(), b"before");
    stage.put(fh, 0, "after!").await.unwrap();
    assert_eq!(stage.content("f"), "after!");
}

#[tokio::test(start_paused = true)]
async fn without_retries_a_temporary_refusal_of_a_reopening_is_an_error_at_once() {
    let stage = Stage::with(RetryPolicy::None);
    let fh = stage.create("f").await;
    stage.put(fh, 0, "content").await.unwrap();
    stage.faulty.lose_handles(Errno::ESTALE);
    stage.faulty.fail_always(Call::Open, Errno::EMFILE);
    let began = Instant::now();
    assert_eq!(stage.read(fh).await, Err(Errno::EMFILE));
    assert_eq!(stage.put(fh, 0, "lost").await, Err(Errno::EMFILE));
    assert_eq!(began.elapsed(), Duration::ZERO);
    stage.faulty.clear();
    assert_eq!(stage.read(fh).await.unwrap(), b"content");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_returns_at_once() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    let dh = stage.recovering.opendir(&path("")).await.unwrap();
    let recovering = &stage.recovering;
    let (at, new) = (path("f"), path("g"));
    let exclusive = OpenFlags { create: base::Create::Exclusive(0o644), ..making() };
    stage.faulty.cut();
    let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
    let calls = |number: usize| -> Option<Started<'_, ()>> {
        macro_rules! call {
            ($call:expr) => {{
                let call = $call;
                Box::pin(async move {
                    let _ = call.await;
                })
            }};
        }
        Some(match number {
            0 => call!(recovering.lstat(&at)),
            1 => call!(recovering.open(&at, making())),
            2 => call!(recovering.open(&new, exclusive)),
            3 => call!(recovering.read(fh, 0, 10)),
            4 => call!(recovering.write(fh, 0, Bytes::from_static(b"x"))),
            5 => call!(recovering.fsync(fh)),
            6 => call!(recovering.fstat(fh)),
            7 => call!(recovering.fsetattr(fh, perm)),
            8 => call!(recovering.setattr(&at, perm)),
            9 => call!(recovering.mkdir(&new, 0o755)),
            10 => call!(recovering.rmdir(&new)),
            11 => call!(recovering.unlink(&at)),
            12 => call!(recovering.symlink(b"x", &new)),
            13 => call!(recovering.link(&at, &new)),
            14 => call!(recovering.rename(&at, &new, RenameMode::Replace)),
            15 => call!(recovering.readdir(dh)),
            16 => call!(recovering.opendir(&at)),
            17 => call!(recovering.statvfs(&at)),
            18 => call!(recovering.readlink(&at)),
            19 => call!(recovering.copy((fh, 0), (fh, 0), 1)),
            _ => return None,
        })
    };
    let began = Instant::now();
    for round in 0..3 {
        for number in 0.. {
            let Some(mut call) = calls(number) else { break };
            assert!(poll_once(&mut call).is_pending(), "call {number}");
            others_run().await;
            // In the second round the state is known to be disconnected.
            assert!(poll_once(&mut call).is_pending(), "call {number}, round {round}");
            assert!(recovering.status().calls_waiting > 0, "call {number}");
            drop(call);
            assert_eq!(recovering.status().calls_waiting, 0, "call {number}");
        }
        assert!(recovering.is_disconnected());
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    stage.faulty.restore_without_handles(Errno::ESTALE);
    assert_eq!(stage.read(fh).await.unwrap(), b"");
    assert!(stage.server().exists("f") && !stage.server().exists("g"));
    recovering.close(fh);
    recovering.closedir(dh);
    stage.nothing_leaked().await;
}

#[tokio::test(start_paused = true)]
async fn all_waiting_calls_continue_together() {
    let stage = Stage::new();
    stage.server().put_file("f", "content");
    let fh = stage.create("f").await;
    stage.faulty.cut();
    let calls: Vec<_> = (0..500)
        .map(|number| {
            let recovering = stage.recovering.clone();
            tokio::spawn(async move {
                match number % 3 {
                    0 => recovering.lstat(&path("f")).await.map(|attr| attr.size),
                    1 => recovering.read(fh, 0, 100).await.map(|data| data.len() as u64),
                    _ => recovering.fstat(fh).await.map(|attr| attr.size),
                }
            })
        })
        .collect();
    while stage.recovering.status().calls_waiting < 500 {
        tokio::task::yield_now().await;
    }
    let ConnectionState::Disconnected { error, .. } = stage.recovering.status().connection else {
        panic!("it should be disconnected: {:?}", stage.recovering.status());
    };
    assert_eq!(error, Errno::EHOSTDOWN);
    stage.recovering.disconnected().await;
    let asked = stage.faulty.round_trips();
    tokio::time::sleep(Duration::from_secs(100)).await;
    // Only one probe is sent for all calls.
    assert!(stage.faulty.round_trips() - asked < 200, "{}", stage.faulty.round_trips() - asked);
    stage.faulty.restore_without_handles(Errno::ESTALE);
    let began = Instant::now();
    for call in calls {
        assert_eq!(call.await.unwrap(), Ok(7));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(stage.recovering.status().connection, ConnectionState::Connected);
    assert_eq!(stage.recovering.status().calls_waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn status_shows_waiting_calls() {
    let stage = Stage::new();
    let fh = stage.create("f").await;
    let quiet = stage.recovering.status();
    assert_eq!((quiet.files_open, quiet.files_unacknowledged), (1, 0));
    stage.faulty.cut();
    let mut write = stage.recovering.write(fh, 0, Bytes::from_static(b"0123456789"));
    assert!(poll_once(&mut write).is_pending());
    others_run().await;
    let status = stage.recovering.status();
    assert_eq!((status.files_unacknowledged, status.bytes_unacknowledged), (1, 10));
    stage.faulty.restore_without_handles(Errno::ESTALE);
    write.await.unwrap();
    let status = stage.recovering.status();
    assert_eq!((status.files_unacknowledged, status.bytes_unacknowledged), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn without_waiting_calls_probes_are_rare() {
    let stage = Stage::new();
    stage.faulty.cut();
    let root = path("");
    let mut call = stage.recovering.lstat(&root);
    assert!(poll_once(&mut call).is_pending());
    others_run().await;
    drop(call);
    assert!(stage.recovering.is_disconnected());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = stage.faulty.round_trips();
    tokio::time::sleep(HOUR).await;
    let asked = stage.faulty.round_trips() - before;
    assert!((100..=400).contains(&asked), "{asked} questions in an hour");
    // The loss is found nevertheless.
    stage.faulty.restore();
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(!stage.recovering.is_disconnected());
}

/// A request that crashes the server each time.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_always_lost_is_not_sent_in_a_tight_loop() {
    let stage = Stage::new();
    stage.server().put_symlink("l", "x");
    stage.faulty.fail_always(testkit::Call::Readlink, Errno::EHOSTDOWN);
    let at = path("l");
    let waited =
        tokio::time::timeout(Duration::from_secs(400), stage.recovering.readlink(&at)).await;
    assert!(waited.is_err());
    let sent = stage.faulty.calls(testkit::Call::Readlink);
    assert!((20..=200).contains(&sent), "sent {sent} times");
    stage.faulty.clear();
    assert_eq!(stage.recovering.readlink(&at).await.unwrap(), b"x");
}
