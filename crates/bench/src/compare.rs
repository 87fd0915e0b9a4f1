//! Two runs, and the changes between them beyond the noise.
//!
//! Invariants:
//! 1. A figure is worse or better when it changed by more than the noise, which both runs show by
//!    their spreads and their controls. What is smaller is the same.
//! 2. A regression is a figure that is worse by more than the tolerance as well, of a subject that
//!    is judged; or one that used to be measured and fails now, or has wrong data.
//! 3. Judged are sshoal and its variants. Where neither run has one, all but the yardsticks are: the
//!    reference, controls, floors, and mounted directories. What a peer
//!    does is shown, and does not decide.

mod circumstances;

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Display, Formatter};

use crate::measure::Measure;
use crate::plan::is_ours;
use crate::report::printable;
use crate::results::{Results, SubjectInfo, Summary};
use crate::stats::{self, Index, Noise, Spread, median, ratio_of, summarize};
use crate::units;

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
    pub fn is_regression(self) -> bool {
        matches!(self, Verdict::WrongData | Verdict::FailsNow | Verdict::Regression)
    }
}

impl Comparison {
    /// Whether anything that is judged became worse by more than noise and tolerance: what the exit
    /// status is made from.
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

/// Groups in which changes are shown, the gravest first, with their heading.
const GROUPS: [(&str, &[Verdict]); 7] = [
    ("wrong data", &[Verdict::WrongData]),
    ("fails now", &[Verdict::FailsNow]),
    ("worse by more than noise and tolerance", &[Verdict::Regression]),
    ("worse, within the tolerance", &[Verdict::Worse]),
    ("worse, but within the noise: take more rounds to tell", &[Verdict::Unsure]),
    ("fails in both runs", &[Verdict::FailsStill]),
    ("better", &[Verdict::Better, Verdict::WorksNow]),
];

/// Names that a list shows before it says how many more there are.
const NAMES: usize = 12;

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (heading, verdicts) in GROUPS {
            let of_group = |change: &&Change| verdicts.contains(&change.verdict);
            let mut group: Vec<&Change> = self.changes.iter().filter(of_group).collect();
            group.sort_by(|a, b| far(b).total_cmp(&far(a)));
            if !group.is_empty() {
                writeln!(f, "{heading}:")?;
                group.iter().try_for_each(|change| line(f, change))?;
                writeln!(f)?;
            }
        }
        let same = self.changes.iter().filter(|c| c.verdict == Verdict::Same).count();
        writeln!(f, "the same within the noise: {same} of {}", self.changes.len())?;
        names(f, "only in the old run", &self.only_old)?;
        names(f, "only in the new run", &self.only_new)?;
        if !self.notes.is_empty() {
            writeln!(f, "\nnot the same in both runs:")?;
            for note in &self.notes {
                writeln!(f, "  {}", printable(note))?;
            }
        }
        let regressions = self.regressions().count();
        let tolerance = units::percent(self.tolerance);
        match regressions {
            0 => writeln!(f, "\nno regression past {tolerance}"),
            n => writeln!(f, "\n{} past {tolerance}", units::counted(n as u64, "regression")),
        }
    }
}

fn far(change: &Change) -> f64 {
    change.ratio.map_or(f64::INFINITY, |ratio| ratio.ln().abs())
}

fn line(f: &mut Formatter<'_>, change: &Change) -> fmt::Result {
    let scale = units::scale(change.measure.unit);
    let shown = |value: Option<f64>| value.map_or("–".to_owned(), |value| scale.show(value));
    let name = printable(&format!("{} of {}", change.measure.id, change.subject));
    let values = format!("{} → {} {}", shown(change.old), shown(change.new), scale.short);
    let ratio = change.ratio.map_or(String::new(), units::ratio);
    let noise = units::percent(change.noise - 1.0);
    let counts = if change.judged { "" } else { "not judged" };
    writeln!(f, "  {name:<38} {values:<22} {ratio:>7}  noise {noise:<7} {counts}")
}

fn names(f: &mut Formatter<'_>, what: &str, names: &[String]) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    writeln!(f, "{what}:")?;
    for name in names.iter().take(NAMES) {
        writeln!(f, "  {}", printable(name))?;
    }
    match names.len().saturating_sub(NAMES) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}

/// How many deviations chance explains: two, as for 95 % of normal values.
const DEVIATIONS: f64 = 2.0;

/// From how many rounds on a spread is that figure's own.
const ENOUGH: usize = 4;

/// Φ⁻¹(3/4) twice: distance of the quartiles of normal values in standard deviations.
const QUARTILES_TO_SIGMA: f64 = 1.349;

/// The noise between two runs.
struct BetweenRuns<'a> {
    old: OneRun<'a>,
    new: OneRun<'a>,
}

struct OneRun<'a> {
    /// Deviation of the logarithm of single rounds, by measure and subject.
    deviations: HashMap<(&'a str, &'a str), f64>,
    /// Their median: what is taken for figures with few rounds.
    typical: Option<f64>,
    control: Option<Noise>,
}

impl<'a> BetweenRuns<'a> {
    fn of(old: &'a Results, new: &'a Results) -> BetweenRuns<'a> {
        BetweenRuns { old: OneRun::of(old), new: OneRun::of(new) }
    }

    /// Factor that chance explains: two deviations of single rounds of both runs (not of their
    /// medians, since from run to run more changes than from round to round), but at least what
    /// either run's control shows.
    fn factor(&self, measure: &str, subject: &str) -> f64 {
        let other = |run: &OneRun<'_>, other: &OneRun<'_>| {
            run.deviation(measure, subject).or(other.typical).unwrap_or(0.0)
        };
        let (old, new) = (other(&self.old, &self.new), other(&self.new, &self.old));
        let spread = (DEVIATIONS * old.hypot(new)).exp();
        let control = |run: &OneRun<'_>| run.control.as_ref().map_or(1.0, |c| c.factor(measure));
        spread.max(control(&self.old)).max(control(&self.new))
    }

    /// Whether the noise is unknown: neither run has enough rounds or a control.
    fn is_unknown(&self) -> bool {
        let unknown = |run: &OneRun<'_>| run.typical.is_none() && run.control.is_none();
        unknown(&self.old) && unknown(&self.new)
    }
}

impl<'a> OneRun<'a> {
    fn of(results: &'a Results) -> OneRun<'a> {
        let index = Index::of(results);
        let mut deviations = HashMap::new();
        for measure in &results.measures {
            for subject in &results.subjects {
                let values = index.values(&measure.id, &subject.name);
                if let Some(deviation) = deviation(&values) {
                    deviations.insert((measure.id.as_str(), subject.name.as_str()), deviation);
                }
            }
        }
        let all: Vec<f64> = deviations.values().copied().collect();
        OneRun { typical: median(&all), control: Noise::of(results, &index), deviations }
    }

    fn deviation(&self, measure: &str, subject: &str) -> Option<f64> {
        self.deviations.get(&(measure, subject)).copied().or(self.typical)
    }
}

/// Of the logarithms of the values, from their quartiles, so that one outlier does not count.
fn deviation(values: &[f64]) -> Option<f64> {
    if values.len() < ENOUGH || values.iter().any(|&value| value <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let spread = Spread::of(&logs)?;
    Some((spread.high - spread.low) / QUARTILES_TO_SIGMA)
}

#[cfg(test)]
mod tests;
