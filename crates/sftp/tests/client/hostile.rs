//! Servers that break the protocol: the connection ends with a clear reason, for all in flight. A
//! reply of the wrong kind is the error of its request alone.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sftp::codec::{Body, NameEntry, Reply, StatusCode, Version};
use sftp::{Client, Error, Extension, FileAttrs, OpenFlags, Options, RemoteHandle};
use tokio::io::AsyncWriteExt;

use super::peer::{Script, scripted};

fn handle() -> RemoteHandle {
    RemoteHandle::new(b"h").unwrap()
}

fn entry(name: &'static [u8]) -> NameEntry {
    NameEntry {
        name: Bytes::from_static(name),
        longname: Bytes::new(),
        attrs: FileAttrs::default(),
    }
}

/// The client's error for a server that sends `bytes` and then closes.
async fn greeted_with(bytes: &[u8]) -> String {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    theirs.write_all(bytes).await.unwrap();
    theirs.shutdown().await.unwrap();
    match Client::connect(ours, Options::default()).await {
        Ok(_) => panic!("connected"),
        Err(error) => error.to_string(),
    }
}

fn version(version: u32) -> BytesMut {
    let mut out = BytesMut::new();
    Version { version, extensions: Default::default(), product: None }.encode(&mut out);
    out
}

#[tokio::test]
async fn invalid_greetings() {
    for (bytes, expected) in [
        (&b""[..], "closed the connection"),
        (b"\0\0\0\0", "bad reply len: 0"),
        (b"\xff\xff\xff\xff\x02", "bad reply len: 4294967295"),
        (b"\0\0\0\x01\x02", "ends inside a field"),
        (b"\0\0\0\x05\x63\0\0\0\x03", "unknown type 99"),
        (b"\0\0\0\x09\x02\0\0\0\x03\0\0\0\x09", "ends inside a field"),
        (&version(2), "version 2"),
        (&version(4), "version 4"),
        (&version(99), "version 99"),
    ] {
        let error = greeted_with(bytes).await;
        assert!(error.contains(expected), "{bytes:?}: {error}");
    }
}

#[tokio::test]
async fn output_of_a_shell_is_recognised_and_shown_escaped() {
    for noise in ["Welcome to \x1b[2Jthe machine\n", "hi\n", "\n"] {
        let bytes = [noise.as_bytes(), &version(3)].concat();
        let error = greeted_with(&bytes).await;
        assert!(error.contains("server sent text before the SFTP stream: "), "{error}");
        assert!(error.contains(".bashrc") && !error.contains("\\0"), "{error}");
        assert!(!error.contains('\x1b'), "{error}");
    }
    let error = greeted_with("x".repeat(3000).as_bytes()).await;
    assert!(error.len() < 600, "{error}");
    // The server may also keep the stream open without sending more.
    let (ours, mut theirs) = tokio::io::duplex(4096);
    theirs.write_all(b"stdin: is not a tty\n").await.unwrap();
    let error = Client::connect(ours, Options::default()).await.err().unwrap().to_string();
    assert!(error.contains("stdin: is not a tty"), "{error}");
}

/// The client's error when a READ of ten bytes is answered with these bytes.
async fn answered_with(answer: impl FnOnce(u32) -> Vec<u8>) -> String {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let bystander = client.lstat(b"bystander");
    let read = client.read(&handle(), 0, 10);
    let server = async {
        script.next_id().await;
        let id = script.next_id().await;
        script.send_raw(&answer(id)).await;
        // The client closes the connection.
        while script.try_receive_raw().await.is_some() {}
    };
    let (bystander, read, ()) = tokio::join!(bystander, read, server);
    let error = read.unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error:?}");
    assert_eq!(bystander, Err(error.clone()), "all in flight fail with the reason");
    assert_eq!(client.lstat(b"later").await, Err(error.clone()));
    error.to_string()
}

fn encoded(id: u32, reply: Reply) -> Vec<u8> {
    let mut out = BytesMut::new();
    reply.encode(id, &mut out);
    out.to_vec()
}

#[tokio::test]
async fn invalid_replies() {
    let data = |len: usize| Reply::Data(vec![7; len].into());
    type Answer = Box<dyn FnOnce(u32) -> Vec<u8>>;
    let cases: Vec<(Answer, &str)> = vec![
        (Box::new(|_| vec![0; 4]), "bad reply len: 0"),
        (Box::new(|_| vec![0xff; 9]), "bad reply len: 4294967295"),
        (Box::new(|_| b"\0\x04\0\x01".to_vec()), "bad reply len: 262145"),
        (Box::new(move |id| encoded(id + 1, data(5))), "which is not open"),
        (Box::new(move |id| encoded(id ^ 0x8000_0000, data(5))), "which is not open"),
        (Box::new(|_| b"\0\0\0\x05\x67\0\0\0\0".to_vec()), "ends inside a field"),
        (Box::new(|_| b"\0\0\0\x01\x67".to_vec()), "ends inside a field"),
        (Box::new(|_| b"\0\0\0\x05\x01\0\0\0\0".to_vec()), "unknown type 1"),
        (
            Box::new(move |id| {
                let mut packet = encoded(id, data(5));
                packet[3] += 1;
                packet.push(0);
                packet
            }),
            "1 bytes too many",
        ),
    ];
    for (answer, expected) in cases {
        let error = answered_with(answer).await;
        assert!(error.contains(expected), "{error} has no {expected}");
    }
}

