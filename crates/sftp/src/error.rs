//! Errors of requests.

use std::time::Duration;

use crate::codec::{Malformed, StatusCode};

/// The result of every request.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request failed. [`Error::Disconnected`], [`Error::Protocol`] and [`Error::Stalled`] are
/// ends of the connection; every request in flight fails with the same error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server replied with an error status.
    #[error("{}", status_text(*code, message))]
    Status {
        /// The type of failure.
        code: StatusCode,
        /// The server's message; OpenSSH's adds nothing to the code.
        message: String,
        /// The errno of Linux, if the server has sent it.
        errno: Option<i32>,
    },
    /// The server does not offer this extension.
    #[error("the server does not offer {0}")]
    Unsupported(&'static str),
    /// The request does not fit into a packet that the server accepts, or into a table of the
    /// client.
    #[error("too much for one request: {0}")]
    TooMuch(&'static str),
    /// The handle was closed before the request was sent.
    #[error("the handle is closed")]
    Closed,
    /// The stream has ended or failed.
    #[error("disconnected: {0}")]
    Disconnected(String),
    /// The reply is of the wrong kind for its request. What the server has done is not known.
    #[error("unexpected reply: {0}")]
    Unexpected(String),
    /// The server violated the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The server sent nothing for this long while requests were in flight; set by a watchdog
    /// through [`Client::abort`](crate::Client::abort).
    #[error("no answer for {} s", .0.as_secs_f32())]
    Stalled(Duration),
}

/// The code in words, and the server's message if it says more.
fn status_text(code: StatusCode, message: &str) -> String {
    let text = code.text();
    match message.is_empty() || message.eq_ignore_ascii_case(text) {
        true => text.to_owned(),
        false => format!("{text}: {}", message.escape_debug()),
    }
}

impl Error {
    /// The stream has failed. The text has no number of the error: `Broken pipe`.
    pub(crate) fn of_stream(error: &std::io::Error) -> Error {
        let text = error.to_string();
        let text = text.split_once(" (os error").map_or(&*text, |(text, _)| text);
        Error::Disconnected(text.to_owned())
    }

    /// Whether this error ends the connection.
    pub fn ends_connection(&self) -> bool {
        match self {
            Error::Status { .. }
            | Error::Unsupported(_)
            | Error::TooMuch(_)
            | Error::Closed
            | Error::Unexpected(_) => false,
            Error::Disconnected(_) | Error::Protocol(_) | Error::Stalled(_) => true,
        }
    }

    /// The status code, if it is all that the server has told of the reason.
    pub fn bare_status(&self) -> Option<StatusCode> {
        match self {
            Error::Status { code, errno: None, .. } => Some(*code),
            _ => None,
        }
    }

    /// The status code, if this is a status.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_equal_to_its_code_is_shown_once() {
        for (message, shown) in [
            ("No such file", "no such file"),
            ("", "no such file"),
            ("no\u{1b} entry", "no such file: no\\u{1b} entry"),
        ] {
            let code = StatusCode::NO_SUCH_FILE;
            let error = Error::Status { code, message: message.to_owned(), errno: None };
            assert_eq!(error.to_string(), shown);
        }
    }
}
