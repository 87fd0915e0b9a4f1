//! Running one list of operations on the reference and on a subject.

use std::fmt;

use base::{FileKind, Result, Timestamp};

use super::journal::Journal;
use super::killed::{
    Aftermath, Loss, State, check_until_killed, is_of_killed, is_part, loss, state, unreadable,
};
use super::op::Answer;
use super::reference::{RECENT, Reference, UNKNOWN};
use super::snapshot::{Node, Nodes, snapshot};
use super::{FDS, Features, Op, Stat, Subject};
use crate::tree::Ino;

/// Maximum difference between the subject's clock and this machine's, in seconds: the kernel uses
/// the time of its last tick, and a server truncates to whole seconds.
const CLOCK_SLACK_SECS: i64 = 2;

/// The first difference between the reference and a subject.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// Index of the operation; `None` if the comparison of the whole tree found it.
    pub index: Option<usize>,
    /// The operation or the compared item.
    pub what: String,
    /// The result of the reference.
    pub expected: String,
    /// The result of the subject.
    pub got: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index {
            write!(f, "operation {index}, ")?;
        }
        let Divergence { what, expected, got, .. } = self;
        write!(f, "{what}:\n  expected {expected}\n  got      {got}")
    }
}

impl std::error::Error for Divergence {}

/// Runs `ops` on a new [`Reference`] and on `subject`, which must be empty, and compares.
///
/// An open into a slot in use closes it first; an operation on an empty slot is skipped. At the end
/// everything is closed.
pub fn check(ops: &[Op], subject: &mut impl Subject) -> std::result::Result<(), Divergence> {
    check_until_killed(ops, subject, || false).map(drop)
}

/// The end of a step.
enum Step {
    Done,
    /// The subject was killed; the operation in flight.
    Killed(Option<Op>),
}

/// A list of operations in progress.
pub(super) struct Trial {
    reference: Reference,
    journal: Journal,
    rules: Rules,
    operations: u64,
}

impl Trial {
    pub(super) fn new(features: Features) -> Trial {
        Trial {
            reference: Reference::new(features.umask),
            journal: Journal::default(),
            rules: Rules { features, started_secs: Timestamp::now().secs },
            operations: 0,
        }
    }

    pub(super) fn run(
        mut self,
        ops: &[Op],
        subject: &mut impl Subject,
        is_killed: &dyn Fn() -> bool,
    ) -> std::result::Result<Aftermath, Divergence> {
        for (index, op) in ops.iter().enumerate() {
            let close = match *op {
                Op::Open { fd, .. } if self.reference.is_open(fd) => Some(Op::Close { fd }),
                _ => None,
            };
            for op in close.iter().chain([op]) {
                if op.needs().all(|fd| self.reference.is_open(fd))
                    && let Step::Killed(op) = self.step(Some(index), op, subject, is_killed)?
                {
                    return Ok(self.aftermath(true, op));
                }
            }
        }
        match self.compare_trees("with files open", subject) {
            Err(_) if is_killed() => return Ok(self.aftermath(true, None)),
            compared => compared?,
        }
        for fd in (0..FDS).filter(|fd| self.reference.is_open(*fd)).collect::<Vec<_>>() {
            let step = self.step(None, &Op::Close { fd }, subject, is_killed)?;
            if let Step::Killed(op) = step {
                return Ok(self.aftermath(true, op));
            }
        }
        match self.compare_trees("after all is closed", subject) {
            Err(_) if is_killed() => Ok(self.aftermath(true, None)),
            compared => compared.map(|()| self.aftermath(false, None)),
        }
    }

    fn aftermath(self, killed: bool, in_flight: Option<Op>) -> Aftermath {
        let Trial { reference, journal, rules, operations } = self;
        Aftermath::new(reference, journal, rules, operations, killed, in_flight)
    }

