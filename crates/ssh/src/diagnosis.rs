//! ssh's messages, and the cause of its end that they report.
//!
//! ssh reports the reason for its end only as text on stderr. The text is kept unchanged for the
//! user; a [`Cause`] is parsed from it, for the hint and for the decision whether to retry. A
//! server can write to the same stderr, so a cause may be forged: nothing relevant to security may
//! depend on it.

use std::fmt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use base::{Mutex, printable::printable_lines};
use tokio::sync::watch;

use crate::error::Error;

/// Maximum bytes of ssh's messages that are kept, from their end. The longest relevant message (a
/// changed host key) has 900; the rest is room for a banner and `-v`.
const WORDS_MAX_BYTES: usize = 16 * 1024;

/// Exit status of ssh for its own errors.
pub const SSH_FAILED: i32 = 255;

/// How long ssh may take, after the end of the stream, to write its last message and end. It takes
/// milliseconds, unless ssh hangs.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Defines the causes, each with the results of its methods.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident: $is_before_login:ident, $is_transient:ident, $hint:expr;)*) => {
        /// Why ssh ended, according to its messages.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Cause {
            $($(#[$doc])* $cause,)*
        }

        impl Cause {
            /// Whether ssh ended before the login: then no command was started.
            pub fn is_before_login(self) -> bool {
                match self { $(Cause::$cause => $is_before_login,)* }
            }

            /// Whether a retry may succeed without a change of the configuration: the network may
            /// return, or the server may start.
            pub fn is_transient(self) -> bool {
                match self { $(Cause::$cause => $is_transient,)* }
            }

            /// What the user can do, as one phrase.
            pub fn hint(self) -> Option<&'static str> {
                match self { $(Cause::$cause => $hint,)* }
            }
        }
    };
}

const BEFORE_LOGIN: bool = true;
const NOT_BEFORE_LOGIN: bool = false;
const TRANSIENT: bool = true;
const PERMANENT: bool = false;

