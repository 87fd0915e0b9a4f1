//! Private SSH servers on the loopback interface, and the links in front of them: what `sshoal demo`,
//! `sshoal bench` and the tests run against.
//!
//! | module | contents |
//! |---|---|
//! | [`sshd`] | an OpenSSH server with throw-away keys |
//! | [`link`] | a forwarder that delays, limits and breaks connections |
//! | [`fleet`] | several servers, each behind a link, with one ssh configuration |
//! | [`namespace`] | commands in a mount namespace of their own |
//! | [`leftover`] | finds mounts and processes that a test has left behind |
#![forbid(unsafe_code)]

pub mod fleet;
pub mod leftover;
pub mod link;
pub mod namespace;
pub mod sshd;

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

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
