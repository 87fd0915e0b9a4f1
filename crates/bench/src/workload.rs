//! Families of steps.

pub mod build;
pub mod cache;
pub mod copy;
mod copying;
pub mod failover;
pub mod files;
pub mod fio;
mod generator;
pub mod iozone;
pub mod latency;
pub mod tree;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::executor::{Executor, find_program};
use crate::failure::{Failure, Result};
use crate::measure::{Cache, Measure, Unit};
use crate::results::{LeftOut, Measured, SubjectInfo};
use crate::size::Size;
use crate::step::StepContext;
use crate::storage::Storage;
use crate::subject::{AccessKind, Tuning};

/// All workloads, in the order in which they run and are reported.
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::<iozone::Iozone>::default(),
        Box::new(fio::Fio),
        Box::<latency::Latency>::default(),
        Box::new(tree::Tree),
        Box::new(files::Files),
        Box::new(copy::Copy),
        Box::new(build::Build),
        Box::new(cache::Cache),
        Box::new(failover::Failover),
    ]
}

/// A family of steps, done by one session of each subject in each round.
pub trait Workload: Send + Sync {
    /// As on the command line: `iozone`.
    fn name(&self) -> &'static str;

    /// One sentence for help and report.
    fn about(&self) -> &'static str;

    /// The programs that it runs, each with its package.
    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Whether its programs are installed.
    fn check(&self) -> Result<(), LeftOut> {
        check_installed(self.name(), self.programs())
    }

    /// Parts that cannot be done here although the rest can. Their steps are not among
    /// [`Workload::steps`].
    fn lacks(&self, _size: &Size) -> Vec<LeftOut> {
        Vec::new()
    }

    /// Whether it breaks [the link of the second host](crate::step::ServerMeter::second_link).
    fn needs_second_link(&self) -> bool {
        false
    }

    /// Bytes that it needs in a storage, and locally.
    fn space(&self, size: &Size) -> (u64, u64);

    /// Makes its data locally, once a run, in `corpus/NAME`.
    fn make(&self, size: &Size, corpus: &Path, executor: &Executor) -> Result<()>;

    /// Its files and trees, by their paths in the corpus and in a storage; below the directory
    /// NAME.
    fn data(&self, size: &Size) -> Vec<PathBuf>;

    /// Puts its data into a storage, once a run for each.
    fn lay_out(&self, size: &Size, corpus: &Path, storage: &dyn Storage) -> Result<()> {
        self.data(size).iter().try_for_each(|path| storage.put(&corpus.join(path), path))
    }

    /// In the order in which they run. A session is started for each sequence of steps with equal
    /// tuning.
    fn steps(&self, size: &Size) -> Vec<Step>;
}

/// Kinds of access, by what a step needs.
const DIRECTORY: &[AccessKind] = &[AccessKind::Directory];
/// Reading and writing files, and no operations of names.
const TRANSFER_FILES: &[AccessKind] = &[AccessKind::Directory, AccessKind::Sftp, AccessKind::Nfs];
const COPY_FILES: &[AccessKind] = &[AccessKind::Directory, AccessKind::Copier, AccessKind::Stream];
const COPY_TREES: &[AccessKind] = &[AccessKind::Directory, AccessKind::Copier];

/// Selects subjects.
type Selection = Box<dyn Fn(&SubjectInfo) -> bool + Send + Sync>;

