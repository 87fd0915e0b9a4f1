//! How a command talks to the daemon of a mount: over the socket beside the mount's
//! [record](crate::record).
//!
//! A connection carries one request and its reply, each a line of JSON. A request that takes time
//! is first answered with [`Reply::Working`], at once, so that a daemon that works is told from one
//! that hangs, and may then tell how far it is; whoever hangs up ends it.
//!
//! Invariants:
//! 1. Only the user who mounted and root are answered: nobody else can reach the directory that the
//!    socket is in, and who is connected is asked of the kernel besides.
//! 2. Lines, connections and the time that a peer may take have bounds on both sides. A peer that
//!    says nothing, or too much, is left; nothing waits for him but his own connection.
//! 3. Nothing here asks the mounted file system anything, so a mount that hangs keeps nobody.
//!
//! Both sides are the same program, though perhaps of different versions: a request carries the
//! version of the protocol, and what a daemon does not understand it says so.

pub mod cache;
pub mod client;
pub mod server;

use serde::{Deserialize, Serialize};

use crate::report::Problem;
use crate::status::schema::MountStatus;

/// Changed when a request or a reply of before would be misunderstood. New fields are no such
/// change.
pub const PROTOCOL: u32 = 1;

/// Longest request in bytes: a source is no longer than a path and the names of its gateways.
const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// Longest reply in bytes: the status of 64 branches with all that they can have is a tenth of it.
const MAX_REPLY_BYTES: u64 = 8 << 20;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`PROTOCOL`] of who asks.
    pub protocol: u32,
    /// For what.
    #[serde(flatten)]
    pub wish: Wish,
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "wish", rename_all = "kebab-case")]
pub enum Wish {
    /// How the mount is.
    Status,
    /// To change its branches.
    Branch(Change),
    /// To do something with its cache on disk.
    Cache(cache::CacheJob),
}

/// A change of the branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Change {
    /// Another one, as it is written on the command line, behind those that there are.
    Add {
        /// With its place and its words.
        source: String,
    },
    /// One goes. What is open on it goes on until it is closed.
    Remove {
        /// As it is called in the status.
        source: String,
    },
    /// One becomes another kind.
    Set {
        /// As it is called in the status.
        source: String,
        /// What it becomes.
        word: Word,
    },
}

/// What a branch can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Everything may be changed in it.
    Rw,
    /// Nothing may.
    Ro,
    /// What is there may be changed; nothing new is made in it.
    Nc,
    /// It is left out while it is away.
    Optional,
    /// Calls that need it wait or fail while it is away.
    Required,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It was understood, is allowed, and takes a while; another reply follows.
    Working,
    /// How far a job is; another reply follows.
    Progress(cache::Tally),
    /// How the mount is.
    Status(Box<MountStatus>),
    /// What a job has come to.
    Tally(cache::Tally),
    /// It was done.
    Done,
    /// It was not done.
    Refused(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both_ways(line: &str, request: &Request) {
        assert_eq!(serde_json::to_string(request).unwrap(), line);
        assert_eq!(&serde_json::from_str::<Request>(line).unwrap(), request);
    }

    /// Other versions read and write these lines: a line that has to be changed here is a new
    /// version of the protocol.
    #[test]
    fn requests_are_what_they_were() {
        let request = |wish| Request { protocol: 1, wish };
        both_ways(r#"{"protocol":1,"wish":"status"}"#, &request(Wish::Status));
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
