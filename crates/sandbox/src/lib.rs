//! Private SSH servers on the loopback interface, and the links in front of them: what `sshoal
//! demo`, `sshoal bench` and the tests run against.
//!
//! | module | contents |
//! |---|---|
//! | [`sshd`] | an OpenSSH server with throw-away keys |
//! | [`link`] | a forwarder that delays, limits and breaks connections |
//! | [`fleet`] | several servers, each behind a link, with one ssh configuration |
//! | [`namespace`] | commands in a mount namespace of their own |
//! | [`network`] | network namespaces with TCP settings of their own |
//! | [`leftover`] | finds mounts and processes that a test has left behind |
#![forbid(unsafe_code)]

pub mod fleet;
pub mod leftover;
pub mod link;
pub mod namespace;
pub mod network;
mod reserved;
pub mod sshd;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tempfile::TempDir;

pub use reserved::connect_reserved;

/// Creates a temporary directory of mode 0700, independent of the umask.
///
/// # Errors
/// Those of mkdir(2).
pub fn private_dir(prefix: &str) -> io::Result<TempDir> {
    private_dir_in(prefix, &std::env::temp_dir())
}

/// As [`private_dir`], below `parent` instead of the default temporary directory.
///
/// # Errors
/// Those of mkdir(2).
pub fn private_dir_in(prefix: &str, parent: &Path) -> io::Result<TempDir> {
    let private = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(parent)
}

/// Writes a file that only its owner may read.
///
/// # Errors
/// Those of open(2) and write(2).
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Copies a program, by cp(1): if this process wrote the copy, a child that another thread starts
/// meanwhile would have it open for writing until its exec, and the copy could not be executed.
///
/// # Errors
/// When cp cannot be started, or fails.
pub fn copy_program(from: &Path, to: &Path) -> io::Result<()> {
    match Command::new("cp").arg("--").arg(from).arg(to).status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("cp {}: {status}", from.display()))),
    }
}

/// Writes a script that can be executed, by install(1), for the reason that [`copy_program`] has.
///
/// # Errors
/// When install cannot be started, or fails.
pub fn write_program(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut install = Command::new("install");
    install.args(["-m", "755", "--", "/dev/stdin"]).arg(path.as_ref());
    let mut install = install.stdin(Stdio::piped()).spawn()?;
    let written = install.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_ref()));
    match install.wait()? {
        status if status.success() => written,
        status => Err(io::Error::other(format!("install {}: {status}", path.as_ref().display()))),
    }
}

/// A word of 32 hexadecimal digits that cannot be guessed.
///
/// # Errors
/// Those of reading `/dev/urandom`.
pub fn random_word() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |word, byte| word + &format!("{byte:02x}")))
}

/// Whether one of the descriptors becomes readable within `limit`; a process by its pidfd when it
/// has ended.
pub fn wait_readable(fds: &[impl AsFd], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Err(Errno::INTR) => (),
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_kept() {
        let (one, other) = (random_word().unwrap(), random_word().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write_private(&path, one.as_bytes()).unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_the_owner_has_access_to_a_private_directory() {
        let dir = private_dir("sandbox-test-").unwrap();
        let mode = std::fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }
}
