//! The engine that needs nothing but SFTP: all steps by the remotes' own operations, and those that
//! a stream does better by one, where there is a [`Collector`] that has one.
//!
//! Small files go many at once, each in three round trips; large ones in pieces, as many as the
//! remote says are worth having on their way; both beside each other, within the bounds of `flow`.
//! Over how many sessions that goes is the remote's choice (`host`).

use std::sync::Arc;

use crate::events::Events;
use crate::job::{Job, JobError, Source};
use crate::outcome::Outcome;
use crate::run::Run;
use crate::tar::collect::Collector;

/// Checks that no option asks for what nothing here carries: neither SFTP, nor a stream, where the
/// source has one.
///
/// # Errors
/// Naming the option, and what can.
pub fn check(job: &Job, collector: &Collector) -> Result<(), JobError> {
    let options = &job.options;
    if (0..job.sources.len()).all(|source| collector.has(source)) {
        return Ok(());
    }
    if options.xattrs.any() {
        let words = "SFTP carries no extended attributes; leave -X out, or use a server \
                     that runs commands";
        return Err(JobError::Option(words));
    }
    if options.specials {
        let words = "SFTP makes no devices; leave --devices out, or use a server that runs \
                     commands";
        return Err(JobError::Option(words));
    }
    let told =
        |(index, source): (usize, &Source)| source.tree.local.is_some() || collector.has(index);
    if options.hard_links && !job.sources.iter().enumerate().all(told) {
        let words = "SFTP does not tell which names are of one file; leave -H out, or use a \
                     server that runs commands";
        return Err(JobError::Option(words));
    }
    Ok(())
}

/// Copies all that `job` asks for.
///
/// Dropped, it ends at once; what is large stays for the next run.
///
/// # Errors
/// When it cannot be begun. What happens later is in the outcome.
pub async fn copy(job: Job, events: Arc<dyn Events>) -> Result<Outcome, JobError> {
    let mut collector = Collector::default();
    check(&job, &collector)?;
    Ok(drive_with(Run::start(job, events).await?, &mut collector).await)
}

/// Carries out all steps of a run, and ends it.
pub async fn drive(run: Run) -> Outcome {
    drive_with(run, &mut Collector::default()).await
}

/// As [`drive`]; the steps that the collector takes come by its streams.
pub async fn drive_with(mut run: Run, collector: &mut Collector) -> Outcome {
    let core = run.core().clone();
    loop {
        let step = match run.next_now() {
            Some(step) => step,
            None => {
                collector.flush(&core).await;
                match run.next().await {
                    Some(step) => step,
                    None => break,
                }
            }
        };
        for step in collector.take(&run, step).await {
            run.apply(step).await;
        }
    }
    for step in collector.finish(&core).await {
        run.apply(step).await;
    }
    run.finish().await
}
