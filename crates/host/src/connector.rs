//! The source of byte streams to an SFTP server. Independent of ssh.

use std::fmt;
use std::sync::Arc;
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
    /// The first session again, served by the helper, while the session of the earlier login is
    /// still there. Fails instead of asking the user.
    Trial,
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
    /// The login had succeeded: it is the program at the server that has ended, or was not started.
    pub logged_in: bool,
}

impl Explanation {
    /// An explanation with [`Cause::Transient`], of which nothing else is known.
    pub fn transient(text: String) -> Explanation {
        Explanation { text, cause: Cause::Transient, logged_in: false }
    }
}

/// Returns the transport's report on its end.
pub type Diagnosis = Box<dyn Fn() -> Option<Explanation> + Send + Sync>;

/// The TCP connections below a connection.
pub trait Link: Send + Sync {
    /// Whether what is sent does not get through now. False if that is not known.
    fn is_cut(&self) -> bool;

    /// The connection is given up: what was not sent must not be sent later.
    fn discard(&self);
}

impl Link for tcp::Processes {
    fn is_cut(&self) -> bool {
        self.is_cut()
    }

    fn discard(&self) {
        self.discard();
    }
}

impl Link for direct::Link {
    fn is_cut(&self) -> bool {
        self.is_cut()
    }

    fn discard(&self) {
        self.discard_at_close();
    }
}

/// A connection to an SFTP server that has sent nothing yet. Dropping both halves ends it.
pub struct Connection {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    pub(crate) diagnosis: Diagnosis,
    /// `None` if nothing is known of it.
    pub link: Option<Arc<dyn Link>>,
    /// The transport compresses what goes through it.
    pub is_compressed: bool,
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
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        Connection { reader, writer, diagnosis, link: None, is_compressed: false }
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

    /// The places on the server where the helper may be, in order of preference: absolute paths, or
    /// relative to the directory where sessions begin. Empty if it is not to be used.
    fn helper_places(&self) -> Vec<String> {
        Vec::new()
    }

    /// The path of the helper on the server, if it served an earlier login.
    async fn known_helper(&self) -> Option<String> {
        None
    }

    /// Remembers for later logins that the helper at this path serves, or that none does.
    async fn record_helper(&self, _path: Option<&str>) {}

    /// Installs the helper on the server. Returns its path; `None`, and the reason in the log, if
    /// that fails.
    async fn install_helper(&self) -> Option<String> {
        None
    }

    /// Makes a connection served by the helper, the program at `path` on the server. Dropping the
    /// future cancels the attempt.
    async fn connect_to_helper(
        &self,
        _role: Role,
        _path: &str,
    ) -> Result<Connection, ConnectError> {
        let message = "no program can be started on the server".to_owned();
        Err(ConnectError { message, permanent: true })
    }

    /// Number of further connections that exist already and need no login.
    fn ready(&self) -> usize {
        0
    }

    /// Time during which a connection that is turned away is retried.
    async fn retry_limit(&self) -> Duration {
        DEFAULT_RETRY_LIMIT
    }
}
