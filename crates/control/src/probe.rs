//! Whether a mounted file system answers.
//!
//! A FUSE file system may not answer. A system call that its daemon has accepted and does not
//! answer cannot be killed, nor can its caller. So a separate process makes the call, `sshoal
//! probe`, and the wait for it is bounded.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use mountinfo::Mount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

/// A file system that does not answer within this time is treated as hung. More than a slow link
/// needs.
const PATIENCE: Duration = Duration::from_secs(3);

/// The answer of a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its daemon answers.
    Good,
    /// Its daemon has ended.
    Dead,
    /// This user may not access it.
    Refused,
    /// It did not answer in time.
    Silence,
}

/// Whether the daemon of a mount has ended.
pub fn is_dead(mount: &Mount) -> bool {
    // The kernel refuses root like any other user before it looks for the daemon.
    let owner = mount.owner.zip(mount.owner_group());
    let user = owner.filter(|_| geteuid().is_root());
    matches!(answer_to(user, &mount.mountpoint), Ok(Answer::Dead))
}

/// Requests the attributes of the root of a file system, in a separate process.
pub fn answer(place: &Path) -> io::Result<Answer> {
    answer_to(None, place)
}

/// The [`answer`] to a process of this user and group, if they are named.
fn answer_to(user: Option<(u32, u32)>, place: &Path) -> io::Result<Answer> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("probe").arg(place);
    if let Some((user, group)) = user {
        // The environment is root's.
        command.uid(user).gid(group).env_clear();
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit))? == 0 {
        // It may not end before the file system does, so do not wait for it.
        let _ = child.kill();
        return Ok(Answer::Silence);
    }
    let code = child.wait()?.code();
    let is = |error: Errno| code == Some(error.raw_os_error());
    Ok(if is(Errno::NOTCONN) {
        Answer::Dead
    } else if is(Errno::ACCESS) || is(Errno::PERM) {
        Answer::Refused
    } else {
        Answer::Good
    })
}

/// The process of [`answer`]. The exit code is the error number, or 0.
pub fn probe(place: &Path) -> ExitCode {
    // Not from the kernel's cache, which may answer for a file system that hangs.
    let flags = AtFlags::STATX_FORCE_SYNC;
    match statx(CWD, place, flags, StatxFlags::BASIC_STATS) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(u8::try_from(error.raw_os_error()).unwrap_or(u8::MAX)),
    }
}
