//! The thread that keeps one sshd: starts it, writes its log, reaps it.
//!
//! The kernel's signal at the parent's death counts the death of the thread that started the
//! child, so that thread has to stay.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::tree;

/// Most bytes of sshd's words that go into an error.
const WORDS_MAX_BYTES: usize = 8 * 1024;

/// A running sshd and its thread.
#[derive(Debug)]
pub(super) struct Keeper {
    pid: u32,
    /// Names the process even when its number has been given to another one.
    handle: OwnedFd,
    thread: JoinHandle<()>,
}

/// How a start went: the server that takes connections, or its words when it has ended.
pub(super) type Started<T> = io::Result<Result<T, String>>;

impl Keeper {
    pub(super) fn start(mut command: Command, log: PathBuf) -> Started<Keeper> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stderr(Stdio::piped());
        // One message, so that the thread never waits for a reader.
        let (tell, news) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("sshd-keeper".to_owned())
            .spawn(move || keep(command, log, &tell))?;
        let ended = |_| io::Error::other("the thread of sshd ended");
        let started = news.recv().map_err(ended)??;
        Ok(started.map(|(pid, handle)| Keeper { pid, handle, thread }))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the server with all that it started, and waits for it. A process that stays after
    /// SIGKILL is left to the kernel; the thread ends with it.
    pub(super) fn end(self) {
        // Stopped, it takes no further connection, and what is listed is all that there is.
        let _ = pidfd_send_signal(&self.handle, Signal::STOP);
        let stay = tree::kill(|| tree::descendants(self.pid));
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        if stay.is_empty() {
            let _ = self.thread.join();
        }
    }
}

/// The thread.
fn keep(mut command: Command, mut log: File, tell: &SyncSender<Started<(u32, OwnedFd)>>) {
    let spawned = command.spawn().and_then(|mut child| {
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let stderr = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((child, handle, BufReader::new(stderr)))
    });
    let (mut child, handle, mut stderr) = match spawned {
        Ok(spawned) => spawned,
        Err(error) => return drop(tell.send(Err(error))),
    };
    let mut words = String::new();
    let mut handle = Some(handle);
    let mut line = Vec::new();
    // The logins have the other end, too, so this ends after the last of them.
    while stderr.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let _ = log.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        if text.starts_with("Server listening on")
            && let Some(handle) = handle.take()
        {
            let _ = tell.send(Ok(Ok((child.id(), handle))));
        } else if handle.is_some() && words.len() < WORDS_MAX_BYTES {
            words.push_str(&text);
        }
        line.clear();
    }
    let _ = child.wait();
    if handle.is_some() {
        let _ = tell.send(Ok(Err(words)));
    }
}
