//! The context of a running step.

use std::path::Path;
use std::process::Output;
use std::time::Instant;

use sandbox::link::Link;

use crate::account::{self, Tracer};
use crate::executor::{Executor, Program};
use crate::failure::{Failure, Result};
use crate::results::{Measured, Requests, Usage, Wire};
use crate::size::Size;
use crate::subject::{Access, Session, Subject};

/// What can be read of the server while a step runs. Nothing, unless it is a private one.
pub trait ServerMeter: Send + Sync {
    /// The processes that serve, with all below them.
    fn pids(&self) -> Vec<u32> {
        Vec::new()
    }

    /// What they have used so far, ended ones included.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Bytes on the link so far.
    fn wire(&self) -> Option<Wire> {
        None
    }

    /// The simulated link of the second host, which a step may break and has to restore.
    fn second_link(&self) -> Option<&Link> {
        None
    }
}

/// No server, or one that is out of reach.
impl ServerMeter for () {}

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
    /// The server, or `&()`.
    pub server: &'a dyn ServerMeter,
    /// Sample the CPU of single processes over time.
    pub trace_cpu: bool,
}

/// Usage of both sides and bytes on the link, at a moment or between two.
struct Used {
    client: Usage,
    server: Option<Usage>,
    wire: Option<Wire>,
    requests: Option<Requests>,
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
        let tracer = self.trace_cpu.then(|| self.tracer()).transpose()?;
        let before = self.used();
        let ran = self.executor.succeed(program, limit)?;
        let Used { client: daemon, server, wire, requests } = self.used_since(&before);
        let cpu_trace = tracer.map(Tracer::end);
        let (client, application) = match self.directory() {
            Ok(_) => (daemon, Some(ran.usage)),
            Err(_) => (account::plus(ran.usage, daemon), None),
        };
        let seconds = ran.seconds;
        let measured = Measured {
            seconds,
            client,
            server,
            application,
            wire,
            requests,
            cpu_trace,
            ..Measured::default()
        };
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
        let used = self.used_since(&before);
        measured.client = account::after(measured.client, used.client);
        let both = measured.server.zip(used.server);
        measured.server = both.map(|(so_far, settling)| account::after(so_far, settling));
        let both = measured.wire.zip(used.wire);
        measured.wire = both.map(|(so_far, settling)| so_far.plus(settling));
        Ok(())
    }

    /// What the client's processes have used so far, and the server's, with those that the session
    /// itself has started there.
    fn used(&self) -> Used {
        let own = account::tree_usage(&self.session.server_pids());
        Used {
            client: account::tree_usage(&self.session.client_pids()),
            server: self.server.usage().map(|usage| account::plus(usage, own)),
            wire: self.session.wire(self.server),
            requests: self.session.requests(self.executor),
        }
    }

    fn used_since(&self, before: &Used) -> Used {
        let now = self.used();
        let of_server = before.server.zip(now.server);
        let of_wire = before.wire.zip(now.wire);
        let of_requests = before.requests.as_ref().zip(now.requests.as_ref());
        Used {
            client: account::since(&before.client, &now.client),
            server: of_server.map(|(before, now)| account::since(&before, &now)),
            wire: of_wire.map(|(before, now)| now.since(before)),
            requests: of_requests.map(|(before, now)| now.since(before)),
        }
    }

    /// Begins to sample CPU over time.
    fn tracer(&self) -> Result<Tracer> {
        let client = self.session.client_pids();
        let server = [self.server.pids(), self.session.server_pids()].concat();
        let program = if self.directory().is_ok() { "application" } else { "client" };
        Ok(Tracer::start(client, server, program)?)
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
