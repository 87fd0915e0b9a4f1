//! Why a run does not begin.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::results::LeftOut;

use crate::units::binary_size;

/// What is wrong with what was asked for, found before anything is measured.
///
/// Names in it are escaped.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// There is no such work.
    #[error("work '{}': there is no such work", name.escape_debug())]
    UnknownWork {
        /// As it was written.
        name: String,
        /// What may have been meant.
        near: Option<&'static str>,
    },
    /// There is no such subject.
    #[error("{why}")]
    UnknownSubject {
        /// With what may have been meant.
        why: String,
    },
    /// Something cannot be measured that was asked for by more than a well-known name.
    #[error("subject '{}': {why}", name.escape_debug())]
    Unusable {
        /// As it was written.
        name: String,
        /// What is wrong.
        why: String,
        /// What to do about it.
        remedy: Option<String>,
    },
    /// Two subjects with one name.
    #[error("subject '{}': asked for twice", name.escape_debug())]
    Twice {
        /// Of both.
        name: String,
    },
    /// Ratios to something that is not measured.
    #[error("reference '{}': not among the subjects: {}", name.escape_debug(), subjects.join(", "))]
    NoReference {
        /// As it was written.
        name: String,
        /// Those that are.
        subjects: Vec<String>,
    },
    /// Nobody is left.
    #[error("no subject is left to measure")]
    NoSubject,
    /// Nothing is left to do.
    #[error("no work is left to do: {why}")]
    NoWork {
        /// What keeps the works from being done.
        why: String,
    },
    /// The server does not start, or the host does not answer.
    #[error("{what}: {why}")]
    NoServer {
        /// Which one.
        what: String,
        /// In its own words.
        why: String,
    },
    /// A directory of this machine.
    #[error("{path:?}: {why}")]
    Directory {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A disk that is too small.
    #[error("{storage}: {} are free, and the works need {}", binary_size(*free), binary_size(*needed))]
    NoSpace {
        /// Which.
        storage: String,
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
    /// Something that has to be done before.
    #[error("{why}")]
    Failed {
        /// In its own words.
        why: String,
    },
    /// The user has ended it.
    #[error("interrupted")]
    Interrupted,
}

impl Refusal {
    /// Of a subject that must not be left out.
    pub(super) fn from_left_out(reason: LeftOut) -> Refusal {
        let LeftOut { name, why, remedy } = reason;
        Refusal::Unusable { name, why, remedy }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Refusal::UnknownWork { near: Some(near), .. } => {
                Some(format!("did you mean '{near}'?"))
            }
            Refusal::UnknownWork { .. } => Some("`sshoal bench --list` shows all".to_owned()),
            Refusal::Unusable { remedy, .. } => remedy.clone(),
            Refusal::NoSpace { .. } => {
                Some("--scratch DIR on a larger disk, or a smaller --size, or fewer --work".into())
            }
            Refusal::Twice { .. } => Some("give one of them another name".to_owned()),
            _ => None,
        }
    }
}

/// Of what is done before a run, by somebody else's words.
impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        match failure {
            Failure::Interrupted => Refusal::Interrupted,
            failure => Refusal::Failed { why: failure.to_string() },
        }
    }
}
