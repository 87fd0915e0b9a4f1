//! Measures: quantities, their units, and the state of the cache.

use serde::{Deserialize, Serialize};

/// One quantity that can be measured of every subject that can do the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// `work.step`, the same from version to version: `iozone.read`.
    pub id: String,
    /// What a reader of the report sees: `sequential read, 64 KiB records`.
    pub title: String,
    /// Of the value.
    pub unit: Unit,
    /// What the client had cached when it began.
    pub cache: Cache,
}

/// Suffix of the id of a measure for subjects whose caches cannot be dropped.
pub(crate) const AS_CACHED: &str = "-as-cached";

/// Units of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes of user data a second; shown as MB/s (10^6).
    BytesPerSecond,
    /// Operations a second.
    PerSecond,
    /// Seconds for the whole step.
    Seconds,
    /// Microseconds, the median of many single operations.
    Microseconds,
}

impl Unit {
    /// Whether a greater value is a better one.
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::BytesPerSecond | Unit::PerSecond)
    }
}

/// What the client had of the files before the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Nothing: mounted anew, or its caches dropped. The server's page cache is warm.
    Cold,
    /// The same was done just before.
    Hot,
    /// The client's page cache is gone round (`O_DIRECT`).
    Direct,
    /// The question does not arise: it writes, or copies by a program that keeps nothing.
    None,
}
