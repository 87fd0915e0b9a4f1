//! Connections beside the one that ssh carries: authenticated by keys that were exchanged over it,
//! and served as it is, each by itself. They end with it.

use std::io::{self, IoSlice, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use direct::{Digest, Identity, Limits, Listener};
use rustix::io::Errno;
use sftp::codec::{DirectAddress, DirectRequest, Reply};

use crate::handles::Room;
use crate::locks::Locks;
use crate::options::Options;
use crate::session::{Input, Replies, serve_connection};
use crate::status::{Failure, Result};

/// Longest time for which a connection may be polled.
const MAX_POLL: Duration = Duration::from_millis(1);

/// Listens as the client asks, and serves the connections that it makes.
pub(crate) fn listen(
    options: &Options,
    room: &Arc<Room>,
    address: IpAddr,
    request: DirectRequest,
) -> Result<(Listener, Reply)> {
    let DirectRequest { key, ports: (low, high), poll_us } = request;
    let failed = |error: direct::Error| {
        tracing::warn!("cannot listen on {address}: {error}");
        match error {
            direct::Error::NoPort(..) => Failure::System(Errno::ADDRINUSE),
            direct::Error::Io(error) => {
                Failure::System(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
            direct::Error::Key | direct::Error::Tls(_) => Failure::System(Errno::IO),
        }
    };
    if low > high {
        return Err(Failure::System(Errno::INVAL));
    }
    let identity = Identity::fresh().map_err(failed)?;
    let poll_limit = Duration::from_micros(poll_us.into()).min(MAX_POLL);
    let limits = Limits { poll_limit, ..Limits::default() };
    // Only the first connection listens.
    let options = Options { direct: None, ..options.clone() };
    let room = room.clone();
    let serve = move |reader: direct::Reader, writer: direct::Writer| {
        let served = serve_connection(Box::new(reader), Box::new(writer), &options, &room);
        if let Err(error) = served {
            tracing::info!("a direct connection: {error}");
        }
    };
    let listener = Listener::new(address, low..=high, &identity, Digest(key), limits, serve);
    let listener = listener.map_err(failed)?;
    let (key, at) = (identity.digest().0, listener.address());
    let reply = DirectAddress { key, address: at.ip(), port: at.port() };
    Ok((listener, Reply::extended(&reply)))
}

impl Replies for direct::Writer {
    /// The limit is that at the beginning, since a write waits without asking again.
    fn write_within(&mut self, slices: &[IoSlice<'_>], locks: &Locks) -> io::Result<usize> {
        self.limit_silence(locks.write_limit())?;
        self.write_vectored(slices)
    }
}

impl Input for direct::Reader {
    fn is_readable_within(&mut self, limit: Duration) -> io::Result<bool> {
        direct::Reader::is_readable_within(self, limit)
    }
}
