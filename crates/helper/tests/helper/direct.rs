//! Connections beside the one that ssh carries.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::{Access, Create, Errno, OpenFlags, Remote, RemotePath};
use helper::Options;
use host::{
    Config, ConnectError, Connection, Connector, Direct, DirectUse, Host, Role, SessionState,
};
use sandbox::link::{Link, LinkOptions};
use sftp::codec::{Body, DirectAddress, DirectRequest, Reply, Request};
use testkit::conformance::Fixture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::conformance::fixture_of;
use super::peer::{Client, Servers, start};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const REQUEST: DirectRequest = DirectRequest { key: [7; 32], ports: (0, 0), poll_us: 0 };

fn options(dir: &Path) -> Options {
    Options { root: Some(dir.to_owned()), direct: Some(HERE), ..Options::default() }
}

fn config() -> Config {
    Config { direct: Direct::Require, ..Config::default() }
}

async fn connect(options: Options, config: Config) -> Result<Host, host::Error> {
    Host::connect(Arc::new(Servers(options)), config).await
}

/// Counts logins.
struct Logins(Servers, AtomicUsize);

#[async_trait]
impl Connector for Logins {
    async fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.connect(role).await
    }
}

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    fixture_of(dir, options, Config { max_conns: 3, ..config() }).await
}

testkit::conformance!(fixture);

fn is_direct(host: &Host) -> bool {
    let first = host.status().sessions.into_iter().next().unwrap();
    matches!(first.state, SessionState::Up { is_direct: true, .. })
}

async fn write(host: &Host, name: &str, content: &[u8]) -> base::Result<()> {
    let path = RemotePath::parse(name.as_bytes()).unwrap();
    let flags = OpenFlags { create: Create::IfAbsent(0o600), ..OpenFlags::existing(Access::Write) };
    let opened = host.open(&path, flags).await?;
    host.write(opened.fh, 0, content.to_vec().into()).await?;
    host.close(opened.fh);
    Ok(())
}

/// A port that is free on the loopback address.
fn free_port() -> u16 {
    TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap().port()
}

/// A host whose direct connections go over a link.
async fn over_link(dir: &Path, direct: Direct) -> (Host, Link) {
    let (host, link, _) = over_link_by(dir, Config { direct, ..Config::default() }).await;
    (host, link)
}

async fn over_link_by(dir: &Path, config: Config) -> (Host, Link, Arc<Logins>) {
    let port = free_port();
    let link = Link::start(SocketAddr::new(HERE, port), LinkOptions::default()).unwrap();
    let config = Config {
        direct_ports: (port, port),
        direct_address: Some(("localhost".to_owned(), Some(link.port()))),
        ..config
    };
    let logins = Arc::new(Logins(Servers(options(dir)), AtomicUsize::new(0)));
    (Host::connect(logins.clone(), config).await.unwrap(), link, logins)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tcp_the_sessions_go_on_through_ssh() {
    let dir = tempfile::tempdir().unwrap();
    let (host, link) = over_link(dir.path(), Direct::Yes).await;
    assert!(is_direct(&host));
    assert!(matches!(host.status().direct, Some(DirectUse::At(_))));
    write(&host, "before", b"x").await.unwrap();
    // One connection is lost: another one replaces it.
    link.cut();
    wait_until(|| !is_direct(&host)).await;
    again(&host, "between").await;
    assert!(is_direct(&host));
    link.refuse();
    link.cut();
    wait_until(|| !is_direct(&host)).await;
    again(&host, "after").await;
    assert!(!is_direct(&host));
    assert!(matches!(host.status().direct, Some(DirectUse::Unused(_))), "{:?}", host.status());
    for name in ["before", "between", "after"] {
        assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"x", "{name}");
    }
}

