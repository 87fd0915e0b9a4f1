//! Messages, exit codes and output of the command-line programs `sshoal` and `sshoal-bench`, and
//! what is generated from their definitions: [manual pages](manual) and [completions](completion).
//! Also the [signals] that they handle.
//!
//! A message has the form `sshoal: what: why`, with a hint on a line of its own.
#![forbid(unsafe_code)]

pub mod completion;
pub mod manual;
pub mod signals;

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::error::ErrorKind;
use serde::{Deserialize, Serialize};

/// Success.
pub const EXIT_OK: u8 = 0;

/// The command line is wrong, or the mount (or unmount) failed; sshfs uses 1 for both as well.
pub const EXIT_FAILURE: u8 = 1;

/// An error to be shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}: {why}{}", hint.iter().map(|hint| format!("\n  {hint}")).collect::<String>())]
pub struct Problem {
    what: String,
    why: String,
    hint: Option<String>,
    #[serde(skip)]
    speaks_of_source: bool,
}

impl Problem {
    /// `what` failed or is wrong, and `why`. Neither may hold raw text from outside: see
    /// [`printable`].
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Problem {
        Problem { what: what.into(), why: why.into(), hint: None, speaks_of_source: false }
    }

    /// The problem with all of it escaped but the ends of lines, for one that another process has
    /// reported. A further line of the reason is indented, so that it cannot pass for a message.
    pub fn escaped(&self) -> Problem {
        let lines = |text: &String| {
            let lines: Vec<String> = text.split('\n').map(printable).collect();
            lines.join("\n")
        };
        let hint = self.hint.as_ref().map(lines);
        let why = lines(&self.why).replace('\n', "\n  ");
        Problem { what: printable(&self.what), why, hint, ..*self }
    }

    /// Marks the problem as an answer of the host about the source: another login would fail the
    /// same way.
    pub fn of_source(mut self) -> Problem {
        self.speaks_of_source = true;
        self
    }

    /// Whether the problem is an answer of a reached host about the source.
    pub fn is_of_source(&self) -> bool {
        self.speaks_of_source
    }

    /// Sets the hint: what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the hint, if there is one.
    pub fn hint_if(self, hint: Option<impl Into<String>>) -> Problem {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Adds a line to the hint.
    pub fn hint_too(mut self, line: &str) -> Problem {
        let hint = self.hint.take().map(|hint| hint + "\n  ").unwrap_or_default();
        self.hint = Some(hint + line);
        self
    }
}

/// Results whose error has a text.
pub trait OrProblem<T> {
    /// Turns the error into a [`Problem`] about `what`.
    ///
    /// # Errors
    /// The problem.
    fn or_problem(self, what: impl Into<String>) -> Result<T, Problem>;
}

impl<T, E: fmt::Display> OrProblem<T> for Result<T, E> {
    fn or_problem(self, what: impl Into<String>) -> Result<T, Problem> {
        self.map_err(|error| Problem::new(what, error.to_string()))
    }
}

/// Text of unknown origin, safe for a terminal; see [`base::printable()`].
pub fn printable(text: impl AsRef<OsStr>) -> String {
    base::printable(text.as_ref().as_bytes())
}

/// A word of a command line that the user may copy into a shell, quoted where that is needed.
pub fn word(text: impl AsRef<OsStr>) -> String {
    let bytes = text.as_ref().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(byte);
    // zsh expands `=ls` to the path of ls.
    if !bytes.is_empty() && bytes[0] != b'=' && bytes.iter().all(is_plain) {
        return printable(text);
    }
    match base::shell::quote(bytes).map(|quoted| base::printable(&quoted)) {
        Some(quoted) if printable(&text) == text.as_ref().to_string_lossy() => quoted,
        // As bash, zsh and ksh read it, and sh of POSIX since 2024.
        _ => {
            let octal = |byte: &u8| match byte {
                byte if is_plain(byte) || *byte == b' ' => char::from(*byte).to_string(),
                byte => format!("\\{byte:03o}"),
            };
            format!("$'{}'", bytes.iter().map(octal).collect::<String>())
        }
    }
}

/// Parses a number of bytes, optionally with a binary unit: `512`, `4k`, `20G`. At most half of what
/// 64 bits hold, so that the sum of two does not overflow.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            let power = "KMGT".find(unit.to_ascii_uppercase())? + 1;
            (&text[..at], 10 * power)
        }
        _ => (text, 0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= u64::MAX >> 1)
}

/// Prints requested output. A reader that closes the pipe early (`| head`) is no error.
///
/// # Errors
/// Those of write(2).
pub fn print(text: &str) -> anyhow::Result<ExitCode> {
    print_bytes(text.as_bytes())?;
    Ok(ExitCode::from(EXIT_OK))
}

/// Prints a value, as JSON or as this text.
///
/// # Errors
/// Those of [`json`] and [`print()`].
pub fn print_as(
    is_json: bool,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<ExitCode> {
    print(&if is_json { json(value)? } else { text() })
}

/// Prints requested output to the last byte: at the end of the process, an error would be lost.
/// Returns whether there may be a reader for more.
///
/// # Errors
/// Those of write(2).
pub fn print_bytes(bytes: &[u8]) -> Result<bool, Problem> {
    let mut stdout = io::stdout();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.or_problem("standard output").map(|()| true),
    }
}

