//! A daemon in the foreground and the FUSE mount that it serves.
//!
//! Invariants:
//! 1. The mount point is never looked at: whether it is mounted is read from the kernel's table,
//!    and it is unmounted by child processes with a deadline.
//! 2. However a mount ends, neither its daemon nor the mount is left; when the kernel keeps
//!    callers of it waiting, the connection is aborted, where that is permitted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::account;
use crate::executor::{Background, Executor};
use crate::failure::{Failure, Result};
use crate::quoting::shown;
use crate::results::Requests;

use super::programs::FUSERMOUNT;
use super::{Access, Session, local, rclone};
use crate::mount_table;

/// Longest time for a program to be ready, unless the caller says otherwise: four logins through
/// the slowest link.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// Longest time from unmounting to the end of the daemon.
const END_LIMIT: Duration = Duration::from_secs(60);

/// How long a mount may be busy although nothing of ours uses it: a file system that is unmounted
/// right after the end of a program may still be in use by another process.
const BUSY_LIMIT: Duration = Duration::from_secs(2);

/// Longest time for a mount to tell its counters.
const STATISTICS_LIMIT: Duration = Duration::from_secs(5);

/// Longest time for a program that unmounts by force.
const FORCE_LIMIT: Duration = Duration::from_secs(5);

/// Interval of the checks whether it is mounted, the run was interrupted, or it is no longer busy.
const LOOK: Duration = Duration::from_millis(10);

/// Longest time to upload written data, over any link.
const SETTLE_LIMIT: Duration = Duration::from_secs(300);

/// Longest time for that when the session is stopped, where nothing is measured any longer.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How long the daemon of a mount that does not answer is given to say why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A mount that is there. Dropping it without [`Mount::stop`] is as [`Mount::abandon`].
pub(super) struct Mount {
    point: PathBuf,
    /// `None` when it has ended or was never started.
    daemon: Option<Background>,
    /// Minor number of the device, which is FUSE's number of the connection, once it is there.
    connection: Option<u32>,
    executor: Executor,
}

impl Mount {
    /// Runs a command that mounts at `point`, an existing directory whose path has no links, and
    /// that stays in the foreground. Returns when it is mounted and answers.
    fn start(
        command: Command,
        point: &Path,
        limit: Duration,
        executor: &Executor,
    ) -> Result<Mount> {
        if mount_table::at(point)?.is_some() {
            return Err(Failure::failed(format!("something is mounted at {}", shown(point))));
        }
        let daemon = executor.spawn(command)?;
        let executor = executor.clone();
        let mut mount =
            Mount { point: point.to_owned(), daemon: Some(daemon), connection: None, executor };
        let deadline = Instant::now() + limit;
        match mount.wait_until_mounted(deadline).and_then(|()| mount.wait_for_answer(deadline)) {
            Ok(()) => Ok(mount),
            Err(Failure::TimedOut { .. }) => Err(Failure::timed_out(limit)),
            Err(failure) => Err(failure),
        }
    }

    /// sshfs mounts before it has connected; the first look at its root waits for that.
    fn wait_for_answer(&self, deadline: Instant) -> Result<()> {
        let mut look = Command::new("stat");
        look.arg("--").arg(self.point.join("."));
        let left = deadline.saturating_duration_since(Instant::now());
        let looked = self.executor.succeed(look, left);
        let Some(daemon) = &self.daemon else { return looked.map(drop) };
        // Without its mount it is the empty directory that has answered.
        let answers =
            looked.is_ok() && mount_table::at(&self.point)?.is_some() && daemon.is_running();
        match looked {
            Ok(_) if answers => Ok(()),
            Err(failure @ (Failure::Interrupted | Failure::TimedOut { .. })) => Err(failure),
            looked => match daemon.wait(LAST_WORDS) {
                Some(_) => Err(Failure::failed(ended(daemon, "it answered"))),
                None => looked.and_then(|_| Err(Failure::failed("it was unmounted at once"))),
            },
        }
    }

    fn wait_until_mounted(&mut self, deadline: Instant) -> Result<()> {
        let Some(daemon) = &self.daemon else { return Err(Failure::failed("there is no daemon")) };
        loop {
            let has_ended = daemon.wait(LOOK).is_some();
            if let Some(mounted) = mount_table::at(&self.point)? {
                self.connection = Some(mounted.device.minor);
                if !has_ended {
                    return Ok(());
                }
            }
            if has_ended {
                return Err(Failure::failed(ended(daemon, "it was mounted and stayed (with -f)")));
            }
            if self.executor.is_interrupted() {
                return Err(Failure::Interrupted);
            }
            if Instant::now() >= deadline {
                return Err(Failure::timed_out(Duration::ZERO));
            }
        }
    }

