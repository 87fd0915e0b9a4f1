//! The ranking of the subjects over all measures.

use crate::measure::Measure;
use crate::results::{Ratio, SubjectInfo};
use crate::stats::{compare_in_rounds, median};
use crate::units;

use super::view::{View, competes};

/// The subjects, and what a table shows of each over all measures:
/// in how many of those that it has no competitor is better; in how many of them the difference to
/// the second is significant; in how many it is significantly better and worse than the reference,
/// and in how many the difference may be chance; the median of its ratios to the reference; samples
/// without a value.
pub(super) fn ranks<'v>(view: &'v View<'_>) -> Vec<(&'v SubjectInfo, [String; 7])> {
    let best: Vec<Best<'_>> =
        view.results.measures.iter().filter_map(|measure| best_of(view, measure)).collect();
    view.results.subjects.iter().map(|subject| (subject, rank(view, subject, &best))).collect()
}

fn rank(view: &View<'_>, subject: &SubjectInfo, best: &[Best<'_>]) -> [String; 7] {
    let of_subject = || view.summaries.iter().filter(|s| s.subject == subject.name);
    let ratios: Vec<&Ratio> = of_subject().filter_map(|s| s.ratio.as_ref()).collect();
    let typical = median(&ratios.iter().map(|ratio| ratio.value).collect::<Vec<_>>());
    let wins = || best.iter().filter(|best| best.subject == subject.name);
    let measured = of_subject().filter(|s| s.n > 0).count();
    let none = || "–".to_owned();
    let of_rivals = |count: String| if competes(subject) { count } else { none() };
    let of_ratios = |wanted: fn(&Ratio) -> bool| {
        let count = ratios.iter().filter(|ratio| wanted(ratio)).count();
        typical.map_or_else(none, |_| count.to_string())
    };
    [
        of_rivals(format!("{} of {measured}", wins().count())),
        of_rivals(wins().filter(|best| best.clearly).count().to_string()),
        of_ratios(|ratio| ratio.significant && ratio.value > 1.0),
        of_ratios(|ratio| ratio.significant && ratio.value < 1.0),
        of_ratios(|ratio| !ratio.significant),
        typical.map_or_else(none, units::ratio),
        of_subject().map(|s| s.failed).sum::<u32>().to_string(),
    ]
}

struct Best<'v> {
    subject: &'v str,
    clearly: bool,
}

/// The competitors of a measure, the best first.
fn ranking<'v>(view: &'v View<'_>, measure: &Measure) -> Vec<(&'v str, f64)> {
    let values = view.results.subjects.iter().filter(|s| competes(s)).filter_map(|subject| {
        let summary = view.summary(&measure.id, &subject.name).filter(|s| s.n > 0)?;
        Some((subject.name.as_str(), summary.spread.median))
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
