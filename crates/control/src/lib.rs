//! Between the commands of the program and the daemon of a mount: [records of mounts](record), by
//! which a command finds the daemon, and the protocol over the socket beside a record.
//!
//! A connection carries one request and its reply, each a line of JSON. A request that takes time
//! is first answered with [`Reply::Working`], at once, so that a working daemon can be
//! distinguished from one that hangs; replies with the progress may follow. Closing the connection
//! cancels the request.
//!
//! | module | contents |
//! |---|---|
//! | [`record`] | records of mounts |
//! | [`client`] | the command's side: sends a request, waits for the reply |
//! | [`inside`] | finds the mount that contains a path |
//! | [`probe`] | whether a mounted file system answers |
//! | [`seen`] | the state of mounts, also of those whose daemon does not answer |
//! | [`server`] | the daemon's side: accepts requests, answers them |
//! | [`status`] | the status of a mount |
//! | [`counters`] | its counters, a part of the status on request |
//! | [`profile`] | which paths and processes cause requests |
//! | [`job`] | jobs of a disk cache, and their results |
//! | [`place`] | where a path of a mount is, and how to reach its hosts |
//!
//! Invariants:
//! 1. Only the owner of the mount and root are answered: other users cannot access the directory of
//!    the socket, and the kernel is asked for the peer's user id as well.
//! 2. The length of lines, the number of connections and the time that a peer may take are bounded
//!    on both sides. The connection to a silent or too verbose peer is closed; no other waits for
//!    it.
//! 3. A mount that hangs blocks no command. Its file system is accessed only by a separate process,
//!    for a limited time ([`probe`]), or by a thread, for which a command waits only while the daemon
//!    answers ([`client::patiently`]).
//!
//! Both sides are the same program, perhaps of different versions: a request carries the version of
//! the protocol, and a daemon reports a request that it does not understand.
#![forbid(unsafe_code)]

pub mod client;
pub mod counters;
pub mod inside;
pub mod job;
pub mod place;
pub mod probe;
pub mod profile;
pub mod record;
pub mod seen;
pub mod server;
pub mod status;

use cli::Problem;
use serde::{Deserialize, Serialize};

use job::{CacheJob, Tally};
use place::{Connection, Place};
use profile::Profile;
use status::MountStatus;

/// Version of the protocol. Incremented when earlier versions would misunderstand a request or a
/// reply; new fields do not change it.
pub const PROTOCOL: u32 = 1;

/// Maximum length of a request in bytes: a path and the names of the gateways fit.
const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// Maximum length of a reply in bytes: ten times the status of 64 branches with all details.
const MAX_REPLY_BYTES: u64 = 8 << 20;

/// What a problem of the protocol is about.
const SOCKET: &str = "control socket";

/// The answer of a daemon to a request that its version does not have.
const INVALID_REQUEST: &str = "invalid request";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`PROTOCOL`] of the client.
    pub protocol: u32,
    /// The request itself.
    #[serde(flatten)]
    pub wish: Wish,
}

/// What a client requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "wish", rename_all = "kebab-case")]
pub enum Wish {
    /// The status of the mount.
    Status,
    /// The status with the counters.
    Stats,
    /// A profile.
    Profile {
        /// Time of the recording.
        seconds: u32,
    },
    /// A change of its branches.
    Branch(Change),
    /// A job of its disk cache.
    Cache(CacheJob),
    /// Where a path is.
    Place {
        /// The path below the root of the mount.
        path: job::Path,
    },
    /// How the mount connects to its hosts.
    Connections,
    /// Wait until what was written to open files before is at the servers.
    Flush,
    /// Request everything again that is cached of the servers.
    Refresh,
    /// The options that can be changed, with their present values.
    Settings,
    /// Change options: all of them or none.
    Set {
        /// The options, as after `-o`.
        options: Vec<String>,
        /// Accept options that cannot be changed if they have the present value.
        is_remount: bool,
    },
    /// Keep a password for a host. It is not part of the request: the client sends it as a line of
    /// its own after [`Reply::Working`].
    Login {
        /// The host, as the status shows it.
        host: String,
    },
}

impl Wish {
    /// Whether a daemon answers at once, so that the reply is not preceded by [`Reply::Working`].
    pub fn is_quick(&self) -> bool {
        matches!(self, Wish::Status | Wish::Stats | Wish::Settings | Wish::Connections)
    }
}

