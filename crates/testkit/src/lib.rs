//! What the tests of all other parts stand on.
//!
//! | module | what it is |
//! |---|---|
//! | [`mem`] | a perfect [`Remote`](base::Remote) in memory, which counts its calls and can be changed from behind |
//! | [`faulty`] | a `Remote` around a `Remote` that fails, holds and loses calls when told to |
//! | [`history`] | what the files of a server have been, and when |
//! | [`interleave`] | clients of one server whose calls go on one at a time, in a random order |
//! | [`lagging`] | a gateway that shows for a while what was before a change |
//! | [`mod@conformance`] | the rules that every `Remote` must keep, one test each |
//! | [`model`] | random operations, run against a reference model and a real file system at once |
//! | [`mutated`] | inputs for parsers, made from good ones by a few changes |
//! | [`dice`] | random choices that a seed repeats |
//! | [`sftp_servers`] | OpenSSH's `sftp-server` without ssh |
//! | [`sshd`] | a private OpenSSH server |
//! | [`link`] | a delaying, breaking forwarder in front of one |
//! | [`fleet`] | several servers, each behind a link, and one ssh configuration for all |
//! | [`namespace`] | programs in a mount namespace of their own |
//! | [`wire`] | a forwarder that breaks at a given moment of a given SFTP request |
//! | [`leftover`] | proof that a test left no mount and no process behind |
//!
//! Nothing here is used by the file system itself.
#![deny(unsafe_code)]

pub mod call;
pub mod clock;
#[cfg(feature = "suites")]
pub mod conformance;
pub mod dice;
pub mod faulty;
pub mod fleet;
pub mod history;
pub mod interleave;
pub mod lagging;
pub mod leftover;
pub mod link;
pub mod mem;
#[cfg(feature = "suites")]
pub mod model;
pub mod mutated;
pub mod namespace;
pub mod sftp_servers;
pub mod sshd;
pub mod tree;
pub mod wire;

pub use call::Call;
pub use clock::{Clock, ManualClock};
pub use faulty::FaultyRemote;
pub use lagging::Lagging;
pub use mem::MemRemote;
pub use sftp_servers::SftpServers;

use base::RemotePath;

/// A temporary directory that nobody else can enter, whatever the umask is.
///
/// # Errors
/// When it cannot be made.
pub fn private_dir(prefix: &str) -> std::io::Result<tempfile::TempDir> {
    private_dir_in(prefix, &std::env::temp_dir())
}

/// As [`private_dir`], in a directory that is given.
///
/// # Errors
/// When it cannot be made.
pub fn private_dir_in(
    prefix: &str,
    parent: &std::path::Path,
) -> std::io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(parent)
}

/// The path written as `text`; the empty text is the root.
///
/// # Panics
///
/// When `text` is no path: it is for literals.
#[must_use]
pub fn path(text: &str) -> RemotePath {
    RemotePath::parse(text.as_bytes()).unwrap_or_else(|why| panic!("{text:?} has {why} in it"))
}