/// Prints the requested help. Turns an error of the command line into a [`Problem`] with clap's
/// first line, and the usage or the possible values.
///
/// # Errors
/// The problem, or those of [`print()`].
pub fn explain(error: clap::Error) -> anyhow::Result<ExitCode> {
    let text = error.to_string();
    if error.kind() == ErrorKind::DisplayHelp {
        return print(&text);
    }
    let why = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => missing_command(&text),
        _ => text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    };
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    let missing = text.lines().nth(1).map(str::trim).filter(|_| why.ends_with(':'));
    let why = format!("{why}{}{}", if missing.is_some() { " " } else { "" }, missing.unwrap_or(""));
    let hint = usage.map(|usage| format!("usage: {usage}"));
    let hint = hint.or_else(|| possible_values(&text));
    Err(Problem::new("command line", printable(why)).hint_if(hint).into())
}

/// The line of clap's text with the possible values.
fn possible_values(text: &str) -> Option<String> {
    let line = text.lines().nth(1)?.trim();
    line.strip_prefix('[')?.strip_suffix(']').map(printable)
}

/// The error of a command that was given without one of its own commands, from its help.
fn missing_command(help: &str) -> String {
    let rest = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // A longer description has further lines, which are indented more.
    let entries = rest.take_while(|line| !line.is_empty());
    let entries = entries.filter_map(|line| line.strip_prefix("  "));
    let names =
        entries.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    format!("a command is missing: {}", names.collect::<Vec<_>>().join(", "))
}

/// The content of an output of `--json`, with the version of its form.
#[derive(Debug, Serialize)]
pub struct Document<T> {
    /// Incremented when a field changes its name, its meaning or its unit.
    pub schema: u32,
    /// A struct or a map.
    #[serde(flatten)]
    pub content: T,
}

/// The output of `--json`: one value with indented lines. Control characters are escaped, so that
/// the text is harmless on a terminal and equal for a parser.
///
/// # Errors
/// Of values that cannot be JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(base::printable::printable_json(&text) + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    #[test]
    fn a_shell_reads_a_word_as_it_was_and_a_terminal_shows_it() {
        let texts: [&[u8]; 8] = [
            b"/plain-1.x",
            b"",
            b"/a b",
            b"/it's $HOME!",
            b"/a\nb 7",
            b"/\x1b[2J'\\",
            b"/\xff\xc3\xa4",
            b"=ls",
        ];
        for text in texts {
            let shown = word(OsString::from_vec(text.to_vec()));
            assert_eq!(base::printable(shown.as_bytes()), shown);
            for shell in ["bash", "zsh"] {
                let line = format!("printf %s {shown}");
                let output = Command::new(shell).args(["-c", &line]).output().unwrap();
                assert_eq!(output.stdout, text, "{shell}: {shown}");
            }
        }
        assert_eq!(word("/plain-1.x"), "/plain-1.x");
        assert_eq!(word("/ä b"), "'/ä b'");
        assert_eq!(word("/a\nb"), "$'/a\\012b'");
    }

    #[test]
    fn parsed_sizes_have_units_and_bounds() {
        for (text, bytes) in [
            ("0", 0),
            ("7", 7),
            ("4k", 4096),
            ("1M", 1 << 20),
            ("20G", 20 << 30),
            ("8388607T", 8_388_607 << 40),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "+1",
            "1.5G",
            "1MB",
            "5P",
            "8388608T",
            "99999999999999999999",
            "1 G",
            "5%",
            "\u{1b}",
        ] {
            assert_eq!(parse_bytes(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_problem_is_a_line_and_a_hint() {
        let problem = Problem::new("option 'x'", "no such option");
        assert_eq!(problem.to_string(), "option 'x': no such option");
        assert_eq!(
            problem.hint("did you mean 'y'?").to_string(),
            "option 'x': no such option\n  did you mean 'y'?"
        );
    }

    #[test]
    fn a_problem_of_another_process_is_escaped() {
        let told = Problem::new("a\u{1b}", "b\nc").hint("d\n  e\u{9b}");
        assert_eq!(told.escaped().to_string(), "a\\u{1b}: b\n  c\n  d\n  e\\u{9b}");
    }

    /// Class of attack: a file's name, which a shell puts into the command line for `*`.
    #[test]
    fn arguments_in_an_error_are_escaped() {
        let command = clap::Command::new("copy").arg(clap::arg!(--tries <N>).value_parser(["one"]));
        for argument in
            ["--\u{1b}]0;owned\u{7}", "--\u{9b}2J", "--gpj.\u{202e}exe", "--tries=\u{9b}"]
        {
            let error = command.clone().try_get_matches_from(["copy", argument]).unwrap_err();
            let text = explain(error).unwrap_err().to_string();
            assert_eq!(base::printable::printable_lines(text.as_bytes()), text);
            assert!(text.contains("'--"), "{text}");
        }
    }

    #[test]
    fn an_invalid_word_is_answered_with_the_valid_ones() {
        let command = clap::Command::new("set").arg(clap::arg!(<WORD>).value_parser(["rw", "ro"]));
        let error = command.try_get_matches_from(["set", "xx"]).unwrap_err();
        let text = explain(error).unwrap_err().to_string();
        let expected = "command line: invalid value 'xx' for '<WORD>'\n  possible values: rw, ro";
        assert_eq!(text, expected);
    }

    #[test]
    fn nothing_from_outside_reaches_the_terminal_raw() {
        let text = OsStr::from_bytes(b"gr\xc3\xbcn\x1b[2J\xff\n");
        assert_eq!(printable(text), "grün\\u{1b}[2J\\xff\\n");
    }
}
