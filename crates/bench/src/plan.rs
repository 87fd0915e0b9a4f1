//! What a run does: the user's [`Request`], and the checked [`Plan`].
//!
//! [`prepare`] finds everything that can be wrong with a request before anything is measured.

mod admission;
mod candidates;
mod prepare;
mod request;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::{Environment, LeftOut, LinkReport, Settings, SubjectInfo, Usage};
use crate::run::Scratch;
use crate::size::Size;
use crate::storage::Storage;
use crate::subject::{Session, Subject, Tuning};
use crate::units::binary_size;
use crate::workload::Workload;

pub use prepare::{prepare, start_server};
pub use request::{Request, is_ours};

/// The usage of the server's processes so far.
pub type ServerUsage = Arc<dyn Fn() -> Option<Usage> + Send + Sync>;

/// A checked run. Fields are dropped in their order: the users of the server, then the server,
/// which [`Plan::server_usage`] keeps, then the directory in which it is.
pub struct Plan {
    /// The subjects, in the order of reports.
    pub subjects: Vec<Arc<dyn Subject>>,
    /// The workloads, in the order in which they run.
    pub works: Vec<Box<dyn Workload>>,
    /// Their quantities.
    pub size: Size,
    /// Longest time for one step (see [`crate::workload::Step::deadline_factor`]).
    pub deadline: Duration,
    /// The request for the report; rounds and seed are taken from here.
    pub settings: Settings,
    /// Requested subjects and workloads that cannot be measured.
    pub left_out: Vec<LeftOut>,
    /// This program and its version.
    pub program: String,
    /// The machine.
    pub environment: Environment,
    /// Between client and server.
    pub link: LinkReport,
    /// Keeps the server.
    pub server_usage: ServerUsage,
    /// The run's own directory.
    pub scratch: Scratch,
}

/// The same subject again.
struct Control {
    of: Arc<dyn Subject>,
}

impl Control {
    fn new(of: Arc<dyn Subject>) -> Control {
        Control { of }
    }
}

/// Its name.
fn name(of: &str) -> String {
    format!("{of} (control)")
}

impl Subject for Control {
    fn info(&self) -> SubjectInfo {
        let info = self.of.info();
        SubjectInfo { name: name(&info.name), control_of: Some(info.name), ..info }
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        self.of.check(executor)
    }

    fn storage(&self) -> &dyn Storage {
        self.of.storage()
    }

    fn start(
        &self,
        scratch: &Path,
        tuning: &Tuning,
        executor: &Executor,
    ) -> Result<Box<dyn Session>, Failure> {
        self.of.start(scratch, tuning, executor)
    }
}

/// Free space beside the workloads' own data: for logs, caches of peers, and other programs.
const MARGIN_BYTES: u64 = 64 << 20;

/// Checks the scratch directory, and each storage once. Places that are in the scratch directory
/// share its room.
fn check<'a>(
    size: &Size,
    works: &[Box<dyn Workload>],
    places: impl Iterator<Item = &'a dyn Storage>,
    scratch: &Path,
) -> Result<(), Refusal> {
    let needs: Vec<(u64, u64)> = works.iter().map(|workload| workload.space(size)).collect();
    let in_place: u64 = needs.iter().map(|need| need.0).sum();
    let locally: u64 = needs.iter().map(|need| need.1).sum();
    let mut in_scratch = locally;
    let mut seen: Vec<&str> = Vec::new();
    for storage in places {
        if seen.contains(&storage.name()) {
            continue;
        }
        seen.push(storage.name());
        if storage.local().is_some_and(|dir| dir.starts_with(scratch)) {
            in_scratch += in_place;
            continue;
        }
        let free = storage.free_bytes().map_err(|failure| Refusal::Unusable {
            name: storage.name().to_owned(),
            why: format!("its free space is not known: {failure}"),
            remedy: None,
        })?;
        require(storage.name().to_owned(), free, in_place)?;
    }
    let free = free_bytes(scratch)
        .map_err(|error| Refusal::Directory { path: scratch.to_owned(), why: error.to_string() })?;
    let parent = scratch.parent().unwrap_or(scratch);
    require(format!("scratch directory {parent:?}"), free, in_scratch)
}

fn require(storage: String, free: u64, needed: u64) -> Result<(), Refusal> {
    let needed = needed.saturating_add(MARGIN_BYTES);
    if free < needed { Err(Refusal::NoSpace { storage, free, needed }) } else { Ok(()) }
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// What is wrong with what was asked for, found before anything is measured.
///
/// Names in it are escaped.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// There is no such work.
    #[error("work '{}': there is no such work", name.escape_debug())]
    UnknownWorkload {
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
    /// No subject is left.
    #[error("no subject is left to measure")]
    NoSubject,
    /// Nothing is left to do.
    #[error("no work is left to do: {why}")]
    NoWorkload {
        /// What keeps the workloads from being done.
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
    fn from_left_out(reason: LeftOut) -> Refusal {
        let LeftOut { name, why, remedy } = reason;
        Refusal::Unusable { name, why, remedy }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Refusal::UnknownWorkload { near: Some(near), .. } => {
                Some(format!("did you mean '{near}'?"))
            }
            Refusal::UnknownWorkload { .. } => Some("`sshoal bench --list` shows all".to_owned()),
            Refusal::Unusable { remedy, .. } => remedy.clone(),
            Refusal::NoSpace { .. } => {
                Some("--scratch DIR on a larger disk, or a smaller --size, or fewer --work".into())
            }
            Refusal::Twice { .. } => Some("give one of them another name".to_owned()),
            _ => None,
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        match failure {
            Failure::Interrupted => Refusal::Interrupted,
            failure => Refusal::Failed { why: failure.to_string() },
        }
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

    /// The configuration for ssh, in `scratch` if one has to be made: what ssh finds first wins,
    /// so the port stands before all that is included.
    ///
    /// # Errors
    /// When it cannot be written, or the configuration named is not there.
    fn ssh_config(&self, scratch: &Path) -> Result<Option<PathBuf>, Failure> {
        let named = match &self.config {
            Some(file) => Some(file.canonicalize().map_err(|error| {
                Failure::failed(format!("ssh's configuration {file:?}: {error}"))
            })?),
            None => None,
        };
        let Some(port) = self.port else { return Ok(named) };
        let included = match named {
            Some(file) => format!("Include \"{}\"\n", file.display()),
            // The user's own, and the system's, which ssh does not read when it is given a file.
            None => "Include ~/.ssh/config\nMatch all\nInclude /etc/ssh/ssh_config\n".to_owned(),
        };
        let file = scratch.join("host-ssh-config");
        fs::write(&file, format!("Port {port}\n{included}"))?;
        Ok(Some(file))
    }
}

#[cfg(test)]
mod tests;
