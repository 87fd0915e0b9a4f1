//! How a run ended.

use std::fmt;
use std::time::Duration;

use base::{Errno, RemotePath};

use crate::step::Action;

/// A side of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Target,
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// `lstat` of a source.
    LookSource,
    /// Listing a directory of a source.
    ListSource,
    /// Opening a file of a source.
    Open,
    /// Reading from a source.
    Read,
    /// `lstat` of the target.
    LookTarget,
    /// Listing a directory of the target.
    ListTarget,
    /// Creating a directory.
    MakeDir,
    /// Creating a file or a link.
    Make,
    /// Writing.
    Write,
    /// Setting mode, times or owner.
    SetAttr,
    /// Writing a file to the target's disk (fsync).
    Sync,
    /// Giving a finished file its name.
    Rename,
    /// Deleting.
    Delete,
    /// Reading the copy, to compare it with the source.
    Verify,
}

impl Doing {
    /// The side on which it was done, and its failure in words.
    fn described(self) -> (Side, &'static str) {
        match self {
            Doing::LookSource => (Side::Source, "cannot look at the source"),
            Doing::ListSource => (Side::Source, "cannot list the source directory"),
            Doing::Open => (Side::Source, "cannot read"),
            Doing::Read => (Side::Source, "cannot read"),
            Doing::LookTarget => (Side::Target, "cannot look at the target"),
            Doing::ListTarget => (Side::Target, "cannot list the target directory"),
            Doing::MakeDir => (Side::Target, "cannot make the directory"),
            Doing::Make => (Side::Target, "cannot make"),
            Doing::Write => (Side::Target, "cannot write"),
            Doing::SetAttr => (Side::Target, "cannot set mode and times"),
            Doing::Sync => (Side::Target, "cannot be written to the target's disk"),
            Doing::Rename => (Side::Target, "cannot give the finished file its name"),
            Doing::Delete => (Side::Target, "cannot delete"),
            Doing::Verify => (Side::Target, "cannot verify"),
        }
    }

    /// The side on which it was done.
    pub(crate) fn side(self) -> Side {
        self.described().0
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.described().1)
    }
}

/// What is wrong with one entry of a copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {fault}")]
pub struct Problem {
    /// The entry, relative to the target.
    pub name: RemotePath,
    /// What is wrong with it.
    pub fault: Fault,
}

/// Why the copy of one entry is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A call failed.
    #[error("{doing}: {errno}{}", hint(*.doing, *.errno))]
    Failed {
        /// What was being done.
        doing: Doing,
        /// Why it failed.
        errno: Errno,
    },
    /// It changed while it was read, twice.
    #[error("changed while it was read; copy again when it is at rest")]
    Changed,
    /// It was removed before it was read.
    #[error("vanished from the source while the copy went on")]
    Vanished,
    /// The source has it, and its listing did not.
    #[error("is at the source now, and was not in its listing; nothing is deleted, copy again")]
    Unlisted,
    /// At the target its name is the same as another name.
    #[error(
        "name collision: the target's file system does not distinguish it from another \
         name (case, accents), so only one of the two files is there"
    )]
    NameCollision,
    /// Its directory could not be created.
    #[error("not copied, since its directory could not be made")]
    NoDirectory,
    /// A directory has the name of a file.
    #[error(
        "a directory that is not empty has the name at the target; --delete removes it, \
         unless something else fails, or something in it is excluded"
    )]
    DirectoryInTheWay,
    /// The copy differs from the source.
    #[error("differs at the target after the copy ({what}); copy again, and check the disk")]
    Differs {
        /// Size or digest.
        what: &'static str,
    },
    /// It was copied, and lacks extended attributes.
    #[error("{count} extended attributes were refused by the file system of the target")]
    RefusedXattrs {
        /// How many it lacks.
        count: usize,
    },
    /// It was copied, and lacks mode or times.
    #[error("was copied, but the target refuses its mode and times: {errno}")]
    RefusedAttributes {
        /// The target's answer.
        errno: Errno,
    },
    /// `-x` may enter other file systems of the source.
    #[error(
        "the source does not distinguish its file systems, so -x may enter others; exclude \
         them by patterns"
    )]
    SourceFileSystems,
    /// `-x` does not know what is mounted in the target.
    #[error(
        "the target does not distinguish its file systems, so nothing is deleted with -x; \
         exclude what is mounted there by patterns, and leave -x out"
    )]
    TargetFileSystems,
    /// A pushed tree has not got its name.
    #[error("something in it has failed, so it is still called '{stage}'; copy again")]
    Unnamed {
        /// Its path at the target.
        stage: RemotePath,
    },
    /// A message of an engine.
    #[error("{words}")]
    Other {
        /// Escaped, for a terminal.
        words: String,
    },
}

