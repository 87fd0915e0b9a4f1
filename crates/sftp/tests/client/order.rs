//! Many concurrent requests: each gets its own reply, they are sent in the order of first polls,
//! and none behind the CLOSE of its handle.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use sftp::codec::{Reply, Request, StatusCode};
use sftp::{Client, Error, Extension, FileAttrs, Options, RemoteHandle};

use super::peer::{self, scripted};

/// Numbers in a shuffled order, the same in each run.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed | 1;
    for at in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        items.swap(at, (state >> 33) as usize % (at + 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_in_any_order_find_their_requests() {
    const ROUNDS: u64 = 200;
    const AT_ONCE: u64 = 100;
    let (client, mut script) = scripted(&[], Options::default()).await;
    let server = tokio::spawn(async move {
        for round in 0..ROUNDS {
            let mut asked = Vec::new();
            for _ in 0..AT_ONCE {
                let look = |id, request: Request<'_>| match request {
                    Request::Lstat { path } => {
                        (id, String::from_utf8_lossy(path).parse::<u64>().unwrap())
                    }
                    other => panic!("{other:?}"),
                };
                asked.push(script.receive(look).await);
            }
            shuffle(&mut asked, round);
            for (id, number) in asked {
                let attrs = FileAttrs { size: Some(number), ..Default::default() };
                script.send(id, Reply::Attrs(attrs)).await;
            }
        }
        script
    });
    for round in 0..ROUNDS {
        let calls: Vec<_> = (0..AT_ONCE)
            .map(|at| {
                let number = round * AT_ONCE + at;
                let call = client.lstat(number.to_string().as_bytes());
                tokio::spawn(async move { (number, call.await) })
            })
            .collect();
        for call in calls {
            let (number, attrs) = call.await.unwrap();
            assert_eq!(attrs.unwrap().size, Some(number));
        }
    }
    server.await.unwrap();
    assert_eq!(client.activity().in_flight, 0);
}

/// Polls once, as the caller of an operation does.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn the_order_of_first_polls_is_kept_without_room() {
    let options = Options { max_in_flight: 4, max_queued_bytes: 3000, ..Options::default() };
    let (client, mut script) = scripted(&[], options).await;
    let handle = RemoteHandle::new(b"h").unwrap();
    const CALLS: u64 = 60;
    // The lengths exceed sometimes the one limit and sometimes the other.
    let body = |number: u64| Bytes::from(vec![number as u8; (number as usize * 397) % 2500]);
    let mut calls: Vec<_> =
        (0..CALLS).map(|number| client.write(&handle, number, body(number))).collect();
    // Created in one order, polled in another.
    calls.reverse();
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    assert!(client.activity().in_flight <= 4);
    let server = async {
        let mut seen = Vec::new();
        for _ in 0..CALLS {
            let look = |id, request: Request<'_>| match request {
                Request::Write { offset, data, .. } => {
                    assert_eq!(data, body(offset));
                    (id, offset)
                }
                other => panic!("{other:?}"),
            };
            let (id, offset) = script.receive(look).await;
            seen.push(offset);
            let ok = Reply::Status { code: StatusCode::OK, message: String::new(), errno: None };
            script.send(id, ok).await;
        }
        seen
    };
    // Awaited in a third order.
    shuffle(&mut calls, 5);
    let tasks = async {
        let tasks: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    };
    let (seen, ()) = tokio::join!(server, tasks);
    assert_eq!(seen, (0..CALLS).rev().collect::<Vec<_>>());
}

/// Polls each request through `handle` once; `None` for those that wait.
fn poll_all(
    client: &Client,
    handle: &RemoteHandle,
    other: &RemoteHandle,
) -> Vec<(&'static str, Option<Error>)> {
    fn error<T>(mut call: sftp::Call<T>) -> Option<Error> {
        match poll_once(&mut call) {
            Poll::Ready(result) => result.err(),
            Poll::Pending => None,
        }
    }
    vec![
        ("read", error(client.read(handle, 0, 10))),
        ("write", error(client.write(handle, 0, Bytes::from_static(b"x")))),
        ("fstat", error(client.fstat(handle))),
        ("fsetstat", error(client.fsetstat(handle, FileAttrs::default()))),
        ("fstatvfs", error(client.fstatvfs(handle))),
        ("fsync", error(client.fsync(handle))),
        ("readdir", error(client.readdir(handle))),
        ("copy from", error(client.copy_data(handle, 0, 1, other, 0))),
        ("copy to", error(client.copy_data(other, 0, 1, handle, 0))),
        ("close", error(client.close(handle))),
    ]
}

