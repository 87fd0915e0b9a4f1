//! The processes below a process, by `/proc`, and signals to them that cannot miss.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use procfs::process::{Stat, all_processes};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a process may take to be dead after SIGKILL.
const DEATH: Duration = Duration::from_secs(5);

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
    /// A handle on the process, if it is still that one: its number and the time of its start name
    /// it for good.
    fn open(stat: Stat) -> Option<Process> {
        let handle = pidfd_open(Pid::from_raw(stat.pid)?, PidfdFlags::empty()).ok()?;
        let now = procfs::process::Process::new(stat.pid).ok()?.stat().ok()?;
        let alive = now.starttime == stat.starttime && !matches!(now.state, 'Z' | 'X');
        alive.then(|| Process {
            pid: stat.pid.cast_unsigned(),
            parent: stat.ppid.cast_unsigned(),
            name: stat.comm,
            handle,
        })
    }

    /// An error means that it is dead, which is as good.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    fn is_dead_by(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        crate::wait_readable(&[&self.handle], left)
    }
}

/// Kills what `list` gives until it gives nothing, and waits for each to be dead. Returns those
/// that stay: the kernel may keep one that waits for a disk or a file system.
pub(super) fn kill(list: impl Fn() -> Vec<Process>) -> Vec<Process> {
    loop {
        let mut processes = list();
        if processes.is_empty() {
            return processes;
        }
        processes.iter().for_each(|process| process.signal(Signal::KILL));
        let deadline = Instant::now() + DEATH;
        processes.retain(|process| !process.is_dead_by(deadline));
        if !processes.is_empty() {
            return processes;
        }
    }
}

/// All living processes below `root`, without it.
pub(super) fn descendants(root: u32) -> Vec<Process> {
    let root = root.cast_signed();
    let found = with_descendants(|stat| stat.pid == root).into_iter();
    found.filter(|stat| stat.pid != root).filter_map(Process::open).collect()
}

/// The processes that `is_root` selects and their descendants, each once. It reads all of `/proc`,
/// since the lists of children are incomplete while others end (proc_tid_children(5)).
pub fn with_descendants(is_root: impl Fn(&Stat) -> bool) -> Vec<Stat> {
    let mut all: HashMap<i32, Stat> = HashMap::new();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in all_processes().into_iter().flatten().flatten() {
        let Ok(stat) = process.stat() else { continue };
        children.entry(stat.ppid).or_default().push(stat.pid);
        all.insert(stat.pid, stat);
    }
    let mut open: Vec<i32> = all.values().filter(|stat| is_root(stat)).map(|it| it.pid).collect();
    let mut found = Vec::new();
    while let Some(pid) = open.pop() {
        // Removed, so that no process is counted twice.
        if let Some(stat) = all.remove(&pid) {
            found.push(stat);
            open.extend(children.remove(&pid).unwrap_or_default());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_stays_is_returned() {
        // A pipe never becomes readable, as the handle of a process that the kernel keeps.
        let (reader, _writer) = std::io::pipe().unwrap();
        let list = || {
            let handle = reader.try_clone().unwrap().into();
            vec![Process { pid: 7, parent: 1, name: "stuck".to_owned(), handle }]
        };
        let stay = kill(list);
        assert_eq!(stay.iter().map(|process| process.pid).collect::<Vec<_>>(), [7]);
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
        assert!(kill(found).is_empty());
        assert!(found().is_empty());
        // The shell itself was not touched: it ends by itself, with its children's status.
        drop(shell.stdin.take());
        assert_eq!(shell.wait().unwrap().code(), Some(0));
    }
}