/// A hint, where one is known.
fn hint(doing: Doing, errno: Errno) -> &'static str {
    match errno {
        Errno::EOPNOTSUPP if doing == Doing::Sync => {
            "; the server has no fsync@openssh.com, so leave --fsync out"
        }
        // A server without posix-rename replaces no entry, and answers FAILURE.
        Errno::EPERM | Errno::EEXIST | Errno::EOPNOTSUPP if doing == Doing::Rename => {
            "; check the permissions of the file and of its directory, or, if the server cannot \
             replace files, use -o workaround=rename"
        }
        Errno::ENOSPC | Errno::EDQUOT => "; make room at the target and run again",
        Errno::EACCES | Errno::EPERM => "; check the permissions of the file and of its directory",
        Errno::EROFS => "; the target is mounted read-only",
        Errno::ENAMETOOLONG if doing.side() == Side::Target => {
            "; the target allows shorter names only"
        }
        Errno::EMFILE | Errno::ENFILE => "; raise the limit of open files (ulimit -n)",
        _ => "",
    }
}

impl Problem {
    /// Makes a problem of an errno, for `map_err`.
    pub(crate) fn failed(name: &RemotePath, doing: Doing) -> impl Fn(Errno) -> Problem + '_ {
        move |errno| match (doing, errno) {
            (Doing::Rename, Errno::EISDIR) => Fault::DirectoryInTheWay.of(name),
            _ => Fault::Failed { doing, errno }.of(name),
        }
    }

    /// The error that the target's file system has refused extended attributes, if it has refused
    /// any.
    pub(crate) fn of_refused_xattrs(name: &RemotePath, count: usize) -> Result<(), Problem> {
        match count {
            0 => Ok(()),
            count => Err(Fault::RefusedXattrs { count }.of(name)),
        }
    }

    /// The problem of an entry that is called otherwise: `from`, or what it is in, is `to`.
    pub(crate) fn renamed(&self, from: &RemotePath, to: &RemotePath) -> Problem {
        let mut renamed = self.clone();
        renamed.name = self.name.moved(from, to).unwrap_or(renamed.name);
        if let Fault::Other { words } = &mut renamed.fault {
            *words = words.replace(&from.to_string(), &to.to_string());
        }
        renamed
    }

    /// Whether the entry is there, and lacks attributes alone.
    pub(crate) fn is_of_attributes(&self) -> bool {
        matches!(self.fault, Fault::RefusedXattrs { .. } | Fault::RefusedAttributes { .. })
    }

    /// Whether the entry may have been one too many for a server with few handles. Its answer is
    /// FAILURE, which is `EPERM` where it has no other explanation. `EEXIST` is that of a server
    /// which has created the file, and cannot open it.
    pub(crate) fn may_lack_handles(&self) -> bool {
        match self.fault {
            Fault::Failed { doing: Doing::Open | Doing::Make, errno } => {
                matches!(errno, Errno::EPERM | Errno::EEXIST | Errno::EMFILE | Errno::ENFILE)
            }
            _ => false,
        }
    }

    /// Whether another problem is its reason.
    pub(crate) fn is_consequence(&self) -> bool {
        self.fault == Fault::NoDirectory
    }
}

impl Fault {
    /// The problem of the entry of this name, relative to the target.
    pub fn of(self, name: &RemotePath) -> Problem {
        Problem { name: name.clone(), fault: self }
    }
}

/// What the target has refused of an entry that it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    /// Extended attributes.
    pub(crate) xattrs: usize,
    /// Mode or times, with its answer.
    pub(crate) attributes: Option<Errno>,
}

impl Refused {
    /// The problem of the entry, if anything was refused.
    pub(crate) fn of(self, name: &RemotePath) -> Result<(), Problem> {
        match self.attributes {
            Some(errno) => Err(Fault::RefusedAttributes { errno }.of(name)),
            None => Problem::of_refused_xattrs(name, self.xattrs),
        }
    }
}

/// Whether this is the answer of a target that never sets the attributes of an entry of ours, in
/// contrast to a failure.
pub(crate) fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP | Errno::ENOSYS)
}

