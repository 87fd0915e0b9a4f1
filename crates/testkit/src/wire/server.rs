//! A real `sftp-server` behind a wire, one process for each connection.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::Wire;

/// Part of Debian's openssh-sftp-server.
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// Starts servers whose sessions begin in one directory. When it is dropped they are killed.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    wire: Arc<Wire>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    started: usize,
    running: Vec<Child>,
    refuses: bool,
}

impl Server {
    /// One for `dir`, behind a wire of its own.
    #[must_use]
    pub fn new(dir: &Path) -> Arc<Server> {
        Arc::new(Server { dir: dir.to_owned(), wire: Wire::new(), state: Mutex::default() })
    }

    /// The way to it.
    #[must_use]
    pub fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection, whose server has not been spoken to. Needs a tokio runtime.
    ///
    /// # Errors
    /// `ConnectionRefused` after [`Server::refuse`].
    ///
    /// # Panics
    /// When the program is not installed.
    pub fn connect(&self) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
        if self.state().refuses {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let theirs = OwnedFd::from(theirs);
        let child = Command::new(SFTP_SERVER)
            .current_dir(&self.dir)
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("openssh-sftp-server has to be installed");
        let mut state = self.state();
        state.started += 1;
        state.running.push(child);
        drop(state);
        let (from_server, to_server) = UnixStream::from_std(ours)?.into_split();
        Ok(self.wire.lead_to(from_server, to_server))
    }

    /// Whether new connections are refused from now on; those that stand go on.
    pub fn refuse(&self, refuses: bool) {
        self.state().refuses = refuses;
    }

    /// How many connections were made so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state().started
    }

    /// How many servers run now.
    #[must_use]
    pub fn running(&self) -> usize {
        let mut state = self.state();
        state.running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        state.running.len()
    }

    /// How many files and directories below its directory, or that itself, the servers have open.
    #[must_use]
    pub fn open_handles(&self) -> usize {
        let pids: Vec<u32> = self.state().running.iter().filter_map(Child::id).collect();
        let descriptors = pids.iter().flat_map(|pid| {
            // One that has just ended has none open.
            std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten()
        });
        let targets = descriptors.filter_map(|descriptor| descriptor.path().read_link().ok());
        targets.filter(|target| target.starts_with(&self.dir)).count()
    }
}
