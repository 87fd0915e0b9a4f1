//! A forwarder on the loopback interface that behaves as a longer, slower, worse link.
//!
//! Clients connect to [`Link::port`]; what they send arrives at the target half a round trip
//! later, at no more than the link's rate, and the same the other way. The link can be cut
//! (every connection is reset), stalled (nothing moves, nothing breaks, as when a laptop leaves
//! the network), and closed to new connections.
//!
//! One thread forwards for all connections. It wakes by `ppoll` with nanoseconds, and for short
//! round trips it spins through the last microseconds, since a timer is late by about as much.
//! What forwarding itself costs is measured at the start of a link and taken off the delay.
//! Measured on two idle cores: 0.2 ms are right to 1 %, 2 ms to 2 %, 20 ms to 1.5 %; with both
//! cores busy the first is up to 20 % too long.
//!
//! What is not simulated: loss, jitter, reordering, TCP's slow start over the distance (each half
//! of the connection is a loopback one, and is set up at once).

mod cost;
mod flow;
mod forwarder;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

pub use cost::echo;
use forwarder::{Forwarder, Order};

/// How the link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkOptions {
    /// Added to each round trip, half of it on each way.
    pub rtt: Duration,
    /// Bytes a second, in each direction for all connections together; `None` for as many as
    /// this machine moves.
    pub rate_bytes_per_s: Option<u64>,
}

/// A link. Dropping it closes its connections.
#[derive(Debug)]
pub struct Link {
    port: u16,
    /// Bytes that have left the link at the target, and at clients.
    counters: [Arc<AtomicU64>; 2],
    orders: Sender<Order>,
    /// Wakes the thread to look at its orders.
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts forwarding from a free port on 127.0.0.1 to `target`.
    ///
    /// # Errors
    /// When there is no port, descriptor or thread to be had.
    pub fn start(target: SocketAddr, options: LinkOptions) -> io::Result<Link> {
        let cost = cost::one_way(options.rtt)?;
        Link::start_with_cost(target, options, cost)
    }

    /// As [`Link::start`], with what forwarding costs on one way.
    fn start_with_cost(
        target: SocketAddr,
        options: LinkOptions,
        cost: Duration,
    ) -> io::Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let counters: [Arc<AtomicU64>; 2] = Default::default();
        let (orders, received) = mpsc::channel();
        let delay = (options.rtt / 2).saturating_sub(cost);
        let forwarder =
            Forwarder::new(listener, target, options, delay, &counters, bell.clone(), received)?;
        let thread =
            thread::Builder::new().name("link".to_owned()).spawn(move || forwarder.run())?;
        Ok(Link { port, counters, orders, bell, thread: Some(thread) })
    }

    /// The port on 127.0.0.1 to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Resets all connections. New ones are taken.
    ///
    /// # Panics
    /// This and the following ones: when the link's thread has ended, which it does not do.
    pub fn cut(&self) {
        self.tell(Forwarder::cut);
    }

    /// Nothing moves from now on; connections stand, and new ones are taken but not answered.
    pub fn stall(&self) {
        self.tell(|forwarder| forwarder.stalled = true);
    }

    /// Ends [`Link::stall`]: what was under way arrives.
    pub fn resume(&self) {
        self.tell(|forwarder| forwarder.stalled = false);
    }

    /// Refuses new connections. Those that stand go on.
    pub fn refuse(&self) {
        self.tell(Forwarder::refuse).expect("the link's port");
    }

    /// Ends [`Link::refuse`].
    pub fn accept(&self) {
        self.tell(Forwarder::listen).expect("the link's port");
    }

    /// Leads new connections elsewhere; those that stand stay where they are. So a link can be
    /// measured against an echo before it is used.
    pub fn set_target(&self, target: SocketAddr) {
        self.tell(move |forwarder| forwarder.target = target);
    }

    /// Takes connections from reserved ports only, and connects to the target from such a port, as
    /// [`crate::connect_reserved`] does.
    pub fn reserve(&self) {
        self.tell(|forwarder| forwarder.is_reserved = true);
    }

    /// Bytes that were handed to the target so far.
    pub fn bytes_to_target(&self) -> u64 {
        self.counters[0].load(Ordering::Relaxed)
    }

    /// Bytes of the target that were handed to clients so far.
    pub fn bytes_from_target(&self) -> u64 {
        self.counters[1].load(Ordering::Relaxed)
    }

    /// Has the thread do this, and waits for it.
    fn tell<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Forwarder) -> T + Send + 'static,
    ) -> T {
        let (done, wait) = mpsc::sync_channel(1);
        self.send(move |forwarder| drop(done.send(order(forwarder))));
        wait.recv().expect("the link's thread")
    }

    fn send(&self, order: impl FnOnce(&mut Forwarder) + Send + 'static) {
        let _ = self.orders.send(Box::new(order));
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.send(|forwarder| forwarder.is_over = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
