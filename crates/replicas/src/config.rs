//! Which gateways there are, and how they are to be used.

use std::sync::Arc;
use std::time::Duration;

use base::Remote;

/// One way to the directory.
#[derive(Clone)]
pub struct Gateway {
    /// What the user calls it, for logs and status.
    pub name: String,
    /// The directory as seen through it.
    pub remote: Arc<dyn Remote>,
}

/// Which gateway is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By load and latency; what much is read of comes through several at once.
    #[default]
    Balance,
    /// By the path, so that each gateway's own cache holds a share of the files. When one is left
    /// out only its share moves.
    Hash,
    /// The first that is not left out.
    Failover,
}

/// How a pool is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which gateway is asked.
    pub mode: Mode,
    /// A gateway that was asked something and answers nothing at all for so long, not even a
    /// question of one packet, is left out while there are others.
    pub deadline: Duration,
    /// For how long the other gateways may show what was before a change: so long what was changed
    /// here is only asked from the gateway that changed it. It is the longest time for which the
    /// gateways' own file system keeps attributes.
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

/// Gateways at most, so that a set of them is one number.
pub const MAX_GATEWAYS: usize = u64::BITS as usize;

/// Why there can be no such pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There has to be one.
    #[error("a pool without gateways")]
    NoGateway,
    /// More than [`MAX_GATEWAYS`].
    #[error("a pool of {0} gateways; {MAX_GATEWAYS} are the most")]
    TooMany(usize),
}