    /// The daemon's; `None` once it was stopped.
    pub(super) fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Background::pid)
    }

    /// The daemon's, and those of all that belong to it: ssh.
    fn processes(&self) -> Vec<u32> {
        self.pid().map(account::family).unwrap_or_default()
    }

    /// Unmounts and waits until the daemon has ended.
    fn stop(&mut self) -> Result<()> {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        if !daemon.is_running() {
            let failure = Failure::failed(ended(daemon, "it was unmounted"));
            self.abandon();
            return Err(failure);
        }
        self.unmount()?;
        let ended = daemon.wait(END_LIMIT);
        let words = daemon.words();
        // Nothing is mounted any more, and what has not ended is killed.
        self.daemon = None;
        self.connection = None;
        match ended {
            // What could not be written is said so late by some.
            Some(status) if !status.success() => Err(Failure::failed(format!(
                "its daemon was unmounted and ended with {status}: {words}"
            ))),
            Some(_) => Ok(()),
            None => Err(Failure::failed(format!(
                "its daemon was unmounted and has not ended in {} s",
                END_LIMIT.as_secs()
            ))),
        }
    }

    fn unmount(&self) -> Result<()> {
        // After an interrupt too the mount is ended in order, if it lets itself be.
        let executor = self.executor.for_cleanup();
        let deadline = Instant::now() + BUSY_LIMIT;
        loop {
            let failure = match executor.succeed(unmount(&self.point, false), END_LIMIT) {
                Ok(_) => return Ok(()),
                Err(failure) => failure,
            };
            let busy = failure.to_string().to_lowercase().contains("busy");
            if !busy || Instant::now() >= deadline {
                return Err(failure);
            }
            thread::sleep(LOOK);
        }
    }

    /// Ends daemon and mount by force, within a few seconds.
    fn abandon(&mut self) {
        self.abort();
        // Dropping it kills it.
        drop(self.daemon.take());
        kill_strays(&self.point);
        if let Ok(Some(_)) = mount_table::at(&self.point) {
            let executor = self.executor.for_cleanup();
            let _ = executor.run(unmount(&self.point, true), FORCE_LIMIT);
        }
        self.connection = None;
    }

    /// Has the kernel answer everything that waits for the daemon with an error.
    fn abort(&self) {
        let Some(connection) = self.connection else { return };
        let there = mount_table::at(&self.point).ok().flatten();
        // The number may by now be another mount's.
        if there.is_some_and(|mount| mount.device.minor == connection) {
            let _ = fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.daemon.is_some() || self.connection.is_some() {
            self.abandon();
        }
    }
}

