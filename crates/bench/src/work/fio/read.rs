//! The read jobs.

use std::path::Path;

use crate::failure::Failure;
use crate::measure::Measure;
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;
use crate::work::Step;
use crate::work::generator::{aside, has_files, shown, timed, valued};
use crate::worker::{Check, Job, Order, Target, Transfer, Until};

use super::command::job;
use super::output::Way;
use super::{DEADLINE_FACTOR, READ_FILE, SEED, Shape};

/// Records that are read again and compared.
const COMPARED: u64 = 200;

/// One of them.
#[derive(Debug)]
pub(super) struct Read(pub(super) Shape);

impl Read {
    /// By fio, and then a part of it again to compare it.
    fn by_fio(&self, context: &mut StepContext<'_>, target: Target) -> Result<Measured, Failure> {
        let Target::Path(path) = &target else { return Err(Failure::failed("it is no path")) };
        let (figures, measured) = job(context, path, self.0, Way::Read)?;
        let until = Until::Operations(COMPARED);
        let transfer = self.0.transfer(target, context.size, context.seed, until);
        // From all over the file, also after a job in sequence.
        let transfer = Transfer { order: Order::Random { seed: context.seed }, ..transfer };
        aside(context, &Job::Read { transfer, check: Check::Content { seed: SEED } })?;
        Ok(Measured { verified: true, ..figures.into_measured(measured) })
    }

    fn by_generator(
        &self,
        context: &mut StepContext<'_>,
        target: Target,
    ) -> Result<Measured, Failure> {
        let until = Until::Seconds(context.size.random_seconds);
        let transfer = self.0.transfer(target, context.size, context.seed, until);
        Ok(timed(context, &Job::Read { transfer, check: Check::Content { seed: SEED } })?.1)
    }
}

impl Step for Read {
    fn measure(&self) -> Measure {
        self.0.measure(false)
    }

    fn deadline_factor(&self) -> f64 {
        DEADLINE_FACTOR
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        has_files(access)
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let target = shown(context, Path::new(READ_FILE))?;
        let measured = match target {
            Target::Path(_) => self.by_fio(context, target),
            _ => self.by_generator(context, target),
        };
        valued(measured?, self.0.unit())
    }
}
