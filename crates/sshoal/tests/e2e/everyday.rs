//! Everyday commands: `sshoal run`, `where`, `set`, `unit` and `autofs`.

mod running;
mod settings;
mod system;
mod whereabouts;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::mount::Mount;
use crate::process::{Ended, eventually, run};
use crate::status::status;
use crate::world::program;

/// A mount that can be asked: it is in the kernel's table a little earlier.
fn ready(mount: Mount) -> Mount {
    let is_ready = || status(mount.place())["daemon"] == "answers";
    eventually(Duration::from_secs(60), "an answer", is_ready);
    mount
}

/// `sshoal run` with these words, in the directory `dir`.
fn run_in(dir: &Path, words: &[&str]) -> Ended {
    run(command_in(dir, words).stdin(std::process::Stdio::null()))
}

fn command_in(dir: &Path, words: &[&str]) -> Command {
    let mut command = program();
    command.arg("run").args(words).current_dir(dir);
    command
}

/// `sshoal WORDS MOUNTPOINT MORE`, which has to succeed silently but for its output.
#[track_caller]
fn told(command: &str, place: &Path, more: &[&str]) -> String {
    let ended = run(program().arg(command).arg(place).args(more));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    ended.stdout
}
