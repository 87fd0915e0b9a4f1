//! Programs that copy over ssh: scp, sftp, rsync, a tar at each end, and this program.
//!
//! They cache nothing between two copies, and no process of theirs lives longer than a copy.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::executor::{Executor, find_program};
use crate::failure::Failure;
use crate::quoting::{double, joined, no_pattern, rsync_word};
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Access, Copier, Session, Subject, Tuning};

use super::identity::Identity;
use super::programs::{self, Program, RSYNC, SCP, SFTP, SSH, TAR};
use super::route::Route;

/// A program that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Scp,
    Sftp,
    Rsync,
    Tar,
    /// `sshoal pull` and `sshoal push`.
    Own(Manner),
}

/// How this program copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// By its default.
    Auto,
    /// Always in one stream.
    Tar,
    /// Always over SFTP.
    Sftp,
    /// By its default, but never compressed.
    Plain,
    /// Over two links to the server at once.
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
}

impl Tool {
    /// Programs that must be installed on this machine.
    pub(super) fn programs(self) -> &'static [&'static Program] {
        match self {
            Tool::Scp => &[&SCP, &SSH],
            Tool::Sftp => &[&SFTP, &SSH],
            Tool::Rsync => &[&RSYNC, &SSH],
            Tool::Tar => &[&TAR, &SSH],
            Tool::Own(_) => &[&SSH],
        }
    }

    /// The command by which a user copies a tree.
    fn command(self) -> &'static str {
        match self {
            Tool::Scp => "scp -r HOST:FROM TO",
            Tool::Sftp => "echo 'get -r FROM TO' | sftp -b - HOST",
            Tool::Rsync => "rsync -a -e ssh HOST:FROM/ TO/",
            Tool::Tar => "ssh HOST tar -C FROM -cf - . | tar -C TO -xf -",
            Tool::Own(Manner::Auto) => "sshoal pull HOST:FROM/ TO",
            Tool::Own(Manner::Tar) => "sshoal pull --engine tar HOST:FROM/ TO",
            Tool::Own(Manner::Sftp) => "sshoal pull --engine sftp HOST:FROM/ TO",
            Tool::Own(Manner::Plain) => "sshoal pull --compress never HOST:FROM/ TO",
            Tool::Own(Manner::TwoWays) => "sshoal pull HOST1,HOST2:FROM/ TO",
        }
    }
}

/// A program that copies, as a subject.
pub(super) struct SshCopier {
    pub name: String,
    pub tool: Tool,
    pub server: Arc<Server>,
    /// This program.
    pub sshoal: PathBuf,
    /// A program in place of `ssh`.
    pub ssh_command: Option<PathBuf>,
    pub identity: Identity,
}

impl Subject for SshCopier {
    fn info(&self) -> SubjectInfo {
        self.identity.info(&self.name, "copy", self.tool.command())
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        for program in self.tool.programs() {
            program.require(&self.name)?;
        }
        if let Some(ssh) = self.ssh_command.as_ref().filter(|ssh| find_program(*ssh).is_none()) {
            return Err(LeftOut {
                name: self.name.clone(),
                why: format!("there is no program '{}'", ssh.display()),
                remedy: Some("give its whole path".to_owned()),
            });
        }
        if self.tool == Tool::Own(Manner::TwoWays) && self.server.second_destination().is_none() {
            return Err(LeftOut {
                name: self.name.clone(),
                why: "only a private server has two links".to_owned(),
                remedy: Some("leave --host out".to_owned()),
            });
        }
        self.identity.version(|| {
            let versions = programs::versions(self.tool.programs(), executor);
            match &self.ssh_command {
                Some(ssh) => format!("{versions}; {}", programs::version(ssh, "-V", executor)),
                None => versions,
            }
        });
        Ok(())
    }

    fn storage(&self) -> &dyn Storage {
        self.server.storage()
    }

    fn start(
        &self,
        scratch: &Path,
        tuning: &Tuning,
        executor: &Executor,
    ) -> Result<Box<dyn Session>, Failure> {
        let mut route = Route::new(&self.server, tuning, scratch, executor)?;
        route.ssh_command.clone_from(&self.ssh_command);
        self.identity.cipher(tuning, executor, || route.login());
        Ok(Box::new(CopySession { tool: self.tool, route, sshoal: self.sshoal.clone() }))
    }
}

/// A program that copies, with its route.
struct CopySession {
    tool: Tool,
    route: Route,
    /// This program.
    sshoal: PathBuf,
}

impl Session for CopySession {
    fn access(&self) -> Access<'_> {
        Access::Copier(self)
    }

    fn forget(&mut self, _: &Executor) -> Result<bool, Failure> {
        Ok(true)
    }
}