fn status(code: StatusCode) -> Reply {
    Reply::Status { code, message: String::new(), errno: None }
}

#[tokio::test]
async fn a_reply_of_the_wrong_kind_fails_only_its_request() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let data = |len: usize| Reply::Data(vec![7; len].into());
    for (answer, expected) in [
        (data(11), "read: 11 bytes of data where 10 were requested"),
        (data(0), "read: data of zero length"),
        (status(StatusCode::OK), "read: success without the requested result"),
        (Reply::Handle(handle()), "read: not of the type Data(10)"),
        (Reply::Attrs(FileAttrs::default()), "read: not of the type Data(10)"),
        (Reply::Names(vec![entry(b"n")]), "read: not of the type Data(10)"),
        (Reply::Extended(Bytes::new()), "read: not of the type Data(10)"),
    ] {
        let bystander = client.lstat(b"bystander");
        let read = client.read(&handle(), 0, 10);
        let server = async {
            let look = script.next_id().await;
            let id = script.next_id().await;
            script.send(id, answer).await;
            script.send(look, Reply::Attrs(FileAttrs::default())).await;
        };
        let (bystander, read, ()) = tokio::join!(bystander, read, server);
        assert_eq!(read, Err(Error::Unexpected(expected.into())));
        assert_eq!(bystander, Ok(FileAttrs::default()));
    }
    let open = client.open(b"f", OpenFlags::READ, FileAttrs::default());
    let change = client.remove(b"f");
    let server = async {
        let id = script.next_id().await;
        script.send(id, status(StatusCode::OK)).await;
        let id = script.next_id().await;
        script.send(id, data(1)).await;
    };
    let (open, change, ()) = tokio::join!(open, change, server);
    let expected = "open: success without the requested result";
    assert_eq!(open, Err(Error::Unexpected(expected.into())));
    assert_eq!(change, Err(Error::Unexpected("remove: not of the type Status".into())));
    assert!(client.unexpected().await.to_string().contains("11 bytes"), "it is the first one");
    assert_eq!(client.end(), None);
    drop(client);
    // The handle in the reply to a READ could be one in use.
    assert!(script.try_receive_raw().await.is_none(), "something was closed");
}

#[tokio::test]
async fn names_in_wrong_number() {
    for (names, expected) in [(0, "0 names where one"), (2, "2 names where one")] {
        let (client, mut script) = scripted(&[], Options::default()).await;
        let server = async {
            let id = script.next_id().await;
            script.send(id, Reply::Names(vec![entry(b"n"); names])).await;
        };
        let (path, ()) = tokio::join!(client.readlink(b"l"), server);
        assert!(path.unwrap_err().to_string().contains(expected));
    }
    let (client, mut script) = scripted(&[], Options::default()).await;
    let server = async {
        let id = script.next_id().await;
        script.send(id, Reply::Names(vec![])).await;
    };
    let (names, ()) = tokio::join!(client.readdir(&handle()), server);
    assert!(names.unwrap_err().to_string().contains("without names"));
}

#[tokio::test]
async fn a_malformed_body_of_an_extension_ends_the_connection() {
    let (client, mut script) = scripted(&[Extension::Statvfs], Options::default()).await;
    let server = async {
        let id = script.next_id().await;
        script.send(id, Reply::Extended(Bytes::from_static(&[0; 87]))).await;
    };
    let (figures, ()) = tokio::join!(client.statvfs(b"."), server);
    assert!(matches!(figures, Err(Error::Protocol(_))));
    assert!(matches!(client.end(), Some(Error::Protocol(_))));
}

#[tokio::test]
async fn a_duplicate_reply_is_not_taken_for_the_next_request() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let server = async {
        let id = script.next_id().await;
        let attrs = |size| Reply::Attrs(FileAttrs { size: Some(size), ..Default::default() });
        script.send(id, attrs(1)).await;
        script.next_id().await;
        script.send(id, attrs(1)).await;
    };
    let calls = async {
        assert_eq!(client.lstat(b"a").await.unwrap().size, Some(1));
        client.lstat(b"b").await
    };
    let (second, ()) = tokio::join!(calls, server);
    assert!(second.unwrap_err().to_string().contains("which is not open"));
}

