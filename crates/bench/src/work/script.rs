//! The programs that users run, as they run them.

use std::ffi::OsStr;
use std::process::Command;

use crate::executor::find_program;
use crate::results::LeftOut;

/// Whether the programs are installed: each with the package that has it.
pub(super) fn check_installed(name: &str, programs: &[(&str, &str)]) -> Result<(), LeftOut> {
    let missing: Vec<&(&str, &str)> =
        programs.iter().filter(|(program, _)| find_program(*program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = |of: fn(&(&str, &str)) -> String| {
        missing.iter().map(|&missing| of(missing)).collect::<Vec<_>>()
    };
    Err(LeftOut {
        name: name.to_owned(),
        why: format!("not installed: {}", list(|missing| missing.0.to_owned()).join(", ")),
        remedy: Some(format!("install {}", list(|missing| missing.1.to_owned()).join(" "))),
    })
}

/// A program of this machine, which says everything in English and in the order of bytes.
pub(super) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("LC_ALL", "C");
    command
}

/// A script for the shell, with its arguments from `$1` on.
pub(super) fn script<A: AsRef<OsStr>>(text: &str, arguments: &[A]) -> Command {
    let mut command = program("sh");
    command.args(["-c", text, "sh"]).args(arguments);
    command
}
