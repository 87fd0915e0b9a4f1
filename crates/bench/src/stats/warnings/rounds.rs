//! What the rounds show when they are looked at one by one: two groups of values, or a drift.

use crate::results::Results;
use crate::stats::{Index, median, ratio_of};
use crate::units;

use super::{cells, examples, figure};

/// Change over the rounds, of the typical figure, that is called a trend.
const TREND: f64 = 0.05;

/// Figures that a statement about the rounds of the whole run needs.
const LEAST_FIGURES: usize = 8;

/// Rounds that a statement about a trend needs.
const LEAST_FOR_TREND: usize = 4;

/// Rounds that a statement about two groups of values needs.
const LEAST_FOR_GROUPS: usize = 6;

pub(super) fn of_groups(results: &Results, index: &Index<'_>) -> Option<String> {
    let found: Vec<String> = cells(results, index)
        .filter_map(|(measure, subject, values)| {
            let (low, high) = two_groups(&values)?;
            let (low, high) = (units::significant(low), units::significant(high));
            Some(format!("{} ({low} or {high})", figure(measure, subject)))
        })
        .collect();
    (!found.is_empty()).then(|| {
        format!(
            "Values fall into two groups, with nothing between, in {}. The median then says little: \
             look for a cause with two states, such as the CPU's frequency or which CPUs client \
             and server got (taskset).",
            examples(&found)
        )
    })
}

/// Medians of two groups of at least two values each, if the gap between them is at least a fifth
/// and three times the width of either.
fn two_groups(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < LEAST_FOR_GROUPS || values.iter().any(|&value| value <= 0.0) {
        return None;
    }
    let mut logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    logs.sort_by(f64::total_cmp);
    let gap = |at: usize| logs[at] - logs[at - 1];
    let at = (2..=logs.len() - 2).max_by(|&a, &b| gap(a).total_cmp(&gap(b)))?;
    let (low, high) = logs.split_at(at);
    let width = |group: &[f64]| group[group.len() - 1] - group[0];
    let apart = gap(at) > 1.2_f64.ln() && gap(at) > 3.0 * width(low).max(width(high));
    let middle = |group: &[f64]| median(group).map(f64::exp);
    apart.then(|| Some((middle(low)?, middle(high)?)))?
}

pub(super) fn of_drift(results: &Results, index: &Index<'_>) -> Option<String> {
    let effects = round_effects(results, index)?;
    let (first, last) = (*effects.first()?, *effects.last()?);
    let monotone = |less: fn(&f64, &f64) -> bool| effects.windows(2).all(|w| less(&w[0], &w[1]));
    let change = (last - first).exp() - 1.0;
    if effects.len() >= LEAST_FOR_TREND && change.abs() > TREND {
        if monotone(|a, b| a > b) {
            return Some(format!(
                "Everything became slower from round to round, by {} in all: the CPU may be \
                 throttled by heat. Let it cool, fix its frequency, and repeat.",
                units::percent(-change)
            ));
        }
        if monotone(|a, b| a < b) {
            return Some(format!(
                "Everything became faster from round to round, by {} in all: the machine was \
                 still warming up, or something else was ending. Repeat, with more rounds.",
                units::percent(change)
            ));
        }
    }
    let rest = median(&effects[1..])?;
    let slow = rest - first;
    let steady = effects[1..].iter().all(|effect| (effect - rest).abs() < slow / 2.0);
    (effects.len() >= 3 && slow.exp() - 1.0 > TREND && steady).then(|| {
        format!(
            "The first round was slower than the others by {}: disk or server were still warming \
             up. With more rounds (--rounds) it weighs less.",
            units::percent(slow.exp() - 1.0)
        )
    })
}

/// For each round, by how much (as a logarithm, above 0 is better) the typical figure was better
/// than its own median. Only of figures that have all rounds; `None` when they are too few.
fn round_effects(results: &Results, index: &Index<'_>) -> Option<Vec<f64>> {
    let rounds = results.settings.rounds as usize;
    let mut by_round: Vec<Vec<f64>> = vec![Vec::new(); rounds];
    for measure in &results.measures {
        for subject in &results.subjects {
            let values = index.values(&measure.id, &subject.name);
            let Some(middle) = median(&values).filter(|_| values.len() == rounds) else { continue };
            let better = |&value: &f64| ratio_of(value, middle, measure.unit).map(f64::ln);
            let Some(logs) = values.iter().map(better).collect::<Option<Vec<f64>>>() else {
                continue;
            };
            by_round.iter_mut().zip(logs).for_each(|(round, log)| round.push(log));
        }
    }
    if by_round.first()?.len() < LEAST_FIGURES {
        return None;
    }
    by_round.iter().map(|logs| median(logs)).collect()
}
