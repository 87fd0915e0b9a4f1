//! The summary at the top: who wins where, how often, and by how much.

use crate::measure::Measure;
use crate::plan::is_ours;
use crate::results::{Ratio, SubjectInfo};
use crate::stats::{compare_in_rounds, median};

use super::number;
use super::view::{View, competes};

/// How many wins and losses are named.
const NAMED: usize = 5;

/// How one subject did in all measures.
pub(super) struct Standing<'v> {
    pub(super) subject: &'v SubjectInfo,
    /// Measures in which it has a value.
    pub(super) measured: usize,
    /// Measures in which none that competes has a better median; 0 for one that does not compete.
    pub(super) best: usize,
    /// The same, and the difference to the second counts.
    pub(super) clearly_best: usize,
    /// Measures in which it is better than the reference, and it counts.
    pub(super) better: usize,
    /// Measures in which it is worse, and it counts.
    pub(super) worse: usize,
    /// Measures in which the two cannot be told apart.
    pub(super) even: usize,
    /// Median of its ratios to the reference.
    pub(super) typical: Option<f64>,
    /// Samples without a value.
    pub(super) failed: u32,
}

impl Standing<'_> {
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
            self.typical.map_or_else(none, number::ratio),
            self.failed.to_string(),
        ]
    }
}

/// One measure in which a subject meets the best of the others.
pub(super) struct Meeting<'v> {
    pub(super) measure: &'v Measure,
    pub(super) rival: &'v str,
    pub(super) ratio: Ratio,
}

/// Of all subjects.
pub(super) fn standings<'v>(view: &'v View<'_>) -> Vec<Standing<'v>> {
    let best: Vec<Best<'_>> =
        view.results.measures.iter().filter_map(|measure| best_of(view, measure)).collect();
    view.results.subjects.iter().map(|subject| standing(view, subject, &best)).collect()
}

fn standing<'v>(view: &'v View<'_>, subject: &'v SubjectInfo, best: &[Best<'_>]) -> Standing<'v> {
    let of_subject = || view.summaries.iter().filter(|s| s.subject == subject.name);
    let ratios: Vec<&Ratio> = of_subject().filter_map(|s| s.ratio.as_ref()).collect();
    let counts = |wanted: fn(&Ratio) -> bool| ratios.iter().filter(|ratio| wanted(ratio)).count();
    let wins = || best.iter().filter(|best| best.subject == subject.name);
    Standing {
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

/// Who is best in a measure that at least two can do.
fn best_of<'v>(view: &'v View<'_>, measure: &Measure) -> Option<Best<'v>> {
    let ranking = ranking(view, measure);
    let [(first, _), (second, _), ..] = *ranking else { return None };
    let ratio = compare_in_rounds(&view.index, view.noise.as_ref(), measure, first, second);
    let clearly = ratio.is_some_and(|ratio| ratio.significant && ratio.value > 1.0);
    Some(Best { subject: first, clearly })
}

/// Where a subject is farthest ahead of the best other, and where it is farthest behind, at most
/// five of each.
pub(super) fn extremes<'v>(
    view: &'v View<'_>,
    subject: &str,
) -> (Vec<Meeting<'v>>, Vec<Meeting<'v>>) {
    let mut meetings: Vec<Meeting<'v>> = view
        .results
        .measures
        .iter()
        .filter_map(|measure| {
            let family = |name: &str| name.split(':').next() == subject.split(':').next();
            let rivals = ranking(view, measure);
            let (rival, _) = *rivals.iter().find(|(name, _)| !family(name))?;
            let noise = view.noise.as_ref();
            let ratio = compare_in_rounds(&view.index, noise, measure, subject, rival)?;
            Some(Meeting { measure, rival, ratio })
        })
        .collect();
    meetings.sort_by(|a, b| b.ratio.value.total_cmp(&a.ratio.value));
    let behind = meetings.iter().rposition(|meeting| meeting.ratio.value >= 1.0);
    let mut losses = meetings.split_off(behind.map_or(0, |at| at + 1));
    losses.reverse();
    losses.truncate(NAMED);
    meetings.truncate(NAMED);
    (meetings, losses)
}

/// The subject that the report is about: `sshoal`, or its first variant.
pub(super) fn ours<'v>(view: &'v View<'_>) -> Option<&'v SubjectInfo> {
    view.results.subjects.iter().find(|s| s.name == "sshoal").or_else(|| {
        let variant = |s: &&SubjectInfo| is_ours(&s.name) && s.control_of.is_none();
        view.results.subjects.iter().find(variant)
    })
}
