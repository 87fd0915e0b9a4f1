//! The engine that needs nothing but SFTP: all steps by the remotes' own operations.
//!
//! Small files go many at once, each in three round trips; large ones in pieces, as many as the
//! remote says are worth having on their way; both beside each other, within the bounds of `flow`.
//! Over how many sessions that goes is the remote's choice (`host`).

use std::sync::Arc;

use crate::events::Events;
use crate::job::{Job, JobError};
use crate::outcome::Outcome;
use crate::run::Run;

/// Checks that no option asks for what SFTP does not carry.
///
/// # Errors
/// Naming the option, and what can.
pub fn check(job: &Job) -> Result<(), JobError> {
    let options = &job.options;
    if options.xattrs {
        let words = "SFTP carries no extended attributes; use --engine tar, or leave -X out";
        return Err(JobError::Option(words));
    }
    if options.specials {
        let words = "SFTP makes no devices; use --engine tar, or leave --specials out";
        return Err(JobError::Option(words));
    }
    if options.hard_links && job.sources.iter().any(|source| source.tree.local.is_none()) {
        let words = "SFTP does not tell which names are of one file; use --engine tar, or leave \
                     -H out";
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
    check(&job)?;
    Ok(drive(Run::start(job, events).await?).await)
}

/// Carries out all steps of a run, and ends it.
pub async fn drive(mut run: Run) -> Outcome {
    while let Some(step) = run.next().await {
        run.apply(step).await;
    }
    run.finish().await
}
