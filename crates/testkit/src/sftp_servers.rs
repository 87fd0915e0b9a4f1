//! OpenSSH's `sftp-server` without ssh, connected by sockets.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base::Mutex;

use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

/// Part of Debian's openssh-sftp-server.
pub const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// Servers that start in one directory; killed when this is dropped.
#[derive(Debug)]
pub struct SftpServers {
    dir: PathBuf,
    command: Vec<String>,
    running: Mutex<Vec<Child>>,
}

impl SftpServers {
    /// No server yet.
    pub fn new(dir: &Path) -> SftpServers {
        SftpServers::by(dir, &[SFTP_SERVER])
    }

    /// Servers started by this command: a program and its arguments.
    pub fn by(dir: &Path, command: &[&str]) -> SftpServers {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        SftpServers { dir: dir.to_owned(), command, running: Mutex::default() }
    }

    /// Starts another server; returns its output and its input.
    ///
    /// # Panics
    ///
    /// If it cannot be started, or outside of a runtime.
    pub fn start(&self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("a socket that does not block");
        let output = theirs.try_clone().expect("a second descriptor");
        let server = Command::new(&self.command[0])
            .args(&self.command[1..])
            .current_dir(&self.dir)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(output)))
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("openssh-sftp-server has to be installed");
        self.running.lock().push(server);
        UnixStream::from_std(ours).expect("a socket of the runtime").into_split()
    }

    /// The number of those that run.
    pub fn running(&self) -> usize {
        let mut running = self.running.lock();
        running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        running.len()
    }

    /// The numbers of those that run.
    pub fn pids(&self) -> Vec<u32> {
        self.running.lock().iter().filter_map(Child::id).collect()
    }

    /// How many files and directories below `dir`, or that itself, they have open.
    pub fn open_below(&self, dir: &Path) -> usize {
        let pids = self.pids();
        let descriptors = pids.iter().flat_map(|pid| {
            // One that has just ended has none open.
            std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten()
        });
        let targets = descriptors.filter_map(|descriptor| descriptor.path().read_link().ok());
        targets.filter(|target| target.starts_with(dir)).count()
    }

    /// Kills all, and returns when they are gone.
    ///
    /// # Panics
    ///
    /// When one of them cannot be killed.
    pub async fn kill(&self) {
        let running = std::mem::take(&mut *self.running.lock());
        for mut server in running {
            server.kill().await.expect("a server that can be killed");
        }
    }
}