causes! {
    /// The host name cannot be resolved.
    // After a suspend, name servers are unreachable for a while.
    UnknownHost: BEFORE_LOGIN, TRANSIENT,
        Some("check the host name and this machine's network connection");
    /// Connection refused: no server listens on the port.
    Refused: BEFORE_LOGIN, TRANSIENT,
        Some("check that sshd runs on the host and that the port (-p) is right");
    /// No reply, when connecting or later.
    TimedOut: BEFORE_LOGIN, TRANSIENT,
        Some("check that the host is up and that no firewall blocks the connection");
    /// No route to the address.
    Unreachable: BEFORE_LOGIN, TRANSIENT,
        Some("check this machine's network connection or VPN");
    /// The server closed the connection before the login: too many logins at once, a penalty for
    /// earlier failures, a filter by address.
    ClosedEarly: BEFORE_LOGIN, TRANSIENT,
        Some("the connection was closed before the login: check that the port (-p) is sshd's, and \
        ProxyCommand or ProxyJump if one is used; if the server has too many logins, wait a \
        minute, then check MaxStartups and PerSourcePenalties in its sshd_config");
    /// The jump host, or the proxy command, made no connection.
    ProxyFailed: BEFORE_LOGIN, TRANSIENT,
        Some("check ProxyCommand or ProxyJump, which ssh -G HOST prints, and the host's name as \
        the jump host knows it");
    /// The server on the port does not use SSH.
    NotSsh: BEFORE_LOGIN, TRANSIENT,
        Some("the server on this port does not use SSH: check the port (-p)");
    /// The connection broke.
    Lost: NOT_BEFORE_LOGIN, TRANSIENT,
        Some("the network or the server failed");
    /// No authentication method succeeded.
    PermissionDenied: BEFORE_LOGIN, PERMANENT,
        Some("check that plain ssh can log in; keys with a passphrase need ssh-agent, passwords \
        a terminal or -o password_stdin");
    /// Too many keys were offered to the server.
    TooManyFailures: BEFORE_LOGIN, PERMANENT,
        Some("too many keys or passwords were refused: name the right key with -o IdentityFile=… \
        and add -o IdentitiesOnly=yes");
    /// The server's key differs from the known one.
    HostKeyChanged: BEFORE_LOGIN, PERMANENT,
        Some("if the server was reinstalled, remove the old key with ssh-keygen -R HOST; \
        otherwise the connection may be intercepted");
    /// The server's key is not known, and ssh could not prompt.
    HostKeyUnknown: BEFORE_LOGIN, PERMANENT,
        Some("log in with ssh once and accept the server's key");
    /// Client and server have no algorithm in common.
    NoCommonAlgorithm: BEFORE_LOGIN, PERMANENT,
        Some("the server is very old or very strict: see KexAlgorithms, HostKeyAlgorithms and \
        Ciphers in ssh_config(5)");
    /// ssh's configuration or command line is invalid.
    BadConfiguration: BEFORE_LOGIN, PERMANENT,
        Some("see ssh_config(5); ssh -G HOST prints the effective configuration");
    /// The server offers no such subsystem, that is, no SFTP.
    NoSubsystem: NOT_BEFORE_LOGIN, PERMANENT,
        Some("the server offers no SFTP: enable it in its sshd_config, or name the program \
        with -o sftp_server=/usr/lib/openssh/sftp-server");
    /// The SFTP server command does not exist, or may not be run.
    CommandNotFound: NOT_BEFORE_LOGIN, PERMANENT,
        Some("look for sftp-server on the server in /usr/lib/openssh, /usr/libexec or /usr/lib/ssh");
    /// `sudo` on the server requires a password.
    SudoPassword: NOT_BEFORE_LOGIN, PERMANENT,
        Some("allow the command in the server's sudoers with NOPASSWD, for this user only");
    /// The user's password on the server has expired.
    PasswordExpired: BEFORE_LOGIN, PERMANENT,
        Some("log in with ssh and set a new password");
    /// The account does not allow commands: its shell reports so.
    NoLogin: NOT_BEFORE_LOGIN, PERMANENT,
        Some("the account may not run commands: ask the server's administrator");
    /// The program at the server has ended without a message.
    ProgramEnded: NOT_BEFORE_LOGIN, TRANSIENT,
        Some("the login succeeded, and its shell or the SFTP server has ended: `ssh HOST true` shows \
        whether the account may run commands");
    /// Anything else.
    Other: NOT_BEFORE_LOGIN, TRANSIENT, None;
}

