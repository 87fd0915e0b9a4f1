//! Numbers with units: shown with three significant digits; and percentages from the command line.

use crate::measure::Unit;

/// How values of a unit are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Shown in the header.
    pub unit: &'static str,
    /// Shown beside a value.
    pub short: &'static str,
    /// One of the shown unit, in the unit of the results.
    pub one: f64,
}

/// The scale in which values of a unit are shown.
pub fn scale(unit: Unit) -> Scale {
    match unit {
        Unit::BytesPerSecond => Scale { unit: "MB/s", short: "MB/s", one: 1e6 },
        Unit::PerSecond => Scale { unit: "operations/s", short: "/s", one: 1.0 },
        Unit::Seconds => Scale { unit: "s", short: "s", one: 1.0 },
        Unit::Microseconds => Scale { unit: "µs", short: "µs", one: 1.0 },
    }
}

impl Scale {
    /// Formats a value of the results in this scale.
    pub fn show(self, value: f64) -> String {
        significant(value / self.one)
    }
}

/// Formats with three significant digits, never with an exponent; thousands are grouped.
pub fn significant(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    // Rounding can add a digit: 9.996 becomes 10.0.
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let digits = (2.0 - rounded.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    grouped(&format!("{rounded:.digits$}"))
}

/// Separates thousands by a narrow no-break space, from five digits on.
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

/// Formats a ratio: `1.82×`.
pub fn ratio(value: f64) -> String {
    format!("{}×", significant(value))
}

/// Formats a fraction of 1 as a percentage.
pub fn percent(part: f64) -> String {
    format!("{} %", significant(part * 100.0))
}

/// Formats microseconds as µs, ms or s.
pub fn duration_us(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{} µs", significant(us)),
        us if us < 1e6 => format!("{} ms", significant(us / 1e3)),
        us => format!("{} s", significant(us / 1e6)),
    }
}

/// Formats bytes per second as bits per second, as link rates are given.
pub fn bit_rate(bytes_per_s: f64) -> String {
    match bytes_per_s * 8.0 {
        bits if bits < 1e6 => format!("{} kbit/s", significant(bits / 1e3)),
        bits if bits < 1e9 => format!("{} Mbit/s", significant(bits / 1e6)),
        bits => format!("{} Gbit/s", significant(bits / 1e9)),
    }
}

/// Formats bytes as MiB, without the unit.
pub fn mebibytes(bytes: u64) -> String {
    significant(bytes as f64 / f64::from(1 << 20))
}

/// Formats the seconds of a whole run: `1 h 5 min`.
pub fn run_time(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => counted(whole, "second"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A count and its noun: `1 round`, `2 rounds`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Reads a percentage below 100 as a fraction: `10%` is 0.1.
///
/// # Errors
/// A message for the user.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    match number.filter(|number| (0.0..100.0).contains(number)) {
        Some(number) => Ok(number / 100.0),
        None => {
            Err(format!("'{}' is not a percentage below 100, such as 10%", text.escape_debug()))
        }
    }
}

/// A number of bytes in binary units with two or three digits: `1.5 MiB`, `64 MiB`.
pub fn binary_size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) => {
            let number = bytes as f64 / unit as f64;
            let decimals = if number < 9.95 { 1 } else { 0 };
            format!("{number:.decimals$} {name}")
        }
        None => format!("{bytes} bytes"),
    }
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

    #[test]
    fn percentages() {
        assert_eq!(parse_percent("10%"), Ok(0.1));
        assert_eq!(parse_percent("2.5"), Ok(0.025));
        assert!(parse_percent("99.9").is_ok());
        for text in ["", "%", "ten", "-1%", "nan", "100", "1001"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spoken_sizes() {
        for (number, expected) in [
            (5, "5 bytes"),
            (1 << 10, "1.0 KiB"),
            (1_600_000, "1.5 MiB"),
            (64 << 20, "64 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(binary_size(number), expected);
        }
    }
}