/// A server reuses the bytes of a handle.
#[tokio::test]
async fn nothing_is_sent_behind_the_close_of_its_handle() {
    let extensions = [Extension::Fstatvfs, Extension::Fsync, Extension::CopyData];
    let ok = || Reply::Status { code: StatusCode::OK, message: String::new(), errno: None };
    for unattended in [false, true] {
        let (client, mut script) = scripted(&extensions, Options::default()).await;
        let (handle, other) =
            (RemoteHandle::new(b"h").unwrap(), RemoteHandle::new(b"other").unwrap());
        let mut closing = match unattended {
            true => {
                client.close_unattended(&handle);
                None
            }
            false => Some(client.close(&handle)),
        };
        if let Some(closing) = &mut closing {
            assert!(poll_once(closing).is_pending());
        }
        for (name, error) in poll_all(&client, &handle, &other) {
            assert_eq!(error, Some(Error::Closed), "{name}");
        }
        client.close_unattended(&handle);
        let reused = RemoteHandle::new(b"h").unwrap();
        let mut again = client.fstat(&reused);
        assert!(poll_once(&mut again).is_pending());
        let close = |id, request: Request<'_>| {
            assert_eq!(request, Request::Close { handle: b"h" });
            id
        };
        let id = script.receive(close).await;
        script.send(id, ok()).await;
        let fstat = |id, request: Request<'_>| {
            assert_eq!(request, Request::Fstat { handle: b"h" });
            id
        };
        let id = script.receive(fstat).await;
        script.send(id, Reply::Attrs(FileAttrs::default())).await;
        again.await.unwrap();
        if let Some(closing) = closing {
            closing.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_request_that_waits_for_room_is_not_sent_behind_the_close_of_its_handle() {
    let options = Options { max_in_flight: 1, ..Options::default() };
    let (client, mut script) = scripted(&[], options).await;
    let handle = RemoteHandle::new(b"h").unwrap();
    let mut first = client.lstat(b"first");
    let mut read = client.read(&handle, 0, 10);
    let mut last = client.lstat(b"last");
    for pending in [poll_once(&mut first).is_pending(), poll_once(&mut read).is_pending()] {
        assert!(pending);
    }
    assert!(poll_once(&mut last).is_pending());
    // Sent without waiting for room.
    client.close_unattended(&handle);
    let (read, last) = (tokio::spawn(read), tokio::spawn(last));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let look = |id, request: Request<'_>| match request {
            Request::Lstat { path } => (id, path.to_vec()),
            Request::Close { .. } => (id, b"close".to_vec()),
            other => panic!("{other:?}"),
        };
        let (id, what) = script.receive(look).await;
        match &what[..] {
            b"close" => {
                let ok =
                    Reply::Status { code: StatusCode::OK, message: String::new(), errno: None };
                script.send(id, ok).await;
            }
            _ => script.send(id, Reply::Attrs(FileAttrs::default())).await,
        }
        seen.push(what);
    }
    assert_eq!(seen, [&b"first"[..], b"close", b"last"]);
    assert_eq!(read.await.unwrap(), Err(Error::Closed));
    first.await.unwrap();
    last.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_wait_for_room_does_not_block_the_next() {
    let options = Options { max_in_flight: 1, ..Options::default() };
    let (client, mut script) = scripted(&[], options).await;
    let mut first = client.lstat(b"first");
    let mut gone = client.lstat(b"gone");
    let mut last = client.lstat(b"last");
    for call in [&mut first, &mut gone, &mut last] {
        assert!(poll_once(call).is_pending());
    }
    let last = tokio::spawn(last);
    drop(gone);
    for expected in [&b"first"[..], b"last"] {
        let look = |id, request: Request<'_>| {
            assert_eq!(request, Request::Lstat { path: expected });
            id
        };
        let id = script.receive(look).await;
        script.send(id, Reply::Attrs(FileAttrs::default())).await;
    }
    first.await.unwrap();
    last.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_and_small_requests_together_over_a_real_server() {
    let dir = tempfile::tempdir().unwrap();
    let real = peer::real(dir.path()).await;
    let client = &real.client;
    let flags = sftp::OpenFlags::READ | sftp::OpenFlags::WRITE | sftp::OpenFlags::CREATE;
    let handle = client.open(b"f", flags, FileAttrs::with_permissions(0o600)).await.unwrap();
    let piece = |number: u64| -> Bytes {
        (0..200_000_u64).map(|at| (at * 31 + number * 17 + (at >> 9)) as u8).collect()
    };
    let writes: Vec<_> = (0..40)
        .map(|number| tokio::spawn(client.write(&handle, number * 200_000, piece(number))))
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    let lens = [4096, 200_000, 1, 15_000, 100_000, 16_384];
    let reads: Vec<_> = (0..400_u64)
        .map(|number| {
            let (at, len) = (number * 7919 % 7_000_000, lens[number as usize % lens.len()]);
            let read = client.read(&handle, at, len);
            tokio::spawn(async move { (at, len, read.await.unwrap().unwrap()) })
        })
        .collect();
    let whole = std::fs::read(dir.path().join("f")).unwrap();
    for number in 0..40 {
        let at = number as usize * 200_000;
        assert!(whole[at..at + 200_000] == piece(number)[..], "piece {number} on disk");
    }
    for read in reads {
        let (at, len, data) = read.await.unwrap();
        assert!(data[..] == whole[at as usize..at as usize + len as usize], "{len} at {at}");
    }
}
