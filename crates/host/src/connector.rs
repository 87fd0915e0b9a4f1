//! Where byte streams to an SFTP server come from. That they are made by ssh is not known here.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

/// What a connection will be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first session: metadata, and everything when there is no other. Its user may be asked.
    Metadata,
    /// The same, made anew after a login has succeeded before.
    Again,
    /// A further session, for the content of files; counted from 1.
    Bulk(usize),
}

/// For how long a connection that is turned away is attempted again, where nothing else is said:
/// the limit that ssh is given for connecting.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(15);

/// A byte stream to an SFTP server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// What a connection that failed means for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another attempt may succeed at any time.
    Passing,
    /// The server turned it away before the login, usually because of too many at once: another
    /// attempt is worth it within seconds.
    TurnedAway,
    /// The login was refused. Another one is one more failed login, for which servers lock out.
    Refused,
    /// Another attempt fails until somebody changes something.
    Lasting,
}

/// What the transport has said about its end (ssh's own words and exit status).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// For the user, safe for a terminal.
    pub text: String,
    /// For the next attempt.
    pub cause: Cause,
}

impl Explanation {
    /// Of an end after which another attempt may succeed at any time.
    #[must_use]
    pub fn passing(text: String) -> Explanation {
        Explanation { text, cause: Cause::Passing }
    }
}

/// Tells what the transport has said about its end.
pub type Diagnosis = Box<dyn Fn() -> Option<Explanation> + Send + Sync>;

/// A connection to an SFTP server that has not spoken yet. Dropping both halves ends it.
pub struct Connection {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    pub(crate) diagnosis: Diagnosis,
}

impl Connection {
    /// Over one stream.
    pub fn new(stream: impl Stream, diagnosis: Diagnosis) -> Connection {
        let (reader, writer) = tokio::io::split(stream);
        Connection::from_halves(reader, writer, diagnosis)
    }

    /// Over halves that can be used at the same time without a lock between them, such as those
    /// of a socket: writing then does not wait for a large read to be copied.
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
    /// What to tell the user.
    pub message: String,
    /// It will not get better by trying again soon (a refused key, a changed host key), so the
    /// next try may come late: hosts lock out who knocks often.
    pub lasting: bool,
}

/// Makes connections to one host.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Makes a connection. Dropping the future gives the attempt up.
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError>;

    /// Further connections that are there already, and cost no login.
    fn ready(&self) -> usize {
        0
    }

    /// For how long a connection that is turned away is attempted again.
    async fn patience(&self) -> Duration {
        DEFAULT_PATIENCE
    }
}
