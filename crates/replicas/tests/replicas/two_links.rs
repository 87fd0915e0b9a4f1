//! Two real hosts that serve one directory, each behind a link of its own.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::{Access, OpenFlags, Remote};
use host::{ConnectError, Connection, Connector, Explanation, Host, Role};
use replicas::{Config, Gateway, Mode, Replicas};
use sandbox::link::{Link, LinkOptions};
use sandbox::sshd::{Options, Sshd};
use tempfile::TempDir;
use testkit::path;
use tokio::task::JoinSet;

use super::pool::{is_left_out, pattern};

const RATE_BYTES_PER_S: u64 = 40_000_000;

const RTT: Duration = Duration::from_micros(500);

const FILE_BYTES: usize = 64 << 20;

const SMALL_FILES: usize = 1500;

const SMALL_BYTES: usize = 20_000;

/// Small files that are read at the same time.
const AT_ONCE: usize = 32;

/// Starts ssh for each session.
struct Ssh(ssh::Dialer);

#[async_trait]
impl Connector for Ssh {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let connection = self.0.connect().await;
        let connection = connection
            .map_err(|error| ConnectError { message: error.to_string(), permanent: false })?;
        let (reader, writer) = (connection.reader, connection.writer);
        let diagnosis = connection.diagnosis;
        let explain = move || diagnosis.summary().map(Explanation::transient);
        Ok(Connection::from_halves(reader, writer, Box::new(explain)))
    }
}

/// A server, and the only link to it.
struct Server {
    sshd: Sshd,
    link: Link,
}

impl Server {
    fn start() -> Server {
        let sshd = Sshd::start(Options::default()).unwrap();
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, sshd.port()));
        let options = LinkOptions { rtt: RTT, rate_bytes_per_s: Some(RATE_BYTES_PER_S) };
        Server { sshd, link: Link::start(target, options).unwrap() }
    }

    async fn host(&self, dir: &Path) -> Arc<Host> {
        let destination = format!("{}:", self.sshd.alias());
        let (destination, _) = ssh::Destination::parse(destination.as_bytes()).unwrap();
        let config = ssh::Config {
            port: Some(self.link.port()),
            args: vec!["-F".into(), self.sshd.config_path().into()],
            ..ssh::Config::new(destination)
        };
        let dialer = ssh::Dialer::new(config, Arc::new(|_: &str| {})).unwrap();
        let base = dir.to_str().unwrap().as_bytes().to_vec();
        let config = host::Config { base, max_conns: 2, ..host::Config::default() };
        Arc::new(Host::connect(Arc::new(Ssh(dialer)), config).await.unwrap())
    }
}

/// Reads the file once from its beginning, with the suggested bytes in flight; returns the time it
/// took.
async fn read_all(remote: &Arc<dyn Remote>, expected: &[u8]) -> Duration {
    let began = Instant::now();
    read_through(remote, expected, || {}).await;
    began.elapsed()
}

/// Reads the file once from its beginning, with a fault in the middle; returns the longest time
/// without data.
async fn read_through(
    remote: &Arc<dyn Remote>,
    expected: &[u8],
    in_the_middle: impl FnOnce(),
) -> Duration {
    let fh = remote.open(&path("large"), OpenFlags::existing(Access::Read)).await.unwrap().fh;
    let (mut came, mut pause, mut happens) = (Instant::now(), Duration::ZERO, Some(in_the_middle));
    let mut under_way = VecDeque::new();
    let (mut asked, mut got) = (0, 0);
    while got < expected.len() {
        let window = remote.suggested_window();
        let len = window.request_bytes as usize;
        while asked < expected.len() && (asked - got) as u64 <= window.bytes {
            let (remote, offset) = (remote.clone(), asked as u64);
            let read = async move { remote.read(fh, offset, len as u32).await };
            under_way.push_back(tokio::spawn(read));
            asked += len;
        }
        let data = under_way.pop_front().unwrap().await.unwrap().unwrap();
        pause = pause.max(came.elapsed());
        came = Instant::now();
        if got > expected.len() / 2
            && let Some(happens) = happens.take()
        {
            happens();
        }
        for piece in data.pieces() {
            assert!(piece[..] == expected[got..got + piece.len()], "at {got}");
            got += piece.len();
        }
    }
    remote.close(fh);
    pause
}

