//! The processes below a process, by `/proc`, and signals to them that cannot miss.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a process may take to be dead after SIGKILL.
const DEATH_SECONDS: i64 = 5;

/// A process that was alive when it was looked at.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) name: String,
    /// Opened before its line of `/proc` was read for the second time, so it is the one listed.
    handle: OwnedFd,
}

impl Process {
    /// An error means that it is dead, which is as good.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    fn wait_dead(&self) {
        let timeout = Timespec { tv_sec: DEATH_SECONDS, tv_nsec: 0 };
        let mut poll_fds = [PollFd::new(&self.handle, PollFlags::IN)];
        let ready = loop {
            match poll(&mut poll_fds, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => (),
                ready => break ready,
            }
        };
        assert!(
            ready.is_ok_and(|ready| ready == 1),
            "process {} ({}) stays after SIGKILL",
            self.pid,
            self.name
        );
    }
}

/// Kills what `list` gives until it gives nothing, and waits for each to be dead.
pub(super) fn kill(list: impl Fn() -> Vec<Process>) {
    loop {
        let processes = list();
        if processes.is_empty() {
            return;
        }
        processes.iter().for_each(|process| process.signal(Signal::KILL));
        processes.iter().for_each(Process::wait_dead);
    }
}

/// All living processes below `root`, without it.
pub(super) fn descendants(root: u32) -> Vec<Process> {
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut children: HashMap<u32, Vec<Stat>> = HashMap::new();
    for stat in pids.filter_map(Stat::read) {
        children.entry(stat.parent).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for stat in children.remove(&parent).unwrap_or_default() {
            parents.push(stat.pid);
            found.extend(stat.open());
        }
    }
    found
}

/// What is of interest in `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    name: String,
    parent: u32,
    /// In ticks since the system's start; with the number it names a process for good.
    started: u64,
    alive: bool,
}

impl Stat {
    fn read(pid: u32) -> Option<Stat> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&text))
    }

    /// `pid (name) state parent …`, started being the 22nd field. The name may have spaces and
    /// parentheses in it.
    fn parse(text: &str) -> Option<Stat> {
        let (pid, rest) = text.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Stat {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            parent,
            started,
            alive: !matches!(state, "Z" | "X"),
        })
    }

    /// A handle on the process, if it is still that one.
    fn open(self) -> Option<Process> {
        let handle = pidfd_open(Pid::from_raw(self.pid as i32)?, PidfdFlags::empty()).ok()?;
        let now = Stat::read(self.pid)?;
        (now.started == self.started && now.alive).then(|| Process {
            pid: self.pid,
            parent: self.parent,
            name: self.name,
            handle,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let line = "12 (a) S 1 (b)) S 34 1 1 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 5678 1 2";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.pid, stat.parent, stat.started), (12, 34, 5678));
        assert_eq!((stat.name.as_str(), stat.alive), ("a) S 1 (b)", true));
        assert_eq!(Stat::parse(""), None);
        assert_eq!(Stat::parse("12 (x"), None);
    }

    #[test]
    fn grandchildren_are_found_and_killed_and_nobody_else_is() {
        let mut shell = Command::new("sh")
            .args(["-c", "exec 3<&0; cat <&3 & cat <&3 & echo ready; wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let found = || descendants(shell.id());
        assert_eq!(found().len(), 2, "{:?}", found());
        assert!(found().iter().all(|process| process.parent == shell.id()));
        kill(found);
        assert!(found().is_empty());
        // The shell itself was not touched: it ends by itself, with its children's status.
        drop(shell.stdin.take());
        assert_eq!(shell.wait().unwrap().code(), Some(0));
    }
}
