//! `sshoal run`: runs a command at the server, in the directory that a directory of the mount
//! shows.
//!
//! ```text
//! data written in the mount is sent (syncfs(2), and Wish::Flush)
//! ssh, as the daemon runs it, runs: exec /bin/sh -c 'cd DIR || …; exec CMD ARGS'
//! what the mount has cached is requested again (Wish::Refresh)
//! ```
//!
//! The login shell of the server gets one word, so that its kind does not matter; `sh` runs the
//! rest. That script first writes a [mark](MARK) to standard error, which is removed here: without
//! it, the server has not run the command. With a terminal there is no mark, since it has one
//! stream only.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::shell::quote;
use cli::signals::HandledSignals;
use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, Problem, printable};
use control::place::{Host, Place};
use control::{Wish, client};
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::SignalKind;
use tokio::sync::oneshot;

use control::inside::{self, Inside};

use crate::connector::{REFUSED_PROGRAM, SSH_FAILED};
use crate::process::current_directory;

/// The command was not run: of this program's own errors, as of env(1) and timeout(1).
pub const EXIT_NOT_RUN: u8 = 125;

/// The command was found and could not be executed, as of a shell.
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// The command was not found, as of a shell.
const EXIT_NOT_FOUND: u8 = 127;

/// Written by the script before it does anything else. In the script it is spelled with octal
/// digits, so that a message that quotes the script does not contain it.
const MARK: &[u8] = b"\x1esshoal\x1e";

/// Bytes kept of ssh's messages, to find the reason of a failure.
const MAX_WORDS_BYTES: usize = 16 << 10;

/// How long more of standard error is waited for after ssh's end. A process that ssh has left
/// behind may keep it open.
const STDERR_LIMIT: Duration = Duration::from_millis(500);

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Allocate a terminal at the server, as ssh -t; twice: even if standard input is none.
    #[arg(short = 't', action = clap::ArgAction::Count)]
    terminal: u8,
    /// Run the command in this directory of a mount (default: the current directory).
    #[arg(short = 'C', value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command. The exit code is the command's; 255 if ssh failed, 125 if the command was not
/// run for another reason.
pub fn run(arguments: &Arguments) -> ExitCode {
    attempt(arguments).unwrap_or_else(|problem| {
        eprintln!("sshoal: run: {problem}");
        ExitCode::from(EXIT_NOT_RUN)
    })
}

fn attempt(arguments: &Arguments) -> Result<ExitCode, Problem> {
    let inside = directory(arguments.directory.as_deref())?;
    let place = inside.place()?;
    flush(&inside)?;
    let ended = match &place.host {
        None => at_home(&place, &arguments.command),
        Some(host) => at_host(&place, host, arguments),
    };
    // Also after a failure: the command may have done something.
    if let Err(problem) = refresh(inside) {
        eprintln!("sshoal: run: note: the mount may show files as they were before: {problem}");
    }
    ended
}

/// The directory in which the command is to run.
fn directory(named: Option<&Path>) -> Result<Inside, Problem> {
    let path = match named {
        // Without symbolic links, as the kernel knows it.
        None => current_directory()?,
        Some(path) => inside::canonical(path)?,
    };
    let shown = named.unwrap_or(&path);
    let inside = inside::find(&path, shown)?;
    // The daemon names the program that is run here.
    client::only_own(&inside.mount, "run commands through it")
        .map_err(|why| Problem::new(inside::about(&inside.mount.mountpoint), why))?;
    let metadata = |path: &Path| client::patiently(path, |path| std::fs::metadata(path));
    let found = metadata(&path)?;
    if !found.is_dir() {
        return Err(Problem::new(inside::about(shown), "not a directory"));
    }
    // A relative path also leads to what a later mount hides.
    if metadata(named.unwrap_or(Path::new(".")))?.dev() != found.dev() {
        return Err(Problem::new(inside::about(shown), "hidden by a mount that was made later")
            .hint("change to the directory again to run the command where it now leads"));
    }
    Ok(inside)
}

/// Sends the data that was written in the mount. Ctrl-C ends the waiting, and this process.
fn flush(inside: &Inside) -> Result<(), Problem> {
    // A process of its own, since the system call cannot be interrupted.
    let mut command = Command::new("/proc/self/exe");
    command.arg("flush").arg(&inside.mount.mountpoint).stdin(Stdio::null());
    let about = || inside::about(&inside.mount.mountpoint);
    match command.status() {
        Err(error) => Err(Problem::new(about(), format!("cannot flush it: {error}"))),
        // It has printed the reason.
        Ok(status) if !status.success() => Err(Problem::new(about(), "cannot be flushed")),
        Ok(_) => inside.order(Wish::Flush),
    }
}

