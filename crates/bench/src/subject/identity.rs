//! The version of a subject's program and the cipher of its connection, as ssh reports it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::executor::Executor;
use crate::results::SubjectInfo;
use crate::server::Handshake;
use crate::subject::Tuning;

/// What is known of a program after its check (version) and its first start (cipher). Each is
/// determined once.
#[derive(Default)]
pub(super) struct Identity {
    version: OnceLock<String>,
    cipher: OnceLock<Option<String>>,
}

impl Identity {
    /// The subject in a report.
    pub(super) fn info(&self, name: &str, kind: &str, command: impl Into<String>) -> SubjectInfo {
        SubjectInfo {
            version: self.version.get().cloned().unwrap_or_default(),
            cipher: self.cipher.get().cloned().flatten(),
            ..SubjectInfo::new(name, kind, command)
        }
    }

    /// Determines the version by `look`.
    pub(super) fn version(&self, look: impl FnOnce() -> String) {
        self.version.get_or_init(look);
    }

    /// Determines the cipher by a login with the command of `make`, unless a workload has chosen
    /// one.
    pub(super) fn cipher(
        &self,
        tuning: &Tuning,
        executor: &Executor,
        make: impl FnOnce() -> Command,
    ) {
        if tuning.cipher.is_none() {
            self.cipher.get_or_init(|| Handshake::of(make(), executor).ok().map(|it| it.cipher));
        }
    }
}

/// The list of ciphers in the command line of an `ssh` among these processes, if it has one.
pub(super) fn of_ssh_among(processes: &[u32]) -> Option<String> {
    processes.iter().find_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<OsString> =
            line.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
        // The daemon may have the option without following it.
        let is_ssh = Path::new(words.first()?).file_name()? == "ssh";
        if is_ssh { option(&words) } else { None }
    })
}

/// The first of `-c LIST`, `-o Ciphers=LIST`, `-oCiphers=LIST`: ssh takes the first.
fn option(words: &[OsString]) -> Option<String> {
    let mut words = words.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let setting = match word {
            "-c" => return words.next().map(str::to_owned),
            "-o" => words.next()?,
            word => word.strip_prefix("-o").unwrap_or_default(),
        };
        if let Some((key, value)) = setting.split_once(['=', ' '])
            && key.eq_ignore_ascii_case("ciphers")
        {
            return Some(value.trim().to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_found_in_all_its_forms() {
        let found = |words: &[&str]| option(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(found(&["ssh", "-oCiphers=a,b", "-oCiphers=c", "h"]).as_deref(), Some("a,b"));
        assert_eq!(found(&["ssh", "-o", "ciphers a", "h"]).as_deref(), Some("a"));
        assert_eq!(found(&["ssh", "-x", "-c", "a,b", "h"]).as_deref(), Some("a,b"));
        assert_eq!(found(&["ssh", "-o", "Port=22", "h", "-s", "sftp"]), None);
    }
}
