//! The one error type of this crate.

use std::io;

use crate::diagnosis::Failure;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no byte stream to the server, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host in the source is not valid for ssh.
    #[error("invalid hostname {0:?}: {1}")]
    InvalidHostname(String, &'static str),
    /// The source has no `:` between host and directory.
    #[error("{0:?} contains no host: a source is [user@]host:[directory]")]
    NoHost(String),
    /// The port in the source is not valid.
    #[error("invalid port {0:?}")]
    InvalidPort(String),
    /// The ssh command is empty.
    #[error("the ssh command is empty")]
    EmptyCommand,
    /// A program could not be started.
    #[error("cannot start {program:?}: {source}")]
    Spawn {
        /// The program, as it was named.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A descriptor needed for a connection could not be created or used.
    #[error("cannot {what}: {source}")]
    Local {
        /// The operation.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A direct socket could not be connected.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// Host and port, or context identifier and port.
        target: String,
        /// Why.
        source: io::Error,
    },
    /// Stdin and stdout can carry only one connection, which was already opened.
    #[error("stdin and stdout were already used for a connection")]
    PassiveUsed,
    /// ssh ended, or does not respond.
    #[error(transparent)]
    Ssh(#[from] Failure),
    /// A connection without ssh ended.
    #[error("the connection was closed by the other side")]
    Closed,
}

impl Error {
    /// What the user can do, as one phrase, if anything is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::InvalidHostname(..) => {
                Some("if the host really has this name, give it an alias in ~/.ssh/config")
            }
            Error::NoHost(_) => Some("an IPv6 address is written [::1]:directory"),
            Error::InvalidPort(_) => Some("a port is a number from 1 to 65535"),
            Error::EmptyCommand => Some("omit ssh_command to use ssh"),
            Error::Spawn { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("install the OpenSSH client, or name the program with -o ssh_command=COMMAND")
            }
            Error::Connect { .. } => {
                Some("check that an SFTP server without ssh listens at this address")
            }
            Error::Ssh(failure) => failure.cause.hint(),
            Error::Spawn { .. } | Error::Local { .. } | Error::PassiveUsed | Error::Closed => None,
        }
    }

    /// Whether a retry may succeed without a change of the configuration.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::Closed => true,
            Error::Ssh(failure) => failure.cause.is_transient(),
            // Descriptors, processes or memory may be exhausted temporarily.
            Error::Spawn { source, .. } | Error::Local { source, .. } => {
                source.kind() != io::ErrorKind::NotFound
                    && source.kind() != io::ErrorKind::PermissionDenied
            }
            Error::InvalidHostname(..)
            | Error::NoHost(_)
            | Error::InvalidPort(_)
            | Error::EmptyCommand
            | Error::PassiveUsed => false,
        }
    }
}
