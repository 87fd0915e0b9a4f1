use super::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// A client and a scripted server.
struct Ends {
    proxy: Arc<Proxy>,
    client: (OwnedReadHalf, OwnedWriteHalf),
    server: DuplexStream,
}

fn ends(proxy: &Arc<Proxy>) -> Ends {
    let (server, middle) = duplex(1 << 16);
    let (from_server, to_server) = tokio::io::split(middle);
    Ends { proxy: proxy.clone(), client: proxy.connect_to(from_server, to_server), server }
}

/// A packet of this type with this id.
fn packet(kind: u8, id: u32) -> Vec<u8> {
    let mut packet = vec![0, 0, 0, 7, kind];
    packet.extend(id.to_be_bytes());
    packet.extend(*b"xy");
    packet
}

const MKDIR: u8 = 14;
const LSTAT: u8 = 7;
const STATUS: u8 = 101;

impl Ends {
    async fn ask(&mut self, kind: u8, id: u32) {
        self.client.1.write_all(&packet(kind, id)).await.unwrap();
    }

    /// The server receives this next.
    async fn arrives(&mut self, kind: u8, id: u32) {
        let mut seen = [0; 11];
        self.server.read_exact(&mut seen).await.unwrap();
        assert_eq!(seen, packet(kind, id)[..]);
    }

    async fn answer(&mut self, id: u32) {
        self.server.write_all(&packet(STATUS, id)).await.unwrap();
    }

    /// The client receives this next.
    async fn answered(&mut self, id: u32) {
        let mut seen = [0; 11];
        self.client.0.read_exact(&mut seen).await.unwrap();
        assert_eq!(seen, packet(STATUS, id)[..]);
    }

    /// Both sides see the end.
    async fn are_over(&mut self) {
        let mut rest = Vec::new();
        // A socket closed with unread bytes is reset, which is an end as well.
        let _ = self.client.0.read_to_end(&mut rest).await;
        assert_eq!(rest, [], "the client was sent something");
        self.server.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, [], "the server was sent something");
    }
}

#[tokio::test]
async fn each_moment_has_its_effect() {
    for moment in Moment::ALL {
        let proxy = Proxy::new();
        let mut ends = ends(&proxy);
        let mut trigger = proxy.at(Message::Mkdir, 1, moment, Action::Cut);
        // Another request is forwarded and answered.
        ends.ask(LSTAT, 1).await;
        ends.arrives(LSTAT, 1).await;
        ends.answer(1).await;
        ends.answered(1).await;
        assert!(!trigger.has_fired());
        ends.ask(MKDIR, 2).await;
        if moment != Moment::BeforeRequest {
            ends.arrives(MKDIR, 2).await;
            assert!(!trigger.has_fired(), "{moment:?}");
            ends.answer(2).await;
        }
        if moment == Moment::AfterReply {
            ends.answered(2).await;
        }
        trigger.fired().await;
        ends.are_over().await;
    }
}

#[tokio::test]
async fn the_nth_of_a_type_is_counted_over_all_connections() {
    let proxy = Proxy::new();
    let (mut one, mut other) = (ends(&proxy), ends(&proxy));
    let trigger = proxy.at(Message::Mkdir, 3, Moment::BeforeRequest, Action::Cut);
    one.ask(MKDIR, 7).await;
    one.arrives(MKDIR, 7).await;
    other.ask(MKDIR, 7).await;
    other.arrives(MKDIR, 7).await;
    assert!(!trigger.has_fired());
    one.ask(MKDIR, 8).await;
    one.are_over().await;
    other.are_over().await;
    assert_eq!((proxy.requests(Message::Mkdir), proxy.requests(Message::Any)), (3, 3));
    assert_eq!(proxy.all_requests(), [(Message::Mkdir, 3)]);
    // A new connection works.
    let mut again = ends(&one.proxy);
    again.ask(MKDIR, 1).await;
    again.arrives(MKDIR, 1).await;
}

