//! From the terminal into the background, without `fork`.
//!
//! ```text
//! parent                                   child (the same program and arguments)
//! makes a pipe, starts the child  ───────▶ finds the pipe's number in the environment
//! reads from the pipe                      connects (ssh may prompt: it is still in the
//!   │                                      terminal's foreground group), mounts
//!   │                                      leaves the terminal: own session, /, no stdio
//! exits with the code that it reads ◀───── one byte: exit code; then the error's text
//! ```
//!
//! A fork would lose all threads but one, and the runtime has threads. The child is the daemon
//! from its first instruction; the parent only waits for it.
//!
//! Invariants:
//! 1. The child has left the terminal before the parent learns of success, so nothing that ends
//!    with the parent's session can reach it.
//! 2. The pipe's end is closed on exec in the child: ssh never holds it open.
//! 3. If the parent is killed before that, the child gets SIGTERM, and ends with ssh.
//! 4. If the child ends without a message in the pipe, the parent exits with the child's exit code:
//!    the child has printed the reason itself.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command};

use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, Problem, printable};
use rustix::fs::{FileType, fstat};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use crate::systemd;

/// Names the pipe for the child: the parent's process id, a colon, the descriptor's number. The id
/// keeps a grandchild that inherits the variable from taking it for its own.
const VARIABLE: &str = "SSHOAL_READY_PIPE";

/// Maximum length of a message in bytes: less than the default capacity of a pipe on Linux (64
/// KiB), so that writing it never blocks.
const MAX_TEXT_BYTES: usize = 60 * 1024;

/// Which of the two processes this is.
pub enum Side {
    /// The process started by the user: exit with this code.
    Parent(u8),
    /// The process that mounts, and reports the result through this.
    Mount(Ready),
}

/// Determines which of the two processes this is, and starts the other one unless in the
/// foreground.
///
/// `log` is where standard error goes once the mount is in the background. Must be called before
/// any thread is started.
pub fn enter(foreground: bool, log: Option<&Path>, program: &'static str) -> Result<Side, Problem> {
    if let Some(pipe) = inherited_pipe() {
        end_with_parent()?;
        let log = log.map(open_log).transpose()?;
        return Ok(Side::Mount(Ready { to_parent: Some(File::from(pipe)), log, program }));
    }
    if foreground {
        return Ok(Side::Mount(Ready { to_parent: None, log: None, program }));
    }
    let mut arguments = std::env::args_os();
    let mut command = Command::new(own_program());
    if let Some(argv0) = arguments.next() {
        command.arg0(argv0);
    }
    command.args(arguments);
    let (mut child, pipe) = start(command)
        .map_err(|error| Problem::new("background process", format!("cannot start: {error}")))?;
    let outcome = wait(&mut child, pipe);
    if let Some(text) = &outcome.text {
        eprintln!("{program}: {text}");
    }
    Ok(Side::Parent(outcome.code))
}

/// Ends this process, which is the child, with its parent: a supervisor or a script ends a mount
/// that takes too long by a signal to the process that it has started. Called on the main thread,
/// as [`Ready::succeeded`] is: the kernel keeps this for each thread.
fn end_with_parent() -> Result<(), Problem> {
    let parent = getppid();
    // Without it, the child mounts or fails later, and finds then that no process waits.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    match getppid() == parent {
        true => Ok(()),
        false => Err(Problem::new("background process", "the command that mounts has ended")),
    }
}

/// The path of this program. `/proc/self/exe` also works when the file was replaced meanwhile, but
/// `ps` would show the child as `exe`.
fn own_program() -> std::path::PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => "/proc/self/exe".into(),
    }
}

/// The exit code and message for the parent.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: u8,
    text: Option<String>,
}

/// Starts `command` as the child. Returns the pipe's reading end.
fn start(mut command: Command) -> io::Result<(Child, File)> {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
    // Inherited by the one child that is started next; the caller has no other threads.
    fcntl_setfd(&writing, FdFlags::empty())?;
    command.env(VARIABLE, format!("{}:{}", std::process::id(), writing.as_raw_fd()));
    let child = command.spawn()?;
    drop(writing);
    Ok((child, File::from(reading)))
}

/// Waits until the child is ready, has failed, or is gone.
fn wait(child: &mut Child, pipe: File) -> Outcome {
    let mut message = Vec::new();
    let read = pipe.take(1 + MAX_TEXT_BYTES as u64).read_to_end(&mut message);
    match (read, message.split_first()) {
        (Ok(_), Some((&EXIT_OK, _))) => Outcome { code: EXIT_OK, text: None },
        (Ok(_), Some((&code, text))) => {
            // The user may mount again at once, so the child should have ended by then.
            let _ = child.wait();
            let text = String::from_utf8_lossy(text).into_owned();
            Outcome { code, text: (!text.is_empty()).then_some(text) }
        }
        _ => end_without_message(child),
    }
}

