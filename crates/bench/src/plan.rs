//! What a run is to do: asked for ([`Request`]), and checked and ready to go ([`Plan`]).
//!
//! Everything that can be wrong with what was asked for is found in between ([`prepare`]), before
//! anything is measured.

mod admission;
mod candidates;
mod control;
mod host;
mod prepare;
mod refusal;
mod request;
mod space;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::results::{Environment, LeftOut, LinkReport, Settings, Usage};
use crate::run::Scratch;
use crate::size::Size;
use crate::subject::Subject;
use crate::work::Work;

pub use host::Host;
pub use prepare::{prepare, start_server};
pub use refusal::Refusal;
pub use request::{Request, is_ours};

/// What the server's processes have used so far.
pub type ServerUsage = Arc<dyn Fn() -> Option<Usage> + Send + Sync>;

/// A run that can go. Fields are dropped in their order: first what uses the server, then the
/// server, which [`Plan::server_usage`] keeps, then the directory in which it is.
pub struct Plan {
    /// Who is measured, in the order of reports.
    pub subjects: Vec<Arc<dyn Subject>>,
    /// What they do, in the order in which they do it.
    pub works: Vec<Box<dyn Work>>,
    /// How much of it.
    pub size: Size,
    /// Longest time for one step (see [`crate::work::Step::deadline_factor`]).
    pub deadline: Duration,
    /// All that the report says of what was asked for; rounds and seed are taken from here.
    pub settings: Settings,
    /// What was asked for and cannot be.
    pub left_out: Vec<LeftOut>,
    /// This program and its version.
    pub program: String,
    /// Where it runs.
    pub environment: Environment,
    /// Between client and server.
    pub link: LinkReport,
    /// Keeps the server.
    pub server_usage: ServerUsage,
    /// The run's own directory.
    pub scratch: Scratch,
}
