//! The thread of a link: takes connections, moves bytes when they are due.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SocketType, bind, listen, shutdown, socket, sockopt};

use super::LinkOptions;
use super::flow::{Flow, Lane, Offer};
use crate::reserved::{connect_reserved, is_reserved};

/// How long before a byte is due the thread stops sleeping and spins: more than a timer is late
/// on a virtual machine (measured: 10 to 40 us).
const SPIN: Duration = Duration::from_micros(60);

/// Delays from which on nothing is spun: there the timer's lateness is below 3 %.
const SPIN_BELOW: Duration = Duration::from_millis(2);

/// Connections that wait to be taken, as many as `TcpListener` has.
const BACKLOG: i32 = 128;

/// What the thread is told to do.
pub(super) type Order = Box<dyn FnOnce(&mut Forwarder) + Send>;

/// All that the thread has.
pub(super) struct Forwarder {
    /// `None` while connections are refused.
    listener: Option<TcpListener>,
    /// Holds the port meanwhile: bound, and not listening.
    reserved: Option<OwnedFd>,
    address: SocketAddr,
    pub(super) target: SocketAddr,
    /// Ports at both ends are reserved ones.
    pub(super) is_reserved: bool,
    connections: Vec<Connection>,
    to_target: Direction,
    from_target: Direction,
    pub(super) stalled: bool,
    pub(super) is_over: bool,
    spins: bool,
    bell: Arc<OwnedFd>,
    orders: Receiver<Order>,
}

/// One way of the wire.
struct Direction {
    lane: Lane,
    /// Its index in [`Connection::flows`], and that of its source in [`Connection::ends`].
    index: usize,
    counter: Arc<AtomicU64>,
    /// What a read goes into, since how much there is to read is not known before.
    buffer: Vec<u8>,
}

struct Connection {
    /// The client, and the target.
    ends: [TcpStream; 2],
    /// From each end to the other one.
    flows: [Flow; 2],
}

impl Forwarder {
    pub(super) fn new(
        listener: TcpListener,
        target: SocketAddr,
        options: LinkOptions,
        delay: Duration,
        counters: &[Arc<AtomicU64>; 2],
        bell: Arc<OwnedFd>,
        orders: Receiver<Order>,
    ) -> io::Result<Forwarder> {
        listener.set_nonblocking(true)?;
        let now = Instant::now();
        let direction = |index: usize| {
            let lane = Lane::new(delay, options.rate_bytes_per_s, now);
            let buffer = vec![0; lane.chunk_bytes()];
            Direction { lane, index, counter: counters[index].clone(), buffer }
        };
        Ok(Forwarder {
            address: listener.local_addr()?,
            listener: Some(listener),
            reserved: None,
            target,
            is_reserved: false,
            connections: Vec::new(),
            to_target: direction(0),
            from_target: direction(1),
            stalled: false,
            is_over: false,
            spins: !delay.is_zero() && delay < SPIN_BELOW,
            bell,
            orders,
        })
    }

