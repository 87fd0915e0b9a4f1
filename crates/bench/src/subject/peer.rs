//! Programs that are known by name, as subjects: rclone, programs that copy, and the bare transport.
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
use crate::storage::Storage;
use crate::subject::{Access, Session, Started, Subject, Tuning};

use super::catalog::Setting;
use super::copiers::{CopySession, Manner, Tool};
use super::foreign::Orders;
use super::identity::Identity;
use super::mounted::{device_of_fuse, require_two_links};
use super::programs::{
    self, BBCP, FUSERMOUNT, HPNSCP, HPNSSH, LFTP, Program, RCLONE, RSYNC, SCP, SFTP, SSH, TAR,
    VSFTPD,
};
use super::{daemons, rclone};

/// The cipher of the floor, where a workload does not ask for one.
const FLOOR_CIPHER: &str = "aes128-gcm@openssh.com";

/// What such a subject is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With this mode of its cache.
    Rclone(&'static str),
    Copier(Tool),
    /// rsync to its daemon.
    Rsyncd,
    /// lftp to vsftpd.
    Ftp,
    /// The subsystem `sftp`.
    RawSftp,
}

impl Kind {
    /// Programs that must be installed on this machine, that of the subject first.
    pub(super) fn programs(self) -> &'static [&'static Program] {
        match self {
            Kind::Rclone(_) => &[&RCLONE, &FUSERMOUNT],
            Kind::Copier(Tool::Scp) => &[&SCP, &SSH],
            Kind::Copier(Tool::Hpn) => &[&HPNSCP, &HPNSSH],
            Kind::Copier(Tool::Sftp) => &[&SFTP, &SSH],
            Kind::Copier(Tool::Rsync | Tool::RsyncWhole) => &[&RSYNC, &SSH],
            Kind::Copier(Tool::Tar) => &[&TAR, &SSH],
            Kind::Copier(Tool::Bbcp) => &[&BBCP, &SSH],
            Kind::Copier(Tool::Own(_) | Tool::Foreign | Tool::Cat) | Kind::RawSftp => &[&SSH],
            Kind::Rsyncd => &[&RSYNC],
            Kind::Ftp => &[&VSFTPD, &LFTP],
        }
    }

    /// The command by which a user copies a tree, mounts, or connects.
    fn command(self) -> String {
        let command = match self {
            Kind::Rclone(mode) => return rclone::command(mode),
            Kind::Copier(Tool::Scp) => "scp -r HOST:FROM TO",
            Kind::Copier(Tool::Sftp) => "echo 'get -r FROM TO' | sftp -b - HOST",
            Kind::Copier(Tool::Hpn) => "hpnscp -r HOST:FROM TO",
            Kind::Copier(Tool::Rsync) => "rsync -a -e ssh HOST:FROM/ TO/",
            Kind::Copier(Tool::RsyncWhole) => "rsync -a -W -e ssh HOST:FROM/ TO/",
            Kind::Copier(Tool::Foreign | Tool::Bbcp) => "",
            Kind::Copier(Tool::Tar) => "ssh HOST tar -C FROM -cf - . | tar -C TO -xf -",
            Kind::Copier(Tool::Own(Manner::Auto)) => "sshoal pull HOST:FROM/ TO",
            Kind::Copier(Tool::Own(Manner::Tar)) => "sshoal pull --engine tar HOST:FROM/ TO",
            Kind::Copier(Tool::Own(Manner::Sftp)) => "sshoal pull --engine sftp HOST:FROM/ TO",
            Kind::Copier(Tool::Own(Manner::Plain)) => "sshoal pull --compress never HOST:FROM/ TO",
            Kind::Copier(Tool::Own(Manner::TwoWays)) => "sshoal pull HOST1,HOST2:FROM/ TO",
            Kind::Copier(Tool::Cat) => "ssh -c aes128-gcm@openssh.com HOST cat FILE",
            Kind::RawSftp => "ssh -c aes128-gcm@openssh.com HOST -s sftp",
            Kind::Rsyncd => "rsync -a rsync://HOST/MODULE/FROM/ TO/",
            Kind::Ftp => "lftp -c 'open HOST; mirror FROM TO'",
        };
        command.to_owned()
    }

    pub(super) fn is_floor(self) -> bool {
        matches!(self, Kind::Copier(Tool::Cat) | Kind::RawSftp)
    }
}

/// A program as a subject.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// A program in place of `ssh`, for one that copies.
    pub(super) ssh_command: Option<PathBuf>,
    /// `Keyword=value` of ssh, for one that copies.
    pub(super) ssh_option: Option<String>,
    /// Of [`Tool::Foreign`].
    pub(super) orders: Option<Orders>,
    pub(super) setting: Setting,
    pub(super) identity: Identity,
}

impl Subject for Peer {
    fn info(&self) -> SubjectInfo {
        let kind = match self.kind {
            Kind::Rclone(_) => "mount",
            kind if kind.is_floor() => "floor",
            _ => "copy",
        };
        let command = match (&self.orders, &self.ssh_option) {
            (Some(orders), _) => orders.shown(),
            (None, Some(option)) => format!("{} (ssh: -o {option})", self.kind.command()),
            (None, None) => self.kind.command(),
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
            Kind::Rsyncd | Kind::Ftp if !server.is_private() => {
                let why = "it needs a daemon on the server, and the bench starts nothing but ssh \
                           on a host";
                return left_out(why, "measure it without --host");
            }
            Kind::Copier(Tool::Own(Manner::TwoWays)) => require_two_links(name, server)?,
            _ => {}
        }
        let of_user = self.orders.iter().flat_map(|orders| orders.programs().map(PathBuf::from));
        for program in of_user.clone().chain(self.ssh_command.clone()) {
            if find_program(&program).is_none() {
                let why = format!("there is no program '{}'", program.display());
                return left_out(&why, "give its whole path");
            }
        }
        self.identity.version(|| {
            let versions = programs::versions(self.kind.programs(), executor);
            match (&self.ssh_command, self.kind) {
                (Some(ssh), _) => format!("{versions}; {}", programs::version(ssh, "-V", executor)),
                (None, Kind::Ftp) => format!("vsftpd; {versions}"),
                (None, _) => versions,
            }
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
            Kind::Rsyncd => daemons::rsyncd(&server, scratch, executor),
            Kind::Ftp => daemons::ftp(&server, scratch, executor),
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
            Kind::Copier(tool) => {
                let foreign = match &self.orders {
                    Some(orders) if tuning.cipher.is_some() && !orders.use_ssh() => {
                        let why = "its commands have no %o, by which they would get the cipher";
                        return Err(Failure::NotTried { why: why.to_owned() });
                    }
                    Some(orders) => Some((orders.clone(), server.endpoint(executor)?)),
                    None => None,
                };
                let session = CopySession {
                    tool,
                    server,
                    cipher,
                    ssh_command: self.ssh_command.clone(),
                    ssh_option: self.ssh_option.clone(),
                    foreign,
                    sshoal: self.setting.sshoal.clone(),
                    scratch: scratch.canonicalize()?,
                    executor: executor.clone(),
                    files: Default::default(),
                    directories: Default::default(),
                };
                self.identity.cipher(tuning, executor, || session.login());
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
