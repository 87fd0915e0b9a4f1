//! How the sessions of a host are, for who looks at it from outside.

use std::time::Duration;

use tokio::time::Instant;

use super::{Place, Pool, State};
use crate::host::Host;

/// How a host is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Those that there are, are being made, or could not be made, in the order of their places:
    /// the first is for metadata.
    pub sessions: Vec<SessionStatus>,
    /// Sessions at most.
    pub max_sessions: usize,
    /// What the way to the server takes there and back; `None` before anything was measured, and
    /// while there is no session.
    pub round_trip: Option<Duration>,
}

/// How one session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Its place among the sessions of the host.
    pub slot: usize,
    /// How it is.
    pub state: SessionState,
}

/// The state of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// It is being made.
    Connecting,
    /// It serves.
    Up {
        /// For so long.
        age: Duration,
        /// Requests without an answer.
        in_flight: usize,
        /// For how long there have been some without one byte from the server.
        silent: Duration,
    },
    /// It has ended, and nobody has needed it since.
    Lost {
        /// Why; words of ssh or of the server among it, not escaped.
        why: String,
    },
    /// It could not be made.
    Down {
        /// Why; words of ssh or of the server among it, not escaped.
        why: String,
        /// Attempts that have failed, one after the other.
        failures: u32,
        /// The time until there may be another.
        retry_in: Duration,
    },
}

impl Host {
    /// How the sessions are now. Cheap, and waits for nothing.
    #[must_use]
    pub fn status(&self) -> Status {
        self.pool.status()
    }
}

impl Pool {
    fn status(&self) -> Status {
        let states = self.places.iter().map(Place::status).enumerate();
        Status {
            sessions: states
                .filter_map(|(slot, state)| Some(SessionStatus { slot, state: state? }))
                .collect(),
            max_sessions: self.places.len(),
            round_trip: self.round_trip(),
        }
    }
}

impl Place {
    /// `None` where nobody has needed a session.
    fn status(&self) -> Option<SessionState> {
        let session = match &*self.lock() {
            State::Vacant => return None,
            State::Connecting => return Some(SessionState::Connecting),
            State::Down { why, failures, retry_at } => {
                return Some(SessionState::Down {
                    why: why.to_string(),
                    failures: *failures,
                    retry_in: retry_at.saturating_duration_since(Instant::now()),
                });
            }
            State::Up(session) => session.clone(),
        };
        // Asked without the lock: the client has one of its own.
        Some(if session.is_alive() {
            let activity = session.client.activity();
            SessionState::Up {
                age: session.began.elapsed(),
                in_flight: activity.in_flight,
                silent: activity.silent,
            }
        } else {
            SessionState::Lost { why: session.lost().to_string() }
        })
    }
}
