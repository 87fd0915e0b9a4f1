//! `failover`: how long a reader waits when one of two hosts goes away.
//!
//! Only for mounts that are made of two hosts. The file is on the first one, or on both of a pool.
//! The second goes away while the file is read, and is back for the next step.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use sandbox::link::Link;

use crate::corpus;
use crate::executor::Executor;
use crate::failure::Result;
use crate::measure::{Cache, Unit};
use crate::results::{Measured, SubjectInfo};
use crate::size::{Scale, Size};
use crate::step::StepContext;
use crate::worker::{Check, Job, Transfer, Until};

use super::generator::{shown, timed};
use super::{DIRECTORY, Step, Workload, measure};

/// The workload.
pub struct Failover;

/// The file that is read, and its content.
const FILE: &str = "failover/file";
const FILE_BYTES: u64 = 64 << 20;
const SEED: u64 = 0x60;

/// How long it is read before the host goes away: all sessions are in use by then.
const BEFORE: Duration = Duration::from_secs(1);

/// How the host goes away.
#[derive(Clone, Copy)]
enum Loss {
    /// Its connections are reset, and new ones refused, as when its sshd ends.
    Reset,
    /// It does not answer any more, as when it loses power.
    Silence,
}

impl Loss {
    fn begin(self, link: &Link) {
        match self {
            Loss::Reset => {
                link.refuse();
                link.cut();
            }
            Loss::Silence => link.stall(),
        }
    }

    fn end(self, link: &Link) {
        match self {
            Loss::Reset => link.accept(),
            Loss::Silence => link.resume(),
        }
    }

    /// How long the file is read.
    fn seconds(self, scale: Scale) -> f64 {
        match (self, scale) {
            (Loss::Reset, Scale::Quick) => 2.0,
            (Loss::Reset, _) => 4.0,
            // Silence shows only after a while.
            (Loss::Silence, Scale::Quick) => 6.0,
            (Loss::Silence, _) => 15.0,
        }
    }
}

impl Workload for Failover {
    fn name(&self) -> &'static str {
        "failover"
    }

    fn about(&self) -> &'static str {
        "The longest wait of a reader while one of two hosts goes away; only of mounts of two hosts"
    }

    fn needs_second_link(&self) -> bool {
        true
    }

    fn space(&self, _size: &Size) -> (u64, u64) {
        (FILE_BYTES, FILE_BYTES)
    }

    fn make(&self, _size: &Size, corpus: &Path, _executor: &Executor) -> Result<()> {
        corpus::file(corpus, FILE, FILE_BYTES, SEED).map(drop)
    }

    fn data(&self, _size: &Size) -> Vec<PathBuf> {
        vec![PathBuf::from(FILE)]
    }

    fn steps(&self, _size: &Size) -> Vec<Step> {
        let step = |id, title, loss| {
            let measure = measure("failover", id, title, Unit::Seconds, Cache::Direct);
            let step = Step::new(measure, DIRECTORY, move |context| read(context, loss));
            step.only_for(has_two_hosts).valued(longest_s)
        };
        vec![
            step(
                "reset",
                "longest read of 4 KiB while one of two hosts resets its connections",
                Loss::Reset,
            ),
            step(
                "silence",
                "longest read of 4 KiB while one of two hosts stops answering",
                Loss::Silence,
            ),
        ]
    }
}

fn has_two_hosts(subject: &SubjectInfo) -> bool {
    subject.is_any_of(&["sshoal-union", "sshoal-places", "sshoal-pool", "sshfsm-union"])
}

/// How long the longest read took.
fn longest_s(measured: &Measured, _: Unit) -> f64 {
    measured.latency.as_ref().map_or(f64::NAN, |latency| latency.max_us / 1e6)
}

/// The file is read at random places, past the page cache.
fn read(context: &mut StepContext<'_>, loss: Loss) -> Result<Measured> {
    let link = context.server.second_link().expect("without it this work is left out");
    let target = shown(context, Path::new(FILE))?;
    let until = Until::Seconds(loss.seconds(context.size.scale));
    let transfer = Transfer::at_random(target, FILE_BYTES, context.seed, until);
    let transfer = Transfer { direct: true, ..transfer };
    let job = Job::Read { transfer, check: Check::Content { seed: SEED } };
    thread::scope(|scope| {
        let (_ended, reading) = mpsc::channel::<()>();
        scope.spawn(move || {
            // An error is the end of the reading.
            if reading.recv_timeout(BEFORE) == Err(mpsc::RecvTimeoutError::Timeout) {
                loss.begin(link);
                let _ = reading.recv();
                loss.end(link);
            }
        });
        timed(context, &job)
    })
}
