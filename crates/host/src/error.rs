//! Why a host cannot be used, in words for the user. Operations answer with an
//! [`Errno`](base::Errno) instead, see the module `errno`.

use crate::connector::ConnectError;

/// Why [`Host::connect`](crate::Host::connect) failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Connect(#[from] ConnectError),
    /// There is one, but at its other end is no usable SFTP server.
    #[error("{}", session_text(.source, .diagnosis.as_deref()))]
    Session {
        /// What went wrong with the protocol.
        source: sftp::Error,
        /// The transport's own words, usually the better explanation.
        diagnosis: Option<String>,
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
    /// The base cannot be examined.
    #[error("{path}: {source}")]
    Root {
        /// The base, escaped.
        path: String,
        /// The server's answer.
        source: sftp::Error,
    },
    /// The base begins with `~user` and the server cannot tell where that is.
    #[error("{path}: the server cannot expand \"~user\"; give the path itself")]
    RootNotExpanded {
        /// The base, escaped.
        path: String,
    },
}

fn session_text(source: &sftp::Error, diagnosis: Option<&str>) -> String {
    match (source, diagnosis) {
        (sftp::Error::Disconnected(_), Some(diagnosis)) => diagnosis.to_owned(),
        (_, Some(diagnosis)) => format!("{source} ({diagnosis})"),
        (_, None) => format!("SFTP session: {source}"),
    }
}
