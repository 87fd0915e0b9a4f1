//! The login of a mount, why it fails, and commands for the user about it.

use cli::{printable, word};
use ssh::{Cause, Config, Dialer, Failure, Transport};

use crate::connector::LoginError;

use super::Check;
use super::server::failed;

/// Words of options that name nobody.
const PLAIN: [&str; 6] = ["yes", "no", "none", "ask", "auto", "accept-new"];

impl LoginError {
    /// Why the server refused the login, if it did.
    pub fn refusal(&self) -> Option<&Failure> {
        match self {
            LoginError::Ssh(ssh::Error::Ssh(failure)) => {
                let is_refused =
                    matches!(failure.cause, Cause::PermissionDenied | Cause::TooManyFailures);
                is_refused.then_some(failure)
            }
            LoginError::Ssh(_) | LoginError::Sftp(_) => None,
        }
    }

    /// As [`LoginError::refusal`].
    pub fn into_refusal(self) -> Option<Failure> {
        self.refusal().cloned()
    }

    /// The check, with the command that fixes it.
    pub async fn check(&self, dialer: &Dialer) -> Check {
        let error = match self {
            LoginError::Ssh(error) => error,
            LoginError::Sftp(error) => return noise(dialer, error),
        };
        match error {
            ssh::Error::Ssh(failure) => match failure.cause {
                Cause::HostKeyUnknown => unknown_key(dialer, failure).await,
                Cause::HostKeyChanged => changed_key(dialer, failure).await,
                Cause::NoSubsystem => Check::wrong("login", failure.to_string()).remedy(
                    "-o sftp_server=/usr/lib/openssh/sftp-server names the program; or as root at \
                     the server:\n\
                     echo 'Subsystem sftp internal-sftp' >> /etc/ssh/sshd_config && \
                     systemctl reload ssh",
                ),
                _ => failed("login", &failure.to_string(), error.hint()),
            },
            _ => failed("login", &error.to_string(), error.hint()),
        }
    }
}

fn noise(dialer: &Dialer, error: &sftp::Error) -> Check {
    if dialer.config().transport != Transport::Ssh {
        return Check::wrong("login", error.to_string());
    }
    let text = error.to_string();
    let found = text.lines().next().unwrap_or_default();
    let cause = Cause::of(found, None).0;
    if cause == Cause::NoLogin {
        return failed("login", found, cause.hint());
    }
    let line = Line::of_ssh(dialer, "");
    line.name(Check::wrong("login", found).remedy(format!(
        "a login shell that prints anything, from ~/.bashrc for example, breaks SFTP:\n\
         {} true\n\
         prints what it is; this line at the beginning of ~/.bashrc at the server stops it:\n\
         case $- in *i*) ;; *) return;; esac",
        line.text
    )))
}

async fn unknown_key(dialer: &Dialer, failure: &Failure) -> Check {
    let batch = dialer.setting("batchmode").await.is_some_and(|value| value == "yes");
    let batch = if batch { " -o BatchMode=no" } else { "" };
    // Of an option that is given twice, ssh uses the first.
    let line = Line::of_ssh(dialer, &format!("{batch} -o StrictHostKeyChecking=ask"));
    let remedy = format!("this asks whether the fingerprint is the server's:\n{} exit", line.text);
    line.name(Check::wrong("host key", failure.to_string()).remedy(remedy))
}

async fn changed_key(dialer: &Dialer, failure: &Failure) -> Check {
    let name = dialer.known_name().await.unwrap_or_else(|| "HOST".to_owned());
    let file = offending_file(&failure.words);
    let option = file.map(|file| format!(" -f {}", word(file))).unwrap_or_default();
    let remedy = format!(
        "if the server was reinstalled (otherwise the connection may be intercepted):\n\
         ssh-keygen -R {}{option}",
        word(&name)
    );
    let check = Check::wrong("host key", failure.to_string()).remedy(remedy).naming(name);
    file.into_iter().fold(check, Check::naming)
}

/// The file of ssh's message `Offending ED25519 key in FILE:LINE`.
fn offending_file(words: &str) -> Option<&str> {
    let line = words.lines().find(|line| line.trim_start().starts_with("Offending "))?;
    Some(line.trim_end().split_once(" key in ")?.1.rsplit_once(':')?.0)
}

