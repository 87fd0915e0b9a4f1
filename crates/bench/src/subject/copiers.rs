//! Programs that copy over ssh: scp, sftp, rsync, a tar at each end, this program, and `cat`, which
//! is the floor.
//!
//! They cache nothing between two copies, and no process of theirs lives longer than a copy.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::quoting::{double, joined, no_pattern, rsync_word, shell_quoted};
use crate::server::{Endpoint, Server};
use crate::subject::{Access, Copier, Direction, Session};

use super::foreign::{Fields, Orders};
use super::programs::{HPNSCP, HPNSSH, SCP};

/// Longest time to look up whether a name is a directory.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// A program that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Scp,
    /// The scp of HPN-SSH, which uses its ssh.
    Hpn,
    Sftp,
    Rsync,
    /// rsync without its comparison of blocks.
    RsyncWhole,
    Tar,
    /// `sshoal pull` and `sshoal push`.
    Own(Manner),
    /// By commands that are given.
    Foreign,
    /// bbcp, which copies files by connections of its own. Its commands are given too.
    Bbcp,
    /// `ssh HOST cat`: files only, as streams.
    Cat,
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

/// A program that copies, and its route to the server.
pub(super) struct CopySession {
    pub(super) tool: Tool,
    pub(super) server: Arc<Server>,
    pub(super) cipher: Option<String>,
    /// A program in place of `ssh`.
    pub(super) ssh_command: Option<PathBuf>,
    /// `Keyword=value` of ssh, for the subject.
    pub(super) ssh_option: Option<String>,
    /// Of [`Tool::Foreign`].
    pub(super) foreign: Option<(Orders, Endpoint)>,
    /// This program.
    pub(super) sshoal: PathBuf,
    pub(super) scratch: PathBuf,
    pub(super) executor: Executor,
    /// Names in the scratch directory so far.
    pub(super) files: AtomicU32,
    /// Whether names of the storage are directories, which copies do not change.
    pub(super) directories: Mutex<HashMap<PathBuf, bool>>,
}

impl Session for CopySession {
    fn access(&self) -> Access<'_> {
        match self.tool {
            Tool::Cat | Tool::Bbcp => Access::Stream(self),
            _ => Access::Copier(self),
        }
    }
}

