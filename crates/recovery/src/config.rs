//! How long to wait for a connection, and what to call it.

use std::time::Duration;

/// How long a call waits for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// For ever, or until its caller gives up (`hard`).
    Hard,
    /// So long after the connection was lost; then `ETIMEDOUT` (`soft=SECONDS`). A call that the
    /// server does not answer counts as lost when the remote below gives the connection up.
    Soft(Duration),
    /// Not at all: the error is the caller's. Open files are opened again all the same.
    None,
}

/// How a [`Steady`](crate::Steady) is to behave.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long calls wait.
    pub patience: Patience,
    /// What the log calls it: the source as the user wrote it, fit for a terminal.
    pub name: String,
    /// A connection that is missing for so long is told in the log, once, and once that it is back.
    pub notice_after: Duration,
}

impl Default for Config {
    /// Waits for ever, and says so after 10 s.
    fn default() -> Config {
        Config {
            patience: Patience::Hard,
            name: "the server".to_owned(),
            notice_after: Duration::from_secs(10),
        }
    }
}
