//! What ssh had to say, and what it means.
//!
//! ssh tells its reasons in plain text on stderr and in no other way. The text is kept as it is,
//! for the user; a [`Cause`] is read out of it for the hint and for the decision to try again.
//! A server can write to the same stderr, so a cause may be a lie: nothing that matters for
//! safety may depend on it.

use std::fmt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::printable::printable_lines;
use tokio::sync::watch;

use crate::error::Error;

/// Most bytes of ssh's words that are kept, from their end. The longest message that matters
/// (a changed host key) has 900; the rest is room for a banner and `-v`.
const WORDS_MAX_BYTES: usize = 16 * 1024;

/// How long ssh may take to finish its sentence and end, once the stream is at its end. It takes
/// milliseconds, unless ssh is stuck.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Why ssh ended, as far as its words tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The name has no address.
    UnknownHost,
    /// Nobody listens on the port.
    Refused,
    /// No answer, when connecting or later.
    TimedOut,
    /// There is no way to the address.
    Unreachable,
    /// The server closed the connection before the login: too many logins at once, a penalty for
    /// earlier failures, a filter by address.
    ClosedEarly,
    /// The connection broke.
    Lost,
    /// The server knows the user by none of the ways that were tried.
    PermissionDenied,
    /// So many keys were offered that the server had enough.
    TooManyFailures,
    /// The server's key is not the known one.
    HostKeyChanged,
    /// The server's key is not known, and nobody could be asked.
    HostKeyUnknown,
    /// Both sides have no algorithm in common.
    NoCommonAlgorithm,
    /// ssh does not like its configuration or its command line.
    BadConfiguration,
    /// The server offers no such subsystem, that is, no SFTP.
    NoSubsystem,
    /// The command that should serve SFTP is not there, or may not be run.
    CommandNotFound,
    /// `sudo` on the server wants a password.
    SudoPassword,
    /// The user's password on the server is too old.
    PasswordExpired,
    /// The account is not made for this: its shell says so.
    NoLogin,
    /// Anything else.
    Other,
}

/// Phrases of ssh, of the usual shells and of sudo, in lower case. Of several that occur the
/// first in this table counts: the special before the general, the reason before the result.
const PHRASES: [(&str, Cause); 38] = [
    ("has changed and you have requested strict checking", Cause::HostKeyChanged),
    ("remote host identification has changed", Cause::HostKeyChanged),
    ("host key is known for", Cause::HostKeyUnknown),
    ("host key verification failed", Cause::HostKeyUnknown),
    ("could not resolve hostname", Cause::UnknownHost),
    ("too many authentication failures", Cause::TooManyFailures),
    ("permission denied (", Cause::PermissionDenied),
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
    ("kex_exchange_identification:", Cause::ClosedEarly),
    ("exceeded maxstartups", Cause::ClosedEarly),
    ("broken pipe", Cause::Lost),
    // With an address behind it, it is of a connection without a login.
    ("connection reset by peer", Cause::Lost),
    ("connection reset by", Cause::ClosedEarly),
    ("closed by remote host", Cause::Lost),
    ("connection closed by", Cause::ClosedEarly),
];

/// What a shell says of a command that it cannot run. A server may say the same of anything, so
/// these count only with the exit statuses that go with them.
const SHELL_NOT_FOUND: [&str; 3] = ["not found", "no such file", "permission denied"];

impl Cause {
    /// Reads the cause, and the line that tells it, out of ssh's words and exit status.
    #[must_use]
    pub fn of(words: &str, status: Option<ExitStatus>) -> (Cause, Option<&str>) {
        let code = status.and_then(|status| status.code());
        let line_with = |phrase: &str| {
            words.lines().rev().find(|line| line.to_ascii_lowercase().contains(phrase))
        };
        // 126 and 127 are a shell's own; ssh itself ends with 255 only.
        if matches!(code, Some(126 | 127)) {
            let line = SHELL_NOT_FOUND.iter().find_map(|phrase| line_with(phrase));
            return (Cause::CommandNotFound, line.or_else(|| last_line(words)));
        }
        for (phrase, cause) in PHRASES {
            if let Some(line) = line_with(phrase) {
                return (cause, Some(line));
            }
        }
        (Cause::Other, last_line(words))
    }

