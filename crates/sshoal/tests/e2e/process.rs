//! Child processes that never outlive their test, and are waited for within a time.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a program may take that only has to do its work. Nothing here takes a tenth of it on
/// an idle machine.
pub const LIMIT: Duration = Duration::from_secs(1_000);

/// A child process. Dropped, it is killed.
pub struct Process {
    child: Child,
    handle: OwnedFd,
    what: String,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Process {
        let what = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        Process { child, handle, what }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// A process that has ended already is left alone.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    /// Stops it, and returns when none of its threads runs any more: one that was about to take a
    /// request of the kernel would, and that call could not be interrupted.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        eventually(Duration::from_secs(20), "it is stopped", || {
            let mut threads = std::fs::read_dir(&tasks).unwrap().flatten();
            threads.all(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit(')').next().is_some_and(|state| state.trim_start().starts_with('T'))
            })
        });
    }

    /// The status with which it ended, if it does within `limit`.
    pub fn try_wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        while !is_ready(&[(&self.handle, PollFlags::IN)], deadline) {
            if Instant::now() >= deadline {
                return None;
            }
        }
        Some(self.child.wait().unwrap())
    }

    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        match self.try_wait(limit) {
            Some(status) => status,
            None => panic!("still running after {limit:?}: {}", self.what),
        }
    }

    /// One of the numbers in `/proc/PID/status`, in its unit.
    pub fn status_field(&self, name: &str) -> u64 {
        status_field(self.pid(), name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // Whoever is blocked in a mount that hangs cannot be waited for for ever.
        let _ = self.try_wait(Duration::from_secs(5));
    }
}

/// One of the numbers in `/proc/PID/status`, in its unit.
pub fn status_field(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap()
}

/// Whether one of the descriptors becomes ready before the deadline. May be wrong about not yet.
pub fn is_ready(what: &[(&OwnedFd, PollFlags)], deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut fds: Vec<_> = what.iter().map(|(fd, flags)| PollFd::new(*fd, *flags)).collect();
    poll(&mut fds, Some(&left)).is_ok_and(|ready| ready > 0)
}

/// What a program has said, and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

/// Runs a program to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Ended {
    run_within(LIMIT, command)
}

/// Runs a program to its end, which must come within `limit`.
#[track_caller]
pub fn run_within(limit: Duration, command: &mut Command) -> Ended {
    let begun = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(command);
    let stdout = collect(process.child().stdout.take().unwrap());
    let stderr = collect(process.child().stderr.take().unwrap());
    let Some(status) = process.try_wait(limit) else {
        panic!("still running after {limit:?}: {command:?}");
    };
    let took = begun.elapsed();
    // A daemon that was left behind would hold these open, and that is a failure, too.
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    Ended { status, stdout, stderr, took }
}

/// Runs a program that has to succeed; what it wrote to its standard output.
#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    let ended = run(command);
    assert!(ended.status.success(), "{command:?}: {ended:?}");
    ended.stdout
}

/// Runs a line of shell that has to succeed, with `$1` and so on; its output.
#[track_caller]
pub fn shell(script: &str, arguments: &[&std::path::Path]) -> String {
    succeed(Command::new("sh").args(["-euc", script, "sh"]).args(arguments))
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Asks until it is so. For what nobody tells of: a change on the server, the end of a time-out.
#[track_caller]
pub fn eventually(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    begun.elapsed()
}
