//! The ranking of the subjects over all measures.

use crate::measure::Measure;
use crate::plan::is_ours;
use crate::results::{Ratio, SubjectInfo};
use crate::stats::{compare_in_rounds, median};
use crate::units;

use super::view::{View, competes};

/// Comparisons that are listed in each direction.
const NAMED: usize = 5;

/// One subject in all measures.
pub(super) struct Rank<'v> {
    pub(super) subject: &'v SubjectInfo,
    /// Measures in which it has a value.
    pub(super) measured: usize,
    /// Measures in which no competitor has a better median.
    pub(super) best: usize,
    /// Measures in which it is best and the difference to the second is significant.
    pub(super) clearly_best: usize,
    /// Measures in which it is significantly better than the reference.
    pub(super) better: usize,
    /// Measures in which it is significantly worse.
    pub(super) worse: usize,
    /// Measures in which the difference may be chance.
    pub(super) even: usize,
    /// Median of its ratios to the reference.
    pub(super) typical: Option<f64>,
    /// Samples without a value.
    pub(super) failed: u32,
}

impl Rank<'_> {
    /// For a table: best in, clearly best, better, worse, even, typical, failed.
    pub(super) fn cells(&self) -> [String; 7] {
        let none = || "–".to_owned();
        let of_rivals = |count: String| if competes(self.subject) { count } else { none() };
        let of_ratios = |count: usize| self.typical.map_or_else(none, |_| count.to_string());
        [
            of_rivals(format!("{} of {}", self.best, self.measured)),
            of_rivals(self.clearly_best.to_string()),
            of_ratios(self.better),
            of_ratios(self.worse),
            of_ratios(self.even),
            self.typical.map_or_else(none, units::ratio),
            self.failed.to_string(),
        ]
    }
}

/// A subject against the best of the others in one measure.
pub(super) struct Comparison<'v> {
    pub(super) measure: &'v Measure,
    pub(super) rival: &'v str,
    pub(super) ratio: Ratio,
}

/// The ranks of all subjects.
pub(super) fn ranks<'v>(view: &'v View<'_>) -> Vec<Rank<'v>> {
    let best: Vec<Best<'_>> =
        view.results.measures.iter().filter_map(|measure| best_of(view, measure)).collect();
    view.results.subjects.iter().map(|subject| rank(view, subject, &best)).collect()
}

fn rank<'v>(view: &'v View<'_>, subject: &'v SubjectInfo, best: &[Best<'_>]) -> Rank<'v> {
    let of_subject = || view.summaries.iter().filter(|s| s.subject == subject.name);
    let ratios: Vec<&Ratio> = of_subject().filter_map(|s| s.ratio.as_ref()).collect();
    let counts = |wanted: fn(&Ratio) -> bool| ratios.iter().filter(|ratio| wanted(ratio)).count();
    let wins = || best.iter().filter(|best| best.subject == subject.name);
    Rank {
        subject,
        measured: of_subject().filter(|s| s.n > 0).count(),
        best: wins().count(),
        clearly_best: wins().filter(|best| best.clearly).count(),
        better: counts(|ratio| ratio.significant && ratio.value > 1.0),
        worse: counts(|ratio| ratio.significant && ratio.value < 1.0),
        even: counts(|ratio| !ratio.significant),
        typical: median(&ratios.iter().map(|ratio| ratio.value).collect::<Vec<_>>()),
        failed: of_subject().map(|s| s.failed).sum(),
    }
}

struct Best<'v> {
    subject: &'v str,
    clearly: bool,
}

/// The competitors of a measure, the best first.
fn ranking<'v>(view: &'v View<'_>, measure: &Measure) -> Vec<(&'v str, f64)> {
    let values = view.results.subjects.iter().filter(|s| competes(s)).filter_map(|subject| {
        let summary = view.summary(&measure.id, &subject.name).filter(|s| s.n > 0)?;
        Some((subject.name.as_str(), summary.median))
    });
    let mut ranking: Vec<(&str, f64)> = values.collect();
    ranking.sort_by(|a, b| {
        let less_first = a.1.total_cmp(&b.1);
        if measure.unit.more_is_better() { less_first.reverse() } else { less_first }
    });
    ranking
}

/// The best competitor in a measure that at least two have.
fn best_of<'v>(view: &'v View<'_>, measure: &Measure) -> Option<Best<'v>> {
    let ranking = ranking(view, measure);
    let [(first, _), (second, _), ..] = *ranking else { return None };
    let ratio = compare_in_rounds(&view.index, view.noise.as_ref(), measure, first, second);
    let clearly = ratio.is_some_and(|ratio| ratio.significant && ratio.value > 1.0);
    Some(Best { subject: first, clearly })
}

/// The measures in which a subject is farthest ahead of the best other, and farthest behind; at most
/// [`NAMED`] of each. Variants of one program are not compared with each other.
pub(super) fn extremes<'v>(
    view: &'v View<'_>,
    subject: &str,
) -> (Vec<Comparison<'v>>, Vec<Comparison<'v>>) {
    let mut comparisons: Vec<Comparison<'v>> = view
        .results
        .measures
        .iter()
        .filter_map(|measure| {
            let family = |name: &str| name.split(':').next() == subject.split(':').next();
            let rivals = ranking(view, measure);
            let (rival, _) = *rivals.iter().find(|(name, _)| !family(name))?;
            let noise = view.noise.as_ref();
            let ratio = compare_in_rounds(&view.index, noise, measure, subject, rival)?;
            Some(Comparison { measure, rival, ratio })
        })
        .collect();
    comparisons.sort_by(|a, b| b.ratio.value.total_cmp(&a.ratio.value));
    let behind = comparisons.iter().rposition(|comparison| comparison.ratio.value >= 1.0);
    let mut losses = comparisons.split_off(behind.map_or(0, |at| at + 1));
    losses.reverse();
    losses.truncate(NAMED);
    comparisons.truncate(NAMED);
    (comparisons, losses)
}

/// The subject that the report is about: `sshoal`, or its first variant.
pub(super) fn ours<'v>(view: &'v View<'_>) -> Option<&'v SubjectInfo> {
    view.results.subjects.iter().find(|s| s.name == "sshoal").or_else(|| {
        let variant = |s: &&SubjectInfo| is_ours(&s.name) && s.control_of.is_none();
        view.results.subjects.iter().find(variant)
    })
}
