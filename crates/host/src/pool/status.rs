//! The state of a host's sessions, for `status`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Pool, Slot, State};
use crate::direct::DirectUse;
use crate::host::Host;

/// The state of a host at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The open, connecting and failed sessions in the order of their slots. The first is for
    /// metadata.
    pub sessions: Vec<SessionStatus>,
    /// Maximum number of sessions.
    pub max_sessions: usize,
    /// The round trip to the server; `None` before the first measurement, and while there is no
    /// session.
    pub round_trip: Option<Duration>,
    /// The use of direct connections; `None` if they are not to be used, or none was attempted yet.
    pub direct: Option<DirectUse>,
}

/// The state of one session and its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Index of the session in the pool.
    pub slot: usize,
    /// State of the session.
    pub state: SessionState,
}

/// The state of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// An attempt to connect is in progress.
    Connecting,
    /// The session is alive.
    Up {
        /// Time since the session began.
        age: Duration,
        /// Requests without a reply.
        in_flight: usize,
        /// Time since the last byte from the server while requests were outstanding.
        silent: Duration,
        /// It goes over a direct connection, not through ssh.
        is_direct: bool,
        /// Packets are compressed that shrink.
        compresses: bool,
        /// The program at the other end.
        served_by: Server,
    },
    /// The session has ended, and was not needed since.
    Lost {
        /// The reason. May contain messages of ssh or of the server; not escaped.
        why: String,
    },
    /// The last attempt failed.
    Down {
        /// The reason. May contain messages of ssh or of the server; not escaped.
        why: String,
        /// Failed attempts in a row.
        failures: u32,
        /// Time until the next attempt is allowed.
        retry_in: Duration,
    },
}

/// The program that serves a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// It is the helper, sshoal's own server.
    pub is_helper: bool,
    /// Its version, if it reports one. The server's text, not escaped.
    pub version: Option<String>,
    /// The extensions of SFTP that it offers and that are known here.
    pub extensions: Vec<&'static str>,
}

impl Host {
    /// The program that serves the first session; `None` while there is no session.
    pub fn server(&self) -> Option<Server> {
        Some(self.pool.live(0)?.server())
    }

    /// The current state of the sessions. Cheap, and never waits.
    pub fn status(&self) -> Status {
        self.pool.status()
    }

    /// The counters of all its sessions since it was created.
    pub fn counters(&self) -> &sftp::Counters {
        &self.pool.counters
    }
}

impl Pool {
    fn status(&self) -> Status {
        let states = self.slots.iter().map(Slot::status).enumerate();
        Status {
            sessions: states
                .filter_map(|(slot, state)| Some(SessionStatus { slot, state: state? }))
                .collect(),
            max_sessions: self.max_sessions(),
            round_trip: self.round_trip(),
            direct: self.direct.used(),
        }
    }

    pub(crate) fn counters(&self) -> &Arc<sftp::Counters> {
        &self.counters
    }
}

impl Slot {
    /// `None` if the slot was never used.
    fn status(&self) -> Option<SessionState> {
        let session = match &*self.state.lock() {
            State::Vacant => return None,
            State::Connecting { .. } => return Some(SessionState::Connecting),
            State::Down { why, failures, retry_at } => {
                return Some(SessionState::Down {
                    why: why.to_string(),
                    failures: *failures,
                    retry_in: retry_at.saturating_duration_since(Instant::now()),
                });
            }
            State::Up(session) => session.clone(),
        };
        // Without the slot's lock, since the client has its own.
        Some(if session.is_alive() {
            let activity = session.client.activity();
            SessionState::Up {
                age: session.began.elapsed(),
                in_flight: activity.in_flight,
                silent: activity.silent,
                is_direct: session.is_direct(),
                compresses: session.client.compresses(),
                served_by: session.server(),
            }
        } else {
            SessionState::Lost { why: session.lost().to_string() }
        })
    }
}
