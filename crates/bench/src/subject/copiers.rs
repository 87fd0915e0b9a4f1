//! Programs that copy over ssh: scp, sftp, rsync, a tar at each end, and this program.
//!
//! They keep nothing between two copies, so that there is nothing to forget, and no process of
//! theirs lives longer than a copy.

mod line;
mod own;
mod tar;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::executor::{Executor, find_program};
use crate::failure::Failure;
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Access, Copier, Session, Subject, Tuning};

pub(super) use line::Line;
pub(super) use own::Manner;
use own::Own;
use tar::TarPipe;

use super::identity::Identity;
use super::programs::{self, Program, RSYNC, SCP, SFTP, SSH, TAR};
use crate::quoting::{double, joined, no_pattern, rsync_word};

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Scp,
    Sftp,
    Rsync,
    Tar,
    /// `sshoal pull` and `sshoal push`.
    Own(Manner),
}

impl Tool {
    /// Programs that have to be here. Those that the server needs are the server's affair.
    fn programs(self) -> &'static [&'static Program] {
        match self {
            Tool::Scp => &[&SCP, &SSH],
            Tool::Sftp => &[&SFTP, &SSH],
            Tool::Rsync => &[&RSYNC, &SSH],
            Tool::Tar => &[&TAR, &SSH],
            Tool::Own(_) => &[&SSH],
        }
    }

    /// What a user would type to have a tree.
    fn command(self) -> &'static str {
        match self {
            Tool::Scp => "scp -r HOST:FROM TO",
            Tool::Sftp => "echo 'get -r FROM TO' | sftp -b - HOST",
            Tool::Rsync => "rsync -a -e ssh HOST:FROM/ TO/",
            Tool::Own(manner) => manner.command(),
            Tool::Tar => "ssh HOST tar -C FROM -cf - . | tar -C TO -xf -",
        }
    }

    fn copier(self, line: Line, sshoal: &Path) -> Box<dyn Copier> {
        match self {
            Tool::Own(manner) => Box::new(Own { line, manner, program: sshoal.to_owned() }),
            Tool::Scp => Box::new(Scp(line)),
            Tool::Sftp => Box::new(Sftp(line)),
            Tool::Rsync => Box::new(Rsync(line)),
            Tool::Tar => Box::new(TarPipe(line)),
        }
    }
}

/// One of them.
pub(super) struct SshCopier {
    pub name: String,
    pub tool: Tool,
    pub server: Arc<Server>,
    /// This program.
    pub sshoal: PathBuf,
    /// Another ssh than the one that is called so.
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
                why: "only a private server has two ways".to_owned(),
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
        let mut line = Line::new(&self.server, tuning, scratch, executor)?;
        line.ssh_command = self.ssh_command.clone();
        self.identity.cipher(tuning, executor, || line.login());
        Ok(Box::new(CopySession(self.tool.copier(line, &self.sshoal))))
    }
}

/// The session of a program that has none.
pub(super) struct CopySession(pub Box<dyn Copier>);

impl Session for CopySession {
    fn access(&self) -> Access<'_> {
        Access::Copier(&*self.0)
    }

    fn forget(&mut self, _: &Executor) -> Result<bool, Failure> {
        Ok(true)
    }
}

/// A local file, or the content of a local directory: what becomes the target itself, and not
/// an entry of a target that is there already.
fn source(from: &Path) -> OsString {
    if from.is_dir() { from.join(".").into() } else { from.into() }
}

struct Scp(Line);

impl Scp {
    fn command(&self) -> Command {
        let mut command = Command::new("scp");
        command.arg("-r").args(self.0.ssh_program()).args(self.0.options());
        command
    }
}

impl Copier for Scp {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let mut command = self.command();
        let from = no_pattern(self.0.at(from).as_os_str());
        command.arg(self.0.remote(&from)).arg(to);
        Some(command)
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let mut command = self.command();
        command.arg(source(from)).arg(self.0.remote(self.0.at(to).as_os_str()));
        Some(command)
    }
}

struct Sftp(Line);

impl Sftp {
    /// Its batch has to be in a file, since standard input is not ours.
    fn command(&self, parts: [&OsString; 3]) -> Option<Command> {
        let batch = self.0.fresh("batch");
        let words: Vec<_> = parts.iter().map(|part| part.as_os_str()).collect();
        let line =
            joined(&[words[0], " ".as_ref(), words[1], " ".as_ref(), words[2], "\n".as_ref()]);
        std::fs::write(&batch, line.as_encoded_bytes()).ok()?;
        let mut command = Command::new("sftp");
        command.arg("-b").arg(batch).args(self.0.ssh_program());
        command.args(self.0.options()).arg(self.0.destination());
        Some(command)
    }
}

impl Copier for Sftp {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        // In quotes nothing is a pattern.
        let from = double(self.0.at(from).as_os_str());
        self.command([&"get -r".into(), &from, &double(to.as_os_str())])
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let to = double(self.0.at(to).as_os_str());
        self.command([&"put -r".into(), &double(&source(from)), &to])
    }
}

struct Rsync(Line);

impl Rsync {
    fn command(&self, from: OsString, to: OsString) -> Command {
        let mut shell = rsync_word(self.0.ssh_command());
        for option in self.0.options() {
            shell.push(" ");
            shell.push(rsync_word(&option));
        }
        let mut command = Command::new("rsync");
        // `-s`: names are not for the server's shell.
        command.args(["-a", "-s", "-e"]).arg(shell).arg(from).arg(to);
        command
    }
}

impl Copier for Rsync {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let slash = slash(self.0.is_directory(from).ok()?);
        let from = self.0.remote(&joined(&[self.0.at(from).as_ref(), slash.as_ref()]));
        Some(self.command(from, joined(&[to.as_ref(), slash.as_ref()])))
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let slash = slash(from.is_dir());
        let to = self.0.remote(&joined(&[self.0.at(to).as_ref(), slash.as_ref()]));
        Some(self.command(joined(&[from.as_ref(), slash.as_ref()]), to))
    }
}

/// What rsync wants behind the name of a directory whose content is meant.
pub(super) fn slash(is_directory: bool) -> &'static str {
    if is_directory { "/" } else { "" }
}
