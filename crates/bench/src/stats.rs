//! Medians, spreads, ratios, and what chance can do.
//!
//! The rules, so that no figure claims more than its rounds can carry:
//! 1. Figures are medians; spreads are quartiles. Nothing assumes a normal distribution.
//! 2. Ratios are taken within a round, between samples that were measured close to each other,
//!    and above 1 is better whatever the unit.
//! 3. An interval is made of order statistics, so its level is exact. Where the rounds do not
//!    suffice for 95 %, it is the range of the rounds with the level that this has; below four
//!    rounds no level is claimed.
//! 4. A difference counts when all of the interval lies on one side of 1 and the ratio is beyond
//!    what the control (the same subject twice) shows. Without a control none counts.
//! 5. Values that are not finite numbers are failures.

mod failures;
mod index;
mod noise;
mod ratio;
mod spread;
mod warnings;

use crate::measure::Measure;
use crate::results::{Measured, Results, Summary, Usage};

pub use failures::{FailureLine, failures};
pub use index::Index;
pub use noise::Noise;
pub use ratio::{compare_in_rounds, ratio_of};
pub use spread::{Interval, Spread, median, median_interval, outliers, quantile};
pub use warnings::warnings;

/// What the samples say: one summary for each measure and subject that has any, in the order of
/// the measures, then of the subjects.
#[must_use]
pub fn summarize(results: &Results) -> Vec<Summary> {
    let index = Index::of(results);
    let noise = Noise::of(results, &index);
    let mut summaries = Vec::new();
    for measure in &results.measures {
        for subject in &results.subjects {
            summaries.extend(summary(results, &index, noise.as_ref(), measure, &subject.name));
        }
    }
    summaries
}

fn summary(
    results: &Results,
    index: &Index<'_>,
    noise: Option<&Noise>,
    measure: &Measure,
    subject: &str,
) -> Option<Summary> {
    let cell = index.cell(&measure.id, subject)?;
    let values = cell.values();
    let spread = Spread::of(&values).unwrap_or_default();
    let reference = &results.settings.reference;
    let ratio = (subject != reference)
        .then(|| compare_in_rounds(index, noise, measure, subject, reference))
        .flatten();
    let taken: Vec<&Measured> = cell.measured().collect();
    let cost = |of: fn(&Measured) -> Option<Usage>, per: fn(&Measured) -> f64| {
        median_cost(&taken, of, per)
    };
    Some(Summary {
        measure: measure.id.clone(),
        subject: subject.to_owned(),
        n: count(values.len()),
        failed: count(cell.failed()),
        median: spread.median,
        low: spread.low,
        high: spread.high,
        min: spread.min,
        max: spread.max,
        ratio,
        client_cpu_s_per_gb: cost(client, gigabytes),
        server_cpu_s_per_gb: cost(server, gigabytes),
        client_cpu_s_per_kop: cost(client, thousands),
        server_cpu_s_per_kop: cost(server, thousands),
        peak_memory_bytes: taken
            .iter()
            .map(|sample| sample.client.peak_memory_bytes)
            .max()
            .filter(|&bytes| bytes > 0),
    })
}

fn client(sample: &Measured) -> Option<Usage> {
    Some(sample.client)
}

fn server(sample: &Measured) -> Option<Usage> {
    sample.server
}

fn gigabytes(sample: &Measured) -> f64 {
    sample.bytes as f64 / 1e9
}

fn thousands(sample: &Measured) -> f64 {
    sample.operations as f64 / 1e3
}

/// Median of CPU seconds for one of `per`, over the samples where that means something.
fn median_cost(
    samples: &[&Measured],
    of: fn(&Measured) -> Option<Usage>,
    per: fn(&Measured) -> f64,
) -> Option<f64> {
    let costs: Vec<f64> = samples
        .iter()
        .filter_map(|sample| {
            let usage = of(sample)?;
            let amount = per(sample);
            (amount > 0.0).then(|| (usage.user_s + usage.system_s) / amount)
        })
        .collect();
    median(&costs)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
