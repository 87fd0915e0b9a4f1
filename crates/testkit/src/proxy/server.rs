//! A real `sftp-server` behind a proxy, one process for each connection.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::Proxy;

/// Part of Debian's openssh-sftp-server.
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// Starts servers whose sessions begin in one directory. Dropping it kills them.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    proxy: Arc<Proxy>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    started: usize,
    running: Vec<Child>,
    refuses: bool,
}

impl Server {
    /// A server for `dir`, with its own proxy.
    #[must_use]
    pub fn new(dir: &Path) -> Arc<Server> {
        Arc::new(Server { dir: dir.to_owned(), proxy: Proxy::new(), state: Mutex::default() })
    }

    /// The proxy.
    #[must_use]
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection, on which nothing was sent yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// `ConnectionRefused` after [`Server::refuse`].
    ///
    /// # Panics
    /// If the program is not installed.
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
        Ok(self.proxy.connect_to(from_server, to_server))
    }

    /// Whether new connections are refused from now on; existing ones are kept.
    pub fn refuse(&self, refuses: bool) {
        self.state().refuses = refuses;
    }

    /// Number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state().started
    }

    /// Number of running servers.
    #[must_use]
    pub fn running(&self) -> usize {
        let mut state = self.state();
        state.running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        state.running.len()
    }

    /// Number of files and directories at or below its directory that the servers have open.
    #[must_use]
    pub fn open_handles(&self) -> usize {
        let pids: Vec<u32> = self.state().running.iter().filter_map(Child::id).collect();
        let descriptors = pids.iter().flat_map(|pid| {
            // A server that has just ended has no open files.
            std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten()
        });
        let targets = descriptors.filter_map(|descriptor| descriptor.path().read_link().ok());
        targets.filter(|target| target.starts_with(&self.dir)).count()
    }
}
