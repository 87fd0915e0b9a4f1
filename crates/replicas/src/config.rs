//! The gateways of a pool, and how it uses them.

use std::sync::Arc;
use std::time::Duration;

use base::{Remote, SmallSet};

/// A host that serves the directory.
#[derive(Clone)]
pub struct Gateway {
    /// The user's name for it, in logs and status.
    pub name: String,
    /// The directory, as served by it.
    pub remote: Arc<dyn Remote>,
}

/// How the gateway for a request is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By load and latency; a file of which much is read is read through several at once.
    #[default]
    Balance,
    /// By the path, so that each gateway caches a share of the files. When one is left out, only
    /// its share moves.
    Hash,
    /// The first that is not left out.
    Failover,
}

/// The configuration of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the gateway for a request is chosen.
    pub mode: Mode,
    /// A gateway that answers no request at all for this long, not even one of one packet, is left
    /// out while there are others.
    pub deadline: Duration,
    /// How long the other gateways may show the state before a change: for this time a changed name
    /// is requested only from the gateway that changed it. The longest time for which the gateways'
    /// own file system caches attributes.
    pub lag: Duration,
}

impl Default for Config {
    /// Balanced; five seconds without an answer; a lag of a minute, which is NFS's `acdirmax`.
    fn default() -> Config {
        Config {
            mode: Mode::Balance,
            deadline: Duration::from_secs(5),
            lag: Duration::from_secs(60),
        }
    }
}

/// Bound on the gateways of a pool, so that a set of them fits into an integer.
pub const MAX_GATEWAYS: usize = SmallSet::LIMIT;

/// Why a pool cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The list of gateways is empty.
    #[error("a pool without gateways")]
    NoGateway,
    /// More than [`MAX_GATEWAYS`].
    #[error("a pool of {0} gateways: at most {MAX_GATEWAYS}")]
    TooMany(usize),
}
