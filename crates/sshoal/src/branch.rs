//! `sshoal branch`: shows and changes the branches of a mounted union.
//!
//! This is the command's side; the daemon's is in [`change`].

pub mod change;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cli::{EXIT_OK, Problem, printable};
use control::client::{ask_mount, order};
use control::{Change, Reply, Wish, Word};

use crate::status;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show the branches in search order.
    List {
        /// The mount point.
        mountpoint: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a branch after the others. Its host must accept the login without a password prompt.
    Add {
        /// The mount point.
        mountpoint: PathBuf,
        /// A source as for mounting: `[PLACE=][user@]host:[dir][=WORDS]` or `local:/path`.
        source: OsString,
    },
    /// Remove a branch from the mount. Its files stay on its host; open files work until closed.
    Rm {
        /// The mount point.
        mountpoint: PathBuf,
        /// The branch, as `sshoal branch list` shows it.
        source: OsString,
    },
    /// Change the mode of a branch, or whether it is optional.
    Set {
        /// The mount point.
        mountpoint: PathBuf,
        /// The branch, as `sshoal branch list` shows it.
        source: OsString,
        /// The new setting.
        word: Word,
    },
}

/// Runs the command.
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
    order(&mountpoint, Wish::Branch(change))?;
    Ok(ExitCode::from(EXIT_OK))
}

fn list(mountpoint: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let status = ask_mount(mountpoint, Wish::Status, &mut |_| {}, |reply| match reply {
        Reply::Status(status) => Some(status),
        _ => None,
    })?;
    cli::print_as(json, &status.sources, || status::branch_list(&status))
}

/// A source as it is sent to the daemon.
fn text(source: OsString) -> Result<String, Problem> {
    source.into_string().map_err(|source| {
        Problem::new(format!("source '{}'", printable(source)), "not valid UTF-8")
            .hint("such a source can only be given when mounting")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::status::{MountStatus, SourceStatus};

    /// Root also queries the daemons of other users.
    #[test]
    fn nothing_of_a_daemon_reaches_the_terminal_raw() {
        let source = || "h:\u{1b}[2J\u{9b}\u{7f}\u{202e}".to_owned();
        let source = SourceStatus { source: source(), ..SourceStatus::default() };
        let status = MountStatus { sources: vec![source], ..MountStatus::default() };
        for text in [status::branch_list(&status), cli::json(&status.sources).unwrap()] {
            assert_eq!(base::printable::printable_lines(text.as_bytes()), text);
        }
    }
}