    /// Whether words tell of a cause.
    pub(crate) fn may_be_in(words: &str) -> bool {
        let words = words.to_ascii_lowercase();
        PHRASES.iter().any(|(phrase, _)| words.contains(phrase))
    }

    /// What the user can do, as one sentence.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            Cause::UnknownHost => "check the host name and this machine's network connection",
            Cause::Refused => "check that sshd runs on the host and that the port (-p) is right",
            Cause::TimedOut => {
                "check that the host is up and that no firewall blocks the connection"
            }
            Cause::Unreachable => "check this machine's network connection or VPN",
            Cause::ClosedEarly => {
                "the server closed the connection before the login: wait a minute, then check \
                 MaxStartups and PerSourcePenalties in its sshd_config"
            }
            Cause::Lost => "the network or the server failed",
            Cause::PermissionDenied => {
                "check that plain ssh can log in; keys with a passphrase need ssh-agent, passwords \
                 a terminal or -o password_stdin"
            }
            Cause::TooManyFailures => {
                "name the right key with -o IdentityFile=… and add -o IdentitiesOnly=yes"
            }
            Cause::HostKeyChanged => {
                "if the server was reinstalled, remove the old key with ssh-keygen -R HOST; \
                 otherwise the connection may be intercepted"
            }
            Cause::HostKeyUnknown => "log in with ssh once and accept the server's key",
            Cause::NoCommonAlgorithm => {
                "the server is very old or very strict: see KexAlgorithms, HostKeyAlgorithms and \
                 Ciphers in ssh_config(5)"
            }
            Cause::BadConfiguration => {
                "see ssh_config(5); ssh -G HOST prints the effective configuration"
            }
            Cause::NoSubsystem => {
                "the server offers no SFTP: enable it in its sshd_config, or name the program \
                 with -o sftp_server=/usr/lib/openssh/sftp-server"
            }
            Cause::CommandNotFound => {
                "look for sftp-server on the server in /usr/lib/openssh, /usr/libexec or /usr/lib/ssh"
            }
            Cause::SudoPassword => {
                "allow the command in the server's sudoers with NOPASSWD, for this user only"
            }
            Cause::PasswordExpired => "log in with ssh and set a new password",
            Cause::NoLogin => "the account may not run commands: ask the server's administrator",
            Cause::Other => return None,
        })
    }

    /// Whether the same attempt may succeed later without anybody changing anything: a network
    /// that comes back, a server that starts.
    #[must_use]
    pub fn is_transient(self) -> bool {
        match self {
            // After a suspend there is no name server for a while.
            Cause::UnknownHost
            | Cause::Refused
            | Cause::TimedOut
            | Cause::Unreachable
            | Cause::ClosedEarly
            | Cause::Lost
            | Cause::Other => true,
            Cause::PermissionDenied
            | Cause::TooManyFailures
            | Cause::HostKeyChanged
            | Cause::HostKeyUnknown
            | Cause::NoCommonAlgorithm
            | Cause::BadConfiguration
            | Cause::NoSubsystem
            | Cause::CommandNotFound
            | Cause::SudoPassword
            | Cause::PasswordExpired
            | Cause::NoLogin => false,
        }
    }
}

fn last_line(words: &str) -> Option<&str> {
    words.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

/// An ssh that ended, or that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What it means.
    pub cause: Cause,
    /// All that is left of its words, safe for a terminal, perhaps empty.
    pub words: String,
    /// How it ended; `None` while it still runs.
    pub status: Option<ExitStatus>,
}

impl std::error::Error for Failure {}

