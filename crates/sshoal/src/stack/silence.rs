//! How long the servers of a mount have been silent.

use std::time::Duration;

use host::SessionState;
use steady::Standing;

use super::{Source, Stack};

impl Stack {
    /// The longest time that a server has been silent while calls wait for it: since its last byte, or
    /// `Duration::MAX` if the connection is lost. Zero while all answer.
    pub fn silent_for(&self) -> Duration {
        let sources = self.sources();
        sources.iter().map(|source| source.silent_for()).max().unwrap_or_default()
    }
}

impl Source {
    fn silent_for(&self) -> Duration {
        let told = self.steady.as_ref().map(|steady| steady.status());
        let is_lost = told.is_some_and(|told| {
            told.calls_waiting > 0 && matches!(told.standing, Standing::Away { .. })
        });
        if is_lost {
            return Duration::MAX;
        }
        let sessions = self.hosts.iter().flat_map(|(_, host)| host.status().sessions);
        let silent = sessions.filter_map(|session| match session.state {
            SessionState::Up { silent, .. } => Some(silent),
            // A session that is being established serves no call.
            _ => None,
        });
        silent.max().unwrap_or_default()
    }
}
