//! Medians, spreads, ratios, and the differences that chance explains.
//!
//! The rules, so that no figure claims more than its rounds can support:
//! 1. Figures are medians; spreads are quartiles. Nothing assumes a normal distribution.
//! 2. Ratios are taken within a round, between samples that were measured close to each other,
//!    and above 1 is better for any unit.
//! 3. An interval is made of order statistics, so its level is exact. Where the rounds do not
//!    suffice for 95 %, it is the range of the rounds with the level that this has; below four
//!    rounds no level is claimed.
//! 4. A difference is significant when all of the interval lies on one side of 1 and the ratio is
//!    beyond that of the control (the reference measured twice). Without a control none is.
//! 5. Values that are not finite numbers are failures.

mod noise;
mod spread;
mod warnings;

use std::collections::{BTreeMap, HashMap};

use crate::failure::Failure;
use crate::measure::{Measure, Unit};
use crate::results::{Measured, Outcome, Ratio, Results, Sample, Summary, Usage};

pub use noise::Noise;
pub use spread::{Interval, Spread, median, median_interval, quantile};
pub use warnings::warnings;

/// One summary for each measure and subject with samples, in the order of the measures, then of
/// the subjects.
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
    let reference = &results.settings.reference;
    let ratio = (subject != reference)
        .then(|| compare_in_rounds(index, noise, measure, subject, reference))
        .flatten();
    let taken: Vec<&Measured> = cell.measured().collect();
    let client = |sample: &Measured| Some(sample.client);
    let server = |sample: &Measured| sample.server;
    let gigabytes = |sample: &Measured| sample.bytes as f64 / 1e9;
    let thousands = |sample: &Measured| sample.operations as f64 / 1e3;
    Some(Summary {
        measure: measure.id.clone(),
        subject: subject.to_owned(),
        n: count(values.len()),
        failed: count(cell.failed()),
        spread: Spread::of(&values).unwrap_or_default(),
        ratio,
        client_cpu_s_per_gb: median_cost(&taken, client, gigabytes),
        server_cpu_s_per_gb: median_cost(&taken, server, gigabytes),
        client_cpu_s_per_kop: median_cost(&taken, client, thousands),
        server_cpu_s_per_kop: median_cost(&taken, server, thousands),
        peak_memory_bytes: taken
            .iter()
            .map(|sample| sample.client.peak_memory_bytes)
            .max()
            .filter(|&bytes| bytes > 0),
    })
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

/// One reason for which samples of one measure of one subject are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureLine {
    /// [`crate::measure::Measure::id`].
    pub measure: String,
    /// [`crate::results::SubjectInfo::name`].
    pub subject: String,
    /// The failure's own words.
    pub why: String,
    /// In which it happened.
    pub rounds: Vec<u32>,
    /// The step was done, and the data were not what they had to be.
    pub wrong_data: bool,
}

/// All failures of a run: wrong data first, then in the order in which they happened.
pub fn failures(results: &Results) -> Vec<FailureLine> {
    let mut lines: Vec<FailureLine> = Vec::new();
    for sample in &results.samples {
        let (why, wrong_data) = match &sample.outcome {
            Outcome::Failed { failure } => {
                (failure.to_string(), matches!(failure, Failure::WrongData { .. }))
            }
            Outcome::Measured(measured) if !measured.value.is_finite() => {
                ("the value is not a number".to_owned(), false)
            }
            Outcome::Measured(_) => continue,
        };
        let same = |line: &&mut FailureLine| {
            line.measure == sample.measure && line.subject == sample.subject && line.why == why
        };
        match lines.iter_mut().find(same) {
            Some(line) => line.rounds.push(sample.round),
            None => lines.push(FailureLine {
                measure: sample.measure.clone(),
                subject: sample.subject.clone(),
                why,
                rounds: vec![sample.round],
                wrong_data,
            }),
        }
    }
    lines.sort_by_key(|line| !line.wrong_data);
    lines
}

/// The samples of a run, found by what they are samples of.
pub struct Index<'a> {
    by_measure: HashMap<&'a str, HashMap<&'a str, Cell<'a>>>,
}

