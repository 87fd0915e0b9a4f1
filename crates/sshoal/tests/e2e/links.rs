//! Links that break and come back, seen by programs which know nothing of it.
//!
//! What must hold: a program that is on its way when the only link breaks ends well once it is
//! mended, with the right bytes; files that are open stay open; whoever does not want to wait is
//! freed; and nothing that was acknowledged is missing. `docs/semantics.md` numbers these promises
//! (L1 and so on).
//!
//! With `SSHOAL_TEST_BIG=1` outages are so long that the user is told of them.

mod ending;
mod full;
mod programs;
mod random;
mod servers;
mod unmounting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use sandbox::fleet::Plan;
use sandbox::link::LinkOptions;

use crate::hosts::Hosts;
use crate::mount::Mount;
use crate::process::{Process, eventually};
use crate::world::{is_big_run, program};

/// The only server.
const HOST: &str = "alpha";

/// Within this time something has to begin, or to be noticed.
const SOON: Duration = Duration::from_secs(60);

/// Within this time a blocked call has to end when its process gets a signal, by A5.
const SECOND: Duration = Duration::from_secs(1);

/// How long a link is broken: long enough that every call comes to a stop.
fn outage_time() -> Duration {
    // A user is told after ten seconds.
    Duration::from_secs(if is_big_run() { 12 } else { 2 })
}

/// How the only link breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Connections are reset, and new ones refused.
    Cut,
    /// Nothing moves, and nothing breaks.
    Stall,
}

/// One server behind one link, and its clients. When it is dropped, nothing of it is left, or the
/// test fails.
struct Line {
    hosts: Hosts,
}

impl Line {
    /// A link that is so fast.
    fn new(rate_bytes_per_s: Option<u64>) -> Line {
        let link = LinkOptions { rate_bytes_per_s, ..LinkOptions::default() };
        Line { hosts: Hosts::of([Plan::new(HOST).behind(link)]) }
    }

    /// A path below what the server shows, as the server sees it.
    fn served(&self, name: impl AsRef<Path>) -> PathBuf {
        self.hosts.served(HOST, name)
    }

    /// A path on this machine that no server shows.
    fn local(&self, name: impl AsRef<Path>) -> PathBuf {
        self.hosts.local(name)
    }

    /// The mount may tell of the outages.
    #[track_caller]
    fn mount(&self, options: &[&str]) -> Mount {
        self.mount_by(&self.hosts.fleet.config_path(), options)
    }

    /// The same, with another configuration for ssh.
    #[track_caller]
    fn mount_by(&self, ssh_config: &Path, options: &[&str]) -> Mount {
        let place = self.hosts.mountpoint();
        let mut command = program();
        command.arg("-F").arg(ssh_config).arg("-f");
        command.arg(self.hosts.fleet.source(HOST)).arg(&place).args(options);
        Mount::start(command, place).with_errors()
    }

    fn break_it(&self, outage: Outage) {
        eprintln!("{outage:?}");
        let link = self.hosts.fleet.link(HOST);
        match outage {
            Outage::Cut => {
                link.refuse();
                link.cut();
            }
            Outage::Stall => link.stall(),
        }
    }

    fn mend(&self, outage: Outage) {
        eprintln!("mended");
        match outage {
            Outage::Cut => self.hosts.fleet.link(HOST).accept(),
            Outage::Stall => self.hosts.fleet.link(HOST).resume(),
        }
    }

    /// Bytes that have crossed the link, either way.
    fn moved_bytes(&self) -> u64 {
        let link = self.hosts.fleet.link(HOST);
        link.bytes_to_target() + link.bytes_from_target()
    }

    /// Returns when so many more bytes have crossed the link.
    #[track_caller]
    fn wait_moved(&self, since: u64, bytes: u64) {
        eventually(SOON, "bytes cross the link", || self.moved_bytes() >= since + bytes);
    }

    /// Breaks the link for a while; meanwhile a caller who has enough of it is freed.
    #[track_caller]
    fn outage(&self, outage: Outage, mount: &Mount) {
        self.break_it(outage);
        freed_by_a_signal(mount);
        // An outage has a length; there is nothing to be waited for.
        std::thread::sleep(outage_time());
        self.mend(outage);
    }

    /// Proof that nothing is left of connections that were lost: at the server, no more sessions
    /// than the mount has, and no file open; here, one ssh for each session.
    #[track_caller]
    fn assert_nothing_leaked(&self, mount: &Mount, max_conns: usize) {
        let sshd = self.hosts.fleet.sshd(HOST);
        eventually(SOON, "sessions that were lost have ended", || {
            // A session that was lost last is missed by nobody who asks for nothing.
            fs::metadata(mount.place()).unwrap();
            let sessions = sshd.session_pids().len();
            (1..=max_conns).contains(&sessions) && sessions == children(mount.daemon().pid())
        });
        eventually(SOON, "no file is open at the server", || {
            let servers = sshd.sftp_server_pids();
            servers.into_iter().all(|pid| open_below(pid, &self.served("")).is_empty())
        });
    }
}

/// A listing blocks while there is no link, and ends with a signal that ends
/// programs. (Not Ctrl-C's: whoever runs tests in the background may have them ignore it.)
#[track_caller]
fn freed_by_a_signal(mount: &Mount) {
    let mut command = Command::new("ls");
    let mut ls = Process::spawn(command.arg(mount.at("nobody/knows")).stderr(Stdio::null()));
    let pid = ls.pid();
    eventually(SOON, "ls waits for the mount", || {
        let place = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        place.contains("request_wait_answer") || place.contains("fuse_")
    });
    ls.signal(Signal::TERM);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(ls.wait(SECOND).signal(), Some(Signal::TERM.as_raw()));
}

/// Processes that this one has started and that run.
fn children(pid: u32) -> usize {
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children"));
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists: Vec<String> = tasks.flat_map(of).collect();
    lists.iter().map(|list| list.split_whitespace().count()).sum()
}

/// Files below `dir` that a process has open.
fn open_below(pid: u32, dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let targets = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.starts_with(dir)).collect()
}