/// Phrases of ssh, the usual shells and sudo, in lower case. If several occur, the first in this
/// table is used: specific before general, reason before result.
const PHRASES: [(&str, Cause); 41] = [
    ("has changed and you have requested strict checking", Cause::HostKeyChanged),
    ("remote host identification has changed", Cause::HostKeyChanged),
    ("host key is known for", Cause::HostKeyUnknown),
    ("host key verification failed", Cause::HostKeyUnknown),
    ("could not resolve hostname", Cause::UnknownHost),
    ("permission denied (", Cause::PermissionDenied),
    // ssh prints it about passwords only. The server may disconnect before the last attempt.
    ("permission denied, please try again", Cause::PermissionDenied),
    ("too many authentication failures", Cause::TooManyFailures),
    ("no more authentication methods", Cause::PermissionDenied),
    ("not answered: ", Cause::PermissionDenied),
    ("password change required", Cause::PasswordExpired),
    ("your password has expired", Cause::PasswordExpired),
    ("subsystem request failed", Cause::NoSubsystem),
    ("sudo: a terminal is required", Cause::SudoPassword),
    ("sudo: a password is required", Cause::SudoPassword),
    ("sudo: no tty present", Cause::SudoPassword),
    ("this account is currently not available", Cause::NoLogin),
    ("this service allows sftp connections only", Cause::NoLogin),
    ("bad configuration option", Cause::BadConfiguration),
    ("terminating, ", Cause::BadConfiguration),
    ("bad owner or permissions on", Cause::BadConfiguration),
    ("can't open user config file", Cause::BadConfiguration),
    ("command-line line 0:", Cause::BadConfiguration),
    ("unknown option --", Cause::BadConfiguration),
    ("illegal option --", Cause::BadConfiguration),
    ("unable to negotiate with", Cause::NoCommonAlgorithm),
    ("connection refused", Cause::Refused),
    ("no route to host", Cause::Unreachable),
    ("network is unreachable", Cause::Unreachable),
    ("connection timed out", Cause::TimedOut),
    ("operation timed out", Cause::TimedOut),
    ("not responding", Cause::TimedOut),
    ("banner line contains invalid characters", Cause::NotSsh),
    // Of the ssh that connects to the jump host.
    ("stdio forwarding failed", Cause::ProxyFailed),
    ("kex_exchange_identification:", Cause::ClosedEarly),
    ("exceeded maxstartups", Cause::ClosedEarly),
    ("broken pipe", Cause::Lost),
    // Followed by an address, it is a connection without a login.
    ("connection reset by peer", Cause::Lost),
    ("connection reset by", Cause::ClosedEarly),
    ("closed by remote host", Cause::Lost),
    ("connection closed by", Cause::ClosedEarly),
];

/// Phrases of shells about a command that cannot be run. A server may use them in other messages,
/// so they are valid only with the matching exit statuses.
const SHELL_NOT_FOUND: [&str; 3] = ["not found", "no such file", "permission denied"];

/// Of ssh's message about a refused password that may be typed again, in lower case.
const TRY_AGAIN: &str = "please try again";

/// ssh's message about the end of a proxy that has no address, in lower case. A server that closes
/// the connection behind the proxy leads to the same message.
const PROXY_ENDED: &str = "closed by unknown port";

/// A jump host's reason for a connection that it has not made.
const JUMP_HOST_REASON: &str = "open failed: ";

impl Cause {
    /// Parses the cause, and the line that reports it, from ssh's messages and exit status.
    pub fn of(words: &str, status: Option<ExitStatus>) -> (Cause, Option<&str>) {
        let code = status.and_then(|status| status.code());
        let line_with = |phrase: &str| {
            words.lines().rev().find(|line| line.to_ascii_lowercase().contains(phrase))
        };
        // 126 and 127 are exit statuses of shells; ssh itself uses only 255.
        if matches!(code, Some(126 | 127)) {
            let line = SHELL_NOT_FOUND.iter().find_map(|phrase| line_with(phrase));
            return (Cause::CommandNotFound, line.or_else(|| last_line(words)));
        }
        let found = PHRASES.iter().find_map(|(phrase, cause)| Some((*cause, line_with(phrase)?)));
        match found {
            Some((Cause::ProxyFailed, line)) => {
                (Cause::ProxyFailed, line_with(JUMP_HOST_REASON).or(Some(line)))
            }
            Some((Cause::ClosedEarly, line)) => match proxy_not_found(words) {
                Some(line) => (Cause::ProxyFailed, Some(line)),
                None => (Cause::ClosedEarly, Some(line)),
            },
            Some((cause, line)) => (cause, Some(line)),
            None if words.trim().is_empty() && code.is_some_and(|code| code != SSH_FAILED) => {
                (Cause::ProgramEnded, None)
            }
            None => (Cause::Other, last_line(words)),
        }
    }

    /// Whether the text contains a phrase of a cause, or may be the reason for one.
    pub(crate) fn may_be_in(words: &str) -> bool {
        let words = words.to_ascii_lowercase();
        if words.contains(TRY_AGAIN) {
            // A prompt follows, which must not appear first.
            return false;
        }
        let mut phrases = PHRASES.iter().map(|(phrase, _)| *phrase);
        phrases.any(|phrase| words.contains(phrase))
            || SHELL_NOT_FOUND.iter().any(|phrase| words.contains(phrase))
            || words.contains(JUMP_HOST_REASON)
    }
}

