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

#![deny(unsafe_code)]

#[allow(
    unsafe_code,
    reason = "what a child does before it becomes a program has no safe interface"
)]
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
#[allow(unsafe_code, reason = "pages of one's own have no safe interface")]
mod secret;
#[allow(unsafe_code, reason = "the addresses of virtual machines have no safe interface")]
mod socket;
#[allow(unsafe_code, reason = "reading into memory that is not initialised has no safe interface")]
mod stream;

pub use config::{Config, Password, Transport};
pub use destination::Destination;
pub use diagnosis::{Cause, Diagnosis, Failure};
pub use dialer::{Connection, Dialer, StderrHook};
pub use error::{Error, Result};
pub use stream::{Reader, Stream, Writer};