/// An option that can be changed while the file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The name.
    pub name: String,
    /// The present value, as it would be given after `-o`.
    pub value: String,
}

/// A change of the branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// Add a branch after the existing ones.
    Add {
        /// The source as on the command line, with its place and mode.
        source: String,
    },
    /// Remove a branch. Files open on it work until they are closed.
    Remove {
        /// The branch, as the status shows it.
        source: String,
    },
    /// Change a setting of a branch.
    Set {
        /// The branch, as the status shows it.
        source: String,
        /// The new setting.
        word: Word,
    },
}

/// A setting of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Read and write.
    Rw,
    /// Read only.
    Ro,
    /// No create: existing files may be changed, but no new ones created.
    Nc,
    /// Left out while it is unreachable.
    Optional,
    /// Calls that need it wait or fail while it is unreachable.
    Required,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The request was accepted and takes time; another reply follows.
    Working,
    /// Progress of a job; another reply follows.
    Progress(Tally),
    /// The status of the mount.
    Status(Box<MountStatus>),
    /// The profile.
    Profile(Box<Profile>),
    /// The result of a job.
    Tally(Tally),
    /// Where a path is.
    Place(Box<Place>),
    /// How the mount connects to its hosts, in the order of the status.
    Connections(Vec<Connection>),
    /// The options that can be changed.
    Settings(Vec<Setting>),
    /// The change was made.
    Done,
    /// The request was refused or has failed.
    Refused(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both_ways(line: &str, request: &Request) {
        assert_eq!(serde_json::to_string(request).unwrap(), line);
        assert_eq!(&serde_json::from_str::<Request>(line).unwrap(), request);
    }

    /// Other versions read and write these lines: a changed line is a new version of the protocol.
    #[test]
    fn requests_are_what_they_were() {
        let request = |wish| Request { protocol: 1, wish };
        both_ways(r#"{"protocol":1,"wish":"status"}"#, &request(Wish::Status));
        both_ways(r#"{"protocol":1,"wish":"stats"}"#, &request(Wish::Stats));
        let profile = r#"{"protocol":1,"wish":"profile","seconds":3}"#;
        both_ways(profile, &request(Wish::Profile { seconds: 3 }));
        let source = || "P=host:/dir=ro".to_owned();
        let branch = |change| request(Wish::Branch(change));
        both_ways(
            r#"{"protocol":1,"wish":"branch","change":"add","source":"P=host:/dir=ro"}"#,
            &branch(Change::Add { source: source() }),
        );
        both_ways(
            r#"{"protocol":1,"wish":"branch","change":"remove","source":"P=host:/dir=ro"}"#,
            &branch(Change::Remove { source: source() }),
        );
        both_ways(
            r#"{"protocol":1,"wish":"branch","change":"set","source":"P=host:/dir=ro","word":"nc"}"#,
            &branch(Change::Set { source: source(), word: Word::Nc }),
        );
        let path = job::Path(base::RemotePath::parse(b"a").unwrap());
        both_ways(r#"{"protocol":1,"wish":"place","path":"61"}"#, &request(Wish::Place { path }));
        both_ways(r#"{"protocol":1,"wish":"connections"}"#, &request(Wish::Connections));
        both_ways(r#"{"protocol":1,"wish":"flush"}"#, &request(Wish::Flush));
        both_ways(r#"{"protocol":1,"wish":"refresh"}"#, &request(Wish::Refresh));
        both_ways(r#"{"protocol":1,"wish":"settings"}"#, &request(Wish::Settings));
        both_ways(
            r#"{"protocol":1,"wish":"set","options":["a=1"],"is_remount":false}"#,
            &request(Wish::Set { options: vec!["a=1".into()], is_remount: false }),
        );
        both_ways(
            r#"{"protocol":1,"wish":"login","host":"me@h"}"#,
            &request(Wish::Login { host: "me@h".into() }),
        );
    }

    #[test]
    fn replies_are_what_they_were() {
        let refused = Problem::new("branch 'a:/x'", "no such branch").hint("look");
        for (line, reply) in [
            (r#""working""#, Reply::Working),
            (r#""done""#, Reply::Done),
            (
                r#"{"refused":{"what":"branch 'a:/x'","why":"no such branch","hint":"look"}}"#,
                Reply::Refused(refused),
            ),
        ] {
            assert_eq!(serde_json::to_string(&reply).unwrap(), line);
            assert_eq!(serde_json::from_str::<Reply>(line).unwrap(), reply);
        }
    }
}
