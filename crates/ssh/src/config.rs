//! What to connect to, and how: plain data, filled by the command line.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use crate::Destination;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// A child process, `ssh` unless another command is named.
    #[default]
    Ssh,
    /// A TCP connection to this port of the destination's host, where an SFTP server listens
    /// without ssh. Nothing is encrypted.
    DirectPort(u16),
    /// A stream socket to a virtual machine, or to the host from inside one (`vsock(7)`).
    Vsock {
        /// Context identifier of the machine.
        cid: u32,
        /// Port.
        port: u32,
    },
    /// This process's own stdin and stdout.
    Passive,
}

/// Everything about a connection that the user may choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who and where. Only its host counts for [`Transport::DirectPort`].
    pub destination: Destination,
    /// ssh's `-p`. A port in `args` given by `-p` or `-oPort` yields to this one.
    pub port: Option<u16>,
    /// What carries the bytes.
    pub transport: Transport,
    /// The program and its first arguments, separated by spaces; `\ ` is a space in a word.
    pub ssh_command: OsString,
    /// Further arguments of ssh, in order, each as a word of its own: `-F`, `file`, `-i`, `key`,
    /// `-J`, `host`, `-oKEYWORD=value`. Relative names of files count from the directory in which
    /// the [`Dialer`](crate::Dialer) is made.
    pub args: Vec<OsString>,
    /// ssh's `-C`.
    pub compression: bool,
    /// What to run on the server: `None` for the subsystem `sftp`, a word for the subsystem of
    /// that name, anything with a `/` in it for a command, such as
    /// `sudo /usr/lib/openssh/sftp-server`.
    pub sftp_server: Option<String>,
    /// Answers ssh's question for a password, on each connection.
    pub password: Option<Password>,
    /// Puts `aes128-gcm@openssh.com` in front where this processor has AES instructions and the
    /// user has named no ciphers. It moves 1.7 times the bytes of OpenSSH's default cipher.
    pub prefer_fast_cipher: bool,
}

impl Config {
    /// A connection by plain `ssh`, with nothing else asked for.
    #[must_use]
    pub fn new(destination: Destination) -> Config {
        Config {
            destination,
            port: None,
            transport: Transport::Ssh,
            ssh_command: "ssh".into(),
            args: Vec::new(),
            compression: false,
            sftp_server: None,
            password: None,
            prefer_fast_cipher: true,
        }
    }
}

/// A password, which shows itself to nobody but ssh.
#[derive(Clone)]
pub struct Password(Arc<[u8]>);

impl Password {
    /// Takes over the bytes, which are one line without its end.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Password {
        Password(bytes.into().into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown_with_its_configuration() {
        let (destination, _) = Destination::parse(b"host:").unwrap();
        let config =
            Config { password: Some(Password::new("hunter2")), ..Config::new(destination) };
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