/// The line that matters.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (Cause::of(&self.words, self.status).1, self.status) {
            (Some(line), _) if line.starts_with("ssh: ") => f.write_str(line.trim()),
            (Some(line), _) => write!(f, "ssh: {}", line.trim()),
            (None, Some(status)) => write!(f, "ssh gave no reason ({status})"),
            (None, None) => f.write_str("ssh is still running, but the server has sent nothing"),
        }
    }
}

/// Where one can learn why a connection ended. Cheap to clone; outlives the connection.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// `None` where there is no child.
    child: Option<Arc<Record>>,
}

/// What a child's attendant writes down.
#[derive(Debug)]
pub(crate) struct Record {
    /// Held for the copying of a few bytes only.
    words: Mutex<Vec<u8>>,
    status: watch::Sender<Option<ExitStatus>>,
}

impl Record {
    pub(crate) fn new() -> Arc<Record> {
        Arc::new(Record { words: Mutex::default(), status: watch::Sender::new(None) })
    }

    /// Adds to the words; the oldest are dropped.
    pub(crate) fn append(&self, bytes: &[u8]) {
        let mut words = self.lock();
        words.extend_from_slice(bytes);
        let excess = words.len().saturating_sub(WORDS_MAX_BYTES);
        words.drain(..excess);
    }

    /// All that is left of them, safe for a terminal.
    pub(crate) fn words(&self) -> String {
        printable_lines(&self.lock())
    }

    pub(crate) fn ended(&self, status: ExitStatus) {
        self.status.send_replace(Some(status));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Diagnosis {
    pub(crate) fn of(record: Arc<Record>) -> Diagnosis {
        Diagnosis { child: Some(record) }
    }

    /// ssh's words so far, from their end, safe for a terminal. Empty when it said nothing, and
    /// for a connection without ssh.
    #[must_use]
    pub fn words(&self) -> String {
        self.child.as_ref().map(|record| record.words()).unwrap_or_default()
    }

    /// How ssh ended; `None` while it runs, and for a connection without ssh.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        self.child.as_ref().and_then(|record| *record.status.borrow())
    }

    /// What ended the connection as far as it is known now, as one line for a message; `None`
    /// when nothing is known. Complete once the stream has told its end.
    #[must_use]
    pub fn summary(&self) -> Option<String> {
        let failure = self.failure()?;
        (failure.status.is_some() || !failure.words.is_empty()).then(|| failure.to_string())
    }

    /// Why the connection ended. To be called when the stream is at its end, or does not speak
    /// SFTP. Waits at most two seconds for ssh to end.
    pub async fn explain(&self) -> Error {
        self.settled().await;
        self.failure().map_or(Error::Closed, Error::Ssh)
    }

    /// Returns when ssh has ended and all its words are known, or does not do so in time.
    pub(crate) async fn settled(&self) {
        // Both outcomes are fine.
        let _ = tokio::time::timeout(LAST_WORDS_TIMEOUT, self.ended()).await;
    }

    /// Returns when the child has ended and was reaped; at once where there is none.
    pub async fn ended(&self) {
        if let Some(record) = &self.child {
            // The sender is in the record, so it cannot be gone.
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
    fn a_missing_command_is_told_by_the_shells_status() {
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
        assert_eq!(failure("", exit(3)), "ssh gave no reason (exit status: 3)");
        assert_eq!(failure("", None), "ssh is still running, but the server has sent nothing");
    }

    #[test]
    fn words_are_bounded_and_harmless() {
        let record = Record::new();
        record.append(&[b'a'; 3 * WORDS_MAX_BYTES]);
        record.append(b"\x1b[2Jend\xff\r\n");
        let words = Diagnosis::of(record.clone()).words();
        assert!(words.ends_with("aa\\u{1b}[2Jend\\xff\n"), "{}", &words[words.len() - 30..]);
        assert_eq!(record.lock().len(), WORDS_MAX_BYTES);
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