impl Copier for CopySession {
    fn copy(&self, direction: Direction, storage: &Path, local: &Path) -> Option<Command> {
        let remote = self.server.storage().root().join(storage);
        // A name with a colon would be a host.
        let local = std::path::absolute(local).ok()?;
        // Of scp and sftp only the source of a push is different for a tree. They are not asked to
        // look up a name at the server.
        let is_tree = match (direction, self.tool) {
            (Direction::In, _) => local.is_dir(),
            (Direction::Out, Tool::Scp | Tool::Hpn | Tool::Sftp) => false,
            (Direction::Out, _) => self.is_directory(storage).ok()?,
        };
        // The contents of a directory, which become the target itself.
        let contents = || if is_tree { local.join(".") } else { local.clone() };
        match (self.tool, direction) {
            (Tool::Scp | Tool::Hpn, Direction::Out) => {
                let remote = self.remote(&no_pattern(remote.as_os_str()));
                Some(self.scp(remote, local.into()))
            }
            (Tool::Scp | Tool::Hpn, Direction::In) => {
                Some(self.scp(contents().into(), self.remote(remote.as_os_str())))
            }
            // In quotes nothing is a pattern.
            (Tool::Sftp, Direction::Out) => {
                self.sftp("get -r", remote.as_os_str(), local.as_os_str())
            }
            (Tool::Sftp, Direction::In) => {
                self.sftp("put -r", contents().as_os_str(), remote.as_os_str())
            }
            (Tool::Tar, _) => {
                let (script, line) = match (direction, is_tree) {
                    (Direction::Out, true) => (PULL_TREE, "tar -C % -cf - ."),
                    // The name of the archive's member has no effect on standard output.
                    (Direction::Out, false) => (PULL_FILE, "tar -P -cf - -- %"),
                    (Direction::In, true) => (PUSH_TREE, "mkdir -p % && tar -C % -xf -"),
                    (Direction::In, false) => (PUSH_FILE, "tar -xOf - >%"),
                };
                let failed = self.fresh("failed");
                Some(with_shell(script, &[&local, &failed], &self.ssh(line, &remote)))
            }
            (Tool::Cat | Tool::Bbcp, _) if is_tree => None,
            (Tool::Cat, _) => {
                let (script, line) = match direction {
                    Direction::Out => (TO_FILE, "exec cat %"),
                    Direction::In => (FROM_FILE, "exec cat >%"),
                };
                Some(with_shell(script, &[&local], &self.ssh(line, &remote)))
            }
            (Tool::Foreign | Tool::Bbcp, _) => {
                let (orders, endpoint) = self.foreign.as_ref()?;
                let [from, to] = direction.sorted(remote.into_os_string(), local.into());
                let fields = Fields {
                    from: with_slash(&from, is_tree),
                    to,
                    host: self.server.destination(),
                    endpoint,
                    options: self.options(),
                };
                Some(orders.command(direction, &fields))
            }
            (Tool::Rsync | Tool::RsyncWhole | Tool::Own(_), _) => {
                let remote = self.remote(&with_slash(remote.as_os_str(), is_tree));
                let local = with_slash(local.as_os_str(), is_tree);
                let operands = direction.sorted(remote, local);
                Some(match self.tool {
                    Tool::Own(manner) => self.own(manner, direction, operands),
                    _ => self.rsync(operands),
                })
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

/// A shell's redirection, since a command's own output is the executor's.
const TO_FILE: &str = r#"file=$1; shift; exec "$@" >"$file""#;
const FROM_FILE: &str = r#"file=$1; shift; exec "$@" <"$file""#;

/// A script with these paths and the words of a command.
fn with_shell(script: &str, paths: &[&Path], ssh: &Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(paths);
    command.arg(ssh.get_program()).args(ssh.get_args());
    command
}

impl CopySession {
    /// `host:path`, or `host,host2:path` where two links are used.
    fn remote(&self, path: &OsStr) -> OsString {
        let second = match self.tool {
            Tool::Own(Manner::TwoWays) => self.server.second_destination(),
            _ => None,
        };
        let second = second.map_or(String::new(), |it| format!(",{it}"));
        joined(&[self.server.destination().as_ref(), second.as_ref(), ":".as_ref(), path])
    }

    /// Options of ssh, scp and sftp.
    fn options(&self) -> Vec<OsString> {
        let mut options = self.server.ssh_options(self.cipher.as_deref());
        options.extend(self.ssh_option.iter().flat_map(|it| ["-o".into(), it.into()]));
        options
    }

    /// The ssh that is used.
    fn ssh_command(&self) -> &OsStr {
        self.ssh_command.as_ref().map_or("ssh".as_ref(), |ssh| ssh.as_os_str())
    }

    /// The option of scp and sftp for an ssh of another name.
    fn ssh_program(&self) -> Vec<&OsStr> {
        self.ssh_command.iter().flat_map(|ssh| ["-S".as_ref(), ssh.as_os_str()]).collect()
    }

    /// An ssh to the server, without what it is to do.
    pub(super) fn login(&self) -> Command {
        let ssh = if self.tool == Tool::Hpn { HPNSSH.name.as_ref() } else { self.ssh_command() };
        let mut command = Command::new(ssh);
        command.args(self.options()).arg(self.server.destination());
        command
    }

    /// An ssh that runs one line of shell on the server, in which `%` stands for a path there.
    fn ssh(&self, script: &str, path: &Path) -> Command {
        let quoted = shell_quoted(path.as_os_str());
        let mut parts = script.split('%');
        let mut line = OsString::from(parts.next().unwrap_or_default());
        for part in parts {
            line.push(&quoted);
            line.push(part);
        }
        let mut command = self.login();
        command.arg(line);
        command
    }

    /// A new name in the session's scratch directory.
    fn fresh(&self, name: &str) -> PathBuf {
        let nth = self.files.fetch_add(1, Ordering::Relaxed);
        self.scratch.join(format!("{name}-{nth}"))
    }

    /// Whether a path of the storage is a directory. Queries the server if that is not known.
    fn is_directory(&self, path: &Path) -> Result<bool> {
        if let Some(root) = self.server.storage().local() {
            return Ok(root.join(path).is_dir());
        }
        let mut known = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = known.get(path) {
            return Ok(known);
        }
        let there = self.server.storage().root().join(path);
        let ran = self.executor.run(self.ssh("test -d %", &there), LOOK_LIMIT)?;
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

    fn scp(&self, from: OsString, to: OsString) -> Command {
        let mut command = Command::new(if self.tool == Tool::Hpn { HPNSCP.name } else { SCP.name });
        command.arg("-r").args(self.ssh_program()).args(self.options());
        command.arg(from).arg(to);
        command
    }

    /// Its batch is in a file, since the executor sets standard input.
    fn sftp(&self, verb: &str, from: &OsStr, to: &OsStr) -> Option<Command> {
        let batch = self.fresh("batch");
        let words = [verb.as_ref(), " ".as_ref(), &*double(from), " ".as_ref(), &*double(to)];
        fs::write(&batch, [joined(&words).as_encoded_bytes(), b"\n"].concat()).ok()?;
        let mut command = Command::new("sftp");
        command.arg("-b").arg(batch).args(self.ssh_program());
        command.args(self.options()).arg(self.server.destination());
        Some(command)
    }

    fn rsync(&self, operands: [OsString; 2]) -> Command {
        let mut shell = rsync_word(self.ssh_command());
        for option in self.options() {
            shell.push(" ");
            shell.push(rsync_word(&option));
        }
        let mut command = Command::new("rsync");
        // `-s`: the server's shell does not expand names.
        command.args(["-a", "-s"]);
        if self.tool == Tool::RsyncWhole {
            command.arg("-W");
        }
        command.arg("-e").arg(shell).args(operands);
        command
    }

    fn own(&self, manner: Manner, direction: Direction, operands: [OsString; 2]) -> Command {
        let verb = if direction == Direction::Out { "pull" } else { "push" };
        let mut command = Command::new(&self.sshoal);
        command.args([verb, "-q"]).args(manner.options()).args(self.options());
        if let Some(ssh) = &self.ssh_command {
            command.args(["-o".as_ref(), &*joined(&["ssh_command=".as_ref(), ssh.as_ref()])]);
        }
        command.arg("--").args(operands);
        command
    }
}

/// A path, with a slash behind it for the contents of a directory: so rsync and sshoal understand
/// it.
pub(super) fn with_slash(path: &OsStr, is_directory: bool) -> OsString {
    joined(&[path, if is_directory { "/" } else { "" }.as_ref()])
}
