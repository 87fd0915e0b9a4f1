//! `sshoal umount`: unmounts, and returns when the daemon has ended.
//!
//! umount(8) and fusermount3 do not wait for the daemon: the kernel notifies a FUSE daemon of the
//! unmount, but does not wait for it.

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use cli::{Problem, printable, word};
use control::client;
use control::probe::is_dead;
use control::record::{self, End, Found};
use control::seen;
use mountinfo::Mount;
use rustix::process::geteuid;

use crate::adapter::ending::PATIENCE as PATIENCE_WITH_SERVER;

/// After waiting this long, the command prints what it is waiting for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Unmounts `mountpoint`. If it was unmounted already, this waits for a daemon that has not ended.
/// With `lazy`, it is only detached: the daemon ends when the last open file is closed, and this
/// does not wait for it.
pub fn run(mountpoint: &Path, lazy: bool) -> Result<(), Problem> {
    let what = format!("'{}'", printable(mountpoint));
    let mount = match client::any_mount_at(mountpoint) {
        Ok(mount) => mount,
        Err(problem) => return wait_unmounted(mountpoint, lazy, &what, problem),
    };
    // Before unmounting: afterwards the record of the mount cannot be found.
    let record = record::find(&mount);
    if record.is_none() && mount.kind != "fuse.sshoal" {
        return Err(not_ours(&what, &mount));
    }
    // fusermount3 would find no such mount of this user.
    let me = geteuid();
    if let Some(owner) = mount.owner.filter(|owner| !me.is_root() && *owner != me.as_raw()) {
        return Err(Problem::new(
            &what,
            format!("mounted by user {owner}; only that user and root may unmount it"),
        ));
    }
    let is_dead = record.is_none() && is_dead(&mount);
    fuse::unmount(&mount.mountpoint, lazy).map_err(|error| {
        let problem = Problem::new(&what, refusal(&error));
        if matches!(error, fuse::Error::Busy(_)) {
            problem.hint(match mount_inside(&mount) {
                Some(inside) => format!("{inside} is mounted inside it; -z detaches both"),
                None => format!(
                    "`fuser -vm {}` lists the processes that use it; -z detaches it anyway",
                    word(mountpoint)
                ),
            })
        } else {
            problem
        }
    })?;
    match record {
        Some(record) if !lazy => wait(record, &mount, &what),
        Some(_) => Ok(()),
        None => {
            // The mount is gone, as requested, but data may have been lost.
            eprintln!(
                "sshoal: {what}: note: {}",
                match is_dead {
                    true =>
                        "the daemon of this mount had died; data that was not closed or fsynced may \
                         be missing on the server",
                    false =>
                        "unmounted without waiting, since the daemon of this mount is not known here \
                         (another XDG_RUNTIME_DIR, or it has no record); it may still be writing",
                }
            );
            Ok(())
        }
    }
}

/// Nothing is mounted at `mountpoint`, as `problem` says. Waits for the daemons of what another
/// command has unmounted there.
fn wait_unmounted(
    mountpoint: &Path,
    lazy: bool,
    what: &str,
    problem: Problem,
) -> Result<(), Problem> {
    let mut ending = seen::ending_at(mountpoint);
    // These are mounted in another mount namespace.
    ending.retain(|mount| mountinfo::elsewhere(mount).is_none());
    if ending.is_empty() {
        return Err(problem);
    }
    for mount in ending.iter().filter(|_| !lazy) {
        if let Some(record) = record::find(mount) {
            wait(record, mount, what)?;
        }
    }
    Ok(())
}

/// A mount inside of this one, in messages.
fn mount_inside(mount: &Mount) -> Option<String> {
    let all = mountinfo::all().ok()?;
    let place = &mount.mountpoint;
    let is_visible = |it: &Mount| {
        mountinfo::containing(&it.mountpoint).is_ok_and(|visible| visible.as_ref() == Some(it))
    };
    let is_inside = |it: &Mount| it.mountpoint != *place && it.mountpoint.starts_with(place);
    let inside = all.iter().rfind(|it| is_inside(it) && is_visible(it))?;
    Some(format!("'{}'", printable(&inside.mountpoint)))
}

