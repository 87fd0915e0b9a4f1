//! How a [`Steady`](crate::Steady) stands, for `sshoal status`.

use std::time::SystemTime;

use base::Errno;

use crate::Core;
use crate::link::State;

/// Whether there is a connection, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing says otherwise.
    Up,
    /// It is missing.
    Away {
        /// Since when.
        since: SystemTime,
        /// What the call got that was lost.
        why: Errno,
    },
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether there is a connection.
    pub standing: Standing,
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

pub(crate) fn of(core: &Core) -> Status {
    let standing = match core.link.state() {
        State::Up => Standing::Up,
        State::Away(away) => Standing::Away { since: away.since, why: away.why },
    };
    let mut status = Status {
        standing,
        calls_waiting: core.link.waiting(),
        files_open: 0,
        files_unacknowledged: 0,
        files_unsynced: 0,
        bytes_unacknowledged: 0,
    };
    for body in core.files.bodies() {
        let (entries, bytes, unsynced) = body.waiting();
        status.files_open += 1;
        status.files_unacknowledged += usize::from(entries > 0);
        status.files_unsynced += usize::from(unsynced);
        status.bytes_unacknowledged += bytes;
    }
    status
}
