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
//! | [`wire`] | a forwarder that breaks at a given moment of a given SFTP request |
//!
//! Only tests use it. Private servers and simulated links are in the crate `sandbox`.
#![deny(unsafe_code)]

pub mod call;
pub mod clock;
pub mod conformance;
pub mod dice;
pub mod faulty;
pub mod history;
pub mod interleave;
pub mod lagging;
pub mod mem;
pub mod model;
pub mod mutated;
pub mod sftp_servers;
pub mod tree;
pub mod wire;

pub use call::Call;
pub use clock::{Clock, ManualClock};
pub use faulty::FaultyRemote;
pub use lagging::Lagging;
pub use mem::MemRemote;
pub use sftp_servers::SftpServers;

use base::RemotePath;

/// The path written as `text`; the empty text is the root.
///
/// # Panics
///
/// When `text` is no path: it is for literals.
#[must_use]
pub fn path(text: &str) -> RemotePath {
    RemotePath::parse(text.as_bytes()).unwrap_or_else(|why| panic!("{text:?} has {why} in it"))
}