/// The body of a step. The value of its sample is the step's to fill in.
type Body = Box<dyn Fn(&mut StepContext<'_>) -> Result<Measured> + Send + Sync>;

/// A subject that moves large files at less than this, 2 MB/s, may miss the deadline.
const LEAST_BYTES_PER_S: f64 = 2e6;

/// One measure, and how it is obtained.
pub struct Step {
    /// What is measured.
    pub measure: Measure,
    /// What the connection has to be like.
    pub tuning: Tuning,
    /// Multiple of the run's deadline for a step.
    deadline_factor: f64,
    /// Bytes that it moves and reads beside the measured part.
    bytes: u64,
    /// A disk cache of the subject's stays, although the measure is cold.
    pub keeps_disk_cache: bool,
    /// Kinds of access with which it can be done.
    accesses: &'static [AccessKind],
    /// It changes the storage past the subject.
    needs_local_storage: bool,
    concerns: Selection,
    body: Body,
    value: fn(&Measured, Unit) -> f64,
}

impl Step {
    /// A step for all subjects with such an access. Where the measure is cold, the session has
    /// dropped its caches just before `body` is called, those on the disk included.
    pub fn new(
        measure: Measure,
        accesses: &'static [AccessKind],
        body: impl Fn(&mut StepContext<'_>) -> Result<Measured> + Send + Sync + 'static,
    ) -> Step {
        Step {
            measure,
            tuning: Tuning::default(),
            deadline_factor: 1.0,
            bytes: 0,
            keeps_disk_cache: false,
            accesses,
            needs_local_storage: false,
            concerns: Box::new(|_| true),
            body: Box::new(body),
            value: usual_value,
        }
    }

    /// The step for connections like this.
    pub fn with_tuning(self, tuning: Tuning) -> Step {
        Step { tuning, ..self }
    }

    /// The step with a multiple of the deadline.
    pub fn with_deadline(self, factor: f64) -> Step {
        Step { deadline_factor: factor, ..self }
    }

    /// The step with additional time to move this number of bytes.
    pub fn over(self, bytes: u64) -> Step {
        Step { bytes, ..self }
    }

    /// Its deadline, where `usual` is that of a usual step.
    pub fn deadline(&self, usual: Duration) -> Duration {
        let moving_s = self.bytes as f64 / LEAST_BYTES_PER_S;
        usual.mul_f64(self.deadline_factor) + Duration::from_secs_f64(moving_s)
    }

    /// The step, which is cold but for what the subject has on the local disk.
    pub fn with_disk_cache(self) -> Step {
        Step { keeps_disk_cache: true, ..self }
    }

    /// The step for some subjects only: a cipher has no meaning for a disk.
    pub fn only_for(self, concerns: impl Fn(&SubjectInfo) -> bool + Send + Sync + 'static) -> Step {
        Step { concerns: Box::new(concerns), ..self }
    }

    /// The step for subjects whose storage this machine reaches without them.
    pub(crate) fn at_local_storage(self) -> Step {
        Step { needs_local_storage: true, ..self }
    }

    /// The step with another value than the one that belongs to its unit.
    fn valued(self, value: fn(&Measured, Unit) -> f64) -> Step {
        Step { value, ..self }
    }

    /// Whether it has a meaning for this subject.
    pub fn concerns(&self, subject: &SubjectInfo) -> bool {
        (self.concerns)(subject)
    }

    /// Whether it can be done where the files are.
    pub fn suits_storage(&self, storage: &dyn Storage) -> bool {
        !self.needs_local_storage || storage.local().is_some()
    }

    /// Whether it can be done with this kind of access.
    pub fn suits(&self, access: AccessKind) -> bool {
        self.accesses.contains(&access)
    }

    /// Does it.
    ///
    /// # Errors
    /// Those of the subject, and wrong data.
    pub fn run(&self, context: &mut StepContext<'_>) -> Result<Measured> {
        let measured = (self.body)(context)?;
        let value = (self.value)(&measured, self.measure.unit);
        if value.is_finite() {
            return Ok(Measured { value, ..measured });
        }
        Err(Failure::failed("nothing was measured"))
    }
}

/// The value of a sample in a unit. It is not a number if nothing was measured.
fn usual_value(measured: &Measured, unit: Unit) -> f64 {
    match unit {
        Unit::BytesPerSecond => measured.bytes as f64 / measured.seconds,
        Unit::PerSecond => measured.operations as f64 / measured.seconds,
        Unit::Seconds => measured.seconds,
        Unit::Microseconds => measured.latency.as_ref().map_or(f64::NAN, |latency| latency.p50_us),
    }
}

/// Whether a subject keeps what it has read on the local disk, where it outlives a mount.
fn keeps_a_disk_cache(subject: &SubjectInfo) -> bool {
    subject.name.starts_with("sshoal:") && subject.name.contains("cache=disk")
}

/// A measure `WORKLOAD.ID`.
fn measure(workload: &str, id: &str, title: &str, unit: Unit, cache: Cache) -> Measure {
    Measure { id: format!("{workload}.{id}"), title: title.to_owned(), unit, cache }
}

/// Whether programs, each with its package, are installed.
fn check_installed(name: &str, programs: &[(&str, &str)]) -> Result<(), LeftOut> {
    let missing: Vec<&(&str, &str)> =
        programs.iter().filter(|(program, _)| find_program(*program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (programs, packages): (Vec<&str>, Vec<&str>) = missing.into_iter().copied().unzip();
    let left_out = LeftOut::new(name, format!("not installed: {}", programs.join(", ")));
    Err(left_out.with_remedy(format!("install {}", packages.join(" "))))
}

/// A program of this machine, in the C locale.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("LC_ALL", "C");
    command
}

/// A shell script with its arguments from `$1` on.
fn script<A: AsRef<OsStr>>(text: &str, arguments: &[A]) -> Command {
    let mut command = program("sh");
    command.args(["-c", text, "sh"]).args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) mod world;

    #[test]
    fn deadlines_grow_with_the_bytes() {
        let measure = measure("a", "b", "", Unit::Seconds, Cache::None);
        let step = Step::new(measure, DIRECTORY, |_| Ok(Measured::default())).with_deadline(2.0);
        let usual = Duration::from_secs(300);
        assert_eq!(step.deadline(usual), Duration::from_secs(600));
        // 16 GB at 43 MB/s take six minutes; at 2 MB/s they take more than two hours.
        let step = step.over(16_000_000_000);
        assert_eq!(step.deadline(usual), Duration::from_secs(600 + 8000));
    }
}
