//! What a pool tells about itself, as plain values.

use std::fmt;
use std::time::{Duration, SystemTime};

use base::Errno;

/// How a gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is used.
    Well,
    /// It was left out and answers again; it gets few requests for a while.
    Returning,
    /// It is not asked, and probed from time to time.
    LeftOut(Why),
}

/// Why a gateway is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A request failed so: the connection is lost.
    Failed(Errno),
    /// It says itself that it cannot be reached.
    Away,
    /// It answered nothing for so long.
    Silent(Duration),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Failed(errno) => write!(f, "a request failed: {errno}"),
            Why::Away => f.write_str("it cannot be reached"),
            Why::Silent(time) => write!(f, "no answer for {:.1} s", time.as_secs_f64()),
        }
    }
}

/// One gateway at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayStatus {
    /// What the user calls it.
    pub name: String,
    /// How it is.
    pub state: State,
    /// Since when it is so.
    pub since: SystemTime,
    /// What small requests take, smoothed; `None` where none was answered within some seconds.
    pub latency: Option<Duration>,
    /// Bytes of files that were read through it.
    pub read_bytes: u64,
    /// Bytes of files that were written through it.
    pub written_bytes: u64,
    /// Requests that wait for its answer.
    pub in_flight: usize,
    /// How often it was left out.
    pub times_left_out: u64,
}

/// A pool at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The gateways, in the order that was given.
    pub gateways: Vec<GatewayStatus>,
    /// Open files.
    pub open_files: usize,
    /// Names that are only asked from the gateway that changed them, for now.
    pub recent_changes: usize,
}
