//! Completion of a command line, from clap's definition of the command.
//!
//! A shell's script runs the program with the words before the cursor, and reads one candidate a
//! line. So all shells complete the same, and what depends on the machine (hosts, mounts) is
//! completed, too.

use std::fmt;

use clap::{Arg, Command, ValueHint};

/// What may stand at the cursor.
///
/// Its text has a line for each candidate: the whole word, a tabulator and the description. The
/// last line may be `:files` or `:directories`, a blank and the beginning of the word that is no
/// part of the path: there the shell completes a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Words, each with its description.
    pub words: Vec<(String, String)>,
    /// Paths of this machine.
    pub paths: Option<Paths>,
    /// The beginning of the word, which all candidates have and the fields above omit.
    pub prefix: String,
}

/// The kind of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// Of any kind.
    Files,
    /// Of directories only.
    Directories,
}

impl Answer {
    /// Words without descriptions.
    pub fn of_words(words: impl IntoIterator<Item = String>) -> Answer {
        Answer {
            words: words.into_iter().map(|word| (word, String::new())).collect(),
            ..Answer::default()
        }
    }

    /// Paths only.
    pub fn of_paths(paths: Paths) -> Answer {
        Answer { paths: Some(paths), ..Answer::default() }
    }

    /// The candidates of the argument's definition.
    fn of(argument: &Arg) -> Answer {
        let paths = match argument.get_value_hint() {
            ValueHint::AnyPath | ValueHint::FilePath => Some(Paths::Files),
            ValueHint::DirPath => Some(Paths::Directories),
            _ => None,
        };
        let values = argument.get_possible_values();
        let described = values.iter().filter(|value| !value.is_hide_set()).map(|value| {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            (value.get_name().to_owned(), help)
        });
        Answer { words: described.collect(), paths, prefix: String::new() }
    }

    /// The candidates for a word of which `prefix` precedes the part that was completed.
    pub fn after(mut self, prefix: &str) -> Answer {
        self.prefix.insert_str(0, prefix);
        self
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = &self.prefix;
        for (word, description) in &self.words {
            writeln!(f, "{prefix}{word}\t{description}")?;
        }
        match self.paths {
            Some(Paths::Files) => writeln!(f, ":files {prefix}"),
            Some(Paths::Directories) => writeln!(f, ":directories {prefix}"),
            None => Ok(()),
        }
    }
}

/// Completes the last of `words`, which are those after the name of `command`. `of_value` returns
/// the candidates for a value that `command` does not define, given its beginning.
pub fn complete(
    command: &Command,
    words: &[String],
    of_value: impl Fn(&Arg, &str) -> Option<Answer>,
) -> Answer {
    let Some((current, before)) = words.split_last() else { return Answer::default() };
    let (mut command, mut operands, mut flags_ended) = (command, 0, false);
    let mut valued = None;
    for word in before {
        if valued.take().is_some() {
            continue;
        }
        if word.starts_with('-') && !flags_ended {
            flags_ended = word == "--";
            valued = option(command, word).filter(|(_, value)| value.is_none());
        } else if let Some(part) = command.find_subcommand(word).filter(|_| operands == 0) {
            command = part;
        } else {
            operands += 1;
        }
    }
    let value = |argument: &Arg, begun: &str| {
        of_value(argument, begun).unwrap_or_else(|| Answer::of(argument))
    };
    let mut answer = if let Some((argument, _)) = valued {
        value(argument, current)
    } else if current.starts_with('-') && !flags_ended {
        match option(command, current) {
            Some((argument, Some(begun))) => {
                value(argument, begun).after(&current[..current.len() - begun.len()])
            }
            _ => options(command),
        }
    } else {
        let last = command.get_positionals().last();
        let argument = command.get_positionals().nth(operands).or(last);
        let mut answer = argument.map(|it| value(it, current)).unwrap_or_default();
        if operands == 0 && answer.prefix.is_empty() {
            let parts = crate::manual::subcommands(command);
            answer.words.splice(
                ..0,
                parts.map(|part| (part.get_name().to_owned(), crate::manual::about(part))),
            );
        }
        answer
    };
    let prefix = &answer.prefix;
    answer.words.retain(|(word, _)| {
        current.strip_prefix(&**prefix).is_some_and(|begun| word.starts_with(begun))
    });
    answer
}

/// The option that takes a value in a word such as `--size=1`, `--size` or `-vs1`, and the value if
/// the word contains it.
fn option<'c, 'w>(command: &'c Command, word: &'w str) -> Option<(&'c Arg, Option<&'w str>)> {
    let valued = |argument: &&Arg| argument.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let found = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        return found.filter(valued).map(|argument| (argument, value));
    }
    let letters = word.strip_prefix('-')?;
    letters.char_indices().find_map(|(at, letter)| {
        let found = command.get_arguments().find(|argument| argument.get_short() == Some(letter));
        let rest = &letters[at + letter.len_utf8()..];
        found.filter(valued).map(|argument| (argument, Some(rest).filter(|rest| !rest.is_empty())))
    })
}

/// The options of a command, each in its longest spelling.
fn options(command: &Command) -> Answer {
    let shown = command.get_arguments().filter(|it| !it.is_positional() && !it.is_hide_set());
    let words = shown.filter_map(|argument| {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let word = long.or(argument.get_short().map(|short| format!("-{short}")))?;
        Some((word, argument.get_help().map(ToString::to_string).unwrap_or_default()))
    });
    Answer { words: words.collect(), ..Answer::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(line: &str) -> String {
        let command = Command::new("sshoal")
            .arg(clap::arg!([SOURCE]))
            .arg(clap::arg!(-o <OPTION> "options"))
            .subcommand(
                Command::new("pull")
                    .about("Copy.")
                    .arg(clap::arg!(-v --verbose "more"))
                    .arg(clap::arg!(-e --engine <HOW> "how").value_parser(["tar", "sftp"]))
                    .arg(clap::arg!(--list <FILE> "list").value_hint(ValueHint::FilePath))
                    .arg(clap::arg!(<DIR>).value_hint(ValueHint::DirPath)),
            )
            .subcommand(Command::new("probe").hide(true));
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let values = |argument: &Arg, begun: &str| {
            (argument.get_id() == "OPTION").then(|| {
                let (list, _) = begun.rsplit_once(',').unwrap();
                Answer::of_words(["xy".to_owned(), "z".to_owned()]).after(&format!("{list},"))
            })
        };
        complete(&command, &words, values).to_string()
    }

    #[test]
    fn commands_options_and_values_are_completed() {
        for (line, expected) in [
            ("p", "pull\tCopy.\n"),
            ("host: p", ""),
            ("pull --v", "--verbose\tmore\n"),
            ("pull --engine ", "tar\t\nsftp\t\n"),
            ("pull --engine=s", "--engine=sftp\t\n"),
            ("pull -ves", "-vesftp\t\n"),
            ("pull -v -e t", "tar\t\n"),
            ("pull --engine tar ", ":directories \n"),
            ("pull --list=/tm", ":files --list=\n"),
            ("pull -- --v", ":directories \n"),
            ("-o a,b,x", "a,b,xy\t\n"),
            ("-oa,", "-oa,xy\t\n-oa,z\t\n"),
        ] {
            assert_eq!(completed(line), expected, "{line}");
        }
    }
}