/// A command line for the user.
pub struct Line {
    pub text: String,
    names: Vec<String>,
}

impl Line {
    /// The ssh of the mount, with these options before its own.
    pub fn of_ssh(dialer: &Dialer, options: &str) -> Line {
        let command = printable(&dialer.config().ssh_command);
        // The rest may contain a password, as in `sshpass -p SECRET ssh`.
        let Some((program, _)) = command.split_once(char::is_whitespace) else {
            return Line::to(dialer, &format!("{command}{options}"));
        };
        let mut line = Line::to(dialer, &format!("{program} …{options}"));
        line.names.push(command);
        line
    }

    /// `program` with the options of the connection that ssh and ssh-copy-id have, and the host.
    pub fn to(dialer: &Dialer, program: &str) -> Line {
        let config = dialer.config();
        let (mut text, mut names) = (program.to_owned(), Vec::new());
        let mut add = |option: &str| {
            text.push(' ');
            text.push_str(&word(option));
            let value = option.split_once('=').map_or(option, |(_, value)| value);
            let is_name = !value.starts_with('-') && !PLAIN.contains(&value);
            if is_name && value.parse::<u64>().is_err() {
                names.extend([value.to_owned(), word(value)]);
            }
        };
        if let Some(port) = config.port.or(config.destination.port()) {
            add("-p");
            add(&port.to_string());
        }
        for (option, value) in options(config) {
            match option {
                'F' | 'p' => {
                    add(&format!("-{option}"));
                    add(&value);
                }
                'J' => add(&format!("-oProxyJump={value}")),
                'l' => add(&format!("-oUser={value}")),
                'o' => add(&format!("-o{value}")),
                _ => {}
            }
        }
        add(&config.destination.to_string());
        Line { text, names }
    }

    /// Adds the names that the line contains.
    pub fn name(&self, check: Check) -> Check {
        self.names.iter().fold(check, Check::naming)
    }
}

/// The arguments of ssh that name something: `-F FILE` or `-FFILE`, and so on.
pub fn options(config: &Config) -> Vec<(char, String)> {
    let mut found = Vec::new();
    let mut words = config.args.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let option = word.strip_prefix('-').and_then(|word| word.chars().next());
        let Some(option) = option.filter(|option| "FJilop".contains(*option)) else {
            continue;
        };
        let value = match &word[2..] {
            "" => words.next().unwrap_or_default().into_owned(),
            joined => joined.to_owned(),
        };
        found.push((option, value));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_line_has_the_options_of_the_connection() {
        let destination = ssh::Destination::parse(b"ann@host:dir").unwrap().0;
        let mut config = ssh::Config::new(destination);
        config.port = Some(7);
        let args =
            ["-i", "/k", "-F/my config", "-J", "gate", "-C", "-oUser=bob", "-oTCPKeepAlive=no"];
        config.args = args.map(Into::into).into();
        let mut with_password = config.clone();
        with_password.ssh_command = "sshpass -p SECRET ssh".into();
        let dialer = |config| Dialer::new(config, Arc::new(|_: &str| {})).unwrap();
        let line = Line::of_ssh(&dialer(with_password), " -v");
        assert!(line.text.starts_with("sshpass … -v -p 7 "), "{}", line.text);
        assert!(line.names.iter().any(|name| name == "sshpass -p SECRET ssh"));
        let line = Line::of_ssh(&dialer(config), "");
        let rest = "-p 7 -F '/my config' -oProxyJump=gate -oUser=bob -oTCPKeepAlive=no ann@host";
        assert_eq!(line.text, format!("ssh {rest}"));
        let check = line.name(Check::fine("login", ""));
        for name in ["/my config", "gate", "bob", "ann@host"] {
            assert!(check.names.iter().any(|it| it == name), "{name}: {:?}", check.names);
        }
        assert!(!check.names.iter().any(|it| it == "no"), "{:?}", check.names);
    }

    #[test]
    fn the_file_with_the_old_key_is_in_sshs_message() {
        let words = "@@@\nOffending ED25519 key in /home/ann/known: hosts:12\r\n  remove with:\n";
        assert_eq!(offending_file(words), Some("/home/ann/known: hosts"));
        assert_eq!(offending_file("Host key verification failed."), None);
    }
}
