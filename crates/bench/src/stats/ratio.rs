//! How many times better one subject is than another.

use crate::measure::{Measure, Unit};
use crate::results::Ratio;

use super::noise::Noise;
use super::spread::{median, median_interval};
use super::{Index, count};

/// From how many rounds on a difference can count.
const LEAST_ROUNDS: usize = 3;

/// How many times better `value` is than `reference`; above 1 is better, whatever the unit.
/// `None` unless both are above 0.
#[must_use]
pub fn ratio_of(value: f64, reference: f64, unit: Unit) -> Option<f64> {
    let ratio = if unit.more_is_better() { value / reference } else { reference / value };
    (value > 0.0 && reference > 0.0 && ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// One subject against another, round by round. `None` when no round has both.
///
/// It is significant when there are at least three rounds, the whole interval is on one side of 1,
/// and the median is beyond the control's noise.
#[must_use]
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
