//! Runs programs so that the run survives them.
//!
//! Invariants:
//! 1. A program is in a process group of its own, and is ended as a group: at its deadline, when
//!    the user interrupts, when a [`Background`] is dropped.
//! 2. Nothing here waits for longer than it was told to, and two seconds. What does not die by
//!    SIGKILL within them (it hangs in a dead file system) is left behind and named.
//! 3. What is kept of a program's words is bounded.
//! 4. A group gets a signal only while its first process has not been reaped, so that its number
//!    is nobody else's.
//!
//! No thread waits for a program that is run to its end: one `poll` watches its end, its output
//! and the bell of the interrupt.

mod background;
mod kept;
mod running;
mod streams;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use crate::failure::Failure;
use crate::results::Usage;

pub use background::Background;
use running::{End, Running};

/// How long a killed program may take to be dead.
const DEATH: Duration = Duration::from_secs(2);

/// Runs programs so that the run survives them: each in a process group of its own, with a
/// deadline, ended when the user ends the run. Clones share the interrupt.
#[derive(Clone, Debug)]
pub struct Executor {
    interrupt: Arc<Interrupt>,
    left_behind: Arc<LeftBehind>,
}

/// The user's wish to end the run.
#[derive(Debug)]
struct Interrupt {
    raised: AtomicBool,
    /// Readable once it is raised, for whoever waits.
    bell: OwnedFd,
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

/// A program that has ended by itself.
#[derive(Debug)]
pub struct Ran {
    /// Status and what it printed.
    pub output: Output,
    /// From its start to its end.
    pub seconds: f64,
    /// Of itself and what it waited for. The peak of memory is the greatest sum over its
    /// processes that was seen; a program of less than 20 ms has none.
    pub usage: Usage,
}

impl Default for Executor {
    fn default() -> Executor {
        Executor::new()
    }
}

impl Executor {
    /// One that nobody has interrupted.
    ///
    /// # Panics
    /// When this process cannot have another descriptor.
    #[must_use]
    pub fn new() -> Executor {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.expect("a descriptor for the interrupt");
        Executor {
            interrupt: Arc::new(Interrupt { raised: AtomicBool::new(false), bell }),
            left_behind: Arc::default(),
        }
    }

    /// Ends all that runs to its end now, with [`Failure::Interrupted`], and refuses everything
    /// asked for later. From any thread.
    pub fn interrupt(&self) {
        self.interrupt.raised.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.interrupt.bell, &1u64.to_ne_bytes());
    }

    /// Whether somebody has.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.raised.load(Ordering::SeqCst)
    }

    /// One that the interrupt of this one does not reach: to unmount and remove after it.
    #[must_use]
    pub fn for_cleanup(&self) -> Executor {
        Executor { left_behind: self.left_behind.clone(), ..Executor::new() }
    }

    /// Programs that stayed for two seconds after SIGKILL, so far.
    #[must_use]
    pub fn left_behind(&self) -> Vec<String> {
        self.left_behind.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a program to its end. Standard input is empty, and output is kept, where the command
    /// does not say otherwise: up to 64 MiB of standard output, and the last MiB of standard
    /// error.
    ///
    /// The end of the program is what counts: what it has left running goes on, and what that
    /// prints later is nobody's.
    ///
    /// # Errors
    /// When it cannot be started, is not done by `limit` (its group is killed), prints too much,
    /// or the run was interrupted. A status other than 0 is no error here.
    pub fn run(&self, command: Command, limit: Duration) -> Result<Ran, Failure> {
        if self.is_interrupted() {
            return Err(Failure::Interrupted);
        }
        let mut running = Running::start(command)?;
        match running.watch(limit, &self.interrupt.bell)? {
            End::Exited => running.finish(),
            end => {
                if !running.kill() {
                    self.left_behind.add(running.program(), running.pid());
                }
                Err(match end {
                    End::Interrupted => Failure::Interrupted,
                    _ => Failure::timed_out(limit),
                })
            }
        }
    }

    /// The same; a status other than 0 is a failure that quotes its last words.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn succeed(&self, command: Command, limit: Duration) -> Result<Ran, Failure> {
        let program = streams::program(&command);
        let ran = self.run(command, limit)?;
        if ran.output.status.success() {
            return Ok(ran);
        }
        let Output { status, stdout, stderr } = &ran.output;
        let words = if stderr.trim_ascii().is_empty() { stdout } else { stderr };
        Err(Failure::failed(match last_words(words) {
            words if words.is_empty() => format!("{program} failed ({status}) and said nothing"),
            words => format!("{program} failed ({status}): {words}"),
        }))
    }

    /// Starts a program that stays, such as a mount's daemon in the foreground. Its standard
    /// input is empty, and the end of what it prints is kept, whatever the command says of them.
    /// The kernel kills it when this process ends.
    ///
    /// # Errors
    /// When it cannot be started, or the run was interrupted.
    pub fn spawn(&self, command: Command) -> Result<Background, Failure> {
        if self.is_interrupted() {
            return Err(Failure::Interrupted);
        }
        Background::start(&command, self.left_behind.clone())
    }
}

/// Where a program is that can be named so: a path that can be executed, or the first in `PATH`.
#[must_use]
pub fn find_program(name: impl Into<PathBuf>) -> Option<PathBuf> {
    use rustix::fs::{Access, access};
    let name = name.into();
    let runs = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if name.components().count() > 1 {
        return Some(name).filter(runs);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where daemons are, which is not in every user's path.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(&name)).find(runs)
}

/// The last lines of what a program said, fit for a terminal.
#[must_use]
pub fn last_words(bytes: &[u8]) -> String {
    const LINES: usize = 6;
    const CHARACTERS: usize = 1000;
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> =
        text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    let printable = |line: &&str| -> String {
        let escape =
            |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
        line.chars().take(CHARACTERS).map(escape).collect()
    };
    last.iter().map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
