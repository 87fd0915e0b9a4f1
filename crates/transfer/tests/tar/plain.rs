//! OpenSSH's SFTP server as a remote: one that reports no inodes, and has no requests for extended
//! attributes and devices.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use base::Remote;
use host::{ConnectError, Connection, Connector, Host, Role};
use testkit::SftpServers;

struct Servers(SftpServers);

#[async_trait]
impl Connector for Servers {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (reader, writer) = self.0.start();
        Ok(Connection::from_halves(reader, writer, Box::new(|| None)))
    }
}

/// The directory `dir` over SFTP.
pub async fn plain(dir: &Path) -> Arc<dyn Remote> {
    let servers = Arc::new(Servers(SftpServers::new(dir)));
    let host = Host::connect(servers, host::Config::default()).await.unwrap();
    assert!(!host.may_exceed_sftp());
    Arc::new(host)
}
