//! What a step has in its hands while it runs.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::Measured;
use crate::size::Size;
use crate::subject::{Access, Session, Subject};

/// One step of one subject in one round.
pub struct StepContext<'a> {
    /// Who is measured.
    pub subject: &'a dyn Subject,
    /// At work.
    pub session: &'a mut dyn Session,
    /// How much to do.
    pub size: &'a Size,
    /// Of pseudo-random orders; differs from round to round, not from subject to subject.
    pub seed: u64,
    /// A directory on a local disk for this step alone, removed after it.
    pub scratch: &'a Path,
    /// What works have prepared locally: see [`crate::corpus`].
    pub corpus: &'a Path,
    /// Runs programs.
    pub executor: &'a Executor,
    /// When the step has to be done.
    pub deadline: Instant,
}

impl StepContext<'_> {
    /// How the subject is used.
    #[must_use]
    pub fn access(&self) -> Access<'_> {
        self.session.access()
    }

    /// Runs a program as what is measured: usage of the client's and the server's processes is
    /// taken before and after. Value, bytes and operations are the step's to fill in; `seconds`,
    /// and all usages are filled.
    ///
    /// # Errors
    /// As [`Executor::succeed`].
    pub fn timed(&mut self, command: Command) -> Result<(Output, Measured), Failure> {
        let _ = command;
        unimplemented!()
    }

    /// Runs a program that prepares or checks, within the same deadline.
    ///
    /// # Errors
    /// As [`Executor::succeed`].
    pub fn aside(&mut self, command: Command) -> Result<Output, Failure> {
        let limit = self.deadline.saturating_duration_since(Instant::now());
        Ok(self.executor.succeed(command, limit)?.output)
    }
}
