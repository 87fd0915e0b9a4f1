//! Failures of a step, or of the start of a subject.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why there is no valid sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Failure {
    /// The subject, or a program that does the step, said so. Its own words.
    #[error("{why}")]
    Failed {
        /// Printable, in a few lines.
        why: String,
    },
    /// It was not done within the step's deadline, and was ended.
    #[error("not done within {limit_s} s")]
    TimedOut {
        /// The deadline, in seconds.
        limit_s: f64,
    },
    /// It was done, but the data are not what they have to be.
    #[error("wrong data: {why}")]
    WrongData {
        /// What differs.
        why: String,
    },
    /// It was not tried, since an earlier step left the subject unusable.
    #[error("not tried: {why}")]
    NotTried {
        /// What went before.
        why: String,
    },
    /// The user has ended the run.
    #[error("interrupted")]
    Interrupted,
}

/// Results that fail so, unless said otherwise.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with a message.
    pub fn failed(why: impl Into<String>) -> Failure {
        Failure::Failed { why: why.into() }
    }

    /// Data that are not what they have to be.
    pub fn wrong(why: impl Into<String>) -> Failure {
        Failure::WrongData { why: why.into() }
    }

    /// A deadline that has passed.
    pub fn timed_out(limit: Duration) -> Failure {
        Failure::TimedOut { limit_s: limit.as_secs_f64() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::failed(error.to_string())
    }
}
