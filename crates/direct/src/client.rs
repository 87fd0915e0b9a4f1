//! The client's side.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection};

use crate::socket::{Timed, handshake, prepare, without_timeouts};
use crate::stream::{AsyncReader, AsyncWriter, asynchronous};
use crate::{Digest, Error, Identity};

/// The first byte that the server sends: it has accepted the client's key. In TLS 1.3 the client's
/// handshake ends before the server has checked it.
pub(crate) const ACCEPTED: u8 = 1;

/// The name of the server in the handshake, which is not used.
const NAME: &str = "sshoal";

/// Connects to the listener at `address` that has the key `peer`, within `limit`. The reader polls
/// for `poll_limit` before it sleeps. Must be called within a runtime, which serves the connection.
///
/// # Errors
/// When nothing answers there in time, or the other side is not the expected one.
pub async fn connect(
    address: SocketAddr,
    identity: &Identity,
    peer: Digest,
    limit: Duration,
    poll_limit: Duration,
) -> Result<(AsyncReader, AsyncWriter), Error> {
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    let tls = ClientConnection::new(identity.client(peer)?, name)?;
    let connected = tokio::task::spawn_blocking(move || begin(address, tls.into(), limit));
    let (socket, tls) = connected.await.map_err(io::Error::other)??;
    Ok(asynchronous(socket, tls, poll_limit)?)
}

fn begin(
    address: SocketAddr,
    mut tls: Connection,
    limit: Duration,
) -> io::Result<(TcpStream, Connection)> {
    let deadline = Instant::now() + limit;
    let socket = TcpStream::connect_timeout(&address, limit)?;
    prepare(&socket)?;
    let mut timed = Timed::new(&socket, deadline);
    handshake(&mut tls, &mut timed)?;
    let mut first = [0];
    loop {
        match tls.reader().read(&mut first) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        tls.complete_io(&mut timed)?;
    }
    if first != [ACCEPTED] {
        return Err(io::Error::other(format!("unexpected first byte {}", first[0])));
    }
    without_timeouts(&socket)?;
    Ok((socket, tls))
}
