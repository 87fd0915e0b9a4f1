//! The route to the server for programs that copy: options, operands, names.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::quoting::{joined, shell_quoted};
use crate::server::Server;
use crate::subject::Tuning;

/// Longest time to look up whether a name is a directory.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// A server, with one cipher.
pub(super) struct Route {
    server: Arc<Server>,
    cipher: Option<String>,
    /// A program in place of `ssh`.
    pub(super) ssh_command: Option<PathBuf>,
    scratch: PathBuf,
    executor: Executor,
    files: AtomicU32,
    /// Whether names of the storage are directories, which copies do not change.
    directories: Mutex<HashMap<PathBuf, bool>>,
}

impl Route {
    pub(super) fn new(
        server: &Arc<Server>,
        tuning: &Tuning,
        scratch: &Path,
        executor: &Executor,
    ) -> Result<Route, Failure> {
        Ok(Route {
            server: server.clone(),
            cipher: tuning.cipher.clone(),
            ssh_command: None,
            scratch: scratch.canonicalize()?,
            executor: executor.clone(),
            files: AtomicU32::new(0),
            directories: Mutex::default(),
        })
    }

    /// A path of the storage as the server names it.
    pub(super) fn at(&self, path: &Path) -> PathBuf {
        self.server.storage().root().join(path)
    }

    /// `host:path`.
    pub(super) fn remote(&self, path: &OsStr) -> OsString {
        joined(&[self.destination(), ":".as_ref(), path])
    }

    /// `host,host2:path`, where there is a second link to the server.
    pub(super) fn remote_by_both(&self, path: &OsStr) -> OsString {
        let second = self.server.second_destination().map_or(String::new(), |it| format!(",{it}"));
        joined(&[self.destination(), second.as_ref(), ":".as_ref(), path])
    }

    pub(super) fn destination(&self) -> &OsStr {
        self.server.destination().as_ref()
    }

    /// Options of ssh, scp and sftp.
    pub(super) fn options(&self) -> Vec<OsString> {
        self.server.ssh_options(self.cipher.as_deref())
    }

    /// The ssh that is used.
    pub(super) fn ssh_command(&self) -> &OsStr {
        self.ssh_command.as_ref().map_or("ssh".as_ref(), |ssh| ssh.as_os_str())
    }

    /// The option of scp and sftp for an ssh of another name.
    pub(super) fn ssh_program(&self) -> Vec<&OsStr> {
        self.ssh_command.iter().flat_map(|ssh| ["-S".as_ref(), ssh.as_os_str()]).collect()
    }

    /// An ssh that runs one line of shell on the server, in which `%` stands for a path there.
    pub(super) fn ssh(&self, script: &str, path: &Path) -> Command {
        let mut line = OsString::new();
        let quoted = shell_quoted(path.as_os_str());
        for (nth, part) in script.split('%').enumerate() {
            if nth > 0 {
                line.push(&quoted);
            }
            line.push(part);
        }
        let mut command = self.login();
        command.arg(line);
        command
    }

    /// An ssh to the server, without what it is to do.
    pub(super) fn login(&self) -> Command {
        let mut command = Command::new(self.ssh_command());
        command.args(self.options()).arg(self.destination());
        command
    }

    /// A new name in the session's scratch directory.
    pub(super) fn fresh(&self, name: &str) -> PathBuf {
        let nth = self.files.fetch_add(1, Ordering::Relaxed);
        self.scratch.join(format!("{name}-{nth}"))
    }

    /// Whether a path of the storage is a directory. Queries the server if that is not known.
    pub(super) fn is_directory(&self, path: &Path) -> Result<bool, Failure> {
        if let Some(root) = self.server.storage().local() {
            return Ok(root.join(path).is_dir());
        }
        let mut known = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = known.get(path) {
            return Ok(known);
        }
        let ran = self.executor.run(self.ssh("test -d %", &self.at(path)), LOOK_LIMIT)?;
        let is = match ran.output.status.code() {
            Some(0) => true,
            Some(1) => false,
            _ => {
                let words = String::from_utf8_lossy(&ran.output.stderr).trim().to_owned();
                return Err(Failure::failed(words));
            }
        };
        known.insert(path.to_owned(), is);
        Ok(is)
    }
}
