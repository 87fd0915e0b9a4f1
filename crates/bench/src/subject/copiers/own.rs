//! `sshoal pull` and `sshoal push`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::subject::Copier;
use crate::subject::quoting::joined;

use super::{Line, slash};

pub(super) struct Own {
    pub line: Line,
    pub engine: &'static str,
    pub program: PathBuf,
}

impl Own {
    fn command(&self, way: &str, from: OsString, to: OsString) -> Command {
        let mut command = Command::new(&self.program);
        command.args([way, "-q", "--engine", self.engine]).args(self.line.options());
        command.arg("--").arg(from).arg(to);
        command
    }
}

impl Copier for Own {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let slash = slash(self.line.is_directory(from).ok()?);
        let path = joined(&[self.line.at(from).as_ref(), slash.as_ref()]);
        Some(self.command("pull", self.line.remote(&path), joined(&[to.as_ref(), slash.as_ref()])))
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        // A name with a colon in it would be a host.
        let from = std::path::absolute(from).ok()?;
        let slash = slash(from.is_dir());
        let path = joined(&[self.line.at(to).as_ref(), slash.as_ref()]);
        let from = joined(&[from.as_ref(), slash.as_ref()]);
        Some(self.command("push", from, self.line.remote(&path)))
    }
}
