//! External programs: their paths, their versions, and the Debian packages that contain them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::executor::{Executor, find_program};
use crate::results::LeftOut;

/// Longest time in which a program has to tell its version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// A program that a subject needs.
#[derive(Debug)]
pub(super) struct Program {
    pub name: &'static str,
    /// Of Debian and its children; most others have the same name for it. `Err` with the remedy for
    /// a program that Debian does not have.
    pub package: Result<&'static str, &'static str>,
    /// The argument that prints its version, if there is one.
    version: Option<&'static str>,
}

pub(super) const SSHFS: Program = program("sshfs", "sshfs", Some("-V"));
pub(super) const RCLONE: Program = program("rclone", "rclone", Some("version"));
pub(super) const SSH: Program = program("ssh", "openssh-client", Some("-V"));
pub(super) const SCP: Program = program("scp", "openssh-client", None);
pub(super) const SFTP: Program = program("sftp", "openssh-client", None);
pub(super) const RSYNC: Program = program("rsync", "rsync", Some("--version"));
pub(super) const TAR: Program = program("tar", "tar", Some("--version"));
pub(super) const LFTP: Program = program("lftp", "lftp", Some("--version"));
pub(super) const VSFTPD: Program = program("vsftpd", "vsftpd", None);
/// It unmounts for users who are not root; sshfs and rclone need it anyway.
pub(super) const FUSERMOUNT: Program = program("fusermount3", "fuse3", None);

/// SSHFS-MUX, the last version of which is of 2011.
pub(super) const SSHFSM: Program =
    elsewhere("sshfsm", "build SSHFS-MUX, see docs/benchmarking.md", Some("-V"));
pub(super) const HPNSCP: Program =
    elsewhere("hpnscp", "build HPN-SSH, which installs it beside OpenSSH", None);
pub(super) const HPNSSH: Program =
    elsewhere("hpnssh", "build HPN-SSH, which installs it beside OpenSSH", Some("-V"));
pub(super) const BBCP: Program =
    elsewhere("bbcp", "build bbcp on both machines", Some("--version"));
pub(super) const GANESHA: Program = program("ganesha.nfsd", "nfs-ganesha", Some("-v"));

const fn program(
    name: &'static str,
    package: &'static str,
    version: Option<&'static str>,
) -> Program {
    Program { name, package: Ok(package), version }
}

const fn elsewhere(
    name: &'static str,
    remedy: &'static str,
    version: Option<&'static str>,
) -> Program {
    Program { name, package: Err(remedy), version }
}

impl Program {
    /// Its path, if it is installed.
    pub(super) fn find(&self) -> Option<PathBuf> {
        find_program(self.name)
    }

    /// The same; what to install when it is not there.
    pub(super) fn require(&self, subject: &str) -> Result<PathBuf, LeftOut> {
        self.find().ok_or_else(|| {
            LeftOut::new(subject, format!("{} is not installed", self.name))
                .with_remedy(self.remedy())
        })
    }

    /// What to do when it is not installed.
    pub(super) fn remedy(&self) -> String {
        match self.package {
            Ok(package) => format!("install the package {package}"),
            Err(remedy) => remedy.to_owned(),
        }
    }

    /// What it says of its version; empty when it says nothing.
    pub(super) fn version(&self, executor: &Executor) -> String {
        match (self.find(), self.version) {
            (Some(path), Some(argument)) => version(&path, argument, executor),
            _ => String::new(),
        }
    }
}

/// What a program says of its version when it is asked so.
pub(crate) fn version(program: &Path, argument: &str, executor: &Executor) -> String {
    let mut command = Command::new(program);
    command.arg(argument).env("LC_ALL", "C");
    let Ok(ran) = executor.run(command, VERSION_LIMIT) else { return String::new() };
    let words = [ran.output.stdout, ran.output.stderr].concat();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    version_line(&name, &String::from_utf8_lossy(&words))
}

/// The line with the program's own version: sshfs prints that of fusermount first.
fn version_line(name: &str, words: &str) -> String {
    let mut lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
    let own = |line: &&str| line.to_ascii_lowercase().starts_with(&name.to_ascii_lowercase());
    let line = lines.clone().find(own).or_else(|| lines.next()).unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_own_line_is_its_version() {
        let sshfs = "fusermount3 version: 3.14.0\nSSHFS version 3.7.3\nFUSE library version 3.14.0";
        assert_eq!(version_line("sshfs", sshfs), "SSHFS version 3.7.3");
        assert_eq!(version_line("ssh", "OpenSSH_9.2p1 Debian\n"), "OpenSSH_9.2p1 Debian");
        assert_eq!(version_line("x", "\u{1b}[31mx 1\u{7}\n"), "[31mx 1");
        assert_eq!(version_line("x", ""), "");
    }

    #[test]
    fn what_is_not_there_is_named_with_its_package() {
        assert!(program("sh", "dash", None).require("it").is_ok());
        let missing = program("no-such-program-here", "its-package", None);
        let left_out = missing.require("it").unwrap_err();
        assert_eq!(left_out.remedy.unwrap(), "install the package its-package");
        let unpackaged = elsewhere("no-such-program-here", "build it", None);
        assert_eq!(unpackaged.require("it").unwrap_err().remedy.unwrap(), "build it");
    }
}
