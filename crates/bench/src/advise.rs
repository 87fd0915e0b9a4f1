//! Which settings would make things faster here, and which of those that are often recommended
//! would not: ciphers, sessions, TCP. Each with the figure behind it.
//!
//! It measures raw ssh, since that is what all subjects over ssh share: streams of zeros that ssh
//! writes into a pipe. What it has measured and read are [`Findings`]; what follows from them are
//! [`Item`]s, made by functions without any input or output.
//!
//! Nothing is changed on either machine. On a server a megabyte or two is written into the run's
//! directory, and removed.

mod approach;
mod display;
pub mod facts;
pub mod findings;
mod flow;
mod items;
mod kexinit;
mod measure;

use serde::Serialize;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::server::Server;

pub use findings::Findings;
pub use flow::Figures;

pub use measure::Effort;

/// What was found, and what follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Figures and settings.
    pub findings: Findings,
    /// One for each setting, in the order in which they are shown.
    pub items: Vec<Item>,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Item {
    /// The setting, as people look for it: `Ciphers`, `tcp_rmem`.
    pub setting: String,
    /// Whether it is worth anything.
    pub verdict: Verdict,
    /// The figures behind the verdict.
    pub found: String,
    /// What they mean.
    pub why: String,
    /// What to type; empty where nothing is to be done.
    pub to_type: Vec<String>,
}

/// Whether a setting is worth anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It would make something faster.
    Matters,
    /// Somewhere else it would.
    NotHere,
    /// Programs or kernels have changed since it was recommended.
    NoLonger,
    /// What has to be known is not known.
    Unknown,
}

impl Verdict {
    /// As it is shown.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Matters => "matters here",
            Verdict::NotHere => "does not matter here",
            Verdict::NoLonger => "no longer matters",
            Verdict::Unknown => "not known here",
        }
    }
}

/// Measures ciphers, sessions and settings against a server, and tells what follows. With
/// [`Effort::FULL`] it takes a minute, on a long link some. `tell` gets a line for each part, for whoever waits.
///
/// # Errors
/// When ssh does not work, in its words, or the run was interrupted. What a machine does not tell
/// of itself is no error.
pub fn advise(
    server: &Server,
    executor: &Executor,
    tell: &mut dyn FnMut(&str),
    effort: Effort,
) -> Result<Advice, Failure> {
    measure::measure(server, executor, tell, effort).map(Advice::on)
}

impl Advice {
    fn on(findings: Findings) -> Advice {
        let items = items::all(&findings);
        Advice { findings, items }
    }
}

#[cfg(test)]
mod tests;