/// Repeats as the layer above does.
async fn again(host: &Host, name: &str) {
    let began = Instant::now();
    while let Err(errno) = write(host, name, b"x").await {
        assert_eq!(errno, Errno::EHOSTDOWN);
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn wait_until(mut is_true: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_they_are_required_nothing_goes_through_ssh() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { direct: Direct::Require, ..Config::default() };
    let (host, link, logins) = over_link_by(dir.path(), config).await;
    link.refuse();
    link.cut();
    wait_until(|| !is_direct(&host)).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        assert_eq!(write(&host, "f", b"x").await, Err(Errno::EHOSTDOWN));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(host.connection_error().unwrap().contains("no direct connection"));
    link.accept();
    again(&host, "f").await;
    assert!(is_direct(&host));
    assert_eq!(logins.1.load(Ordering::SeqCst), 1, "the ssh session stays");
}

/// Without reconnecting, ssh takes the place of a direct connection without another login.
#[tokio::test(flavor = "multi_thread")]
async fn without_reconnecting_there_is_one_login() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { direct: Direct::Yes, reconnect: false, ..Config::default() };
    let (host, link, logins) = over_link_by(dir.path(), config).await;
    link.refuse();
    link.cut();
    wait_until(|| !is_direct(&host)).await;
    again(&host, "f").await;
    let through_ssh = host.status();
    assert!(matches!(through_ssh.direct, Some(DirectUse::Unused(_))), "{through_ssh:?}");
    assert_eq!(logins.1.load(Ordering::SeqCst), 1);
}

/// The first login allows no direct connections, and its replies are held back on request. The
/// servers of all logins are counted while they run.
struct Flapping {
    options: Options,
    link: Arc<Replies>,
    logins: Mutex<Vec<JoinHandle<Result<(), helper::Error>>>>,
}

struct Replies {
    pass: watch::Sender<bool>,
    /// How often it was asked whether the link is cut.
    asked: AtomicUsize,
}

impl host::Link for Replies {
    fn is_cut(&self) -> bool {
        let is_cut = !*self.pass.borrow();
        self.asked.fetch_add(1, Ordering::SeqCst);
        is_cut
    }

    fn discard(&self) {}
}

impl Flapping {
    fn running(&self) -> Vec<bool> {
        self.logins.lock().unwrap().iter().map(|server| !server.is_finished()).collect()
    }
}

#[async_trait]
impl Connector for Flapping {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let mut logins = self.logins.lock().unwrap();
        let is_first = logins.is_empty();
        let direct = self.options.direct.filter(|_| !is_first);
        let (stream, server) = start(Options { direct, ..self.options.clone() });
        logins.push(server);
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::UnixStream::from_std(stream).unwrap();
        if !is_first {
            return Ok(Connection::new(stream, Box::new(|| None)));
        }
        let (mut replies, requests) = stream.into_split();
        let (reader, mut held) = tokio::io::duplex(1 << 16);
        let mut pass = self.link.pass.subscribe();
        tokio::spawn(async move {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(len @ 1..) = replies.read(&mut bytes).await {
                pass.wait_for(|passes| *passes).await.unwrap();
                held.write_all(&bytes[..len]).await.unwrap();
            }
        });
        let mut connection = Connection::from_halves(reader, requests, Box::new(|| None));
        connection.link = Some(self.link.clone());
        Ok(connection)
    }
}

