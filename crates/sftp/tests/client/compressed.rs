//! Compressed packets (`deflate@sshoal`): when they are sent, and which are accepted.

use bytes::{Bytes, BytesMut};
use sftp::codec::{Reply, Request, pack, unpack};
use sftp::{Client, Error, Extension, Options, RemoteHandle, StatusCode};

use super::peer::{Script, scripted};

const LEN: u32 = 5000;

fn handle() -> RemoteHandle {
    RemoteHandle::new(b"h").unwrap()
}

fn options() -> Options {
    Options { compresses: true, ..Options::default() }
}

/// A client that compresses, whose server has received the request for it.
async fn compressing() -> (Client, Script) {
    let (client, mut script) = scripted(&[Extension::Deflate], options()).await;
    let id = script.receive(|id, request| {
        assert_eq!(request, Request::Deflate { replies: true });
        id
    });
    let id = id.await;
    script.send(id, done()).await;
    (client, script)
}

fn done() -> Reply {
    Reply::Status { code: StatusCode::OK, message: String::new(), errno: None }
}

fn packed(id: u32, reply: &Reply) -> BytesMut {
    let mut out = BytesMut::new();
    reply.encode(id, &mut out);
    pack(&out, &[]).unwrap()
}

#[tokio::test]
async fn content_is_compressed_in_both_directions() {
    let (client, mut script) = compressing().await;
    let content = Bytes::from(vec![b'x'; LEN as usize]);
    let server = async {
        let packet = script.receive_raw().await;
        assert!(packet.len() < 100, "{}", packet.len());
        let unpacked = unpack(&packet, 10_000).unwrap().unwrap();
        let (id, request) = Request::decode(&unpacked).unwrap();
        assert_eq!(request, Request::Write { handle: b"h", offset: 3, data: &content });
        script.send(id, done()).await;
        let id = script.next_id().await;
        script.send_raw(&packed(id, &Reply::Data(content.clone()))).await;
        // Also to a request whose reply was not compressed before.
        let id = script.next_id().await;
        script.send(id, Reply::Data(content.slice(1..))).await;
    };
    let calls = async {
        client.write(&handle(), 3, content.clone()).await.unwrap();
        assert_eq!(client.read(&handle(), 0, LEN).await.unwrap().unwrap(), content);
        assert_eq!(client.read(&handle(), 0, LEN).await.unwrap().unwrap(), content.slice(1..));
    };
    tokio::join!(calls, server);
}

#[tokio::test]
async fn what_is_short_or_does_not_shrink_is_sent_as_it_is() {
    let (client, mut script) = compressing().await;
    let mut state = 1_u64;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    for content in [vec![b'x'; 400], random.take(3000).collect()] {
        let content = Bytes::from(content);
        let server = async {
            let written = script.receive(|id, request| {
                assert_eq!(request, Request::Write { handle: b"h", offset: 0, data: &content });
                id
            });
            let id = written.await;
            script.send(id, done()).await;
        };
        tokio::join!(async { client.write(&handle(), 0, content.clone()).await.unwrap() }, server);
    }
}

#[tokio::test]
async fn nothing_is_compressed_unless_both_sides_want_it() {
    let cases =
        [(&[Extension::Deflate][..], Options::default()), (&[Extension::Fsync][..], options())];
    for (extensions, options) in cases {
        let (client, mut script) = scripted(extensions, options).await;
        assert!(!client.compresses());
        let content = Bytes::from(vec![b'x'; LEN as usize]);
        let server = async {
            let written = script.receive(|id, request| {
                assert_eq!(request, Request::Write { handle: b"h", offset: 0, data: &content });
                id
            });
            let id = written.await;
            script.send(id, done()).await;
            let id = script.next_id().await;
            script.send_raw(&packed(id, &Reply::Data(content.clone()))).await;
        };
        let calls = async {
            client.write(&handle(), 0, content.clone()).await.unwrap();
            client.read(&handle(), 0, LEN).await.unwrap_err()
        };
        let (error, ()) = tokio::join!(calls, server);
        assert!(error.to_string().contains("unknown type 210"), "{error}");
    }
}

/// As for any other malformed reply, all calls in flight fail.
#[tokio::test]
async fn a_damaged_reply_ends_the_connection() {
    let reply = Reply::Data(vec![b'x'; LEN as usize].into());
    type Damage = fn(&mut BytesMut);
    let cases: [(Damage, &str); 3] = [
        (|packet| *packet.last_mut().unwrap() ^= 0xff, "damaged compressed content"),
        (
            |packet| packet[9..13].copy_from_slice(&300_000_u32.to_be_bytes()),
            "bad reply len: 300000 (at most 262144)",
        ),
        (|packet| packet[9..13].copy_from_slice(&3_u32.to_be_bytes()), "ends inside a field"),
    ];
    for (damage, expected) in cases {
        let (client, mut script) = compressing().await;
        let server = async {
            script.next_id().await;
            let id = script.next_id().await;
            let mut packet = packed(id, &reply);
            damage(&mut packet);
            script.send_raw(&packet).await;
        };
        let bystander = client.lstat(b"bystander");
        let (bystander, read, ()) = tokio::join!(bystander, client.read(&handle(), 0, LEN), server);
        let error = read.unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(bystander, Err(error));
    }
    // A server gains nothing by it: no more than what was requested is accepted.
    let (client, mut script) = compressing().await;
    let server = async {
        let id = script.next_id().await;
        script.send_raw(&packed(id, &reply)).await;
    };
    let (read, ()) = tokio::join!(client.read(&handle(), 0, LEN - 1), server);
    let error = read.unwrap_err().to_string();
    assert!(error.contains("5000 bytes of data where 4999 were requested"), "{error}");
}
