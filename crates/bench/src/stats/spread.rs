//! One set of values: its middle, its width, and how sure the middle is.

use serde::{Deserialize, Serialize};

/// From how many values on an interval's level is claimed at all.
const LEAST_FOR_LEVEL: usize = 4;

/// What an interval should have.
const WANTED_LEVEL: f64 = 0.95;

/// Middle and width of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half are at most this.
    pub median: f64,
    /// First quartile.
    pub low: f64,
    /// Third quartile.
    pub high: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    /// Of values in any order, all finite; `None` of none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let sorted = sorted(values);
        Some(Spread {
            median: quantile(&sorted, 0.5)?,
            low: quantile(&sorted, 0.25)?,
            high: quantile(&sorted, 0.75)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }

    /// Distance of the quartiles as a part of the median; 0 where the median is 0.
    pub fn relative(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.high - self.low) / self.median.abs() }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The quantile `q` (0 to 1) of values in ascending order, interpolated between neighbours:
/// Hyndman and Fan's type 7, the default of R and NumPy. `None` of no values.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = last as f64 * q.clamp(0.0, 1.0);
    // Within 0..=last, so nothing is cut off.
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (place - below as f64) * (sorted[above] - sorted[below]))
}

/// Of values in any order; `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

/// Where the true median is likely to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that the true median is within, exact for independent values of any
    /// distribution. `None` below four values: then the ends are just the least and the greatest.
    pub level: Option<f64>,
}

/// The interval of the median of values in any order, by order statistics: the narrowest pair of
/// the k-th least and k-th greatest value with a level of at least 95 %. Below six values there is
/// none, and it is their range with the level which that has. `None` of no values.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let sorted = sorted(values);
    let n = sorted.len();
    let mut interval = Interval {
        low: *sorted.first()?,
        high: *sorted.last()?,
        level: (n >= LEAST_FOR_LEVEL).then(|| level_of(n, 1)),
    };
    for k in 2..=n / 2 {
        let level = level_of(n, k);
        if level < WANTED_LEVEL {
            break;
        }
        interval = Interval { low: sorted[k - 1], high: sorted[n - k], level: Some(level) };
    }
    Some(interval)
}

/// 1 - 2·P(X < k) for X of the binomial distribution with n draws of one half.
fn level_of(n: usize, k: usize) -> f64 {
    let mut ln_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for i in 0..k {
        below += ln_term.exp();
        ln_term += ((n - i) as f64 / (i + 1) as f64).ln();
    }
    1.0 - 2.0 * below
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn quartiles_are_of_type_7() {
        // The example that tells the nine types apart: R's quantile(c(1,2,3,4), type = 7).
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(
            spread,
            Spread { median: 2.5, low: 1.75, high: 3.25, min: 1.0, max: 4.0 },
            "type 6 would say 1.25 and 3.75, type 5 1.5 and 3.5"
        );
        assert!(close(spread.relative(), 0.6));
        assert_eq!(Spread::of(&[]), None);
        let one = Spread::of(&[7.0]).unwrap();
        assert_eq!((one.low, one.median, one.high), (7.0, 7.0, 7.0));
    }

    #[test]
    fn levels_are_those_of_the_tables() {
        // Known from tables of the sign test: n, k, level.
        for (n, k, level) in [
            (6, 1, 0.96875),
            (8, 1, 0.9921875),
            (9, 2, 0.9609375),
            (10, 2, 0.978515625),
            (20, 6, 0.958610534667969),
        ] {
            assert!(close(level_of(n, k), level), "n {n}: {}", level_of(n, k));
            let values: Vec<f64> = (1..=n).map(|v| v as f64).collect();
            let interval = median_interval(&values).unwrap();
            assert_eq!((interval.low, interval.high), (k as f64, (n + 1 - k) as f64), "n {n}");
            assert!(close(interval.level.unwrap(), level), "n {n}");
        }
    }

    #[test]
    fn few_values_have_their_range_and_no_false_level() {
        let level = |values: &[f64]| median_interval(values).unwrap().level;
        assert_eq!(level(&[1.0]), None);
        assert_eq!(level(&[1.0, 2.0]), None);
        assert_eq!(level(&[1.0, 2.0, 3.0]), None);
        assert_eq!(level(&[1.0, 2.0, 3.0, 4.0]), Some(0.875));
        assert_eq!(level(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(0.9375));
        let three = median_interval(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((three.low, three.high), (1.0, 3.0));
        assert_eq!(median_interval(&[]), None);
    }
}
