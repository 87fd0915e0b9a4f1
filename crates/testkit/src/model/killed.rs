//! A subject that may be killed at any moment: the state required afterwards.
//!
//! [`check_until_killed`] is [`check`](super::check) with a kill. The list ends there, and its
//! [`Aftermath`] has the allowed states of the tree: as before the operation in flight or as after
//! it, except for what the files may have lost (see the journal).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base::{Errno, FileKind, RenameMode, Result};

use super::check::{Rules, Trial};
use super::journal::Journal;
use super::op::Answer;
use super::reference::Reference;
use super::snapshot::{Node, Nodes, snapshot};
use super::{Divergence, Op, Subject};
use crate::tree::Ino;

/// Runs `ops` on a new [`Reference`] and on `subject`, which must be empty, and compares, like
/// [`check`](super::check). `is_killed` returns whether the subject was killed: it must return true
/// before the first operation fails by the kill.
pub fn check_until_killed(
    ops: &[Op],
    subject: &mut impl Subject,
    is_killed: impl Fn() -> bool,
) -> std::result::Result<Aftermath, Divergence> {
    Trial::new(subject.features()).run(ops, subject, &is_killed)
}

/// Whether a result is that of a killed file system.
pub(super) fn is_of_killed(answer: &Result<Answer>) -> bool {
    // The kernel's errors for requests in flight, for later ones, and for missing pages.
    matches!(answer, Err(Errno::ECONNABORTED | Errno::ENOTCONN | Errno::EIO))
}

/// Whether a result may be a part of the expected one, as for the last operation of a killed file
/// system: the kernel splits a call into several requests.
pub(super) fn is_part(expected: &Result<Answer>, got: &Result<Answer>) -> bool {
    match (expected, got) {
        (Ok(Answer::Bytes(expected)), Ok(Answer::Bytes(got))) => expected.starts_with(got),
        (Ok(Answer::Count(expected)), Ok(Answer::Count(got))) => got < expected,
        _ => false,
    }
}

/// The entry at each path, and its inode.
pub(super) type State = BTreeMap<String, (Ino, Node)>;

/// The required state after a list of operations.
#[derive(Debug)]
pub struct Aftermath {
    /// One state, or after a kill the two states between which the subject may be.
    states: Vec<State>,
    in_flight: Option<Op>,
    killed: bool,
    journal: Journal,
    rules: Rules,
    operations: u64,
}

/// A required part of the state that is missing.
#[derive(Clone, Debug)]
pub struct Loss {
    /// What.
    pub divergence: Divergence,
    /// Number of unexplained bytes of files; 0 if the loss is not about bytes.
    pub bytes: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes > 0 {
            write!(f, "{} bytes lost: ", self.bytes)?;
        }
        self.divergence.fmt(f)
    }
}

impl Aftermath {
    /// After these operations, and perhaps the one `in_flight`.
    pub(super) fn new(
        mut reference: Reference,
        mut journal: Journal,
        rules: Rules,
        operations: u64,
        killed: bool,
        in_flight: Option<Op>,
    ) -> Aftermath {
        let mut states = vec![state(&mut reference)];
        if let Some(op) = &in_flight {
            let _ = journal.execute(op, &mut reference, |_| true);
            states.push(state(&mut reference));
        }
        Aftermath { states, in_flight, killed, journal, rules, operations }
    }

    /// Whether the list ended with a kill.
    pub fn was_killed(&self) -> bool {
        self.killed
    }

    /// Number of operations executed.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Compares with a subject that has the same files, such as the next mount, or the directory
    /// behind the mount.
    pub fn inspect(&self, when: &str, subject: &mut impl Subject) -> std::result::Result<(), Loss> {
        let found = snapshot(subject).map_err(|errno| unreadable(when, errno))?;
        let mut first = None;
        for state in &self.states {
            match self.compare(when, state, &found) {
                Ok(()) => return Ok(()),
                Err(loss) => first = first.or(Some(loss)),
            }
        }
        if self.is_half_renamed(when, &found) {
            return Ok(());
        }
        let mut loss = first.expect("there is a state");
        if let Some(op) = &self.in_flight {
            loss.divergence.expected += &format!(", or what it is after {op:?}");
        }
        Err(loss)
    }

    /// Whether a rename that must not replace is half done: servers create the second name and then
    /// remove the first.
    fn is_half_renamed(&self, when: &str, found: &Nodes) -> bool {
        let Some(Op::Rename { mode: RenameMode::NoReplace, .. }) = self.in_flight else {
            return false;
        };
        let [before, after] = &self.states[..] else { return false };
        let both: State =
            before.iter().chain(after).map(|(path, node)| (path.clone(), node.clone())).collect();
        self.compare(when, &both, found).is_ok()
    }

    fn compare(&self, when: &str, state: &State, found: &Nodes) -> std::result::Result<(), Loss> {
        let loose = self.loose_paths();
        self.rules.compare(when, state, found, |path, ino, stat, (seen_stat, seen_answer)| {
            if loose.contains(path) || self.journal.is_changed(ino) {
                (stat.mtime, stat.perm) = (seen_stat.mtime, seen_stat.perm);
            }
            let unexplained = match seen_answer {
                Answer::Bytes(bytes) if seen_stat.kind == FileKind::Regular => {
                    self.journal.unexplained(ino, bytes)
                }
                _ => None,
            };
            if unexplained.is_some() {
                stat.size = seen_stat.size;
            }
            unexplained
        })
    }

    /// Paths changed by the operation in flight, and their parent directories.
    fn loose_paths(&self) -> BTreeSet<&str> {
        let [before, after] = &self.states[..] else { return BTreeSet::new() };
        let differs = |path: &&String| before.get(*path) != after.get(*path);
        let paths = before.keys().chain(after.keys()).filter(differs);
        paths
            .flat_map(|path| [path.as_str(), path.rsplit_once('/').map_or("", |(dir, _)| dir)])
            .collect()
    }
}

pub(super) fn loss(what: String, expected: &dyn fmt::Debug, got: &dyn fmt::Debug) -> Loss {
    let (expected, got) = (format!("{expected:?}"), format!("{got:?}"));
    Loss { divergence: Divergence { index: None, what, expected, got }, bytes: 0 }
}

/// The tree cannot be read.
pub(super) fn unreadable(when: &str, errno: Errno) -> Loss {
    loss(format!("{when}, reading the tree"), &"no error", &errno)
}

/// The whole state of the reference.
pub(super) fn state(reference: &mut Reference) -> State {
    let nodes = snapshot(reference).expect("the reference can be read");
    let with_ino = |(path, node): (String, Node)| {
        let ino = reference.ino(&path);
        (path, (ino, node))
    };
    nodes.into_iter().map(with_ino).collect()
}
