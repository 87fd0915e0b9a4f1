//! Which command it is. A source always has a `:`, so that the name of a command never is one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::bench;
use crate::branch;
use crate::cache_command;
use crate::config_file;
use crate::demo;
use crate::mount;
use crate::mount::{help, suggestion};
use crate::program::Program;
use crate::report::{EXIT_OK, Problem};
use crate::status;
use crate::transfer::{self, Direction};
use crate::umount;
use crate::warm;

/// Everything but mounting, whose command line is sshfs's (see `mount::command_line`).
#[derive(Debug, Parser)]
#[command(name = "sshoal", disable_help_subcommand = true, disable_version_flag = true)]
struct Commands {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Unmount, and wait until everything is written to the server.
    Umount {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// Detach it even if it is in use, and do not wait.
        #[arg(short = 'z', long)]
        lazy: bool,
    },
    /// Show how mounts are: hosts, sessions, what is unwritten, who waits.
    Status(status::Arguments),
    /// Show and change the branches of a mount while it runs.
    Branch(branch::Arguments),
    /// Look at the cache on disk, and change what it keeps.
    Cache(cache_command::Arguments),
    /// Fetch files of a mount into its cache on disk.
    Warm(warm::Arguments),
    /// Look at the configuration file.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Copy from other machines to this one.
    #[command(after_help = transfer::arguments::PULL_EXAMPLES,
        override_usage = "sshoal pull [OPTIONS] SOURCE... TARGET")]
    Pull(Box<transfer::Arguments>),
    /// Copy from this machine to another one.
    #[command(after_help = transfer::arguments::PUSH_EXAMPLES,
        override_usage = "sshoal push [OPTIONS] SOURCE... TARGET")]
    Push(Box<transfer::Arguments>),
    /// Show what this program does, on a private server that is gone afterwards.
    Demo {
        /// Leave it mounted, to look around, until Ctrl-C.
        #[arg(long)]
        keep: bool,
        /// Show this directory (/usr/include, or another one where that is missing).
        #[arg(long, value_name = "TREE")]
        dir: Option<PathBuf>,
    },
    /// Measure this program, its peers and the floor with the same work, in one run.
    Bench(Box<bench::Arguments>),
    /// Does one piece of work for `bench`, in a process of its own.
    #[command(name = "bench-worker", hide = true)]
    BenchWorker,
    /// Asks the file system on a mount point for attributes, in a process that may hang.
    #[command(hide = true)]
    Probe { place: PathBuf },
    /// Show help.
    Help {
        /// `options` for all options, the name of an option, or a command.
        topic: Option<String>,
    },
}

/// What `config` does.
#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Tell all mistakes in it, each with its place.
    Check,
    /// Show what results, and where each line is from.
    Show {
        /// Only this mount.
        name: Option<String>,
    },
}

/// Runs the command that the words after `argv[0]` are.
pub fn run(program: Program, mut words: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let has_commands = !program.is_sshfs() && !program.helper;
    match words.first().and_then(|word| word.to_str()).filter(|_| has_commands) {
        Some("mount") => mount::run(program, words.drain(1..).collect(), true),
        Some(name) if is_command(name) => {
            let argv0 = OsString::from(program.name);
            let is_copy = matches!(name, "pull" | "push");
            match Commands::try_parse_from(std::iter::once(argv0).chain(words)) {
                Ok(commands) => run_command(program, commands.command),
                Err(error) if is_copy => transfer::misused(program, explain(error)),
                Err(error) => explain(error),
            }
        }
        word => {
            let meant = word.and_then(command_meant);
            let ended = mount::run(program, words, false);
            ended.map_err(|error| match (error.downcast::<Problem>(), meant) {
                (Ok(problem), Some(meant)) => {
                    problem.hint_too(&format!("did you mean the command '{meant}'?")).into()
                }
                (Ok(problem), None) => problem.into(),
                (Err(error), _) => error,
            })
        }
    }
}