fn not_ours(what: &str, mount: &Mount) -> Problem {
    let why = format!("not a mount of sshoal, but of type {}", printable(&mount.kind));
    let hint = if mountinfo::is_fuse(&mount.kind) { "fusermount3 -u" } else { "umount" };
    Problem::new(what, why).hint(format!("`{hint}` unmounts it"))
}

/// Why the kernel or fusermount3 refused, without the path.
fn refusal(error: &fuse::Error) -> String {
    match error {
        fuse::Error::Busy(_) => base::Errno::EBUSY.to_string(),
        fuse::Error::Unmount { source, .. } => printable(source.to_string()),
        other => printable(other.to_string()),
    }
}

fn wait(record: Found, mount: &Mount, what: &str) -> Result<(), Problem> {
    let daemon = record.pid();
    let pid = daemon.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string());
    let (told, end) = mpsc::channel();
    let record = Arc::new(record);
    let waiting = record.clone();
    thread::spawn(move || {
        // The receiver is gone if the wait was given up.
        let _ = told.send(waiting.wait_released());
    });
    let mut told_stopped = None;
    let end = loop {
        match end.recv_timeout(PATIENCE) {
            Ok(end) => break end,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break Err(io::ErrorKind::Other.into()),
        }
        if let Some(place) = still_mounted(mount)
            && let Some(lost) = written(&record, daemon)
        {
            if let Some(reason) = lost {
                return Err(data_lost(what, &reason));
            }
            eprintln!(
                "sshoal: {what}: note: unmounted, and all data is written; it is still mounted \
                 {place}, so the daemon (process {pid}) keeps running"
            );
            return Ok(());
        }
        let is_stopped = daemon.is_some_and(is_stopped);
        if told_stopped.replace(is_stopped) != Some(is_stopped) {
            eprintln!("sshoal: {what}: unmounted; {}", waiting_for(&pid, is_stopped));
        }
    };
    match end {
        Ok(End::Complete) => Ok(()),
        Ok(End::Failed(reason)) => Err(data_lost(what, &reason)),
        Ok(End::Vanished) => {
            Err(Problem::new(what, "unmounted, but the daemon died before writing all data")
                .hint("data that was not fsynced or closed may be missing on the server"))
        }
        Err(error) => Err(Problem::new(what, format!("unmounted, but cannot wait: {error}"))),
    }
}

/// Where else the file system of `mount` is mounted, in messages.
fn still_mounted(mount: &Mount) -> Option<String> {
    let here = mountinfo::all().unwrap_or_default();
    // Another file system may have the number by now.
    let is_same = |it: &&Mount| (it.device, &it.source) == (mount.device, &mount.source);
    if let Some(other) = here.iter().find(is_same) {
        return Some(format!("at '{}'", printable(&other.mountpoint)));
    }
    if let Some(process) = mountinfo::elsewhere(mount) {
        return Some(format!("in the mount namespace of process {process}"));
    }
    // The namespaces of other users' processes cannot be read, and what `umount -l` has detached is
    // in none.
    let unseen = "in another mount namespace, or detached and in use";
    mountinfo::is_alive(mount.device).then(|| unseen.to_owned())
}

fn waiting_for(pid: &str, is_stopped: bool) -> String {
    if is_stopped {
        return format!(
            "the daemon (process {pid}) is stopped, and cannot write the remaining data: `kill -CONT \
             {pid}` lets it go on, `kill -KILL {pid}` ends it and loses that data"
        );
    }
    let patience = PATIENCE_WITH_SERVER.as_secs();
    format!(
        "waiting for the daemon (process {pid}) to write the remaining data. It gives up when the \
         server does not reply for {patience} s, or when it is killed"
    )
}

