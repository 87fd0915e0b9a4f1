//! Samples by measure and subject.

use std::collections::{BTreeMap, HashMap};

use crate::measure::{Measure, Unit};
use crate::results::{Measured, Outcome, Results, Sample};

use super::ratio::ratio_of;

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
    #[must_use]
    pub fn of(results: &'a Results) -> Index<'a> {
        let mut by_measure: HashMap<&str, HashMap<&str, Cell<'a>>> = HashMap::new();
        for sample in &results.samples {
            let by_subject = by_measure.entry(&sample.measure).or_default();
            by_subject.entry(&sample.subject).or_default().add(sample);
        }
        Index { by_measure }
    }

    /// What was sampled of one measure of one subject, if it ever was.
    #[must_use]
    pub fn cell(&self, measure: &str, subject: &str) -> Option<&Cell<'a>> {
        self.by_measure.get(measure)?.get(subject)
    }

    /// The values of one measure of one subject, in the order of the rounds.
    #[must_use]
    pub fn values(&self, measure: &str, subject: &str) -> Vec<f64> {
        self.cell(measure, subject).map(Cell::values).unwrap_or_default()
    }

    /// How many times better `subject` was than `reference`, for each round that has both.
    #[must_use]
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

    /// Rounds and values.
    pub fn rounds(&self) -> impl Iterator<Item = (u32, f64)> {
        self.measured.iter().map(|(&round, measured)| (round, measured.value))
    }

    /// The values, in the order of the rounds.
    #[must_use]
    pub fn values(&self) -> Vec<f64> {
        self.measured().map(|measured| measured.value).collect()
    }

    /// How many samples have no value.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.failed
    }

    fn ratios_to(&self, reference: &Cell<'_>, unit: Unit) -> Vec<f64> {
        let both = self.rounds().filter_map(|(round, value)| {
            let theirs = reference.measured.get(&round)?.value;
            ratio_of(value, theirs, unit)
        });
        both.collect()
    }
}
