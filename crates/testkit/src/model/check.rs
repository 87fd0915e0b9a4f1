//! Running one list of operations on the reference and on a subject.

use std::fmt;

use base::{FileKind, Result, Timestamp};

use super::journal::Journal;
use super::killed::{Aftermath, check_until_killed, is_of_killed, is_part};
use super::op::Answer;
use super::reference::{RECENT, Reference, UNKNOWN};
use super::snapshot::snapshot;
use super::{FDS, Features, Op, Stat, Subject};

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
                    return Ok(self.killed(op));
                }
            }
        }
        let compared = self.compare_trees("with files open", subject);
        if compared.is_err() && is_killed() {
            return Ok(self.killed(None));
        }
        compared?;
        for fd in (0..FDS).filter(|fd| self.reference.is_open(*fd)).collect::<Vec<_>>() {
            let step = self.step(None, &Op::Close { fd }, subject, is_killed)?;
            if let Step::Killed(op) = step {
                return Ok(self.killed(op));
            }
        }
        let compared = self.compare_trees("after all is closed", subject);
        if compared.is_err() && is_killed() {
            return Ok(self.killed(None));
        }
        compared?;
        let Trial { mut reference, journal, rules, operations } = self;
        Ok(Aftermath::finished(&mut reference, journal, rules, operations))
    }

    fn killed(self, in_flight: Option<Op>) -> Aftermath {
        let Trial { reference, journal, rules, operations } = self;
        Aftermath::killed(reference, journal, rules, operations, in_flight)
    }

    fn step(
        &mut self,
        index: Option<usize>,
        op: &Op,
        subject: &mut impl Subject,
        is_killed: &dyn Fn() -> bool,
    ) -> std::result::Result<Step, Divergence> {
        self.operations += 1;
        let Trial { reference, journal, rules, .. } = self;
        let got = op.apply(subject);
        if is_of_killed(&got) && is_killed() {
            return Ok(Step::Killed(Some(op.clone())));
        }
        let effect = reference.effect(op);
        let before = effect.as_ref().map(|effect| match journal.has(effect.ino) {
            true => Vec::new(),
            false => reference.content(effect.ino),
        });
        let closing = reference.closing(op);
        let expected = op.apply(reference);
        let in_part = is_part(&expected, &got) && is_killed();
        if !in_part && !rules.same(&expected, &got) {
            return Err(diverged(index, op, &expected, &got));
        }
        if expected.is_ok() {
            if let (Some(effect), Some(before)) = (effect, before) {
                journal.change(effect, || before, in_part);
            }
            reference.note_changed(op, journal);
            match (op, closing) {
                (Op::Close { fd }, Some(ino)) => journal.closed(ino, *fd),
                (Op::Fsync { .. }, Some(ino)) => journal.synced(ino),
                _ => {}
            }
        }
        Ok(if in_part { Step::Killed(None) } else { Step::Done })
    }

    fn compare_trees(
        &mut self,
        when: &str,
        subject: &mut impl Subject,
    ) -> std::result::Result<(), Divergence> {
        self.rules.compare_trees(when, &mut self.reference, subject)
    }
}

fn diverged(
    index: Option<usize>,
    op: &Op,
    expected: &Result<Answer>,
    got: &Result<Answer>,
) -> Divergence {
    let first_difference = match (expected, got) {
        (Ok(Answer::Bytes(expected)), Ok(Answer::Bytes(got))) => difference(expected, got),
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
    fn compare_trees(
        &self,
        when: &str,
        reference: &mut Reference,
        subject: &mut impl Subject,
    ) -> std::result::Result<(), Divergence> {
        let diverged = |what: String, expected: String, got: String| Divergence {
            index: None,
            what: format!("{when}, {what}"),
            expected,
            got,
        };
        let expected = snapshot(reference).expect("the reference can be read");
        let got = snapshot(subject).map_err(|errno| {
            diverged("reading the tree".into(), "no error".into(), format!("{errno:?}"))
        })?;
        let (names, seen): (Vec<_>, Vec<_>) = (expected.keys().collect(), got.keys().collect());
        if names != seen {
            return Err(diverged("all names".into(), format!("{names:?}"), format!("{seen:?}")));
        }
        for ((path, (stat, answer)), (seen_stat, seen_answer)) in expected.iter().zip(got.values())
        {
            if !self.same_stat(stat, seen_stat) {
                let what = format!("attributes of {path:?}");
                return Err(diverged(what, format!("{stat:?}"), format!("{seen_stat:?}")));
            }
            if answer != seen_answer {
                let at = match (answer, seen_answer) {
                    (Answer::Bytes(expected), Answer::Bytes(got)) => difference(expected, got),
                    _ => String::new(),
                };
                let what = format!("content of {path:?}");
                return Err(diverged(what, format!("{answer:?}"), format!("{seen_answer:?}{at}")));
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

    pub(super) fn same_stat(&self, expected: &Stat, got: &Stat) -> bool {
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

/// The first difference of two contents.
fn difference(expected: &[u8], got: &[u8]) -> String {
    let at = expected.iter().zip(got).position(|(one, other)| one != other);
    let at = at.unwrap_or_else(|| expected.len().min(got.len()));
    let byte = |bytes: &[u8]| bytes.get(at).map_or("end".into(), |byte| format!("{byte:#04x}"));
    format!(" (first difference at {at}: expected {}, got {})", byte(expected), byte(got))
}
