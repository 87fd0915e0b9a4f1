//! Runs programs so that the run survives them.
//!
//! Invariants:
//! 1. A program is in a process group of its own, and is ended as a group: at its deadline, when
//!    the user interrupts, when a [`Background`] is dropped.
//! 2. No call takes longer than its limit and two seconds. A program that SIGKILL does not end
//!    within them (it hangs in a dead file system) is left behind and reported.
//! 3. The kept output is bounded: a program that prints more is ended at the next look at it.
//! 4. A group is signalled only while its first process has not been reaped, so that its number
//!    cannot belong to another process.
//!
//! Output is kept in unnamed files. One `poll` watches the end of a program and the interrupt.

mod child;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use sandbox::wait_readable;

use crate::account;
use crate::failure::{Failure, Result};
use crate::results::Usage;

pub use child::Background;
use child::{Child, end_of};

/// Longest time from SIGKILL to the end of a program.
const DEATH: Duration = Duration::from_secs(2);

/// Kept of standard output: six times a list of a hundred thousand files.
const STDOUT_BYTES: u64 = 64 << 20;

/// Kept of standard error: its end.
const STDERR_BYTES: u64 = 1 << 20;

/// First look at a program's memory and output; the interval then doubles up to [`LOOK_MOST`]. A
/// look costs 20 us for each process, and a peak is still seen after it has passed.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_MOST: Duration = Duration::from_secs(1);

/// A command and its standard streams. Input that is not set is empty, output that is not set is
/// kept: a terminal of this process would stop a program in a process group of its own.
#[derive(Debug)]
pub struct Program {
    command: Command,
    stdin: Option<Stdio>,
    stdout: Option<Stdio>,
}

impl From<Command> for Program {
    /// Streams that were set in the command have no effect.
    fn from(command: Command) -> Program {
        Program { command, stdin: None, stdout: None }
    }
}

impl Program {
    /// Sets its standard input.
    pub fn stdin(self, stdin: impl Into<Stdio>) -> Program {
        Program { stdin: Some(stdin.into()), ..self }
    }

    /// Sets its standard output.
    pub fn stdout(self, stdout: impl Into<Stdio>) -> Program {
        Program { stdout: Some(stdout.into()), ..self }
    }

    /// Its name for messages, without its directory.
    fn name(&self) -> String {
        let path = Path::new(self.command.get_program());
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().escape_debug().to_string()
    }
}

/// Runs programs so that the run survives them: each in a process group of its own, with a
/// deadline, ended when the user ends the run. Clones share the interrupt.
#[derive(Clone, Debug)]
pub struct Executor {
    /// Readable once the user has ended the run.
    interrupt: Arc<OwnedFd>,
    left_behind: Arc<LeftBehind>,
}

/// Programs that did not die.
#[derive(Debug, Default)]
struct LeftBehind(Mutex<Vec<String>>);

impl LeftBehind {
    fn add(&self, program: &str, pid: u32) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(format!("{program} (process {pid})"));
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ran {
    /// Status and kept output.
    pub output: Output,
    /// From its start to its end.
    pub seconds: f64,
    /// Of itself and the children that it waited for. The peak of memory is the greatest sum over
    /// its processes that was seen; a program of less than 20 ms has none.
    pub usage: Usage,
}

impl Default for Executor {
    fn default() -> Executor {
        Executor::new()
    }
}

impl Executor {
    /// One that is not interrupted.
    ///
    /// # Panics
    /// When this process cannot have another descriptor.
    pub fn new() -> Executor {
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let interrupt = Arc::new(interrupt.expect("a descriptor for the interrupt"));
        Executor { interrupt, left_behind: Arc::default() }
    }

    /// Ends all calls of [`Executor::run`] with [`Failure::Interrupted`], and refuses later ones.
    /// Callable from any thread.
    pub fn interrupt(&self) {
        let _ = rustix::io::write(&*self.interrupt, &1u64.to_ne_bytes());
    }

    /// Whether [`Executor::interrupt`] was called.
    pub fn is_interrupted(&self) -> bool {
        wait_readable(&[&*self.interrupt], Duration::ZERO)
    }

    /// An executor without the interrupt of this one: to unmount and clean up after it.
    pub fn for_cleanup(&self) -> Executor {
        Executor { left_behind: self.left_behind.clone(), ..Executor::new() }
    }

