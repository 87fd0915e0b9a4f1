//! A program that runs beside the others.
//!
//! A thread of its own starts it, keeps its words and reaps it: the kernel's signal at the
//! parent's death counts the death of the thread that started the child.

use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use super::kept::{Kept, Which};
use super::running::{LAST_READS, cannot_run, handle, kill_group, reap, signal_group};
use super::{DEATH, LeftBehind, find_program, last_words, streams};
use crate::failure::Failure;
use crate::results::Usage;

/// Most that is kept of what it prints, its end.
const WORDS_MOST_BYTES: usize = 64 * 1024;

/// A program that runs beside the others. Dropping it kills its group; so does its own end, for
/// what it may have left in it.
#[derive(Debug)]
pub struct Background {
    program: String,
    pid: u32,
    shared: Arc<Shared>,
    left_behind: Arc<LeftBehind>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// Of itself and what it waited for, all its life; the peak of memory is unknown.
    pub usage: Usage,
}

/// What the thread and the owner both see.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    words: Kept,
    /// Set by the thread in the same hold of the lock in which it reaps.
    ended: Option<Ended>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Background {
    pub(super) fn start(
        command: &Command,
        left_behind: Arc<LeftBehind>,
    ) -> Result<Background, Failure> {
        let program = streams::program(command);
        let words = Kept::new(Which::Last, WORDS_MOST_BYTES);
        let state = Mutex::new(State { words, ended: None });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let command = tied_to_us(command);
        let (tell, told) = mpsc::sync_channel(1);
        let for_thread = shared.clone();
        thread::Builder::new()
            .name("background".to_owned())
            .spawn(move || keep(command, &for_thread, &tell))
            .map_err(|error| cannot_run(&program, &error))?;
        let pid = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let pid = pid.map_err(|error| cannot_run(&program, &error))?;
        Ok(Background { program, pid, shared, left_behind })
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ended().is_none()
    }

    /// How it has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.shared.state().ended
    }

    /// Waits until it has ended; `None` when it has not within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Ended> {
        let state = self.shared.state();
        let waited = self.shared.changed.wait_timeout_while(state, limit, |it| it.ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Waits until it has printed `text`, or has ended. The program's start is often known by
    /// nothing else.
    ///
    /// # Errors
    /// When it has ended without that, with its last words, or has not printed it by `limit`.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<(), Failure> {
        let said = |state: &State| {
            let words = state.words.bytes();
            words.windows(text.len().max(1)).any(|window| window == text.as_bytes())
        };
        let state = self.shared.state();
        let waiting = |state: &mut State| state.ended.is_none() && !said(state);
        let waited = self.shared.changed.wait_timeout_while(state, limit, waiting);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if said(&state) {
            return Ok(());
        }
        let words = last_words(&state.words.bytes());
        Err(match state.ended {
            Some(ended) => {
                Failure::failed(format!("{} ended ({}): {words}", self.program, ended.status))
            }
            None => Failure::timed_out(limit),
        })
    }

    /// Sends a signal to its group, if it has not ended.
    pub fn signal(&self, signal: Signal) {
        // The lock keeps the thread from reaping it now.
        let state = self.shared.state();
        if state.ended.is_none() {
            signal_group(self.pid, signal);
        }
    }

    /// Asks it to end (SIGTERM to its group), and kills the group when it has not by `limit`.
    /// Whether the asking was enough.
    pub fn stop(&mut self, limit: Duration) -> bool {
        self.signal(Signal::TERM);
        // A stopped one would not take it.
        self.signal(Signal::CONT);
        let ended = self.wait(limit).is_some();
        if !ended {
            self.kill();
        }
        ended
    }

    /// Kills its group, and waits for two seconds at most for its end.
    pub fn kill(&mut self) {
        if !self.is_running() {
            return;
        }
        self.signal(Signal::KILL);
        if self.wait(DEATH).is_none() {
            self.left_behind.add(&self.program, self.pid);
        }
    }

    /// The end of what it has printed, on both streams, fit for a terminal.
    #[must_use]
    pub fn words(&self) -> String {
        last_words(&self.shared.state().words.bytes())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The same command, killed by the kernel when we die, where util-linux is installed.
fn tied_to_us(command: &Command) -> Command {
    use std::os::unix::process::CommandExt;
    // A program that is not there is to be an error of the start, not of setpriv.
    let program = find_program(command.get_program()).zip(find_program("setpriv"));
    let mut tied = match program {
        Some((program, setpriv)) => {
            let mut tied = Command::new(setpriv);
            tied.args(["--pdeathsig", "KILL", "--"]).arg(program);
            tied
        }
        None => Command::new(command.get_program()),
    };
    tied.args(command.get_args()).process_group(0).stdin(Stdio::null());
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

/// The thread.
fn keep(command: Command, shared: &Shared, tell: &SyncSender<io::Result<u32>>) {
    match start(command) {
        Ok((mut child, handle, pipe)) => {
            let _ = tell.send(Ok(child.id()));
            listen(&handle, pipe, shared);
            end(&mut child, shared);
        }
        Err(error) => {
            let _ = tell.send(Err(error));
        }
    }
}

fn start(mut command: Command) -> io::Result<(Child, OwnedFd, PipeReader)> {
    let (reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    match handle(&child) {
        Ok(handle) => Ok((child, handle, reader)),
        Err(error) => {
            kill_group(&child);
            let _ = child.wait();
            Err(error)
        }
    }
}

/// Keeps its words until it has ended.
fn listen(handle: &OwnedFd, pipe: PipeReader, shared: &Shared) {
    let mut pipe = Some(pipe);
    let mut last_reads = 0;
    while last_reads < LAST_READS {
        let mut fds = vec![PollFd::new(handle, PollFlags::IN)];
        fds.extend(pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        if poll(&mut fds, None).is_err() {
            continue;
        }
        let exited = !fds[0].revents().is_empty();
        let spoke = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if spoke {
            // There is something to read, so the lock is not held for long.
            let open = pipe.as_ref().is_some_and(|pipe| shared.state().words.read(pipe));
            if !open {
                pipe = None;
            }
            shared.changed.notify_all();
        }
        // Its last words come before its end, but nobody else's.
        match (exited, spoke) {
            (true, true) => last_reads += 1,
            (true, false) => return,
            (false, _) => (),
        }
    }
}

/// Ends what it has left in its group, and reaps it.
fn end(child: &mut Child, shared: &Shared) {
    kill_group(child);
    let mut state = shared.state();
    // It has ended, so this does not block; a status that cannot be had is nobody's fault here.
    if let Ok((status, usage)) = reap(child) {
        state.ended = Some(Ended { status, usage });
    }
    drop(state);
    shared.changed.notify_all();
}
