//! The program that speaks SFTP: started, listened to, ended.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use crate::failure::Failure;
use crate::worker::job::Invocation;

/// Of what ssh has said, so much is shown.
const WORDS_BYTES: usize = 2000;

/// A program and the stream to it. Dropping it closes the stream, at which ssh ends, and waits.
#[derive(Debug)]
pub(in crate::worker) struct Connection {
    /// Its standard input and output.
    pub(in crate::worker) stream: UnixStream,
    child: Child,
    words: File,
}

impl Connection {
    pub(in crate::worker) fn start(ssh: &Invocation) -> Result<Connection, Failure> {
        let start = || {
            let (stream, theirs) = UnixStream::pair()?;
            let words = tempfile::tempfile()?;
            let mut command = ssh.command();
            command.stdin(OwnedFd::from(theirs.try_clone()?)).stdout(OwnedFd::from(theirs));
            command.stderr(Stdio::from(words.try_clone()?));
            let child = command.spawn()?;
            Ok(Connection { stream, child, words })
        };
        let failed = |error: io::Error| {
            Failure::failed(format!("cannot start {}: {error}", ssh.program.escape_debug()))
        };
        start().map_err(failed)
    }

    /// Why the stream broke: what the program has said, or else the error.
    pub(in crate::worker) fn failure(&mut self, error: &io::Error) -> Failure {
        let words = self.words().unwrap_or_default();
        match words.trim() {
            "" => Failure::failed(format!("the connection broke: {error}")),
            words => Failure::failed(format!("the connection broke: {words}")),
        }
    }

    fn words(&mut self) -> io::Result<String> {
        // Its end, so that nothing more comes.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
        self.words.rewind()?;
        let mut words = Vec::new();
        (&self.words).take(WORDS_BYTES as u64).read_to_end(&mut words)?;
        let lines = String::from_utf8_lossy(&words);
        Ok(lines.lines().map(|line| line.escape_debug().to_string()).collect::<Vec<_>>().join("\n"))
    }

    /// Waits for its end after it has closed its output; whether it was content.
    pub(in crate::worker) fn finish(&mut self) -> io::Result<bool> {
        self.stream.shutdown(std::net::Shutdown::Both)?;
        Ok(self.child.wait()?.success())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        // Waited for, since its CPU time counts only then. One that does not end is the matter of
        // whoever has given this process its deadline.
        let _ = self.child.wait();
    }
}