#[tokio::test]
async fn an_extension_that_is_not_offered_is_not_requested() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let error = client.posix_rename(b"a", b"b").await;
    assert_eq!(error, Err(Error::Unsupported("posix-rename@openssh.com")));
    assert_eq!(client.server().max_read, 32 * 1024);
    drop(client);
    assert!(script.try_receive_raw().await.is_none(), "something was sent");
}

#[tokio::test]
async fn an_excessive_limit_is_lowered() {
    let server = limited(1, u64::MAX, u64::MAX).await;
    assert!(server.max_read <= 256 * 1024 && server.max_read >= 32 * 1024);
    assert_eq!(server.max_write, 34_000 - 1024, "as long as the packet allows");
    assert_eq!(server.max_handles, None);
}

/// Class of attack: limits. One request of the kernel would become a million of the protocol.
#[tokio::test]
async fn a_limit_below_the_draft_is_raised() {
    for tiny in [1, 7, 100, 4095] {
        let server = limited(tiny, tiny, tiny).await;
        assert_eq!((server.max_read, server.max_write), (32 * 1024, 32 * 1024), "{tiny}");
        assert_eq!(server.max_packet, 34_000, "{tiny}");
    }
}

#[tokio::test]
async fn a_limit_of_more_than_32_bits_is_not_truncated() {
    for huge in [1 << 32, (1 << 32) + 1, u64::MAX] {
        let server = limited(u64::MAX, huge, huge).await;
        assert!(server.max_write > 1 << 20, "{server:?}");
    }
}

/// What a client accepts from a server that announces these limits.
async fn limited(packet_bytes: u64, read_bytes: u64, write_bytes: u64) -> sftp::Server {
    let (ours, theirs) = tokio::io::duplex(4096);
    let mut script = Script::new(theirs);
    let server = async {
        script.receive_raw().await;
        let mut out = BytesMut::new();
        let extensions = [Extension::Limits].into_iter().collect();
        Version { version: 3, extensions, product: None }.encode(&mut out);
        script.send_raw(&out).await;
        let id = script.next_id().await;
        let limits = sftp::Limits { packet_bytes, read_bytes, write_bytes, open_handles: 0 };
        script.send(id, Reply::Extended(limits.encode())).await;
    };
    let (client, ()) = tokio::join!(Client::connect(ours, Options::default()), server);
    *client.unwrap().server()
}

#[tokio::test]
async fn the_silence_of_a_server_is_measured_and_can_be_ended() {
    let (client, mut script) = scripted(&[Extension::Fsync], Options::default()).await;
    assert_eq!(client.activity().silent, Duration::ZERO);
    let calls = async { tokio::join!(client.lstat(b"a"), client.fsync(&handle())) };
    // Longer than a busy machine delays this task.
    let quiet = Duration::from_secs(1);
    let watch = async {
        let id = script.next_id().await;
        script.next_id().await;
        let activity = client.activity();
        assert_eq!((activity.in_flight, activity.slow_in_flight), (2, 1));
        while client.activity().silent < quiet {
            tokio::task::yield_now().await;
        }
        script.send(id, Reply::Attrs(FileAttrs::default())).await;
        while client.activity().in_flight == 2 {
            tokio::task::yield_now().await;
        }
        assert!(client.activity().silent < quiet);
        client.abort(Error::Stalled(Duration::from_secs(1)));
    };
    let ((first, second), ()) = tokio::join!(calls, watch);
    first.unwrap();
    assert_eq!(second, Err(Error::Stalled(Duration::from_secs(1))));
    assert_eq!(client.closed().await, Error::Stalled(Duration::from_secs(1)));
    assert_eq!(client.activity().in_flight, 0);
}

/// Operations run in the task that reads the replies.
#[tokio::test]
async fn a_panic_of_one_operation_ends_the_session_instead_of_hanging_the_others() {
    let (client, mut script) = scripted(&[], Options::default()).await;
    let client = std::sync::Arc::new(client);
    let panics = client.clone();
    let _panics = base::task::Task::start(async move {
        let _ = panics.lstat(b"a").await;
        panic!("as the test wants it");
    });
    let server = async {
        let id = script.next_id().await;
        script.next_id().await;
        script.send(id, Reply::Attrs(FileAttrs::default())).await;
    };
    let other = tokio::time::timeout(Duration::from_secs(20), client.lstat(b"b"));
    let (other, ()) = tokio::join!(other, server);
    let other = other.expect("the other operation hangs");
    assert!(matches!(other, Err(Error::Disconnected(_))), "{other:?}");
    assert!(client.end().is_some());
}
