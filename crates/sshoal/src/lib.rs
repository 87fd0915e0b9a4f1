//! sshoal: mounts remote directories over SSH; the servers need nothing but sshd.
//!
//! This is the program; `main.rs` only starts it, so that the fuzz target has the same modules. It
//! is the command line, one module per command. Only `stack` and `mount::wiring` know how the
//! layers of the other crates are combined. Exit codes: 0 for success, 1 for a wrong command line
//! or a failure, as in sshfs; `bench` has two more, and `pull`, `push` and `run` have their
//! own.
#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "`pub` says what a module offers to the others")]

#[macro_use]
mod messages;

mod adapter;
#[allow(unsafe_code, reason = "the C library's allocator has no safe interface")]
mod allocator;
mod attributes;
mod autofs;
mod background;
mod branch;
mod cache_command;
mod command;
mod companion;
mod completion;
mod config_file;
mod connector;
mod doctor;
mod helper;
mod inotify;
mod log;
mod login;
mod manual;
mod mount;
mod open_modes;
mod process;
mod profile;
mod program;
mod progress;
mod quantity;
mod run;
mod sources;
mod stack;
mod stats;
mod status;
mod systemd;
mod transfer;
mod trusted_file;
mod umount;
mod unit;
mod warm;
mod where_command;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::EXIT_FAILURE;
#[cfg(feature = "fuzzing")]
pub use config_file::fuzz;
use program::Program;

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    process::survive_file_size_limit();
    let mut words = std::env::args_os();
    let program = Program::from_argv0(words.next().as_deref());
    let words: Vec<OsString> = words.collect();
    command::run(program, words).unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", program.name);
        ExitCode::from(EXIT_FAILURE)
    })
}
