//! The link between client and server: its presets, its specification, its measurement.
//!
//! A simulated link is a [`sandbox::link::Link`]. It is measured before it is used: the very
//! forwarder that the subjects will get leads to an echo first, and to the server then. A real
//! host's link can only be measured through ssh; what is measured then is ssh over it.

mod measured;

use std::str::FromStr;
use std::time::Duration;

use sandbox::link::LinkOptions;

use crate::failure::{Failure, Result};
use crate::results::LinkReport;

pub(crate) use measured::{Figures, through_ssh, through_tcp};

/// A link as it is asked for: `lan`, `rtt=0.5ms,rate=1gbit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// `loopback`, `lan`, `wan`, `intercontinental` or `custom`.
    pub name: String,
    /// Added to each round trip.
    pub rtt: Option<Duration>,
    /// Each way, for all connections together.
    pub rate_bytes_per_s: Option<u64>,
}

/// The links with names: the added round trip in microseconds, and bits a second each way, as links
/// are sold.
const PRESETS: [(&str, Option<u64>, Option<u64>); 4] = [
    ("loopback", None, None),
    ("lan", Some(500), Some(1_000_000_000)),
    ("wan", Some(40_000), Some(200_000_000)),
    ("intercontinental", Some(200_000), Some(100_000_000)),
];

impl Default for LinkSpec {
    fn default() -> LinkSpec {
        LinkSpec::loopback()
    }
}

impl LinkSpec {
    /// Nothing added.
    pub fn loopback() -> LinkSpec {
        LinkSpec { name: "loopback".to_owned(), rtt: None, rate_bytes_per_s: None }
    }

    /// For the forwarder; `None` when nothing is added, and none is needed.
    pub fn options(&self) -> Option<LinkOptions> {
        let LinkSpec { rtt, rate_bytes_per_s, .. } = *self;
        let added = rtt.is_some() || rate_bytes_per_s.is_some();
        added.then(|| LinkOptions { rtt: rtt.unwrap_or_default(), rate_bytes_per_s })
    }

    /// The report of a link that was asked for so and has these figures.
    pub(crate) fn report(&self, figures: Figures) -> LinkReport {
        LinkReport {
            name: self.name.clone(),
            asked_rtt_us: self.rtt.map(|rtt| rtt.as_secs_f64() * 1e6),
            asked_bytes_per_s: self.rate_bytes_per_s.map(|rate| rate as f64),
            measured_rtt_us: Some(figures.rtt_us),
            measured_bytes_per_s: Some(figures.bytes_per_s),
        }
    }
}

impl FromStr for LinkSpec {
    type Err = Failure;

    /// The failure says what is wrong and what is right.
    fn from_str(text: &str) -> Result<LinkSpec> {
        match PRESETS.into_iter().find(|(name, ..)| *name == text) {
            Some((_, rtt_us, bits_per_s)) => Ok(LinkSpec {
                name: text.to_owned(),
                rtt: rtt_us.map(Duration::from_micros),
                rate_bytes_per_s: bits_per_s.map(|bits| bits / 8),
            }),
            None => parse(text).map_err(Failure::failed),
        }
    }
}

/// Seconds of each unit of time.
const TIMES: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];

/// Bytes a second of each unit of rate, in small letters; bits as links are sold.
const BITS: [(&str, f64); 4] = [("bit", 0.125), ("kbit", 125.0), ("mbit", 125e3), ("gbit", 125e6)];

/// Units with a capital B, which are never bits.
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

fn parse(text: &str) -> Result<LinkSpec, String> {
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
            return Err(format!("link '{}' has {} twice", text.escape_debug(), key.trim()));
        }
    }
    Ok(spec)
}

fn unknown(text: &str) -> String {
    let names = PRESETS.map(|(name, ..)| name).join(", ");
    format!(
        "'{}' is no link; there are {names}, and the form rtt=0.5ms,rate=1gbit of which one may \
         be left out",
        text.escape_debug()
    )
}

fn rtt(text: &str) -> Result<Duration, String> {
    let seconds = number(text).and_then(|(number, unit)| {
        let (_, unit_s) = TIMES.into_iter().find(|(name, _)| *name == unit)?;
        Some(number * unit_s).filter(|&seconds| seconds <= RTT_MOST_S)
    });
    let shown = text.escape_debug();
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        format!("'{shown}' is no round trip; it is a number up to 10 s with ns, us, ms or s")
    })
}

fn rate(text: &str) -> Result<u64, String> {
    let bytes_per_s = number(text).and_then(|(number, unit)| {
        let unit = unit.strip_suffix("/s").unwrap_or(unit);
        let bits = BITS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let (_, one) = bits.or_else(|| BYTES.into_iter().find(|(name, _)| *name == unit))?;
        let known = RATE_LEAST_BYTES_PER_S..=RATE_MOST_BYTES_PER_S;
        Some(number * one).filter(|rate| known.contains(rate))
    });
    let shown = text.escape_debug();
    bytes_per_s.map(|rate| rate.round() as u64).ok_or_else(|| {
        format!(
            "'{shown}' is no rate; it is a number with kbit, mbit or gbit, or kB, MB or GB, of at \
             least 16 kB a second"
        )
    })
}

/// A decimal number without sign or exponent, and what follows.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests;
