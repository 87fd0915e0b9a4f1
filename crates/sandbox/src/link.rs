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
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

pub use cost::echo;
use forwarder::{Command, Forwarder};

/// How the link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkOptions {
    /// Added to each round trip, half of it on each way.
    pub rtt: Duration,
    /// Bytes a second, in each direction for all connections together; `None` for as many as
    /// this machine moves.
    pub rate_bytes_per_s: Option<u64>,
}

/// Bytes that have left the link at its other end.
#[derive(Debug, Default)]
struct Counters {
    to_target: AtomicU64,
    from_target: AtomicU64,
}

/// A link. Dropping it closes its connections.
#[derive(Debug)]
pub struct Link {
    port: u16,
    counters: Arc<Counters>,
    commands: Sender<(Command, SyncSender<io::Result<()>>)>,
    /// Wakes the thread to look at its commands.
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
        let counters = Arc::new(Counters::default());
        let (commands, received) = mpsc::channel();
        let delay = (options.rtt / 2).saturating_sub(cost);
        let forwarder = Forwarder::new(
            listener,
            target,
            options,
            delay,
            counters.clone(),
            bell.clone(),
            received,
        )?;
        let thread =
            thread::Builder::new().name("link".to_owned()).spawn(move || forwarder.run())?;
        Ok(Link { port, counters, commands, bell, thread: Some(thread) })
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
        self.tell(Command::Cut);
    }

    /// Nothing moves from now on; connections stand, and new ones are taken but not answered.
    pub fn stall(&self) {
        self.tell(Command::Stall);
    }

    /// Ends [`Link::stall`]: what was under way arrives.
    pub fn resume(&self) {
        self.tell(Command::Resume);
    }

    /// Refuses new connections. Those that stand go on.
    pub fn refuse(&self) {
        self.tell(Command::Refuse);
    }

    /// Ends [`Link::refuse`].
    pub fn accept(&self) {
        self.tell(Command::Accept);
    }

    /// Leads new connections elsewhere; those that stand stay where they are. So a link can be
    /// measured against an echo before it is used.
    pub fn set_target(&self, target: SocketAddr) {
        self.tell(Command::Target(target));
    }

    /// Takes connections from reserved ports only, and connects to the target from such a port, as
    /// [`crate::connect_reserved`] does.
    pub fn reserve(&self) {
        self.tell(Command::Reserve);
    }

    /// Bytes that were handed to the target so far.
    pub fn bytes_to_target(&self) -> u64 {
        self.counters.to_target.load(Ordering::Relaxed)
    }

    /// Bytes of the target that were handed to clients so far.
    pub fn bytes_from_target(&self) -> u64 {
        self.counters.from_target.load(Ordering::Relaxed)
    }

    /// Returns when the command was carried out.
    fn tell(&self, command: Command) {
        let (done, wait) = mpsc::sync_channel(1);
        self.commands.send((command, done)).expect("the link's thread");
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        wait.recv().expect("the link's thread").expect("the link's port");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let (done, _) = mpsc::sync_channel(1);
        let _ = self.commands.send((Command::End, done));
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
