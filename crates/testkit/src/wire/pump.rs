//! The two tasks of a connection: one for each direction.
//!
//! A connection ends in both directions at once: when it is cut, or when the server's side ends.
//! When the client's side ends, the server is told so, and its last replies are still handed over.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::message::{self, Message};
use super::{Flow, Moment, Order, Wire};

/// Longest packet that is taken, in bytes: four times what OpenSSH allows.
const MAX_PACKET_BYTES: u32 = 1 << 20;

/// The server's greeting, which has no id.
const VERSION: u8 = 2;

/// A connection.
struct Connection {
    wire: Arc<Wire>,
    /// As many cuts as there were when it was made.
    cuts: u64,
    /// Orders for replies, by the id of the request.
    awaited: Mutex<HashMap<u32, Order>>,
}

/// The connection is over. Dropping both halves is what ends it.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Over {
        Over
    }
}

/// Forwards between these until the connection is over.
pub(super) fn start<CR, CW, SR, SW>(wire: Arc<Wire>, client: (CR, CW), server: (SR, SW))
where
    CR: AsyncRead + Send + Unpin + 'static,
    CW: AsyncWrite + Send + Unpin + 'static,
    SR: AsyncRead + Send + Unpin + 'static,
    SW: AsyncWrite + Send + Unpin + 'static,
{
    let mut flow = wire.flow.subscribe();
    let cuts = flow.borrow_and_update().cuts;
    let connection = Connection { wire, cuts, awaited: Mutex::default() };
    tokio::spawn(async move {
        let requests = connection.forward_requests(client.0, server.1);
        let replies = connection.forward_replies(server.0, client.1);
        let cut = was_cut(&mut flow, cuts);
        tokio::select! {
            // Nothing is handed over after a cut.
            biased;
            () = cut => {}
            _ = replies => {}
            // Ends only with an error: the end of the client's side is waited with.
            Over = requests => {}
        }
    });
}

/// Returns when there was a cut since.
async fn was_cut(flow: &mut watch::Receiver<Flow>, cuts: u64) {
    // Without a wire nobody cuts it any more.
    if flow.wait_for(|flow| flow.cuts != cuts).await.is_err() {
        std::future::pending().await
    }
}

impl Connection {
    /// Returns when bytes may move; not at all when the connection was cut.
    async fn may_move(&self) -> Result<(), Over> {
        let mut flow = self.wire.flow.subscribe();
        match flow.wait_for(|flow| flow.cuts != self.cuts || !flow.stalled).await {
            Ok(flow) if flow.cuts == self.cuts => Ok(()),
            _ => Err(Over),
        }
    }

    async fn forward_requests(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Over {
        loop {
            match self.forward_request(&mut from, &mut to).await {
                Ok(true) => {}
                Ok(false) => {
                    let _ = to.shutdown().await;
                    drop(to);
                    return std::future::pending().await;
                }
                Err(over) => return over,
            }
        }
    }

    /// `false` at the end.
    async fn forward_request(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<bool, Over> {
        let Some(packet) = receive(from).await? else { return Ok(false) };
        let order = Message::of(&packet[4..]).and_then(|message| self.wire.seen(message));
        match order {
            Some(order) if order.moment == Moment::BeforeRequest => self.wire.spring(&order),
            Some(order) => {
                let id = message::id(&packet[4..]).ok_or(Over)?;
                self.awaited().insert(id, order);
            }
            None => {}
        }
        self.may_move().await?;
        to.write_all(&packet).await?;
        to.flush().await?;
        Ok(true)
    }

    async fn forward_replies(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<(), Over> {
        while let Some(packet) = receive(&mut from).await? {
            let id = message::id(&packet[4..]).filter(|_| packet[4] != VERSION);
            let order = id.and_then(|id| self.awaited().remove(&id));
            if let Some(order) = order.as_ref().filter(|it| it.moment == Moment::BeforeReply) {
                self.wire.spring(order);
            }
            self.may_move().await?;
            to.write_all(&packet).await?;
            to.flush().await?;
            if let Some(order) = order.filter(|it| it.moment == Moment::AfterReply) {
                self.wire.spring(&order);
            }
        }
        Ok(())
    }

    fn awaited(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Order>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next packet with its length in front, never shorter than five bytes; `None` at the end.
async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 4];
    match from.read_exact(&mut header).await {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let len = u32::from_be_bytes(header);
    if !(1..=MAX_PACKET_BYTES).contains(&len) {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut packet = header.to_vec();
    packet.resize(4 + len as usize, 0);
    from.read_exact(&mut packet[4..]).await?;
    Ok(Some(packet))
}
