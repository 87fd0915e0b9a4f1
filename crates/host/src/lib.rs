//! One remote host as a [`base::Remote`], over a pool of SFTP sessions.
//!
//! The crate gets byte streams from a [`Connector`] and does not depend on ssh. Over [`sftp`] it
//! adds: several sessions and the choice of a session for each request, reconnection, long reads
//! and writes split into chunks, pipelined listings, and the precise errno where the status of SFTP
//! is ambiguous.
//!
//! Invariants:
//! 1. A handle is opened on the first session. If much of a file is read or written, the file is
//!    also opened on other sessions (`stripes`), after a check that it is the same file on the same
//!    machine. Requests through the handles of one path keep their order over all sessions
//!    (`range_lock`).
//! 2. No operation is repeated after its connection was lost: every request in flight fails with
//!    `EHOSTDOWN` (`ETIMEDOUT` if the watchdog ended the session, `EIO` if the server broke the
//!    protocol). The layer above checks the outcome, and repeats the request if that is safe. The
//!    next operation reconnects and waits for the connection.
//! 3. A handle of a lost session returns `EHOSTDOWN` while there is no connection, and `ESTALE`
//!    once there is one again: the caller then has to open the file again. A write or a change of
//!    attributes returns `ESTALE` in both cases: nothing was sent. A change also fails with
//!    `ESTALE` if locks of the file were lost with another session; of a change in several requests
//!    the first ones may have been executed then.
//! 4. One program serves all sessions of a host, for its whole life: the SFTP server of its sshd,
//!    or sshoal's own (`helper`).
//! 5. Sessions may go past ssh, over direct connections to the helper (`direct`).
//! 6. Sessions beyond the first only improve throughput; every operation works without them
//!    (`scaling`).
//!
//! Not here: caching, reopening of handles, replay of writes, inodes.
#![forbid(unsafe_code)]

mod attr;
mod chunk_request;
pub mod config;
pub mod connector;
mod copy;
mod create;
mod cut;
mod digest;
mod direct;
mod errno;
pub mod error;
mod file_io;
mod flow_control;
mod handles;
mod helper;
mod host;
mod listing;
mod locks;
mod login;
mod open;
mod pipelined;
mod pool;
mod probe;
mod range_lock;
mod remote;
mod rename;
mod scaling;
mod session;
mod setattr;
mod stripes;
mod watches;
mod xattr;

pub use config::{AUTOMATIC_CONNS, Config, Direct, Helper};
pub use connector::{
    Cause, ConnectError, Connection, Connector, DEFAULT_RETRY_LIMIT, Diagnosis, Explanation, Link,
    Role, Stream,
};
pub use direct::DirectUse;
pub use error::Error;
pub use host::Host;
pub use pool::status::{Server, SessionState, SessionStatus, Status};
