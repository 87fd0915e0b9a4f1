//! The commands of the program. A source always contains a `:`, so no command's name is a source.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use cli::{EXIT_FAILURE, EXIT_OK, Problem};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::config_file::{Configuration, Places};
use crate::mount::{help, settings, suggestion};
use crate::program::Program;
use crate::transfer::{self, Direction};
use crate::{
    autofs, branch, cache_command, companion, completion, config_file, doctor, helper, login,
    manual, mount, profile, run, stats, status, umount, unit, warm, where_command,
};

const RUN_NOTES: &str = "Exit status: that of the command; 126 if it cannot be executed, 127 if it was \
    not found, 255 if ssh failed, 125 if the command was not run for another reason.\n\n\
    Notes: files that were written before are sent first, and the mount shows what the command has \
    changed.";

/// The one table of commands: the help, the page of options and the suggestions are made from it.
/// clap parses all command lines but that of `mount`, which is sshfs's (see `mount::command_line`).
/// As there, the last of several values of an option is valid.
#[derive(Debug, Parser)]
#[command(name = "sshoal", disable_help_subcommand = true, disable_version_flag = true)]
#[command(args_override_self = true)]
struct Commands {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount sources, or a mount of the configuration file (the default).
    #[command(override_usage = "sshoal [mount] SOURCE... MOUNTPOINT [OPTIONS]\n\
        sshoal mount NAME [MOUNTPOINT] [OPTIONS]\nsshoal mount --all")]
    Mount,
    /// Unmount, and wait until all data is written to the server.
    Umount {
        /// The mount point.
        mountpoint: PathBuf,
        /// Detach the mount even if it is in use, and do not wait.
        #[arg(short = 'z', long)]
        lazy: bool,
    },
    /// Show the state of mounts: hosts, sessions, unwritten data.
    Status(status::Arguments),
    /// Show what mounts do: operations, latency, hit rates, hosts.
    Stats(stats::Arguments),
    /// Find out which processes and directories cause requests.
    Profile(profile::Arguments),
    /// Find out why a mount does not work, or could work better.
    Doctor(Box<doctor::Arguments>),
    /// Run a command at the server, in the same directory as here.
    #[command(override_usage = "sshoal run [-t] [-C DIR] [--] COMMAND...", after_help = RUN_NOTES)]
    Run(run::Arguments),
    /// Print HOST:PATH for paths in mounts, for rsync and scp.
    Where(where_command::Arguments),
    /// Copy files and directories from other machines.
    #[command(after_help = transfer::arguments::PULL_EXAMPLES,
        override_usage = "sshoal pull [OPTIONS] SOURCE... TARGET")]
    Pull(Box<transfer::Arguments>),
    /// Copy files and directories to another machine.
    #[command(after_help = transfer::arguments::PUSH_EXAMPLES,
        override_usage = "sshoal push [OPTIONS] SOURCE... TARGET")]
    Push(Box<transfer::Arguments>),
    /// Show and change the disk cache: status, verify, clear, pin.
    Cache(cache_command::Arguments),
    /// Fetch files of a mount into its disk cache.
    Warm(warm::Arguments),
    /// Serve files by SFTP; install this server on other machines.
    #[command(override_usage = "sshoal helper [OPTIONS]")]
    Helper(helper::Arguments),
    /// Show and change the branches of a mounted union.
    Branch(branch::Arguments),
    /// Show and change options of a mount.
    Set(settings::Arguments),
    /// Give a password to a mount whose host needs it again.
    Login(login::Arguments),
    /// Print units of systemd for a source, or for a configured mount.
    Unit(unit::Arguments),
    /// Print a map of autofs(5) that mounts hosts by their names.
    Autofs(autofs::Arguments),
    /// Check or show the configuration file.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Demonstrate this program with a private, temporary SSH server.
    #[command(disable_help_flag = true, override_usage = "sshoal demo [OPTIONS]")]
    Demo(Words),
    /// Benchmark sshoal against other programs.
    #[command(disable_help_flag = true, override_usage = "sshoal bench [OPTIONS]")]
    Bench(Words),
    /// Request the attributes of a mount point, in a separate process since the request may hang.
    #[command(hide = true)]
    Probe { place: PathBuf },
    /// Write what is to be written to a file system, in a separate process since it may hang.
    #[command(hide = true)]
    Flush { place: PathBuf },
    /// Write the manual pages of this program.
    #[command(hide = true)]
    Manual(cli::manual::Arguments),
    /// Print candidates for the last of the words, for the completion scripts of shells.
    #[command(hide = true)]
    Complete {
        /// The words after the program's name.
        #[arg(last = true)]
        words: Vec<OsString>,
    },
    /// Show help about a command or an option, or about all options.
    Help {
        /// A command, a mount option, a keyword of ssh_config(5), or `options` for all options.
        topic: Option<String>,
    },
}

