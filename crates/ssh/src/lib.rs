//! Byte streams to an SFTP server on another machine.
//!
//! [`Dialer::connect`] starts the system's `ssh` with a socket pair as its stdin and stdout (or
//! opens a direct socket, or takes this process's own stdin and stdout) and gives a [`Stream`]
//! and a [`Diagnosis`], which holds ssh's own words for the day on which the stream ends.
//!
//! Everything that the user has told his ssh counts (configuration, agent, jump hosts, known
//! hosts, security keys), since it is his ssh that connects. What is added to its command line,
//! and when, is in [`command`].
//!
//! Absent on purpose: SFTP, retries (a connection is tried once; the caller decides by
//! [`Cause::is_transient`]), and any reading of ssh's configuration files (`ssh -G` does that).

mod child;
pub mod command;
mod config;
mod destination;
mod diagnosis;
mod dialer;
mod effective;
mod error;
mod identity;
mod password;
mod socket;
mod stream;

pub use config::{Config, Password, Transport};
pub use destination::Destination;
pub use diagnosis::{Cause, Diagnosis, Failure};
pub use dialer::{Connection, Dialer, StderrHook};
pub use error::{Error, Result};
pub use stream::{Reader, Stream, Writer};
