//! A host over a real `sftp-server` in a directory of its own.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use host::{Config, ConnectError, Connection, Connector, Host, Role};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Part of Debian's openssh-sftp-server.
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

struct Servers {
    dir: PathBuf,
    running: Mutex<Vec<Child>>,
}

#[async_trait]
impl Connector for Servers {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let server = Command::new(SFTP_SERVER)
            .current_dir(&self.dir)
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone().unwrap())))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("openssh-sftp-server has to be installed");
        self.running.lock().unwrap().push(server);
        let (reader, writer) = UnixStream::from_std(ours).unwrap().into_split();
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
        let servers = Arc::new(Servers { dir: dir.path().to_owned(), running: Mutex::default() });
        let host = Host::connect(servers.clone(), Config::default()).await.unwrap();
        Server { host: Arc::new(host), dir, servers }
    }

    /// How many files and directories its servers have open.
    pub(crate) fn open_handles(&self) -> usize {
        let pids: Vec<u32> =
            self.servers.running.lock().unwrap().iter().filter_map(Child::id).collect();
        let descriptors = pids.iter().flat_map(|pid| {
            // One that has just ended has none open.
            std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten()
        });
        let targets = descriptors.filter_map(|descriptor| descriptor.path().read_link().ok());
        targets.filter(|target| target.starts_with(self.dir.path())).count()
    }
}
