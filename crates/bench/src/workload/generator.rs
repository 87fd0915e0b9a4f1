//! How steps use our own generators (see [`crate::worker`]).

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::account;
use crate::failure::{Failure, Result};
use crate::results::Measured;
use crate::step::StepContext;
use crate::subject::Access;
use crate::worker::{self, Job, Target};

/// A path of the storage as the subject shows it.
pub(super) fn shown(context: &StepContext<'_>, path: &Path) -> Result<Target> {
    match context.access() {
        Access::Directory(dir) => Ok(Target::Path(dir.join(path))),
        Access::Sftp(ssh) => {
            let path = context.subject.storage().root().join(path);
            Ok(Target::Sftp { ssh: worker::words_of(&ssh())?, path })
        }
        Access::Nfs { port, export } => Ok(Target::Nfs { port, path: export.join(path) }),
        Access::Copier(_) | Access::Stream(_) => {
            Err(Failure::failed("it has no files that can be opened"))
        }
    }
}

/// A path of the storage without the subject, if this machine can reach it so; else as the subject
/// shows it after it has forgotten all that it had cached.
pub(super) fn at_storage(context: &mut StepContext<'_>, path: &Path) -> Result<Target> {
    if let Some(local) = context.subject.storage().local() {
        return Ok(Target::Path(local.join(path)));
    }
    context.session.forget(context.executor)?;
    shown(context, path)
}

/// Does a job as what is measured.
pub(super) fn timed(context: &mut StepContext<'_>, job: &Job) -> Result<Measured> {
    let (output, measured) = context.timed(worker::program(job)?)?;
    let done = worker::report(&output.stdout)?;
    let client = match context.access() {
        // Its process is the client; logging in is no part of what is measured.
        Access::Sftp(_) | Access::Nfs { .. } => account::since(&done.before, &measured.client),
        _ => measured.client,
    };
    Ok(Measured {
        seconds: done.seconds,
        bytes: done.bytes,
        operations: done.operations,
        verified: done.verified,
        latency: done.latency,
        client,
        ..measured
    })
}

/// Does a job that prepares or checks.
pub(super) fn aside(context: &mut StepContext<'_>, job: &Job) -> Result<()> {
    worker::report(&context.aside(worker::program(job)?)?.stdout).map(drop)
}

/// What a step of a subject's session leaves for a later one of the same session. Each subject has
/// its own.
#[derive(Debug)]
pub(super) struct Relay<T>(Mutex<HashMap<String, T>>);

impl<T> Default for Relay<T> {
    fn default() -> Relay<T> {
        Relay(Mutex::default())
    }
}

impl<T> Relay<T> {
    pub(super) fn leave(&self, context: &StepContext<'_>, what: T) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.insert(context.subject.info().name, what);
    }

    pub(super) fn take(&self, context: &StepContext<'_>) -> Option<T> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.remove(&context.subject.info().name)
    }

    /// The same, which has to be there.
    pub(super) fn need(&self, context: &StepContext<'_>) -> Result<T> {
        let why = "the step before it has left nothing to work on";
        self.take(context).ok_or_else(|| Failure::NotTried { why: why.to_owned() })
    }
}
