//! What a command says of its standard streams.
//!
//! std gives a command's program and arguments back, but not its streams, and what is left unset
//! would be this process's own: a terminal, for which a program in a group of its own is stopped.
//! Only the command's description tells them apart (`{:#?}`: a line `stdin: Some(` of the first
//! depth; line breaks in names are escaped there). A test holds the description to that.

use std::process::{Command, Stdio};

/// The streams that a command leaves to whoever starts it.
#[derive(Debug, PartialEq, Eq)]
struct Unset {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

impl Unset {
    fn of(command: &Command) -> Unset {
        let description = format!("{command:#?}");
        let unset = |stream: &str| {
            let line = format!("    {stream}: Some(");
            !description.lines().any(|it| it == line)
        };
        Unset { stdin: unset("stdin"), stdout: unset("stdout"), stderr: unset("stderr") }
    }
}

/// Gives the command an empty input and pipes for its output, where it has no others.
pub(super) fn complete(command: &mut Command) {
    let unset = Unset::of(command);
    if unset.stdin {
        command.stdin(Stdio::null());
    }
    if unset.stdout {
        command.stdout(Stdio::piped());
    }
    if unset.stderr {
        command.stderr(Stdio::piped());
    }
}

/// The program's name for messages, without its directory.
pub(super) fn program(command: &Command) -> String {
    let path = std::path::Path::new(command.get_program());
    let name = path.file_name().unwrap_or(command.get_program());
    name.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_set_is_seen_as_set() {
        let mut command = Command::new("x\n    stdin: Some(");
        command.arg("a\n    stdout: Some(").env("A", "\n    stderr: Some(").current_dir("/");
        let all = Unset { stdin: true, stdout: true, stderr: true };
        assert_eq!(Unset::of(&command), all);
        command.stdin(Stdio::null());
        assert_eq!(Unset::of(&command), Unset { stdin: false, ..all });
        command.stderr(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(Unset::of(&command), Unset { stdin: false, stdout: true, stderr: false });
        command.stdout(Stdio::inherit());
        assert_eq!(Unset::of(&command), Unset { stdin: false, stdout: false, stderr: false });
    }
}
