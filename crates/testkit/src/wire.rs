//! A middle between an SFTP client and its server that understands just enough to break the
//! connection at a given moment of a given request.
//!
//! Whether something has happened at the server is what one wants to know of a lost connection, so
//! the moments are not a matter of luck: to break "before the reply" is to wait for the server's
//! reply and to keep it.
//!
//! ```text
//! client ── request ──▶ [1] ──▶ server
//! client ◀── [3] ── [2] reply ──┘
//! ```
//!
//! 1 is [`Moment::BeforeRequest`], 2 [`Moment::BeforeReply`], 3 [`Moment::AfterReply`]. What was
//! forwarded before the moment stays so; replies to other requests that are still on their way are
//! lost with the connection, or wait with it.
//!
//! One [`Wire`] is the way to one server for all connections of a test, one after the other or at
//! once: a [`Trap`] waits for the request on any of them, and a cut ends all of them.
//! [`Server`] starts a real `sftp-server` behind one.

mod message;
mod pump;
mod server;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

pub use message::Message;
pub use server::Server;

/// When a trap springs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The request has come, and has not been forwarded. The server will not see it, or only after
    /// a [`Wire::resume`].
    BeforeRequest,
    /// The server has answered, and so has done what it does. The client has not heard of it.
    BeforeReply,
    /// The client has been sent the answer.
    AfterReply,
}

impl Moment {
    /// All of them, in their order.
    pub const ALL: [Moment; 3] = [Moment::BeforeRequest, Moment::BeforeReply, Moment::AfterReply];
}

/// What a trap does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Ends all connections, as [`Wire::cut`].
    Cut,
    /// Nothing moves any more, as [`Wire::stall`].
    Stall,
}

/// Where requests are counted and traps lie.
#[derive(Debug, Default)]
struct Ledger {
    seen: HashMap<Message, u64>,
    armed: Vec<Armed>,
}

/// A trap that waits for its request.
#[derive(Debug)]
struct Armed {
    message: Message,
    /// So many requests of its kind are still let through.
    let_through: u64,
    order: Order,
}

/// What is to be done with a request, or with its reply.
#[derive(Debug)]
struct Order {
    moment: Moment,
    then: Then,
    sprung: watch::Sender<bool>,
}

/// Whether bytes move, on all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flow {
    stalled: bool,
    /// Connections made before this many cuts are over.
    cuts: u64,
}

/// The way to one server. See the [module](self).
#[derive(Debug)]
pub struct Wire {
    ledger: Mutex<Ledger>,
    flow: watch::Sender<Flow>,
}

/// Something that happens at a moment of a request to come.
#[derive(Debug)]
pub struct Trap(watch::Receiver<bool>);

impl Trap {
    /// Returns when it has happened.
    pub async fn sprung(&mut self) {
        // The wire is gone, so it never will.
        if self.0.wait_for(|sprung| *sprung).await.is_err() {
            std::future::pending().await
        }
    }

    /// Whether it has happened.
    #[must_use]
    pub fn has_sprung(&self) -> bool {
        *self.0.borrow()
    }
}

impl Wire {
    /// A way on which nothing happens.
    #[must_use]
    pub fn new() -> Arc<Wire> {
        let flow = watch::Sender::new(Flow::default());
        Arc::new(Wire { ledger: Mutex::default(), flow })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays itself between a client and the server at the other end of these halves; gives the
    /// client's. Needs a tokio runtime.
    ///
    /// # Panics
    /// When there is no descriptor to be had.
    pub fn lead_to(
        self: &Arc<Wire>,
        from_server: impl AsyncRead + Send + Unpin + 'static,
        to_server: impl AsyncWrite + Send + Unpin + 'static,
    ) -> (OwnedReadHalf, OwnedWriteHalf) {
        let (client, middle) = UnixStream::pair().expect("a pair of sockets");
        let (from_client, to_client) = middle.into_split();
        pump::start(self.clone(), (from_client, to_client), (from_server, to_server));
        client.into_split()
    }

    /// Lays a trap: at this moment of the `nth` request (counted from 1, from now on) of this
    /// kind.
    ///
    /// # Panics
    /// When `nth` is zero.
    pub fn at(&self, message: Message, nth: u64, moment: Moment, then: Then) -> Trap {
        let (sprung, told) = watch::channel(false);
        let order = Order { moment, then, sprung };
        let let_through = nth.checked_sub(1).expect("requests are counted from 1");
        self.ledger().armed.push(Armed { message, let_through, order });
        Trap(told)
    }

    /// Ends all connections. New ones can be made.
    pub fn cut(&self) {
        self.flow.send_modify(|flow| flow.cuts += 1);
    }

    /// Nothing moves from now on; connections stand, and new ones can be made but are not
    /// answered.
    pub fn stall(&self) {
        self.flow.send_modify(|flow| flow.stalled = true);
    }

    /// Ends [`Wire::stall`]; what was held goes on, where its connection was not cut.
    pub fn resume(&self) {
        self.flow.send_modify(|flow| flow.stalled = false);
    }

    /// How many requests of this kind clients have sent so far.
    #[must_use]
    pub fn requests(&self, message: Message) -> u64 {
        let ledger = self.ledger();
        match message {
            Message::Any => ledger.seen.values().sum(),
            message => ledger.seen.get(&message).copied().unwrap_or(0),
        }
    }

    /// All kinds that were sent so far, each with its number, in no order.
    #[must_use]
    pub fn all_requests(&self) -> Vec<(Message, u64)> {
        self.ledger().seen.iter().map(|(message, count)| (*message, *count)).collect()
    }

    /// Counts a request; tells what is to be done with it.
    fn seen(&self, message: Message) -> Option<Order> {
        let mut ledger = self.ledger();
        *ledger.seen.entry(message).or_default() += 1;
        let mut due = None;
        for (index, armed) in ledger.armed.iter_mut().enumerate() {
            if armed.message != message && armed.message != Message::Any {
                continue;
            }
            match armed.let_through.checked_sub(1) {
                Some(left) => armed.let_through = left,
                // Of two for one request the first counts; the other waits for the next.
                None if due.is_none() => due = Some(index),
                None => {}
            }
        }
        due.map(|index| ledger.armed.remove(index).order)
    }

    /// Does what a trap is for.
    fn spring(&self, order: &Order) {
        match order.then {
            Then::Cut => self.cut(),
            Then::Stall => self.stall(),
        }
        order.sprung.send_replace(true);
    }
}

#[cfg(test)]
mod tests;
