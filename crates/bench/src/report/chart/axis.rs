//! Where values are on a line, and which of them have a mark.

/// From 0, linear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Linear {
    max: f64,
    from: f64,
    to: f64,
}

impl Linear {
    /// From 0 at `from` to `max` at `to`.
    pub(super) fn new(max: f64, from: f64, to: f64) -> Linear {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        Linear { max, from, to }
    }

    /// Where a value is; what is beyond the axis is at its end.
    pub(super) fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * (value / self.max).clamp(0.0, 1.0)
    }

    pub(super) fn max(&self) -> f64 {
        self.max
    }

    /// 0 and two to five round numbers.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let rough = self.max / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|&step| step >= rough * 0.999)
            .unwrap_or(rough);
        let count = (self.max / step * 1.000_001).floor() as u32;
        (0..=count).map(|tick| f64::from(tick) * step).collect()
    }
}

/// Logarithmic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Logarithmic {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Logarithmic {
    /// From `low` at `from` to `high` at `to`; both above 0.
    pub(super) fn new(low: f64, high: f64, from: f64, to: f64) -> Logarithmic {
        let low = if low.is_finite() && low > 0.0 { low } else { 1.0 };
        let high = if high.is_finite() && high > low { high } else { low * 10.0 };
        Logarithmic { low, high, from, to }
    }

    /// Where a value is; what is beyond the axis is at its end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.from + (self.to - self.from) * part.clamp(0.0, 1.0)
    }

    /// The powers of the base that are on the axis, as exponents and values.
    pub(super) fn powers(&self, base: f64) -> Vec<(i32, f64)> {
        let exponent = |value: f64| value.ln() / base.ln();
        let first = (exponent(self.low) - 1e-9).ceil() as i32;
        let last = (exponent(self.high) + 1e-9).floor() as i32;
        (first..=last).map(|power| (power, base.powi(power))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for max in [0.003, 0.9, 1.0, 7.3, 10.0, 43.0, 99.0, 412.0, 1e6] {
            let axis = Linear::new(max, 0.0, 100.0);
            let ticks = axis.ticks();
            assert!((3..=6).contains(&ticks.len()), "{max}: {ticks:?}");
            assert_eq!(ticks[0], 0.0);
            assert!(ticks.iter().all(|&tick| tick <= max * 1.001), "{max}: {ticks:?}");
        }
        assert_eq!(Linear::new(412.0, 0.0, 1.0).ticks(), [0.0, 200.0, 400.0]);
    }

    #[test]
    fn values_are_where_they_belong() {
        let axis = Linear::new(10.0, 100.0, 200.0);
        assert_eq!((axis.at(0.0), axis.at(5.0), axis.at(99.0)), (100.0, 150.0, 200.0));
        let axis = Logarithmic::new(0.25, 4.0, 0.0, 100.0);
        assert!((axis.at(1.0) - 50.0).abs() < 1e-9);
        assert_eq!((axis.at(0.0), axis.at(1e9)), (0.0, 100.0));
        let powers: Vec<i32> = axis.powers(2.0).iter().map(|&(power, _)| power).collect();
        assert_eq!(powers, [-2, -1, 0, 1, 2]);
    }

    #[test]
    fn no_values_are_still_an_axis() {
        assert_eq!(Linear::new(f64::NAN, 0.0, 1.0).at(0.5), 0.5);
        assert_eq!(Logarithmic::new(0.0, 0.0, 0.0, 1.0).at(10.0), 1.0);
    }
}
