//! A real `sftp-server` behind a proxy, one process for each connection.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Mutex;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::Proxy;
use crate::SftpServers;

/// Starts servers whose sessions begin in one directory. Dropping it kills them.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    servers: SftpServers,
    proxy: Arc<Proxy>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    started: usize,
    refuses: bool,
}

impl Server {
    /// A server for `dir`, with its own proxy.
    pub fn new(dir: &Path) -> Arc<Server> {
        let (servers, state) = (SftpServers::new(dir), Mutex::default());
        Arc::new(Server { dir: dir.to_owned(), servers, proxy: Proxy::new(), state })
    }

    /// The proxy.
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// A new connection, on which nothing was sent yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// `ConnectionRefused` after [`Server::refuse`].
    ///
    /// # Panics
    /// If the program is not installed.
    pub fn connect(&self) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
        let mut state = self.state.lock();
        if state.refuses {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        state.started += 1;
        drop(state);
        let (from_server, to_server) = self.servers.start();
        Ok(self.proxy.connect_to(from_server, to_server))
    }

    /// Whether new connections are refused from now on; existing ones are kept.
    pub fn refuse(&self, refuses: bool) {
        self.state.lock().refuses = refuses;
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.state.lock().started
    }

    /// Number of running servers.
    pub fn running(&self) -> usize {
        self.servers.running()
    }

    /// Number of files and directories at or below its directory that the servers have open.
    pub fn open_handles(&self) -> usize {
        self.servers.open_below(&self.dir)
    }
}
