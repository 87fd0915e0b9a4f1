//! Byte streams to an SFTP server on another machine.
//!
//! [`Dialer::connect`] starts the system's `ssh` with a socket pair as its stdin and stdout (or
//! opens a direct socket, or uses this process's own stdin and stdout) and returns a byte stream
//! and a [`Diagnosis`], which records ssh's messages, so that the end of the stream can be
//! explained.
//!
//! The user's ssh connects, so all its settings apply: configuration, agent, jump hosts, known
//! hosts, security keys. The options added to its command line are in [`command`].
//!
//! Absent on purpose: SFTP, retries (a connection is tried once; the caller decides by
//! [`Cause::is_transient`]), and parsing of ssh's configuration files (`ssh -G` does that).

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "code between fork and exec has no safe interface")]
mod child;
pub mod command;
mod config;
mod destination;
mod diagnosis;
mod dialer;
mod effective;
mod error;
mod identity;
mod modes;
mod password;
mod relay;
#[allow(unsafe_code, reason = "mmap(2) has no safe interface")]
mod secret;
#[allow(unsafe_code, reason = "vsock addresses have no safe interface")]
mod socket;
#[allow(unsafe_code, reason = "reading into uninitialised memory has no safe interface")]
mod stream;

pub use config::{Config, Password, Transport, TypedPassword};
pub use destination::Destination;
pub use diagnosis::{Cause, Diagnosis, Failure, SSH_FAILED};
pub use dialer::{Connection, Dialer, StderrHook};
pub use error::{Error, Result};
pub use relay::PasswordState;
pub use stream::{Reader, Writer};
