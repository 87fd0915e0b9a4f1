//! The ssh child process: how it is started, and the task that serves it until it is reaped.
//!
//! How it is started:
//! - One end of a socket pair is its stdin and stdout. Compared with two pipes, reading is
//!   17 % and writing 20 % faster, with a third less CPU time of this process (measured).
//! - It stays in this process's session and foreground process group, so that it can prompt on the
//!   terminal for a passphrase or a host key. With a password that is known or may be kept, it has
//!   a session and a pseudo-terminal of its own.
//! - SIGINT, SIGQUIT and SIGHUP are ignored, and ssh keeps them ignored: Ctrl-C on a mount in the
//!   foreground is for this process, and the connection must last until all data was sent.
//! - It starts in `/`, without `OLDPWD` and `PWD`: an ssh that accesses a directory of the mount
//!   that it serves would wait for itself forever.
//!
//! One task, the attendant, owns the child. Only this task reads the child's stderr, answers its
//! prompts, kills it and reaps it, so that no process id is used after it was reaped.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::printable::Pieces;
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::oneshot;

use crate::diagnosis::{Cause, Diagnosis, Record};
use crate::dialer::StderrHook;
use crate::error::{Error, Result};
use crate::password::{Answers, Terminal, Unanswered};
use crate::stream::{self, Reader, Writer};

/// Buffer size requested for each end of the socket pair, in bytes: OpenSSH's window, so that all
/// data in flight fits. Reads are 14 % faster than with the default of 208 KiB (measured). Without
/// privilege the kernel limits it to `net.core.wmem_max`.
const SOCKET_BUFFER_BYTES: usize = 2 * 1024 * 1024;

/// How long the child may run after the end of its stdin: a round trip, to send its remaining data
/// and to receive the server's end of file.
const FAREWELL: Duration = Duration::from_millis(500);

/// Time between SIGTERM, upon which ssh ends its helpers, and SIGKILL.
const TERMINATION: Duration = Duration::from_secs(1);

/// How long a message that may be the reason for ssh's end is held back from the hook. ssh ends
/// right after such a message, on a busy machine half a second later, and the error of the failed
/// connection contains the line already. A banner is shown at once: a password prompt may follow.
const KEPT_BACK: Duration = Duration::from_secs(1);

/// Starts `words` (the program, then its arguments).
///
/// Must be called within a tokio runtime.
pub(crate) fn start(
    words: &[OsString],
    answers: Option<Answers>,
    hook: StderrHook,
) -> Result<((Reader, Writer), Diagnosis, Option<tcp::Processes>)> {
    let local = |what| move |source| Error::Local { what, source };
    let (ours, childs) = UnixStream::pair().map_err(local("create a socket pair"))?;
    for end in [&ours, &childs] {
        enlarge_buffers(end.as_fd());
    }
    let is_known = matches!(answers, Some(Answers::Known(..)));
    let terminal = answers.map(Terminal::open).transpose();
    let terminal = terminal.map_err(local("open a pseudo-terminal"))?;

    let (program, args) = words.split_first().ok_or(Error::EmptyCommand)?;
    let stdin = childs.try_clone().map_err(local("duplicate a socket"))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir("/")
        .env_remove("OLDPWD")
        .env_remove("PWD")
        .stdin(Stdio::from(OwnedFd::from(stdin)))
        .stdout(Stdio::from(OwnedFd::from(childs)))
        .stderr(Stdio::piped())
        // In case the runtime ends before the attendant has ended the child.
        .kill_on_drop(true);
    if is_known {
        // A graphical prompt would not be answered.
        command.env("SSH_ASKPASS_REQUIRE", "never");
    }
    prepare(&mut command, terminal.as_ref().map(Terminal::childs_side))
        .map_err(local("duplicate a terminal"))?;
    let started = command.spawn();
    // The command holds the child's end of the socket pair, which only the child may keep.
    drop(command);
    let child = started.map_err(|source| Error::Spawn {
        program: Path::new(program).display().to_string(),
        source,
    })?;

    let record = Record::new();
    let (hangup, hung_up) = oneshot::channel();
    let diagnosis = Diagnosis::of(record.clone());
    let halves = stream::of_child(ours.into(), hangup, &diagnosis);
    let link = child.id().and_then(|pid| tcp::Processes::of_child(pid).ok());
    // Even without a stream: the child has to be reaped.
    let (pieces, kept_back) = (Pieces::default(), String::new());
    let attendant = Attendant { child, terminal, hook, pieces, kept_back, record };
    tokio::spawn(attendant.attend(hung_up));
    Ok((halves.map_err(local("poll a socket"))?, diagnosis, link))
}

/// Sets the buffer sizes: without limit as root, else within the kernel's limits. Smaller buffers
/// are only slower.
fn enlarge_buffers(socket: BorrowedFd<'_>) {
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
}

/// Code of the child between fork and exec.
fn prepare(command: &mut Command, terminal: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let terminal = terminal.map(|terminal| terminal.try_clone_to_owned()).transpose()?;
    let in_child = move || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            // SAFETY: `signal` is async-signal-safe, and `SIG_IGN` runs no handler.
            if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        if let Some(terminal) = &terminal {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(terminal)?;
        }
        Ok(())
    };
    // SAFETY: after fork, in a process with threads, only async-signal-safe calls may be made:
    // `in_child` only makes system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(in_child) };
    Ok(())
}

/// The task that serves one child.
struct Attendant {
    child: Child,
    terminal: Option<Terminal>,
    hook: StderrHook,
    /// Splits its messages into printable pieces.
    pieces: Pieces,
    /// Messages held back from the hook: an incomplete line, or all from the first that may be the
    /// reason for the end.
    kept_back: String,
    record: Arc<Record>,
}

