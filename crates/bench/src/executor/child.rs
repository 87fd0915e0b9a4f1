//! A child process that leads a process group of its own, and the programs that run beside others.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use sandbox::wait_readable;

use super::{DEATH, LeftBehind, Program, find_program, last_words};
use crate::account;
use crate::failure::{Failure, Result};
use crate::results::Usage;

/// Shown of the output of a program in the background: its end.
const WORDS_BYTES: u64 = 64 * 1024;

/// Children of this process are reaped one at a time, so that the growth of `RUSAGE_CHILDREN` is
/// the usage of that child.
static REAPING: Mutex<()> = Mutex::new(());

/// A started child. It is not reaped before [`Child::reap`], so its number stays its own.
#[derive(Debug)]
pub(super) struct Child {
    child: process::Child,
    /// Readable when the child has ended.
    pidfd: OwnedFd,
    /// Once it is reaped.
    status: Option<ExitStatus>,
}

impl Child {
    /// Starts a command in a process group of its own. Its descriptors are closed in this process,
    /// so that readers of its pipes see their end.
    pub(super) fn start(mut command: Command) -> io::Result<Child> {
        let spawned = command.process_group(0).spawn();
        drop(command);
        let mut child = spawned?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Child { child, pidfd, status: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended or `other` is readable, or `limit` has passed; whether it has
    /// ended.
    pub(super) fn wait(&self, other: Option<&OwnedFd>, limit: Duration) -> bool {
        let fds = [Some(&self.pidfd), other];
        wait_readable(&fds.into_iter().flatten().collect::<Vec<_>>(), limit);
        wait_readable(&[&self.pidfd], Duration::ZERO)
    }

    /// Signals its group, unless it is reaped: then the number may be another's.
    pub(super) fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }

    /// Kills the group and waits for the child; `false` when it has not ended within two seconds.
    pub(super) fn kill(&mut self) -> bool {
        self.signal(Signal::KILL);
        let dead = self.wait(None, DEATH);
        if dead {
            let _ = self.reap();
        }
        dead
    }

    /// Reaps a child that has ended; its status and usage, without the peak of memory.
    pub(super) fn reap(&mut self) -> io::Result<(ExitStatus, Usage)> {
        let _alone = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = account::cpu_seconds_of_children().unwrap_or_default();
        let status = self.child.wait()?;
        self.status = Some(status);
        let after = account::cpu_seconds_of_children().unwrap_or_default();
        Ok((status, account::since(&before, &after)))
    }
}

/// The last bytes of a file that other processes may write to.
pub(super) fn end_of(file: &File, bytes: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut end = vec![0; length.min(bytes) as usize];
    file.read_exact_at(&mut end, length.saturating_sub(bytes))?;
    Ok(end)
}

/// A program that runs beside the others. Dropping it kills its group. When the program has ended,
/// the rest of its group is killed with the next look at it.
#[derive(Debug)]
pub struct Background {
    program: String,
    pid: u32,
    child: Mutex<Child>,
    /// Both streams, in their order.
    words: File,
    left_behind: Arc<LeftBehind>,
}

impl Background {
    pub(super) fn start(program: &Program, left_behind: Arc<LeftBehind>) -> Result<Background> {
        let name = program.name();
        let start = || {
            let words = tempfile::tempfile()?;
            let mut command = tied_to_us(&program.command);
            command.stdout(words.try_clone()?).stderr(words.try_clone()?);
            Ok((words, Child::start(command)?))
        };
        let (words, child) = start()
            .map_err(|error: io::Error| Failure::failed(format!("cannot run {name}: {error}")))?;
        let pid = child.pid();
        Ok(Background { program: name, pid, child: Mutex::new(child), words, left_behind })
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.ended().is_none()
    }

    /// Its process number, if it still runs.
    pub fn running_pid(&self) -> Option<u32> {
        self.is_running().then_some(self.pid)
    }

    /// Its end, if it has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.wait(Duration::ZERO)
    }

    /// Waits until it has ended; `None` when it has not within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let mut child = self.child();
        if child.status.is_none() && child.wait(None, limit) {
            child.signal(Signal::KILL);
            let _ = child.reap();
        }
        child.status
    }

    /// Sends SIGTERM to its group, and kills the group when it has not ended by `limit`. Returns
    /// whether SIGTERM was enough.
    pub fn stop(&mut self, limit: Duration) -> bool {
        self.child().signal(Signal::TERM);
        // A stopped process would not handle it.
        self.child().signal(Signal::CONT);
        let ended = self.wait(limit).is_some();
        if !ended {
            self.kill();
        }
        ended
    }

    /// Kills its group, and waits at most two seconds for its end.
    pub fn kill(&mut self) {
        if self.is_running() && !self.child().kill() {
            self.left_behind.add(&self.program, self.pid);
        }
    }

    /// The end of its output on both streams, safe for a terminal.
    pub fn words(&self) -> String {
        last_words(&end_of(&self.words, WORDS_BYTES).unwrap_or_default())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command, killed by the kernel when the thread that starts it ends, where util-linux is
/// installed.
fn tied_to_us(command: &Command) -> Command {
    // A program that is not there must be an error of the start, not of setpriv.
    let program = find_program(command.get_program()).zip(find_program("setpriv"));
    let mut tied = match program {
        Some((program, setpriv)) => {
            let mut tied = Command::new(setpriv);
            tied.args(["--pdeathsig", "KILL", "--"]).arg(program);
            tied
        }
        None => Command::new(command.get_program()),
    };
    tied.args(command.get_args()).stdin(Stdio::null());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(key, value),
            None => tied.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        tied.current_dir(dir);
    }
    tied
}
