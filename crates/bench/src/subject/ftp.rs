//! FTP: vsftpd beside the private server, and lftp, or curl where there is none.
//!
//! Everything is plain text on the loopback interface; a password that is made for the session
//! keeps others out. vsftpd runs as whoever runs the bench and changes neither user nor root
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

use testkit::link::Link;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Copier, Session, Subject, Tuning};

use super::identity::Identity;
use super::network::{Daemon, DaemonSession, require_private, same_port, secret, write_private};
use super::programs::{CURL, LFTP, VSFTPD};
use crate::quoting::{double, joined};

/// FTP by vsftpd.
pub(super) struct Ftp {
    pub name: String,
    pub server: Arc<Server>,
    pub identity: Identity,
}

impl Subject for Ftp {
    fn info(&self) -> SubjectInfo {
        let command = match client() {
            Some(Client::Curl) => "curl -o TO ftp://HOST/FROM",
            _ => "lftp -c 'open HOST; mirror FROM TO'",
        };
        self.identity.info(&self.name, "copy", command)
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        VSFTPD.require(&self.name)?;
        let program = match client() {
            Some(Client::Curl) => &CURL,
            _ => &LFTP,
        };
        program.require(&self.name)?;
        require_private(&self.name, &self.server)?;
        self.identity.version(|| format!("vsftpd; {}", program.version(executor)));
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
        let client = client().ok_or_else(|| Failure::failed("there is neither lftp nor curl"))?;
        Ok(Box::new(self.session(client, scratch, executor)?))
    }
}

impl Ftp {
    fn session(
        &self,
        client: Client,
        scratch: &Path,
        executor: &Executor,
    ) -> Result<DaemonSession<FtpCopier>, Failure> {
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
        let copier = FtpCopier { root, password, port: daemon.port(), client, scratch, files };
        Ok(DaemonSession { daemon, _data: data, copier })
    }
}

/// `vsftpd.conf`. The anonymous user is the one who runs the daemon; the password is asked of
/// him as the address that he used to give in the old days. With a `data_port` that is the one
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Lftp,
    /// Files only.
    Curl,
}

fn client() -> Option<Client> {
    let lftp = LFTP.find().map(|_| Client::Lftp);
    lftp.or_else(|| CURL.find().map(|_| Client::Curl))
}

struct FtpCopier {
    root: PathBuf,
    password: String,
    port: u16,
    client: Client,
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

    fn curl(&self, remote: &Path, arguments: [&std::ffi::OsStr; 2]) -> Option<Command> {
        let user = format!("user = \"anonymous:{}\"\n", self.password);
        let file = self.ordered(&user.into())?;
        let mut command = Command::new("curl");
        // `-q` first: nothing of the user's own.
        command.args(["-q", "-s", "-S", "-K"]).arg(file).args(arguments);
        command.arg(format!("ftp://127.0.0.1:{}/{}", self.port, percent(remote)));
        Some(command)
    }
}

impl Copier for FtpCopier {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let is_tree = self.root.join(from).is_dir();
        let (remote, local) = (double(from.as_os_str()), double(to.as_os_str()));
        match (self.client, is_tree) {
            (Client::Lftp, true) => self.lftp(&order("mirror --no-perms", &[&remote, &local])),
            (Client::Lftp, false) => self.lftp(&order("get", &[&remote, &"-o".into(), &local])),
            (Client::Curl, false) => self.curl(from, ["-o".as_ref(), to.as_ref()]),
            (Client::Curl, true) => None,
        }
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let (local, remote) = (double(from.as_os_str()), double(to.as_os_str()));
        match (self.client, from.is_dir()) {
            (Client::Lftp, true) => self.lftp(&order("mirror -R --no-perms", &[&local, &remote])),
            (Client::Lftp, false) => self.lftp(&order("put", &[&local, &"-o".into(), &remote])),
            (Client::Curl, false) => self.curl(to, ["-T".as_ref(), from.as_ref()]),
            (Client::Curl, true) => None,
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

/// A path in a URL.
fn percent(path: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(byte);
    let escaped = path.as_os_str().as_bytes().iter().map(|byte| match plain(byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkSpec;

    #[test]
    fn paths_are_escaped_for_urls() {
        assert_eq!(percent("a b/ü#?".as_ref()), "a%20b/%C3%BC%23%3F");
    }

    #[test]
    fn files_are_copied_by_curl_too() {
        let dir = tempfile::tempdir().unwrap();
        let executor = Executor::new();
        let server = Server::private(&LinkSpec::loopback(), dir.path()).unwrap();
        let root = server.storage().local().unwrap();
        let ftp =
            Ftp { name: "ftp".to_owned(), server: Arc::new(server), identity: Identity::default() };
        if VSFTPD.find().is_none() || CURL.find().is_none() {
            assert!(client() == Some(Client::Lftp) || ftp.check(&executor).is_err());
            return;
        }
        let scratch = dir.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let mut session = ftp.session(Client::Curl, &scratch, &executor).unwrap();
        fs::write(root.join("a file"), "content").unwrap();
        let to = scratch.join("to");
        let limit = std::time::Duration::from_secs(30);
        executor.succeed(session.copier.pull("a file".as_ref(), &to).unwrap(), limit).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"content");
        executor.succeed(session.copier.push(&to, "new#file".as_ref()).unwrap(), limit).unwrap();
        assert_eq!(fs::read(root.join("new#file")).unwrap(), b"content");
        session.stop(&executor).unwrap();
    }

    #[test]
    fn the_password_is_in_no_argument() {
        let dir = tempfile::tempdir().unwrap();
        for client in [Client::Lftp, Client::Curl] {
            let copier = FtpCopier {
                root: dir.path().into(),
                password: "hush".to_owned(),
                port: 2121,
                client,
                scratch: dir.path().into(),
                files: AtomicU32::new(0),
            };
            let command = copier.pull("file".as_ref(), "/to".as_ref()).unwrap();
            let words = format!("{command:?}");
            assert!(!words.contains("hush"), "{words}");
            assert_eq!(copier.pull("".as_ref(), "/to".as_ref()).is_some(), client == Client::Lftp);
        }
    }
}
