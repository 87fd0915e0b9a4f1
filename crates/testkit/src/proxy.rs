//! A proxy between an SFTP client and its server that understands just enough of the protocol to
//! break the connection at a given moment of a given request.
//!
//! A test of a lost connection has to know whether the request was executed by the server, so the
//! moments are deterministic: to break "before the reply", the proxy waits for the server's reply
//! and does not forward it.
//!
//! ```text
//! client ── request ──▶ [1] ──▶ server
//! client ◀── [3] ── [2] reply ──┘
//! ```
//!
//! 1 is [`Moment::BeforeRequest`], 2 [`Moment::BeforeReply`], 3 [`Moment::AfterReply`]. Everything
//! before the moment was forwarded; replies to other requests that are still in flight are lost
//! with the connection, or wait with it.
//!
//! One [`Proxy`] leads to one server for all connections of a test, consecutive or concurrent: a
//! [`Trigger`] matches the request on any of them, and a cut ends all of them. [`Server`] starts a
//! real `sftp-server` behind one.

mod message;
mod pump;
mod server;

use std::collections::HashMap;
use std::sync::Arc;

use base::Mutex;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

pub use message::Message;
pub use server::Server;

/// When a trigger fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The request was received, and not forwarded. The server never sees it, or only after a
    /// [`Proxy::resume`].
    BeforeRequest,
    /// The server has replied, and so has executed the request. The client has not received the
    /// reply.
    BeforeReply,
    /// The reply was sent to the client.
    AfterReply,
}

impl Moment {
    /// All moments, in order.
    pub const ALL: [Moment; 3] = [Moment::BeforeRequest, Moment::BeforeReply, Moment::AfterReply];
}

/// The action of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ends all connections, like [`Proxy::cut`].
    Cut,
    /// Stops all traffic, like [`Proxy::stall`].
    Stall,
}

/// Counters of requests, and the triggers.
#[derive(Debug, Default)]
struct Ledger {
    seen: HashMap<Message, u64>,
    /// Triggers that wait for a request of their type.
    armed: Vec<(Message, Instruction)>,
}

/// The action on a request, or on its reply.
#[derive(Debug)]
struct Instruction {
    moment: Moment,
    then: Action,
    fired: watch::Sender<bool>,
}

/// Whether traffic is forwarded, on all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flow {
    stalled: bool,
    /// Connections made before this number of cuts are closed.
    cuts: u64,
}

/// The proxy of one server. See the [module](self).
#[derive(Debug)]
pub struct Proxy {
    ledger: Mutex<Ledger>,
    flow: watch::Sender<Flow>,
}

/// An action at a moment of a future request.
#[derive(Debug)]
pub struct Trigger(watch::Receiver<bool>);

impl Trigger {
    /// Returns when the trigger has fired.
    pub async fn fired(&mut self) {
        // The proxy was dropped, so it never will.
        if self.0.wait_for(|fired| *fired).await.is_err() {
            std::future::pending().await
        }
    }

    /// Whether the trigger has fired.
    pub fn has_fired(&self) -> bool {
        *self.0.borrow()
    }
}

impl Proxy {
    /// A proxy without triggers.
    pub fn new() -> Arc<Proxy> {
        let flow = watch::Sender::new(Flow::default());
        Arc::new(Proxy { ledger: Mutex::default(), flow })
    }

    /// Connects a client to the server with these halves; returns the client's halves. Needs a
    /// tokio runtime.
    ///
    /// # Panics
    /// If no descriptor is available.
    pub fn connect_to(
        self: &Arc<Proxy>,
        from_server: impl AsyncRead + Send + Unpin + 'static,
        to_server: impl AsyncWrite + Send + Unpin + 'static,
    ) -> (OwnedReadHalf, OwnedWriteHalf) {
        let (client, middle) = UnixStream::pair().expect("a pair of sockets");
        let (from_client, to_client) = middle.into_split();
        pump::start(self.clone(), (from_client, to_client), (from_server, to_server));
        client.into_split()
    }

    /// Sets a trigger: at this moment of the next request of this type.
    pub fn at(&self, message: Message, moment: Moment, then: Action) -> Trigger {
        let (fired, fired_receiver) = watch::channel(false);
        let instruction = Instruction { moment, then, fired };
        self.ledger.lock().armed.push((message, instruction));
        Trigger(fired_receiver)
    }

    /// Ends all connections. New ones can be made.
    pub fn cut(&self) {
        self.flow.send_modify(|flow| flow.cuts += 1);
    }

    /// Stops all traffic. Connections stay open, and new ones can be made but get no replies.
    pub fn stall(&self) {
        self.flow.send_modify(|flow| flow.stalled = true);
    }

    /// Ends [`Proxy::stall`]; held traffic continues on connections that were not cut.
    pub fn resume(&self) {
        self.flow.send_modify(|flow| flow.stalled = false);
    }

    /// All types of requests so far, each with its number, in any order.
    pub fn all_requests(&self) -> Vec<(Message, u64)> {
        self.ledger.lock().seen.iter().map(|(message, count)| (*message, *count)).collect()
    }

    /// Counts a request; returns the action for it.
    fn seen(&self, message: Message) -> Option<Instruction> {
        let mut ledger = self.ledger.lock();
        *ledger.seen.entry(message).or_default() += 1;
        // Of two triggers for one request the first fires; the other waits for the next request.
        let due = ledger.armed.iter().position(|(of, _)| [message, Message::Any].contains(of))?;
        Some(ledger.armed.remove(due).1)
    }

    /// Executes the action of a trigger.
    fn fire(&self, instruction: &Instruction) {
        match instruction.then {
            Action::Cut => self.cut(),
            Action::Stall => self.stall(),
        }
        instruction.fired.send_replace(true);
    }
}

#[cfg(test)]
mod tests;
