//! The floor: what the transport itself does, with no file system above it.
//!
//! `ssh-cat` is one file as one stream, `sftp-raw` SFTP over ssh as a program speaks it that
//! does nothing else; how many requests are under way is the step's to choose. Both take the cipher
//! with the highest rate on processors with AES, so that no subject has a faster one.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Access, Copier, Session, Subject, Tuning};

use super::identity::Identity;
use super::programs::SSH;
use super::route::Route;

/// The cipher, where a workload does not ask for one.
const CIPHER: &str = "aes128-gcm@openssh.com";

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `ssh HOST cat`.
    Cat,
    /// The subsystem `sftp`.
    Sftp,
}

/// One of them.
pub(super) struct Floor {
    pub name: String,
    pub kind: Kind,
    pub server: Arc<Server>,
    pub identity: Identity,
}

impl Subject for Floor {
    fn info(&self) -> SubjectInfo {
        let command = match self.kind {
            Kind::Cat => "ssh -c aes128-gcm@openssh.com HOST cat FILE",
            Kind::Sftp => "ssh -c aes128-gcm@openssh.com HOST -s sftp",
        };
        self.identity.info(&self.name, "floor", command)
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        SSH.require(&self.name)?;
        self.identity.version(|| SSH.version(executor));
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
        self.identity.cipher(tuning, executor, || self.server.ssh(Some(CIPHER)));
        let tuning = &Tuning { cipher: tuning.cipher.clone().or_else(|| Some(CIPHER.to_owned())) };
        match self.kind {
            Kind::Cat => {
                let route = Route::new(&self.server, tuning, scratch, executor)?;
                Ok(Box::new(FloorSession::Cat(Cat(route))))
            }
            Kind::Sftp => {
                let (server, cipher) = (self.server.clone(), tuning.cipher.clone());
                let command = move || {
                    let mut command = server.ssh(cipher.as_deref());
                    command.args(["-s", "sftp"]);
                    command
                };
                Ok(Box::new(FloorSession::Sftp(Box::new(command))))
            }
        }
    }
}

enum FloorSession {
    Cat(Cat),
    Sftp(Box<dyn Fn() -> Command>),
}

impl Session for FloorSession {
    fn access(&self) -> Access<'_> {
        match self {
            FloorSession::Cat(cat) => Access::Stream(cat),
            FloorSession::Sftp(command) => Access::Sftp(&**command),
        }
    }

    fn forget(&mut self, _: &Executor) -> Result<bool, Failure> {
        Ok(true)
    }
}

/// Files as streams.
struct Cat(Route);

/// A shell's redirection, since a command's own output is the executor's.
const TO_FILE: &str = r#"file=$1; shift; exec "$@" >"$file""#;
const FROM_FILE: &str = r#"file=$1; shift; exec "$@" <"$file""#;

impl Cat {
    fn redirected(script: &str, file: &Path, ssh: Command) -> Command {
        if file == Path::new("-") {
            return ssh;
        }
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(file).arg(ssh.get_program()).args(ssh.get_args());
        command
    }
}

impl Copier for Cat {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        if self.0.is_directory(from).ok()? {
            return None;
        }
        let ssh = self.0.ssh("exec cat %", &self.0.at(from));
        Some(Cat::redirected(TO_FILE, to, ssh))
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        if from.is_dir() {
            return None;
        }
        let ssh = self.0.ssh("exec cat >%", &self.0.at(to));
        Some(Cat::redirected(FROM_FILE, from, ssh))
    }
}