/// Entries of the sources by result: each is in one of these counts. `deleted` counts entries of
/// the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Entries of the sources that were not excluded.
    pub entries: u64,
    /// Directories that were created.
    pub dirs_made: u64,
    /// Files that were copied.
    pub files_copied: u64,
    /// Symbolic links that were created.
    pub links_made: u64,
    /// Hard links that were created.
    pub names_made: u64,
    /// Entries that only got other attributes.
    pub attrs_set: u64,
    /// Entries that were equal.
    pub unchanged: u64,
    /// Entries that were skipped.
    pub skipped: u64,
    /// Entries that failed.
    pub failed: u64,
    /// Entries of the target that were deleted.
    pub deleted: u64,
    /// Bytes of all regular files of the sources.
    pub bytes: u64,
    /// Bytes that were transferred.
    pub bytes_copied: u64,
    /// Bytes of copied files that an earlier run had transferred.
    pub bytes_resumed: u64,
    /// Bytes of regular files whose content was right.
    #[serde(skip)]
    pub bytes_unchanged: u64,
}

impl Counts {
    /// Counts the success of an action, for which this many bytes were transferred, now and by
    /// earlier runs.
    pub(crate) fn add(&mut self, action: &Action, bytes: u64, resumed: u64) {
        match action {
            Action::MakeDir => self.dirs_made += 1,
            Action::Copy(_) => {
                self.files_copied += 1;
                self.bytes_copied += bytes;
                self.bytes_resumed += resumed;
            }
            Action::MakeLink(_) => self.links_made += 1,
            Action::HardLink { .. } => self.names_made += 1,
            Action::SetAttr(_) => self.attrs_set += 1,
            Action::Nothing => self.unchanged += 1,
            Action::Skip(_) => self.skipped += 1,
            Action::Delete => self.deleted += 1,
        }
    }

    /// Entries that have a result.
    pub fn ended(&self) -> u64 {
        self.dirs_made
            + self.files_copied
            + self.links_made
            + self.names_made
            + self.attrs_set
            + self.unchanged
            + self.skipped
            + self.failed
    }
}

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The user, or the program, requested it.
    Asked,
    /// A remote is unreachable.
    Lost(Errno),
}

/// Problems that are kept; further ones are only counted.
const PROBLEMS_KEPT: usize = 1000;

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The results of the entries.
    pub counts: Counts,
    /// The first 1000 problems.
    pub problems: Vec<Problem>,
    /// All problems: entries that failed, directories that could not be listed, deletions that
    /// failed.
    pub problems_total: u64,
    /// Why it ended early.
    pub stopped: Option<Stop>,
    /// Deletions that were planned and not executed, because something failed or there were too
    /// many.
    pub deletions_withheld: u64,
    /// There were more deletions than `max_delete`.
    pub deletions_limited: bool,
    /// Some owners could not be set.
    pub owners_refused: bool,
    /// Hard links were to be preserved, and files were copied without knowing which of their names
    /// are of one file.
    pub links_unknown: bool,
    /// How long it took.
    pub elapsed: Duration,
}

impl Outcome {
    /// Counts a problem, and keeps it if it is one of the first, or a reason.
    pub(crate) fn note_problem(&mut self, problem: &Problem) {
        self.problems_total += 1;
        if self.problems.len() < PROBLEMS_KEPT {
            self.problems.push(problem.clone());
        } else if !problem.is_consequence()
            && let Some(at) = self.problems.iter().rposition(Problem::is_consequence)
        {
            self.problems[at] = problem.clone();
        }
    }

    /// The outcome of two runs.
    pub(crate) fn and(mut self, other: Outcome) -> Outcome {
        let (sum, more) = (&mut self.counts, other.counts);
        sum.entries += more.entries;
        sum.dirs_made += more.dirs_made;
        sum.files_copied += more.files_copied;
        sum.links_made += more.links_made;
        sum.names_made += more.names_made;
        sum.attrs_set += more.attrs_set;
        sum.unchanged += more.unchanged;
        sum.skipped += more.skipped;
        sum.failed += more.failed;
        sum.deleted += more.deleted;
        sum.bytes += more.bytes;
        sum.bytes_copied += more.bytes_copied;
        sum.bytes_resumed += more.bytes_resumed;
        sum.bytes_unchanged += more.bytes_unchanged;
        self.problems.extend(other.problems);
        self.problems_total += other.problems_total;
        self.stopped = self.stopped.or(other.stopped);
        self.deletions_withheld += other.deletions_withheld;
        self.deletions_limited |= other.deletions_limited;
        self.owners_refused |= other.owners_refused;
        self.links_unknown |= other.links_unknown;
        self.elapsed += other.elapsed;
        self
    }

    /// Whether everything was copied and deleted as requested.
    pub fn is_complete(&self) -> bool {
        self.problems_total == 0
            && self.stopped.is_none()
            && self.deletions_withheld == 0
            && !self.links_unknown
    }
}
