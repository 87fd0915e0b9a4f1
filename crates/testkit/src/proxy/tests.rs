use super::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// A client and a scripted server.
struct Ends {
    client: (OwnedReadHalf, OwnedWriteHalf),
    server: DuplexStream,
}

fn ends(proxy: &Arc<Proxy>) -> Ends {
    let (server, middle) = duplex(1 << 16);
    let (from_server, to_server) = tokio::io::split(middle);
    Ends { client: proxy.connect_to(from_server, to_server), server }
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
async fn stalled_traffic_continues_or_is_cut() {
    for moment in Moment::ALL {
        for resumed in [true, false] {
            let proxy = Proxy::new();
            let mut ends = ends(&proxy);
            let mut trigger = proxy.at(Message::Mkdir, moment, Action::Stall);
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
