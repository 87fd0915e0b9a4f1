//! Two runs, and what changed between them beyond the noise.
//!
//! Invariants:
//! 1. A figure is worse or better when it changed by more than the noise, which both runs show by
//!    their spreads and their controls. What is smaller is the same.
//! 2. A regression is a figure that is worse by more than the tolerance as well, of a subject that
//!    is judged; or one that used to be measured and fails now, or has wrong data.
//! 3. Judged are sshoal and its variants. Where neither run has one, all but the yardsticks are: the
//!    reference, controls, floors, and directories that somebody else has mounted. What a peer
//!    does is shown, and does not decide.

mod circumstances;
mod display;
mod noise;

use std::collections::BTreeSet;

use crate::measure::Measure;
use crate::plan::is_ours;
use crate::results::{Results, SubjectInfo, Summary};
use crate::stats::{self, ratio_of, summarize};

use noise::BetweenRuns;

/// What changed from one run to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Part by which a figure may be worse: 0.1 is 10 %.
    pub tolerance: f64,
    /// Figures that both runs have, or that one of them failed to get.
    pub changes: Vec<Change>,
    /// What else differs: machine, link, settings, versions; for the reader to judge.
    pub notes: Vec<String>,
    /// Figures of the old run that were not asked for in the new one: `measure of subject`.
    pub only_old: Vec<String>,
    /// The other way round.
    pub only_new: Vec<String>,
}

/// One figure in both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// What was measured.
    pub measure: Measure,
    /// Of whom.
    pub subject: String,
    /// Median of the old run, in the measure's unit, if it had any value.
    pub old: Option<f64>,
    /// Of the new run.
    pub new: Option<f64>,
    /// How many times better the new one is; above 1 is better.
    pub ratio: Option<f64>,
    /// Factor that chance explains.
    pub noise: f64,
    /// What it comes to.
    pub verdict: Verdict,
    /// Whether a regression of this subject decides (see the module).
    pub judged: bool,
}

/// What a change comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has wrong data now, and had none.
    WrongData,
    /// It had values, and has none now.
    FailsNow,
    /// It has no value in either run.
    FailsStill,
    /// Worse by more than noise and tolerance.
    Regression,
    /// Worse by more than the tolerance, but not than the noise: more rounds would tell.
    Unsure,
    /// Worse by more than the noise, within the tolerance.
    Worse,
    /// No more than chance.
    Same,
    /// Better by more than the noise.
    Better,
    /// It had no value, and has one now.
    WorksNow,
}

impl Verdict {
    /// Whether it makes a comparison fail, for a subject that is judged.
    #[must_use]
    pub fn is_regression(self) -> bool {
        matches!(self, Verdict::WrongData | Verdict::FailsNow | Verdict::Regression)
    }
}

impl Comparison {
    /// Whether anything that is judged became worse by more than noise and tolerance: what the exit
    /// status is made from.
    #[must_use]
    pub fn regressed(&self) -> bool {
        self.regressions().next().is_some()
    }

    /// The changes for which it did.
    pub fn regressions(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.judged && change.verdict.is_regression())
    }
}

/// Compares two runs, figure by figure. `tolerance` is the part by which a figure may be worse
/// (0.1: a rate of 90 % of the old one, or a time longer by the inverse of that).
#[must_use]
pub fn compare(old: &Results, new: &Results, tolerance: f64) -> Comparison {
    let (before, after) = (summarize(old), summarize(new));
    let noise = BetweenRuns::of(old, new);
    let judged = judged(old, new);
    let wrong = (wrong_data(old), wrong_data(new));
    let mut changes = Vec::new();
    for summary in &after {
        let Some(measure) = find_measure(new, &summary.measure) else { continue };
        let same_unit = |old: &&Measure| old.unit == measure.unit;
        if find_measure(old, &summary.measure).filter(same_unit).is_none() {
            continue;
        }
        let Some(earlier) = find(&before, summary) else { continue };
        let name = (summary.measure.clone(), summary.subject.clone());
        let wrong_now = wrong.1.contains(&name) && !wrong.0.contains(&name);
        let mut change = change(measure, earlier, summary, &noise, tolerance);
        if wrong_now {
            change.verdict = Verdict::WrongData;
        }
        change.judged = judged.contains(summary.subject.as_str());
        changes.push(change);
    }
    Comparison {
        tolerance,
        notes: circumstances::differences(old, new, &changes, &noise),
        only_old: without(old, &before, new, &after),
        only_new: without(new, &after, old, &before),
        changes,
    }
}

