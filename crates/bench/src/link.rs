//! What is between client and server: named, asked for, measured.
//!
//! A simulated link is a [`sandbox::link::Link`]. It is measured before it is used: the very
//! forwarder that the subjects will get leads to an echo first, and to the server then. A real
//! host's link can only be measured through ssh; what is measured then is ssh over it.

mod measured;
mod spec;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sandbox::link::LinkOptions;

use crate::failure::Failure;
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

/// A link with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// As on the command line.
    pub name: &'static str,
    /// Added to each round trip.
    pub rtt: Option<Duration>,
    /// Each way, bits a second as links are sold.
    pub rate_bits_per_s: Option<u64>,
    /// What it stands for.
    pub about: &'static str,
}

/// The links with names.
pub const PRESETS: [Preset; 4] = [
    Preset {
        name: "loopback",
        rtt: None,
        rate_bits_per_s: None,
        about: "nothing added: what this machine itself does",
    },
    Preset {
        name: "lan",
        rtt: Some(Duration::from_micros(500)),
        rate_bits_per_s: Some(1_000_000_000),
        about: "the same building: 0.5 ms, 1 Gbit/s",
    },
    Preset {
        name: "wan",
        rtt: Some(Duration::from_millis(40)),
        rate_bits_per_s: Some(200_000_000),
        about: "the same continent: 40 ms, 200 Mbit/s",
    },
    Preset {
        name: "intercontinental",
        rtt: Some(Duration::from_millis(200)),
        rate_bits_per_s: Some(100_000_000),
        about: "the other side of the world: 200 ms, 100 Mbit/s",
    },
];

impl LinkSpec {
    /// Nothing added.
    #[must_use]
    pub fn loopback() -> LinkSpec {
        LinkSpec::from(PRESETS[0])
    }

    /// For the forwarder; `None` when nothing is added, and none is needed.
    #[must_use]
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

impl From<Preset> for LinkSpec {
    fn from(preset: Preset) -> LinkSpec {
        LinkSpec {
            name: preset.name.to_owned(),
            rtt: preset.rtt,
            rate_bytes_per_s: preset.rate_bits_per_s.map(|bits| bits / 8),
        }
    }
}

impl FromStr for LinkSpec {
    type Err = Failure;

    /// The failure says what is wrong and what is right.
    fn from_str(text: &str) -> Result<LinkSpec, Failure> {
        match PRESETS.into_iter().find(|preset| preset.name == text) {
            Some(preset) => Ok(preset.into()),
            None => spec::parse(text).map_err(Failure::failed),
        }
    }
}

impl fmt::Display for LinkSpec {
    /// The name and what is added: `lan (0.5 ms, 125 MB/s)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rtt = self.rtt.map(|rtt| format!("{} ms", rtt.as_secs_f64() * 1e3));
        let rate = self.rate_bytes_per_s.map(|rate| format!("{} MB/s", rate as f64 / 1e6));
        let added: Vec<String> = rtt.into_iter().chain(rate).collect();
        match &added[..] {
            [] => write!(f, "{}", self.name),
            added => write!(f, "{} ({})", self.name, added.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests;
