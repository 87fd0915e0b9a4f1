//! Several hosts in one mount: the sources of a command line, pools, directories of this machine,
//! hosts that are down, and the configuration file.
//!
//! What a union or a pool does with a call is tested in its crate; here it is that they are put
//! together as the user has said.

mod configuration;
mod helper;
mod inotify;
mod logins;
mod missing;
mod pool;
mod refused;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use sandbox::fleet::{Fleet, Plan};
use sandbox::leftover;
use tempfile::TempDir;

use crate::mount::Mount;
use crate::world::{program, refusal};

/// Servers and their clients. When it is dropped, nothing of it is left, or the test fails.
struct Hosts {
    fleet: Fleet,
    mounts: AtomicU32,
    dir: TempDir,
}

impl Hosts {
    /// Servers with these names, each with a directory of its own.
    fn new(names: &[&str]) -> Hosts {
        Hosts::of(names.iter().map(|name| Plan::new(name)))
    }

    fn of(plans: impl IntoIterator<Item = Plan>) -> Hosts {
        let fleet = Fleet::start(plans).unwrap();
        let dir = tempfile::Builder::new().prefix("e2e-").tempdir().unwrap();
        Hosts { fleet, mounts: AtomicU32::new(0), dir }
    }

    /// A path below what the server shows, as the server sees it.
    fn served(&self, host: &str, name: impl AsRef<Path>) -> PathBuf {
        self.fleet.directory(host).join(name)
    }

    /// Makes a file on a server, with all directories above it.
    fn put(&self, host: &str, name: &str, content: &str) {
        put(&self.served(host, name), content);
    }

    /// A path on this machine that no server shows.
    fn local(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new, empty directory to mount on.
    fn mountpoint(&self) -> PathBuf {
        let number = self.mounts.fetch_add(1, Ordering::Relaxed);
        let place = self.dir.path().join(format!("mnt{number}"));
        fs::create_dir(&place).unwrap();
        place
    }

    fn command(&self) -> Command {
        let mut command = program();
        command.arg("-F").arg(self.fleet.config_path());
        command
    }

    /// Mounts these sources.
    #[track_caller]
    fn mount(&self, sources: &[String], options: &[&str]) -> Mount {
        let place = self.mountpoint();
        let mut command = self.command();
        command.arg("-f").args(sources).arg(&place).args(options);
        Mount::start(command, place)
    }

    /// Tries to mount, and has to be refused with exit code 1; what the program said.
    #[track_caller]
    fn refusal(&self, sources: &[String], options: &[&str]) -> String {
        refusal(self.command().args(sources).arg(self.mountpoint()).args(options))
    }

    /// `host:dir`.
    fn source(&self, host: &str) -> String {
        self.fleet.source(host)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the servers' logs:\n{}---", self.fleet.log());
        } else {
            leftover::assert_none(self.dir.path());
        }
    }
}

fn put(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// The names in a directory, in order.
#[track_caller]
fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir.as_ref()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn content(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap()
}
