//! `sshoal pull` and `sshoal push`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::quoting::joined;
use crate::subject::Copier;

use super::{Line, slash};

/// How it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::subject) enum Manner {
    /// As it likes.
    Auto,
    /// Always in one stream.
    Tar,
    /// Always over SFTP.
    Sftp,
    /// As it likes, but never compressed.
    Plain,
    /// Over two ways to the server at once.
    TwoWays,
}

impl Manner {
    fn options(self) -> &'static [&'static str] {
        match self {
            Manner::Auto | Manner::TwoWays => &[],
            Manner::Tar => &["--engine", "tar"],
            Manner::Sftp => &["--engine", "sftp"],
            Manner::Plain => &["--compress", "never"],
        }
    }

    /// What a user would type to have a tree.
    pub(super) fn command(self) -> &'static str {
        match self {
            Manner::Auto => "sshoal pull HOST:FROM/ TO",
            Manner::Tar => "sshoal pull --engine tar HOST:FROM/ TO",
            Manner::Sftp => "sshoal pull --engine sftp HOST:FROM/ TO",
            Manner::Plain => "sshoal pull --compress never HOST:FROM/ TO",
            Manner::TwoWays => "sshoal pull HOST1,HOST2:FROM/ TO",
        }
    }
}

pub(super) struct Own {
    pub line: Line,
    pub manner: Manner,
    pub program: PathBuf,
}

impl Own {
    fn command(&self, way: &str, from: OsString, to: OsString) -> Command {
        let mut command = Command::new(&self.program);
        command.args([way, "-q"]).args(self.manner.options()).args(self.line.options());
        if let Some(ssh) = &self.line.ssh_command {
            command.args(["-o".as_ref(), &*joined(&["ssh_command=".as_ref(), ssh.as_ref()])]);
        }
        command.arg("--").arg(from).arg(to);
        command
    }

    fn remote(&self, path: &OsStr) -> OsString {
        match self.manner {
            Manner::TwoWays => self.line.remote_by_both(path),
            _ => self.line.remote(path),
        }
    }
}

impl Copier for Own {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let slash = slash(self.line.is_directory(from).ok()?);
        let path = joined(&[self.line.at(from).as_ref(), slash.as_ref()]);
        Some(self.command("pull", self.remote(&path), joined(&[to.as_ref(), slash.as_ref()])))
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        // A name with a colon in it would be a host.
        let from = std::path::absolute(from).ok()?;
        let slash = slash(from.is_dir());
        let path = joined(&[self.line.at(to).as_ref(), slash.as_ref()]);
        let from = joined(&[from.as_ref(), slash.as_ref()]);
        Some(self.command("push", from, self.remote(&path)))
    }
}
