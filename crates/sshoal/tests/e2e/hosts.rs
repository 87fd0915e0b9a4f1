//! What a test with several servers has for itself: the servers, and places to mount them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandbox::fleet::{Fleet, Plan};
use sandbox::leftover;

use crate::mount::Mount;
use crate::world::{Places, program, refusal};

/// Servers and their clients. When it is dropped, nothing of it is left, or the test fails.
pub struct Hosts {
    pub fleet: Fleet,
    places: Places,
}

impl Hosts {
    /// Servers with these names, each with a directory of its own.
    pub fn new(names: &[&str]) -> Hosts {
        Hosts::of(names.iter().map(|name| Plan::new(name)))
    }

    pub fn of(plans: impl IntoIterator<Item = Plan>) -> Hosts {
        Hosts { fleet: Fleet::start(plans).unwrap(), places: Places::new() }
    }

    /// A path below what the server shows, as the server sees it.
    pub fn served(&self, host: &str, name: impl AsRef<Path>) -> PathBuf {
        self.fleet.directory(host).join(name)
    }

    /// Makes a file on a server, with all directories above it.
    pub fn put(&self, host: &str, name: &str, content: &str) {
        let path = self.served(host, name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// A path on this machine that no server shows.
    pub fn local(&self, name: impl AsRef<Path>) -> PathBuf {
        self.places.path().join(name)
    }

    /// A new, empty directory to mount on.
    pub fn mountpoint(&self) -> PathBuf {
        self.places.mountpoint()
    }

    /// The program with the words that every mount of these servers has.
    pub fn command(&self) -> Command {
        let mut command = program();
        command.arg("-F").arg(self.fleet.config_path());
        command
    }

    /// Mounts these sources.
    #[track_caller]
    pub fn mount(&self, sources: &[String], options: &[&str]) -> Mount {
        let place = self.mountpoint();
        let mut command = self.command();
        command.arg("-f").args(sources).arg(&place).args(options);
        Mount::start(command, place)
    }

    /// Tries to mount, and has to be refused with exit code 1; what the program said.
    #[track_caller]
    pub fn refusal(&self, sources: &[String], options: &[&str]) -> String {
        refusal(self.command().args(sources).arg(self.mountpoint()).args(options))
    }

    /// `host:dir`.
    pub fn source(&self, host: &str) -> String {
        self.fleet.source(host)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the servers' logs:\n{}---", self.fleet.log());
        } else {
            leftover::assert_none(self.places.path());
        }
    }
}
