//! The configuration of connections: plain data, filled from the command line.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::termios::{LocalModes, isatty};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::Destination;
use crate::modes::ChangedModes;
use crate::secret::Secret;

/// The transport of the byte stream.
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

/// What happens to a password that the user types at ssh's prompt on the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TypedPassword {
    /// ssh reads it from the terminal itself.
    #[default]
    Unseen,
    /// It passes through this process, which notes only that there was one.
    Noted,
    /// It passes through this process, which keeps it for further connections.
    Kept,
}

/// The settings of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// User and host. [`Transport::DirectPort`] uses only the host.
    pub destination: Destination,
    /// ssh's `-p`. Takes precedence over a port in `args` (`-p`, `-oPort`).
    pub port: Option<u16>,
    /// The transport of the byte stream.
    pub transport: Transport,
    /// The program and its first arguments, separated by spaces; `\ ` is a space in a word. A path
    /// of the program is absolute.
    pub ssh_command: OsString,
    /// Further arguments of ssh, in order, each as a word of its own: `-F`, `file`, `-i`, `key`,
    /// `-J`, `host`, `-oKEYWORD=value`. File names are absolute, since ssh is started in `/`.
    pub args: Vec<OsString>,
    /// The SFTP server: `None` for the subsystem `sftp`, a word for the subsystem of that name,
    /// text that contains a `/` for a command, such as
    /// `sudo /usr/lib/openssh/sftp-server`.
    pub sftp_server: Option<String>,
    /// The password, sent at ssh's password prompt on each connection.
    pub password: Option<Password>,
    /// What happens to a password that the user types on the terminal.
    pub typed_password: TypedPassword,
    /// Prefers `aes128-gcm@openssh.com` if the processor has AES instructions and the user has set
    /// no ciphers: 1.7 times the throughput of OpenSSH's default cipher.
    pub prefer_fast_cipher: bool,
}

impl Config {
    /// A connection by plain `ssh`, with defaults for all else.
    pub fn new(destination: Destination) -> Config {
        Config {
            destination,
            port: None,
            transport: Transport::Ssh,
            ssh_command: "ssh".into(),
            args: Vec::new(),
            sftp_server: None,
            password: None,
            typed_password: TypedPassword::Unseen,
            prefer_fast_cipher: true,
        }
    }
}

/// A password. It is kept out of swap space, core dumps and debug output.
#[derive(Clone)]
pub struct Password(Arc<Secret>);

/// Maximum length of a password in bytes: the longest line of a terminal.
pub(crate) const PASSWORD_MAX_BYTES: usize = 4095;

/// The bytes of the keys that end a line on a terminal.
const INTERRUPT: u8 = 3;
const END: u8 = 4;

