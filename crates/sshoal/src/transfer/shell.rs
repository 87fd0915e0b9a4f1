//! Commands on the far side, each by an ssh of its own.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use tokio::io::{AsyncRead, ReadBuf};
use transfer::shell::{Exit, Source};
use transfer::{Running, Shell, ShellError};

use crate::report::Problem;

/// Exit status with which ssh tells of itself.
const SSH_FAILED: i32 = 255;

/// Runs commands by ssh. The first host that answers is the one that is used.
pub struct SshShell {
    config: ssh::Config,
    /// ssh may ask its user on the terminal.
    may_ask: bool,
}

impl SshShell {
    /// The shell of the host that this configuration leads to.
    pub fn new(config: ssh::Config) -> SshShell {
        SshShell { config, may_ask: true }
    }
}

#[async_trait]
impl Shell for SshShell {
    async fn start(&self, command: &[u8]) -> Result<Running, ShellError> {
        let text = String::from_utf8(command.to_vec())
            .map_err(|_| ShellError::Refused("a name in the command is not UTF-8".to_owned()))?;
        // `ssh` takes a word without a slash for the name of a subsystem.
        let text = if text.contains('/') { text } else { format!(": /; {text}") };
        let config = ssh::Config { sftp_server: Some(text), ..self.config.clone() };
        // ssh asks its questions on the terminal; what the command says is for its caller.
        let dialer = ssh::Dialer::new(config, Arc::new(|_: &str| {}))
            .map_err(|error| ShellError::Refused(error.to_string()))?;
        let connected = match self.may_ask {
            true => dialer.connect().await,
            false => dialer.connect_unasked().await,
        };
        let connection = connected.map_err(|error| ShellError::Lost(error.to_string()))?;
        let (reader, writer) = connection.stream.into_split();
        let diagnosis = connection.diagnosis;
        let exit = Box::pin(async move {
            diagnosis.ended().await;
            let status = diagnosis.status().and_then(|status| status.code());
            match status {
                Some(SSH_FAILED) => Err(failed(&diagnosis)),
                status => Ok(Exit { status, stderr: diagnosis.words().into_bytes() }),
            }
        });
        Ok(Running { stdin: Box::new(writer), stdout: Box::new(Output(reader)), exit })
    }
}

/// What ssh writes.
struct Output(ssh::Reader);

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Source for Output {
    fn lend(&mut self) -> Option<OwnedFd> {
        self.0.lend().ok()
    }
}

/// Why ssh has failed.
fn failed(diagnosis: &ssh::Diagnosis) -> ShellError {
    let summary = diagnosis.summary().unwrap_or_else(|| "ssh ended".to_owned());
    let words = diagnosis.words();
    let (cause, _) = ssh::Cause::of(&words, diagnosis.status());
    match (lets_nobody_in(&words), cause.hint()) {
        (false, _) => ShellError::Lost(summary),
        (true, None) => ShellError::NoLogin(summary),
        (true, Some(hint)) => ShellError::NoLogin(format!("{summary}\n  {hint}")),
    }
}

/// How lines of ssh begin that tell no reason, but what comes before or after it: of a control master
/// that is gone, and of an end that was told already.
const BESIDE: [&str; 4] =
    ["Control socket connect(", "ControlSocket ", "Disconnected from ", "Connection reset by "];

/// How lines of ssh begin that tell of the end of a session: there was a login.
const SESSION_LOST: [&str; 3] = ["Timeout, server ", "Read from remote host ", "client_loop: "];

/// Whether ssh's words say that there was no login, whatever was to run there. Another one would ask
/// the user the same again, and count as one more that has failed. Its last line decides: what comes
/// before may be of something that went well in the end.
fn lets_nobody_in(words: &str) -> bool {
    use ssh::Cause;
    let begins = |line: &str, with: &[&str]| with.iter().any(|begin| line.starts_with(begin));
    let mut lines = words.lines().rev().map(str::trim);
    let last = lines.find(|line| !line.is_empty() && !begins(line, &BESIDE)).unwrap_or_default();
    if begins(last, &SESSION_LOST) {
        return false;
    }
    // So ssh tells of a server that is silent while keys are exchanged.
    if begins(last, &["Connection to "]) && last.ends_with(" timed out") {
        return true;
    }
    match Cause::of(last, None).0 {
        Cause::UnknownHost
        | Cause::Refused
        | Cause::TimedOut
        | Cause::Unreachable
        | Cause::ClosedEarly
        | Cause::PermissionDenied
        | Cause::TooManyFailures
        | Cause::HostKeyChanged
        | Cause::HostKeyUnknown
        | Cause::NoCommonAlgorithm
        | Cause::BadConfiguration
        | Cause::PasswordExpired => true,
        // What refuses commands may yet serve SFTP.
        Cause::Lost
        | Cause::NoSubsystem
        | Cause::CommandNotFound
        | Cause::SudoPassword
        | Cause::NoLogin
        | Cause::Other => false,
    }
}

