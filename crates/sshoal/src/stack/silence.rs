//! For how long the servers of a mount have been silent.

use std::time::Duration;

use host::SessionState;
use recovery::ConnectionState;

use super::{Source, Stack};

impl Stack {
    /// The longest time for which one of the servers has been silent although calls wait for it:
    /// since its last byte, or without end where the connection is lost. Zero while all answer.
    pub fn silent_for(&self) -> Duration {
        let sources = self.sources();
        sources.iter().map(|source| source.silent_for()).max().unwrap_or_default()
    }
}

impl Source {
    fn silent_for(&self) -> Duration {
        let told = self.recovering.as_ref().map(|recovering| recovering.status());
        let is_lost = told.is_some_and(|told| {
            told.calls_waiting > 0
                && matches!(told.connection, ConnectionState::Disconnected { .. })
        });
        if is_lost {
            return Duration::MAX;
        }
        let sessions = self.hosts.iter().flat_map(|(_, host)| host.status().sessions);
        let silent = sessions.filter_map(|session| match session.state {
            SessionState::Up { silent, .. } => Some(silent),
            // Others are made besides those that serve.
            _ => None,
        });
        silent.max().unwrap_or_default()
    }
}
