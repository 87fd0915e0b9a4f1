//! `sshoal status`, `sshoal branch` and the attributes that tell where files are.

mod attributes;
mod branches;
mod telling;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sandbox::fleet::{Fleet, Plan};
use sandbox::leftover;
use serde_json::Value;
use tempfile::TempDir;

use crate::mount::Mount;
use crate::process::{Ended, eventually, run};
use crate::world::program;

/// How long a mount may take to answer. Nothing takes a hundredth of it on an idle machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Several servers, and places to mount them.
struct Hosts {
    fleet: Fleet,
    dir: TempDir,
}

impl Hosts {
    fn new(names: &[&str]) -> Hosts {
        let fleet = Fleet::start(names.iter().map(|name| Plan::new(name))).unwrap();
        let dir = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
        Hosts { fleet, dir }
    }

    /// A path on this machine that no server serves.
    fn local(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What a server serves, as it sees it.
    fn served(&self, host: &str, name: &str) -> PathBuf {
        self.fleet.directory(host).join(name)
    }

    #[track_caller]
    fn mount(&self, sources: &[String], options: &[&str]) -> Mount {
        let place = self.local("mnt");
        std::fs::create_dir_all(&place).unwrap();
        let mut command = program();
        command.arg("-F").arg(self.fleet.config_path()).arg("-f");
        command.args(sources).arg(&place).args(options);
        started(command, &place)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.fleet.log());
        } else {
            leftover::assert_none(self.dir.path());
        }
    }
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

/// Names in a directory of a mount.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A program as another user, who is nobody's owner here.
fn as_somebody_else(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "--"]).arg(program);
    command.env_remove("XDG_RUNTIME_DIR");
    command
}
