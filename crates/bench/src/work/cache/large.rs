//! The large file: read for the first time, and when it is mounted anew.

use std::path::Path;

use crate::failure::Failure;
use crate::measure::{Cache as State, Measure, Unit};
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;
use crate::work::Step;
use crate::work::generator::{aside, shown, timed, valued};
use crate::worker::{Check, Job, Order, Transfer, Until};

use super::{LARGE, LARGE_SEED, measure};

/// How it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Large {
    /// In sequence, for the first time.
    First,
    /// The same, mounted anew.
    Remounted,
    /// At random places, mounted anew.
    Random,
}

/// Of one read in sequence, and at random.
const RECORDS_BYTES: (u32, u32) = (128 << 10, 4096);

/// Reads at random places, at most.
const RANDOM_READS: u64 = 20_000;

impl Large {
    fn job(self, context: &StepContext<'_>) -> Result<Job, Failure> {
        let random = self == Large::Random;
        let transfer = Transfer {
            target: shown(context, Path::new(LARGE))?,
            file_bytes: context.size.random_file_bytes,
            record_bytes: if random { RECORDS_BYTES.1 } else { RECORDS_BYTES.0 },
            order: match random {
                true => Order::Random { seed: context.seed },
                false => Order::Sequential,
            },
            until: match random {
                true => {
                    Until::Within { operations: RANDOM_READS, seconds: context.size.random_seconds }
                }
                false => Until::Pass,
            },
            depth: 1,
            direct: false,
        };
        Ok(Job::Read { transfer, check: Check::Content { seed: LARGE_SEED } })
    }
}

impl Step for Large {
    fn measure(&self) -> Measure {
        let (id, title, unit) = match self {
            Large::First => (
                "large.first",
                "large file read for the first time, 128 KiB records",
                Unit::BytesPerSecond,
            ),
            Large::Remounted => (
                "large.remounted",
                "large file read again, mounted anew, 128 KiB records",
                Unit::BytesPerSecond,
            ),
            Large::Random => (
                "large.random",
                "large file, mounted anew, 4 KiB at random places",
                Unit::PerSecond,
            ),
        };
        measure(id, title, unit, State::Cold)
    }

    fn suits(&self, access: &Access<'_>) -> bool {
        matches!(access, Access::Directory(_))
    }

    fn run(&self, context: &mut StepContext<'_>) -> Result<Measured, Failure> {
        let measured = timed(context, &self.job(context)?)?.1;
        if *self == Large::First {
            // What the disk was too slow for is fetched by whoever reads it next.
            aside(context, &self.job(context)?)?;
        }
        let unit = self.measure().unit;
        valued(measured, unit)
    }
}
