//! Gateways that answer nothing, and gateways that are only slow.

use std::time::Duration;

use base::{Access, AttrChange, Errno, Lock, LockFamily, LockKind, LockOwner, LockRange, Remote};
use bytes::Bytes;
use replicas::{GatewayState, Mode, Reason};
use testkit::faulty::Which;
use testkit::{Call, path};
use tokio::time::Instant;

use super::pool::{DEADLINE, Faulty, LONG, is_left_out};

/// Makes a gateway silent: each of its further calls is held.
fn silence(it: &Faulty, index: usize) -> Vec<testkit::faulty::Gate> {
    (1..=100).map(|nth| it.gateways[index].hold(Which::Any, nth)).collect()
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_silent_gateway_are_answered_by_another() {
    let it = Faulty::new(Mode::Failover, 2);
    it.server.put_file("file", b"content");
    let fh = it.open("file", Access::Read).await;
    let gates = silence(&it, 0);
    let began = Instant::now();
    let (file, root) = (path("file"), path(""));
    let (attr, data, entries) =
        tokio::join!(it.pool.lstat(&file), it.pool.read(fh, 0, 10), it.pool.opendir(&root));
    assert_eq!(attr.unwrap().size, 7);
    assert_eq!(data.unwrap().to_vec(), b"content");
    it.pool.closedir(entries.unwrap());
    let took = began.elapsed();
    assert!((DEADLINE / 2..2 * DEADLINE).contains(&took), "{took:?}");
    let state = it.pool.status().gateways[0].state;
    assert!(matches!(state, GatewayState::LeftOut(Reason::Silent(_))), "{state:?}");
    // A later request does not wait.
    let began = Instant::now();
    assert_eq!(it.pool.lstat(&path("file")).await.unwrap().size, 7);
    assert_eq!(it.pool.read(fh, 0, 10).await.unwrap().to_vec(), b"content");
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop(gates);
    it.gateways[0].clear();
    it.until(0, |state| !is_left_out(state)).await;
    it.pool.close(fh);
    assert_eq!(it.server.open_handles(), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_is_not_dead() {
    let it = Faulty::new(Mode::Failover, 2);
    // Each answer takes nearly the deadline, and they come one by one.
    it.server.set_latency(Some(DEADLINE - Duration::from_secs(1)));
    let pool = &it.pool;
    let root = path("");
    let asked = async {
        let mut asked = Vec::new();
        for _ in 0..30 {
            let pool = pool.clone();
            asked.push(tokio::spawn(async move { pool.lstat(&path("")).await }));
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        for it in asked {
            it.await.unwrap().unwrap();
        }
    };
    asked.await;
    // A single gateway, too.
    pool.lstat(&root).await.unwrap();
    assert_eq!(it.pool.status().gateways[0].state, GatewayState::Healthy);
    assert_eq!(it.gateways[1].round_trips(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_last_one_is_waited_for() {
    let it = Faulty::new(Mode::Failover, 2);
    it.gateways[1].cut();
    it.gateways[0].fail(Call::Lstat, 1, Errno::EHOSTDOWN);
    let _ = it.pool.lstat(&path("")).await;
    it.until(0, |state| !is_left_out(state)).await;
    it.until(1, is_left_out).await;
    let gates = silence(&it, 0);
    let pool = it.pool.clone();
    let asked = tokio::spawn(async move { pool.lstat(&path("")).await });
    tokio::time::sleep(LONG).await;
    assert!(!asked.is_finished());
    assert!(!is_left_out(it.pool.status().gateways[0].state));
    // The other comes back, and only now this one is left out.
    it.gateways[1].restore();
    tokio::time::timeout(LONG, asked).await.unwrap().unwrap().unwrap();
    assert!(is_left_out(it.pool.status().gateways[0].state));
    drop(gates);
}

/// A write that was sent may still happen, so it is waited for.
#[tokio::test(start_paused = true)]
async fn a_write_waits_for_its_silent_gateway() {
    let it = Faulty::new(Mode::Failover, 2);
    let fh = it.create("file").await;
    let before = it.pool.write_verifier().await.unwrap();
    let gates = silence(&it, 0);
    let pool = it.pool.clone();
    let write =
        tokio::spawn(async move { pool.write(fh, 0, Bytes::from_static(b"content")).await });
    it.until(0, is_left_out).await;
    // Requests about the file wait as well: no other gateway knows its state.
    let pool = it.pool.clone();
    let look = tokio::spawn(async move { pool.lstat(&path("file")).await });
    tokio::time::sleep(LONG).await;
    assert!(!write.is_finished() && !look.is_finished());
    // Requests about other files do not.
    it.pool.lstat(&path("other")).await.unwrap_err();
    it.gateways[0].clear();
    drop(gates);
    assert_eq!(write.await.unwrap(), Ok(()));
    assert_eq!(look.await.unwrap().map(|attr| attr.size), Ok(7));
    assert_eq!(it.pool.write_verifier().await.unwrap(), before, "nothing was lost");
    it.pool.close(fh);
}

/// A lock or a change that begins while the file is opened at another gateway keeps it where it is:
/// the lock would end with the handle.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_locked_or_changed_meanwhile_does_not_move() {
    for is_lock in [true, false] {
        let it = Faulty::new(Mode::Failover, 2);
        it.server.put_file("file", b"content");
        let fh = it.open("file", Access::Read).await;
        let gates = silence(&it, 0);
        let opening = it.gateways[1].hold(Call::Open, 1);
        let pool = it.pool.clone();
        let read = tokio::spawn(async move { pool.read(fh, 0, 10).await });
        opening.arrived().await;
        let pool = it.pool.clone();
        let call = tokio::spawn(async move {
            match is_lock {
                true => {
                    let owner = LockOwner { family: LockFamily::Posix, number: 1 };
                    let lock = Lock::new(owner, LockRange::WHOLE, LockKind::Read);
                    pool.lock(fh, lock, false).await
                }
                false => {
                    let perm = AttrChange { perm: Some(0o600), ..AttrChange::default() };
                    pool.fsetattr(fh, perm).await
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        opening.release();
        tokio::time::sleep(Duration::from_millis(1)).await;
        it.gateways[0].clear();
        drop(gates);
        assert_eq!(call.await.unwrap(), Ok(()));
        assert_eq!(read.await.unwrap().unwrap().to_vec(), b"content");
        assert_eq!(it.server.locked_ranges(), usize::from(is_lock));
        it.reset_calls();
        it.pool.fsync(fh).await.unwrap();
        assert_eq!(it.who(Call::Fsync), Some(0));
        it.pool.close(fh);
        assert_eq!(it.server.open_handles(), 0);
    }
}

/// A silent gateway whose connection then ends is lost, and requests that wait for it fail.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_silent_one_ends_the_waiting() {
    let it = Faulty::new(Mode::Failover, 2);
    let fh = it.create("file").await;
    let _gates = silence(&it, 0);
    let pool = it.pool.clone();
    let write = tokio::spawn(async move { pool.write(fh, 0, Bytes::from_static(b"x")).await });
    it.until(0, is_left_out).await;
    it.gateways[0].cut();
    let written = tokio::time::timeout(LONG, write).await.unwrap().unwrap();
    assert_eq!(written, Err(Errno::EHOSTDOWN));
    let state = it.pool.status().gateways[0].state;
    assert_eq!(state, GatewayState::LeftOut(Reason::Failed(Errno::EHOSTDOWN)));
    it.pool.close(fh);
}

/// A gateway that has come back and is silent before it has reported its boot is left out as soon
/// as any other.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_comes_back_and_falls_silent_at_once_is_left_out() {
    let it = Faulty::new(Mode::Failover, 2);
    it.gateways.iter().for_each(|gateway| gateway.set_write_verifier("its first"));
    // From now on boots are queried.
    it.pool.write_verifier().await.unwrap();
    it.gateways[0].cut();
    it.pool.lstat(&path("")).await.unwrap();
    it.gateways[0].withhold_write_verifier();
    it.gateways[0].restore();
    it.until(0, |state| !is_left_out(state)).await;
    let _gates = silence(&it, 0);
    let root = path("");
    let answer = tokio::time::timeout(2 * DEADLINE, it.pool.lstat(&root)).await;
    answer.expect("the other gateway answers").unwrap();
    let state = it.pool.status().gateways[0].state;
    assert!(matches!(state, GatewayState::LeftOut(Reason::Silent(_))), "{state:?}");
}
