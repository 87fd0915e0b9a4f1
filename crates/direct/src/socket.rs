//! TCP sockets: their settings, and the handshake of TLS over one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustls::Connection;

/// Time without an acknowledgement, or in which the other side takes nothing, after which a
/// connection is lost: longer than ssh's own, so that ssh is not left behind a link that comes
/// back.
const UNACKNOWLEDGED: Duration = Duration::from_secs(90);

/// Time without data until the other side is probed, and from one probe to the next.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Prepares a socket for requests: each is sent at once, and a lost connection is noticed.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    limit_silence(socket, None)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
    Ok(())
}

/// Sets for how long the other side may acknowledge or take nothing, at most the usual time.
pub(crate) fn limit_silence(socket: &TcpStream, limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.unwrap_or(UNACKNOWLEDGED).min(UNACKNOWLEDGED);
    Ok(sockopt::set_tcp_user_timeout(socket, limit.as_millis() as u32)?)
}

/// A socket of which no read or write ends after the deadline, however slowly the peer sends.
pub(crate) struct Timed<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    pub(crate) fn new(socket: &TcpStream, deadline: Instant) -> Timed<'_> {
        Timed { socket, deadline }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

/// A time-out of a socket is reported as "would block".
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes the time-outs that [`Timed`] has set.
pub(crate) fn without_timeouts(socket: &TcpStream) -> io::Result<()> {
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)
}

/// Sends and receives until the handshake is done and all of it was sent.
pub(crate) fn handshake(tls: &mut Connection, timed: &mut Timed<'_>) -> io::Result<()> {
    while tls.is_handshaking() || tls.wants_write() {
        tls.complete_io(timed)?;
    }
    Ok(())
}
