//! A server on the command line of a command that makes no mount.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use cli::Problem;

use super::command_line::{self, Saved, Wish};
use super::request::MountRequest;
use crate::process::current_directory;
use crate::program::Program;

/// The options of the connection.
#[derive(Debug, clap::Args)]
pub struct ServerArguments {
    /// Port of the SSH server.
    #[arg(short = 'p', value_name = "PORT")]
    port: Option<OsString>,
    /// Configuration file of ssh.
    #[arg(short = 'F', value_name = "FILE")]
    config: Option<OsString>,
    /// Options of ssh, and mount options about the connection.
    #[arg(short = 'o', value_name = "OPTION")]
    options: Vec<OsString>,
}

impl ServerArguments {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        self.port.is_none() && self.config.is_none() && self.options.is_empty()
    }

    /// The request of a mount of `source` with these options, which is never made.
    pub fn request(&self, source: &OsStr) -> Result<Box<MountRequest>, Problem> {
        let words = flag_words(&[
            ("-p", self.port.as_slice()),
            ("-F", self.config.as_slice()),
            ("-o", &self.options),
        ]);
        Ok(request(words, source, Path::new("/"))?.0)
    }
}

/// Each value after its flag, as words of a command line.
pub fn flag_words(flags: &[(&str, &[OsString])]) -> Vec<OsString> {
    let words = |(flag, values): &(&str, &[OsString])| {
        let flag = OsString::from(flag);
        values.iter().flat_map(|value| [flag.clone(), value.clone()]).collect::<Vec<_>>()
    };
    flags.iter().flat_map(words).collect()
}

/// The request of a mount that is never made, with these words before its operands, and its notes
/// for the user.
pub fn request(
    mut words: Vec<OsString>,
    source: &OsStr,
    place: &Path,
) -> Result<(Box<MountRequest>, Vec<String>), Problem> {
    words.extend(["--".into(), source.into(), place.into()]);
    checked(words, current_directory()?, None)
}

/// The request of a mount whose command line is written into a file and used elsewhere. Options
/// with a relative path, which is another file there, are refused.
pub fn portable(words: Vec<OsString>, saved: Option<Saved<'_>>) -> Result<MountRequest, Problem> {
    let (request, _) = checked(words.clone(), current_directory()?, saved)?;
    let (elsewhere, _) = checked(words, "/nonexistent".into(), saved)?;
    if elsewhere != request {
        return Err(Problem::new("options", "contain a relative path")
            .hint("the mount is made in another directory: write the path from / on"));
    }
    Ok(*request)
}

/// The request of a mount that is never made, with all words of its command line in `directory`;
/// see [`command_line::parse`].
fn checked(
    words: Vec<OsString>,
    directory: PathBuf,
    saved: Option<Saved<'_>>,
) -> Result<(Box<MountRequest>, Vec<String>), Problem> {
    match command_line::parse(Program::SSHOAL, words, directory, saved)? {
        Wish::Mount(request, notes) => Ok((request, notes)),
        Wish::Help | Wish::Version => Err(Problem::new("options", "not for this command")),
    }
}