/// Arguments for another program.
#[derive(Debug, clap::Args)]
struct Words {
    /// Options, which that program knows.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The commands of `config`.
#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// List all errors in the configuration file with their positions.
    Check,
    /// Show the resulting options, and the line from which each comes.
    Show {
        /// Show only this mount.
        name: Option<String>,
    },
}

/// The table of commands, as clap has it.
pub fn commands() -> clap::Command {
    Commands::command()
}

/// The commands that `--help` lists, in its order, with their descriptions.
pub fn descriptions() -> Vec<(String, String)> {
    let table = commands();
    let shown = cli::manual::subcommands(&table);
    shown.map(|it| (it.get_name().to_owned(), cli::manual::about(it))).collect()
}

/// The whole command line for the manual and the completion. Beside the table of commands, it has
/// the flags and operands of a mount, which clap does not parse.
pub fn described() -> clap::Command {
    let with_arguments =
        |command: clap::Command| command.disable_help_flag(true).args(help::arguments());
    let mut table = with_arguments(commands()).mut_subcommand("mount", with_arguments);
    table.build();
    table
}

/// Runs the command given by the words after `argv[0]`.
pub fn run(program: Program, mut words: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let has_commands = program == Program::SSHOAL;
    // As for rsync, `-h` means help only if it is alone.
    if let [command, flag] = &mut words[..]
        && (command == "pull" || command == "push")
        && flag == "-h"
    {
        *flag = "--help".into();
    }
    match words.first().and_then(|word| word.to_str()).filter(|_| has_commands) {
        Some("mount") => mount::run(program, words.drain(1..).collect(), true),
        Some(name) if is_command(name) => {
            let argv0 = OsString::from(program.name);
            let is_copy = matches!(name, "pull" | "push");
            let misused = match name {
                _ if is_copy => transfer::EXIT_USAGE,
                "run" => run::EXIT_NOT_RUN,
                _ => EXIT_FAILURE,
            };
            match Commands::try_parse_from(std::iter::once(argv0).chain(words)) {
                Ok(commands) => run_command(commands.command),
                Err(error) => {
                    let refused = transfer::arguments::refused_as_rsync(&error);
                    let ended = match refused.filter(|_| is_copy) {
                        Some(refused) => Err(refused.into()),
                        None => cli::explain(error),
                    };
                    ended.or_else(|error| {
                        eprintln!("{}: {error:#}", program.name);
                        Ok(ExitCode::from(misused))
                    })
                }
            }
        }
        word => {
            if let Some(problem) = word.and_then(|word| no_such_command(word, words.len() == 1)) {
                return Err(problem.into());
            }
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

/// The error if the first word can only be meant as a command: it is similar to one, or it is the
/// only word. As in sshfs the mount point may come before the source, so a word that names a file
/// in the current directory is no command. Neither is the name of a mount in the configuration
/// file: it only lacks the `mount` before it.
fn no_such_command(word: &str, is_only: bool) -> Option<Problem> {
    let meant = command_meant(word);
    let is_command = meant.is_some() || is_only && is_plain(word);
    if !is_command || is_file(word) || is_configured(word) {
        return None;
    }
    let problem = Problem::new(format!("command '{word}'"), "no such command");
    Some(problem.hint(match meant {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => "`sshoal help` lists the commands; a source is [user@]host:[dir]".to_owned(),
    }))
}

/// Whether a file has this name. Requests nothing from a mounted file system, which may hang.
fn is_file(name: &str) -> bool {
    let found =
        rustix::fs::open(name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    !matches!(found, Err(Errno::NOENT))
}

/// Whether the configuration file has a mount of this name.
fn is_configured(name: &str) -> bool {
    let configuration = Configuration::load(&Places::of_environment());
    configuration.is_ok_and(|it| it.names().contains(&name))
}

/// The command that a misspelled first word most likely stands for, unless the word can be a
/// source.
fn command_meant(word: &str) -> Option<String> {
    let table = commands();
    let names = cli::manual::subcommands(&table).map(clap::Command::get_name);
    is_plain(word).then(|| suggestion::nearest(word, names)).flatten().map(str::to_owned)
}

/// Whether a word consists of letters, as all commands do.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic())
}

fn is_command(name: &str) -> bool {
    commands().get_subcommands().any(|command| command.get_name() == name)
}

fn run_command(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Mount => mount::run(Program::SSHOAL, Vec::new(), true),
        Command::Umount { mountpoint, lazy } => {
            umount::run(&mountpoint, lazy)?;
            Ok(ExitCode::from(EXIT_OK))
        }
        Command::Status(arguments) => status::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Branch(arguments) => branch::run(arguments),
        Command::Cache(arguments) => cache_command::run(arguments),
        Command::Warm(arguments) => warm::run(arguments),
        Command::Helper(arguments) => helper::run(&arguments),
        Command::Set(arguments) => settings::run(&arguments),
        Command::Login(arguments) => {
            login::run(&arguments)?;
            Ok(ExitCode::from(EXIT_OK))
        }
        Command::Unit(arguments) => unit::run(&arguments),
        Command::Autofs(arguments) => autofs::run(&arguments),
        Command::Config { command: ConfigCommand::Check } => config_file::check(),
        Command::Config { command: ConfigCommand::Show { name } } => {
            config_file::show(name.as_deref())
        }
        Command::Pull(arguments) => Ok(transfer::run(Direction::Pull, &arguments)),
        Command::Push(arguments) => Ok(transfer::run(Direction::Push, &arguments)),
        Command::Demo(Words { words }) => Err(companion::run("demo", words).into()),
        Command::Bench(Words { words }) => Err(companion::run("bench", words).into()),
        Command::Run(arguments) => Ok(run::run(&arguments)),
        Command::Where(arguments) => where_command::run(&arguments),
        Command::Flush { place } => Ok(run::sync(&place)),
        Command::Probe { place } => Ok(control::probe::probe(&place)),
        Command::Manual(place) => manual::write(&place),
        Command::Complete { words } => completion::print(words),
        Command::Help { topic: Some(topic) } if companion::has(&topic) => {
            Err(companion::run(&topic, vec!["--help".into()]).into())
        }
        Command::Help { topic } => cli::print(&help_about(topic.as_deref())?),
    }
}

/// The text of `help TOPIC`.
fn help_about(topic: Option<&str>) -> Result<String, Problem> {
    match topic {
        None | Some("mount") => Ok(help::short(Program::SSHOAL)),
        Some("options") => Ok(help::full()),
        Some(command) if is_command(command) => {
            let help = Commands::try_parse_from([Program::SSHOAL.name, command, "--help"]);
            Ok(help.err().map(|text| text.to_string()).unwrap_or_default())
        }
        Some(topic) => help::one(topic).ok_or_else(|| {
            let what = format!("help '{}'", topic.escape_debug());
            let problem = Problem::new(what, "no such command or option");
            let option = || suggestion::nearest_option(topic).map(str::to_owned);
            problem.hint(match command_meant(topic).or_else(option) {
                Some(meant) => format!("did you mean '{meant}'?"),
                None => {
                    "`sshoal help` lists the commands, `sshoal help options` all options".into()
                }
            })
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_help_and_other_topics_are_errors_with_a_hint() {
        for (name, description) in descriptions() {
            assert!(description.starts_with(char::is_uppercase), "{name}: {description}");
            if companion::has(&name) {
                continue;
            }
            let help = help_about(Some(&name)).unwrap();
            assert!(help.to_lowercase().contains("usage: sshoal "), "{name}: {help}");
        }
        let hint = |topic| help_about(Some(topic)).unwrap_err().to_string();
        assert!(hint("pulll").ends_with("\n  did you mean 'pull'?"));
        assert!(hint("reconect").ends_with("\n  did you mean 'reconnect'?"));
        assert!(hint("x").contains("`sshoal help` lists the commands"));
    }

    /// Each description can be read alone: none refers to the one before it.
    #[test]
    fn no_argument_is_described_by_another_one() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let first = help.split([' ', ',', ':']).next().unwrap_or_default();
                let connectives = ["And", "But", "Or", "So", "They", "It", "Those", "That"];
                let what = format!("{} {}: {help}", command.get_name(), argument.get_id());
                assert!(!help.is_empty() && !connectives.contains(&first), "{what}");
                assert!(!help.starts_with("The same"), "{what}");
            }
            command.get_subcommands().filter(|command| !command.is_hide_set()).for_each(check);
        }
        check(&commands());
    }

    #[test]
    fn a_misspelled_command_is_recognized_and_a_source_is_none() {
        assert_eq!(command_meant("umout").as_deref(), Some("umount"));
        assert_eq!(command_meant("unmount").as_deref(), Some("umount"));
        assert_eq!(command_meant("puhs").as_deref(), Some("push"));
        for word in ["host:", "-p", "/mnt", "umou/t", "server", "manua"] {
            assert_eq!(command_meant(word), None, "{word}");
        }
    }
}
