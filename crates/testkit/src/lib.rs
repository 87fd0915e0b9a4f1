//! Tools for the tests of all other crates.
//!
//! | module | what it is |
//! |---|---|
//! | [`mem`] | a correct [`Remote`](base::Remote) in memory, which counts its calls and can be changed out of band |
//! | [`faulty`] | a `Remote` around a `Remote` that fails, holds and loses calls as instructed |
//! | [`history`] | past and present states of a server's files |
//! | [`interleave`] | clients of one server whose calls proceed one at a time, in a random order |
//! | [`lagging`] | a gateway that shows stale data for a while |
//! | [`mod@conformance`] | the rules for every `Remote`, one test each |
//! | [`lease`] | a lease of another process on a file |
//! | [`model`] | random operations, run against a reference model and a real file system |
//! | [`mutated`] | inputs for parsers, made from valid ones by a few changes |
//! | [`own_process`] | tests in a process of their own |
//! | [`dice`] | reproducible random choices |
//! | [`sftp_servers`] | OpenSSH's `sftp-server` without ssh |
//! | [`proxy`] | a proxy that breaks an SFTP connection at a given moment of a given request |
//!
//! Used by tests only. Private servers and simulated links are in the crate `sandbox`.
#![forbid(unsafe_code)]

pub mod call;
pub mod clock;
pub mod conformance;
pub mod dice;
pub mod faulty;
pub mod history;
pub mod interleave;
pub mod lagging;
pub mod lease;
pub mod mem;
pub mod model;
pub mod mutated;
pub mod own_process;
pub mod proxy;
pub mod sftp_servers;
pub mod tree;

pub use call::Call;
pub use clock::{Clock, ManualClock};
pub use faulty::FaultyRemote;
pub use lagging::Lagging;
pub use lease::Lease;
pub use mem::MemRemote;
pub use sftp_servers::SftpServers;

use base::RemotePath;

/// The path written as `text`; the empty text is the root.
///
/// # Panics
///
/// If `text` is not a valid path: the function is for literals.
pub fn path(text: &str) -> RemotePath {
    RemotePath::parse(text.as_bytes()).unwrap_or_else(|why| panic!("{text:?} has {why} in it"))
}
