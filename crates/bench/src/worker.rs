//! Our own generators of work, each run as a process of its own: `sshoal-bench bench-worker`.
//!
//! A [`Job`] comes as JSON on standard input, a `Result` goes as JSON to standard output. The
//! subject may hang or die: then this process does, and the run continues without it.
//!
//! What is timed: from the first call that touches the file (its `open`) to the last (`fsync`
//! where asked for, `close`). Connecting, and making and comparing data, are not: with one
//! request at a time the clock stands still meanwhile. With several in flight it goes on, since
//! the others are being answered; comparing costs 0.1 us for 4 KiB.

mod check;
mod job;
mod latencies;
mod local;
mod names;
mod nfs;
mod remote;
mod sftp;
mod walk;

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::account;
use crate::corpus::content::Content;
use crate::executor::Program;
use crate::failure::{Failure, Result};
use crate::results::Usage;

use check::Checker;
pub use job::{
    Check, Done, Entry, Job, NameJob, Operation, Order, Target, Transfer, Until, words_of,
};
pub(crate) use latencies::Latencies;
pub(crate) use sftp::Connection;
pub use walk::Walk;

/// The hidden subcommand of the program that calls [`main`].
pub const SUBCOMMAND: &str = "bench-worker";

/// The program that does a job, which is in an unnamed file on its standard input.
///
/// # Errors
/// When a path is not UTF-8, or there is no place for a temporary file.
pub fn program(job: &Job) -> Result<Program> {
    let failed = |why: io::Error| Failure::failed(format!("cannot hand over a job: {why}"));
    let program = Program::from(process().map_err(failed)?);
    Ok(program.stdin(job_file(job).map_err(failed)?))
}

#[cfg(not(test))]
fn process() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(SUBCOMMAND);
    Ok(command)
}

/// The program that runs tests is told to be a worker in one of them.
#[cfg(test)]
use tests::process;

fn job_file(job: &Job) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(&serde_json::to_vec(job)?)?;
    file.rewind()?;
    Ok(file)
}

/// What a worker has printed.
///
/// # Errors
/// The worker's own failure, or that it printed something else.
pub fn report(output: &[u8]) -> Result<Done> {
    serde_json::from_slice(output).unwrap_or_else(|error| {
        Err(Failure::failed(format!("the worker's report cannot be read: {error}")))
    })
}

/// Does the job on standard input. The exit code is 0 also when the job fails: the report says
/// so.
pub fn main() -> ExitCode {
    let mut input = Vec::new();
    let job = io::stdin().read_to_end(&mut input).and_then(|_| Ok(serde_json::from_slice(&input)?));
    let result = match job {
        Ok(job) => run(&job),
        Err(error) => {
            eprintln!("{SUBCOMMAND}: no job on standard input: {error}");
            return ExitCode::FAILURE;
        }
    };
    match serde_json::to_writer(io::stdout().lock(), &result) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Does a job in this process.
///
/// # Errors
/// What the file or the server answered, or that data are wrong.
pub fn run(job: &Job) -> Result<Done> {
    match job {
        Job::Read { transfer, check } => {
            perform(transfer, Action::Read(Checker::new(check, transfer)?))
        }
        Job::Write { transfer, seed, create } => {
            perform(transfer, Action::Write { content: Content::new(*seed), create: *create })
        }
        Job::Names(job) => names::run(job),
    }
}

/// What is done with each record of a file.
enum Action {
    /// It is read and compared.
    Read(Checker),
    /// It is written, to a file that is created first or exists.
    Write { content: Content, create: bool },
}

impl Action {
    /// The system call.
    fn name(&self) -> &'static str {
        match self {
            Action::Read(_) => "read",
            Action::Write { .. } => "write",
        }
    }

    /// Returns whether all data were compared.
    fn finish(&self) -> Result<bool> {
        match self {
            Action::Read(checker) => checker.finish().map(|()| true),
            Action::Write { .. } => Ok(false),
        }
    }
}

fn perform(transfer: &Transfer, action: Action) -> Result<Done> {
    match (&transfer.target, action) {
        (Target::Path(path), action) => local::run(path, transfer, action),
        (Target::Sftp { ssh, path }, action) => {
            remote::run(sftp::SftpFile::connect(ssh)?, path, transfer, action)
        }
        (Target::Nfs { port, path }, action) => {
            remote::run(nfs::NfsFile::connect(*port)?, path, transfer, action)
        }
    }
}

/// What this process, and those below it, have used so far.
fn used() -> Usage {
    account::tree_usage(&[std::process::id()])
}

/// A clock that can stand still.
#[derive(Debug)]
struct Clock {
    begin: Instant,
    aside: Duration,
}

impl Clock {
    fn start() -> Clock {
        Clock { begin: Instant::now(), aside: Duration::ZERO }
    }

    /// Does what is not to be timed.
    fn aside<T>(&mut self, workload: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = workload();
        self.aside += begin.elapsed();
        result
    }

    fn seconds(&self) -> f64 {
        self.begin.elapsed().saturating_sub(self.aside).as_secs_f64()
    }

    /// Whether a job that has begun `operations` of `records` records begins no other.
    fn is_over(&self, until: Until, operations: u64, records: u64) -> bool {
        match until {
            Until::Pass => operations >= records,
            Until::Operations(wanted) => operations >= wanted.min(records),
            Until::Within { operations: wanted, .. } if operations >= wanted.min(records) => true,
            // One operation at least is begun, so that there is a figure.
            Until::Seconds(seconds) | Until::Within { seconds, .. } => {
                operations > 0 && self.seconds() >= seconds
            }
        }
    }
}

#[cfg(test)]
mod tests;
