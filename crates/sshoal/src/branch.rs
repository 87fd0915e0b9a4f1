//! `sshoal branch`: the branches of a mount, as they are and changed while it runs.
//!
//! The daemon does it; this is the command's side. What the daemon does is told in [`change`].

pub mod change;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::control::client::{self, Silence};
use crate::control::{Change, Reply, Wish, Word};
use crate::report::{EXIT_OK, Problem, printable};
use crate::status;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show the branches in the order of search.
    List {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a branch behind the others. Its host is connected to without asking for a password.
    Add {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// As on the command line of a mount: `[PLACE=][user@]host:[dir][=WORDS]`, `local:/path`.
        source: OsString,
    },
    /// Take a branch out. What is on it stays there; what is open on it goes on until it is closed.
    Rm {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// As `sshoal branch list` calls it.
        source: OsString,
    },
    /// Change what may be done with a branch, or what its absence means.
    Set {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// As `sshoal branch list` calls it.
        source: OsString,
        /// What it becomes.
        word: Word,
    },
}

/// Does what the words ask for.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (mountpoint, change) = match arguments.what {
        What::List { mountpoint, json } => return list(&mountpoint, json),
        What::Add { mountpoint, source } => (mountpoint, Change::Add { source: text(source)? }),
        What::Rm { mountpoint, source } => {
            (mountpoint, Change::Remove { source: printable(source) })
        }
        What::Set { mountpoint, source, word } => {
            (mountpoint, Change::Set { source: printable(source), word })
        }
    };
    match client::ask_mount(&mountpoint, Wish::Branch(change), &mut |_| {})? {
        Reply::Done => Ok(ExitCode::from(EXIT_OK)),
        _ => Err(client::unasked(&mountpoint, status::silence(&Silence::Garbled)).into()),
    }
}

fn list(mountpoint: &Path, json: bool) -> anyhow::Result<ExitCode> {
    match client::ask_mount(mountpoint, Wish::Status, &mut |_| {})? {
        Reply::Status(status) if json => {
            crate::print(&(serde_json::to_string_pretty(&status.sources)? + "\n"))
        }
        Reply::Status(status) => crate::print(&status::branch_list(&status)),
        _ => Err(client::unasked(mountpoint, status::silence(&Silence::Garbled)).into()),
    }
}

/// A source that is sent to the daemon.
fn text(source: OsString) -> Result<String, Problem> {
    source.into_string().map_err(|source| {
        Problem::new(format!("source '{}'", printable(source)), "not valid UTF-8")
            .hint("a branch with such a name can only be there from the start of the mount")
    })
}