/// The end of a command, as far as it is known.
enum End {
    Awaited(Pin<Box<dyn Future<Output = Result<Exit, ShellError>> + Send>>),
    /// What is to be said of it.
    Told(String),
}

/// A command that serves SFTP, as what a host gets for its first session.
pub fn session(running: Running) -> host::Connection {
    let Running { stdin, stdout, exit } = running;
    let end = Mutex::new(End::Awaited(exit));
    let explain = move || {
        let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
        if let End::Awaited(exit) = &mut *end {
            // It is asked for when the session has ended, and so has the command.
            let polled = exit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(ended) = polled else { return None };
            let words = match ended {
                Ok(Exit { stderr, .. }) => String::from_utf8_lossy(&stderr).trim().to_owned(),
                Err(error) => error.to_string(),
            };
            *end = End::Told(words);
        }
        match &*end {
            End::Told(words) if !words.is_empty() => {
                Some(host::Explanation::transient(crate::report::printable(words)))
            }
            _ => None,
        }
    };
    host::Connection::from_halves(stdout, stdin, Box::new(explain))
}

/// The shell of a source's first gateway; `None` where no ssh leads there.
pub fn of(configs: Vec<ssh::Config>) -> Result<Option<Arc<dyn Shell>>, Problem> {
    Ok(first(configs).map(|config| Arc::new(SshShell::new(config)) as Arc<dyn Shell>))
}

/// As [`of`]; where a login would have to ask, it fails.
pub fn unasked(configs: Vec<ssh::Config>) -> Option<Arc<dyn Shell>> {
    let shell = |config| SshShell { config, may_ask: false };
    first(configs).map(|config| Arc::new(shell(config)) as Arc<dyn Shell>)
}

fn first(configs: Vec<ssh::Config>) -> Option<ssh::Config> {
    let config = configs.into_iter().next();
    config.filter(|config| config.transport == ssh::Transport::Ssh)
}

#[cfg(test)]
mod tests {
    use super::lets_nobody_in;

    #[test]
    fn who_was_let_in_is_told_from_who_was_not() {
        let stale = "Control socket connect(/run/x): Connection refused\n";
        for words in [
            "ssh: connect to host h port 22: Connection refused",
            "ssh: connect to host h port 22: Connection timed out",
            "Connection to ::1 port 22 timed out",
            "Connection timed out during banner exchange\nConnection to ::1 port 22 timed out",
            "kex_exchange_identification: Connection closed by remote host\n\
             Connection closed by ::1 port 22",
            "kex_exchange_identification: read: Connection reset by peer\n\
             Connection reset by ::1 port 22",
            "channel 0: open failed: connect failed: Connection refused\n\
             stdio forwarding failed\nConnection closed by UNKNOWN port 65535",
            "me@h: Permission denied (publickey).\n",
            "Received disconnect from ::1 port 22:2: Too many authentication failures\n\
             Disconnected from ::1 port 22",
            "Host key for h has changed and you have requested strict checking.\n\
             Host key verification failed.",
        ] {
            assert!(lets_nobody_in(words), "{words}");
            assert!(lets_nobody_in(&format!("{stale}{words}")), "{words}");
        }
        for words in [
            "Timeout, server h not responding.",
            "Read from remote host h: Connection timed out\n\
             client_loop: send disconnect: Broken pipe",
            "client_loop: send disconnect: Connection timed out",
            "Connection to h closed by remote host.",
            "subsystem request failed on channel 0",
            "",
        ] {
            assert!(!lets_nobody_in(words), "{words}");
            assert!(!lets_nobody_in(&format!("{stale}{words}")), "{words}");
        }
    }
}
