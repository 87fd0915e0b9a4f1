//! The server's side.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::{Arc, Condvar, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::Mutex;
use rustls::{Connection, ServerConfig, ServerConnection};

use crate::client::ACCEPTED;
use crate::socket::{Timed, handshake, prepare, without_timeouts};
use crate::stream::{Reader, Writer, blocking};
use crate::{Digest, Error, Identity};

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Handshakes at once. Further connections wait in the kernel's queue.
    pub handshakes: usize,
    /// Time for a handshake.
    pub time: Duration,
    /// Time between the beginnings of two handshakes.
    pub pause: Duration,
    /// Authenticated connections at once.
    pub connections: usize,
    /// How long the reader of a connection polls before it sleeps.
    pub poll_limit: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            handshakes: 16,
            time: Duration::from_secs(10),
            pause: Duration::from_millis(10),
            connections: 64,
            poll_limit: Duration::from_micros(50),
        }
    }
}

/// Accepts connections of one peer until it is dropped. Dropping it ends all connections, and waits
/// for their threads.
pub struct Listener {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// What the listener's threads share.
struct State {
    limits: Limits,
    connections: Mutex<Connections>,
    /// A handshake or a connection has ended.
    changed: Condvar,
}

#[derive(Default)]
struct Connections {
    sockets: HashMap<u64, TcpStream>,
    next: u64,
    handshakes: usize,
    is_ending: bool,
}

impl State {
    /// Waits until a handshake may begin; `false` when the listener ends.
    fn wait_for_turn(&self) -> bool {
        let is_full = |connections: &mut Connections| {
            let Connections { sockets, handshakes, is_ending, .. } = connections;
            let accepted = sockets.len() - *handshakes;
            !*is_ending
                && (*handshakes >= self.limits.handshakes || accepted >= self.limits.connections)
        };
        let connections = self.changed.wait_while(self.connections.lock(), is_full);
        !connections.unwrap_or_else(PoisonError::into_inner).is_ending
    }
}

/// A connection from its acceptance to its end.
struct Accepted<'a> {
    state: &'a State,
    number: u64,
    is_authenticated: bool,
}

impl<'a> Accepted<'a> {
    /// `None` when the listener ends.
    fn new(state: &'a State, socket: &TcpStream) -> io::Result<Option<Accepted<'a>>> {
        let socket = socket.try_clone()?;
        let mut connections = state.connections.lock();
        if connections.is_ending {
            return Ok(None);
        }
        let number = connections.next;
        connections.next += 1;
        connections.handshakes += 1;
        connections.sockets.insert(number, socket);
        Ok(Some(Accepted { state, number, is_authenticated: false }))
    }

    fn set_authenticated(&mut self) {
        self.is_authenticated = true;
        self.state.connections.lock().handshakes -= 1;
        self.state.changed.notify_all();
    }
}

impl Drop for Accepted<'_> {
    fn drop(&mut self) {
        let mut connections = self.state.connections.lock();
        connections.handshakes -= usize::from(!self.is_authenticated);
        let socket = connections.sockets.remove(&self.number);
        drop(connections);
        self.state.changed.notify_all();
        // Ends the connection even if a thread still has a half of it.
        let _ = socket.map(|socket| socket.shutdown(Shutdown::Both));
    }
}

impl Listener {
    /// Listens on the first free port of the range; port 0 is any. Each connection whose peer has
    /// proved that it has the key `peer` is given to `serve`, in a thread of its own.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn new(
        address: IpAddr,
        ports: RangeInclusive<u16>,
        identity: &Identity,
        peer: Digest,
        limits: Limits,
        serve: impl Fn(Reader, Writer) + Send + Sync + 'static,
    ) -> Result<Listener, Error> {
        let config = identity.server(peer)?;
        let listener = Arc::new(bind(address, ports)?);
        let address = listener.local_addr()?;
        let (connections, changed) = (Mutex::default(), Condvar::new());
        let state = Arc::new(State { limits, connections, changed });
        let (accepting, of_thread) = (listener.clone(), state.clone());
        let thread = thread::Builder::new().name("listener".to_owned());
        let thread = thread.spawn(move || accept(&accepting, &of_thread, &config, &serve))?;
        Ok(Listener { address, listener, state, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, and ends all. Does not wait for their threads.
    pub fn end(&self) {
        let mut connections = self.state.connections.lock();
        connections.is_ending = true;
        for socket in connections.sockets.values() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        drop(connections);
        self.state.changed.notify_all();
        // Wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.end();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn bind(address: IpAddr, ports: RangeInclusive<u16>) -> Result<TcpListener, Error> {
    let (low, high) = (*ports.start(), *ports.end());
    for port in ports {
        match TcpListener::bind((address, port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            result => return Ok(result?),
        }
    }
    Err(Error::NoPort(low, high))
}

fn accept(
    listener: &TcpListener,
    state: &State,
    config: &Arc<ServerConfig>,
    serve: &(impl Fn(Reader, Writer) + Sync),
) {
    thread::scope(|scope| {
        while state.wait_for_turn() {
            // An error is of one connection, or a lack of resources that passes.
            if let Ok((socket, _)) = listener.accept()
                && let Ok(Some(accepted)) = Accepted::new(state, &socket)
            {
                let thread = thread::Builder::new().name("direct".to_owned());
                let spawned = thread.spawn_scoped(scope, move || {
                    let mut accepted = accepted;
                    match authenticate(socket, config, state.limits) {
                        Ok((reader, writer)) => {
                            accepted.set_authenticated();
                            serve(reader, writer);
                        }
                        Err(error) => tracing::debug!("a direct connection: {error}"),
                    }
                });
                if let Err(error) = spawned {
                    tracing::warn!("cannot start a thread: {error}");
                }
            }
            thread::sleep(state.limits.pause);
        }
    });
}

fn authenticate(
    socket: TcpStream,
    config: &Arc<ServerConfig>,
    limits: Limits,
) -> Result<(Reader, Writer), Error> {
    prepare(&socket)?;
    let mut tls = Connection::from(ServerConnection::new(config.clone())?);
    let mut timed = Timed::new(&socket, Instant::now() + limits.time);
    handshake(&mut tls, &mut timed)?;
    tls.writer().write_all(&[ACCEPTED])?;
    handshake(&mut tls, &mut timed)?;
    without_timeouts(&socket)?;
    Ok(blocking(socket, tls, limits.poll_limit))
}
