//! Commands at the server, and the output of its programs.

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;
use base::shell::quote;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

/// Why a command could not start, or its end is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShellError {
    /// The server permits no commands, or has no shell.
    #[error("the server runs no commands: {0}")]
    Refused(String),
    /// The connection was lost, or could not be established.
    #[error("{0}")]
    Lost(String),
    /// The login failed, and another one would fail, too: the host does not answer, or refuses the
    /// user.
    #[error("{0}")]
    NoLogin(String),
}

impl ShellError {
    /// The reason alone.
    pub(crate) fn why(self) -> String {
        match self {
            ShellError::Refused(why) | ShellError::Lost(why) | ShellError::NoLogin(why) => why,
        }
    }
}

impl From<std::io::Error> for ShellError {
    fn from(error: std::io::Error) -> ShellError {
        ShellError::Lost(error.to_string())
    }
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit status; `None` when a signal ended it.
    pub status: Option<i32>,
    /// The first part of its standard error, unchanged.
    pub stderr: Vec<u8>,
}

/// A running command. Dropping this ends the command.
pub struct Running {
    /// Its standard input; dropping this closes it.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Its standard output.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Resolves when the command has ended. Dropping this earlier ends the command.
    pub exit: Pin<Box<dyn Future<Output = Result<Exit, ShellError>> + Send>>,
}

/// The shell of a server.
#[async_trait]
pub trait Shell: Send + Sync + 'static {
    /// Starts `command`, which the login shell at the server parses, whichever shell that is.
    async fn start(&self, command: &[u8]) -> Result<Running, ShellError>;
}

/// The line in front of a command's output: a login may print something before it.
const START: &str = "sshoal-output";

/// Bytes that a login may print before a command starts.
pub(crate) const NOISE_LIMIT_BYTES: usize = 64 << 10;

impl dyn Shell {
    /// Runs a command without input, and returns its output. After `limit` bytes the command ends.
    pub(crate) async fn output(&self, command: &[u8], limit: u64) -> Result<Vec<u8>, ShellError> {
        let command = [format!("echo {START}; ").as_bytes(), command].concat();
        let Running { stdin, stdout, exit } = self.start(&command).await?;
        drop(stdin);
        let mut output = Vec::new();
        stdout.take(limit + NOISE_LIMIT_BYTES as u64).read_to_end(&mut output).await?;
        drop(exit);
        let start = format!("{START}\n");
        match output.windows(start.len()).position(|bytes| bytes == start.as_bytes()) {
            Some(at) => {
                output.drain(..at + start.len());
                output.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
                Ok(output)
            }
            None => Err(ShellError::Refused(output.escape_ascii().to_string())),
        }
    }
}

/// The command that runs `script` with these arguments by `sh`, from any login shell. `None` for
/// arguments that cannot be quoted for every login shell.
pub(crate) fn command(script: &str, arguments: &[&[u8]]) -> Option<Vec<u8>> {
    let words = [script.as_bytes(), b"sshoal"].into_iter().chain(arguments.iter().copied());
    let words = words.map(quote).collect::<Option<Vec<_>>>()?;
    Some([b"exec /bin/sh -c ".as_slice(), &words.join(&b' ')].concat())
}

/// A path that is no option, not `-`, and not searched in `CDPATH`.
pub(crate) fn plain_path(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { [b"./", path].concat() }
}

/// The name that GNU's programs show with escapes: `find` with those of the C locale, `sha256sum`
/// with three of them. `None` for what ends within an escape.
pub(crate) fn unescape(name: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = name.iter().copied().peekable();
    let mut plain = Vec::with_capacity(name.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        plain.push(match bytes.next()? {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            first @ b'0'..=b'3' => {
                let mut value = first - b'0';
                for _ in 0..2 {
                    let digit = bytes.next_if(|byte| (b'0'..=b'7').contains(byte))?;
                    value = value << 3 | (digit - b'0');
                }
                value
            }
            byte => byte,
        });
    }
    Some(plain)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The shell of this machine, in the place of the server's, which prints this first.
    pub(crate) struct Here(pub(crate) &'static str);

    #[async_trait]
    impl Shell for Here {
        async fn start(&self, command: &[u8]) -> Result<Running, ShellError> {
            use std::os::unix::ffi::OsStrExt;
            use std::process::Stdio;
            let command = [b"printf %s \"$0\"; ".as_slice(), command].concat();
            let mut child = tokio::process::Command::new("sh")
                .arg("-c")
                .arg(std::ffi::OsStr::from_bytes(&command))
                .arg(self.0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .map_err(|error| ShellError::Refused(error.to_string()))?;
            let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let exit = Box::pin(async move {
                let status = child.wait().await.map_err(|e| ShellError::Lost(e.to_string()))?;
                Ok(Exit { status: status.code(), stderr: Vec::new() })
            });
            Ok(Running { stdin: Box::new(stdin), stdout: Box::new(stdout), exit })
        }
    }

    #[tokio::test]
    async fn what_a_login_prints_is_no_output() {
        for noise in ["", "Welcome\n", "no newline"] {
            let shell: &dyn Shell = &Here(noise);
            assert_eq!(shell.output(b"echo it", 100).await, Ok(b"it\n".to_vec()), "{noise:?}");
        }
        let shell: &dyn Shell = &Here("");
        assert_eq!(shell.output(b"echo more", 2).await, Ok(b"mo".to_vec()));
    }
}
