//! The source of byte streams to an SFTP server. Independent of ssh.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first session: for metadata, and for everything while it is the only one. May ask the
    /// user.
    Metadata,
    /// The first session again, after an earlier login succeeded.
    Reconnect,
    /// A further session for file content; numbered from 1.
    Bulk(usize),
}

/// Default time during which a connection that is turned away is retried: the limit that ssh gets
/// for connecting.
pub const DEFAULT_RETRY_LIMIT: Duration = Duration::from_secs(15);

/// A byte stream to an SFTP server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// What a failed connection means for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another attempt may succeed at any time.
    Transient,
    /// The server turned the connection away before the login, usually because there were too many
    /// at once. A retry is useful within seconds.
    TurnedAway,
    /// The login was refused. A retry is another failed login, for which servers lock clients out.
    Refused,
    /// Every attempt fails until the configuration or the server is changed.
    Permanent,
}

/// The transport's report on its end (ssh's messages and exit status).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// For the user; safe for a terminal.
    pub text: String,
    /// What the end means for the next attempt.
    pub cause: Cause,
}

impl Explanation {
    /// An explanation with [`Cause::Transient`].
    pub fn transient(text: String) -> Explanation {
        Explanation { text, cause: Cause::Transient }
    }
}

/// Returns the transport's report on its end.
pub type Diagnosis = Box<dyn Fn() -> Option<Explanation> + Send + Sync>;

/// A connection to an SFTP server that has sent nothing yet. Dropping both halves ends it.
pub struct Connection {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    pub(crate) diagnosis: Diagnosis,
}

impl Connection {
    /// A connection over one stream.
    pub fn new(stream: impl Stream, diagnosis: Diagnosis) -> Connection {
        let (reader, writer) = tokio::io::split(stream);
        Connection::from_halves(reader, writer, diagnosis)
    }

    /// A connection over two halves that need no common lock, such as those of a socket: a write
    /// then does not wait until a large read was copied.
    pub fn from_halves(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        diagnosis: Diagnosis,
    ) -> Connection {
        Connection { reader: Box::new(reader), writer: Box::new(writer), diagnosis }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    /// The message for the user.
    pub message: String,
    /// A retry soon will fail too (a refused key, a changed host key). The next attempt may come
    /// late: servers lock out clients that fail often.
    pub permanent: bool,
}

/// Makes connections to one host.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Makes a connection. Dropping the future cancels the attempt.
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError>;

    /// A session has begun over one of the connections, so its login has succeeded.
    fn logged_in(&self) {}

    /// Number of further connections that exist already and need no login.
    fn ready(&self) -> usize {
        0
    }

    /// Time during which a connection that is turned away is retried.
    async fn retry_limit(&self) -> Duration {
        DEFAULT_RETRY_LIMIT
    }
}