fn end_without_message(child: &mut Child) -> Outcome {
    let failed = |text: String| Outcome { code: EXIT_FAILURE, text: Some(text) };
    match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            // It has exited, and has printed the reason.
            (Some(code), _) => {
                Outcome { code: u8::try_from(code).unwrap_or(EXIT_FAILURE), text: None }
            }
            (None, Some(signal)) => {
                failed(format!("the background process was killed by signal {signal}"))
            }
            (None, None) => failed(format!("the background process ended: {status}")),
        },
        Err(error) => failed(format!("cannot wait for the background process: {error}")),
    }
}

/// The pipe to the parent, if this process was started as the child by [`start`].
#[allow(unsafe_code, reason = "a descriptor that is inherited has only its number")]
fn inherited_pipe() -> Option<OwnedFd> {
    let value = std::env::var(VARIABLE).ok()?;
    let (parent, number) = value.split_once(':')?;
    let parent: i32 = parent.parse().ok()?;
    let number: RawFd = number.parse().ok()?;
    if getppid()?.as_raw_nonzero().get() != parent || number <= 2 {
        return None;
    }
    let is_open = std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    if !is_open {
        return None;
    }
    // SAFETY: the parent has left this descriptor open for this purpose, and its number comes from
    // this process's parent. It is taken only once: from here on it is closed on exec, by which the
    // check below recognizes a second call.
    let pipe = unsafe { OwnedFd::from_raw_fd(number) };
    let is_fresh = fcntl_getfd(&pipe).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC));
    let is_pipe =
        fstat(&pipe).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    if !is_fresh || !is_pipe || fcntl_setfd(&pipe, FdFlags::CLOEXEC).is_err() {
        // Another descriptor, which must not be closed.
        std::mem::forget(pipe);
        return None;
    }
    Some(pipe)
}

/// Opens the log file. A symbolic link is not followed: in a shared directory it could be another
/// user's, who would choose the file that is appended to.
fn open_log(path: &Path) -> Result<File, Problem> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)
        .or_problem(format!("log file '{}'", printable(path)))
}

/// Reports to the parent whether the mount was created: call exactly one of its methods.
///
/// If it is dropped without a call, the parent waits for the end of this process and exits with its
/// exit code; so errors may also be printed to standard error before
/// [`succeeded`](Self::succeeded).
pub struct Ready {
    /// `None` in the foreground.
    to_parent: Option<File>,
    log: Option<File>,
    program: &'static str,
}

impl Ready {
    /// Whether this process was started by the user and stays attached to the terminal.
    pub fn is_foreground(&self) -> bool {
        self.to_parent.is_none()
    }

    /// The mount exists and serves requests. Notifies systemd, and, for a mount in the background,
    /// detaches from the terminal: a session of its own, `/` as directory, standard input and
    /// output on `/dev/null`, standard error on the log file or `/dev/null`.
    ///
    /// Fails if it cannot detach, or if the waiting parent has ended, since the user cancels a
    /// mount that takes too long by killing the parent; then the mount should be removed.
    pub fn succeeded(self) -> io::Result<()> {
        let Some(mut to_parent) = self.to_parent else {
            std::env::set_current_dir("/")?;
            systemd::notify_ready();
            return Ok(());
        };
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        let errors = self.log.as_ref().unwrap_or(&null);
        set_parent_process_death_signal(None)?;
        setsid()?;
        std::env::set_current_dir("/")?;
        rustix::stdio::dup2_stdin(null.as_fd())?;
        rustix::stdio::dup2_stdout(null.as_fd())?;
        rustix::stdio::dup2_stderr(errors.as_fd())?;
        systemd::notify_ready();
        to_parent.write_all(&[EXIT_OK])
    }