    /// Programs that stayed for two seconds after SIGKILL, so far.
    pub fn left_behind(&self) -> Vec<String> {
        self.left_behind.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a program to its end. Output that the program does not set is kept: up to 64 MiB of
    /// standard output, and the last MiB of standard error.
    ///
    /// It returns when the program has ended; children that it has left running go on.
    ///
    /// # Errors
    /// When it cannot be started, is not done by `limit` (its group is killed), prints too much,
    /// or the run was interrupted. A status other than 0 is not an error.
    pub fn run(&self, program: impl Into<Program>, limit: Duration) -> Result<Ran> {
        if self.is_interrupted() {
            return Err(Failure::Interrupted);
        }
        let program = program.into();
        let name = program.name();
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let started = Instant::now();
        let mut child = start(program, [&stdout, &stderr])
            .map_err(|error| Failure::failed(format!("cannot run {name}: {error}")))?;
        let too_much = || {
            let printed = stdout.metadata().map_or(0, |stdout| stdout.len());
            let why = || format!("{name} printed more than {} MiB", STDOUT_BYTES >> 20);
            (printed > STDOUT_BYTES).then(|| Failure::failed(why()))
        };
        let mut peak_memory_bytes = 0;
        let (mut interval, mut next_look) = (LOOK_FIRST, LOOK_FIRST);
        let failure = loop {
            let elapsed = started.elapsed();
            if elapsed >= limit {
                break Some(Failure::timed_out(limit));
            }
            if elapsed >= next_look {
                peak_memory_bytes = account::peak_memory_bytes(child.pid()).max(peak_memory_bytes);
                interval = (interval * 2).min(LOOK_MOST);
                next_look = started.elapsed() + interval;
                if let Some(failure) = too_much() {
                    break Some(failure);
                }
            }
            let timeout = limit.min(next_look).saturating_sub(started.elapsed());
            if child.wait(Some(&*self.interrupt), timeout) {
                break None;
            }
            if self.is_interrupted() {
                break Some(Failure::Interrupted);
            }
        };
        if let Some(failure) = failure {
            if !child.kill() {
                self.left_behind.add(&name, child.pid());
            }
            return Err(failure);
        }
        let seconds = started.elapsed().as_secs_f64();
        let (status, usage) = child.reap()?;
        if let Some(failure) = too_much() {
            return Err(failure);
        }
        let [stdout, stderr] = [end_of(&stdout, STDOUT_BYTES)?, end_of(&stderr, STDERR_BYTES)?];
        Ok(Ran {
            output: Output { status, stdout, stderr },
            seconds,
            usage: Usage { peak_memory_bytes, ..usage },
        })
    }

    /// Runs a program to its end, of which a status other than 0 is a failure with its last words.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn succeed(&self, program: impl Into<Program>, limit: Duration) -> Result<Ran> {
        let program = program.into();
        let name = program.name();
        let ran = self.run(program, limit)?;
        if ran.output.status.success() {
            return Ok(ran);
        }
        let Output { status, stdout, stderr } = &ran.output;
        let words = if stderr.trim_ascii().is_empty() { stdout } else { stderr };
        Err(Failure::failed(match last_words(words) {
            words if words.is_empty() => format!("{name} failed ({status}) without a message"),
            words => format!("{name} failed ({status}): {words}"),
        }))
    }

    /// Starts a program that stays, such as a mount's daemon in the foreground. Its standard
    /// input is empty, and its output is kept. The kernel kills it when the calling thread ends.
    ///
    /// # Errors
    /// When it cannot be started, or the run was interrupted.
    pub fn spawn(&self, program: impl Into<Program>) -> Result<Background> {
        if self.is_interrupted() {
            return Err(Failure::Interrupted);
        }
        Background::start(&program.into(), self.left_behind.clone())
    }
}

/// Starts a program, and keeps the output that it does not set.
fn start(program: Program, [stdout, stderr]: [&File; 2]) -> std::io::Result<Child> {
    let Program { mut command, stdin, stdout: own } = program;
    command.stdin(stdin.unwrap_or_else(Stdio::null));
    command.stdout(own.map_or_else(|| stdout.try_clone().map(Stdio::from), Ok)?);
    command.stderr(stderr.try_clone()?);
    Child::start(command)
}

/// The path of a program: `name` itself if it has a directory, or the first match in `PATH`.
pub fn find_program(name: impl Into<PathBuf>) -> Option<PathBuf> {
    use rustix::fs::{Access, access};
    let name = name.into();
    let runs = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if name.components().count() > 1 {
        return Some(name).filter(runs);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Directories of daemons, which not every user's PATH contains.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(&name)).find(runs)
}

/// The last lines of a program's output, safe for a terminal.
pub fn last_words(bytes: &[u8]) -> String {
    const LINES: usize = 6;
    const CHARACTERS: usize = 1000;
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> =
        text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    let printable = |line: &&str| {
        let line: String = line.chars().take(CHARACTERS).collect();
        base::printable(line.as_bytes())
    };
    last.iter().map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
