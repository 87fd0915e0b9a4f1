//! The way to the server as programs that copy want it: options, operands, names.

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

/// Longest time to ask whether a name is a directory.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// A server, by one cipher.
pub(in crate::subject) struct Line {
    server: Arc<Server>,
    cipher: Option<String>,
    /// Another ssh than the one that is called so.
    pub(super) ssh_command: Option<PathBuf>,
    scratch: PathBuf,
    executor: Executor,
    files: AtomicU32,
    /// What was asked once about names of the storage; copies do not change it.
    directories: Mutex<HashMap<PathBuf, bool>>,
}

impl Line {
    pub(in crate::subject) fn new(
        server: &Arc<Server>,
        tuning: &Tuning,
        scratch: &Path,
        executor: &Executor,
    ) -> Result<Line, Failure> {
        Ok(Line {
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
    pub(in crate::subject) fn at(&self, path: &Path) -> PathBuf {
        self.server.storage().root().join(path)
    }

    /// `host:path`.
    pub(in crate::subject) fn remote(&self, path: &OsStr) -> OsString {
        joined(&[self.destination(), ":".as_ref(), path])
    }

    /// `host,host2:path`, where there is a second way to the server.
    pub(in crate::subject) fn remote_by_both(&self, path: &OsStr) -> OsString {
        let second = self.server.second_destination().map_or(String::new(), |it| format!(",{it}"));
        joined(&[self.destination(), second.as_ref(), ":".as_ref(), path])
    }

    pub(in crate::subject) fn destination(&self) -> &OsStr {
        self.server.destination().as_ref()
    }

    /// Of ssh, scp and sftp.
    pub(in crate::subject) fn options(&self) -> Vec<OsString> {
        self.server.ssh_options(self.cipher.as_deref())
    }

    /// The ssh that is used.
    pub(in crate::subject) fn ssh_command(&self) -> &OsStr {
        self.ssh_command.as_ref().map_or("ssh".as_ref(), |ssh| ssh.as_os_str())
    }

    /// The same for scp and sftp, if it is another one.
    pub(in crate::subject) fn ssh_program(&self) -> Vec<&OsStr> {
        self.ssh_command.iter().flat_map(|ssh| ["-S".as_ref(), ssh.as_os_str()]).collect()
    }

    /// An ssh that runs one line of shell on the server, of which `%` stands for a path there.
    pub(in crate::subject) fn ssh(&self, script: &str, path: &Path) -> Command {
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
    pub(in crate::subject) fn login(&self) -> Command {
        let mut command = Command::new(self.ssh_command());
        command.args(self.options()).arg(self.destination());
        command
    }

    /// A name in the session's scratch directory that nobody has used.
    pub(in crate::subject) fn fresh(&self, name: &str) -> PathBuf {
        let nth = self.files.fetch_add(1, Ordering::Relaxed);
        self.scratch.join(format!("{name}-{nth}"))
    }

    /// Whether a path of the storage is a directory. Asks the server when nobody here knows.
    pub(in crate::subject) fn is_directory(&self, path: &Path) -> Result<bool, Failure> {
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
