//! A profile of a mount: which paths and processes have caused requests within some seconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::counters::{Caches, Disk};

/// Longest profile in seconds.
pub const MAX_SECONDS: u32 = 3600;

/// What was recorded. Each list has the largest entries first, and at most some hundred of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// Time of the recording, in milliseconds.
    pub ms: u64,
    /// All that was recorded.
    pub total: Share,
    /// Requests to servers that no FUSE request has sent: data that was sent later, revalidations.
    pub background_requests: u64,
    /// Hits and misses of the caches in memory in this time; `null` from a daemon that does not
    /// report them.
    pub caches: Option<Caches>,
    /// Hits and misses of the disk cache in this time, if there is one.
    pub disk: Option<Disk>,
    /// Files and other paths.
    pub paths: Vec<Entry>,
    /// The directories of these files: the sum of their entries.
    pub directories: Vec<Entry>,
    /// Processes.
    pub processes: Vec<Entry>,
    /// Processes of the same name, together.
    pub programs: Vec<Entry>,
    /// More paths or directories than can be kept were used. The largest are shown, and may be
    /// larger than shown.
    pub is_incomplete: bool,
}

/// A path or a process, and what it has caused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// The path in the mount, or the name of the process; escaped.
    pub name: String,
    /// The process id; `null` for a path, and for requests without a known process.
    pub pid: Option<u32>,
    /// What it has caused.
    #[serde(flatten)]
    pub share: Share,
}

/// Sums over FUSE requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Share {
    /// FUSE requests by the names of their opcodes in lower case.
    pub operations: BTreeMap<String, u64>,
    /// Those answered with an error.
    pub errors: u64,
    /// The sum of their times, in microseconds.
    pub waited_us: u64,
    /// Bytes read and written by the applications.
    pub bytes: u64,
    /// Requests to servers that they have sent.
    pub requests: u64,
}

impl Share {
    /// Number of FUSE requests.
    pub fn count(&self) -> u64 {
        self.operations.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}
