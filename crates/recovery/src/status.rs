//! How a [`Recovering`](crate::Recovering) stands, for `sshoal status`.

use std::time::SystemTime;

use base::Errno;

use crate::Core;
use crate::connection::State;

/// Whether there is a connection, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Nothing says otherwise.
    Connected,
    /// It is missing.
    Disconnected {
        /// Since when.
        since: SystemTime,
        /// What the call got that was lost.
        error: Errno,
    },
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether there is a connection.
    pub connection: ConnectionState,
    /// Calls that wait for one, or try again.
    pub calls_waiting: usize,
    /// Open files, counted by path.
    pub files_open: usize,
    /// Open files with writes that the server has not acknowledged.
    pub files_unacknowledged: usize,
    /// Open files with writes that the server has acknowledged and that were not synced. Only those
    /// of a server that tells its runs apart are counted.
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
