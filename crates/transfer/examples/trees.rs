//! What pulling and pushing a tree takes by the SFTP engine, beside `tar` over ssh.
//!
//! `cargo run --release -p transfer --example trees -- DIR [RTT_MS [MBIT_PER_S [CONNS]]]`: a
//! private sshd, a link with this round trip and rate (0: as fast as it gets); DIR is pulled twice
//! and pushed twice, into `/dev/shm`. Prints seconds, the time that pieces have waited for either
//! side, and the most memory that was used.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::{Remote, RemotePath};
use host::{ConnectError, Connection, Connector, Explanation, Host, Role};
use local::Local;
use sandbox::link::{Link, LinkOptions};
use sandbox::sshd::{Options, Sshd};
use transfer::{Job, Silent, Source, Tree, engine};

type Fault = Box<dyn std::error::Error>;

struct Ssh(ssh::Dialer);

#[async_trait]
impl Connector for Ssh {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        let connection = self.0.connect().await;
        let connection = connection
            .map_err(|error| ConnectError { message: error.to_string(), permanent: false })?;
        let (reader, writer) = connection.stream.into_split();
        let diagnosis = connection.diagnosis;
        let explain = move || diagnosis.summary().map(Explanation::transient);
        Ok(Connection::from_halves(reader, writer, Box::new(explain)))
    }
}

fn main() -> Result<(), Fault> {
    let dir = std::env::args().nth(1).ok_or("which directory?")?;
    let argument = |at: usize, default: f64| -> f64 {
        std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let rtt = Duration::from_secs_f64(argument(2, 0.0) / 1000.0);
    let rate_bytes_per_s = Some((argument(3, 0.0) * 1e6 / 8.0) as u64).filter(|rate| *rate > 0);
    let conns = argument(4, 8.0) as usize;
    let sshd = Sshd::start(Options::default())?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, sshd.port()));
    let link = Link::start(address, LinkOptions { rtt, rate_bytes_per_s })?;
    let direct = rtt.is_zero() && rate_bytes_per_s.is_none();
    let port = if direct { sshd.port() } else { link.port() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&sshd, port, conns, Path::new(&dir)))?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("{}", peak.unwrap_or_default());
    Ok(())
}

async fn run(sshd: &Sshd, port: u16, conns: usize, dir: &Path) -> Result<(), Fault> {
    let shm = tempfile::tempdir_in("/dev/shm")?;
    let (pulled, pushed) = (shm.path().join("pulled"), shm.path().join("pushed"));
    for made in [&pulled, &pushed] {
        std::fs::create_dir(made)?;
    }
    by_tar(sshd, port, dir, &shm.path().join("tar")).await?;
    for again in ["fresh", "again"] {
        let source = Tree::remote(far(sshd, port, conns, dir).await?);
        let target = Tree::local(Arc::new(Local::open(&pulled)?), &pulled);
        copy(&format!("pull {again}"), source, target).await?;
    }
    for again in ["fresh", "again"] {
        let source = Tree::local(Arc::new(Local::open(dir)?), dir);
        let target = Tree::remote(far(sshd, port, conns, &pushed).await?);
        copy(&format!("push {again}"), source, target).await?;
    }
    Ok(())
}

async fn far(sshd: &Sshd, port: u16, conns: usize, dir: &Path) -> Result<Arc<dyn Remote>, Fault> {
    let (destination, _) = ssh::Destination::parse(format!("{}:", sshd.alias()).as_bytes())?;
    let config = ssh::Config {
        port: Some(port),
        args: vec!["-F".into(), sshd.config_path().into()],
        ..ssh::Config::new(destination)
    };
    let dialer = ssh::Dialer::new(config, Arc::new(|_: &str| {}))?;
    let base = dir.to_str().ok_or("a path")?.as_bytes().to_vec();
    let config = host::Config { base, max_conns: conns, ..host::Config::default() };
    Ok(Arc::new(Host::connect(Arc::new(Ssh(dialer)), config).await?))
}

async fn copy(what: &str, source: Tree, target: Tree) -> Result<(), Fault> {
    let sources = vec![Source { tree: source, to: RemotePath::root() }];
    let job = Job { sources, target, options: transfer::Options::default() };
    let begun = Instant::now();
    let outcome = engine::copy(job, Arc::new(Silent)).await?;
    let elapsed = begun.elapsed();
    for problem in &outcome.problems {
        println!("{problem}");
    }
    println!(
        "{what}: {:.2} s, {} files, {} MB, {} unchanged; waited {:.1} s for the source, {:.1} s \
         for the target",
        elapsed.as_secs_f64(),
        outcome.counts.files_copied,
        outcome.counts.bytes_copied >> 20,
        outcome.counts.unchanged,
        outcome.waited_for_source.as_secs_f64(),
        outcome.waited_for_target.as_secs_f64(),
    );
    Ok(())
}

async fn by_tar(sshd: &Sshd, port: u16, dir: &Path, to: &Path) -> Result<(), Fault> {
    std::fs::create_dir(to)?;
    let (config, alias) = (sshd.config_path(), sshd.alias());
    let config = config.display();
    let (from, to) = (dir.display(), to.display());
    let pipeline = format!(
        "ssh -p {port} -F {config} {alias} tar -C {from} -cf - . | tar -C {to} -xf - && rm -r {to}"
    );
    let begun = Instant::now();
    let status = tokio::process::Command::new("sh").arg("-c").arg(pipeline).status().await?;
    println!("tar over ssh, with removing: {:.2} s ({status})", begun.elapsed().as_secs_f64());
    Ok(())
}
