//! Checks what is already mounted on a mount point.
//!
//! A second mount over a mount of sshoal would hide the first one, which no command could find any
//! more, so it is refused without `nonempty`. A dead mount, whose daemon has ended, is removed.
//!
//! A FUSE file system may not answer. A system call that its daemon has accepted and does not
//! answer cannot be killed, nor can its caller. So a separate process makes the call, and the wait
//! for it is bounded: [`probe`].

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use cli::{Problem, printable, word};
use control::record;
use mountinfo::Mount;

/// A file system that does not answer within this time is treated as hung. More than a slow link
/// needs.
const PATIENCE: Duration = Duration::from_secs(3);

/// The answer of a mounted file system.
enum Answer {
    Good,
    /// Its daemon has ended.
    Dead,
    Refused,
    /// It did not answer in time.
    Silence,
}

/// Checks that a file system can be mounted on `place`, over a mount of sshoal only if `may_cover`,
/// and removes dead mounts. `what` names the place in messages; `note` is called for each removed
/// mount.
pub fn clear(
    place: &Path,
    may_cover: bool,
    what: &str,
    note: impl Fn(&str),
) -> Result<(), Problem> {
    // Several mounts may be stacked; each iteration removes one.
    while let Some(mount) = mountinfo::find(place).ok().flatten() {
        if !mountinfo::is_fuse(&mount.kind) {
            break;
        }
        let named = format!("{} ({})", printable(&mount.source), printable(&mount.kind));
        let at = word(&mount.mountpoint);
        let answer = answer(&mount.mountpoint)
            .map_err(|error| Problem::new(what, format!("cannot be probed: {error}")))?;
        match answer {
            Answer::Good if record::is_ours(&mount) && !may_cover => {
                let why = format!("{named} is already mounted here");
                return Err(Problem::new(what, why).hint(format!(
                    "`sshoal umount {at}` unmounts it; -o nonempty mounts over it"
                )));
            }
            Answer::Good => break,
            // Without a daemon it has no record: only the type shows that it is ours.
            Answer::Dead
                if mount.kind == "fuse.sshoal"
                    && fuse::unmount(&mount.mountpoint, true).is_ok() =>
            {
                note(&format!("{what}: removed a dead mount of {named}"));
            }
            Answer::Dead => {
                let why = format!("{named} is mounted here, but its daemon has ended");
                return Err(Problem::new(what, why)
                    .hint(format!("`{} {at}` removes it", unmount_command(&mount, false))));
            }
            Answer::Refused => {
                let by = mount.owner.map_or_else(String::new, |uid| format!(" by user {uid}"));
                return Err(Problem::new(what, format!("{named} is mounted here{by}"))
                    .hint("only its owner may access it; choose another directory"));
            }
            Answer::Silence => {
                let why = format!("{named} is mounted here and does not respond");
                return Err(Problem::new(what, why)
                    .hint(format!("`{} {at}` detaches it", unmount_command(&mount, true))));
            }
        }
    }
    Ok(())
}

/// The command that unmounts a mount.
pub fn unmount_command(mount: &Mount, lazy: bool) -> &'static str {
    match (record::is_ours(mount), lazy) {
        (true, false) => "sshoal umount",
        (true, true) => "sshoal umount -z",
        (false, false) => "fusermount3 -u",
        (false, true) => "fusermount3 -u -z",
    }
}

/// Whether the daemon of a mount has ended.
pub fn is_dead(mount: &Mount) -> bool {
    matches!(answer(&mount.mountpoint), Ok(Answer::Dead))
}

/// Requests the attributes of the root of a file system, in a separate process.
fn answer(place: &Path) -> io::Result<Answer> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("probe").arg(place);
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