/// Kills the processes that have the mount point among their arguments: a daemon that has left the
/// foreground is no longer in the group that was killed.
fn kill_strays(point: &Path) {
    for process in procfs::process::all_processes().into_iter().flatten().flatten() {
        let words = process.cmdline().unwrap_or_default();
        if words.iter().any(|word| Path::new(word) == point)
            && let Some(pid) = Pid::from_raw(process.pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn ended(daemon: &Background, before: &str) -> String {
    let status = daemon.ended().map(|status| format!(" ({status})")).unwrap_or_default();
    match daemon.words().trim() {
        "" => format!("it ended{status} before {before}, and said nothing"),
        words => format!("it ended{status} before {before}: {words}"),
    }
}

/// The counters in an object of `sshoal stats --json`.
fn counted(told: &Value) -> Option<Requests> {
    let mut requests = Requests::default();
    for (name, operation) in told["operations"].as_object()? {
        requests.kernel.insert(name.clone(), operation["count"].as_u64()?);
    }
    let numbers = |of: &Value| -> Vec<(String, u64)> {
        let fields = of.as_object().into_iter().flatten();
        fields.filter_map(|(name, number)| Some((name.clone(), number.as_u64()?))).collect()
    };
    requests.caches.extend(numbers(&told["caches"]));
    for host in told["hosts"].as_array()? {
        for (name, number) in numbers(&host["requests"]) {
            *requests.server.entry(name).or_default() += number;
        }
    }
    Some(requests)
}

/// The command that unmounts; with `lazy`, also a mount in use.
fn unmount(point: &Path, lazy: bool) -> Command {
    let (program, words, lazily) = match FUSERMOUNT.find() {
        Some(program) => (program, &["-u"][..], "-z"),
        // Only root comes here with success. Neither helpers nor the path itself are looked at.
        None => ("umount".into(), &["-i", "-c"][..], "-l"),
    };
    let mut command = Command::new(program);
    command.args(words).args(lazy.then_some(lazily)).arg("--").arg(point);
    command
}

/// Makes the command for the mount point, and the number of mounts before.
type Making = dyn Fn(&Path, u32) -> Command;

/// What a file system keeps on the local disk.
pub(super) enum Cache {
    /// A directory that outlives its mounts, if it makes it.
    Kept(PathBuf),
    /// rclone's: a directory for each mount in this one, with data that are written back late.
    Rclone(PathBuf),
}

/// A mount that can be made anew: the session of a file system.
pub(super) struct MountSession {
    point: PathBuf,
    /// The mount point, or a directory in it.
    shown: PathBuf,
    limit: Duration,
    make: Box<Making>,
    made: u32,
    mount: Mount,
    cache: Cache,
    /// The program whose `stats` prints the mount's counters.
    pub(super) counted_by: Option<PathBuf>,
}

impl MountSession {
    /// Mounts at `scratch/mnt`.
    pub(super) fn start(
        scratch: &Path,
        limit: Duration,
        executor: &Executor,
        cache: Cache,
        make: impl Fn(&Path, u32) -> Command + 'static,
    ) -> Result<MountSession> {
        let point = scratch.canonicalize()?.join("mnt");
        fs::create_dir(&point)?;
        let mount = Mount::start(make(&point, 0), &point, limit, executor)?;
        let shown = point.clone();
        let make = Box::new(make);
        Ok(MountSession { point, shown, limit, make, made: 1, mount, cache, counted_by: None })
    }

    /// The storage is at this name in the mount.
    pub(super) fn show(&mut self, name: &str) {
        self.shown = self.point.join(name);
    }

    fn settle_within(&self, executor: &Executor, limit: Duration) -> Result<()> {
        match &self.cache {
            Cache::Rclone(caches) => rclone::settle(caches, &self.mount, executor, limit),
            Cache::Kept(_) => Ok(()),
        }
    }

    /// Unmounts and mounts again, so that neither kernel nor daemon knows anything.
    fn mount_anew(&mut self, executor: &Executor, keep_cache: bool) -> Result<bool> {
        self.settle_within(executor, SETTLE_LIMIT)?;
        self.mount.stop()?;
        match &self.cache {
            // What it has is then read from the disk, as that of `local` is.
            Cache::Kept(dir) if keep_cache && dir.exists() => {
                local::drop_from_memory(dir, executor)?;
            }
            Cache::Kept(_) if keep_cache => {}
            // rclone's is of no use to the next mount, and is as long as what was read: a run has
            // room for it once.
            Cache::Kept(dir) | Cache::Rclone(dir) => match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            },
        }
        let command = (self.make)(&self.point, self.made);
        self.made += 1;
        self.mount = Mount::start(command, &self.point, self.limit, executor)?;
        Ok(true)
    }
}

impl Session for MountSession {
    fn access(&self) -> Access<'_> {
        Access::Directory(&self.shown)
    }

    fn client_pids(&self) -> Vec<u32> {
        self.mount.processes()
    }

    fn requests(&self, executor: &Executor) -> Option<Requests> {
        let mut command = Command::new(self.counted_by.as_ref()?);
        command.args(["stats", "--total", "--json"]).arg(&self.point);
        let told = executor.succeed(command, STATISTICS_LIMIT).ok()?;
        counted(&serde_json::from_slice(&told.output.stdout).ok()?)
    }

    fn settle(&mut self, executor: &Executor) -> Result<()> {
        self.settle_within(executor, SETTLE_LIMIT)
    }

    fn forget(&mut self, executor: &Executor) -> Result<bool> {
        self.mount_anew(executor, false)
    }

    fn remount(&mut self, executor: &Executor) -> Result<bool> {
        self.mount_anew(executor, true)
    }

    fn stop(&mut self, executor: &Executor) -> Result<()> {
        let settled = self.settle_within(executor, STOP_LIMIT);
        self.mount.stop()?;
        settled
    }

    fn abandon(&mut self) {
        self.mount.abandon();
    }
}