    pub(super) fn run(mut self) {
        // The default of 50 us would make each timer late by as much.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            self.wait();
            let mut bell = [0; 8];
            if rustix::io::read(&*self.bell, &mut bell).is_ok() {
                while let Ok(order) = self.orders.try_recv() {
                    order(&mut self);
                }
            }
            if self.is_over {
                return;
            }
            if self.stalled {
                continue;
            }
            self.take_connections();
            let Forwarder { connections, to_target, from_target, .. } = &mut self;
            connections.retain_mut(|connection| {
                connection.forward(to_target).is_ok()
                    && connection.forward(from_target).is_ok()
                    && !connection.flows.iter().all(Flow::is_over)
            });
        }
    }

    /// Sleeps until there may be something to do.
    fn wait(&self) {
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        if !self.stalled {
            fds.extend(self.listener.iter().map(|it| PollFd::new(it, PollFlags::IN)));
            for connection in &self.connections {
                let wanted = connection.events([&self.to_target.lane, &self.from_target.lane]);
                for (end, events) in connection.ends.iter().zip(wanted) {
                    if !events.is_empty() {
                        fds.push(PollFd::new(end, events));
                    }
                }
            }
        }
        let timeout = self.next_due().and_then(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec::try_from(if self.spins { left.saturating_sub(SPIN) } else { left }).ok()
        });
        // Interrupted is as good as woken.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn next_due(&self) -> Option<Instant> {
        let flows = self.connections.iter().flat_map(|connection| &connection.flows);
        if self.stalled { None } else { flows.filter_map(Flow::due).min() }
    }

    pub(super) fn cut(&mut self) {
        self.connections.drain(..).for_each(Connection::reset);
    }

    /// Gives up listening, and keeps the port from other processes.
    pub(super) fn refuse(&mut self) -> io::Result<()> {
        if let Some(listener) = self.listener.take() {
            // Closing is not enough: a process that is being started has it open for a moment.
            shutdown(&listener, net::Shutdown::Read)?;
            drop(listener);
            let reserved = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            // The old connections keep the port otherwise.
            sockopt::set_socket_reuseaddr(&reserved, true)?;
            bind(&reserved, &self.address)?;
            self.reserved = Some(reserved);
        }
        Ok(())
    }

    /// Listens again.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        if let Some(reserved) = self.reserved.take() {
            listen(&reserved, BACKLOG)?;
            let listener = TcpListener::from(reserved);
            listener.set_nonblocking(true)?;
            self.listener = Some(listener);
        }
        Ok(())
    }

    fn take_connections(&mut self) {
        while let Some(Ok((client, from))) = self.listener.as_ref().map(TcpListener::accept) {
            let target = match self.is_reserved {
                true if !is_reserved(from.port()) => continue,
                true => connect_reserved(self.target),
                false => TcpStream::connect(self.target),
            };
            // When the target refuses, the client sees its connection end.
            if let Ok(connection) = target.and_then(|target| Connection::new(client, target)) {
                self.connections.push(connection);
            }
        }
    }
}

impl Connection {
    fn new(client: TcpStream, target: TcpStream) -> io::Result<Connection> {
        for end in [&client, &target] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
        }
        Ok(Connection { ends: [client, target], flows: Default::default() })
    }

    /// What to wait for at each end.
    fn events(&self, lanes: [&Lane; 2]) -> [PollFlags; 2] {
        [0, 1].map(|end| {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, self.flows[end].wants(lanes[end]));
            events.set(PollFlags::OUT, self.flows[1 - end].is_blocked);
            events
        })
    }

    /// Moves in one direction what can be moved now. An error means that the connection is broken.
    fn forward(&mut self, direction: &mut Direction) -> io::Result<()> {
        let index = direction.index;
        deliver(&mut self.flows[index], &self.ends[1 - index], &direction.counter)?;
        let (flow, mut source) = (&mut self.flows[index], &self.ends[index]);
        while flow.wants(&direction.lane) {
            match source.read(&mut direction.buffer) {
                Ok(read) => {
                    let bytes = direction.buffer[..read].to_vec();
                    flow.push(bytes, &mut direction.lane, Instant::now());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        deliver(flow, &self.ends[1 - index], &direction.counter)
    }

    /// Ends both connections as a link that is gone does in the end: with a reset.
    fn reset(self) {
        for end in &self.ends {
            let _ = sockopt::set_socket_linger(end, Some(Duration::ZERO));
        }
    }
}

/// Hands over what is due.
fn deliver(flow: &mut Flow, mut sink: &TcpStream, counter: &AtomicU64) -> io::Result<()> {
    flow.is_blocked = false;
    loop {
        match flow.offer(Instant::now()) {
            Offer::Nothing => return Ok(()),
            Offer::End => {
                sink.shutdown(Shutdown::Write)?;
                flow.taken(0);
            }
            Offer::Bytes(bytes) => {
                // Received bytes are counted before they arrive.
                counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                let result = sink.write(bytes);
                let left = bytes.len() - *result.as_ref().unwrap_or(&0);
                counter.fetch_sub(left as u64, Ordering::Relaxed);
                match result {
                    Ok(written) => flow.taken(written),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        flow.is_blocked = true;
                        return Ok(());
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => (),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
