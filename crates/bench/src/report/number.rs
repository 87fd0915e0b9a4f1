//! Numbers as readers see them: three significant digits, and the unit that keeps them short.

use crate::measure::Unit;

/// How values of a unit are shown: divided by this, under that name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Shown in the header.
    pub unit: &'static str,
    /// Shown beside a value.
    pub short: &'static str,
    /// What one of it is in the unit of the results.
    pub one: f64,
}

/// The scale of a unit.
#[must_use]
pub fn scale(unit: Unit) -> Scale {
    match unit {
        Unit::BytesPerSecond => Scale { unit: "MB/s", short: "MB/s", one: 1e6 },
        Unit::PerSecond => Scale { unit: "operations/s", short: "/s", one: 1.0 },
        Unit::Seconds => Scale { unit: "s", short: "s", one: 1.0 },
        Unit::Microseconds => Scale { unit: "µs", short: "µs", one: 1.0 },
    }
}

impl Scale {
    /// A value of the results in this scale.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        significant(value / self.one)
    }
}

/// Three significant digits, never with an exponent; thousands are grouped.
#[must_use]
pub fn significant(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (2 - magnitude(value)).clamp(0, 9);
    // Rounding can add a digit (9.996 becomes 10.00), so the magnitude is taken again.
    let step = 10f64.powi(2 - magnitude(value));
    let rounded = (value * step).round() / step;
    let digits = (2 - magnitude(rounded)).clamp(0, 9).min(digits);
    grouped(&format!("{rounded:.*}", usize::try_from(digits).unwrap_or(0)))
}

fn magnitude(value: f64) -> i32 {
    if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 }
}

/// Thousands apart by a thin space that does not break, from five digits on.
fn grouped(number: &str) -> String {
    let start = usize::from(number.starts_with('-'));
    let end = number.find('.').unwrap_or(number.len());
    if end - start < 5 {
        return number.to_owned();
    }
    let mut out = number[..start].to_owned();
    for (at, digit) in number[start..end].chars().enumerate() {
        if at > 0 && (end - start - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out + &number[end..]
}

/// `1.82x`.
#[must_use]
pub fn ratio(value: f64) -> String {
    format!("{}×", significant(value))
}

/// A part of 1 as percent.
#[must_use]
pub fn percent(part: f64) -> String {
    format!("{} %", significant(part * 100.0))
}

/// Microseconds, in the unit that suits them.
#[must_use]
pub fn duration_us(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{} µs", significant(us)),
        us if us < 1e6 => format!("{} ms", significant(us / 1e3)),
        us => format!("{} s", significant(us / 1e6)),
    }
}

/// Bytes a second as the bits that links are sold by.
#[must_use]
pub fn bit_rate(bytes_per_s: f64) -> String {
    match bytes_per_s * 8.0 {
        bits if bits < 1e6 => format!("{} kbit/s", significant(bits / 1e3)),
        bits if bits < 1e9 => format!("{} Mbit/s", significant(bits / 1e6)),
        bits => format!("{} Gbit/s", significant(bits / 1e9)),
    }
}

/// Memory in MiB.
#[must_use]
pub fn mebibytes(bytes: u64) -> String {
    significant(bytes as f64 / f64::from(1 << 20))
}

/// Seconds of a whole run.
#[must_use]
pub fn run_time(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => counted(whole, "second"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `1 round`, `2 rounds`.
#[must_use]
pub fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_shown() {
        for (value, shown) in [
            (0.0, "0"),
            (0.012_345, "0.0123"),
            (0.999_6, "1.00"),
            (1.0, "1.00"),
            (1.234, "1.23"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (123.4, "123"),
            (1234.0, "1230"),
            (12_345.0, "12\u{202f}300"),
            (1_234_567.0, "1\u{202f}230\u{202f}000"),
            (-4.567, "-4.57"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(significant(value), shown, "{value}");
        }
    }

    #[test]
    fn units_are_those_of_the_field() {
        assert_eq!(scale(Unit::BytesPerSecond).show(123_456_789.0), "123");
        assert_eq!(duration_us(500.0), "500 µs");
        assert_eq!(duration_us(40_000.0), "40.0 ms");
        assert_eq!(bit_rate(125e6), "1.00 Gbit/s");
        assert_eq!(bit_rate(12.5e6), "100 Mbit/s");
        assert_eq!(mebibytes(3 << 19), "1.50");
        assert_eq!(percent(0.1), "10.0 %");
        assert_eq!(ratio(1.816), "1.82×");
        assert_eq!(run_time(59.6), "1 min 0 s");
        assert_eq!(run_time(3_700.0), "1 h 1 min");
        assert_eq!(counted(1, "round"), "1 round");
    }
}