/// Opens, reads and closes all small files, many at a time; returns the time it took.
async fn read_tree(remote: &Arc<dyn Remote>, expected: &Arc<Vec<u8>>) -> Duration {
    let began = Instant::now();
    let mut under_way = JoinSet::new();
    for number in 0..SMALL_FILES {
        if under_way.len() >= AT_ONCE {
            under_way.join_next().await.unwrap().unwrap();
        }
        let (remote, expected) = (remote.clone(), expected.clone());
        under_way.spawn(async move {
            let at = path(&format!("tree/{number}"));
            let fh = remote.open(&at, OpenFlags::existing(Access::Read)).await.unwrap().fh;
            let data = remote.read(fh, 0, 128 << 10).await.unwrap();
            assert!(data.to_vec() == expected[..SMALL_BYTES], "{at}");
            remote.close(fh);
        });
    }
    while let Some(done) = under_way.join_next().await {
        done.unwrap();
    }
    began.elapsed()
}

fn gateway(name: &str, remote: Arc<dyn Remote>) -> Gateway {
    Gateway { name: name.to_owned(), remote }
}

struct Ground {
    servers: [Server; 2],
    hosts: [Arc<Host>; 2],
    pool: Arc<Replicas>,
    content: Vec<u8>,
    _dir: TempDir,
}

impl Ground {
    async fn new() -> Ground {
        let dir = tempfile::tempdir().unwrap();
        let content = pattern(FILE_BYTES);
        let file = dir.path().join("large");
        std::fs::write(&file, &content).unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(3600);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        for number in 0..SMALL_FILES {
            let file = dir.path().join("tree").join(number.to_string());
            std::fs::write(file, &content[..SMALL_BYTES]).unwrap();
        }
        let start = || tokio::task::spawn_blocking(Server::start);
        let servers = [start().await.unwrap(), start().await.unwrap()];
        let hosts = [servers[0].host(dir.path()).await, servers[1].host(dir.path()).await];
        let gateways = vec![gateway("gw1", hosts[0].clone()), gateway("gw2", hosts[1].clone())];
        let config = Config { mode: Mode::Balance, ..Config::default() };
        let pool = Arc::new(Replicas::new(gateways, config).unwrap());
        Ground { servers, hosts, pool, content, _dir: dir }
    }

    fn arrived(&self) -> [u64; 2] {
        [0, 1].map(|it| self.servers[it].link.bytes_from_target())
    }
}

/// Prints how much faster a file is read through two gateways than through one. That both carry
/// their share is asserted; the speed is not, since the machine may be busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_comes_over_both_links() {
    let it = Ground::new().await;
    let alone: Arc<dyn Remote> = it.hosts[0].clone();
    let pool: Arc<dyn Remote> = it.pool.clone();
    // Lets the first connections measure their links.
    read_all(&alone, &it.content).await;
    read_all(&pool, &it.content).await;
    let by_one = read_all(&alone, &it.content).await;
    let before = it.arrived();
    let by_both = read_all(&pool, &it.content).await;
    let shares = [0, 1].map(|link| it.arrived()[link] - before[link]);
    let ratio = by_one.as_secs_f64() / by_both.as_secs_f64();
    println!("one {by_one:?}, both {by_both:?}: {ratio:.2} times; bytes {shares:?}");
    for share in shares {
        assert!(share > FILE_BYTES as u64 / 6, "{shares:?}");
    }
}

/// Prints how much faster many small files are read through two gateways than through one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_comes_over_both_links() {
    let it = Ground::new().await;
    let alone: Arc<dyn Remote> = it.hosts[0].clone();
    let pool: Arc<dyn Remote> = it.pool.clone();
    let content = Arc::new(it.content[..SMALL_BYTES].to_vec());
    read_tree(&pool, &content).await;
    let by_one = read_tree(&alone, &content).await;
    let before = it.arrived();
    let by_both = read_tree(&pool, &content).await;
    let shares = [0, 1].map(|link| it.arrived()[link] - before[link]);
    let ratio = by_one.as_secs_f64() / by_both.as_secs_f64();
    println!("one {by_one:?}, both {by_both:?}: {ratio:.2} times; bytes {shares:?}");
    for share in shares {
        assert!(share > (SMALL_FILES * SMALL_BYTES) as u64 / 6, "{shares:?}");
    }
}

/// Either of the two ends in the middle: the same bytes, and no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_link_of_two_may_end() {
    let it = Ground::new().await;
    let pool: Arc<dyn Remote> = it.pool.clone();
    for (number, server) in it.servers.iter().enumerate() {
        let pause = read_through(&pool, &it.content, || {
            server.link.refuse();
            server.link.cut();
        })
        .await;
        println!("link {number} ends: nothing came for {pause:?}");
        assert!(is_left_out(it.pool.status().gateways[number].state));
        server.link.accept();
        let back = async {
            while is_left_out(it.pool.status().gateways[number].state) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), back).await.expect("it comes back");
    }
    read_all(&pool, &it.content).await;
}
