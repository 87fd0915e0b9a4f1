//! Why a host cannot be used, in words for the user. Operations return an [`Errno`](base::Errno)
//! instead; see the module `errno`.

use crate::connector::{Cause, ConnectError, Explanation};

/// Why [`Host::connect`](crate::Host::connect) failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    /// There is a connection, but no usable SFTP server.
    #[error("{}", session_text(.source, .diagnosis.as_ref().map(|it| it.text.as_str())))]
    Session {
        /// The error of the protocol.
        source: sftp::Error,
        /// The transport's explanation, usually the better one.
        diagnosis: Option<Explanation>,
    },
    /// Logins were refused so often that the user has to act.
    #[error(
        "{why}\n  the login was refused {times} times and is not repeated now: load the key \
         (ssh-add), or unmount and mount again"
    )]
    Refused {
        /// The error of the last attempt.
        why: Box<Error>,
        /// Number of attempts.
        times: u32,
    },
    /// The program that was named as the helper is none, or does not start.
    #[error("the helper {path} does not serve: {why}")]
    NoHelper {
        /// The program on the server.
        path: String,
        /// The reason.
        why: String,
    },
    /// The helper served the sessions before, and does not start any more.
    #[error(
        "the helper {path} is gone: {why}\n  install it again (`sshoal helper install`), or unmount \
         and mount again"
    )]
    HelperGone {
        /// The program on the server.
        path: String,
        /// The reason.
        why: String,
    },
    /// A direct connection is required, and there is none.
    #[error("no direct connection: {why}")]
    NoDirect {
        /// The reason.
        why: String,
    },
    /// The base does not exist.
    #[error("{path}: no such directory on the server")]
    RootMissing {
        /// The base, escaped.
        path: String,
    },
    /// The base is longer than a path may be.
    #[error("the path on the server is longer than 4095 bytes")]
    RootTooLong,
    /// The base is not a directory.
    #[error("{path}: not a directory on the server")]
    RootNotDirectory {
        /// The base, escaped.
        path: String,
    },
    /// The base cannot be accessed.
    #[error("{path}: {source}")]
    Root {
        /// The base, escaped.
        path: String,
        /// The server's answer.
        source: sftp::Error,
    },
    /// The base begins with `~user` and the server cannot expand it.
    #[error("{path}: the server cannot expand \"~user\"; give the path itself")]
    RootNotExpanded {
        /// The base, escaped.
        path: String,
    },
}

impl Error {
    /// What the error means for the next attempt.
    pub(crate) fn cause(&self) -> Cause {
        match self {
            Error::Connect(error) if error.permanent => Cause::Permanent,
            Error::Session { diagnosis: Some(diagnosis), .. } => diagnosis.cause,
            Error::Refused { .. } => Cause::Refused,
            Error::NoHelper { .. } | Error::HelperGone { .. } => Cause::Permanent,
            _ => Cause::Transient,
        }
    }

    /// Whether the login succeeded, and the program that was to serve SFTP has failed.
    pub(crate) fn is_of_program(&self) -> bool {
        match self {
            // It has sent something else.
            Error::Session { source: sftp::Error::Protocol(_), .. } => true,
            Error::Session { diagnosis, .. } => {
                diagnosis.as_ref().is_some_and(|diagnosis| diagnosis.logged_in)
            }
            _ => false,
        }
    }
}

fn session_text(source: &sftp::Error, diagnosis: Option<&str>) -> String {
    match (source, diagnosis) {
        (sftp::Error::Disconnected(_), Some(diagnosis)) => diagnosis.to_owned(),
        (_, Some(diagnosis)) => {
            // Their hints are on further lines.
            let source = source.to_string();
            let (what, hint) = source.split_once('\n').unwrap_or((&source, ""));
            let (why, its_hint) = diagnosis.split_once('\n').unwrap_or((diagnosis, ""));
            let hint = if hint.is_empty() { its_hint } else { hint };
            format!("{what} ({why})\n{hint}").trim_end().to_owned()
        }
        (_, None) => format!("SFTP session: {source}"),
    }
}
