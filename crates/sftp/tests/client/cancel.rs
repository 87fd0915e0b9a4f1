//! Dropped calls: the next call works, ids are not mixed up, and no handle stays open.

use std::pin::Pin;
use std::task::{Context, Waker};

use bytes::Bytes;
use sftp::codec::{Reply, Request, StatusCode};
use sftp::{Call, FileAttrs, OpenFlags, Options, RemoteHandle};

use super::peer::{Script, scripted};

fn ok() -> Reply {
    Reply::Status { code: StatusCode::OK, message: String::new(), errno: None }
}

fn attrs(size: u64) -> Reply {
    Reply::Attrs(FileAttrs { size: Some(size), ..Default::default() })
}

fn sent<T>(mut call: Call<T>) -> Call<T> {
    assert!(Pin::new(&mut call).poll_send(&mut Context::from_waker(Waker::noop())).is_ready());
    call
}

async fn expect_close(script: &mut Script, expected: &[u8]) {
    let look = |id, request: Request<'_>| {
        assert_eq!(request, Request::Close { handle: expected });
        id
    };
    let id = script.receive(look).await;
    script.send(id, ok()).await;
}

#[tokio::test]
async fn never_polled_is_never_sent() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    drop(client.remove(b"precious"));
    let call = sent(client.lstat(b"next"));
    let look = |id, request: Request<'_>| {
        assert_eq!(request, Request::Lstat { path: b"next" });
        id
    };
    let id = script.receive(look).await;
    script.send(id, attrs(1)).await;
    call.await.unwrap();
}

#[tokio::test]
async fn a_late_reply_is_not_taken_for_another() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let forgotten = sent(client.lstat(b"old"));
    let old = script.next_id().await;
    drop(forgotten);
    assert_eq!(client.activity().in_flight, 1, "the server still works on it");
    let call = sent(client.lstat(b"new"));
    let new = script.next_id().await;
    assert_ne!(old, new, "the id is in use until its reply has come");
    script.send(old, attrs(1)).await;
    script.send(new, attrs(2)).await;
    assert_eq!(call.await.unwrap().size, Some(2));
    assert_eq!(client.activity().in_flight, 0);
}

#[tokio::test]
async fn a_late_handle_is_closed() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    for opens_dir in [false, true] {
        // Dropped before the reply, and after its arrival but before it was taken.
        for taken_late in [false, true] {
            let call = match opens_dir {
                true => sent(client.opendir(b"x")),
                false => sent(client.open(b"x", OpenFlags::READ, FileAttrs::default())),
            };
            let id = script.next_id().await;
            let reply = Reply::Handle(RemoteHandle::new(b"late").unwrap());
            if taken_late {
                script.send(id, reply).await;
                while client.activity().in_flight > 0 {
                    tokio::task::yield_now().await;
                }
                drop(call);
            } else {
                drop(call);
                script.send(id, reply).await;
            }
            expect_close(&mut script, b"late").await;
        }
    }
    while client.activity().in_flight > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_failed_late_open_closes_nothing() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    drop(sent(client.open(b"x", OpenFlags::READ, FileAttrs::default())));
    let id = script.next_id().await;
    let none =
        Reply::Status { code: StatusCode::NO_SUCH_FILE, message: String::new(), errno: None };
    script.send(id, none).await;
    let call = sent(client.lstat(b"next"));
    let look = |id, request: Request<'_>| {
        assert_eq!(request, Request::Lstat { path: b"next" });
        id
    };
    let id = script.receive(look).await;
    script.send(id, attrs(1)).await;
    call.await.unwrap();
}

#[tokio::test]
async fn a_dropped_read_is_still_checked_for_its_length() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let handle = RemoteHandle::new(b"h").unwrap();
    drop(sent(client.read(&handle, 0, 4)));
    let id = script.next_id().await;
    script.send(id, Reply::Data(Bytes::from_static(b"12345"))).await;
    assert!(client.unexpected().await.to_string().contains("5 bytes of data"));
}

#[tokio::test]
async fn packets_stay_whole_when_their_call_is_dropped() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let handle = RemoteHandle::new(b"h").unwrap();
    // Far more than the stream accepts at once.
    let body = Bytes::from(vec![9; 30_000]);
    drop(sent(client.write(&handle, 0, body.clone())));
    let call = sent(client.lstat(b"next"));
    let look = |id, request: Request<'_>| {
        assert_eq!(request, Request::Write { handle: b"h", offset: 0, data: &body });
        id
    };
    let first = script.receive(look).await;
    let second = script.next_id().await;
    script.send(second, attrs(5)).await;
    assert_eq!(call.await.unwrap().size, Some(5));
    script.send(first, ok()).await;
}

/// Operations on a real server, each dropped after every possible number of polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_dropped_anywhere_leave_no_handle_and_the_session_continues() {
    let dir = tempfile::tempdir().unwrap();
    let real = super::peer::real(dir.path()).await;
    let client = &real.client;
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    let most = client.server().max_handles.unwrap().min(100_000);
    // More opens than the server has handles: a leak would end in FAILURE.
    for round in 0..most + 200 {
        let call = client.open(b"f", flags, FileAttrs::with_permissions(0o600));
        match round % 4 {
            0 => drop(call),
            1 => drop(sent(call)),
            2 => {
                let _ =
                    tokio::time::timeout(std::time::Duration::from_micros(round % 97), call).await;
            }
            _ => client.close_unattended(&call.await.expect("a handle was leaked")),
        }
    }
    let handle = client.open(b"f", flags, FileAttrs::default()).await.unwrap();
    client.close(&handle).await.unwrap();
}
