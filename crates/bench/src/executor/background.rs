//! A program that runs beside the others.
//!
//! A thread of its own starts it, keeps its output and reaps it: the kernel sends the parent-death
//! signal when the thread that started the child ends.

use std::io;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::child::{Child, Kept, Output, signal_group};
use super::{DEATH, LeftBehind, Program, find_program, last_words};
use crate::failure::{Failure, Result};

/// Kept of the output: its end.
const WORDS_BYTES: usize = 64 * 1024;

/// A program that runs beside the others. Dropping it kills its group. When it ends by itself, the
/// rest of its group is killed.
#[derive(Debug)]
pub struct Background {
    program: String,
    pid: u32,
    shared: Arc<Shared>,
    left_behind: Arc<LeftBehind>,
}

/// State of the thread and the owner.
#[derive(Debug)]
struct Shared {
    words: Kept,
    /// Set under the same lock under which the thread reaps.
    ended: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl Shared {
    fn ended(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the program has ended or `done`, at most `limit`.
    fn wait(&self, limit: Duration, done: impl Fn() -> bool) -> Option<ExitStatus> {
        let waiting = |ended: &mut Option<ExitStatus>| ended.is_none() && !done();
        let waited = self.changed.wait_timeout_while(self.ended(), limit, waiting);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Background {
    pub(super) fn start(program: &Program, left_behind: Arc<LeftBehind>) -> Result<Background> {
        let name = program.name();
        let failed = |error: io::Error| Failure::failed(format!("cannot run {name}: {error}"));
        let words = Kept::last(WORDS_BYTES);
        // One pipe for both streams keeps their order.
        let (writer, output) = Output::new(&words).map_err(failed)?;
        let mut command = tied_to_us(&program.command);
        command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        let shared = Arc::new(Shared { words, ended: Mutex::new(None), changed: Condvar::new() });
        let of_thread = shared.clone();
        let (sender, started) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("background".to_owned())
            .spawn(move || match Child::start(command, vec![output]) {
                Ok(child) => {
                    let _ = sender.send(Ok(child.pid()));
                    attend(child, &of_thread);
                }
                Err(error) => drop(sender.send(Err(error))),
            })
            .map_err(failed)?;
        let pid = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let pid = pid.map_err(failed)?;
        Ok(Background { program: name, pid, shared, left_behind })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.ended().is_none()
    }

    /// Its end, if it has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        *self.shared.ended()
    }

    /// Waits until it has ended; `None` when it has not within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        self.shared.wait(limit, || false)
    }

    /// Waits until it has printed `text`, or has ended.
    ///
    /// # Errors
    /// When it has ended without that, with its last words, or has not printed it by `limit`.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<()> {
        let printed = || {
            let words = self.shared.words.bytes();
            words.windows(text.len().max(1)).any(|window| window == text.as_bytes())
        };
        let ended = self.shared.wait(limit, printed);
        if printed() {
            return Ok(());
        }
        Err(match ended {
            Some(status) => {
                Failure::failed(format!("{} ended ({status}): {}", self.program, self.words()))
            }
            None => Failure::timed_out(limit),
        })
    }

    /// Signals its group, if it has not ended.
    pub fn signal(&self, signal: Signal) {
        // The lock keeps the thread from reaping it now.
        let ended = self.shared.ended();
        if ended.is_none() {
            signal_group(self.pid, signal);
        }
    }

    /// Sends SIGTERM to its group, and kills the group when it has not ended by `limit`. Returns
    /// whether SIGTERM was enough.
    pub fn stop(&mut self, limit: Duration) -> bool {
        self.signal(Signal::TERM);
        // A stopped process would not handle it.
        self.signal(Signal::CONT);
        let ended = self.wait(limit).is_some();
        if !ended {
            self.kill();
        }
        ended
    }

    /// Kills its group, and waits at most two seconds for its end.
    pub fn kill(&mut self) {
        if !self.is_running() {
            return;
        }
        self.signal(Signal::KILL);
        if self.wait(DEATH).is_none() {
            self.left_behind.add(&self.program, self.pid);
        }
    }

    /// The end of its output on both streams, safe for a terminal.
    pub fn words(&self) -> String {
        last_words(&self.shared.words.bytes())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command, killed by the kernel when this process ends, where util-linux is installed.
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

/// Keeps a child's output until it ends, kills the rest of its group, and reaps it.
fn attend(mut child: Child, shared: &Shared) {
    while !child.poll(None, None).is_ok_and(|ready| ready.exited) {
        // With the lock, or a waiter could miss the change between its check and its wait.
        drop(shared.ended());
        shared.changed.notify_all();
    }
    let _ = child.drain();
    child.kill_group();
    let mut ended = shared.ended();
    if let Ok((status, _)) = child.reap() {
        *ended = Some(status);
    }
    drop(ended);
    shared.changed.notify_all();
}
