//! The two tasks of a connection: one for each direction.
//!
//! Both directions of a connection end together: when it is cut, or when the server's side ends.
//! When the client's side ends, the server is notified, and its last replies are still forwarded.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use base::Mutex;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::message::{self, Message};
use super::{Flow, Instruction, Moment, Proxy};

/// Longest accepted packet, in bytes: four times OpenSSH's limit.
const MAX_PACKET_BYTES: u32 = 1 << 20;

/// The server's VERSION, which has no id.
const VERSION: u8 = 2;

/// A connection.
struct Connection {
    proxy: Arc<Proxy>,
    /// The number of cuts when the connection was made.
    cuts: u64,
    /// Actions for replies, by the id of the request.
    reply_instructions: Mutex<HashMap<u32, Instruction>>,
}

/// The connection has ended. Dropping both halves ends it.
struct Ended;

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Ended {
        Ended
    }
}

/// Forwards between client and server until the connection has ended.
pub(super) fn start<CR, CW, SR, SW>(proxy: Arc<Proxy>, client: (CR, CW), server: (SR, SW))
where
    CR: AsyncRead + Send + Unpin + 'static,
    CW: AsyncWrite + Send + Unpin + 'static,
    SR: AsyncRead + Send + Unpin + 'static,
    SW: AsyncWrite + Send + Unpin + 'static,
{
    let mut flow = proxy.flow.subscribe();
    let cuts = flow.borrow_and_update().cuts;
    let connection = Connection { proxy, cuts, reply_instructions: Mutex::default() };
    tokio::spawn(async move {
        let requests = connection.forward_requests(client.0, server.1);
        let replies = connection.forward_replies(server.0, client.1);
        let cut = was_cut(&mut flow, cuts);
        tokio::select! {
            // Nothing is forwarded after a cut.
            biased;
            () = cut => {}
            _ = replies => {}
            // Ends only with an error; the end of the client's side does not end it.
            Ended = requests => {}
        }
    });
}

/// Returns when there was a cut.
async fn was_cut(flow: &mut watch::Receiver<Flow>, cuts: u64) {
    // Without a proxy there are no more cuts.
    if flow.wait_for(|flow| flow.cuts != cuts).await.is_err() {
        std::future::pending().await
    }
}

impl Connection {
    /// Returns when traffic may be forwarded; never if the connection was cut.
    async fn may_move(&self) -> Result<(), Ended> {
        let mut flow = self.proxy.flow.subscribe();
        match flow.wait_for(|flow| flow.cuts != self.cuts || !flow.stalled).await {
            Ok(flow) if flow.cuts == self.cuts => Ok(()),
            _ => Err(Ended),
        }
    }

    async fn forward_requests(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Ended {
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
    ) -> Result<bool, Ended> {
        let Some(packet) = receive(from).await? else { return Ok(false) };
        let instruction = Message::of(&packet[4..]).and_then(|message| self.proxy.seen(message));
        match instruction {
            Some(instruction) if instruction.moment == Moment::BeforeRequest => {
                self.proxy.fire(&instruction)
            }
            Some(instruction) => {
                let id = message::id(&packet[4..]).ok_or(Ended)?;
                self.reply_instructions.lock().insert(id, instruction);
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
    ) -> Result<(), Ended> {
        while let Some(packet) = receive(&mut from).await? {
            let id = message::id(&packet[4..]).filter(|_| packet[4] != VERSION);
            let instruction = id.and_then(|id| self.reply_instructions.lock().remove(&id));
            if let Some(instruction) =
                instruction.as_ref().filter(|it| it.moment == Moment::BeforeReply)
            {
                self.proxy.fire(instruction);
            }
            self.may_move().await?;
            to.write_all(&packet).await?;
            to.flush().await?;
            if let Some(instruction) = instruction.filter(|it| it.moment == Moment::AfterReply) {
                self.proxy.fire(&instruction);
            }
        }
        Ok(())
    }
}

/// The next packet including its length, at least five bytes; `None` at the end.
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
