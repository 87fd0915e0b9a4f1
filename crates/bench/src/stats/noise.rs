//! What chance does, as the control shows it: the same subject measured twice in each round.

use std::collections::BTreeMap;

use crate::results::Results;

use super::Index;
use super::spread::{median, quantile};

/// From how many ratios on their 95th percentile is one; below, the greatest is taken.
const ENOUGH: usize = 20;

/// By how much a control and its original differ, though they are the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    overall: f64,
    of_measures: BTreeMap<String, OfMeasure>,
    ratios: usize,
}

#[derive(Clone, Debug, PartialEq)]
struct OfMeasure {
    factor: f64,
    /// Of the ratios of its rounds; 1 if there were no noise.
    median: f64,
}

impl Noise {
    /// From all subjects that are a control of another; `None` without one that has samples.
    ///
    /// The noise of the run is the 95th percentile of `|ln ratio|` of all rounds of all measures.
    /// A measure with twenty rounds or more has its own; one with fewer takes the run's, or its
    /// own median if that is greater.
    pub fn of(results: &Results, index: &Index<'_>) -> Option<Noise> {
        let controls: Vec<(&str, &str)> = results
            .subjects
            .iter()
            .filter_map(|subject| Some((subject.name.as_str(), subject.control_of.as_deref()?)))
            .collect();
        let mut by_measure: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for measure in &results.measures {
            for &(control, original) in &controls {
                let ratios = index.ratios(measure, control, original);
                by_measure.entry(measure.id.clone()).or_default().extend(ratios);
            }
        }
        by_measure.retain(|_, ratios| !ratios.is_empty());
        let all: Vec<f64> = by_measure.values().flatten().copied().collect();
        let overall = factor(&all)?;
        let of_measures = by_measure
            .into_iter()
            .filter_map(|(id, ratios)| Some((id, OfMeasure::of(&ratios, overall)?)))
            .collect();
        Some(Noise { overall, of_measures, ratios: all.len() })
    }

    /// Of the whole run: ratios between its inverse and itself mean nothing. At least 1.
    pub fn overall(&self) -> f64 {
        self.overall
    }

    /// The same for one measure.
    pub fn factor(&self, measure: &str) -> f64 {
        self.of_measures.get(measure).map_or(self.overall, |own| own.factor)
    }

    /// Whether a ratio of this measure is farther from 1 than chance brings it.
    pub fn exceeded(&self, measure: &str, ratio: f64) -> bool {
        exceeds(ratio, self.factor(measure))
    }

    /// On how many ratios it rests.
    pub fn ratios(&self) -> usize {
        self.ratios
    }

    /// Measures in which the control's median differs from 1 by more than the run's noise, with
    /// that median: there something else than chance is at work.
    pub fn off(&self) -> Vec<(&str, f64)> {
        let off = self.of_measures.iter().filter(|(_, own)| exceeds(own.median, self.overall));
        off.map(|(id, own)| (id.as_str(), own.median)).collect()
    }
}

impl OfMeasure {
    fn of(ratios: &[f64], overall: f64) -> Option<OfMeasure> {
        let median = median(ratios)?;
        let distance = median.ln().abs().exp();
        let base = if ratios.len() >= ENOUGH { factor(ratios)? } else { overall };
        Some(OfMeasure { factor: base.max(distance), median })
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
