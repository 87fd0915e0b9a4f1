//! `sshoal mount --all`: mounts every mount of the configuration file, each in a separate process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::process::{Child, Command, ExitCode};

use cli::{EXIT_FAILURE, EXIT_OK, Problem, printable};
use control::probe::is_dead;
use control::record;

use super::command_line::SavedMount;
use crate::config_file::{Configuration, Places};

/// Mounts all that are not mounted yet. A failure does not stop the others; the exit code is
/// then 1.
pub fn mount_all(words: &[OsString]) -> anyhow::Result<ExitCode> {
    if words.len() > 1 {
        return Err(Problem::new("mount --all", "takes no other arguments")
            .hint("set options for all mounts in the configuration file, in [defaults]")
            .into());
    }
    let configuration = Configuration::load(&Places::of_environment())?;
    let names = configuration.all_names()?;
    if names.is_empty() {
        return Err(Problem::new("mount --all", "no mounts in the configuration file")
            .hint("`sshoal config check` shows which files are searched")
            .into());
    }
    // ssh may prompt for a password, and two prompts at a time could not be distinguished.
    let one_at_a_time = File::open("/dev/tty").is_ok();
    let mut failed: Vec<String> = Vec::new();
    let mut running: Vec<(String, Child)> = Vec::new();
    for name in names {
        let shown = printable(name);
        let mount = match configuration.find(OsStr::new(name)) {
            Ok(mount) => mount,
            Err(problem) => {
                eprintln!("sshoal: {problem}");
                failed.push(shown);
                continue;
            }
        };
        if is_mounted(&mount) {
            continue;
        }
        match start(name) {
            Ok(child) => running.push((shown, child)),
            Err(error) => {
                eprintln!("sshoal: mount '{shown}': cannot start it: {error}");
                failed.push(shown);
            }
        }
        if one_at_a_time {
            failed.extend(running.drain(..).filter_map(failure));
        }
    }
    failed.extend(running.drain(..).filter_map(failure));
    if failed.is_empty() {
        return Ok(ExitCode::from(EXIT_OK));
    }
    eprintln!("sshoal: mount --all: not mounted: {}", failed.join(", "));
    Ok(ExitCode::from(EXIT_FAILURE))
}

/// Starts a process, which ends when its mount serves requests, or after printing why it does not.
fn start(name: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).arg("mount").arg(name).spawn()
}

/// Waits for a process; returns the name of its mount if it failed. The process has printed why.
fn failure((name, mut child): (String, Child)) -> Option<String> {
    match child.wait() {
        Ok(status) if status.success() => None,
        _ => Some(name),
    }
}

/// Whether it is already mounted, so that the command can be repeated. A dead mount is not: its
/// process removes it and mounts again. The directory is accessed only if no record shows a daemon:
/// a mount with an unreachable host would block.
fn is_mounted(mount: &SavedMount) -> bool {
    let found = mount.mountpoint.as_ref().and_then(|place| mountinfo::find(place).ok().flatten());
    found.is_some_and(|found| {
        record::find(&found).is_some() || (found.kind == "fuse.sshoal" && !is_dead(&found))
    })
}
