//! Two runs, and the changes between them beyond the noise.
//!
//! Invariants:
//! 1. A figure is worse or better when it changed by more than the noise, which both runs show by
//!    their spreads and their controls, and by more than the tolerance. All else is the same.
//! 2. A regression is a figure of sshoal or one of its variants that is worse; or that used to be
//!    measured and fails now, has wrong data, or is absent although the new run has its work and its
//!    subject. What a peer does is shown, and does not decide.
//! 3. Costs (CPU, bytes on the link, requests) that changed by more than their spread and the
//!    tolerance are shown, and do not decide either: a faster program may well use more CPU.

mod cost;

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use crate::measure::Measure;
use crate::plan::is_ours;
use crate::report::{circumstances, printable};
use crate::results::{Results, Summary};
use crate::stats::{Index, Noise, Spread, failures, ratio_of, summarize};
use crate::units;

use cost::COSTS;

/// What changed from one run to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Part by which a figure may be worse: 0.1 is 10 %.
    pub tolerance: f64,
    /// Figures of both runs, and those of the old run that the new one should have.
    pub changes: Vec<Change>,
    /// Costs that are known of both runs.
    pub costs: Vec<CostChange>,
    /// What else differs: machine, link, settings; for the reader to judge.
    pub notes: Vec<String>,
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
}

/// One cost of one measure of one subject in both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct CostChange {
    /// [`Measure::id`].
    pub measure: String,
    /// Of whom.
    pub subject: String,
    /// What it is: `bytes sent`.
    pub cost: &'static str,
    /// Of the values: `MB`, `s`, or nothing for a number.
    pub unit: &'static str,
    /// Median of the old run.
    pub old: f64,
    /// Median of the new run, for as many operations as the old run had.
    pub new: f64,
    /// Factor that chance explains.
    pub noise: f64,
    /// The difference is small, or no more than chance or the tolerance.
    pub is_same: bool,
}

/// What a change comes to, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It has wrong data now, and had none.
    WrongData,
    /// It had values, and has none now.
    FailsNow,
    /// It had values, and was not measured, although its work and its subject are in the new run.
    Absent,
    /// Worse by more than noise and tolerance.
    Worse,
    /// Better by more than noise and tolerance, or it has a value for the first time.
    Better,
    /// No more than chance or the tolerance, or no value in either run.
    Same,
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Verdict::WrongData => "wrong data",
            Verdict::FailsNow => "fails now",
            Verdict::Absent => "absent",
            Verdict::Worse => "worse",
            Verdict::Better => "better",
            Verdict::Same => "the same",
        }
    }
}

impl Comparison {
    /// The changes of sshoal that are regressions: what the exit status is made from.
    pub fn regressions(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|it| it.verdict <= Verdict::Worse && is_judged(&it.subject))
    }
}

/// Whether a subject is sshoal or one of its variants, and not a control.
fn is_judged(subject: &str) -> bool {
    is_ours(subject) && !subject.ends_with(" (control)")
}

/// Compares two runs, figure by figure. `tolerance` is the part by which a figure may be worse
/// (0.1: a rate of 90 % of the old one, or a time longer by the inverse of that).
pub fn compare(old: &Results, new: &Results, tolerance: f64) -> Comparison {
    let (before, after) = (summarize(old), summarize(new));
    let (was_wrong, is_wrong) = (wrong_data(old), wrong_data(new));
    let runs = [(old, Index::of(old)), (new, Index::of(new))];
    let (mut changes, mut costs) = (Vec::new(), Vec::new());
    for earlier in &before {
        let name = (earlier.measure.clone(), earlier.subject.clone());
        let measure = |results: &Results| {
            results.measures.iter().find(|measure| measure.id == name.0).cloned()
        };
        let same = |it: &&Summary| (&it.measure, &it.subject) == (&name.0, &name.1);
        let now = after.iter().find(same);
        if now.is_none() && !should_have(new, earlier) {
            continue;
        }
        let Some(measure) = measure(new).or_else(|| measure(old)) else { continue };
        let value = |summary: &Summary| (summary.n > 0).then_some(summary.spread.median);
        let (old, new) = (value(earlier), now.and_then(value));
        let ratio = old.zip(new).and_then(|(old, new)| ratio_of(new, old, measure.unit));
        let noise = noise(&runs, &name.0, &name.1);
        let verdict = match (old, new, ratio) {
            _ if is_wrong.contains(&name) && !was_wrong.contains(&name) => Verdict::WrongData,
            (Some(_), None, _) if now.is_none() => Verdict::Absent,
            (Some(_), None, _) => Verdict::FailsNow,
            (None, Some(_), _) => Verdict::Better,
            (_, _, Some(ratio)) if ratio < (1.0 - tolerance).min(1.0 / noise) => Verdict::Worse,
            (_, _, Some(ratio)) if ratio > (1.0 / (1.0 - tolerance)).max(noise) => Verdict::Better,
            _ => Verdict::Same,
        };
        if let [Some(old), Some(new)] = runs.each_ref().map(|(_, it)| it.cell(&name.0, &name.1)) {
            costs.extend(COSTS.iter().filter_map(|it| it.compare(&name, [old, new], tolerance)));
        }
        changes.push(Change { measure, subject: name.1, old, new, ratio, noise, verdict });
    }
    Comparison { tolerance, notes: notes(old, new), changes, costs }
}

/// Whether a complete run with the work and the subject of this figure has it, too.
fn should_have(run: &Results, figure: &Summary) -> bool {
    let work = figure.measure.split('.').next().unwrap_or_default();
    run.partial.is_none()
        && run.settings.works.iter().any(|it| it == work)
        && run.subjects.iter().any(|it| it.name == figure.subject)
}

