//! Commands at the server, each by an ssh of its own.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use base::Mutex;
use transfer::shell::Exit;
use transfer::{Running, Shell, ShellError};

use crate::connector::SSH_FAILED;

/// Runs commands by ssh.
pub struct SshShell {
    dialer: ssh::Dialer,
    /// ssh may ask its user on the terminal.
    may_ask: bool,
}

impl SshShell {
    /// A shell where `dialer` leads. Unless it `may_ask`, a login fails where ssh would have to ask
    /// the user for something.
    pub fn new(dialer: ssh::Dialer, may_ask: bool) -> SshShell {
        SshShell { dialer, may_ask }
    }
}

#[async_trait]
impl Shell for SshShell {
    async fn start(&self, command: &[u8]) -> Result<Running, ShellError> {
        let text = String::from_utf8(command.to_vec())
            .map_err(|_| ShellError::Refused("a name in the command is not UTF-8".to_owned()))?;
        // `ssh` takes a word without a slash for the name of a subsystem.
        let text = if text.contains('/') { text } else { format!(": /; {text}") };
        let dialer = self.dialer.for_server(text);
        let connected = match self.may_ask {
            true => dialer.connect().await,
            false => dialer.connect_unasked().await,
        };
        let connection = connected.map_err(|error| ShellError::Lost(error.to_string()))?;
        let ssh::Connection { reader, writer, diagnosis, .. } = connection;
        let exit = Box::pin(async move {
            diagnosis.ended().await;
            let status = diagnosis.status().and_then(|status| status.code());
            match status {
                Some(SSH_FAILED) => Err(failed(&diagnosis)),
                status => Ok(Exit { status, stderr: diagnosis.words().into_bytes() }),
            }
        });
        Ok(Running { stdin: Box::new(writer), stdout: Box::new(reader), exit })
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

/// Prefixes of messages of ssh that contain no reason: about a dead control master, and about an
/// end that was reported before.
const BESIDE: [&str; 4] =
    ["Control socket connect(", "ControlSocket ", "Disconnected from ", "Connection reset by "];

/// Prefixes of messages of ssh about the end of a session: the login had succeeded.
const SESSION_LOST: [&str; 3] = ["Timeout, server ", "Read from remote host ", "client_loop: "];

/// Whether ssh's messages say that the login failed, whatever was to run there. Another login would
/// ask the user again, and be counted as one more failure. The last line decides: earlier ones may
/// be of steps that succeeded in the end.
fn lets_nobody_in(words: &str) -> bool {
    let begins = |line: &str, with: &[&str]| with.iter().any(|begin| line.starts_with(begin));
    let mut lines = words.lines().rev().map(str::trim);
    let last = lines.find(|line| !line.is_empty() && !begins(line, &BESIDE)).unwrap_or_default();
    if begins(last, &SESSION_LOST) {
        return false;
    }
    // ssh prints this for a server that is silent during the key exchange.
    if begins(last, &["Connection to "]) && last.ends_with(" timed out") {
        return true;
    }
    // A server that refuses commands may still serve SFTP.
    ssh::Cause::of(last, None).0.is_before_login()
}

/// A command that serves SFTP, as the first session of a host.
pub fn session(running: Running) -> host::Connection {
    let Running { stdin, stdout, exit } = running;
    let end = Mutex::new((Some(exit), String::new()));
    let explain = move || {
        let (exit, words) = &mut *end.lock();
        if let Some(awaited) = exit {
            // This is called after the end of the session, and so of the command.
            let polled = awaited.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(ended) = polled else { return None };
            *exit = None;
            *words = match ended {
                Ok(Exit { stderr, .. }) => String::from_utf8_lossy(&stderr).trim().to_owned(),
                Err(error) => error.to_string(),
            };
        }
        (!words.is_empty()).then(|| host::Explanation::transient(cli::printable(&*words)))
    };
    host::Connection::from_halves(stdout, stdin, Box::new(explain))
}

/// The shell of an operand's first gateway; `None` where no ssh leads there. See [`SshShell::new`].
pub fn of(configs: Vec<ssh::Config>, may_ask: bool) -> Option<Arc<dyn Shell>> {
    let config = configs.into_iter().next();
    let config = config.filter(|config| config.transport == ssh::Transport::Ssh)?;
    // ssh asks its questions on the terminal; the caller reports the command's messages.
    let dialer = ssh::Dialer::new(config, Arc::new(|_: &str| {})).ok()?;
    Some(Arc::new(SshShell::new(dialer, may_ask)))
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
