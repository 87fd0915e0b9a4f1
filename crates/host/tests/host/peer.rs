//! Connectors: to a real sftp-server in a directory, and to a scripted server.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base::{Access, Create, Fh, OpenFlags, Remote, RemotePath};
use bytes::{Bytes, BytesMut};
use host::{Cause, Config, ConnectError, Connection, Connector, Explanation, Host, Role};
use sftp::codec::{Reply, Request, Version};
use sftp::{Extension, FileAttrs, StatusCode};
use tempfile::TempDir;
use testkit::SftpServers;
use testkit::sftp_servers::SFTP_SERVER;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

pub(crate) fn path(text: &str) -> RemotePath {
    RemotePath::parse(text.as_bytes()).unwrap()
}

/// Limit for a request that has to arrive.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts servers in one directory.
pub(crate) struct Servers {
    servers: SftpServers,
    roles: Mutex<Vec<Role>>,
    /// Number of next attempts that fail.
    pub(crate) refuse: AtomicUsize,
    /// The reported cause of a connection's end.
    pub(crate) cause: Mutex<Cause>,
    /// What is reported of all connections.
    pub(crate) link: Arc<Link>,
}

#[derive(Default)]
pub(crate) struct Link {
    pub(crate) is_cut: AtomicBool,
    /// Number of connections that were given up.
    pub(crate) discarded: AtomicUsize,
}

impl host::Link for Link {
    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    fn discard(&self) {
        self.discarded.fetch_add(1, Ordering::SeqCst);
    }
}

impl Servers {
    pub(crate) fn new(dir: &Path, arguments: &[&str]) -> Arc<Servers> {
        Servers::by(dir, &[&[SFTP_SERVER], arguments].concat())
    }

    /// The server runs in its own mount namespace, in which `script` may mount; `script` ends with
    /// `exec "$@"`, optionally with words before the "$@".
    pub(crate) fn in_namespace(dir: &Path, script: &str) -> Arc<Servers> {
        let shell = ["sh", "-ec", script, "sh", SFTP_SERVER];
        Servers::by(dir, &[&sandbox::namespace::of_its_own()[..], &shell].concat())
    }

    /// The server is started by `script`, which ends with `exec "$@"`, optionally with words behind
    /// the "$@".
    pub(crate) fn by_script(dir: &Path, script: &str) -> Arc<Servers> {
        Servers::by(dir, &["sh", "-ec", script, "sh", SFTP_SERVER])
    }

    fn by(dir: &Path, command: &[&str]) -> Arc<Servers> {
        Arc::new(Servers {
            servers: SftpServers::by(dir, command),
            roles: Mutex::default(),
            refuse: AtomicUsize::new(0),
            cause: Mutex::new(Cause::Transient),
            link: Arc::default(),
        })
    }

    /// The roles of all connections so far.
    pub(crate) fn roles(&self) -> Vec<Role> {
        self.roles.lock().unwrap().clone()
    }

    pub(crate) fn signal_all(&self, signal: rustix::process::Signal) {
        for pid in self.servers.pids() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                // A server that has ended and is not reaped yet accepts the signal too.
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }

    /// Number of files and directories at or below `dir` that the servers have open.
    pub(crate) fn open_below(&self, dir: &Path) -> usize {
        self.servers.open_below(dir)
    }

    /// Kills all servers and waits for their end.
    pub(crate) async fn kill_all(&self) {
        self.servers.kill().await;
    }
}

#[async_trait]
impl Connector for Servers {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        self.roles.lock().unwrap().push(role);
        let refused =
            self.refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if refused.is_ok() {
            return Err(ConnectError { message: "refused by the test".into(), permanent: false });
        }
        let (reader, writer) = self.servers.start();
        let cause = *self.cause.lock().unwrap();
        let text = "the test's words".to_owned();
        let diagnosis =
            Box::new(move || Some(Explanation { text: text.clone(), cause, logged_in: false }));
        let mut connection = Connection::from_halves(reader, writer, diagnosis);
        connection.link = Some(self.link.clone());
        Ok(connection)
    }
}

/// A host over a real server, in its own directory.
pub(crate) struct Real {
    pub(crate) host: Arc<Host>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) dir: TempDir,
}

impl Real {
    pub(crate) async fn new() -> Real {
        Real::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Real {
        Real::with_server(config, &[]).await
    }

    /// `arguments` are those of sftp-server.
    pub(crate) async fn with_server(config: Config, arguments: &[&str]) -> Real {
        let dir = tempfile::tempdir().unwrap();
        let servers = Servers::new(dir.path(), arguments);
        Real::over(dir, servers, config).await
    }

    pub(crate) async fn over(dir: TempDir, servers: Arc<Servers>, config: Config) -> Real {
        let host = Host::connect(servers.clone(), config).await.unwrap();
        Real { host: Arc::new(host), servers, dir }
    }

    pub(crate) fn local(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write_local(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.local(name), content).unwrap();
    }

    pub(crate) async fn open(&self, name: &str, access: Access) -> Fh {
        self.host.open(&path(name), OpenFlags::existing(access)).await.unwrap().fh
    }

    pub(crate) async fn create(&self, name: &str) -> Fh {
        let flags =
            OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::ReadWrite) };
        self.host.open(&path(name), flags).await.unwrap().fh
    }
}

