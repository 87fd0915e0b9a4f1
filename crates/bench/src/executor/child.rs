//! A child process that leads a process group of its own, with its output.

use std::collections::VecDeque;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{self, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::account;
use crate::results::Usage;

/// Bytes read at once: the capacity of a pipe.
const READ_BYTES: usize = 64 * 1024;

/// Reads after the child's end: more than a pipe holds, and a bound for a pipe into which another
/// process goes on writing.
const LAST_READS: usize = 32;

/// Children of this process are reaped one at a time, so that the growth of `RUSAGE_CHILDREN` is
/// the usage of that child.
static REAPING: Mutex<()> = Mutex::new(());

/// The output of a child, bounded: its first or its last bytes.
#[derive(Clone, Debug)]
pub(super) struct Kept(Arc<Mutex<Buffer>>);

#[derive(Debug)]
struct Buffer {
    bytes: VecDeque<u8>,
    limit_bytes: usize,
    keeps_last: bool,
    is_cut: bool,
}

impl Kept {
    pub(super) fn first(limit_bytes: usize) -> Kept {
        let bytes = VecDeque::new();
        let buffer = Buffer { bytes, limit_bytes, keeps_last: false, is_cut: false };
        Kept(Arc::new(Mutex::new(buffer)))
    }

    pub(super) fn last(limit_bytes: usize) -> Kept {
        let kept = Kept::first(limit_bytes);
        kept.with(|buffer| buffer.keeps_last = true);
        kept
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Buffer) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, piece: &[u8]) {
        self.with(|buffer| {
            buffer.bytes.extend(piece);
            let surplus = buffer.bytes.len().saturating_sub(buffer.limit_bytes);
            buffer.is_cut |= surplus > 0;
            match buffer.keeps_last {
                true => drop(buffer.bytes.drain(..surplus)),
                false => buffer.bytes.truncate(buffer.limit_bytes),
            }
        });
    }

    /// Whether bytes were dropped.
    pub(super) fn is_cut(&self) -> bool {
        self.with(|buffer| buffer.is_cut)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.with(|buffer| buffer.bytes.iter().copied().collect())
    }
}

/// A pipe from a child.
#[derive(Debug)]
pub(super) struct Output {
    pipe: OwnedFd,
    kept: Kept,
}

impl Output {
    /// A pipe whose content is kept, and the end for the child.
    pub(super) fn new(kept: &Kept) -> io::Result<(PipeWriter, Output)> {
        let (reader, writer) = io::pipe()?;
        Ok((writer, Output { pipe: reader.into(), kept: kept.clone() }))
    }

    /// Reads once from a pipe that is ready; `false` at its end.
    fn read(&mut self) -> bool {
        let mut piece = [0; READ_BYTES];
        match rustix::io::read(&self.pipe, &mut piece) {
            Ok(0) => false,
            Ok(read) => {
                self.kept.add(&piece[..read]);
                true
            }
            Err(error) => matches!(error, Errno::INTR | Errno::AGAIN),
        }
    }
}

/// A started child. It is not reaped before [`Child::reap`], so its number stays its own.
#[derive(Debug)]
pub(super) struct Child {
    child: process::Child,
    /// Readable when the child has ended.
    pidfd: OwnedFd,
    outputs: Vec<Output>,
}

/// What a poll has found.
pub(super) struct Ready {
    pub(super) exited: bool,
    /// The bell is readable.
    pub(super) rung: bool,
    /// Output was read, or ended.
    pub(super) read: bool,
}

impl Child {
    /// Starts a command in a process group of its own. Its descriptors are closed in this process,
    /// so that readers of its pipes see their end.
    pub(super) fn start(mut command: Command, outputs: Vec<Output>) -> io::Result<Child> {
        use std::os::unix::process::CommandExt;
        let spawned = command.process_group(0).spawn();
        drop(command);
        let mut child = spawned?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Child { child, pidfd, outputs }),
            Err(error) => {
                signal_group(child.id(), Signal::KILL);
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the child has ended or printed something, or the bell rings; reads the output.
    pub(super) fn poll(
        &mut self,
        bell: Option<&OwnedFd>,
        timeout: Option<Duration>,
    ) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
        fds.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
        let first_output = fds.len();
        fds.extend(self.outputs.iter().map(|output| PollFd::new(&output.pipe, PollFlags::IN)));
        match poll(&mut fds, timeout.map(timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut outputs_ready = ready[first_output..].iter();
        self.outputs.retain_mut(|output| outputs_ready.next() != Some(&true) || output.read());
        Ok(Ready {
            exited: ready[0],
            rung: bell.is_some() && ready[1],
            read: ready[first_output..].contains(&true),
        })
    }

    /// Reads what the ended child has left in its pipes. Other processes may hold them open, so
    /// their end may never come.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        for _ in 0..LAST_READS {
            if !self.poll(None, Some(Duration::ZERO))?.read {
                break;
            }
        }
        Ok(())
    }

    /// Kills the group and waits for the child; `false` when it has not ended within `limit`.
    pub(super) fn kill(&mut self, limit: Duration) -> bool {
        self.kill_group();
        let dead = wait_readable(&self.pidfd, limit);
        if dead {
            let _ = self.reap();
        }
        dead
    }

    pub(super) fn kill_group(&self) {
        signal_group(self.child.id(), Signal::KILL);
    }

    /// Reaps a child that has ended; its status and usage, without the peak of memory.
    pub(super) fn reap(&mut self) -> io::Result<(ExitStatus, Usage)> {
        let _alone = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = account::cpu_seconds_of_children().unwrap_or_default();
        let status = self.child.wait()?;
        let after = account::cpu_seconds_of_children().unwrap_or_default();
        Ok((status, account::since(&before, &after)))
    }
}

/// Signals the group of a process that has not been reaped.
pub(super) fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Whether a descriptor becomes readable within `limit`.
pub(super) fn wait_readable(fd: impl AsFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timespec(left))) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => (),
            Err(_) => return false,
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_asked_end_of_too_much_is_kept() {
        for (kept, rest) in [(Kept::first(4), "abcd"), (Kept::last(4), "defg")] {
            kept.add(b"abc");
            assert!(!kept.is_cut());
            kept.add(b"defg");
            assert!(kept.is_cut());
            assert_eq!(kept.bytes(), rest.as_bytes());
        }
    }
}
