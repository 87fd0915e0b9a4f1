//! The context of a running step.

use std::path::Path;
use std::process::Output;
use std::time::Instant;

use crate::account;
use crate::executor::{Executor, Program};
use crate::failure::{Failure, Result};
use crate::results::{Measured, Usage};
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
    /// What workloads have prepared locally: see [`crate::corpus`].
    pub corpus: &'a Path,
    /// Runs programs.
    pub executor: &'a Executor,
    /// When the step has to be done.
    pub deadline: Instant,
    /// What the server's processes have used so far: [`crate::server::Server::usage`], or
    /// `&|| None`.
    pub server_usage: &'a dyn Fn() -> Option<Usage>,
}

impl StepContext<'_> {
    /// How the subject is used.
    pub fn access(&self) -> Access<'_> {
        self.session.access()
    }

    /// The directory that the subject shows.
    ///
    /// # Errors
    /// When it is no file system.
    pub fn directory(&self) -> Result<&Path> {
        match self.access() {
            Access::Directory(dir) => Ok(dir),
            _ => Err(Failure::failed("it has no directory")),
        }
    }

    /// Runs a program as what is measured: usage of the client's and the server's processes is
    /// taken before and after. Value, bytes and operations are the step's to fill in; `seconds`,
    /// and all usages are filled.
    ///
    /// Where the subject is a file system, the client is its daemon and the program is the
    /// application. Elsewhere the program itself is the client. Peaks of memory are those of the
    /// step, where the kernel lets us begin them anew; the server's are since its processes began.
    ///
    /// # Errors
    /// As [`Executor::succeed`].
    pub fn timed(&mut self, program: impl Into<Program>) -> Result<(Output, Measured)> {
        let limit = self.deadline.saturating_duration_since(Instant::now());
        account::forget_peak(&self.session.client_pids());
        let before = self.used();
        let ran = self.executor.succeed(program, limit)?;
        let (daemon, server) = self.used_since(&before);
        let (client, application) = match self.session.access() {
            Access::Directory(_) => (daemon, Some(ran.usage)),
            Access::Copier(_) | Access::Stream(_) | Access::Sftp(_) | Access::Nfs { .. } => {
                (account::plus(ran.usage, daemon), None)
            }
        };
        let measured =
            Measured { seconds: ran.seconds, client, server, application, ..Measured::default() };
        Ok((ran.output, measured))
    }

    /// Waits until all written data are in the storage, and adds the time and usages of that: a
    /// subject that writes back late does so here.
    ///
    /// # Errors
    /// As [`Session::settle`].
    pub fn settle(&mut self, measured: &mut Measured) -> Result<()> {
        let before = self.used();
        let begin = Instant::now();
        self.session.settle(self.executor)?;
        measured.seconds += begin.elapsed().as_secs_f64();
        let (client, server) = self.used_since(&before);
        measured.client = account::after(measured.client, client);
        let both = measured.server.zip(server);
        measured.server = both.map(|(so_far, settling)| account::after(so_far, settling));
        Ok(())
    }

    /// What the client's processes have used so far, and the server's, with those that the session
    /// itself has started there.
    fn used(&self) -> (Usage, Option<Usage>) {
        let own = account::tree_usage(&self.session.server_pids());
        let server = (self.server_usage)().map(|usage| account::plus(usage, own));
        (account::tree_usage(&self.session.client_pids()), server)
    }

    fn used_since(&self, (client, server): &(Usage, Option<Usage>)) -> (Usage, Option<Usage>) {
        let (client_now, server_now) = self.used();
        let of_server = server.as_ref().zip(server_now);
        let of_server = of_server.map(|(before, now)| account::since(before, &now));
        (account::since(client, &client_now), of_server)
    }

    /// Runs a program that prepares or checks, within the same deadline.
    ///
    /// # Errors
    /// As [`Executor::succeed`].
    pub fn aside(&mut self, program: impl Into<Program>) -> Result<Output> {
        let limit = self.deadline.saturating_duration_since(Instant::now());
        Ok(self.executor.succeed(program, limit)?.output)
    }
}

#[cfg(test)]
mod tests;