/// Measures and subjects with wrong data.
fn wrong_data(results: &Results) -> BTreeSet<(String, String)> {
    let wrong = failures(results).into_iter().filter(|line| line.wrong_data);
    wrong.map(|line| (line.measure, line.subject)).collect()
}

/// How many deviations chance explains: two, as for 95 % of normal values.
const DEVIATIONS: f64 = 2.0;

/// From how many rounds on a spread says something.
const ENOUGH: usize = 4;

/// Φ⁻¹(3/4) twice: distance of the quartiles of normal values in standard deviations.
const QUARTILES_TO_SIGMA: f64 = 1.349;

/// Factor that chance explains: two deviations of single rounds of both runs (not of their
/// medians, since from run to run more changes than from round to round), but at least what
/// either run's control shows.
fn noise(runs: &[(&Results, Index<'_>); 2], measure: &str, subject: &str) -> f64 {
    let [old, new] = runs.each_ref().map(|(_, index)| index.values(measure, subject));
    let controls = runs.iter().filter_map(|(results, index)| Noise::of(results, index));
    let controls = controls.map(|noise| noise.factor(measure));
    controls.fold(spread_of_both(&old, &new), f64::max)
}

/// Factor that two deviations of single rounds of both runs explain.
fn spread_of_both(old: &[f64], new: &[f64]) -> f64 {
    let deviation = |values: &[f64]| {
        let spread = Spread::of(values).filter(|_| values.len() >= ENOUGH);
        // From nothing to something it is infinite; of nothing alone, NaN.
        let deviation = spread.map(|it| (it.high / it.low).ln() / QUARTILES_TO_SIGMA);
        deviation.filter(|deviation| !deviation.is_nan()).unwrap_or(0.0)
    };
    (DEVIATIONS * deviation(old).hypot(deviation(new))).exp()
}

/// What differs between two runs besides their figures.
fn notes(old: &Results, new: &Results) -> Vec<String> {
    let mut notes = Vec::new();
    for (which, run) in [("old", old), ("new", new)] {
        if let Some(why) = &run.partial {
            notes.push(format!("The {which} run is not complete: {why}."));
        }
        if run.settings.rounds < ENOUGH as u32 {
            let few = "has too few rounds to know its noise: a difference may be chance.";
            notes.push(format!("The {which} run {few}"));
        }
    }
    // A figure of a work or a subject that one run does not have is not compared.
    let subjects = |run: &Results| {
        let names: Vec<&str> = run.subjects.iter().map(|subject| &*subject.name).collect();
        names.join(", ")
    };
    let works = |run: &Results| run.settings.works.join(", ");
    let parts =
        [("works", works(old), works(new)), ("subjects", subjects(old), subjects(new))].into_iter();
    // Older files have no quantities.
    let of_works = new.settings.quantities.iter().filter_map(|(name, now)| {
        let before = old.settings.quantities.get(name)?;
        Some((name.as_str(), before.to_string(), now.to_string()))
    });
    let others = circumstances(old).into_iter().zip(circumstances(new));
    let others = others.map(|((what, before), (_, now))| (what, before, now));
    let shown = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    for (what, before, now) in
        parts.chain(of_works).chain(others).filter(|(_, before, now)| before != now)
    {
        notes.push(format!("{what}: {} → {}", shown(before), shown(now)));
    }
    notes
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut changes: Vec<&Change> =
            self.changes.iter().filter(|change| change.verdict != Verdict::Same).collect();
        changes.sort_by_key(|change| change.verdict);
        for change in &changes {
            let scale = units::scale(change.measure.unit);
            let shown =
                |value: Option<f64>| value.map_or("–".to_owned(), |value| scale.show(value));
            let name = printable(&format!("{} of {}", change.measure.id, change.subject));
            let values = format!("{} → {} {}", shown(change.old), shown(change.new), scale.short);
            let ratio = change.ratio.map_or(String::new(), units::ratio);
            let noise = units::percent(change.noise - 1.0);
            let verdict = change.verdict.words();
            writeln!(f, "{verdict:<10} {name:<38} {values:<22} {ratio:>7}  noise {noise}")?;
        }
        let same = self.changes.len() - changes.len();
        writeln!(f, "the same within noise and tolerance: {same} of {}", self.changes.len())?;
        let costs: Vec<&CostChange> = self.costs.iter().filter(|cost| !cost.is_same).collect();
        if !costs.is_empty() {
            writeln!(f, "\ncosts, for as many operations as in the old run:")?;
        }
        for change in &costs {
            let verdict = if change.new > change.old { "more" } else { "less" };
            let name = printable(&format!("{} of {}", change.measure, change.subject));
            let [old, new] = [change.old, change.new].map(units::significant);
            let values = format!("{old} → {new} {}", change.unit);
            let cost = change.cost;
            let noise = units::percent(change.noise - 1.0);
            writeln!(f, "{verdict:<5} {name:<36} {cost:<22} {values:<20}  noise {noise}")?;
        }
        let same = self.costs.len() - costs.len();
        writeln!(f, "costs that are the same: {same} of {}", self.costs.len())?;
        if !self.notes.is_empty() {
            writeln!(f, "\nnot the same in both runs:")?;
        }
        for note in &self.notes {
            writeln!(f, "  {}", printable(note))?;
        }
        let regressions = units::counted(self.regressions().count() as u64, "regression");
        writeln!(f, "\n{regressions} of sshoal past {}", units::percent(self.tolerance))
    }
}

#[cfg(test)]
mod tests;
