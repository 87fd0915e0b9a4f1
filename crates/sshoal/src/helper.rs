//! `sshoal helper`: an SFTP server on standard input and output, which sshd starts in place of
//! `sftp-server`, or ssh as a command; and the commands that put it on a server.
//!
//! | module | contents |
//! |---|---|
//! | [`commands`] | `install`, `status`, `remove` |
//! | [`install`] | upload of a static build |
//! | [`static_build`] | finds the build for an architecture |
//! | [`place`] | the paths on servers, and the command there |
//! | [`record`] | the hosts where the helper serves |

pub mod commands;
pub mod install;
pub mod place;
pub mod record;
mod static_build;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use cli::{EXIT_OK, Problem, printable};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tracing::level_filters::LevelFilter;

/// The words of the command line. The short options are those of `sftp-server`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// Without a command, one client is served on standard input and output.
    #[command(subcommand)]
    command: Option<commands::Command>,
    /// Refuse all requests that could change a file.
    #[arg(short = 'R', long)]
    read_only: bool,
    /// Confine all paths to DIR, which the client sees as /.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Start in DIR instead of the home directory.
    #[arg(short = 'd', long, value_name = "DIR", conflicts_with = "root")]
    directory: Option<PathBuf>,
    /// Mask out these permission bits of new files and directories, in octal.
    #[arg(short = 'u', long, value_name = "MODE", value_parser = umask)]
    umask: Option<u32>,
    /// Never listen for direct connections (-o direct=yes), even if the client requests it.
    #[arg(long)]
    no_direct: bool,
    /// Log messages of this level and above to standard error: off, error, warn, info or debug.
    #[arg(short = 'l', long, value_name = "LEVEL", default_value = "error")]
    log_level: LevelFilter,
}

/// Runs the command; without one, serves one client until standard input ends.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(command) = &arguments.command {
        return commands::run(command);
    }
    let problem = |why: String| Problem::new("helper", why);
    if io::stdin().is_terminal() {
        return Err(problem("standard input is a terminal".to_owned())
            .hint("sshd starts this command: `Subsystem sftp /usr/bin/sshoal helper`")
            .into());
    }
    tracing_subscriber::fmt()
        .with_max_level(arguments.log_level)
        .with_writer(io::stderr)
        .with_ansi(false)
        .without_time()
        .init();
    if let Some(mask) = arguments.umask {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
    }
    if let Some(dir) = &arguments.directory {
        let why = |error| problem(format!("'{}': {error}", printable(dir)));
        std::env::set_current_dir(dir).map_err(why)?;
    }
    let direct = if arguments.no_direct { None } else { arrival_address() };
    let (read_only, root) = (arguments.read_only, arguments.root.clone());
    let options = helper::Options { read_only, root, direct };
    // Or the client could execute code: it could write to the memory of this process through
    // `/proc/self/mem`, whose owner is root then. Where this fails, it is served all the same.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let input = stream(io::stdin())?;
    helper::serve(input, stream(io::stdout())?, &options)
        .map_err(|error| problem(printable(error.to_string())))?;
    Ok(ExitCode::from(EXIT_OK))
}

/// A standard stream without a buffer.
fn stream(stream: impl AsFd) -> io::Result<File> {
    let fd: OwnedFd = stream.as_fd().try_clone_to_owned()?;
    Ok(fd.into())
}

/// The address of this machine on which the ssh connection has arrived, from sshd's variable.
fn arrival_address() -> Option<IpAddr> {
    std::env::var("SSH_CONNECTION").ok()?.split(' ').nth(2)?.parse().ok()
}

fn umask(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "an octal number from 0 to 777 is needed".to_owned())
}
