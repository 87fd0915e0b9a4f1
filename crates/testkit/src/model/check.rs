//! Running one list of operations on the reference and on a subject.

use std::fmt;

use base::{FileKind, Result, Timestamp};

use super::op::Answer;
use super::reference::{RECENT, UNKNOWN};
use super::snapshot::snapshot;
use super::{FDS, Features, Op, Reference, Stat, Subject};

/// How far the subject's clock may be from ours, in seconds: the kernel stamps files with its
/// time of the last tick, and a server cuts that to whole seconds.
const CLOCK_SLACK_SECS: i64 = 2;

/// The first difference between the reference and a subject.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// Which operation of the list; `None` when a comparison of the whole tree found it.
    pub index: Option<usize>,
    /// What was done or looked at.
    pub what: String,
    /// What the reference says.
    pub expected: String,
    /// What the subject said.
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

/// Does `ops` to a new [`Reference`] and to `subject`, which must be empty, and compares.
///
/// Opening into a slot that is in use closes it first; an operation on an empty slot is left out.
/// At the end everything is closed.
pub fn check(ops: &[Op], subject: &mut impl Subject) -> std::result::Result<(), Divergence> {
    let features = subject.features();
    let mut reference = Reference::new(features.umask);
    let rules = Rules { features, started_secs: Timestamp::now().secs };
    for (index, op) in ops.iter().enumerate() {
        if let Op::Open { fd, .. } = *op
            && reference.is_open(fd)
        {
            rules.step(Some(index), &Op::Close { fd }, &mut reference, subject)?;
        }
        if op.needs().all(|fd| reference.is_open(fd)) {
            rules.step(Some(index), op, &mut reference, subject)?;
        }
    }
    rules.compare_trees("with files open", &mut reference, subject)?;
    for fd in (0..FDS).filter(|fd| reference.is_open(*fd)).collect::<Vec<_>>() {
        rules.step(None, &Op::Close { fd }, &mut reference, subject)?;
    }
    rules.compare_trees("after all is closed", &mut reference, subject)
}

/// What counts as the same.
struct Rules {
    features: Features,
    started_secs: i64,
}

impl Rules {
    fn step(
        &self,
        index: Option<usize>,
        op: &Op,
        reference: &mut Reference,
        subject: &mut impl Subject,
    ) -> std::result::Result<(), Divergence> {
        let expected = op.apply(reference);
        let got = op.apply(subject);
        if self.same(&expected, &got) {
            return Ok(());
        }
        let first_difference = match (&expected, &got) {
            (Ok(Answer::Bytes(expected)), Ok(Answer::Bytes(got))) => difference(expected, got),
            _ => String::new(),
        };
        Err(Divergence {
            index,
            what: format!("{op:?}"),
            expected: format!("{expected:?}"),
            got: format!("{got:?}{first_difference}"),
        })
    }

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

/// Where two contents differ first.
fn difference(expected: &[u8], got: &[u8]) -> String {
    let at = expected.iter().zip(got).position(|(one, other)| one != other);
    let at = at.unwrap_or_else(|| expected.len().min(got.len()));
    let byte = |bytes: &[u8]| bytes.get(at).map_or("end".into(), |byte| format!("{byte:#04x}"));
    format!(" (first difference at {at}: expected {}, got {})", byte(expected), byte(got))
}
