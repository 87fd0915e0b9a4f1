//! Gateways that are disconnected and come back.

use std::sync::Arc;
use std::time::Duration;

use base::{Access, Errno, OpenFlags, Remote};
use bytes::Bytes;
use replicas::{Config, Error, GatewayState, Mode, Reason, Replicas};
use testkit::{Call, path};
use tokio::time::{Instant, timeout};

use super::pool::{Faulty, LONG, is_left_out};

const MODES: [Mode; 3] = [Mode::Balance, Mode::Hash, Mode::Failover];

#[tokio::test(start_paused = true)]
async fn reading_requests_continue_at_another_gateway() {
    for mode in MODES {
        let it = Faulty::new(mode, 3);
        it.server.put_file("d/file", b"content");
        it.server.put_symlink("link", b"target");
        let fh = it.open("d/file", Access::Read).await;
        let dh = it.pool.opendir(&path("d")).await.unwrap();
        for cut in 0..2 {
            it.gateways[cut].cut();
            for _ in 0..10 {
                let attr = it.pool.lstat(&path("d/file")).await.unwrap();
                assert_eq!(attr.size, 7);
                assert_eq!(it.pool.fstat(fh).await.unwrap(), attr);
                assert_eq!(it.pool.read(fh, 2, 3).await.unwrap().to_vec(), b"nte");
                assert_eq!(it.pool.readlink(&path("link")).await.unwrap(), b"target");
                assert!(it.pool.statvfs(&path("")).await.is_ok());
                let again = it.open("d/file", Access::Read).await;
                it.pool.close(again);
            }
        }
        let entries = it.pool.readdir(dh).await.unwrap().unwrap();
        assert_eq!(entries.len(), 1, "nothing of it was given out before");
        assert!(!it.pool.is_disconnected());
        it.pool.close(fh);
        it.pool.closedir(dh);
        it.gateways.iter().for_each(|gateway| gateway.restore());
        assert_eq!(it.server.open_handles(), 0, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_gateway_gets_one_request_twice() {
    let it = Faulty::new(Mode::Balance, 3);
    for gateway in &it.gateways {
        gateway.fail_always(Call::Readlink, Errno::EHOSTDOWN);
    }
    assert_eq!(it.pool.readlink(&path("link")).await, Err(Errno::EHOSTDOWN));
    for gateway in &it.gateways {
        assert!(gateway.calls(Call::Readlink) <= 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_not_repeated_at_another_gateway() {
    let it = Faulty::new(Mode::Failover, 2);
    it.gateways[0].fail_after(Call::Mkdir, 1, Errno::EHOSTDOWN);
    assert_eq!(it.pool.mkdir(&path("d"), 0o755).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.gateways[1].calls(Call::Mkdir), 0, "nobody knows whether it has happened");
    assert!(it.server.exists("d"));
    // The next gateway is used once the first is not back within a moment.
    it.gateways[0].cut();
    it.until(0, is_left_out).await;
    assert_eq!(it.pool.mkdir(&path("e"), 0o755).await, Ok(()));
    assert_eq!(it.gateways[1].calls(Call::Mkdir), 1);
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_not_gone_on_with() {
    let it = Faulty::new(Mode::Failover, 2);
    it.server.put_file("file", b"one");
    let fh = it.open("file", Access::Read).await;
    it.server.put_file("file", b"another");
    it.gateways[0].cut();
    assert_eq!(it.pool.read(fh, 0, 10).await, Err(Errno::EHOSTDOWN));
    it.pool.close(fh);
    let fh = it.open("file", Access::Read).await;
    assert_eq!(it.pool.read(fh, 0, 10).await.unwrap().to_vec(), b"another");
    it.pool.close(fh);
    it.gateways[0].restore();
    assert_eq!(it.server.open_handles(), 0);
}

/// The connection is up again at once, but the handle is gone.
#[tokio::test(start_paused = true)]
async fn a_stale_handle_is_opened_anew() {
    let it = Faulty::new(Mode::Balance, 1);
    it.server.put_file("file", b"content");
    let fh = it.open("file", Access::Read).await;
    let written = it.create("written").await;
    it.put(written, 0, b"x").await;
    it.gateways[0].cut();
    it.gateways[0].restore_without_handles(Errno::ESTALE);
    assert_eq!(it.pool.read(fh, 0, 10).await.unwrap().to_vec(), b"content");
    // But not a handle with writes: its writer has to learn of the loss.
    let before = it.pool.write_verifier().await.unwrap();
    let write = it.pool.write(written, 1, Bytes::from_static(b"y"));
    assert_eq!(write.await, Err(Errno::ESTALE));
    assert_ne!(it.pool.write_verifier().await.unwrap(), before);
    it.pool.close(fh);
    it.pool.close(written);
    assert_eq!(it.server.open_handles(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_gets_an_error_and_continues_at_another_gateway() {
    let it = Faulty::new(Mode::Failover, 2);
    let fh = it.create("file").await;
    it.put(fh, 0, b"first").await;
    let before = it.pool.write_verifier().await.unwrap();
    it.gateways[0].cut();
    let write = it.pool.write(fh, 5, Bytes::from_static(b"second"));
    assert_eq!(write.await, Err(Errno::EHOSTDOWN));
    assert_ne!(it.pool.write_verifier().await.unwrap(), before, "the first write may be lost");
    // Also during the loss, and without a long wait.
    let began = Instant::now();
    assert_eq!(it.pool.fsync(fh).await, Err(Errno::EHOSTDOWN));
    assert_eq!(began.elapsed(), Duration::ZERO);
    let again = it.open("file", Access::ReadWrite).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    it.put(again, 5, b"second").await;
    assert_eq!(it.pool.read(again, 0, 20).await.unwrap().to_vec(), b"firstsecond");
    assert!(it.gateways[1].calls(Call::Write) > 0);
    it.pool.close(fh);
    it.pool.close(again);
    // The first comes back, but requests about a change through the second go to the second.
    it.gateways[0].restore();
    it.until(0, |state| !is_left_out(state)).await;
    it.reset_calls();
    assert_eq!(it.pool.lstat(&path("file")).await.unwrap().size, 11);
    assert_eq!(it.who(Call::Lstat), Some(1));
}

/// A connection that is up again within a moment does not move the writer: its data may not have
/// reached the other gateways yet.
#[tokio::test(start_paused = true)]
async fn a_writer_waits_a_moment_for_his_gateway() {
    let it = Faulty::new(Mode::Failover, 2);
    let fh = it.create("file").await;
    it.put(fh, 0, b"first").await;
    it.gateways[0].cut();
    assert!(it.pool.write(fh, 5, Bytes::from_static(b"x")).await.is_err());
    it.gateways[0].restore();
    it.reset_calls();
    let again = it.open("file", Access::ReadWrite).await;
    assert_eq!(it.who(Call::Open), Some(0));
    it.pool.close(again);
    it.pool.close(fh);
}

#[tokio::test(start_paused = true)]
async fn only_writes_that_were_not_synced_come_into_doubt() {
    let it = Faulty::new(Mode::Failover, 2);
    let run = async || it.pool.write_verifier().await.unwrap();
    let synced = it.create("synced").await;
    it.put(synced, 0, b"x").await;
    it.pool.fsync(synced).await.unwrap();
    let closed = it.create("closed").await;
    it.put(closed, 0, b"x").await;
    it.pool.close(closed);
    let _reader = it.open("closed", Access::Read).await;
    let before = run().await;
    it.gateways[0].cut();
    it.pool.lstat(&path("")).await.unwrap();
    it.until(0, is_left_out).await;
    assert_eq!(run().await, before);
    it.gateways[0].restore();
    it.until(0, |state| !is_left_out(state)).await;
    it.put(synced, 0, b"y").await;
    assert_eq!(run().await, before);
    it.gateways[0].cut();
    // Any request that finds out is enough.
    it.pool.lstat(&path("")).await.unwrap();
    assert_ne!(run().await, before);
}

/// A gateway that was lost with unsynced writes, and whether they count as lost.
#[tokio::test(start_paused = true)]
async fn a_gateway_back_soon_with_the_same_boot_id_has_lost_nothing() {
    for (back_after_secs, runs_on, lost) in [
        (1, true, false),
        (1, false, true),
        (2, true, false),
        (2, false, true),
        (20, true, true),
        (20, false, true),
    ] {
        let it = Faulty::new(Mode::Failover, 2);
        it.gateways.iter().for_each(|gateway| gateway.set_write_verifier("its first"));
        let fh = it.create("file").await;
        let before = it.pool.write_verifier().await.unwrap();
        it.put(fh, 0, b"first").await;
        it.gateways[0].cut();
        it.pool.lstat(&path("")).await.unwrap();
        let gateway = it.gateways[0].clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(back_after_secs)).await;
            if !runs_on {
                gateway.set_write_verifier("another");
            }
            gateway.restore_without_handles(Errno::ESTALE);
        });
        let began = Instant::now();
        let now = it.pool.write_verifier().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!(now != before, lost, "back after {back_after_secs} s, runs on: {runs_on}");
        // The result stays.
        it.until(0, |state| !is_left_out(state)).await;
        assert_eq!(it.pool.write_verifier().await.unwrap(), now);
        it.pool.close(fh);
    }
}

/// A caller that is freed while it waits for a gateway in doubt leaves the doubt to the next one.
#[tokio::test(start_paused = true)]
async fn a_gateway_stays_in_doubt_when_the_query_is_cancelled() {
    for lost in [false, true] {
        let it = Faulty::new(Mode::Failover, 2);
        it.gateways.iter().for_each(|gateway| gateway.set_write_verifier("its first"));
        let fh = it.create("file").await;
        let before = it.pool.write_verifier().await.unwrap();
        it.put(fh, 0, b"first").await;
        it.gateways[0].cut();
        it.pool.lstat(&path("")).await.unwrap();
        let query = timeout(Duration::from_secs(1), it.pool.write_verifier());
        assert!(query.await.is_err(), "it waits for the gateway");
        if lost {
            it.gateways[0].set_write_verifier("another");
        }
        it.gateways[0].restore_without_handles(Errno::ESTALE);
        it.until(0, |state| !is_left_out(state)).await;
        assert_eq!(it.pool.write_verifier().await.unwrap() != before, lost);
        it.pool.close(fh);
    }
}

/// A connection that was lost before the epoch was known was most likely only disconnected.
#[tokio::test(start_paused = true)]
async fn a_gateway_lost_before_it_reported_its_boot_id_is_trusted() {
    let it = Faulty::new(Mode::Failover, 2);
    it.gateways.iter().for_each(|gateway| gateway.set_write_verifier("the only one"));
    let fh = it.create("file").await;
    it.put(fh, 0, b"x").await;
    it.gateways[0].cut();
    it.pool.lstat(&path("")).await.unwrap();
    it.gateways[0].restore_without_handles(Errno::ESTALE);
    // The value of a pool that has lost nothing.
    let before = Faulty::new(Mode::Failover, 2).pool.write_verifier().await.unwrap();
    assert_eq!(it.pool.write_verifier().await.unwrap(), before);
    it.pool.close(fh);
}

/// A gateway lost without unsynced writes may come back in another epoch.
#[tokio::test(start_paused = true)]
async fn a_gateway_restarted_without_unsynced_writes_has_lost_nothing() {
    let it = Faulty::new(Mode::Failover, 2);
    it.gateways.iter().for_each(|gateway| gateway.set_write_verifier("its first"));
    let before = it.pool.write_verifier().await.unwrap();
    for run in ["its second", "its third"] {
        it.gateways[0].cut();
        it.pool.lstat(&path("")).await.unwrap();
        it.until(0, is_left_out).await;
        it.gateways[0].set_write_verifier(run);
        it.gateways[0].restore_without_handles(Errno::ESTALE);
        it.until(0, |state| !is_left_out(state)).await;
    }
    let fh = it.create("file").await;
    it.put(fh, 0, b"x").await;
    it.gateways[0].cut();
    it.pool.lstat(&path("")).await.unwrap();
    it.gateways[0].restore_without_handles(Errno::ESTALE);
    assert_eq!(it.pool.write_verifier().await.unwrap(), before);
    // But a restart with unsynced writes has lost them.
    let again = it.create("again").await;
    it.put(again, 0, b"x").await;
    it.gateways[0].cut();
    it.pool.lstat(&path("")).await.unwrap();
    it.gateways[0].set_write_verifier("its fourth");
    it.gateways[0].restore_without_handles(Errno::ESTALE);
    assert_ne!(it.pool.write_verifier().await.unwrap(), before);
    it.pool.close(fh);
    it.pool.close(again);
}

/// Unsynced writes may be lost with the gateway, also when no handle of their file is open: the
/// caller has closed it and may open it again to sync it, or was told that the handle was lost.
#[tokio::test(start_paused = true)]
async fn unsynced_writes_of_a_closed_handle_come_into_doubt() {
    for (closed, is_noticed) in
        [("finished", true), ("finished", false), ("lost", true), ("lost", false)]
    {
        let it = Faulty::new(Mode::Failover, 2);
        it.gateways.iter().for_each(|gateway| gateway.set_write_verifier("its first"));
        let fh = it.create("file").await;
        let before = it.pool.write_verifier().await.unwrap();
        it.put(fh, 0, b"first").await;
        let other = it.create("other").await;
        it.put(other, 0, b"first").await;
        match closed {
            "finished" => it.pool.finish(fh).await.unwrap(),
            _ => {
                it.gateways[0].cut();
                it.gateways[0].restore_without_handles(Errno::ESTALE);
                assert_eq!(it.pool.fsync(fh).await, Err(Errno::ESTALE));
                it.pool.close(fh);
            }
        }
        it.pool.close(other);
        assert_eq!(it.pool.write_verifier().await.unwrap(), before, "{closed}");
        // The machine is restarted, noticed by a request or by none.
        it.gateways[0].cut();
        if is_noticed {
            it.pool.lstat(&path("")).await.unwrap();
            it.until(0, is_left_out).await;
        }
        it.gateways[0].set_write_verifier("its second");
        it.gateways[0].restore_without_handles(Errno::ESTALE);
        it.until(0, |state| !is_left_out(state)).await;
        let after = it.pool.write_verifier().await.unwrap();
        assert_ne!(after, before, "{closed}, noticed: {is_noticed}");
        // Counted once.
        assert_eq!(it.pool.write_verifier().await.unwrap(), after);
    }
}

#[tokio::test(start_paused = true)]
async fn all_away_is_away_and_ends() {
    let it = Faulty::new(Mode::Balance, 2);
    it.server.put_file("file", b"content");
    let fh = it.open("file", Access::Read).await;
    let pool = it.pool.clone();
    let gone = tokio::spawn(async move { pool.disconnected().await });
    it.gateways.iter().for_each(|gateway| gateway.cut());
    let began = Instant::now();
    assert_eq!(it.pool.lstat(&path("file")).await, Err(Errno::EHOSTDOWN));
    assert!(it.pool.is_disconnected());
    timeout(LONG, gone).await.unwrap().unwrap();
    it.pool.disconnected().await;
    assert_eq!(it.pool.read(fh, 0, 1).await, Err(Errno::EHOSTDOWN));
    assert_eq!(it.pool.mkdir(&path("d"), 0o755).await, Err(Errno::EHOSTDOWN));
    assert!(began.elapsed() < LONG, "no request waits for long");
    assert_eq!(it.pool.suggested_window(), base::Window::default());
    it.gateways[1].restore();
    // A waiting request causes a probe at once.
    let began = Instant::now();
    assert_eq!(it.pool.lstat(&path("file")).await.unwrap().size, 7);
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(!it.pool.is_disconnected());
    assert_eq!(it.pool.read(fh, 0, 3).await.unwrap().to_vec(), b"con");
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_is_used_again() {
    let it = Faulty::new(Mode::Failover, 2);
    it.gateways[0].cut();
    it.pool.lstat(&path("")).await.unwrap();
    let status = it.pool.status();
    assert_eq!(status.gateways[0].name, "gw1");
    assert_eq!(status.gateways[0].state, GatewayState::LeftOut(Reason::Failed(Errno::EHOSTDOWN)));
    assert_eq!(status.gateways[1].state, GatewayState::Healthy);
    // Without a limit.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(is_left_out(it.pool.status().gateways[0].state));
    let probes = it.gateways[0].calls(Call::Lstat);
    assert!((100..1000).contains(&probes), "{probes} probes in ten minutes");
    it.gateways[0].restore();
    it.until(0, |state| state == GatewayState::Returning).await;
    it.reset_calls();
    for _ in 0..40 {
        it.pool.lstat(&path("")).await.unwrap();
    }
    assert_eq!(it.pool.status().gateways[0].state, GatewayState::Healthy);
    assert_eq!(it.who(Call::Lstat), Some(0));
    assert_eq!(it.pool.status().gateways[0].times_left_out, 1);
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_breaks_in_the_middle_fails() {
    let it = Faulty::new(Mode::Failover, 2);
    for number in 0..250 {
        it.server.put_file(&format!("d/f{number}"), b"");
    }
    let dh = it.pool.opendir(&path("d")).await.unwrap();
    assert_eq!(it.pool.readdir(dh).await.unwrap().unwrap().len(), 100);
    it.gateways[0].cut();
    assert_eq!(it.pool.readdir(dh).await, Err(Errno::EHOSTDOWN));
    it.pool.closedir(dh);
    let dh = it.pool.opendir(&path("d")).await.unwrap();
    let mut names = 0;
    while let Some(batch) = it.pool.readdir(dh).await.unwrap() {
        names += batch.len();
    }
    assert_eq!(names, 250);
    it.pool.closedir(dh);
}

#[tokio::test(start_paused = true)]
async fn background_tasks_end_with_the_pool() {
    let it = Faulty::new(Mode::Balance, 2);
    it.gateways[0].cut();
    it.pool.lstat(&path("")).await.unwrap();
    let (pool, gateways) = (Arc::downgrade(&it.pool), it.gateways.clone());
    drop(it);
    assert!(pool.upgrade().is_none());
    // Only this test holds a reference in the end.
    let alone = async {
        while gateways.iter().any(|gateway| Arc::strong_count(gateway) > 1) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, alone).await.unwrap();
}

#[tokio::test]
async fn a_pool_has_gateways() {
    let error = Replicas::new(Vec::new(), Config::default()).err();
    assert_eq!(error, Some(Error::NoGateway));
    let server = Arc::new(testkit::MemRemote::new());
    let gateway = |number| replicas::Gateway {
        name: format!("gw{number}"),
        remote: server.clone() as Arc<dyn Remote>,
    };
    let error = Replicas::new((0..65).map(gateway).collect(), Config::default()).err();
    assert_eq!(error.unwrap().to_string(), "a pool of 65 gateways: at most 64");
    assert!(Replicas::new((0..64).map(gateway).collect(), Config::default()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn copies_stay_with_one_gateway() {
    let it = Faulty::new(Mode::Hash, 3);
    let mut refused = 0;
    for number in 0..12 {
        let from = format!("d{number}/from");
        it.server.put_file(&from, b"content");
        it.server.put_file(&format!("e{number}/to"), b"");
        it.reset_calls();
        let source = it.open(&from, Access::Read).await;
        let first = it.who(Call::Open);
        it.reset_calls();
        let target = it.open(&format!("e{number}/to"), Access::Write).await;
        let second = it.who(Call::Open);
        match it.pool.copy((source, 0), (target, 0), 7).await {
            Ok(copied) => assert_eq!((copied, first), (7, second)),
            Err(errno) => {
                assert_eq!(errno, Errno::EOPNOTSUPP);
                assert_ne!(first, second);
                refused += 1;
            }
        }
        it.pool.close(source);
        it.pool.close(target);
    }
    assert!((1..12).contains(&refused), "both were to be seen");
}

#[tokio::test(start_paused = true)]
async fn opening_where_nothing_is_open_leaves_nothing() {
    let it = Faulty::new(Mode::Balance, 3);
    for _ in 0..10 {
        let flags = OpenFlags::existing(Access::ReadWrite);
        assert_eq!(it.pool.open(&path("absent"), flags).await.err(), Some(Errno::ENOENT));
    }
    assert_eq!(it.pool.status().open_files, 0);
    assert_eq!(it.pool.status().recent_changes, 0);
}
