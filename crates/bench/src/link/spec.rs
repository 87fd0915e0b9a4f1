//! `rtt=0.5ms,rate=1gbit`, parsed. Pure.

use std::time::Duration;

use super::{LinkSpec, PRESETS};

/// Seconds of each unit of time.
const TIMES: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];

/// Bytes a second of each unit of rate, in small letters; bits as links are sold.
const BITS: [(&str, f64); 4] = [("bit", 0.125), ("kbit", 125.0), ("mbit", 125e3), ("gbit", 125e6)];

/// Units with a capital B, which nobody writes for bits.
const BYTES: [(&str, f64); 7] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
];

/// Longest round trip: more would only be a stall.
const RTT_MOST_S: f64 = 10.0;

/// Slowest link: what is under way in the forwarder at once, 128 KiB, then takes 8 s.
const RATE_LEAST_BYTES_PER_S: f64 = 16e3;

/// Fastest: more than this machine could forward.
const RATE_MOST_BYTES_PER_S: f64 = 1e12;

pub(super) fn parse(text: &str) -> Result<LinkSpec, String> {
    let mut spec = LinkSpec { name: "custom".to_owned(), ..LinkSpec::loopback() };
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(unknown(text));
        };
        let twice = match key.trim() {
            "rtt" => spec.rtt.replace(rtt(value.trim())?).is_some(),
            "rate" => spec.rate_bytes_per_s.replace(rate(value.trim())?).is_some(),
            _ => return Err(unknown(text)),
        };
        if twice {
            return Err(format!("link '{}' has {} twice", shown(text), key.trim()));
        }
    }
    Ok(spec)
}

fn unknown(text: &str) -> String {
    let names = PRESETS.map(|preset| preset.name).join(", ");
    format!(
        "'{}' is no link; there are {names}, and the form rtt=0.5ms,rate=1gbit of which one may \
         be left out",
        shown(text)
    )
}

fn rtt(text: &str) -> Result<Duration, String> {
    let why = || {
        format!(
            "'{}' is no round trip; it is a number up to 10 s with ns, us, ms or s",
            shown(text)
        )
    };
    let (number, unit) = number(text).ok_or_else(why)?;
    let (_, unit_s) = TIMES.into_iter().find(|(name, _)| *name == unit).ok_or_else(why)?;
    let seconds = number * unit_s;
    if seconds > RTT_MOST_S {
        return Err(why());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn rate(text: &str) -> Result<u64, String> {
    let why = || {
        format!(
            "'{}' is no rate; it is a number with kbit, mbit or gbit, or kB, MB or GB, of at \
             least 16 kB a second",
            shown(text)
        )
    };
    let (number, unit) = number(text).ok_or_else(why)?;
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let small = unit.to_ascii_lowercase();
    let bits = BITS.into_iter().find(|(name, _)| *name == small);
    let unit = bits.or_else(|| BYTES.into_iter().find(|(name, _)| *name == unit));
    let bytes_per_s = number * unit.ok_or_else(why)?.1;
    if !(RATE_LEAST_BYTES_PER_S..=RATE_MOST_BYTES_PER_S).contains(&bytes_per_s) {
        return Err(why());
    }
    Ok(bytes_per_s.round() as u64)
}

/// A decimal number without sign or exponent, and what follows.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

fn shown(text: &str) -> String {
    text.escape_debug().to_string()
}
