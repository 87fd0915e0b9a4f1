//! Servers that stop, die, fill up or go away while they are used.
//!
//! What must hold: a blocked call can be ended, a read gives bytes of the file or an error, what
//! was acknowledged is on the server, and the mount goes on when the server is back.

mod disk_full;
mod lost;
mod roaming;
mod stopped;
mod unmounting;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Process, eventually};

/// Within this time a blocked call has to end when its process gets a signal, by A5.
const SECOND: Duration = Duration::from_secs(1);

/// Within this time a new connection has to be made when the server takes connections.
const RECONNECT: Duration = Duration::from_secs(10);

/// close(2) with its result, which [`File`] does not tell.
#[allow(unsafe_code, reason = "there is no safe interface to the result of close")]
pub fn close(file: File) -> std::io::Result<()> {
    // SAFETY: the descriptor was `file`'s, which has given it away, so it is closed once.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A small program that makes one call into the mount when told to.
pub struct Caller {
    pub process: Process,
    output: BufReader<ChildStdout>,
}

impl Caller {
    /// `script` is perl; `$ARGV[0]` is the path. It calls `ready` when it is prepared, which
    /// returns when it is to go on.
    pub fn start(script: &str, path: &Path) -> Caller {
        let script = format!("$| = 1; sub ready {{ print \"ready\\n\"; <STDIN> }} {script}");
        let mut command = Command::new("perl");
        command.args(["-e", &script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let output = BufReader::new(process.child().stdout.take().unwrap());
        let mut caller = Caller { process, output };
        assert_eq!(caller.line(), "ready\n");
        caller
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Lets it go on.
    pub fn go(&mut self) {
        drop(self.process.child().stdin.take());
    }

    /// Lets it go on, and returns when it waits for the mount: three times in a row, since the
    /// calls before that one wait for a moment too.
    pub fn block(&mut self) {
        self.go();
        let pid = self.process.pid();
        let waits = || {
            let place = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap();
            // For an answer to a request of its own, or for a page that another one fetches.
            ["request_wait_answer", "folio_wait", "fuse_"].iter().any(|it| place.contains(it))
        };
        eventually(Duration::from_secs(30), "the call waits for the mount", || {
            (0..3).all(|_| {
                std::thread::sleep(Duration::from_millis(20));
                waits()
            })
        });
    }

    /// Sends the signal; how long it took the process to be gone, which must be a second at most.
    #[track_caller]
    pub fn end_by(mut self, signal: rustix::process::Signal) -> Duration {
        let begun = Instant::now();
        self.process.signal(signal);
        let status = self.process.wait(SECOND);
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(signal.as_raw()));
        begun.elapsed()
    }
}