    fn step(
        &mut self,
        index: Option<usize>,
        op: &Op,
        subject: &mut impl Subject,
        is_killed: &dyn Fn() -> bool,
    ) -> std::result::Result<Step, Divergence> {
        self.operations += 1;
        let got = op.apply(subject);
        if is_of_killed(&got) && is_killed() {
            return Ok(Step::Killed(Some(op.clone())));
        }
        let mut in_part = false;
        let expected = self.journal.execute(op, &mut self.reference, |expected| {
            in_part = is_part(expected, &got) && is_killed();
            in_part
        });
        if !in_part && !self.rules.same(&expected, &got) {
            return Err(diverged(index, op, &expected, &got));
        }
        Ok(if in_part { Step::Killed(None) } else { Step::Done })
    }

    fn compare_trees(
        &mut self,
        when: &str,
        subject: &mut impl Subject,
    ) -> std::result::Result<(), Divergence> {
        let found = snapshot(subject).map_err(|errno| unreadable(when, errno).divergence)?;
        let expected = state(&mut self.reference);
        let compared = self.rules.compare(when, &expected, &found, |_, _, _, _| None);
        compared.map_err(|loss| loss.divergence)
    }
}

fn diverged(
    index: Option<usize>,
    op: &Op,
    expected: &Result<Answer>,
    got: &Result<Answer>,
) -> Divergence {
    let first_difference = match (expected, got) {
        (Ok(expected), Ok(got)) => expected.first_difference(got),
        _ => String::new(),
    };
    Divergence {
        index,
        what: format!("{op:?}"),
        expected: format!("{expected:?}"),
        got: format!("{got:?}{first_difference}"),
    }
}

/// How results are compared.
#[derive(Debug)]
pub(super) struct Rules {
    features: Features,
    started_secs: i64,
}

impl Rules {
    /// Compares a whole tree. For each entry `allowance` adapts the expected attributes to what it
    /// may have lost, and returns the number of unexplained bytes; `None` if its content must be
    /// the expected one.
    pub(super) fn compare(
        &self,
        when: &str,
        expected: &State,
        found: &Nodes,
        allowance: impl Fn(&str, Ino, &mut Stat, &Node) -> Option<u64>,
    ) -> std::result::Result<(), Loss> {
        let (names, seen): (Vec<_>, Vec<_>) = (expected.keys().collect(), found.keys().collect());
        if names != seen {
            return Err(loss(format!("{when}, all names"), &names, &seen));
        }
        for ((path, (ino, (stat, answer))), seen) in expected.iter().zip(found.values()) {
            let mut stat = *stat;
            let unexplained = allowance(path, *ino, &mut stat, seen);
            let (seen_stat, seen_answer) = seen;
            if !self.same_stat(&stat, seen_stat) {
                return Err(loss(format!("{when}, attributes of {path:?}"), &stat, seen_stat));
            }
            let bytes = match unexplained {
                Some(bytes) => bytes,
                None if answer == seen_answer => 0,
                None => answer.differing_bytes(seen_answer),
            };
            if bytes > 0 {
                let mut loss = loss(format!("{when}, content of {path:?}"), answer, seen_answer);
                loss.divergence.got += &answer.first_difference(seen_answer);
                return Err(Loss { bytes, ..loss });
            }
        }
        Ok(())
    }

    fn same(&self, expected: &Result<Answer>, got: &Result<Answer>) -> bool {
        match (expected, got) {
            (Ok(Answer::Stat(expected)), Ok(Answer::Stat(got))) => self.same_stat(expected, got),
            _ => expected == got,
        }
    }

    fn same_stat(&self, expected: &Stat, got: &Stat) -> bool {
        let recent = || {
            let now = Timestamp::now().secs;
            let since = self.started_secs - CLOCK_SLACK_SECS;
            (since..=now + CLOCK_SLACK_SECS).contains(&got.mtime)
        };
        let same_time = match expected.mtime {
            RECENT => recent(),
            UNKNOWN => true,
            secs => got.mtime == secs,
        };
        let directory = expected.kind == FileKind::Directory;
        same_time
            && (expected.kind, expected.perm) == (got.kind, got.perm)
            && (directory || expected.size == got.size)
            && (directory || !self.features.link_counts || expected.links == got.links)
    }
}
