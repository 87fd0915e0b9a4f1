//! A program that is run to its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::kept::{Kept, Which};
use super::{DEATH, streams};
use crate::account;
use crate::failure::Failure;
use crate::results::Usage;

/// Most that is kept of standard output: a list of a hundred thousand files is a sixth of it.
const STDOUT_MOST_BYTES: usize = 64 << 20;

/// Most that is kept of standard error, its end.
const STDERR_MOST_BYTES: usize = 1 << 20;

/// Reads of what a program's end has left in its pipes: more than a pipe holds, and an end for one
/// into which somebody else goes on writing.
pub(super) const LAST_READS: usize = 32;

/// When memory is looked at first; then after twice as long each time, up to [`LOOK_MOST`]. A look
/// costs 20 us a process, and a peak that has passed is still seen.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_MOST: Duration = Duration::from_secs(1);

/// Only one child of this process is reaped at a time, so that what the sum over all children
/// grows by is that child's.
static REAPING: Mutex<()> = Mutex::new(());

/// A started program.
#[derive(Debug)]
pub(super) struct Running {
    program: String,
    child: Child,
    /// Readable when the program has ended.
    handle: OwnedFd,
    started: Instant,
    seconds: f64,
    peak_memory_bytes: u64,
    stdout: Stream,
    stderr: Stream,
}

/// A pipe from the program, as long as it is open, and what came.
#[derive(Debug)]
struct Stream {
    pipe: Option<OwnedFd>,
    kept: Kept,
}

/// How the watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited,
    Late,
    Interrupted,
}

impl Running {
    pub(super) fn start(mut command: Command) -> Result<Running, Failure> {
        use std::os::unix::process::CommandExt;
        let program = streams::program(&command);
        streams::complete(&mut command);
        command.process_group(0);
        let started = Instant::now();
        let spawned = command.spawn();
        // It may own ends of pipes that others wait for.
        drop(command);
        let mut child = spawned.map_err(|error| cannot_run(&program, &error))?;
        let handle = match handle(&child) {
            Ok(handle) => handle,
            Err(error) => {
                kill_group(&child);
                let _ = child.wait();
                return Err(cannot_run(&program, &error));
            }
        };
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        Ok(Running {
            program,
            child,
            handle,
            started,
            seconds: 0.0,
            peak_memory_bytes: 0,
            stdout: Stream { pipe: stdout, kept: Kept::new(Which::First, STDOUT_MOST_BYTES) },
            stderr: Stream { pipe: stderr, kept: Kept::new(Which::Last, STDERR_MOST_BYTES) },
        })
    }

    pub(super) fn program(&self) -> &str {
        &self.program
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads what it prints until it has ended, the time is over, or the bell rings.
    pub(super) fn watch(&mut self, limit: Duration, bell: &OwnedFd) -> Result<End, Failure> {
        let mut interval = LOOK_FIRST;
        let mut next_look = interval;
        loop {
            let elapsed = self.started.elapsed();
            if elapsed >= limit {
                return Ok(End::Late);
            }
            if elapsed >= next_look {
                let now = account::peak_memory_bytes(self.pid());
                self.peak_memory_bytes = self.peak_memory_bytes.max(now);
                interval = (interval * 2).min(LOOK_MOST);
                next_look = self.started.elapsed() + interval;
            }
            let timeout = limit.min(next_look).saturating_sub(self.started.elapsed());
            let ready = self.poll(Some(bell), timeout)?;
            if ready.exited {
                self.seconds = self.started.elapsed().as_secs_f64();
                return Ok(End::Exited);
            }
            if ready.rung {
                return Ok(End::Interrupted);
            }
        }
    }

    /// Reaps it, with all that it has printed.
    pub(super) fn finish(mut self) -> Result<super::Ran, Failure> {
        // What its end has left in the pipes; others may hold them open, so their end may not come.
        for _ in 0..LAST_READS {
            if !self.poll(None, Duration::ZERO)?.read {
                break;
            }
        }
        let (status, usage) = reap(&mut self.child)?;
        if self.stdout.kept.is_cut() {
            let most = STDOUT_MOST_BYTES >> 20;
            return Err(Failure::failed(format!("{} printed more than {most} MiB", self.program)));
        }
        let (stdout, stderr) = (self.stdout.kept.into_bytes(), self.stderr.kept.into_bytes());
        Ok(super::Ran {
            output: Output { status, stdout, stderr },
            seconds: self.seconds,
            usage: Usage { peak_memory_bytes: self.peak_memory_bytes, ..usage },
        })
    }

    /// Kills its group; `false` when it stays.
    pub(super) fn kill(&mut self) -> bool {
        kill_group(&self.child);
        let dead = wait_readable(&self.handle, DEATH);
        if dead {
            let _ = reap(&mut self.child);
        }
        dead
    }

    /// Waits once, and reads what has come.
    fn poll(&mut self, bell: Option<&OwnedFd>, timeout: Duration) -> Result<Ready, Failure> {
        let Running { handle, stdout, stderr, .. } = self;
        let mut fds = vec![PollFd::new(handle, PollFlags::IN)];
        fds.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
        let streams_at = fds.len();
        let pipes = [stdout.pipe.as_ref(), stderr.pipe.as_ref()];
        fds.extend(pipes.into_iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        match poll(&mut fds, Some(&timespec(timeout))) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let signalled: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut pipes = signalled[streams_at..].iter();
        let mut read = false;
        for stream in [stdout, stderr] {
            if stream.pipe.is_some() && pipes.next() == Some(&true) {
                read |= stream.read();
            }
        }
        Ok(Ready { exited: signalled[0], rung: bell.is_some() && signalled[1], read })
    }
}

/// What a poll has found.
struct Ready {
    exited: bool,
    rung: bool,
    read: bool,
}

impl Stream {
    /// Reads from a pipe that is ready; `false` at its end.
    fn read(&mut self) -> bool {
        let more = self.pipe.as_ref().is_some_and(|pipe| self.kept.read(pipe));
        if !more {
            self.pipe = None;
        }
        more
    }
}

/// Reaps a child that has ended, and what it has used.
pub(super) fn reap(child: &mut Child) -> io::Result<(ExitStatus, Usage)> {
    let _alone = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = account::cpu_seconds_of_children().unwrap_or_default();
    let status = child.wait()?;
    let after = account::cpu_seconds_of_children().unwrap_or_default();
    Ok((status, account::since(&before, &after)))
}

/// Names the child's end.
pub(super) fn handle(child: &Child) -> io::Result<OwnedFd> {
    Ok(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?)
}

/// Kills a group whose first process, this child, has not been reaped.
pub(super) fn kill_group(child: &Child) {
    signal_group(child.id(), Signal::KILL);
}

/// The same by the number, with any signal.
pub(super) fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Whether it is readable within `limit`.
pub(super) fn wait_readable(fd: impl AsFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let fd: BorrowedFd<'_> = fd.as_fd();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timespec(left))) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => (),
            Err(_) => return false,
        }
    }
}

pub(super) fn cannot_run(program: &str, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot run {program}: {error}"))
}

fn timespec(duration: Duration) -> Timespec {
    // A time that no clock will reach is as good as the longest.
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}
