//! What programs say of themselves, here and at the server.

use std::process::Command;
use std::time::Duration;

use crate::executor::{Executor, find_program, last_words};
use crate::server::Server;

/// Longest time for one question.
const LIMIT: Duration = Duration::from_secs(30);

/// Programs that a run may use, and how each is asked for its version.
const PROGRAMS: [(&str, &[&str]); 16] = [
    ("ssh", &["-V"]),
    ("sshfs", &["-V"]),
    ("fusermount3", &["-V"]),
    ("rclone", &["version"]),
    ("rsync", &["--version"]),
    ("lftp", &["--version"]),
    ("curl", &["--version"]),
    ("fio", &["--version"]),
    ("tar", &["--version"]),
    ("find", &["--version"]),
    ("grep", &["--version"]),
    ("git", &["--version"]),
    ("make", &["--version"]),
    ("gcc", &["--version"]),
    ("openssl", &["version"]),
    ("ip", &["-V"]),
];

/// The versions of those that are installed.
pub(super) fn versions(executor: &Executor) -> Vec<(String, String)> {
    let installed = PROGRAMS.iter().filter(|(name, _)| find_program(name).is_some());
    let asked = installed
        .map(|(name, arguments)| ((*name).to_owned(), first_line(name, arguments, executor)));
    asked.filter(|(_, version)| !version.is_empty()).collect()
}

/// What a program says first: of the lines that it prints, on whichever stream, the first with its
/// name in it (sshfs lets another program speak before), or the first. Nothing when it cannot be
/// run. The status does not matter: some take the question for a mistake, and answer it.
pub(super) fn first_line(program: &str, arguments: &[&str], executor: &Executor) -> String {
    let mut command = Command::new(find_program(program).unwrap_or_else(|| program.into()));
    command.args(arguments).env("LC_ALL", "C");
    let Ok(ran) = executor.run(command, LIMIT) else { return String::new() };
    let streams = [&ran.output.stdout, &ran.output.stderr];
    let lines = streams.into_iter().flat_map(|stream| stream.split(|&byte| byte == b'\n'));
    let lines: Vec<String> = lines.map(last_words).filter(|line| !line.is_empty()).collect();
    let named = lines.iter().find(|line| line.to_ascii_lowercase().contains(program));
    named.or(lines.first()).cloned().unwrap_or_default()
}

/// What the server's sshd says of itself, and its kernel: `OpenSSH_9.2p1 …; Linux …`.
pub(super) fn server(server: &Server, executor: &Executor) -> String {
    let plain = server.ssh(None);
    let mut command = Command::new(plain.get_program());
    // Said while it logs in: `remote software version`.
    command.arg("-v").args(plain.get_args()).arg("uname -srm").env("LC_ALL", "C");
    let Ok(ran) = executor.succeed(command, LIMIT) else { return String::new() };
    let said = String::from_utf8_lossy(&ran.output.stderr);
    let banner = said.lines().find_map(|line| line.split_once("remote software version "));
    let banner = banner.map(|(_, version)| last_words(version.as_bytes()));
    let kernel = last_words(ran.output.stdout.trim_ascii());
    // What a login prints comes before it.
    let kernel = kernel.lines().next_back().map(str::to_owned);
    banner.into_iter().chain(kernel).collect::<Vec<_>>().join("; ")
}

/// The kind of file system under the run's directory on a host.
pub(super) fn kind_at_server(server: &Server, executor: &Executor) -> String {
    let root = server.place().root().display().to_string().replace('\'', r"'\''");
    let mut command = server.ssh(None);
    command.arg(format!("LC_ALL=C df -PT -- '{root}'"));
    let said = executor.succeed(command, LIMIT).map(|ran| ran.output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let kind = said.lines().next_back().and_then(|line| line.split_ascii_whitespace().nth(1));
    kind.map_or_else(|| "unknown".to_owned(), |kind| last_words(kind.as_bytes()))
}
