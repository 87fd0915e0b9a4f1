//! Throughput of one sequential reader and one writer over a link, second by second, while the host
//! scales its sessions.
//!
//! `cargo run --release -p host --example sessions -- [RTT_MS [MBIT_PER_S [MAX_CONNS [SECONDS]]]]`
//! (0 0 8 10): a private sshd, a link with this round trip and rate (0: no limit), a file of 256
//! MiB in `/dev/shm` that is read repeatedly, then written. Bytes in flight follow
//! [`base::Remote::suggested_window`].

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::task::Task;
use base::{Access, Create, OpenFlags, Remote, RemotePath};
use bytes::Bytes;
use host::{Config, ConnectError, Connection, Connector, Explanation, Host, Role};
use sandbox::link::{Link, LinkOptions};
use sandbox::sshd::{Options, Sshd};
use tokio::sync::oneshot;

const FILE_BYTES: u64 = 256 << 20;

struct Ssh {
    dialer: ssh::Dialer,
    connected: AtomicUsize,
}

#[async_trait]
impl Connector for Ssh {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        self.connected.fetch_add(1, Ordering::SeqCst);
        let connection = self.dialer.connect().await;
        let connection = connection
            .map_err(|error| ConnectError { message: error.to_string(), permanent: false })?;
        let ssh::Connection { reader, writer, diagnosis, .. } = connection;
        let explain = move || diagnosis.summary().map(Explanation::transient);
        Ok(Connection::from_halves(reader, writer, Box::new(explain)))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Read,
    Write,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |at: usize, default: f64| -> f64 {
        std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let rtt = Duration::from_secs_f64(argument(1, 0.0) / 1000.0);
    let rate_bytes_per_s = Some((argument(2, 0.0) * 1e6 / 8.0) as u64).filter(|rate| *rate > 0);
    let (max_conns, seconds) = (argument(3, 8.0) as usize, argument(4, 10.0) as u32);
    let sshd = Sshd::start(Options::default())?;
    let link = Link::start(
        SocketAddr::from((Ipv4Addr::LOCALHOST, sshd.port())),
        LinkOptions { rtt, rate_bytes_per_s },
    )?;
    let direct = rtt.is_zero() && rate_bytes_per_s.is_none();
    let port = if direct { sshd.port() } else { link.port() };
    // Two threads, as in the mount.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&sshd, port, max_conns, seconds))
}

async fn run(
    sshd: &Sshd,
    port: u16,
    max_conns: usize,
    seconds: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    std::fs::write(dir.path().join("read"), vec![7; FILE_BYTES as usize])?;
    std::fs::write(dir.path().join("write"), vec![7; FILE_BYTES as usize])?;
    let (destination, _) = ssh::Destination::parse(format!("{}:", sshd.alias()).as_bytes())?;
    let config = ssh::Config {
        port: Some(port),
        args: vec!["-F".into(), sshd.config_path().into()],
        ..ssh::Config::new(destination)
    };
    let dialer = ssh::Dialer::new(config, Arc::new(|_: &str| {}))?;
    let connector = Arc::new(Ssh { dialer, connected: AtomicUsize::new(0) });
    let base = dir.path().to_str().ok_or("a path")?.as_bytes().to_vec();
    let config = Config { base, max_conns, ..Config::default() };
    let host = Arc::new(Host::connect(connector.clone(), config).await?);
    for what in [What::Read, What::Write] {
        println!("{}", if what == What::Read { "read" } else { "write" });
        sequential(&host, what, seconds, &connector.connected).await?;
    }
    Ok(())
}

/// Reads or writes the file repeatedly.
async fn sequential(
    host: &Arc<Host>,
    what: What,
    seconds: u32,
    connected: &AtomicUsize,
) -> Result<(), Box<dyn std::error::Error>> {
    let (name, access) = match what {
        What::Read => ("read", Access::Read),
        What::Write => ("write", Access::Write),
    };
    let flags = OpenFlags { create: Create::IfAbsent(0o600), ..OpenFlags::existing(access) };
    let fh = host.open(&RemotePath::parse(name.as_bytes())?, flags).await?.fh;
    let mut under_way = VecDeque::new();
    let (mut offset, mut bytes, mut in_flight) = (0, 0, 0);
    let (began, mut second) = (Instant::now(), Instant::now());
    while began.elapsed() < Duration::from_secs(seconds.into()) {
        let window = host.suggested_window();
        let len = window.request_bytes;
        while in_flight + u64::from(len) <= window.bytes {
            let (done, answer) = oneshot::channel();
            let host = host.clone();
            let task = Task::start(async move {
                let result = match what {
                    What::Read => host.read(fh, offset, len).await.map(|data| data.len()),
                    What::Write => {
                        let data = Bytes::from(vec![1; len as usize]);
                        host.write(fh, offset, data).await.map(|()| len as usize)
                    }
                };
                let _ = done.send(result);
            });
            under_way.push_back((task, answer));
            in_flight += u64::from(len);
            offset = (offset + u64::from(len)) % FILE_BYTES;
        }
        let Some((_task, answer)) = under_way.pop_front() else { continue };
        bytes += answer.await?? as u64;
        in_flight -= u64::from(len);
        if second.elapsed() >= Duration::from_secs(1) {
            println!(
                "  {:4.1} s: {:6.1} MB/s, window {:5.1} MiB, sessions opened so far: {}",
                began.elapsed().as_secs_f64(),
                bytes as f64 / 1e6 / second.elapsed().as_secs_f64(),
                window.bytes as f64 / f64::from(1 << 20),
                connected.load(Ordering::SeqCst),
            );
            (bytes, second) = (0, Instant::now());
        }
    }
    for (_task, answer) in under_way {
        answer.await??;
    }
    host.close(fh);
    Ok(())
}
