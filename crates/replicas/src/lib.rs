//! Several [`base::Remote`]s of one directory as one: the load is spread over them, and one that
//! fails is left out.
//!
//! The gateways are machines that have mounted the same network file system. Such a file system
//! caches attributes, names and pages on each machine, so a gateway may not show the changes made
//! through another one yet (for [`Config::lag`] at most). Requests about an open file or a recent
//! change therefore go to one gateway alone; all others go where they are answered soonest.
//!
//! | module | what it does |
//! |---|---|
//! | `gateways` | chooses the gateway of each request; leaves gateways out and readmits them |
//! | `health_checker` | detects gateways that answer nothing, probes those that are left out |
//! | `recent_changes` | recent changes, and the gateway of each |
//! | `open_paths` | the state that the open files of one path share |
//! | `files`, `stripes`, `io` | open files; one file through several gateways at once |
//! | `paths`, `listing` | operations by path |
//! | `server_epoch` | whether acknowledged but unsynced writes may be lost |
//!
//! Invariants:
//! 1. While a path is open here, all requests about it go to one gateway, its *primary*, as long as
//!    that is not left out; while it is open for writing, as long as the primary is not lost.
//! 2. A change is recorded before it is sent, and again when it ends, so that a change is also
//!    covered if its caller gave up or its answer was lost.
//! 3. No answer to one read has bytes from two gateways. Reads of a file alternate between gateways
//!    only while all of them show the same size and mtime, that mtime is some seconds old, no
//!    handle here is open for writing, and nothing was changed here within the lag.
//! 4. Attributes that are newer than the content of a gateway are never returned beside that
//!    content: attributes of an open path come from its primary, and attributes that differ from
//!    those agreed on by its stripes end the stripes first.
//! 5. Only requests that change nothing are retried, once at each gateway. A change whose answer is
//!    lost is resolved by the caller.
//! 6. A gateway that was left out for silence is not lost: changes sent to it may still happen, so
//!    their callers go on waiting until its own connection ends.
//!
//! Locks are held for a few instructions, never across an await, and never two at once except where
//! a module says so.
//!
//! Not here: reopening handles after a loss, repeating writes, waiting for a gateway without a
//! limit. The layer above does this: its next request goes to another gateway.
#![forbid(unsafe_code)]

mod config;
mod files;
mod gateways;
mod health_checker;
mod io;
mod latency;
mod listing;
mod member;
mod open_paths;
mod paths;
mod recent_changes;
mod remote;
mod replicas;
mod server_epoch;
mod status;
mod stripes;

pub use config::{Config, Error, Gateway, MAX_GATEWAYS, Mode};
pub use replicas::Replicas;
pub use status::{GatewayState, GatewayStatus, Reason, Status};
