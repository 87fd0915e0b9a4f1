//! Connections that end or stall.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use base::{Access, AttrChange, Errno, Remote};
use bytes::Bytes;
use host::{Config, Role};
use rustix::process::Signal;
use sftp::codec::Request;
use sftp::{Extension, StatusCode};

use super::peer::{Real, path, staged};

/// Operations in flight at a server that does not respond.
async fn in_flight(real: &Real) -> Vec<tokio::task::JoinHandle<Result<(), Errno>>> {
    let fh = real.create("f").await;
    real.host.write(fh, 0, Bytes::from(vec![1; 5_000_000])).await.unwrap();
    real.servers.signal_all(Signal::STOP);
    let operation = |host: Arc<host::Host>, number| async move {
        match number {
            0 => host.read(fh, 0, 5_000_000).await.map(drop),
            1 => host.write(fh, 0, Bytes::from(vec![2; 5_000_000])).await,
            2 => host.lstat(&path("f")).await.map(drop),
            _ => host.mkdir(&path("new"), 0o755).await,
        }
    };
    let calls = (0..4).map(|number| {
        let mut call = Box::pin(operation(real.host.clone(), number));
        // Sent before this returns.
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        tokio::spawn(call)
    });
    calls.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_fails_calls_in_flight_and_the_next_call_reconnects() {
    let real = Real::new().await;
    let old = real.create("old").await;
    let dir = real.host.opendir(&path("")).await.unwrap();
    let calls = in_flight(&real).await;
    real.servers.kill_all().await;
    for call in calls {
        assert_eq!(call.await.unwrap(), Err(Errno::EHOSTDOWN));
    }
    // The next calls share one new connection.
    let paths = (path("f"), path("old"));
    let (one, other) = tokio::join!(real.host.lstat(&paths.0), real.host.lstat(&paths.1));
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    assert_eq!(real.servers.roles().len(), 2);
    // Old handles are stale.
    assert_eq!(real.host.read(old, 0, 1).await, Err(Errno::ESTALE));
    assert_eq!(real.host.write(old, 0, Bytes::from_static(b"x")).await, Err(Errno::ESTALE));
    assert_eq!(real.host.fsync(old).await, Err(Errno::ESTALE));
    assert_eq!(real.host.readdir(dir).await, Err(Errno::ESTALE));
    real.host.close(old);
    real.host.closedir(dir);
    let fh = real.open("f", Access::Read).await;
    assert_eq!(real.host.read(fh, 0, 1).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_replaces_one_that_is_cut_and_none_that_is_slow() {
    let real = Real::new().await;
    let (servers, link) = (&real.servers, &real.servers.link);
    real.write_local("f", "");
    servers.signal_all(Signal::STOP);
    let host = real.host.clone();
    let slow = tokio::spawn(async move { host.lstat(&path("f")).await });
    // Longer than a cut is suspected after.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(!slow.is_finished() && servers.roles().len() == 1);
    servers.signal_all(Signal::CONT);
    assert!(slow.await.unwrap().is_ok());

    servers.signal_all(Signal::STOP);
    link.is_cut.store(true, Ordering::SeqCst);
    // A connection that fails is attempted again.
    servers.refuse.store(1, Ordering::SeqCst);
    assert_eq!(real.host.lstat(&path("f")).await, Err(Errno::ETIMEDOUT));
    assert_eq!(servers.roles(), [Role::Metadata, Role::Reconnect, Role::Reconnect]);
    assert_eq!(link.discarded.load(Ordering::SeqCst), 1);
    assert!(real.host.lstat(&path("f")).await.is_ok());
    assert_eq!(servers.roles().len(), 3);

    // The one that replaces it can be cut, too.
    servers.signal_all(Signal::STOP);
    assert_eq!(real.host.lstat(&path("f")).await, Err(Errno::ETIMEDOUT));
    assert!(real.host.lstat(&path("f")).await.is_ok());
    assert_eq!(link.discarded.load(Ordering::SeqCst), 2);
}

/// OpenSSH's server answers nothing while it opens a named pipe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_pipe_in_place_of_a_file_keeps_no_other_call() {
    let stall_limit = Duration::from_secs(600);
    let real = Real::with(Config { stall_limit, ..Config::default() }).await;
    let (pipe, perm) = (real.local("f"), rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, perm, 0).unwrap();
    let (name, flags) = (path("f"), base::OpenFlags::existing(Access::Read));
    let opened = tokio::time::timeout(stall_limit / 20, real.host.open(&name, flags)).await;
    assert_eq!(opened.expect("it blocks the server").err(), Some(Errno::ENXIO));
    assert_eq!(real.host.lstat(&name).await.unwrap().kind, base::FileKind::Fifo);
    assert_eq!(real.servers.roles().len(), 2);
    real.servers.kill_all().await;
}

#[tokio::test]
async fn without_reconnect_it_stays_down() {
    let real = Real::with(Config { reconnect: false, ..Config::default() }).await;
    let fh = real.create("f").await;
    real.servers.kill_all().await;
    while real.host.lstat(&path("f")).await.is_ok() {
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        assert_eq!(real.host.lstat(&path("f")).await, Err(Errno::EHOSTDOWN));
        assert_eq!(real.host.read(fh, 0, 1).await, Err(Errno::EHOSTDOWN));
    }
    assert_eq!(real.servers.roles().len(), 1);
}

#[tokio::test]
async fn an_unreachable_host_is_retried_later() {
    let real = Real::new().await;
    let fh = real.create("f").await;
    real.servers.refuse.store(2, Ordering::SeqCst);
    real.servers.kill_all().await;
    // This call may be the first to find the loss.
    while real.host.lstat(&path("f")).await.is_ok() {
        tokio::task::yield_now().await;
    }
    while real.servers.refuse.load(Ordering::SeqCst) > 1 {
        assert_eq!(real.host.lstat(&path("f")).await, Err(Errno::EHOSTDOWN));
    }
    // Nothing was sent, whether or not there will be a connection.
    let data = Bytes::from_static(b"x");
    assert_eq!(real.host.write(fh, 0, data).await, Err(Errno::ESTALE));
    let change = AttrChange { size: Some(0), ..AttrChange::default() };
    assert_eq!(real.host.fsetattr(fh, change).await, Err(Errno::ESTALE));
    let why = real.host.why_disconnected();
    assert!(why.as_ref().is_some_and(|why| why.contains("refused by the test")), "{why:?}");
    let began = Instant::now();
    // Waits for the next attempt, which fails too; then for one that succeeds.
    assert_eq!(real.host.read(fh, 0, 1).await, Err(Errno::EHOSTDOWN));
    assert!(began.elapsed() > Duration::from_millis(500), "no pause between attempts");
    assert_eq!(real.host.read(fh, 0, 1).await, Err(Errno::ESTALE));
    real.host.lstat(&path("f")).await.unwrap();
    assert_eq!(real.host.why_disconnected(), None);
}

#[tokio::test]
async fn waiting_for_a_connection_can_be_cancelled() {
    let real = Real::new().await;
    real.servers.refuse.store(1, Ordering::SeqCst);
    real.servers.kill_all().await;
    while !matches!(real.host.lstat(&path("")).await, Err(Errno::EHOSTDOWN)) {
        tokio::task::yield_now().await;
    }
    while real.servers.refuse.load(Ordering::SeqCst) > 0 {
        let _ = real.host.lstat(&path("")).await;
    }
    let (began, root) = (Instant::now(), path(""));
    for _ in 0..3 {
        let call = real.host.lstat(&root);
        let _ = tokio::time::timeout(Duration::from_millis(1), call).await;
    }
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    real.host.lstat(&path("")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_is_dropped_after_the_stall_limit() {
    let stall_limit = Duration::from_secs(1);
    let real = Real::with(Config { stall_limit, ..Config::default() }).await;
    let began = Instant::now();
    let calls = in_flight(&real).await;
    for call in calls {
        assert_eq!(call.await.unwrap(), Err(Errno::ETIMEDOUT));
    }
    assert!(began.elapsed() >= stall_limit);
    assert!(began.elapsed() < stall_limit * 20, "{:?}", began.elapsed());
    real.host.lstat(&path("f")).await.unwrap();
    real.servers.signal_all(Signal::CONT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_for_less_is_kept() {
    let real = Real::new().await;
    let calls = in_flight(&real).await;
    // Cancelled calls leave no trace.
    let (host, other) = (real.host.clone(), real.host.clone());
    for _ in 0..20 {
        let _ = tokio::time::timeout(Duration::from_millis(1), host.lstat(&path("f"))).await;
        let _ = tokio::time::timeout(Duration::from_millis(1), other.opendir(&path(""))).await;
    }
    real.servers.signal_all(Signal::CONT);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(std::fs::read(real.local("f")).unwrap(), vec![2; 5_000_000]);
    assert_eq!(real.servers.roles().len(), 1);
}

#[tokio::test]
async fn an_idle_session_is_kept() {
    let stall_limit = Duration::from_millis(700);
    let real = Real::with(Config { stall_limit, ..Config::default() }).await;
    tokio::time::sleep(stall_limit * 2).await;
    real.host.lstat(&path("")).await.unwrap();
    assert_eq!(real.servers.roles().len(), 1);
}

#[tokio::test]
async fn slow_requests_get_a_longer_limit() {
    let config = Config { stall_limit: Duration::from_millis(700), ..Config::default() };
    let (host, mut actor) = staged(&[Extension::Fsync], config).await;
    let server = async {
        let look = actor.expect(Request::Lstat { path: b"f" }).await;
        let open = actor.receive(|id, _| id).await;
        actor.attrs(look, 0o100_644, 1).await;
        actor.handle(open, b"h").await;
        let sync = actor.expect(Request::Fsync { handle: b"h" }).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        actor.fail(sync, StatusCode::OK).await;
        let read = actor.expect(Request::Read { handle: b"h", offset: 0, len: 1 }).await;
        (read, actor)
    };
    let client = async {
        let flags = base::OpenFlags::existing(Access::Read);
        let fh = host.open(&path("f"), flags).await.unwrap().fh;
        host.fsync(fh).await.unwrap();
        host.read(fh, 0, 1).await
    };
    let ((_, _actor), read) = tokio::join!(server, client);
    assert_eq!(read, Err(Errno::ETIMEDOUT));
}
