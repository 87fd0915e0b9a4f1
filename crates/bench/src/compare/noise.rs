//! By how much a figure may differ between two runs though nothing has changed.

use std::collections::HashMap;

use crate::results::Results;
use crate::stats::{Index, Noise, Spread, median};

/// How many deviations chance explains: two, as for 95 % of normal values.
const DEVIATIONS: f64 = 2.0;

/// From how many rounds on a spread is that figure's own.
const ENOUGH: usize = 4;

/// Φ⁻¹(3/4) twice: distance of the quartiles of normal values in standard deviations.
const QUARTILES_TO_SIGMA: f64 = 1.349;

/// The noise between two runs.
pub(super) struct BetweenRuns<'a> {
    old: OneRun<'a>,
    new: OneRun<'a>,
}

struct OneRun<'a> {
    /// Deviation of the logarithm of single rounds, by measure and subject.
    deviations: HashMap<(&'a str, &'a str), f64>,
    /// Their median: what is taken for figures with few rounds.
    typical: Option<f64>,
    control: Option<Noise>,
}

impl<'a> BetweenRuns<'a> {
    pub(super) fn of(old: &'a Results, new: &'a Results) -> BetweenRuns<'a> {
        BetweenRuns { old: OneRun::of(old), new: OneRun::of(new) }
    }

    /// Factor that chance explains: two deviations of single rounds of both runs (not of their
    /// medians, since from run to run more changes than from round to round), but at least what
    /// either run's control shows.
    pub(super) fn factor(&self, measure: &str, subject: &str) -> f64 {
        let other = |run: &OneRun<'_>, other: &OneRun<'_>| {
            run.deviation(measure, subject).or(other.typical).unwrap_or(0.0)
        };
        let (old, new) = (other(&self.old, &self.new), other(&self.new, &self.old));
        let spread = (DEVIATIONS * old.hypot(new)).exp();
        let control = |run: &OneRun<'_>| run.control.as_ref().map_or(1.0, |c| c.factor(measure));
        spread.max(control(&self.old)).max(control(&self.new))
    }

    /// Whether nothing tells the noise: neither run has rounds enough or a control.
    pub(super) fn is_unknown(&self) -> bool {
        let unknown = |run: &OneRun<'_>| run.typical.is_none() && run.control.is_none();
        unknown(&self.old) && unknown(&self.new)
    }
}

impl<'a> OneRun<'a> {
    fn of(results: &'a Results) -> OneRun<'a> {
        let index = Index::of(results);
        let mut deviations = HashMap::new();
        for measure in &results.measures {
            for subject in &results.subjects {
                let values = index.values(&measure.id, &subject.name);
                if let Some(deviation) = deviation(&values) {
                    deviations.insert((measure.id.as_str(), subject.name.as_str()), deviation);
                }
            }
        }
        let all: Vec<f64> = deviations.values().copied().collect();
        OneRun { typical: median(&all), control: Noise::of(results, &index), deviations }
    }

    fn deviation(&self, measure: &str, subject: &str) -> Option<f64> {
        self.deviations.get(&(measure, subject)).copied().or(self.typical)
    }
}

/// Of the logarithms of the values, from their quartiles, so that one outlier does not count.
fn deviation(values: &[f64]) -> Option<f64> {
    if values.len() < ENOUGH || values.iter().any(|&value| value <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let spread = Spread::of(&logs)?;
    Some((spread.high - spread.low) / QUARTILES_TO_SIGMA)
}
