//! Families of steps.

pub mod build;
pub mod cache;
pub mod copy;
mod copying;
pub mod files;
pub mod fio;
mod generator;
pub mod iozone;
pub mod latency;
pub mod metadata;
mod names;
mod script;
#[cfg(test)]
mod testing;
pub mod tree;

use std::path::Path;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::measure::Measure;
use crate::place::Place;
use crate::results::{LeftOut, Measured, SubjectInfo};
use crate::size::Size;
use crate::step::StepContext;
use crate::subject::{Access, Tuning};

/// All works, in the order in which they run and are reported.
#[must_use]
pub fn all() -> Vec<Box<dyn Work>> {
    vec![
        Box::<iozone::Iozone>::default(),
        Box::new(fio::Fio),
        Box::<latency::Latency>::default(),
        Box::<metadata::Metadata>::default(),
        Box::new(tree::Tree),
        Box::new(files::Files),
        Box::new(copy::Copy),
        Box::new(build::Build),
        Box::new(cache::Cache),
    ]
}

/// A family of steps, done by one session of each subject in each round.
pub trait Work: Send + Sync {
    /// As on the command line: `iozone`.
    fn name(&self) -> &'static str;

    /// One sentence for help and report: what it repeats.
    fn about(&self) -> &'static str;

    /// Whether it can be done here: its programs are installed.
    fn check(&self) -> Result<(), LeftOut>;

    /// Parts of it that cannot be done here, though the rest can: what is not installed. Their
    /// steps are not among [`Work::steps`].
    fn lacks(&self, size: &Size) -> Vec<LeftOut> {
        let _ = size;
        Vec::new()
    }

    /// Bytes that it needs in a place, and locally.
    fn space(&self, size: &Size) -> (u64, u64);

    /// Makes its data locally, once a run, in `corpus/NAME`.
    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<(), Failure>;

    /// Lays them out in a place, once a run for each; below the directory NAME there.
    fn lay_out(&self, size: &Size, corpus: &Path, place: &dyn Place) -> Result<(), Failure>;

    /// In the order in which they run. A session is started for each run of steps with equal
    /// tuning.
    fn steps(&self, size: &Size) -> Vec<Box<dyn Step>>;
}

/// What gives one measure.
pub trait Step: Send + Sync {
    /// Of what.
    fn measure(&self) -> Measure;

    /// What the connection has to be like.
    fn tuning(&self) -> Tuning {
        Tuning::default()
    }

    /// How many times the run's deadline for a step this one gets.
    fn deadline_factor(&self) -> f64 {
        1.0
    }

    /// Whether it says anything of that subject: a cipher says nothing of a disk.
    fn concerns(&self, subject: &SubjectInfo) -> bool {
        let _ = subject;
        true
    }

    /// Whether a subject that is used so can do it.
    fn suits(&self, access: &Access<'_>) -> bool;

    /// Does it. Where the measure is cold, the runner has had the session forget just before.
    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure>;
}