/// The samples of one measure of one subject.
#[derive(Default)]
pub struct Cell<'a> {
    measured: BTreeMap<u32, &'a Measured>,
    failed: usize,
}

impl<'a> Index<'a> {
    /// Of all samples of a run.
    pub fn of(results: &'a Results) -> Index<'a> {
        let mut by_measure: HashMap<&str, HashMap<&str, Cell<'a>>> = HashMap::new();
        for sample in &results.samples {
            let by_subject = by_measure.entry(&sample.measure).or_default();
            by_subject.entry(&sample.subject).or_default().add(sample);
        }
        Index { by_measure }
    }

    /// What was sampled of one measure of one subject, if it ever was.
    pub fn cell(&self, measure: &str, subject: &str) -> Option<&Cell<'a>> {
        self.by_measure.get(measure)?.get(subject)
    }

    /// The values of one measure of one subject, in the order of the rounds.
    pub fn values(&self, measure: &str, subject: &str) -> Vec<f64> {
        self.cell(measure, subject).map(Cell::values).unwrap_or_default()
    }

    /// How many times better `subject` was than `reference`, for each round that has both.
    pub fn ratios(&self, measure: &Measure, subject: &str, reference: &str) -> Vec<f64> {
        let cells = (self.cell(&measure.id, subject), self.cell(&measure.id, reference));
        let (Some(ours), Some(theirs)) = cells else { return Vec::new() };
        ours.ratios_to(theirs, measure.unit)
    }
}

impl<'a> Cell<'a> {
    fn add(&mut self, sample: &'a Sample) {
        match &sample.outcome {
            Outcome::Measured(measured) if measured.value.is_finite() => {
                self.measured.insert(sample.round, measured);
            }
            Outcome::Measured(_) | Outcome::Failed { .. } => self.failed += 1,
        }
    }

    /// Samples with a value, in the order of the rounds.
    pub fn measured(&self) -> impl Iterator<Item = &'a Measured> {
        self.measured.values().copied()
    }

    /// Rounds and their samples with a value.
    pub fn rounds(&self) -> impl Iterator<Item = (u32, &'a Measured)> {
        self.measured.iter().map(|(&round, &measured)| (round, measured))
    }

    /// The values, in the order of the rounds.
    pub fn values(&self) -> Vec<f64> {
        self.measured().map(|measured| measured.value).collect()
    }

    /// How many samples have no value.
    pub fn failed(&self) -> usize {
        self.failed
    }

    fn ratios_to(&self, reference: &Cell<'_>, unit: Unit) -> Vec<f64> {
        let both = self.rounds().filter_map(|(round, measured)| {
            let theirs = reference.measured.get(&round)?.value;
            ratio_of(measured.value, theirs, unit)
        });
        both.collect()
    }
}

/// From how many rounds on a difference can count.
const LEAST_ROUNDS: usize = 3;

/// How many times better `value` is than `reference`; above 1 is better, for any unit.
/// `None` unless both are above 0.
pub fn ratio_of(value: f64, reference: f64, unit: Unit) -> Option<f64> {
    let ratio = if unit.more_is_better() { value / reference } else { reference / value };
    (value > 0.0 && reference > 0.0 && ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// One subject against another, round by round. `None` when no round has both.
///
/// It is significant when there are at least three rounds, the whole interval is on one side of 1,
/// and the median is beyond the control's noise.
pub fn compare_in_rounds(
    index: &Index<'_>,
    noise: Option<&Noise>,
    measure: &Measure,
    subject: &str,
    reference: &str,
) -> Option<Ratio> {
    let ratios = index.ratios(measure, subject, reference);
    let value = median(&ratios)?;
    let interval = median_interval(&ratios)?;
    let one_side = interval.low > 1.0 || interval.high < 1.0;
    let beyond = noise.is_some_and(|noise| noise.exceeded(&measure.id, value));
    Some(Ratio {
        to: reference.to_owned(),
        value,
        low: interval.low,
        high: interval.high,
        significant: ratios.len() >= LEAST_ROUNDS && one_side && beyond,
        n: count(ratios.len()),
        level: interval.level,
        noise: noise.map(|noise| noise.factor(&measure.id)),
    })
}

#[cfg(test)]
pub(crate) mod tests;
