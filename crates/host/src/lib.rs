//! One remote host as a [`base::Remote`], over a pool of SFTP sessions.
//!
//! It is given a [`Connector`] and knows nothing of ssh. What it adds to [`sftp`]: several
//! sessions and which request goes over which, connections made anew, long reads and writes in
//! pieces, listings asked for ahead, and the true errno where SFTP says only FAILURE.
//!
//! Invariants:
//! 1. A handle lives on the session that gave it, and all handles of one path are on one session
//!    while any of them is open, so what goes through them keeps its order.
//! 2. No operation is repeated after its connection was lost: whatever was in flight fails
//!    with `EHOSTDOWN` (`ETIMEDOUT` where the watchdog gave the session up, `EIO` where the server
//!    broke the protocol), and the caller looks and decides. The next operation connects anew and
//!    waits for that.
//! 3. A handle of a lost session answers `EHOSTDOWN` while there is no connection, and `ESTALE`
//!    once there is one again: opening the file anew is then what helps.
//!
//! Not here: caching, reopening of handles, replay of writes, inodes.
#![forbid(unsafe_code)]

mod attr;
pub mod config;
pub mod connector;
mod copy;
mod errno;
pub mod error;
mod files;
mod gather;
mod handles;
mod host;
mod listing;
mod login;
mod names;
mod open;
mod pool;
mod probe;
mod remote;
mod rename;
mod session;
mod setattr;

pub use config::Config;
pub use connector::{ConnectError, Connection, Connector, Diagnosis, Role, Stream};
pub use error::Error;
pub use host::Host;
