//! The status of a pool, as plain values.

use std::fmt;
use std::time::{Duration, SystemTime};

use base::Errno;

/// The state of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayState {
    /// It is used.
    Healthy,
    /// It was left out and answers again; it gets few requests for a while.
    Returning,
    /// It gets no requests, and is probed from time to time.
    LeftOut(Reason),
}

/// Why a gateway is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A request failed with this error: the connection is lost.
    Failed(Errno),
    /// It reports itself unreachable.
    Away,
    /// It answered nothing for this long.
    Silent(Duration),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Failed(errno) => write!(f, "a request failed: {errno}"),
            Reason::Away => f.write_str("it cannot be reached"),
            Reason::Silent(time) => write!(f, "no answer for {:.1} s", time.as_secs_f64()),
        }
    }
}

/// The present status of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayStatus {
    /// The user's name for it.
    pub name: String,
    /// Its state.
    pub state: GatewayState,
    /// The time of the last change of the state.
    pub since: SystemTime,
    /// The average time of small requests; `None` where none was answered within some seconds.
    pub latency: Option<Duration>,
    /// Bytes of files read through it.
    pub read_bytes: u64,
    /// Bytes of files written through it.
    pub written_bytes: u64,
    /// Requests in flight.
    pub in_flight: usize,
    /// How often it was left out.
    pub times_left_out: u64,
}

/// The present status of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The gateways, in the order given.
    pub gateways: Vec<GatewayStatus>,
    /// Open files.
    pub open_files: usize,
    /// Names that are requested only from the gateway that changed them.
    pub recent_changes: usize,
}
