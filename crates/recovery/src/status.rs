//! The state of a [`Recovering`](crate::Recovering), for `sshoal status`.

use std::time::SystemTime;

use base::Errno;

use crate::Core;
use crate::connection::State;

/// Whether there is a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// No loss is known.
    Connected,
    /// The connection is lost.
    Disconnected {
        /// When the loss was noticed.
        since: SystemTime,
        /// The error of the call that was lost.
        error: Errno,
    },
}

/// Snapshot of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether there is a connection.
    pub connection: ConnectionState,
    /// Calls that wait for a connection or are retried.
    pub calls_waiting: usize,
    /// Open files, counted by path.
    pub files_open: usize,
    /// Open files with writes that the server has not acknowledged.
    pub files_unacknowledged: usize,
    /// Open files with unstable writes: acknowledged by the server, not synced. Counted only if the
    /// server has a write verifier.
    pub files_unsynced: usize,
    /// Bytes of the unacknowledged writes.
    pub bytes_unacknowledged: u64,
}

pub(crate) fn collect(core: &Core) -> Status {
    let connection = match core.connection.state() {
        State::Connected => ConnectionState::Connected,
        State::Disconnected(outage) => {
            ConnectionState::Disconnected { since: outage.since, error: outage.error }
        }
    };
    let mut status = Status {
        connection,
        calls_waiting: core.connection.waiting_calls(),
        files_open: 0,
        files_unacknowledged: 0,
        files_unsynced: 0,
        bytes_unacknowledged: 0,
    };
    for file in core.files.all() {
        let (entries, bytes, is_unstable) = file.pending();
        status.files_open += 1;
        status.files_unacknowledged += usize::from(entries > 0);
        status.files_unsynced += usize::from(is_unstable);
        status.bytes_unacknowledged += bytes;
    }
    status
}
