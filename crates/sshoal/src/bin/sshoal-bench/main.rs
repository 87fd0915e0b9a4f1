//! sshoal-bench: the commands `sshoal bench` and `sshoal demo`, in a program of their own, since
//! they need a private sshd and much else that the file system does not.
//!
//! `sshoal` runs it and names itself by `--sshoal`. Run directly, it uses the `sshoal` beside it,
//! or the one in PATH.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "in a binary, `pub` says what a module offers to the others")]

mod bench;
mod demo;

use std::path::PathBuf;
use std::process::ExitCode;

use ::bench::executor::find_program;
use clap::{CommandFactory, Parser, Subcommand};
use cli::completion::complete;
use cli::manual::Page;
use cli::{EXIT_FAILURE, EXIT_OK};

/// Its commands are shown as those of `sshoal`.
#[derive(Debug, Parser)]
#[command(bin_name = "sshoal", disable_help_subcommand = true)]
struct Arguments {
    /// The program to demonstrate and to measure.
    #[arg(long, hide = true, value_name = "PROGRAM")]
    sshoal: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Demonstrate sshoal with a private, temporary SSH server.
    Demo {
        /// Keep the demonstration mounted until Ctrl-C.
        #[arg(long)]
        keep: bool,
        /// Mount this directory (default /usr/include, or another directory if that is missing).
        #[arg(long, value_name = "TREE")]
        dir: Option<PathBuf>,
    },
    /// Benchmark sshoal against other programs.
    Bench(Box<bench::Arguments>),
    /// Write the manual pages of these commands.
    #[command(hide = true)]
    Manual(cli::manual::Arguments),
    /// Print candidates for the last of the words, for the completion scripts of shells.
    #[command(hide = true)]
    Complete {
        /// The words after `sshoal`.
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Do one piece of work for `bench`, in a separate process.
    #[command(name = ::bench::worker::SUBCOMMAND, hide = true)]
    Worker,
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("sshoal: {error:#}");
        ExitCode::from(EXIT_FAILURE)
    })
}

fn run() -> anyhow::Result<ExitCode> {
    let Arguments { sshoal, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return cli::explain(error),
    };
    match command {
        Command::Demo { keep, dir } => {
            demo::run(&sshoal.unwrap_or_else(beside), dir, keep)?;
            Ok(ExitCode::from(EXIT_OK))
        }
        Command::Bench(arguments) => bench::run(*arguments, sshoal.unwrap_or_else(beside)),
        Command::Manual(place) => {
            cli::manual::subcommands(&described())
                .try_for_each(|command| place.write(&Page::of(command)))?;
            Ok(ExitCode::from(EXIT_OK))
        }
        Command::Complete { words } => {
            cli::print(&complete(&described(), &words, |_, _| None).to_string())
        }
        Command::Worker => Ok(::bench::worker::main()),
    }
}

/// The command line for the manual and the completion.
fn described() -> clap::Command {
    let mut commands = Arguments::command();
    commands.build();
    commands
}

/// The `sshoal` beside this program, or else the one in PATH.
fn beside() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    find_program(own.with_file_name("sshoal"))
        .or_else(|| find_program("sshoal"))
        .unwrap_or_else(|| "sshoal".into())
}