/// Makes the mount request again what it has cached. A signal ends the waiting, which lasts until
/// the link is back if the kernel holds a lock for a call that waits for the server.
fn refresh(inside: Inside) -> Result<(), Problem> {
    let about = inside::about(&inside.mount.mountpoint);
    let refreshed = unless_signalled(move || inside.order(Wish::Refresh)).or_problem(&about)?;
    refreshed.unwrap_or_else(|| Err(Problem::new(about, "the refresh was interrupted")))
}

/// The process of [`flush`].
pub fn sync(place: &Path) -> ExitCode {
    let synced = std::fs::File::open(place)
        .and_then(|directory| rustix::fs::syncfs(&directory).map_err(io::Error::from));
    match synced {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(error) => {
            eprintln!("sshoal: run: {}: {error}", inside::about(place));
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// Runs the command on this machine, in a local directory that the mount shows.
fn at_home(place: &Place, words: &[OsString]) -> Result<ExitCode, Problem> {
    let directory = Path::new(OsStr::from_bytes(&place.path.0));
    if let Err(error) = std::fs::metadata(directory) {
        return Err(Problem::new(inside::about(directory), error.to_string()));
    }
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(directory).env("PWD", directory);
    supervise(command).map(|ended| exit_code(ended.status)).or_else(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => EXIT_NOT_FOUND,
            _ => EXIT_NOT_EXECUTABLE,
        };
        eprintln!("sshoal: run: {}", cannot_run(&words[0], &error));
        Ok(ExitCode::from(code))
    })
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Problem {
    Problem::new(printable(program), format!("cannot be run: {error}"))
}

/// Runs the command at a host.
fn at_host(place: &Place, host: &Host, arguments: &Arguments) -> Result<ExitCode, Problem> {
    let destination = match &host.user {
        Some(user) => format!("{user}@{}", host.name),
        None => host.name.clone(),
    };
    let about = || printable(&destination);
    let mut words = host.ssh.iter().flatten().map(|word| OsStr::from_bytes(&word.0));
    let program = words.next().ok_or_else(|| {
        Problem::new(about(), "this mount does not use ssh, which would run the command")
    })?;
    let has_terminal = arguments.terminal > 0;
    let line = line(&place.path.0, &arguments.command, !has_terminal)
        .ok_or_else(|| Problem::new(about(), "the directory or the command contains a NUL"))?;
    let mut command = Command::new(program);
    command.args(words);
    command.args(std::iter::repeat_n("-t", arguments.terminal.into()));
    // Not in the mount, which ssh must not access.
    command.args(["--", &destination]).arg(OsStr::from_bytes(&line)).current_dir("/");
    if !has_terminal {
        command.stderr(Stdio::piped());
    }
    let ended = supervise(command).map_err(|error| cannot_run(program, &error))?;
    judge(&ended, &about(), has_terminal);
    let is_refused = !has_terminal && ended.is_refused();
    Ok(if is_refused { ExitCode::from(EXIT_NOT_RUN) } else { exit_code(ended.status) })
}

/// Reports what the exit code alone does not.
fn judge(ended: &Ended, host: &str, has_terminal: bool) {
    if ended.is_interrupted || has_terminal {
        return;
    }
    if ended.is_marked && ended.status.code() == Some(SSH_FAILED) {
        eprintln!(
            "sshoal: run: note: status 255: the command's own, or it was killed by a signal, or ssh \
             lost the connection"
        );
    } else if !ended.is_marked {
        let (cause, _) = ssh::Cause::of(&ended.words, Some(ended.status));
        let problem = if ended.is_refused() {
            Problem::new(host, "the server did not run the command").hint(
                "it allows file transfers only, or runs a command of its own (ForceCommand, a \
                 restricted login shell)",
            )
        } else {
            Problem::new(host, "ssh failed; the command was not run").hint_if(cause.hint())
        };
        eprintln!("sshoal: run: {problem}");
    }
}

/// The end of a command.
struct Ended {
    status: ExitStatus,
    /// The mark came.
    is_marked: bool,
    /// The messages before the mark.
    words: String,
    /// A signal came that also ends the command.
    is_interrupted: bool,
}

impl Ended {
    /// Whether the login succeeded, and the server has not run the command. Not known with a
    /// terminal.
    fn is_refused(&self) -> bool {
        let has_failed = self.status.code() == Some(SSH_FAILED);
        !self.is_marked && (!has_failed || self.words.contains(REFUSED_PROGRAM))
    }
}

/// The signals that end a command. Once they exist, these signals do not end this process by
/// themselves, so all that may take long waits for them, too.
fn signals() -> io::Result<HandledSignals> {
    use SignalKind as Kind;
    HandledSignals::new(&[Kind::interrupt(), Kind::quit(), Kind::terminate(), Kind::hangup()])
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// The result of `work`, which may hang; `None` if a signal comes before.
fn unless_signalled<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    runtime()?.block_on(async {
        let mut signals = signals()?;
        let (told, done) = oneshot::channel();
        std::thread::spawn(move || told.send(work()));
        tokio::select! {
            done = done => io::Result::Ok(done.ok()),
            _ = signals.next() => Ok(None),
        }
    })
}

/// Whether the terminal sends its signals to the process group of this process, and so also to the
/// command.
fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// Runs a command to its end. Signals of the terminal reach it as they reach this process; others
/// are passed on. A signal that this process ignores, the command also ignores.
fn supervise(command: Command) -> io::Result<Ended> {
    runtime()?.block_on(async {
        let mut signals = signals()?;
        let mut child = tokio::process::Command::from(command).spawn()?;
        let heard = match child.stderr.take() {
            Some(stderr) => Some(hear(stderr.into_owned_fd()?.into(), io::stderr())),
            None => None,
        };
        let mut is_interrupted = false;
        let status = loop {
            let kind = tokio::select! {
                status = child.wait() => break status?,
                kind = signals.next() => kind,
            };
            is_interrupted = true;
            // A program may take a second Ctrl-C for another request.
            let is_of_terminal = [SignalKind::interrupt(), SignalKind::quit()].contains(&kind);
            let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
            if let Some(pid) = pid
                && let Some(signal) = Signal::from_named_raw(kind.as_raw_value())
                && !(is_of_terminal && is_in_foreground())
            {
                let _ = kill_process(pid, signal);
            }
        };
        let (is_marked, words) = match heard {
            Some(heard) => {
                let filter = tokio::select! {
                    filter = heard.finish(STDERR_LIMIT) => filter,
                    _ = signals.next() => {
                        is_interrupted = true;
                        None
                    }
                };
                // Without it, what came so far is shown already.
                filter.map_or((true, Vec::new()), |filter| (filter.is_marked, filter.words))
            }
            None => (false, Vec::new()),
        };
        let words = String::from_utf8_lossy(&words).into_owned();
        io::Result::Ok(Ended { status, is_marked, words, is_interrupted })
    })
}

/// The thread of [`hear`].
struct Heard {
    end: oneshot::Receiver<Filter>,
    /// Incremented before and after each read: even while the thread waits for more.
    steps: Arc<AtomicU64>,
}

impl Heard {
    /// The filter when all is shown. `None` if nothing more came for `limit`: a process that ssh has
    /// left behind has it open. What was read is waited for as long as its reader takes.
    async fn finish(mut self, limit: Duration) -> Option<Filter> {
        loop {
            let before = self.steps.load(Ordering::SeqCst);
            match tokio::time::timeout(limit, &mut self.end).await {
                Ok(filter) => return filter.ok(),
                Err(_) => {
                    let is_same = self.steps.load(Ordering::SeqCst) == before;
                    if is_same && before.is_multiple_of(2) {
                        return None;
                    }
                }
            }
        }
    }
}

/// Copies standard error of ssh to `to`, on a thread, without the mark.
fn hear(mut stderr: std::fs::File, mut to: impl Write + Send + 'static) -> Heard {
    let (told, end) = oneshot::channel();
    let steps = Arc::new(AtomicU64::new(1));
    let heard = Heard { end, steps: steps.clone() };
    std::thread::spawn(move || {
        let mut filter = Filter::default();
        let mut buffer = [0; 8 << 10];
        loop {
            steps.fetch_add(1, Ordering::SeqCst);
            let read = stderr.read(&mut buffer);
            steps.fetch_add(1, Ordering::SeqCst);
            let (count, is_end) = match read {
                Ok(0) => (0, true),
                Ok(count) => (count, false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => (0, true),
            };
            let shown = filter.pass(&buffer[..count], is_end);
            // A closed standard error is no reason to stop the command.
            let _ = to.write_all(&shown);
            if is_end {
                // The receiver may have given up.
                let _ = told.send(filter);
                return;
            }
        }
    });
    heard
}

/// Removes the first mark of a stream.
#[derive(Debug, Default)]
struct Filter {
    is_marked: bool,
    /// What may be the beginning of the mark.
    held: Vec<u8>,
    /// What came before the mark, up to a limit.
    words: Vec<u8>,
}

impl Filter {
    /// Returns what is to be shown after these bytes.
    fn pass(&mut self, bytes: &[u8], is_end: bool) -> Vec<u8> {
        if self.is_marked {
            return bytes.to_vec();
        }
        let mut shown = std::mem::take(&mut self.held);
        shown.extend_from_slice(bytes);
        if let Some(at) = shown.windows(MARK.len()).position(|window| window == MARK) {
            self.is_marked = true;
            shown.drain(at..at + MARK.len());
            return shown;
        }
        if !is_end {
            let begins = |count: &usize| shown.ends_with(&MARK[..*count]);
            let count = (1..MARK.len()).rev().find(begins).unwrap_or(0);
            self.held = shown.split_off(shown.len() - count);
        }
        let room = MAX_WORDS_BYTES.saturating_sub(self.words.len());
        self.words.extend_from_slice(&shown[..shown.len().min(room)]);
        shown
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let of_signal = || status.signal().map_or(i32::from(EXIT_FAILURE), |signal| 128 + signal);
    let code = status.code().unwrap_or_else(of_signal);
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// The line for the login shell: runs the words in `directory` by `sh`. `None` if a word contains
/// NUL.
fn line(directory: &[u8], words: &[OsString], is_marked: bool) -> Option<Vec<u8>> {
    /// A newline cannot be quoted for every login shell, so the script makes one.
    const NEWLINE: &[u8] = b"_sshoal=$(printf '\\n_'); _sshoal=${_sshoal%_}; ";
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    // The home directory, or relative to it.
    let directory = match directory {
        [] => b".".to_vec(),
        [b'/', ..] => directory.to_vec(),
        below => [b"./", below].concat(),
    };
    let mut script = Vec::new();
    if is_marked {
        script.extend_from_slice(b"printf '\\036sshoal\\036' >&2; ");
    }
    if directory.contains(&b'\n') || words.iter().any(|word| word.contains(&b'\n')) {
        script.extend_from_slice(NEWLINE);
    }
    script.extend_from_slice(b"cd ");
    script.extend(quoted(&directory)?);
    script.extend_from_slice(
        b" >/dev/null || { echo 'sshoal: run: the server cannot enter the directory; the command was \
          not run' >&2; exit 125; }; exec",
    );
    for word in words {
        script.push(b' ');
        script.extend(quoted(word)?);
    }
    Some([b"exec /bin/sh -c ".as_slice(), &quote(&script)?].concat())
}

/// A word for the script, in which `$_sshoal` is a newline.
fn quoted(word: &[u8]) -> Option<Vec<u8>> {
    let lines: Option<Vec<_>> = word.split(|byte| *byte == b'\n').map(quote).collect();
    Some(lines?.join(&br#""$_sshoal""#[..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::thread;

    use testkit::own_process::is_inside;

    /// The shells that `scripts/setup.sh` installs, each with the words of its command line.
    const SHELLS: [&[&str]; 7] = [
        &["sh", "-c"],
        &["dash", "-c"],
        &["bash", "-c"],
        &["busybox", "sh", "-c"],
        &["zsh", "-f", "-c"],
        &["fish", "--no-config", "-c"],
        &["tcsh", "-f", "-c"],
    ];

    fn by_shell(shell: &[&str], line: &[u8]) -> std::process::Output {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg(OsStr::from_bytes(line)).env("HOME", "/nonexistent");
        command.env("LC_ALL", "C.UTF-8").output().unwrap()
    }

    #[test]
    fn every_login_shell_passes_exactly_these_words() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a 'b\n\\c!$x");
        std::fs::create_dir(&place).unwrap();
        let words = [
            "sh",
            "-c",
            "pwd; for word; do printf '<%s>' \"$word\"; done",
            "sh",
            "",
            "a b",
            "it's",
            "two\nlines\n",
            "\n",
            "\\n",
            "!!",
            "$HOME",
            "`id`",
            "*",
            "-n",
            "--",
            "~",
            "\t\r",
            "ä",
        ];
        let expected: Vec<u8> = [
            place.as_os_str().as_bytes(),
            b"\n",
            words[4..].iter().map(|word| format!("<{word}>")).collect::<String>().as_bytes(),
        ]
        .concat();
        let words = words.map(OsString::from);
        let line = line(place.as_os_str().as_bytes(), &words, true).unwrap();
        for shell in SHELLS {
            let output = by_shell(shell, &line);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.stderr, MARK, "{shell:?}: {said}");
            let (got, wanted) = (output.stdout.escape_ascii(), expected.escape_ascii());
            assert_eq!(got.to_string(), wanted.to_string(), "{shell:?}");
            assert!(output.status.success(), "{shell:?}");
        }
    }

    #[test]
    fn without_its_directory_the_command_is_not_run() {
        let words = ["touch".into(), "/nonexistent/x".into()];
        let line = line(b"/nonexistent/dir", &words, false).unwrap();
        for shell in SHELLS {
            let output = by_shell(shell, &line);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(125), "{shell:?}: {said}");
            assert!(said.contains("cannot enter the directory"), "{shell:?}: {said}");
            assert!(!said.contains("touch"), "{shell:?}: {said}");
        }
    }

    /// A reader that takes the first bytes late.
    #[derive(Clone, Default)]
    struct Late(Arc<Mutex<Vec<u8>>>);

    impl Write for Late {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut taken = self.0.lock().unwrap();
            if taken.is_empty() {
                thread::sleep(2 * STDERR_LIMIT);
            }
            taken.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_reader_of_standard_error_gets_all_of_it() {
        let said = vec![b'x'; 20_000];
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(&[MARK, &said].concat()).unwrap();
        let late = Late::default();
        let heard = hear(std::os::fd::OwnedFd::from(reader).into(), late.clone());
        drop(writer);
        let filter = runtime().unwrap().block_on(heard.finish(STDERR_LIMIT));
        assert!(filter.is_some_and(|filter| filter.is_marked));
        assert!(*late.0.lock().unwrap() == said);
    }

    #[test]
    fn a_standard_error_that_is_left_open_is_not_waited_for() {
        let (reader, _writer) = io::pipe().unwrap();
        let heard = hear(std::os::fd::OwnedFd::from(reader).into(), io::sink());
        assert!(runtime().unwrap().block_on(heard.finish(STDERR_LIMIT)).is_none());
    }

    #[test]
    fn a_signal_ends_what_waits_for_the_mount() {
        let test = "run::tests::a_signal_ends_what_waits_for_the_mount";
        if !is_inside(Command::new("env"), test) {
            return;
        }
        let ended = unless_signalled::<()>(|| {
            kill_process(rustix::process::getpid(), Signal::INT).unwrap();
            loop {
                thread::park();
            }
        });
        assert_eq!(ended.unwrap(), None);
        assert_eq!(unless_signalled(|| 7).unwrap(), Some(7));
    }

    /// Without a terminal, which would send these signals to the command, too.
    #[test]
    fn a_signal_to_this_process_alone_reaches_the_command() {
        let test = "run::tests::a_signal_to_this_process_alone_reaches_the_command";
        let mut own_session = Command::new("setsid");
        own_session.arg("-w");
        if !is_inside(own_session, test) {
            return;
        }
        for (name, signal) in [("INT", Signal::INT), ("QUIT", Signal::QUIT), ("TERM", Signal::TERM)]
        {
            let mut command = Command::new("sh");
            command.args(["-c", "kill -s \"$0\" \"$PPID\"; exec sleep 20", name]);
            let ended = supervise(command).unwrap();
            assert!(ended.is_interrupted);
            assert_eq!(ended.status.signal(), Some(signal.as_raw()), "{name}");
        }
    }

    #[test]
    fn the_mark_is_removed_wherever_it_is_cut() {
        let stream = [b"banner\n\x1e".as_slice(), MARK, b"after", MARK].concat();
        for cut in 0..stream.len() {
            let mut filter = Filter::default();
            let mut shown = filter.pass(&stream[..cut], false);
            shown.extend(filter.pass(&stream[cut..], true));
            let expected = [b"banner\n\x1eafter".as_slice(), MARK].concat();
            assert_eq!(shown, expected, "{cut}");
            assert!(filter.is_marked);
            assert!(b"banner\n\x1e".starts_with(&filter.words));
        }
        let mut filter = Filter::default();
        assert_eq!(filter.pass(b"x\x1essh", false), b"x");
        assert_eq!(filter.pass(b"", true), b"\x1essh");
        assert!(!filter.is_marked);
        let quoted = line(b"/", &["true".into()], true).unwrap();
        assert!(!quoted.windows(MARK.len()).any(|window| window == MARK));
    }
}
