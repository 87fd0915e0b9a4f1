//! Why a request has no answer of the kind that was hoped for.

use std::time::Duration;

use crate::codec::{Malformed, StatusCode};

/// The result of every request.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request failed. All but [`Error::Status`], [`Error::Unsupported`] and [`Error::TooMuch`]
/// are the end of the connection, and every request that was in flight gets the same one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server's own answer.
    #[error("{}: {}", code.text(), message.escape_debug())]
    Status {
        /// The kind of failure.
        code: StatusCode,
        /// The server's words, which with OpenSSH say no more than the code.
        message: String,
    },
    /// The server does not offer this extension.
    #[error("the server does not offer {0}")]
    Unsupported(&'static str),
    /// The request does not fit into a packet that the server would take, or into a table here.
    #[error("too much for one request: {0}")]
    TooMuch(&'static str),
    /// The stream has ended or failed.
    #[error("disconnected: {0}")]
    Disconnected(String),
    /// The server has sent what the protocol does not allow.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// Requests were in flight and the server sent nothing for this long; told by a watchdog
    /// through [`Client::abort`](crate::Client::abort).
    #[error("no answer for {} s", .0.as_secs_f32())]
    Stalled(Duration),
}

impl Error {
    /// Whether the connection is over with this error.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        match self {
            Error::Status { .. } | Error::Unsupported(_) | Error::TooMuch(_) => false,
            Error::Disconnected(_) | Error::Protocol(_) | Error::Stalled(_) => true,
        }
    }

    /// The server's status code, if this is one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Error::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Protocol(malformed.to_string())
    }
}