/// The old session works again while the direct connection of the new one is being made.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_comes_back_leaves_nothing_of_its_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let to_new = Link::start(SocketAddr::new(HERE, port), LinkOptions::default()).unwrap();
    let config = Config {
        direct: Direct::Yes,
        direct_ports: (port, port),
        direct_address: Some(("localhost".to_owned(), Some(to_new.port()))),
        ..Config::default()
    };
    let link = Arc::new(Replies { pass: watch::channel(true).0, asked: AtomicUsize::new(0) });
    let connector = Flapping { options: options(dir.path()), link, logins: Mutex::default() };
    let connector = Arc::new(connector);
    let host = Arc::new(Host::connect(connector.clone(), config).await.unwrap());
    let before = host.status().direct;
    assert!(matches!(before, Some(DirectUse::Unused(_))), "{before:?}");
    to_new.stall();
    connector.link.pass.send_replace(false);
    let called = host.clone();
    let call = tokio::spawn(async move { write(&called, "f", b"x").await });
    // The second time, the new session has begun.
    wait_until(|| connector.link.asked.load(Ordering::SeqCst) == 2).await;
    connector.link.pass.send_replace(true);
    assert_eq!(call.await.unwrap(), Ok(()));
    to_new.resume();
    wait_until(|| connector.running() == [true, false]).await;
    assert_eq!(host.status().direct, before);
    assert!(!is_direct(&host));
}

/// A silent address does not keep the host away for longer than the limit of a direct connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_limit_leaves_time_for_ssh() {
    let dir = tempfile::tempdir().unwrap();
    let stall_limit = Duration::from_secs(2);
    let config = Config { direct: Direct::Yes, stall_limit, ..Config::default() };
    let (host, link, _) = over_link_by(dir.path(), config).await;
    link.stall();
    link.cut();
    again(&host, "f").await;
    assert!(matches!(host.status().direct, Some(DirectUse::Unused(_))), "{:?}", host.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_allows_none_is_used_through_ssh_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let none = Options { direct: None, ..options(dir.path()) };
    let host = connect(none.clone(), Config { direct: Direct::Yes, ..config() }).await.unwrap();
    write(&host, "f", b"x").await.unwrap();
    assert!(!is_direct(&host));
    let why = DirectUse::Unused("the helper at the server allows none".to_owned());
    assert_eq!(host.status().direct, Some(why));
    let error = connect(none, config()).await.err().unwrap().to_string();
    assert!(
        error.contains("no direct connection: the helper at the server allows none"),
        "{error}"
    );
    // No port is free.
    let taken = TcpListener::bind((HERE, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = Config { direct_ports: (port, port), ..config() };
    let error = connect(options(dir.path()), config).await.err().unwrap().to_string();
    assert!(
        error.contains("no direct connection: the server cannot listen: Address already in use"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_options_of_the_server_are_valid_for_all_connections() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(outer.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
    let read_only = Options { read_only: true, ..options(&root) };
    let host = connect(read_only, config()).await.unwrap();
    assert!(is_direct(&host));
    assert_eq!(write(&host, "f", b"x").await, Err(Errno::EROFS));
    let linked = RemotePath::parse(b"link").unwrap();
    assert!(host.open(&linked, OpenFlags::existing(Access::Read)).await.is_err());
}

fn offer(reply: Reply) -> DirectAddress {
    match reply {
        Reply::Extended(body) => DirectAddress::decode(&body).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn errno(reply: &Reply) -> Option<i32> {
    match reply {
        Reply::Status { errno, .. } => *errno,
        _ => None,
    }
}

#[test]
fn the_listener_belongs_to_the_first_connection() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = Client::new(options(dir.path()));
    let reversed = DirectRequest { ports: (2, 1), ..REQUEST };
    let reply = client.call(Request::Direct(reversed));
    assert_eq!(errno(&reply), Some(rustix::io::Errno::INVAL.raw_os_error()), "{reply:?}");
    let offer = offer(client.call(Request::Direct(REQUEST)));
    let at = SocketAddr::new(offer.address, offer.port);
    // What is not TLS is closed, and serves nothing.
    let mut stranger = TcpStream::connect(at).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stranger.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    assert!(!rest.windows(4).any(|part| part == b"attr"), "{rest:?}");
    let reply = client.call(Request::Direct(REQUEST));
    assert_eq!(errno(&reply), Some(rustix::io::Errno::BUSY.raw_os_error()), "{reply:?}");
    client.end().unwrap();
    assert!(TcpStream::connect(at).is_err());
}