impl Copier for CopySession {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let remote = self.route.at(from);
        if self.tool == Tool::Scp {
            let remote = self.route.remote(&no_pattern(remote.as_os_str()));
            return Some(self.scp(remote, to.into()));
        }
        if self.tool == Tool::Sftp {
            // In quotes nothing is a pattern.
            return self.sftp("get -r", remote.as_os_str(), to.as_os_str());
        }
        let is_tree = self.route.is_directory(from).ok()?;
        match self.tool {
            Tool::Tar if is_tree => {
                let ssh = self.route.ssh("tar -C % -cf - .", &remote);
                Some(self.tar_pipe(PULL_TREE, to, &ssh))
            }
            Tool::Tar => {
                // The name of the archive's member has no effect on standard output.
                let ssh = self.route.ssh("tar -P -cf - -- %", &remote);
                Some(self.tar_pipe(PULL_FILE, to, &ssh))
            }
            _ => {
                let from = self.remote(&with_slash(remote.as_os_str(), is_tree));
                Some(self.by_contents("pull", from, with_slash(to.as_os_str(), is_tree)))
            }
        }
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let remote = self.route.at(to);
        // A name with a colon would be a host.
        let from = std::path::absolute(from).ok()?;
        let is_tree = from.is_dir();
        // The contents of a directory, which become the target itself.
        let source: OsString = if is_tree { from.join(".").into() } else { from.clone().into() };
        match self.tool {
            Tool::Scp => Some(self.scp(source, self.route.remote(remote.as_os_str()))),
            Tool::Sftp => self.sftp("put -r", &source, remote.as_os_str()),
            Tool::Tar if is_tree => {
                let ssh = self.route.ssh("mkdir -p % && tar -C % -xf -", &remote);
                Some(self.tar_pipe(PUSH_TREE, &from, &ssh))
            }
            Tool::Tar => {
                let ssh = self.route.ssh("tar -xOf - >%", &remote);
                Some(self.tar_pipe(PUSH_FILE, &from, &ssh))
            }
            Tool::Rsync | Tool::Own(_) => {
                let from = with_slash(from.as_os_str(), is_tree);
                let to = self.remote(&with_slash(remote.as_os_str(), is_tree));
                Some(self.by_contents("push", from, to))
            }
        }
    }
}

/// In a POSIX shell the status of a pipe's left side is lost; it leaves a file when it fails. `$1` is
/// the local name, `$2` the name of that file; the rest is the ssh command.
const PULL_TREE: &str = r#"to=$1 failed=$2; shift 2; mkdir -p "$to" &&
{ "$@" || : >"$failed"; } | tar -C "$to" -xf - && [ ! -e "$failed" ]"#;

const PULL_FILE: &str = r#"to=$1 failed=$2; shift 2
{ "$@" || : >"$failed"; } | tar -xOf - >"$to" && [ ! -e "$failed" ]"#;

const PUSH_TREE: &str = r#"from=$1 failed=$2; shift 2
{ tar -C "$from" -cf - . || : >"$failed"; } | "$@" && [ ! -e "$failed" ]"#;

/// A name may begin with `-`, so it follows `--`.
const PUSH_FILE: &str = r#"from=$1 failed=$2; shift 2
{ tar -C "${from%/*}/" -cf - -- "${from##*/}" || : >"$failed"; } | "$@" && [ ! -e "$failed" ]"#;

impl CopySession {
    fn scp(&self, from: OsString, to: OsString) -> Command {
        let mut command = Command::new("scp");
        command.arg("-r").args(self.route.ssh_program()).args(self.route.options());
        command.arg(from).arg(to);
        command
    }

    /// Its batch is in a file, since the executor sets standard input.
    fn sftp(&self, verb: &str, from: &OsStr, to: &OsStr) -> Option<Command> {
        let batch = self.route.fresh("batch");
        let words = [verb.as_ref(), " ".as_ref(), &*double(from), " ".as_ref(), &*double(to)];
        fs::write(&batch, [joined(&words).as_encoded_bytes(), b"\n"].concat()).ok()?;
        let mut command = Command::new("sftp");
        command.arg("-b").arg(batch).args(self.route.ssh_program());
        command.args(self.route.options()).arg(self.route.destination());
        Some(command)
    }

    fn tar_pipe(&self, script: &str, local: &Path, ssh: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(local).arg(self.route.fresh("failed"));
        command.arg(ssh.get_program()).args(ssh.get_args());
        command
    }

    /// rsync and sshoal, for which a slash behind a directory means its contents.
    fn by_contents(&self, verb: &str, from: OsString, to: OsString) -> Command {
        let Tool::Own(manner) = self.tool else {
            let mut shell = rsync_word(self.route.ssh_command());
            for option in self.route.options() {
                shell.push(" ");
                shell.push(rsync_word(&option));
            }
            let mut command = Command::new("rsync");
            // `-s`: the server's shell does not expand names.
            command.args(["-a", "-s", "-e"]).arg(shell).arg(from).arg(to);
            return command;
        };
        let mut command = Command::new(&self.sshoal);
        command.args([verb, "-q"]).args(manner.options()).args(self.route.options());
        if let Some(ssh) = &self.route.ssh_command {
            command.args(["-o".as_ref(), &*joined(&["ssh_command=".as_ref(), ssh.as_ref()])]);
        }
        command.arg("--").arg(from).arg(to);
        command
    }

    fn remote(&self, path: &OsStr) -> OsString {
        match self.tool {
            Tool::Own(Manner::TwoWays) => self.route.remote_by_both(path),
            _ => self.route.remote(path),
        }
    }
}

/// A path, with a slash behind it for the contents of a directory.
pub(super) fn with_slash(path: &OsStr, is_directory: bool) -> OsString {
    joined(&[path, if is_directory { "/" } else { "" }.as_ref()])
}
