//! The engine that needs only SFTP: all steps by operations of the remotes, except those that a
//! stream of [`StreamsByName`] takes.
//!
//! Many small files are copied at once, each in three round trips; large ones in pieces, as many in
//! flight as the remote suggests; both at the same time, within the bounds of `flow`. The remote
//! decides over how many sessions that goes (`host`).

use std::sync::Arc;

use crate::events::Events;
use crate::job::{Job, JobError, Source, Tree};
use crate::outcome::Outcome;
use crate::run::Run;
use crate::tar::by_name::StreamsByName;

/// Checks that SFTP, or the stream of the source if it has one, can do what the options request.
///
/// # Errors
/// Names the option, and the remedy.
pub fn check(job: &Job, by_name: &StreamsByName) -> Result<(), JobError> {
    let options = &job.options;
    // A dry run copies nothing.
    if options.dry_run || (0..job.sources.len()).all(|source| by_name.has(source)) {
        return Ok(());
    }
    let exceeds_sftp = |(index, source): (usize, &Source)| {
        by_name.has(index) || source.tree.exceeds_sftp() && job.target.exceeds_sftp()
    };
    if !job.sources.iter().enumerate().all(exceeds_sftp) {
        if options.xattrs.any() {
            let words = "SFTP carries no extended attributes; leave -X out, or use a server \
                         with the helper; without --verify and --engine sftp, one that runs \
                         commands is enough";
            return Err(JobError::Option(words));
        }
        if options.specials {
            let words = "SFTP makes no devices; leave --devices out, or use a server with the \
                         helper; without --verify and --engine sftp, one that runs commands is \
                         enough";
            return Err(JobError::Option(words));
        }
    }
    let reports_links = |(index, source): (usize, &Source)| {
        let Tree { local, remote, unseen, .. } = &source.tree;
        // The helper reports them, and reads whole files.
        local.is_some() || by_name.has(index) || remote.reads_files() || unseen.is_some()
    };
    if options.hard_links && !job.sources.iter().enumerate().all(reports_links) {
        let words = "SFTP does not tell which names are of one file; leave -H out, or use a \
                     server with the helper; without --engine sftp, one that runs commands is \
                     enough";
        return Err(JobError::Option(words));
    }
    Ok(())
}

/// Executes a job over SFTP.
///
/// Dropping the future ends the copy at once; unfinished large files are kept for the next run.
///
/// # Errors
/// When the job cannot start. Later failures are in the outcome.
pub async fn copy(job: Job, events: Arc<dyn Events>) -> Result<Outcome, JobError> {
    let mut by_name = StreamsByName::default();
    check(&job, &by_name)?;
    Ok(drive(Run::start(job, events).await?, &mut by_name).await)
}

/// Executes all steps of a run, with streams for those that `by_name` takes, and ends it.
pub async fn drive(mut run: Run, by_name: &mut StreamsByName) -> Outcome {
    let core = run.core().clone();
    loop {
        let step = match run.next_now() {
            Some(step) => step,
            None => {
                by_name.flush(&core).await;
                match run.next().await {
                    Some(step) => step,
                    None => break,
                }
            }
        };
        for step in by_name.take(&core, step).await {
            run.apply(step).await;
        }
    }
    for step in by_name.finish(&core).await {
        run.apply(step).await;
    }
    for step in run.delete().await {
        for step in by_name.take(&core, step).await {
            run.apply(step).await;
        }
    }
    for step in by_name.finish(&core).await {
        run.apply(step).await;
    }
    run.finish().await
}