/// Connects to scripted servers.
pub(crate) struct Stage {
    actors: mpsc::UnboundedSender<Actor>,
    extensions: Vec<Extension>,
}

/// A scripted server.
pub(crate) struct Actor(DuplexStream);

impl Stage {
    /// The servers offer these extensions, and are sent to the receiver once they have begun.
    pub(crate) fn new(extensions: &[Extension]) -> (Stage, mpsc::UnboundedReceiver<Actor>) {
        let (actors, stage) = mpsc::unbounded_channel();
        (Stage { actors, extensions: extensions.to_vec() }, stage)
    }
}

#[async_trait]
impl Connector for Stage {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        Ok(self.start())
    }
}

impl Stage {
    pub(crate) fn start(&self) -> Connection {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let mut actor = Actor(theirs);
        let extensions = self.extensions.iter().copied().collect();
        let version = Version { version: 3, extensions, product: None };
        let actors = self.actors.clone();
        tokio::spawn(async move {
            actor.receive_raw().await;
            let mut out = BytesMut::new();
            version.encode(&mut out);
            actor.0.write_all(&out).await.unwrap();
            let _ = actors.send(actor);
        });
        Connection::new(ours, Box::new(|| None))
    }
}

/// A host over a scripted server, with its root not checked.
pub(crate) async fn staged(extensions: &[Extension], config: Config) -> (Arc<Host>, Actor) {
    let (host, actor, _) = staged_with_later(extensions, config).await;
    (host, actor)
}

/// As [`staged`], over the helper.
pub(crate) async fn staged_helper(config: Config) -> (Arc<Host>, Actor) {
    let (connector, mut stage) = Stage::new(&[Extension::Attrs]);
    let config = Config { check_root: false, ..config };
    let serve = async {
        let mut actor = stage.recv().await.unwrap();
        for code in [StatusCode::OK, StatusCode::NO_SUCH_FILE, StatusCode::NO_SUCH_FILE] {
            let id = actor.receive(|id, _| id).await;
            actor.fail(id, code).await;
        }
        actor
    };
    let (host, actor) = tokio::join!(Host::connect(Arc::new(connector), config), serve);
    (Arc::new(host.unwrap()), actor)
}

/// As [`staged`], with what receives the servers of later sessions.
pub(crate) async fn staged_with_later(
    extensions: &[Extension],
    config: Config,
) -> (Arc<Host>, Actor, mpsc::UnboundedReceiver<Actor>) {
    let (connector, mut stage) = Stage::new(extensions);
    let config = Config { check_root: false, ..config };
    let serve_root = async {
        let mut actor = stage.recv().await.unwrap();
        for _ in 0..2 {
            let id = actor.receive(|id, _| id).await;
            actor.fail(id, StatusCode::NO_SUCH_FILE).await;
        }
        actor
    };
    let (host, actor) = tokio::join!(Host::connect(Arc::new(connector), config), serve_root);
    (Arc::new(host.unwrap()), actor, stage)
}

impl Actor {
    async fn receive_raw(&mut self) -> Bytes {
        let packet = tokio::time::timeout(LIMIT, self.next_packet());
        packet.await.expect("the client sends nothing")
    }

    async fn next_packet(&mut self) -> Bytes {
        let len = self.0.read_u32().await.expect("the client has closed the stream");
        let mut packet = vec![0; len as usize];
        self.0.read_exact(&mut packet).await.unwrap();
        packet.into()
    }

    /// Receives one request: its id, and the result of `with`.
    pub(crate) async fn receive<T>(&mut self, with: impl FnOnce(u32, Request<'_>) -> T) -> T {
        let packet = self.receive_raw().await;
        let (id, request) = Request::decode(&packet).unwrap();
        with(id, request)
    }

    /// The next request has to be this one; returns its id.
    pub(crate) async fn expect(&mut self, expected: Request<'_>) -> u32 {
        self.receive(|id, request| {
            assert_eq!(request, expected);
            id
        })
        .await
    }

    /// No request arrives within the time that one would take.
    pub(crate) async fn expect_nothing(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(50), self.receive_raw()).await;
        assert!(next.is_err(), "{:?}", next.map(|packet| packet.escape_ascii().to_string()));
    }

    pub(crate) async fn send(&mut self, id: u32, reply: Reply) {
        let mut out = BytesMut::new();
        reply.encode(id, &mut out);
        self.0.write_all(&out).await.unwrap();
    }

    pub(crate) async fn fail(&mut self, id: u32, code: StatusCode) {
        self.send(id, Reply::Status { code, message: String::new(), errno: None }).await;
    }

    pub(crate) async fn attrs(&mut self, id: u32, mode: u32, size: u64) {
        let attrs = FileAttrs { size: Some(size), permissions: Some(mode), ..FileAttrs::default() };
        self.send(id, Reply::Attrs(attrs)).await;
    }

    pub(crate) async fn handle(&mut self, id: u32, handle: &[u8]) {
        let handle = sftp::RemoteHandle::new(handle).unwrap();
        self.send(id, Reply::Handle(handle)).await;
    }
}