/// A shell's message that the proxy command cannot be run. It begins with the name of the shell, or
/// says what was not found; ssh's own messages about missing files do neither.
fn proxy_not_found(words: &str) -> Option<&str> {
    if !words.to_ascii_lowercase().contains(PROXY_ENDED) {
        return None;
    }
    let is_shells = |line: &&str| {
        let line = line.to_ascii_lowercase();
        let names_shell = line.split_once(':').is_some_and(|(name, _)| name.ends_with("sh"));
        line.contains("command not found")
            || names_shell && SHELL_NOT_FOUND.iter().any(|phrase| line.contains(phrase))
    };
    words.lines().rev().find(is_shells)
}

fn last_line(words: &str) -> Option<&str> {
    words.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

/// The end of an ssh, or of the wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The cause.
    pub cause: Cause,
    /// Its last messages, escaped for a terminal; may be empty.
    pub words: String,
    /// Its exit status; `None` while it still runs.
    pub status: Option<ExitStatus>,
}

impl std::error::Error for Failure {}

/// The relevant line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (Cause::of(&self.words, self.status).1, self.status) {
            (Some(line), _) if line.starts_with("ssh: ") => f.write_str(line.trim()),
            (Some(line), _) => write!(f, "ssh: {}", line.trim()),
            (None, Some(status)) => write!(f, "ssh ended without a message ({status})"),
            (None, None) => f.write_str("ssh is still running, but the server has sent nothing"),
        }
    }
}

/// Reports why a connection ended. Cheap to clone; outlives the connection.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// `None` without a child.
    child: Option<Arc<Record>>,
}

/// The messages and exit status of a child, written by its attendant.
#[derive(Debug)]
pub(crate) struct Record {
    /// Locked only while a few bytes are copied.
    words: Mutex<Vec<u8>>,
    status: watch::Sender<Option<ExitStatus>>,
}

impl Record {
    pub(crate) fn new() -> Arc<Record> {
        Arc::new(Record { words: Mutex::default(), status: watch::Sender::new(None) })
    }

    /// Appends to the messages; the oldest bytes are dropped.
    pub(crate) fn append(&self, bytes: &[u8]) {
        let mut words = self.words.lock();
        words.extend_from_slice(bytes);
        let excess = words.len().saturating_sub(WORDS_MAX_BYTES);
        words.drain(..excess);
    }

    /// The last messages, escaped for a terminal.
    pub(crate) fn words(&self) -> String {
        printable_lines(&self.words.lock())
    }

    pub(crate) fn ended(&self, status: ExitStatus) {
        self.status.send_replace(Some(status));
    }
}

impl Diagnosis {
    pub(crate) fn of(record: Arc<Record>) -> Diagnosis {
        Diagnosis { child: Some(record) }
    }

    /// ssh's last messages so far, escaped for a terminal. Empty if there are none, and for a
    /// connection without ssh.
    pub fn words(&self) -> String {
        self.child.as_ref().map(|record| record.words()).unwrap_or_default()
    }

    /// ssh's exit status; `None` while it runs, and for a connection without ssh.
    pub fn status(&self) -> Option<ExitStatus> {
        self.child.as_ref().and_then(|record| *record.status.borrow())
    }

    /// Why the connection ended, as far as it is known now, as one line for a message; `None` if
    /// nothing is known. Complete once the stream has reported its end.
    pub fn summary(&self) -> Option<String> {
        let failure = self.failure()?;
        (failure.status.is_some() || !failure.words.is_empty()).then(|| failure.to_string())
    }

    /// Why the connection ended. Call it when the stream has ended, or carries something other than
    /// SFTP. Waits at most two seconds for ssh to end.
    pub async fn explain(&self) -> Error {
        self.settled().await;
        self.failure().map_or(Error::Closed, Error::Ssh)
    }