/// The command that a first word most likely stands for, if it can be no source.
fn command_meant(word: &str) -> Option<String> {
    use clap::CommandFactory;
    let commands = Commands::command();
    let names = commands.get_subcommands().map(clap::Command::get_name).chain(["mount"]);
    let plain = !word.contains(|char: char| !char.is_ascii_alphabetic());
    plain.then(|| suggestion::nearest(word, names)).flatten().map(str::to_owned)
}

fn is_command(name: &str) -> bool {
    use clap::CommandFactory;
    Commands::command().get_subcommands().any(|command| command.get_name() == name)
}

fn run_command(program: Program, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Umount { mountpoint, lazy } => {
            umount::run(&mountpoint, lazy)?;
            Ok(ExitCode::from(EXIT_OK))
        }
        Command::Status(arguments) => status::run(&arguments),
        Command::Branch(arguments) => branch::run(arguments),
        Command::Cache(arguments) => cache_command::run(arguments),
        Command::Warm(arguments) => warm::run(arguments),
        Command::Config { command: ConfigCommand::Check } => {
            config_file::commands::check(program.name)
        }
        Command::Config { command: ConfigCommand::Show { name } } => {
            config_file::commands::show(name.as_deref())
        }
        Command::Pull(arguments) => Ok(transfer::run(Direction::Pull, &arguments)),
        Command::Push(arguments) => Ok(transfer::run(Direction::Push, &arguments)),
        Command::Demo { keep, dir } => {
            demo::run(dir, keep)?;
            Ok(ExitCode::from(EXIT_OK))
        }
        Command::Bench(arguments) => bench::run(*arguments),
        Command::BenchWorker => Ok(::bench::worker::main()),
        Command::Probe { place } => Ok(mount::probe(&place)),
        Command::Help { topic } => match topic.as_deref() {
            None | Some("mount") => crate::print(&help::short(program)),
            Some("options") => crate::print(&help::full()),
            Some(command) if is_command(command) => {
                match Commands::try_parse_from([program.name, command, "--help"]) {
                    Ok(_) => Ok(ExitCode::from(EXIT_OK)),
                    Err(error) => explain(error),
                }
            }
            Some(topic) => match help::one(topic) {
                Some(text) => crate::print(&text),
                None => {
                    let what = format!("help '{}'", topic.escape_debug());
                    Err(Problem::new(what, "no such option or command")
                        .hint("`sshoal help options` lists all options")
                        .into())
                }
            },
        },
    }
}

/// Help goes to standard output; of an error clap's first line is shown, in this program's form.
fn explain(error: clap::Error) -> anyhow::Result<ExitCode> {
    let text = error.to_string();
    if error.kind() == ErrorKind::DisplayHelp {
        return crate::print(&text);
    }
    let why = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    let missing = text.lines().nth(1).map(str::trim).filter(|_| why.ends_with(':'));
    let why = format!("{why}{}{}", if missing.is_some() { " " } else { "" }, missing.unwrap_or(""));
    let problem = Problem::new("command line", why);
    Err(match usage {
        Some(usage) => problem.hint(format!("usage: {usage}")).into(),
        None => problem.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_help_and_the_page_of_options_name_every_command() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
        let page = std::fs::read_to_string(page).unwrap();
        let help = help::short(Program { name: "sshoal", helper: false });
        let commands = Commands::command();
        for command in commands.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(help.split_whitespace().any(|word| word == name), "{name}");
            assert!(page.contains(&format!("sshoal {name} ")), "{name}");
        }
    }

    #[test]
    fn a_misspelled_command_is_recognized_and_a_source_is_none() {
        assert_eq!(command_meant("umout").as_deref(), Some("umount"));
        assert_eq!(command_meant("unmount").as_deref(), Some("umount"));
        assert_eq!(command_meant("puhs").as_deref(), Some("push"));
        for word in ["host:", "-p", "/mnt", "umou/t", "server"] {
            assert_eq!(command_meant(word), None, "{word}");
        }
    }
}
