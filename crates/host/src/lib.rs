//! One remote host as a [`base::Remote`], over a pool of SFTP sessions.
//!
//! It is given a [`Connector`] and knows nothing of ssh. What it adds to [`sftp`]: several
//! sessions and which request goes over which, connections made anew, long reads and writes in
//! pieces, listings asked for ahead, and the true errno where SFTP says only FAILURE.
//!
//! Invariants:
//! 1. A handle is opened on the first session. A file of which much is read or written is opened
//!    once more on others (`lanes`), once those have proven to be of the same file and machine.
//!    What goes through the handles of one path keeps its order (`order`), whichever sessions it
//!    goes over.
//! 2. No operation is repeated after its connection was lost: whatever was in flight fails
//!    with `EHOSTDOWN` (`ETIMEDOUT` where the watchdog gave the session up, `EIO` where the server
//!    broke the protocol), and the caller looks and decides. The next operation connects anew and
//!    waits for that.
//! 3. A handle of a lost session answers `EHOSTDOWN` while there is no connection, and `ESTALE`
//!    once there is one again: opening the file anew is then what helps.
//!
//! 4. Sessions beyond the first are only better: without them everything goes on (`growth`).
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
mod gate;
mod gates;
mod gather;
mod growth;
mod handles;
mod host;
mod lanes;
mod listing;
mod login;
mod machine;
mod names;
mod open;
mod order;
mod piece;
mod pool;
mod probe;
mod remote;
mod rename;
mod session;
mod setattr;

pub use config::{AUTOMATIC_CONNS, Config};
pub use connector::{
    Cause, ConnectError, Connection, Connector, DEFAULT_PATIENCE, Diagnosis, Explanation, Role,
    Stream,
};
pub use error::Error;
pub use host::Host;
pub use pool::status::{SessionState, SessionStatus, Status};
