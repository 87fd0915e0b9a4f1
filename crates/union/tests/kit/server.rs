//! A host over a real `sftp-server` in a directory of its own.

use std::sync::Arc;

use async_trait::async_trait;
use host::{Config, ConnectError, Connection, Connector, Host, Role};
use tempfile::TempDir;
use testkit::SftpServers;

struct Servers(SftpServers);

#[async_trait]
impl Connector for Servers {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (reader, writer) = self.0.start();
        Ok(Connection::from_halves(reader, writer, Box::new(|| None)))
    }
}

/// A host and its directory.
pub(crate) struct Server {
    pub(crate) host: Arc<Host>,
    pub(crate) dir: TempDir,
    servers: Arc<Servers>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        let dir = tempfile::tempdir().unwrap();
        let servers = Arc::new(Servers(SftpServers::new(dir.path())));
        let host = Host::connect(servers.clone(), Config::default()).await.unwrap();
        Server { host: Arc::new(host), dir, servers }
    }

    /// The number of files and directories that its servers have open.
    pub(crate) fn open_handles(&self) -> usize {
        self.servers.0.open_below(self.dir.path())
    }
}
