//! Programs that are known by name, as subjects: rclone, programs that copy, and the bare
//! transport.
//!
//! The floor is what the transport itself does, with no file system above it: `ssh-cat` is one file
//! as one stream, `sftp-raw` SFTP over ssh as a program speaks it that does nothing else; how many
//! requests are under way is the step's to choose. Both take the cipher with the highest rate on
//! processors with AES, so that no subject has a faster one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::executor::{Executor, find_program};
use crate::failure::{Failure, Result};
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Endpoint;
use crate::storage::Storage;
use crate::subject::{Access, Session, Started, Subject, Tuning};

use super::catalog::Setting;
use super::copiers::{CopySession, Copying};
use super::identity::Identity;
use super::mounted::{device_of_fuse, require_two_links};
use super::programs::{self, FUSERMOUNT, Program, RCLONE, SSH};
use super::rclone;

/// The cipher of the floor, where a workload does not ask for one.
const FLOOR_CIPHER: &str = "aes128-gcm@openssh.com";

/// What such a subject is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// With this mode of its cache.
    Rclone(&'static str),
    Copy(Copying),
    /// The subsystem `sftp`.
    RawSftp,
}

impl Kind {
    /// Programs that must be installed on this machine, that of the subject first.
    pub(super) fn programs(self) -> &'static [&'static Program] {
        match self {
            Kind::Rclone(_) => &[&RCLONE, &FUSERMOUNT],
            Kind::Copy(copying) => copying.programs,
            Kind::RawSftp => &[&SSH],
        }
    }

    pub(super) fn is_floor(self) -> bool {
        match self {
            Kind::Rclone(_) => false,
            Kind::Copy(copying) => copying.is_floor,
            Kind::RawSftp => true,
        }
    }
}

/// A program as a subject.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Of a program that copies.
    pub(super) script: String,
    /// A program in place of `ssh`, for one that copies.
    pub(super) ssh_command: Option<PathBuf>,
    /// `Keyword=value` of ssh, for one that copies.
    pub(super) ssh_option: Option<String>,
    pub(super) setting: Setting,
    pub(super) identity: Identity,
}

impl Peer {
    /// With the script of its kind.
    pub(super) fn new(name: String, kind: Kind, setting: &Setting) -> Peer {
        let script = match kind {
            Kind::Copy(copying) => copying.script.to_owned(),
            Kind::Rclone(_) | Kind::RawSftp => String::new(),
        };
        let (setting, identity) = (setting.clone(), Identity::default());
        Peer { name, kind, script, ssh_command: None, ssh_option: None, setting, identity }
    }
}

impl Subject for Peer {
    fn info(&self) -> SubjectInfo {
        let (kind, command) = match self.kind {
            Kind::Rclone(mode) => ("mount", rclone::command(mode)),
            Kind::RawSftp => ("floor", "ssh -c aes128-gcm@openssh.com HOST -s sftp".to_owned()),
            Kind::Copy(copying) => {
                let option = self.ssh_option.iter().map(|it| format!(" (ssh: -o {it})"));
                let kind = if copying.is_floor { "floor" } else { "copy" };
                (kind, format!("{}{}", self.script, option.collect::<String>()))
            }
        };
        self.identity.info(&self.name, kind, command)
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        let name = &self.name;
        let left_out = |why: &str, remedy| Err(LeftOut::new(name, why).with_remedy(remedy));
        for program in self.kind.programs() {
            program.require(name)?;
        }
        let server = &self.setting.server;
        match self.kind {
            Kind::Rclone(_) => device_of_fuse(name)?,
            Kind::Copy(copying) if copying.daemon.is_some() && !server.is_private() => {
                let why = "it needs a daemon on the server, and the bench starts nothing but ssh \
                           on a host";
                return left_out(why, "measure it without --host");
            }
            Kind::Copy(copying) if copying.has_two_links => require_two_links(name, server)?,
            _ => {}
        }
        if let Some(ssh) = self.ssh_command.as_ref().filter(|ssh| find_program(*ssh).is_none()) {
            let why = format!("there is no program '{}'", ssh.display());
            return left_out(&why, "give its whole path");
        }
        self.identity.version(|| {
            let own = self.kind.programs().iter().map(|program| program.version(executor));
            let ssh = self.ssh_command.iter().map(|ssh| programs::version(ssh, "-V", executor));
            let versions = own.chain(ssh).filter(|version| !version.is_empty());
            versions.collect::<Vec<_>>().join("; ")
        });
        Ok(())
    }

    fn storage(&self) -> &dyn Storage {
        self.setting.server.storage()
    }

    fn start(&self, scratch: &Path, tuning: &Tuning, executor: &Executor) -> Started {
        let server = self.setting.server.clone();
        let usual = self.kind.is_floor().then(|| FLOOR_CIPHER.to_owned());
        let cipher = tuning.cipher.clone().or(usual);
        match self.kind {
            Kind::Rclone(mode) => rclone::start(mode, &self.setting, scratch, cipher, executor),
            Kind::RawSftp => {
                let ssh = move || server.ssh(cipher.as_deref());
                self.identity.cipher(tuning, executor, &ssh);
                let command = move || {
                    let mut command = ssh();
                    command.args(["-s", "sftp"]);
                    command
                };
                Ok(Box::new(RawSftp(Box::new(command))))
            }
            Kind::Copy(copying) => {
                let uses = |variable: &str| self.script.contains(variable);
                let is_given = copying.script.is_empty();
                let has_options = uses("$@") || uses("$OPTIONS") || uses("$RSYNC_RSH");
                if is_given && tuning.cipher.is_some() && !has_options {
                    let why = "its command has no options of ssh, by which it would get the cipher";
                    return Err(Failure::NotTried { why: why.to_owned() });
                }
                let endpoint = match uses("$ADDRESS") {
                    true => server.endpoint(executor)?,
                    false => Endpoint::default(),
                };
                let scratch = scratch.canonicalize()?;
                let daemon = copying.daemon.map(|start| start(&server, &scratch, executor));
                let session = CopySession {
                    copying,
                    script: self.script.clone(),
                    server,
                    cipher,
                    ssh_command: self.ssh_command.clone(),
                    ssh_option: self.ssh_option.clone(),
                    endpoint,
                    daemon: daemon.transpose()?,
                    sshoal: self.setting.sshoal.clone(),
                    scratch,
                };
                if copying.daemon.is_none() {
                    self.identity.cipher(tuning, executor, || session.login());
                }
                Ok(Box::new(session))
            }
        }
    }
}

struct RawSftp(Box<dyn Fn() -> Command>);

impl Session for RawSftp {
    fn access(&self) -> Access<'_> {
        Access::Sftp(&*self.0)
    }
}
