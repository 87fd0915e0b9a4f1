//! A host at the far end of a long link; each connection has its own sftp-server.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base::{Access, Create, Fh, OpenFlags, Remote};
use bytes::Bytes;
use host::{Config, ConnectError, Connection, Connector, Host, Role};
use rustix::process::{Pid, Signal, kill_process};
use sandbox::link::{Link, LinkOptions};
use tempfile::TempDir;
use testkit::sftp_servers::SFTP_SERVER;
use tokio::net::TcpStream;

use super::peer::path;

/// The round trip: with OpenSSH's window 100 MB/s for each session, so that one is not enough.
const RTT: Duration = Duration::from_millis(20);

/// Limit for an event that has to happen.
const LIMIT: Duration = Duration::from_secs(60);

/// Size of reads.
pub(crate) const BLOCK_BYTES: u32 = 128 << 10;

/// Requests in flight: more than one window.
const DEPTH: usize = 40;

pub(crate) struct Far {
    pub(crate) host: Arc<Host>,
    pub(crate) servers: Arc<FarServers>,
    pub(crate) dir: TempDir,
}

/// Makes the connections.
pub(crate) struct FarServers {
    link: Link,
    running: Arc<Mutex<Vec<Child>>>,
    /// Attempts so far, and the number of next ones that fail.
    pub(crate) attempts: AtomicUsize,
    pub(crate) refuse: AtomicBool,
}

#[async_trait]
impl Connector for FarServers {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if matches!(role, Role::Bulk(_)) && self.refuse.load(Ordering::SeqCst) {
            return Err(ConnectError { message: "refused by the test".into(), permanent: false });
        }
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.link.port())).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (reader, writer) = stream.into_split();
        Ok(Connection::from_halves(reader, writer, Box::new(|| None)))
    }
}

/// Accepts connections, and starts a server in `dir` for each, until the list is dropped.
fn serve(listener: TcpListener, dir: PathBuf, running: Arc<Mutex<Vec<Child>>>) {
    std::thread::spawn(move || {
        // Ends when only this thread holds the list.
        while let Ok((stream, _)) = listener.accept() {
            if Arc::strong_count(&running) == 1 {
                return;
            }
            stream.set_nodelay(true).unwrap();
            let server = Command::new(SFTP_SERVER)
                .current_dir(&dir)
                .stdin(Stdio::from(OwnedFd::from(stream.try_clone().unwrap())))
                .stdout(Stdio::from(OwnedFd::from(stream)))
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            running.lock().unwrap().push(server);
        }
    });
}

impl Far {
    pub(crate) async fn new(config: Config) -> Far {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target: SocketAddr = listener.local_addr().unwrap();
        let running = Arc::new(Mutex::new(Vec::new()));
        serve(listener, dir.path().to_owned(), running.clone());
        let options = LinkOptions { rtt: RTT, rate_bytes_per_s: None };
        let link = Link::start(target, options).unwrap();
        let (attempts, refuse) = (AtomicUsize::new(0), AtomicBool::new(false));
        let servers = Arc::new(FarServers { link, running, attempts, refuse });
        let host = Arc::new(Host::connect(servers.clone(), config).await.unwrap());
        Far { host, servers, dir }
    }

    pub(crate) fn local(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) async fn open(&self, name: &str, access: Access) -> Fh {
        self.host.open(&path(name), OpenFlags::existing(access)).await.unwrap().fh
    }

    pub(crate) async fn create(&self, name: &str) -> Fh {
        let flags =
            OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::ReadWrite) };
        self.host.open(&path(name), flags).await.unwrap().fh
    }

    /// Reads the file repeatedly with many requests in flight until `enough`; each block has to
    /// match `expected`, and no read may fail.
    pub(crate) async fn read_until(
        &self,
        fh: Fh,
        expected: &[u8],
        mut enough: impl FnMut() -> bool,
    ) {
        let began = std::time::Instant::now();
        while !enough() {
            assert!(began.elapsed() < LIMIT, "the condition was not reached");
            let reads: Vec<_> = (0..DEPTH)
                .map(|number| {
                    let blocks = expected.len() / BLOCK_BYTES as usize;
                    let offset = (number % blocks) * BLOCK_BYTES as usize;
                    let host = self.host.clone();
                    let read = async move { host.read(fh, offset as u64, BLOCK_BYTES).await };
                    (offset, tokio::spawn(read))
                })
                .collect();
            for (offset, read) in reads {
                let data = read.await.unwrap().unwrap().to_vec();
                assert!(data == expected[offset..offset + data.len()], "at {offset}");
                assert_eq!(data.len(), BLOCK_BYTES as usize);
            }
        }
    }

    /// Appends to the file with many requests in flight until `enough`; returns its length.
    pub(crate) async fn grow_until(&self, fh: Fh, mut enough: impl FnMut() -> bool) -> u64 {
        let began = std::time::Instant::now();
        let mut len = 0;
        while !enough() {
            assert!(began.elapsed() < LIMIT, "the condition was not reached");
            let writes: Vec<_> = (0..DEPTH)
                .map(|_| {
                    let (host, offset) = (self.host.clone(), len);
                    len += u64::from(BLOCK_BYTES);
                    let data = Bytes::from(vec![(offset >> 17) as u8; BLOCK_BYTES as usize]);
                    tokio::spawn(async move { host.write(fh, offset, data).await })
                })
                .collect();
            for write in writes {
                write.await.unwrap().unwrap();
            }
        }
        len
    }
}

impl FarServers {
    /// The running servers, in the order of their start.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut running = self.running.lock().unwrap();
        running.retain_mut(|server| server.try_wait().unwrap().is_none());
        running.iter().map(Child::id).collect()
    }

    /// Servers that have this file open.
    pub(crate) fn open_at(&self, file: &Path) -> Vec<u32> {
        let mut pids = self.pids();
        pids.retain(|pid| {
            let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
            descriptors.flatten().any(|it| it.path().read_link().is_ok_and(|to| to == file))
        });
        pids
    }

    /// The servers that have the file open and have read at least this number of bytes, from the
    /// network and from files.
    pub(crate) fn reading(&self, file: &Path, bytes: u64) -> Vec<u32> {
        let mut pids = self.open_at(file);
        pids.retain(|pid| {
            let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
            read.and_then(|read| read.parse().ok()).is_some_and(|read: u64| read >= bytes)
        });
        pids
    }

    pub(crate) fn signal(&self, pid: u32, signal: Signal) {
        // Not reaped yet, so the pid is still valid.
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for FarServers {
    fn drop(&mut self) {
        for mut server in self.running.lock().unwrap().drain(..) {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