    /// Mounting failed for the reason in `text` (`what: why`); the process that the user started
    /// prints it and exits with `code`, which is not [`EXIT_OK`]. End this process afterwards.
    pub fn failed(self, code: u8, text: &str) {
        let code = if code == EXIT_OK { EXIT_FAILURE } else { code };
        let cut = (0..=text.len().min(MAX_TEXT_BYTES)).rfind(|at| text.is_char_boundary(*at));
        let sent = self.to_parent.is_some_and(|mut to_parent| {
            let mut message = vec![code];
            message.extend_from_slice(&text.as_bytes()[..cut.unwrap_or(0)]);
            to_parent.write_all(&message).is_ok()
        });
        if !sent {
            eprintln!("{}: {text}", self.program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// The role of [`as_a_child`]; without it the test does nothing.
    const ROLE: &str = "SSHOAL_TEST_ROLE";
    /// The file in which the child records its state.
    const FACTS: &str = "SSHOAL_TEST_FACTS";
    const LOG: &str = "SSHOAL_TEST_LOG";

    /// This test program again, running the one test that plays the child.
    fn child(role: &str, dir: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "background::tests::as_a_child", "--nocapture", "--quiet"]);
        command.env(ROLE, role).env(FACTS, dir.join("facts")).env(LOG, dir.join("log"));
        command.stdout(std::process::Stdio::null());
        command
    }

    #[test]
    fn as_a_child() {
        let Ok(role) = std::env::var(ROLE) else {
            return;
        };
        let log = std::path::PathBuf::from(std::env::var_os(LOG).unwrap());
        let Ok(Side::Mount(ready)) = enter(false, Some(&log), "sshoal") else {
            std::process::exit(99);
        };
        // A second call, as a grandchild with the same variable would make it, finds nothing.
        assert!(inherited_pipe().is_none());
        match role.as_str() {
            "succeed" => {
                ready.succeeded().unwrap();
                eprintln!("a last word");
                let mut facts = UnixStream::connect(std::env::var(FACTS).unwrap()).unwrap();
                facts.write_all(facts_about_this_process().as_bytes()).unwrap();
            }
            "fail" => ready.failed(7, "the host: is away\n  wait for it"),
            "fail at length" => ready.failed(EXIT_OK, &"ä".repeat(MAX_TEXT_BYTES)),
            "print and exit" => std::process::exit(5),
            "crash" => std::process::abort(),
            other => panic!("{other}"),
        }
    }

    fn facts_about_this_process() -> String {
        let link = |name: &str| {
            std::fs::read_link(format!("/proc/self/{name}")).unwrap().display().to_string()
        };
        let id = std::process::id();
        let session = rustix::process::getsid(None).unwrap().as_raw_nonzero().get();
        [
            ("leads its session", (session.cast_unsigned() == id).to_string()),
            ("directory", link("cwd")),
            ("stdin", link("fd/0")),
            ("stdout", link("fd/1")),
            ("stderr", link("fd/2")),
        ]
        .map(|(name, value)| format!("{name}={value}\n"))
        .concat()
    }

    fn outcome_of(role: &str) -> Outcome {
        let dir = tempfile::tempdir().unwrap();
        let (mut process, pipe) = start(child(role, dir.path())).unwrap();
        let outcome = wait(&mut process, pipe);
        process.wait().unwrap();
        outcome
    }

    #[test]
    fn a_child_that_is_ready_has_left_the_terminal() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("facts")).unwrap();
        let (mut process, pipe) = start(child("succeed", dir.path())).unwrap();
        assert_eq!(wait(&mut process, pipe), Outcome { code: EXIT_OK, text: None });
        let mut facts = String::new();
        listener.accept().unwrap().0.read_to_string(&mut facts).unwrap();
        let facts: HashMap<&str, &str> =
            facts.lines().filter_map(|line| line.split_once('=')).collect();
        assert_eq!(facts["leads its session"], "true");
        assert_eq!(facts["directory"], "/");
        assert_eq!((facts["stdin"], facts["stdout"]), ("/dev/null", "/dev/null"));
        let log = dir.path().join("log");
        assert_eq!(Path::new(facts["stderr"]), log);
        assert_eq!(std::fs::read_to_string(log).unwrap(), "a last word\n");
        assert!(process.wait().unwrap().success());
    }

    #[test]
    fn a_child_that_fails_says_why() {
        let text = Some("the host: is away\n  wait for it".to_owned());
        assert_eq!(outcome_of("fail"), Outcome { code: 7, text });
        let long = outcome_of("fail at length");
        assert_eq!(long.code, EXIT_FAILURE);
        assert_eq!(long.text.map(|text| text.len()), Some(MAX_TEXT_BYTES));
    }

    #[test]
    fn a_child_that_ends_without_a_word_is_noticed() {
        assert_eq!(outcome_of("print and exit"), Outcome { code: 5, text: None });
        let crashed = outcome_of("crash");
        assert_eq!(crashed.code, EXIT_FAILURE);
        let said = crashed.text.unwrap();
        assert_eq!(said, "the background process was killed by signal 6");
    }

    #[test]
    fn a_link_in_the_place_of_the_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (log, target) = (dir.path().join("log"), dir.path().join("target"));
        open_log(&target).unwrap();
        std::os::unix::fs::symlink(&target, &log).unwrap();
        let refused = open_log(&log).unwrap_err().to_string();
        assert!(refused.contains("log file"), "{refused}");
    }
}