impl Password {
    /// A password of these bytes: one line without its end.
    ///
    /// # Panics
    /// When there is no memory for it.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Password {
        let mut bytes = bytes.into();
        let mut secret = Secret::with_room(bytes.len()).expect("there is memory for a page");
        for byte in bytes.drain(..) {
            secret.push(byte);
        }
        Password(Arc::new(secret))
    }

    /// Reads one line, from a terminal without echo; `None` at the end of the input. Bytes after
    /// the line are not read. On a terminal, standard error first shows the prompt, once nothing
    /// that is typed is echoed or discarded any more.
    ///
    /// # Errors
    /// Those of the descriptor; `Interrupted` for Ctrl-C, and `InvalidData` for a line that is too
    /// long.
    pub fn read(input: impl AsFd, prompt: &str) -> io::Result<Option<Password>> {
        let input = input.as_fd();
        if !isatty(input) {
            return Password::read_line(input, false);
        }
        // It delivers each byte at once, including Ctrl-C, so that no signal from its keys can leave
        // it in this state.
        let _quiet = ChangedModes::of(input, |modes| {
            let shows = LocalModes::ECHO | LocalModes::ECHONL;
            modes.local_modes.remove(shows | LocalModes::ICANON | LocalModes::ISIG);
        })?;
        let _ = io::stderr().write_all(prompt.as_bytes());
        let read = Password::read_line(input, true);
        // The end of the line was not echoed either.
        let _ = rustix::io::write(input, b"\n");
        read
    }

    fn read_line(input: BorrowedFd<'_>, has_keys: bool) -> io::Result<Option<Password>> {
        let mut secret = Secret::with_room(PASSWORD_MAX_BYTES)?;
        loop {
            let mut byte = [0];
            match rustix::io::read(input, &mut byte) {
                Ok(0) => break,
                Ok(_) => (),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [byte] = byte;
            if has_keys && secret.edit(byte) {
                continue;
            }
            match byte {
                b'\n' => break,
                INTERRUPT if has_keys => return Err(io::ErrorKind::Interrupted.into()),
                END if has_keys => break,
                byte if secret.as_bytes().len() < PASSWORD_MAX_BYTES => {
                    secret.push(byte);
                }
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the password is too long",
                    ));
                }
            }
        }
        Ok((!secret.as_bytes().is_empty()).then(|| Password(Arc::new(secret))))
    }

    /// Receives one line from another process that has read the password.
    ///
    /// # Errors
    /// Those of the stream; `UnexpectedEof` if it ends within the line, and `InvalidData` for a
    /// line that is empty or too long.
    pub async fn receive(from: &mut (dyn AsyncRead + Send + Unpin)) -> io::Result<Password> {
        let mut secret = Secret::with_room(PASSWORD_MAX_BYTES)?;
        loop {
            // One byte at a time, so that no other memory holds more of it.
            match from.read_u8().await? {
                b'\n' if !secret.as_bytes().is_empty() => return Ok(Password(Arc::new(secret))),
                byte if byte != b'\n' && secret.push(byte) => {}
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Sends it as [`Password::receive`] expects it.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send(&self, to: &mut dyn io::Write) -> io::Result<()> {
        to.write_all(self.as_bytes())?;
        to.write_all(b"\n")
    }

    pub(crate) fn of(secret: Secret) -> Password {
        Password(Arc::new(secret))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
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
    use rustix::termios::{Termios, tcgetattr};

    #[tokio::test]
    async fn a_password_is_sent_and_received_as_a_line() {
        let mut sent = Vec::new();
        Password::new("hunter2").send(&mut sent).unwrap();
        sent.extend(b"rest");
        let mut from = &sent[..];
        let received = Password::receive(&mut from).await.unwrap();
        assert_eq!((received.as_bytes(), from), (&b"hunter2"[..], &b"rest"[..]));
        let too_long = [b'x'; PASSWORD_MAX_BYTES + 2];
        for wrong in [&b""[..], b"\n", b"cut", &too_long] {
            let mut from = wrong;
            assert!(Password::receive(&mut from).await.is_err());
        }
    }

    #[test]
    fn a_password_is_not_shown_with_its_configuration() {
        let (destination, _) = Destination::parse(b"host:").unwrap();
        let config =
            Config { password: Some(Password::new("hunter2")), ..Config::new(destination) };
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn a_password_is_one_line_and_no_more_is_read() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&to, b"hunter2\nnext").unwrap();
        drop(to);
        assert_eq!(Password::read(&from, "").unwrap().unwrap().as_bytes(), b"hunter2");
        assert_eq!(Password::read(&from, "").unwrap().unwrap().as_bytes(), b"next");
        assert!(Password::read(&from, "").unwrap().is_none());
    }

    #[test]
    fn a_terminal_does_not_show_a_password() {
        use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        let modes = || tcgetattr(&theirs).unwrap();
        let shows = |modes: &Termios| modes.local_modes.contains(LocalModes::ECHO);
        assert!(shows(&modes()));
        let typed = |bytes: &[u8]| {
            std::thread::scope(|scope| {
                let reads = scope.spawn(|| Password::read(&theirs, ""));
                // What is typed before would be thrown away.
                while shows(&modes()) {
                    std::thread::yield_now();
                }
                rustix::io::write(&ours, bytes).unwrap();
                reads.join().unwrap()
            })
        };
        // With all that may be corrected.
        let password = typed("no\u{15}hunteré\u{7f}3\u{8}2\r".as_bytes()).unwrap().unwrap();
        assert_eq!(password.as_bytes(), b"hunter2");
        let mut shown = [0; 64];
        let read = rustix::io::read(&ours, &mut shown[..]).unwrap();
        assert_eq!(&shown[..read], b"\r\n", "nothing but the end of the line");
        assert_eq!(typed(b"x\x03").err().unwrap().kind(), io::ErrorKind::Interrupted);
        assert!(shows(&modes()), "the terminal is as before");
    }
}
