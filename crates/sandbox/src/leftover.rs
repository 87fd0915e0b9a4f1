//! Proof that a test has left nothing behind: no mount, no process.
//!
//! Tests of one binary run side by side, so the question is always asked about one directory, the
//! temporary one in which the test keeps its keys, its configuration, its trees and its mount
//! points: what was started for it carries that path in its arguments or stands in it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long processes that were told to end may take to be gone.
const GRACE: Duration = Duration::from_secs(5);

/// Something that should not be there any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A mount at or below the directory.
    Mount {
        /// Where.
        at: PathBuf,
        /// Its type, such as `fuse.sshoal`.
        kind: String,
    },
    /// A process with the directory, or a path below it, in its arguments or as where it stands.
    /// A zombie has neither any more and does not count.
    Process {
        /// Its number.
        pid: u32,
        /// Its arguments, joined with spaces.
        command: String,
    },
}

/// Panics with a list when mounts below `dir` or processes of it are left. Processes get five
/// seconds to end.
///
/// # Panics
///
/// When something is left, or `/proc` cannot be read.
#[track_caller]
pub fn assert_none(dir: &Path) {
    let deadline = Instant::now() + GRACE;
    loop {
        let left = find(dir).unwrap_or_else(|error| panic!("looking for leftovers: {error}"));
        if left.is_empty() {
            return;
        }
        // The end of a process that is no child of ours is no event that one could wait for
        // without a handle on it, hence the polling.
        assert!(Instant::now() < deadline, "left behind below {}: {left:#?}", dir.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What is left below `dir` right now.
pub fn find(dir: &Path) -> io::Result<Vec<Leftover>> {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let mut left = mounts(&dir)?;
    left.extend(processes(&dir)?);
    Ok(left)
}

fn mounts(dir: &Path) -> io::Result<Vec<Leftover>> {
    let below = mountinfo::all()?.into_iter().filter(|mount| mount.mountpoint.starts_with(dir));
    let leftover = |mount: mountinfo::Mount| Leftover::Mount {
        at: mount.mountpoint,
        kind: mount.kind.to_string_lossy().into_owned(),
    };
    Ok(below.map(leftover).collect())
}

fn processes(dir: &Path) -> io::Result<Vec<Leftover>> {
    let entries = fs::read_dir("/proc")?.collect::<io::Result<Vec<_>>>()?.into_iter();
    let found = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        // A process may end between any two of these lines; then it is not left behind.
        let command = belonging(&entry.path(), dir).filter(|_| pid != std::process::id())?;
        Some(Leftover::Process { pid, command })
    });
    Ok(found.collect())
}

/// The command of the process at `proc`, when it belongs to `dir`.
fn belonging(proc: &Path, dir: &Path) -> Option<String> {
    let arguments = fs::read(proc.join("cmdline")).ok()?;
    let stands_in = fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
    (stands_in || names(&arguments, dir.as_os_str().as_bytes())).then(|| {
        let text = String::from_utf8_lossy(&arguments).replace('\0', " ");
        text.trim_end().escape_debug().to_string()
    })
}

/// Whether `dir` occurs in `arguments` as a whole path or as the beginning of one.
fn names(arguments: &[u8], dir: &[u8]) -> bool {
    arguments.windows(dir.len()).enumerate().any(|(at, window)| {
        let next = arguments.get(at + dir.len());
        let name_goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        window == dir && !next.is_some_and(name_goes_on)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_found_by_where_it_stands_and_by_its_arguments() {
        let dir = tempfile::tempdir().unwrap();
        assert_none(dir.path());
        // `cat` stays until its stdin is closed. It is asked for an echo, since the arguments of a
        // process cannot be read in the first moment of its life.
        let start = |command: &mut Command| {
            let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            child
        };
        let mut standing = start(Command::new("cat").current_dir(dir.path()));
        let mut named = start(Command::new("cat").arg("-").arg(dir.path().join("x")));
        let mut pids: Vec<u32> = find(dir.path())
            .unwrap()
            .into_iter()
            .map(|left| match left {
                Leftover::Process { pid, .. } => pid,
                Leftover::Mount { .. } => panic!("{left:?}"),
            })
            .collect();
        pids.sort_unstable();
        let mut expected = [standing.id(), named.id()];
        expected.sort_unstable();
        assert_eq!(pids, expected);
        drop((standing.stdin.take(), named.stdin.take()));
        standing.wait().unwrap();
        named.wait().unwrap();
        assert_none(dir.path());
    }

    #[test]
    fn mounts_are_found_below_a_directory() {
        assert!(
            mounts(Path::new("/proc"))
                .unwrap()
                .iter()
                .any(|left| { matches!(left, Leftover::Mount { kind, .. } if kind == "proc") })
        );
    }

    #[test]
    fn a_longer_name_is_another_directory() {
        assert!(names(b"sshd\0-f\0/tmp/ab/config\0", b"/tmp/ab"));
        assert!(names(b"-oX=/tmp/ab\0", b"/tmp/ab"));
        assert!(!names(b"cat\0/tmp/abc/x\0", b"/tmp/ab"));
    }
}
