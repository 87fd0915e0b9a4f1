//! `sshoal status`, `sshoal branch` and the attributes that tell where files are.

mod attributes;
mod branches;
mod telling;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::hosts::Hosts;
use crate::mount::Mount;
use crate::process::{Ended, eventually, run};
use crate::world::program;

/// How long a mount may take to answer. Nothing takes a hundredth of it on an idle machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Mounts these sources.
#[track_caller]
fn mounted(hosts: &Hosts, sources: &[String], options: &[&str]) -> Mount {
    let place = hosts.mountpoint();
    let mut command = hosts.command();
    command.arg("-f").args(sources).arg(&place).args(options);
    started(command, &place)
}

/// A mount that can be asked: it is in the kernel's table a little earlier.
#[track_caller]
fn started(command: Command, place: &Path) -> Mount {
    let mount = Mount::start(command, place.to_owned());
    eventually(ANSWER_LIMIT, "an answer", || status(place)["daemon"] == "answers");
    mount
}

/// Runs `sshoal` with these words, and a mount point behind the first `after` of them.
fn on(mountpoint: &Path, after: usize, words: &[&str]) -> Ended {
    let mut command = program();
    command.args(&words[..after]).arg(mountpoint).args(&words[after..]);
    run(&mut command)
}

/// What `sshoal status --json` tells of the mount.
#[track_caller]
pub fn status(mountpoint: &Path) -> Value {
    let ended = run(program().args(["status", "--json"]).arg(mountpoint));
    let told: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!(told["schema"], 1);
    let [mount] = &told["mounts"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!(ended.status.success(), mount["daemon"] == "answers", "{ended:?}");
    mount.clone()
}

/// Runs `sshoal branch WHAT MOUNTPOINT WORDS…`, which has to succeed; what it printed.
#[track_caller]
fn branch(mountpoint: &Path, words: &[&str]) -> String {
    let words = [&["branch"][..], words].concat();
    let ended = on(mountpoint, 2, &words);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    ended.stdout
}

/// The same, which has to be refused; what it said.
#[track_caller]
fn refused(mountpoint: &Path, words: &[&str]) -> String {
    let words = [&["branch"][..], words].concat();
    let ended = on(mountpoint, 2, &words);
    assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    ended.stderr
}

/// A program as another user, who is nobody's owner here.
fn as_somebody_else(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(program);
    command.env_remove("XDG_RUNTIME_DIR");
    command
}