/// The stages of a child's end. [`Attendant::attend`] makes each transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The stream is in use.
    Serving,
    /// The stream was dropped; the child should end on its own.
    Farewell,
    /// SIGTERM was sent.
    Terminated,
    /// SIGKILL was sent; the child will be reaped soon.
    Killed,
}

impl Attendant {
    async fn attend(mut self, mut hung_up: oneshot::Receiver<()>) {
        let mut stderr = self.child.stderr.take();
        let mut stage = Stage::Serving;
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        let kept_back = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(kept_back);
        let mut buffer = vec![0; 4096];
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status,
                words = read_words(stderr.as_mut(), &mut buffer), if stderr.is_some() => {
                    match words {
                        Some(words) => {
                            let was_empty = self.kept_back.is_empty();
                            self.note(words);
                            if was_empty {
                                kept_back.as_mut().reset(tokio::time::Instant::now() + KEPT_BACK);
                            }
                        }
                        None => stderr = None,
                    }
                }
                () = &mut kept_back, if !self.kept_back.is_empty() => {
                    (self.hook)(&std::mem::take(&mut self.kept_back));
                }
                unanswered = serve(self.terminal.as_mut()), if self.terminal.is_some() => {
                    match unanswered {
                        Ok(Unanswered { question, is_foreign }) => {
                            self.note(format!("not answered: {question}\n").as_bytes());
                            if is_foreign && matches!(stage, Stage::Serving | Stage::Farewell) {
                                stage = self.end_all();
                                timer.as_mut().reset(tokio::time::Instant::now() + TERMINATION);
                            }
                        }
                        Err(error) => {
                            tracing::debug!("cannot use the pseudo-terminal of ssh: {error}");
                            self.terminal = None;
                        }
                    }
                }
                _ = &mut hung_up, if stage == Stage::Serving => {
                    stage = Stage::Farewell;
                    self.terminal.iter().for_each(Terminal::release);
                    timer.as_mut().reset(tokio::time::Instant::now() + FAREWELL);
                }
                () = &mut timer, if matches!(stage, Stage::Farewell | Stage::Terminated) => {
                    stage = self.press(stage);
                    timer.as_mut().reset(tokio::time::Instant::now() + TERMINATION);
                }
            }
        };
        if let Some(stderr) = stderr {
            self.note_rest(stderr);
        }
        self.show_rest(status.as_ref().ok().copied());
        match status {
            Ok(status) => {
                tracing::debug!("ssh ended: {status}");
                self.record.ended(status);
            }
            Err(error) => {
                // Other code of this process has reaped it, which violates the contract.
                tracing::warn!("cannot wait for ssh: {error}");
                self.record.ended(std::process::ExitStatus::default());
            }
        }
    }

    /// Moves the child to the next stage.
    fn press(&mut self, stage: Stage) -> Stage {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        if stage == Stage::Farewell
            && pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok())
        {
            return Stage::Terminated;
        }
        // An error means that it has already ended.
        let _ = self.child.start_kill();
        Stage::Killed
    }

    /// Ends the child and all processes it has started on its terminal, which has a session of its
    /// own.
    fn end_all(&mut self) -> Stage {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        // An error means that all have already ended.
        let _ = pid.map(|pid| kill_process_group(pid, Signal::TERM));
        Stage::Terminated
    }

    fn note(&mut self, words: &[u8]) {
        self.record.append(words);
        // A whole line is held back only with a possible reason, and then all that follows.
        let has_reason = self.kept_back.contains('\n');
        self.kept_back.push_str(&self.pieces.next(words));
        // dash writes the parts of a line one after the other.
        let is_whole = self.kept_back.ends_with('\n');
        if is_whole && !has_reason && !Cause::may_be_in(&self.kept_back) {
            (self.hook)(&std::mem::take(&mut self.kept_back));
        }
    }

    /// Shows the messages held back, except the reason for the end, and that the connection was
    /// closed before the login, which follows from it.
    fn show_rest(&mut self, status: Option<ExitStatus>) {
        self.kept_back.push_str(&self.pieces.last());
        let words = self.record.words();
        let (_, reason) = Cause::of(&words, status);
        let is_reason = |line: &&str| {
            reason.is_some_and(|reason| reason.trim() == line.trim())
                || Cause::of(line, None).0 == Cause::ClosedEarly
        };
        let rest = self.kept_back.split_inclusive('\n').filter(|line| !is_reason(line));
        let rest: String = rest.collect();
        if !rest.is_empty() {
            (self.hook)(&rest);
        }
    }

    /// Reads what the child left in the pipe when it ended. A helper of it (a `ControlPersist`
    /// master) may hold the other end open, so this does not wait for the end of the pipe.
    fn note_rest(&mut self, stderr: ChildStderr) {
        let Ok(stderr) = stderr.into_owned_fd() else { return };
        let mut buffer = [0; 4096];
        // Bounded by the capacity of a pipe, in case the helper continues to write.
        for _ in 0..64 {
            match rustix::io::ioctl_fionread(&stderr) {
                Ok(waiting) if waiting > 0 => (),
                _ => return,
            }
            match rustix::io::read(&stderr, &mut buffer[..]) {
                Ok(read) if read > 0 => self.note(&buffer[..read]),
                _ => return,
            }
        }
    }
}

/// The next bytes of stderr; `None` at its end.
async fn read_words<'a>(
    stderr: Option<&mut ChildStderr>,
    buffer: &'a mut [u8],
) -> Option<&'a [u8]> {
    let read = stderr?.read(buffer).await.ok()?;
    (read > 0).then(|| &buffer[..read])
}

async fn serve(terminal: Option<&mut Terminal>) -> io::Result<Unanswered> {
    match terminal {
        Some(terminal) => terminal.serve().await,
        None => std::future::pending().await,
    }
}
