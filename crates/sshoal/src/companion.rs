//! `sshoal bench` and `sshoal demo`, which are commands of the program `sshoal-bench`.
//!
//! These commands need a private sshd, load generators and reports, which the file system does not.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use cli::{Problem, printable};

/// Installed beside this program.
const NAME: &str = "sshoal-bench";

/// Whether `command` is one of those.
pub fn has(command: &str) -> bool {
    matches!(command, "bench" | "demo")
}

/// Replaces this process by `sshoal-bench COMMAND WORDS`, which runs this program as the file
/// system. Returns only if that failed.
pub fn run(command: &str, words: Vec<OsString>) -> Problem {
    let what = command.to_owned();
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return Problem::new(what, format!("this program's file: {error}")),
    };
    let beside = own.with_file_name(NAME);
    let program = if beside.exists() { beside } else { PathBuf::from(NAME) };
    let error = Command::new(&program).arg("--sshoal").arg(&own).arg(command).args(words).exec();
    let problem = Problem::new(what, format!("cannot run {}: {error}", printable(&program)));
    match error.kind() {
        std::io::ErrorKind::NotFound => problem.hint(format!(
            "the program {NAME} is not installed: it belongs beside {} or into PATH",
            printable(&own)
        )),
        _ => problem,
    }
}