#[tokio::test]
async fn any_request_matches_and_two_triggers_fire_in_order() {
    let proxy = Proxy::new();
    let mut first = proxy.at(Message::Any, 1, Moment::BeforeRequest, Action::Cut);
    let mut second = proxy.at(Message::Lstat, 1, Moment::BeforeRequest, Action::Cut);
    let mut ends_one = ends(&proxy);
    ends_one.ask(LSTAT, 1).await;
    first.fired().await;
    assert!(!second.has_fired());
    let mut ends_two = ends(&proxy);
    ends_two.ask(LSTAT, 1).await;
    second.fired().await;
    ends_two.are_over().await;
}

#[tokio::test]
async fn stalled_traffic_continues_or_is_cut() {
    for moment in Moment::ALL {
        for resumed in [true, false] {
            let proxy = Proxy::new();
            let mut ends = ends(&proxy);
            let mut trigger = proxy.at(Message::Mkdir, 1, moment, Action::Stall);
            ends.ask(MKDIR, 1).await;
            if moment != Moment::BeforeRequest {
                ends.arrives(MKDIR, 1).await;
                ends.answer(1).await;
            }
            trigger.fired().await;
            if moment == Moment::AfterReply {
                ends.answered(1).await;
            }
            // Later requests wait too, on this connection and on new ones.
            ends.ask(LSTAT, 2).await;
            let mut byte = [0];
            let early = ends.server.read(&mut byte);
            let early = tokio::time::timeout(Duration::from_millis(20), early).await;
            assert!(early.is_err(), "something arrives at {moment:?}");
            if !resumed {
                proxy.cut();
                ends.are_over().await;
                continue;
            }
            proxy.resume();
            match moment {
                Moment::BeforeRequest => ends.arrives(MKDIR, 1).await,
                Moment::BeforeReply => ends.answered(1).await,
                Moment::AfterReply => {}
            }
            ends.arrives(LSTAT, 2).await;
        }
    }
}

#[tokio::test]
async fn an_end_of_either_side_is_the_end_of_the_other() {
    let proxy = Proxy::new();
    let mut ends_one = ends(&proxy);
    ends_one.ask(LSTAT, 1).await;
    ends_one.arrives(LSTAT, 1).await;
    // The client has closed its sending side, and still expects its reply.
    ends_one.client.1.shutdown().await.unwrap();
    let mut rest = Vec::new();
    ends_one.server.read_to_end(&mut rest).await.unwrap();
    ends_one.answer(1).await;
    ends_one.answered(1).await;
    let mut ends_two = ends(&proxy);
    drop(ends_two.server);
    assert_eq!(ends_two.client.0.read_to_end(&mut rest).await.unwrap(), 0);
}

/// With a real server: the request was executed, or not, according to the moment.
#[tokio::test]
async fn a_real_server_has_executed_the_request_or_not() {
    for moment in Moment::ALL {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::new(dir.path());
        let (mut reader, mut writer) = server.connect().unwrap();
        writer.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).await.unwrap();
        let mut version = vec![0; reader.read_u32().await.unwrap() as usize];
        reader.read_exact(&mut version).await.unwrap();
        let mut trigger = server.proxy().at(Message::Mkdir, 1, moment, Action::Cut);
        let mut request = vec![0, 0, 0, 16, MKDIR, 0, 0, 0, 9, 0, 0, 0, 3];
        request.extend(*b"new");
        request.extend([0; 4]);
        writer.write_all(&request).await.unwrap();
        trigger.fired().await;
        let mut said = Vec::new();
        let _ = reader.read_to_end(&mut said).await;
        // The server has ended before the check, so that everything it executes is done.
        while server.running() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(dir.path().join("new").exists(), moment != Moment::BeforeRequest, "{moment:?}");
        assert_eq!(!said.is_empty(), moment == Moment::AfterReply, "{moment:?}");
        assert_eq!((server.connections(), server.open_handles()), (1, 0));
        server.refuse(true);
        assert!(server.connect().is_err());
    }
}
