//! FTP: vsftpd beside the private server, and lftp.
//!
//! Everything is plain text on the loopback interface; a password that is made for the session
//! keeps others out. vsftpd runs as the user of the bench and changes neither user nor root
//! directory, so that it works without root and without any of the system's configuration.
//!
//! Each file has a connection of its own, to a port that the daemon names. With a simulated link
//! that is always the same port, and a second link, with delay and rate of its own, leads to it.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sandbox::link::Link;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Copier, Session, Subject, Tuning};

use super::identity::Identity;
use super::network::{Daemon, DaemonSession, require_private, same_port, secret, write_private};
use super::programs::{LFTP, VSFTPD};
use crate::quoting::{double, joined};

/// FTP by vsftpd.
pub(super) struct Ftp {
    pub name: String,
    pub server: Arc<Server>,
    pub identity: Identity,
}

impl Subject for Ftp {
    fn info(&self) -> SubjectInfo {
        self.identity.info(&self.name, "copy", "lftp -c 'open HOST; mirror FROM TO'")
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        VSFTPD.require(&self.name)?;
        LFTP.require(&self.name)?;
        require_private(&self.name, &self.server)?;
        self.identity.version(|| format!("vsftpd; {}", LFTP.version(executor)));
        Ok(())
    }

    fn storage(&self) -> &dyn Storage {
        self.server.storage()
    }

    fn start(
        &self,
        scratch: &Path,
        _: &Tuning,
        executor: &Executor,
    ) -> Result<Box<dyn Session>, Failure> {
        let program = VSFTPD.find().ok_or_else(|| Failure::failed("vsftpd is gone"))?;
        let root = self.server.storage().local().ok_or_else(|| Failure::failed("not private"))?;
        let scratch = scratch.canonicalize()?;
        let password = secret()?;
        let passwords = scratch.join("passwords");
        write_private(&passwords, format!("{password}\n").as_bytes())?;
        fs::create_dir(scratch.join("empty"))?;
        let data = same_port(&self.server)?;
        let daemon = Daemon::start(&self.server, executor, |own| {
            let file = scratch.join("vsftpd.conf");
            let data_port = data.as_ref().map(Link::port);
            let text = configuration(own, data_port, &root, &passwords, &scratch.join("empty"));
            write_private(&file, text.as_bytes())?;
            let mut command = Command::new(program);
            command.arg(file).current_dir("/");
            Ok(command)
        })?;
        let files = AtomicU32::new(0);
        let copier = FtpCopier { root, password, port: daemon.port(), scratch, files };
        Ok(Box::new(DaemonSession { daemon, _data: data, copier }))
    }
}

/// `vsftpd.conf`. The anonymous user is the user of the daemon, with the password in place of a mail
/// address. With a `data_port` that is the one
/// port of data connections, to be reached at 127.0.0.1.
fn configuration(
    own: SocketAddr,
    data_port: Option<u16>,
    root: &Path,
    passwords: &Path,
    empty: &Path,
) -> OsString {
    let settings = format!(
        "listen=YES\nlisten_address={}\nlisten_port={}\nbackground=NO\n\
         run_as_launching_user=YES\nseccomp_sandbox=NO\nisolate=NO\nisolate_network=NO\n\
         local_enable=NO\nanonymous_enable=YES\nsecure_email_list_enable=YES\n\
         write_enable=YES\nanon_upload_enable=YES\nanon_mkdir_write_enable=YES\n\
         anon_other_write_enable=YES\nanon_world_readable_only=NO\nanon_umask=022\n\
         connect_from_port_20=NO\nxferlog_enable=NO\nidle_session_timeout=3600\n",
        own.ip(),
        own.port()
    );
    let mut text = OsString::from(settings);
    if let Some(port) = data_port {
        text.push(format!("pasv_min_port={port}\npasv_max_port={port}\n"));
        text.push("pasv_address=127.0.0.1\n");
    }
    let paths =
        [("anon_root", root), ("email_password_file", passwords), ("secure_chroot_dir", empty)];
    for (key, path) in paths {
        text.push(joined(&[key.as_ref(), "=".as_ref(), path.as_ref(), "\n".as_ref()]));
    }
    text
}

struct FtpCopier {
    root: PathBuf,
    password: String,
    port: u16,
    scratch: PathBuf,
    files: AtomicU32,
}

impl FtpCopier {
    /// A program that takes its orders, with the password in them, from a file.
    fn ordered(&self, orders: &OsString) -> Option<PathBuf> {
        let nth = self.files.fetch_add(1, Ordering::Relaxed);
        let file = self.scratch.join(format!("orders-{nth}"));
        write_private(&file, orders.as_bytes()).ok()?;
        Some(file)
    }

    fn lftp(&self, order: &OsString) -> Option<Command> {
        let head = format!(
            "set cmd:fail-exit yes\nset net:max-retries 1\nset xfer:log no\nset ftp:ssl-allow no\n\
             open -u anonymous,{} ftp://127.0.0.1:{}\n",
            self.password, self.port
        );
        let file = self.ordered(&joined(&[head.as_ref(), order.as_ref(), "\n".as_ref()]))?;
        let mut command = Command::new("lftp");
        // Nothing of the user's own configuration and history.
        command.args(["--norc", "-f"]).arg(file).env("LFTP_HOME", self.scratch.join("lftp"));
        Some(command)
    }
}

impl Copier for FtpCopier {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let (remote, local) = (double(from.as_os_str()), double(to.as_os_str()));
        match self.root.join(from).is_dir() {
            true => self.lftp(&order("mirror --no-perms", &[&remote, &local])),
            false => self.lftp(&order("get", &[&remote, &"-o".into(), &local])),
        }
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let (local, remote) = (double(from.as_os_str()), double(to.as_os_str()));
        match from.is_dir() {
            true => self.lftp(&order("mirror -R --no-perms", &[&local, &remote])),
            false => self.lftp(&order("put", &[&local, &"-o".into(), &remote])),
        }
    }
}

fn order(verb: &str, operands: &[&OsString]) -> OsString {
    let mut order = OsString::from(verb);
    for operand in operands {
        order.push(" ");
        order.push(operand);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_in_no_argument() {
        let dir = tempfile::tempdir().unwrap();
        let copier = FtpCopier {
            root: dir.path().into(),
            password: "hush".to_owned(),
            port: 2121,
            scratch: dir.path().into(),
            files: AtomicU32::new(0),
        };
        let command = copier.pull("file".as_ref(), "/to".as_ref()).unwrap();
        let words = format!("{command:?}");
        assert!(!words.contains("hush"), "{words}");
    }
}
