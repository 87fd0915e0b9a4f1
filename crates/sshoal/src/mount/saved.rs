//! `sshoal mount --all`: mounts every mount of the configuration file, each in a separate process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitCode};

use cli::{EXIT_FAILURE, EXIT_OK, Problem, printable};
use control::probe::is_dead;
use control::record;

use super::command_line::SavedMount;
use crate::config_file::{Configuration, Places};

/// Mounts all that have a mount point and are not mounted yet. A failure stops only the mounts
/// inside; the exit code is then 1.
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
    let mut failed: Vec<&str> = Vec::new();
    let mut mounts: Vec<(&str, Option<&Path>)> = Vec::new();
    for name in names {
        match configuration.clash(name) {
            Some(problem) => {
                eprintln!("sshoal: {problem}");
                failed.push(name);
            }
            None => mounts.push((name, configuration.mountpoint(name))),
        }
    }
    let mut running: Vec<(&str, Child)> = Vec::new();
    for Planned { name, around } in outermost_first(&mounts) {
        let shown = printable(name);
        if running.iter().any(|(other, _)| around.contains(other)) {
            failed.extend(running.drain(..).filter_map(failure));
        }
        let mount = match configuration.find(OsStr::new(name)) {
            Ok(mount) => mount,
            Err(problem) => {
                eprintln!("sshoal: {problem}");
                failed.push(name);
                continue;
            }
        };
        if mount.mountpoint.is_none() {
            eprintln!("sshoal: mount '{shown}': note: skipped, since it has no mount point");
            continue;
        }
        // The mount around it would hide it when it is mounted later.
        if let Some(outer) = around.iter().find(|outer| failed.contains(outer)) {
            let outer = printable(*outer);
            eprintln!("sshoal: mount '{shown}': is inside mount '{outer}', which is not mounted");
            failed.push(name);
            continue;
        }
        if is_mounted(&mount) {
            continue;
        }
        match start(name) {
            Ok(child) => running.push((name, child)),
            Err(error) => {
                eprintln!("sshoal: mount '{shown}': cannot start it: {error}");
                failed.push(name);
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
    let failed: Vec<String> = failed.into_iter().map(printable).collect();
    eprintln!("sshoal: mount --all: not mounted: {}", failed.join(", "));
    Ok(ExitCode::from(EXIT_FAILURE))
}

/// A mount to make.
#[derive(Debug, PartialEq, Eq)]
struct Planned<'a> {
    name: &'a str,
    /// The mounts that contain its mount point, which must be made before.
    around: Vec<&'a str>,
}

/// The mounts in an order in which each follows those around it.
fn outermost_first<'a>(mounts: &[(&'a str, Option<&Path>)]) -> Vec<Planned<'a>> {
    let plan = |&(name, place): &(&'a str, Option<&Path>)| {
        let contains = |other: Option<&Path>| match (other, place) {
            (Some(other), Some(place)) => place != other && place.starts_with(other),
            _ => false,
        };
        let around = mounts.iter().filter(|(_, other)| contains(*other));
        Planned { name, around: around.map(|(name, _)| *name).collect() }
    };
    let mut planned: Vec<Planned<'a>> = mounts.iter().map(plan).collect();
    planned.sort_by_key(|mount| mount.around.len());
    planned
}

/// Starts a process, which ends when its mount serves requests, or after printing why it does not.
fn start(name: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).arg("mount").arg(name).spawn()
}

/// Waits for a process; returns the name of its mount if it failed. The process has printed why.
fn failure((name, mut child): (&str, Child)) -> Option<&str> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_follows_those_around_it() {
        let places = [
            ("inner", Some("/m/a/b")),
            ("other", Some("/m/ab")),
            ("none", None),
            ("middle", Some("/m/a/")),
            ("outer", Some("/m")),
        ];
        let planned = outermost_first(&places.map(|(name, place)| (name, place.map(Path::new))));
        let planned: Vec<(&str, Vec<&str>)> =
            planned.into_iter().map(|mount| (mount.name, mount.around)).collect();
        let expected = [
            ("none", vec![]),
            ("outer", vec![]),
            ("other", vec!["outer"]),
            ("middle", vec!["outer"]),
            ("inner", vec!["middle", "outer"]),
        ];
        assert_eq!(planned, expected);
    }
}
