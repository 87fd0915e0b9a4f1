//! Quantities as people write them: `16G`, `10%`.

/// Bytes: a number with `K`, `M`, `G` or `T` (of 1024) behind it, or none of them.
///
/// # Errors
/// What is wrong with it, for people.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            let shift = match unit.to_ascii_uppercase() {
                'K' => 10,
                'M' => 20,
                'G' => 30,
                'T' => 40,
                _ => return Err(wrong_size(text)),
            };
            (&text[..at], shift)
        }
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong_size(text))?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes > 0).ok_or_else(|| wrong_size(text))
}

fn wrong_size(text: &str) -> String {
    format!("'{}' is no size: 64M and 16G are", text.escape_debug())
}

/// A part of one: `10%` is 0.1.
///
/// # Errors
/// What is wrong with it, for people.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    match number.filter(|number| (0.0..=1000.0).contains(number)) {
        Some(number) => Ok(number / 100.0),
        None => Err(format!("'{}' is no percentage: 10% is", text.escape_debug())),
    }
}

/// A number of bytes as a person would say it, cut to three digits.
#[must_use]
pub fn spoken(bytes: u64) -> String {
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
    fn sizes() {
        for (text, expected) in
            [("1", 1), ("4096", 4096), ("64k", 64 << 10), ("1M", 1 << 20), ("16G", 16 << 30)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "-1", "0", "0M", "1.5G", "1X", "1MB", "99999999T", "\u{1b}"] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
        assert!(!bytes("\u{1b}").unwrap_err().contains('\u{1b}'));
    }

    #[test]
    fn percentages() {
        assert_eq!(percent("10%"), Ok(0.1));
        assert_eq!(percent("2.5"), Ok(0.025));
        for text in ["", "%", "ten", "-1%", "nan", "1001"] {
            assert!(percent(text).is_err(), "{text}");
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
            assert_eq!(spoken(number), expected);
        }
    }
}