fn change(
    measure: &Measure,
    old: &Summary,
    new: &Summary,
    noise: &BetweenRuns<'_>,
    tolerance: f64,
) -> Change {
    let value = |summary: &Summary| (summary.n > 0).then_some(summary.median);
    let (old_value, new_value) = (value(old), value(new));
    let ratio = old_value.zip(new_value).and_then(|(old, new)| ratio_of(new, old, measure.unit));
    let noise = noise.factor(&measure.id, &new.subject);
    let verdict = match (old_value, new_value, ratio) {
        (Some(_), None, _) => Verdict::FailsNow,
        (None, Some(_), _) => Verdict::WorksNow,
        (None, None, _) => Verdict::FailsStill,
        (_, _, Some(ratio)) => judge(ratio, noise, tolerance),
        (_, _, None) => Verdict::Same,
    };
    Change {
        measure: measure.clone(),
        subject: new.subject.clone(),
        old: old_value,
        new: new_value,
        ratio,
        noise,
        verdict,
        judged: false,
    }
}

fn judge(ratio: f64, noise: f64, tolerance: f64) -> Verdict {
    let past_tolerance = ratio < 1.0 - tolerance;
    let past_noise = ratio < 1.0 / noise;
    match (past_tolerance, past_noise) {
        (true, true) => Verdict::Regression,
        (true, false) => Verdict::Unsure,
        (false, true) => Verdict::Worse,
        (false, false) if ratio > noise => Verdict::Better,
        (false, false) => Verdict::Same,
    }
}

fn find_measure<'a>(results: &'a Results, id: &str) -> Option<&'a Measure> {
    results.measures.iter().find(|measure| measure.id == id)
}

fn find<'a>(summaries: &'a [Summary], like: &Summary) -> Option<&'a Summary> {
    let same = |s: &&Summary| s.measure == like.measure && s.subject == like.subject;
    summaries.iter().find(same)
}

/// Figures of one run that the other has nothing to compare with.
fn without(of: &Results, ours: &[Summary], other: &Results, theirs: &[Summary]) -> Vec<String> {
    let unit = |results: &Results, id: &str| find_measure(results, id).map(|m| m.unit);
    let missing = ours.iter().filter(|summary| {
        find(theirs, summary).is_none()
            || unit(of, &summary.measure) != unit(other, &summary.measure)
    });
    missing.map(|summary| format!("{} of {}", summary.measure, summary.subject)).collect()
}

/// Measures and subjects with wrong data.
fn wrong_data(results: &Results) -> BTreeSet<(String, String)> {
    let wrong = stats::failures(results).into_iter().filter(|line| line.wrong_data);
    wrong.map(|line| (line.measure, line.subject)).collect()
}

/// Names of the subjects whose regressions decide.
fn judged<'a>(old: &'a Results, new: &'a Results) -> BTreeSet<&'a str> {
    let subjects = || old.subjects.iter().chain(&new.subjects);
    let ours: BTreeSet<&str> = subjects()
        .filter(|subject| is_ours(&subject.name) && subject.control_of.is_none())
        .map(|subject| subject.name.as_str())
        .collect();
    if !ours.is_empty() {
        return ours;
    }
    let yardstick = |subject: &&SubjectInfo| {
        subject.control_of.is_some()
            || subject.name == new.settings.reference
            || matches!(subject.kind.as_str(), "floor" | "local" | "target")
    };
    let rest = subjects().filter(|subject| !yardstick(subject));
    rest.map(|subject| subject.name.as_str()).collect()
}

#[cfg(test)]
mod tests;
