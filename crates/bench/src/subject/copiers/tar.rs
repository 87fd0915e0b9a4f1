//! `tar | ssh tar` and `ssh tar | tar`: a whole tree in one stream.

use std::path::Path;
use std::process::Command;

use crate::subject::Copier;

use super::Line;

/// What the left side of a pipe says with its status is lost in a POSIX shell; it leaves a file
/// behind when it fails. `$1` is the local name, `$2` the name of that file; the rest is ssh.
const PULL_TREE: &str = r#"to=$1 failed=$2; shift 2; mkdir -p "$to" &&
{ "$@" || : >"$failed"; } | tar -C "$to" -xf - && [ ! -e "$failed" ]"#;

const PULL_FILE: &str = r#"to=$1 failed=$2; shift 2
{ "$@" || : >"$failed"; } | tar -xOf - >"$to" && [ ! -e "$failed" ]"#;

const PUSH_TREE: &str = r#"from=$1 failed=$2; shift 2
{ tar -C "$from" -cf - . || : >"$failed"; } | "$@" && [ ! -e "$failed" ]"#;

/// A path of one part is a name, which could begin with `-`; it follows `--`.
const PUSH_FILE: &str = r#"from=$1 failed=$2; shift 2
{ tar -C "${from%/*}/" -cf - -- "${from##*/}" || : >"$failed"; } | "$@" && [ ! -e "$failed" ]"#;

pub(super) struct TarPipe(pub Line);

impl TarPipe {
    fn pipe(&self, script: &str, local: &Path, ssh: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(local).arg(self.0.fresh("failed"));
        command.arg(ssh.get_program()).args(ssh.get_args());
        command
    }
}

impl Copier for TarPipe {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let path = self.0.at(from);
        if self.0.is_directory(from).ok()? {
            let ssh = self.0.ssh("tar -C % -cf - .", &path);
            return Some(self.pipe(PULL_TREE, to, &ssh));
        }
        // Its member's name does not matter, since it is taken to standard output.
        let ssh = self.0.ssh("tar -P -cf - -- %", &path);
        Some(self.pipe(PULL_FILE, to, &ssh))
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let path = self.0.at(to);
        let from = std::path::absolute(from).ok()?;
        if from.is_dir() {
            let ssh = self.0.ssh("mkdir -p % && tar -C % -xf -", &path);
            return Some(self.pipe(PUSH_TREE, &from, &ssh));
        }
        let ssh = self.0.ssh("tar -xOf - >%", &path);
        Some(self.pipe(PUSH_FILE, &from, &ssh))
    }
}