/// Whether a process is stopped by a signal or a debugger.
fn is_stopped(pid: u32) -> bool {
    // The state comes after the program's name, which may contain anything.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

fn data_lost(what: &str, reason: &str) -> Problem {
    Problem::new(what, format!("unmounted, but data was lost: {}", printable(reason)))
}

/// `None` while acknowledged data is still being written; then the data that the daemon reports as
/// lost, if any. The process id is compared: once the file system is gone, another mount may get
/// its device number and answer instead.
fn written(record: &Found, daemon: Option<u32>) -> Option<Option<String>> {
    let status = client::status(record).ok()?;
    if Some(status.pid) != daemon {
        return None;
    }
    let is_written = status.unwritten.bytes == 0 && status.unwritten.changes == 0;
    (is_written || status.lost.is_some()).then_some(status.lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::fd::AsRawFd;

    use rustix::fs::{Mode, OFlags};
    use rustix::mount::MountFlags;

    use control::record::Record;
    use testkit::own_process::is_inside;

    /// Root also reads the records of other users.
    #[test]
    fn the_words_of_a_record_are_escaped() {
        let text = data_lost("'/m'", "\u{1b}]0;owned\u{7}\u{9b}\u{202e}").to_string();
        assert_eq!(base::printable(text.as_bytes()), text);
        assert!(text.contains("owned"), "{text}");
    }

    #[test]
    fn only_mounts_of_ours_are_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        let nothing = run(dir.path(), false).unwrap_err().to_string();
        assert!(nothing.contains("nothing is mounted here"), "{nothing}");
        let other = run(Path::new("/proc"), false).unwrap_err().to_string();
        assert!(other.contains("type proc"), "{other}");
        assert!(other.contains("`umount`"), "{other}");
        let missing = run(Path::new("/no/such/place"), true).unwrap_err().to_string();
        assert!(missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn a_mount_of_ours_goes_and_its_daemon_s_end_is_waited_for() {
        let test = "umount::tests::a_mount_of_ours_goes_and_its_daemon_s_end_is_waited_for";
        if !is_inside(sandbox::namespace::command(), test) {
            return;
        }
        // Records of root go to /run, which is this test's own here.
        let run_options = CString::new("mode=755").unwrap();
        rustix::mount::mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), run_options.as_c_str())
            .unwrap();
        type Finish = fn(Record);
        let dir = tempfile::tempdir().unwrap();
        let cases: [(Finish, Option<&str>); 3] = [
            (Record::ended, None),
            (|record| record.failed("no space left"), Some("data was lost: no space left")),
            (drop, Some("the daemon died")),
        ];
        for (finish, expected) in cases {
            let _device = mount_without_daemon(dir.path(), "fuse.sshfs");
            let mount = mountinfo::find(dir.path()).unwrap().unwrap();
            assert_eq!((&mount.kind, mount.owner), (&"fuse.sshfs".into(), Some(0)));
            assert!(mountinfo::is_alive(mount.device));
            // Held open, it is busy; that is the caller's to solve, and nothing has happened yet.
            let record = Record::create(&mount).unwrap();
            let handle = rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
            let busy = run(dir.path(), false).unwrap_err().to_string();
            assert!(busy.contains("busy") && busy.contains("-z detaches"), "{busy}");
            drop(handle);

            let place = dir.path().to_owned();
            let unmounting = thread::spawn(move || run(&place, false));
            while mountinfo::find(dir.path()).unwrap().is_some() && !unmounting.is_finished() {
                thread::yield_now();
            }
            assert!(!unmounting.is_finished(), "it must wait for the daemon");
            finish(record);
            let result = unmounting.join().unwrap().map_err(|problem| problem.to_string());
            match expected {
                None => assert_eq!(result, Ok(())),
                Some(why) => assert!(result.clone().unwrap_err().contains(why), "{result:?}"),
            }
        }
        // Without a daemon only the type shows that it is ours; a lazy unmount does not wait.
        let _other = mount_without_daemon(dir.path(), "fuse.sshfs");
        let other = run(dir.path(), false).unwrap_err().to_string();
        assert!(other.contains("`fusermount3 -u`"), "{other}");
        let _dead = mount_without_daemon(dir.path(), "fuse.sshoal");
        run(dir.path(), true).unwrap();
        let below = mountinfo::find(dir.path()).unwrap().unwrap();
        assert_eq!(below.kind, "fuse.sshfs");
    }

    /// A FUSE mount without a server; it is dead once the file is dropped.
    fn mount_without_daemon(place: &Path, kind: &str) -> std::fs::File {
        let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("host:/dir", place, kind, flags, options.as_c_str()).unwrap();
        device
    }
}
