//! Counts, sizes and times as text, and sizes from text.

use std::time::Duration;

use indicatif::HumanCount;

/// A count with its noun, such as `1 file` and `2 files`.
pub fn count(number: u64, one: &str) -> String {
    let grouped = HumanCount(number);
    match (number, one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{grouped} {stem}ies"),
        (_, None) => format!("{grouped} {one}s"),
    }
}

/// A number of bytes in the largest binary unit of which there is at least one, such as `1.5 KiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let places = usize::from(value < 99.95 && value.fract() != 0.0);
    format!("{value:.places$} {}", UNITS[unit])
}

/// A time in its two largest units, such as `2 h 5 min`.
pub fn duration(ms: u64) -> String {
    let secs = ms / 1000;
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match secs {
        0..10 => format!("{:.1} s", ms as f64 / 1000.0),
        10..60 => format!("{secs} s"),
        60..3600 => two(secs / 60, "min", secs % 60, "s"),
        3600..86_400 => two(secs / 3600, "h", secs % 3600 / 60, "min"),
        _ => two(secs / 86_400, "d", secs % 86_400 / 3600, "h"),
    }
}

/// Whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whole microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A latency in milliseconds.
pub fn latency(us: u64) -> String {
    match us {
        0..10_000 => format!("{:.2} ms", us as f64 / 1000.0),
        10_000..100_000 => format!("{:.1} ms", us as f64 / 1000.0),
        _ => format!("{:.0} ms", us as f64 / 1000.0),
    }
}

/// [`cli::parse_bytes`]; the error says what is valid.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    cli::parse_bytes(text).ok_or_else(|| "needs a size, as in 512M or 20G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_sizes_and_times_are_readable() {
        assert_eq!([0, 1, 2].map(|number| count(number, "file")), ["0 files", "1 file", "2 files"]);
        assert_eq!(count(1_234_567, "directory"), "1,234,567 directories");
        assert_eq!(
            (count(999, "inode"), count(1000, "inode")),
            ("999 inodes".into(), "1,000 inodes".into())
        );
        for (number, words) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (128 << 20, "128 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (150_000, "146 KiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(number), words);
        }
        for (ms, words) in [
            (0, "0.0 s"),
            (1_250, "1.2 s"),
            (12_900, "12 s"),
            (60_000, "1 min"),
            (61_000, "1 min 1 s"),
            (7_500_000, "2 h 5 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(ms), words);
        }
        assert_eq!(
            [80, 510, 12_345, 120_400].map(latency),
            ["0.08 ms", "0.51 ms", "12.3 ms", "120 ms"]
        );
    }
}
