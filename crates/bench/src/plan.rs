//! What a run does: the user's [`Request`], and the checked [`Plan`].
//!
//! [`prepare`] finds everything that can be wrong with a request before anything is measured.

mod prepare;
mod request;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::results::{LeftOut, Results, SubjectInfo};
use crate::run::Scratch;
use crate::size::Size;
use crate::step::ServerMeter;
use crate::storage::Storage;
use crate::subject::{Started, Subject, Tuning};
use crate::workload::Workload;

pub use prepare::{prepare, start_server};
pub use request::{Request, is_ours};

/// A checked run. Fields are dropped in their order: the users of the server, then the server,
/// which [`Plan::server`] keeps, then the directory in which it is.
pub struct Plan {
    /// The subjects, in the order of reports.
    pub subjects: Vec<Arc<dyn Subject>>,
    /// The workloads, in the order in which they run.
    pub works: Vec<Box<dyn Workload>>,
    /// Their quantities.
    pub size: Size,
    /// Longest time for one step (see [`crate::workload::Step::deadline`]).
    pub deadline: Duration,
    /// What the results contain before the first sample. Rounds and seed are taken from its
    /// settings.
    pub results: Results,
    /// Keeps the server.
    pub server: Arc<dyn ServerMeter>,
    /// Sample the CPU of single processes over time.
    pub trace_cpu: bool,
    /// The run's own directory.
    pub scratch: Scratch,
}

/// The same subject again.
struct Control(Arc<dyn Subject>);

impl Subject for Control {
    fn info(&self) -> SubjectInfo {
        let info = self.0.info();
        let name = format!("{} (control)", info.name);
        SubjectInfo { name, control_of: Some(info.name), ..info }
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        self.0.check(executor)
    }

    fn storage(&self) -> &dyn Storage {
        self.0.storage()
    }

    fn start(&self, scratch: &Path, tuning: &Tuning, executor: &Executor) -> Started {
        self.0.start(scratch, tuning, executor)
    }
}

/// What is wrong with what was asked for, found before anything is measured.
///
/// Names in it are escaped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    why: String,
    hint: Option<String>,
}

impl Refusal {
    fn new(why: impl Into<String>) -> Refusal {
        Refusal { why: why.into(), hint: None }
    }

    fn with_hint(self, hint: impl Into<String>) -> Refusal {
        Refusal { hint: Some(hint.into()), ..self }
    }

    /// Of a directory of this machine.
    fn directory(path: &Path, why: impl std::fmt::Display) -> Refusal {
        Refusal::new(format!("{path:?}: {why}"))
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// Of a subject that must not be left out.
impl From<LeftOut> for Refusal {
    fn from(LeftOut { name, why, remedy }: LeftOut) -> Refusal {
        Refusal { why: format!("subject '{}': {why}", name.escape_debug()), hint: remedy }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::new(failure.to_string())
    }
}

/// A machine that is measured against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `[user@]host`, as for ssh.
    pub destination: String,
    /// Where the run's directory is made on it.
    pub directory: Option<String>,
    /// Configuration for ssh, instead of the user's.
    pub config: Option<PathBuf>,
    /// Of its sshd, where the configuration does not say.
    pub port: Option<u16>,
}

impl Host {
    /// `[user@]host[:dir]`; an IPv6 address stands in brackets.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Host, String> {
        let wrong = || format!("'{}' is no [user@]host[:dir]", text.escape_debug());
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        let (host, tail) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        let directory = match tail.strip_prefix(':') {
            Some(directory) => Some(directory).filter(|directory| !directory.is_empty()),
            None if tail.is_empty() => None,
            None => return Err(wrong()),
        };
        // What begins with '-' would be an option of ssh.
        if host.is_empty() || user == Some("") || text.starts_with('-') || host.starts_with('-') {
            return Err(wrong());
        }
        let destination = user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}"));
        let directory = directory.map(str::to_owned);
        Ok(Host { destination, directory, config: None, port: None })
    }
}

#[cfg(test)]
mod tests;
