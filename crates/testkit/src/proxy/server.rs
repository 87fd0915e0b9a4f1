//! A real `sftp-server` behind a proxy, one process for each connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::Proxy;
use crate::SftpServers;

/// Starts servers whose sessions begin in one directory. Dropping it kills them.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    servers: SftpServers,
    proxy: Arc<Proxy>,
    connections: AtomicUsize,
}

impl Server {
    /// A server for `dir`, with its own proxy.
    pub fn new(dir: &Path) -> Arc<Server> {
        let (servers, connections) = (SftpServers::new(dir), AtomicUsize::new(0));
        Arc::new(Server { dir: dir.to_owned(), servers, proxy: Proxy::new(), connections })
    }

    /// The proxy.
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// A new connection, on which nothing was sent yet. Needs a tokio runtime.
    ///
    /// # Panics
    /// If the program is not installed.
    pub fn connect(&self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let (from_server, to_server) = self.servers.start();
        self.proxy.connect_to(from_server, to_server)
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
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
