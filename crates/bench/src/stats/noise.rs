//! What chance does, as the control shows it: the same subject measured twice in each round.

use std::collections::BTreeMap;

use crate::results::Results;

use super::Index;
use super::spread::{median, median_interval, quantile};

/// From how many ratios on their 95th percentile is one; below, the greatest is taken.
const ENOUGH: usize = 20;

/// By how much a control and its original differ, though they are the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    typical: f64,
    of_measures: BTreeMap<String, OfMeasure>,
}

#[derive(Clone, Debug, PartialEq)]
struct OfMeasure {
    factor: f64,
    /// Median ratio of its rounds, if all of its interval is on one side of 1.
    one_sided: Option<f64>,
}

impl Noise {
    /// From all subjects that are a control of another; `None` without one that has samples.
    ///
    /// The noise of a measure is the 95th percentile of `|ln ratio|` of its rounds, and at least
    /// the median of that over all measures: six rounds can agree by chance.
    pub fn of(results: &Results, index: &Index<'_>) -> Option<Noise> {
        let controls: Vec<(&str, &str)> = results
            .subjects
            .iter()
            .filter_map(|subject| Some((subject.name.as_str(), subject.control_of.as_deref()?)))
            .collect();
        let mut of_measures = BTreeMap::new();
        for measure in &results.measures {
            let ratios: Vec<f64> = controls
                .iter()
                .flat_map(|&(control, original)| index.ratios(measure, control, original))
                .collect();
            if let Some(own) = OfMeasure::of(&ratios) {
                of_measures.insert(measure.id.clone(), own);
            }
        }
        let factors: Vec<f64> = of_measures.values().map(|own| own.factor).collect();
        Some(Noise { typical: median(&factors)?, of_measures })
    }

    /// The median over all measures. Ratios between its inverse and itself mean nothing. At least 1.
    pub fn typical(&self) -> f64 {
        self.typical
    }

    /// The same for one measure; at least the typical one.
    pub fn factor(&self, measure: &str) -> f64 {
        self.of_measures.get(measure).map_or(self.typical, |own| own.factor.max(self.typical))
    }

    /// Whether a ratio of this measure is farther from 1 than chance brings it.
    pub fn exceeded(&self, measure: &str, ratio: f64) -> bool {
        exceeds(ratio, self.factor(measure))
    }

    /// Measures in which the control is on one side of 1, by more than the typical noise, with its
    /// median ratio: there something else than chance is at work.
    pub fn off(&self) -> Vec<(&str, f64)> {
        self.of_measures
            .iter()
            .filter_map(|(id, own)| Some((id.as_str(), own.one_sided?)))
            .filter(|&(_, ratio)| exceeds(ratio, self.typical))
            .collect()
    }
}

impl OfMeasure {
    fn of(ratios: &[f64]) -> Option<OfMeasure> {
        let interval = median_interval(ratios)?;
        let one_sided = interval.low > 1.0 || interval.high < 1.0;
        Some(OfMeasure { factor: factor(ratios)?, one_sided: median(ratios).filter(|_| one_sided) })
    }
}

/// By more than what rounding makes of two that are equal.
fn exceeds(ratio: f64, factor: f64) -> bool {
    ratio.ln().abs() > factor.ln() + 1e-9
}

fn factor(ratios: &[f64]) -> Option<f64> {
    let mut distances: Vec<f64> = ratios.iter().map(|ratio| ratio.ln().abs()).collect();
    distances.sort_by(f64::total_cmp);
    let q = if distances.len() >= ENOUGH { 0.95 } else { 1.0 };
    quantile(&distances, q).map(f64::exp)
}
