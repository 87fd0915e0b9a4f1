//! rsync and its daemon: no ssh, no cipher. Only against the private server, beside which the
//! daemon is started, behind a link of its own that is like the server's.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::results::{LeftOut, SubjectInfo};
use crate::server::Server;
use crate::storage::Storage;
use crate::subject::{Copier, Session, Subject, Tuning};

use super::copiers::with_slash;
use super::identity::Identity;
use super::network::{Daemon, DaemonSession, require_private, secret, write_private};
use super::programs::RSYNC;
use crate::quoting::joined;

/// The name of the user of the daemon, and of its one module.
const BENCH: &str = "bench";

/// rsync over its own protocol.
pub(super) struct Rsyncd {
    pub name: String,
    pub server: Arc<Server>,
    pub identity: Identity,
}

impl Subject for Rsyncd {
    fn info(&self) -> SubjectInfo {
        self.identity.info(&self.name, "copy", "rsync -a rsync://HOST/MODULE/FROM/ TO/")
    }

    fn check(&self, executor: &Executor) -> Result<(), LeftOut> {
        RSYNC.require(&self.name)?;
        require_private(&self.name, &self.server)?;
        self.identity.version(|| RSYNC.version(executor));
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
        let root = self.server.storage().local().ok_or_else(|| Failure::failed("not private"))?;
        let scratch = scratch.canonicalize()?;
        let password = secret()?;
        let secrets = scratch.join("secrets");
        write_private(&secrets, format!("{BENCH}:{password}\n").as_bytes())?;
        let is_root = rustix::process::geteuid().is_root();
        let daemon = Daemon::start(&self.server, executor, |own| {
            let file = scratch.join("rsyncd.conf");
            write_private(&file, configuration(own, &root, &secrets, is_root).as_bytes())?;
            let mut command = Command::new("rsync");
            command.args(["--daemon", "--no-detach", "--config"]).arg(file).current_dir("/");
            Ok(command)
        })?;
        let copier = RsyncdCopier { root, password, port: daemon.port() };
        Ok(Box::new(DaemonSession { daemon, _data: None, copier }))
    }
}

/// `rsyncd.conf`. Links are kept as they are, which a daemon without `chroot` does not do by
/// itself; without `use chroot = no` it needs root.
fn configuration(own: SocketAddr, root: &Path, secrets: &Path, is_root: bool) -> OsString {
    let identity = if is_root { "uid = 0\ngid = 0\n" } else { "" };
    let head = format!(
        "address = {}\nport = {}\nlog file = /dev/null\nreverse lookup = no\n\
         [{BENCH}]\nread only = no\nuse chroot = no\nmunge symlinks = no\n\
         auth users = {BENCH}\n{identity}",
        own.ip(),
        own.port()
    );
    let path: &[_] = &["path = ".as_ref(), root.as_ref(), "\n".as_ref()];
    let secrets: &[_] = &["secrets file = ".as_ref(), secrets.as_ref(), "\n".as_ref()];
    joined(&[&[head.as_ref()], path, secrets].concat())
}

struct RsyncdCopier {
    root: PathBuf,
    password: String,
    port: u16,
}

impl RsyncdCopier {
    fn remote(&self, path: &Path, is_tree: bool) -> OsString {
        let base = format!("rsync://{BENCH}@127.0.0.1:{}/{BENCH}/", self.port);
        joined(&[base.as_ref(), &with_slash(path.as_os_str(), is_tree)])
    }

    fn command(&self, from: OsString, to: OsString) -> Command {
        let mut command = Command::new("rsync");
        command.args(["-a", "-s"]).arg(from).arg(to).env("RSYNC_PASSWORD", &self.password);
        command
    }
}

impl Copier for RsyncdCopier {
    fn pull(&self, from: &Path, to: &Path) -> Option<Command> {
        let is_tree = self.root.join(from).is_dir();
        Some(self.command(self.remote(from, is_tree), with_slash(to.as_os_str(), is_tree)))
    }

    fn push(&self, from: &Path, to: &Path) -> Option<Command> {
        let is_tree = from.is_dir();
        Some(self.command(with_slash(from.as_os_str(), is_tree), self.remote(to, is_tree)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_directory_and_user() {
        let text =
            configuration(([127, 0, 0, 2], 873).into(), "/srv/x y".as_ref(), "/s".as_ref(), true);
        let text = text.to_str().unwrap();
        for line in [
            "address = 127.0.0.2",
            "port = 873",
            "[bench]",
            "uid = 0",
            "path = /srv/x y",
            "secrets file = /s",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
        let unprivileged =
            configuration(([127, 0, 0, 2], 873).into(), "/srv".as_ref(), "/s".as_ref(), false);
        assert!(!unprivileged.to_str().unwrap().contains("uid"));
    }

    #[test]
    fn trees_are_copied_by_content_and_the_password_is_not_an_argument() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        let copier =
            RsyncdCopier { root: dir.path().into(), password: "hush".to_owned(), port: 8730 };
        let words = |command: Command| -> Vec<String> {
            command.get_args().map(|word| word.to_str().unwrap().to_owned()).collect()
        };
        let tree = words(copier.pull("tree".as_ref(), "/to".as_ref()).unwrap());
        assert_eq!(tree[2..], ["rsync://bench@127.0.0.1:8730/bench/tree/", "/to/"]);
        let file = words(copier.pull("file".as_ref(), "/to".as_ref()).unwrap());
        assert_eq!(file[2..], ["rsync://bench@127.0.0.1:8730/bench/file", "/to"]);
        assert!(!file.concat().contains("hush"));
    }
}