    /// Waits until ssh has ended and all its messages are known, or until the time-out.
    pub(crate) async fn settled(&self) {
        // Both outcomes are fine.
        let _ = tokio::time::timeout(LAST_WORDS_TIMEOUT, self.ended()).await;
    }

    /// Waits until the child has ended and was reaped; returns at once without a child.
    pub async fn ended(&self) {
        if let Some(record) = &self.child {
            // The sender is in the record, so it still exists.
            let _ = record.status.subscribe().wait_for(Option::is_some).await;
        }
    }

    fn failure(&self) -> Option<Failure> {
        self.child.as_ref()?;
        let (words, status) = (self.words(), self.status());
        let (cause, _) = Cause::of(&words, status);
        Some(Failure { cause, words, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn exit(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn every_message_that_users_meet_has_its_cause() {
        let table = [
            ("ssh: Could not resolve hostname x: Name or service not known", Cause::UnknownHost),
            ("ssh: connect to host h port 22: Connection refused", Cause::Refused),
            ("ssh: connect to host h port 22: Connection timed out", Cause::TimedOut),
            ("Connection timed out during banner exchange", Cause::TimedOut),
            ("Timeout, server h not responding.", Cause::TimedOut),
            ("ssh: connect to host h port 22: No route to host", Cause::Unreachable),
            ("ssh: connect to host h port 22: Network is unreachable", Cause::Unreachable),
            ("me@h: Permission denied (publickey,password).", Cause::PermissionDenied),
            (
                "Received disconnect from ::1 port 22:2: Too many authentication failures\n\
                 Disconnected from ::1 port 22",
                Cause::TooManyFailures,
            ),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n\
                 Host key for h has changed and you have requested strict checking.\n\
                 Host key verification failed.",
                Cause::HostKeyChanged,
            ),
            (
                "No ED25519 host key is known for h and you have requested strict checking.\n\
                 Host key verification failed.",
                Cause::HostKeyUnknown,
            ),
            ("subsystem request failed on channel 0", Cause::NoSubsystem),
            ("kex_exchange_identification: Connection closed by remote host", Cause::ClosedEarly),
            (
                "kex_exchange_identification: read: Connection reset by peer\n\
                 Connection reset by ::1 port 22",
                Cause::ClosedEarly,
            ),
            ("Connection reset by ::1 port 22", Cause::ClosedEarly),
            (
                "kex_exchange_identification: Connection closed by remote host\n\
                 Connection closed by UNKNOWN port 65535",
                Cause::ClosedEarly,
            ),
            (
                "/bin/sh: 1: exec: /x/connect: not found\n\
                 kex_exchange_identification: Connection closed by remote host\n\
                 Connection closed by UNKNOWN port 65535",
                Cause::ProxyFailed,
            ),
            (
                "Could not create directory '/x/.ssh' (No such file or directory).\n\
                 Warning: Identity file /x/key not accessible: No such file or directory.\n\
                 kex_exchange_identification: Connection closed by remote host\n\
                 Connection closed by UNKNOWN port 65535",
                Cause::ClosedEarly,
            ),
            (
                "channel 0: open failed: connect failed: Name or service not known\n\
                 stdio forwarding failed\n\
                 kex_exchange_identification: Connection closed by remote host\n\
                 Connection closed by UNKNOWN port 65535",
                Cause::ProxyFailed,
            ),
            (
                "channel 0: open failed: connect failed: Connection refused\n\
                 stdio forwarding failed",
                Cause::Refused,
            ),
            (
                "kex_exchange_identification: banner line contains invalid characters\n\
                 banner exchange: Connection to ::1 port 80: invalid format",
                Cause::NotSsh,
            ),
            (
                "Permission denied, please try again.\n\
                 Received disconnect from ::1 port 22:2: Too many authentication failures",
                Cause::PermissionDenied,
            ),
            (
                "Permission denied, please try again.\nme@h: Permission denied (password).",
                Cause::PermissionDenied,
            ),
            ("Read from remote host h: Connection reset by peer", Cause::Lost),
            ("not answered: me@gate's password:", Cause::PermissionDenied),
            ("client_loop: send disconnect: Broken pipe", Cause::Lost),
            ("Connection to h closed by remote host.", Cause::Lost),
            (
                "Unable to negotiate with ::1 port 22: no matching host key",
                Cause::NoCommonAlgorithm,
            ),
            ("command-line: line 0: Bad configuration option: x", Cause::BadConfiguration),
            ("sudo: a password is required", Cause::SudoPassword),
            ("segfault or whatever", Cause::Other),
            ("", Cause::Other),
        ];
        for (words, cause) in table {
            assert_eq!(Cause::of(words, exit(255)).0, cause, "{words}");
        }
    }

    #[test]
    fn a_missing_command_is_recognised_by_the_exit_status_of_the_shell() {
        for words in ["bash: /x/sftp-server: No such file or directory", "sh: 1: x: not found"] {
            assert_eq!(Cause::of(words, exit(127)), (Cause::CommandNotFound, Some(words)));
            assert_eq!(Cause::of(words, exit(1)).0, Cause::Other);
        }
    }

    #[test]
    fn a_failure_shows_the_line_that_matters() {
        let failure = |words: &str, status| {
            let cause = Cause::of(words, status).0;
            Failure { cause, words: words.to_owned(), status }.to_string()
        };
        let words = "Welcome!\nme@h: Permission denied (publickey).\nbye\n";
        assert_eq!(failure(words, exit(255)), "ssh: me@h: Permission denied (publickey).");
        let words = "ssh: connect to host h port 1: Connection refused\n";
        assert_eq!(failure(words, exit(255)), words.trim());
        let words = "sh: /x/connect: No such file or directory\n\
             kex_exchange_identification: Connection closed by remote host\n\
             Connection closed by UNKNOWN port 65535\n";
        let shown = failure(words, exit(255));
        assert_eq!(shown, "ssh: sh: /x/connect: No such file or directory");
        let words = "channel 0: open failed: connect failed: Name or service not known\n\
             stdio forwarding failed\nkex_exchange_identification: Connection closed\n";
        let shown = failure(words, exit(255));
        assert_eq!(shown, format!("ssh: {}", words.lines().next().unwrap()));
        assert_eq!(failure("", exit(3)), "ssh ended without a message (exit status: 3)");
        assert_eq!(Cause::of("", exit(1)).0, Cause::ProgramEnded);
        assert_eq!(failure("", None), "ssh is still running, but the server has sent nothing");
    }

    #[test]
    fn words_are_bounded_and_harmless() {
        let record = Record::new();
        record.append(&[b'a'; 3 * WORDS_MAX_BYTES]);
        record.append(b"\x1b[2Jend\xff\r\n");
        let words = Diagnosis::of(record.clone()).words();
        assert!(words.ends_with("aa\\u{1b}[2Jend\\xff\n"), "{}", &words[words.len() - 30..]);
        assert_eq!(record.words.lock().len(), WORDS_MAX_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn an_ssh_that_does_not_end_is_not_waited_for_long() {
        let record = Record::new();
        let diagnosis = Diagnosis::of(record.clone());
        let Error::Ssh(failure) = diagnosis.explain().await else { panic!("no failure") };
        assert_eq!((failure.status, failure.cause), (None, Cause::Other));
        assert_eq!(diagnosis.summary(), None);

        record.append(b"gone\n");
        record.ended(ExitStatus::from_raw(255 << 8));
        diagnosis.ended().await;
        assert_eq!(diagnosis.summary().as_deref(), Some("ssh: gone"));
        assert!(matches!(Diagnosis::default().explain().await, Error::Closed));
    }
}
