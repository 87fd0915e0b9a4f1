//! Several [`base::Remote`]s that show one and the same directory, as one: the load is spread over
//! them, and one that fails is left out.
//!
//! The gateways are machines that have mounted the same network file system. Such a file system
//! keeps attributes, names and pages in each machine for a while, so what one gateway has changed
//! another may not show yet (for [`Config::lag`] at most). What is open or was changed here is
//! therefore asked from one gateway alone; the rest goes where it is answered soonest.
//!
//! | module | what it does |
//! |---|---|
//! | `gateways` | which gateway is asked; who is left out and taken back |
//! | `keeper` | looks for those that answer nothing, probes those that are left out |
//! | `recent` | what was changed a short time ago, and through which gateway |
//! | `names` | what the open files of one path have in common |
//! | `files`, `lanes`, `reading` | open files; the same file through several gateways at once |
//! | `paths`, `listing` | what goes by path |
//! | `runs` | whether what was written and not synced may be lost |
//!
//! Invariants:
//! 1. While a path is open here, everything about it goes through one gateway, its *home*, as long
//!    as that is not left out; while it is open for writing, as long as that is not lost.
//! 2. A change is noted before it is asked for, and again when it is over, so that one whose caller
//!    gave up or whose answer was lost counts as well.
//! 3. No answer to one read has bytes from two gateways. Bytes of a file come from two gateways in
//!    turn only while both show the same size and time of change, that time is some seconds old,
//!    nobody here writes, and nothing was changed here within the lag.
//! 4. Attributes that are newer than the content which a gateway shows are never let out beside
//!    that content: whatever is told of a path that is open here was told by its home, and what
//!    differs from what the further gateways of that file have agreed on ends their use first.
//! 5. Nothing is asked twice but what changes nothing, and that once from each gateway. A change
//!    whose answer is lost is the caller's to look into.
//! 6. A gateway that was left out by silence is not lost: what it was asked to change may still
//!    happen, so those who wait for that go on waiting, until its own connection ends.
//!
//! Locks are held for a few instructions, never across an await, and never two at once except
//! where a module says so.
//!
//! Not here: reopening of handles after a loss, repeating of writes, waiting for better times. That
//! is the layer above, which finds another gateway chosen when it asks again.
#![forbid(unsafe_code)]

mod config;
mod files;
mod gateways;
mod keeper;
mod lanes;
mod listing;
mod member;
mod names;
mod pace;
mod paths;
mod reading;
mod recent;
mod remote;
mod replicas;
mod runs;
mod status;

pub use config::{Config, Error, Gateway, MAX_GATEWAYS, Mode};
pub use replicas::Replicas;
pub use status::{GatewayStatus, State, Status, Why};
