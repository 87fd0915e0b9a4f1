//! Over a real host and OpenSSH's sftp-server, which is killed repeatedly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use async_trait::async_trait;
use base::{Access, Create, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use host::{ConnectError, Connection, Connector, Host, Role};
use recovery::{Config, Recovering};
use tempfile::TempDir;
use testkit::{SftpServers, path};
use tokio::task::JoinSet;

use super::stage::making;

struct Servers {
    servers: SftpServers,
    refusing: AtomicBool,
}

#[async_trait]
impl Connector for Servers {
    async fn connect(&self, _: Role) -> Result<Connection, ConnectError> {
        if self.refusing.load(Ordering::SeqCst) {
            return Err(ConnectError { message: "refused by the test".into(), permanent: false });
        }
        let (reader, writer) = self.servers.start();
        Ok(Connection::from_halves(reader, writer, Box::new(|| None)))
    }
}

struct Real {
    recovering: Arc<Recovering>,
    host: Arc<Host>,
    servers: Arc<Servers>,
    dir: TempDir,
}

impl Real {
    async fn new(max_conns: usize) -> Real {
        let dir = tempfile::tempdir().unwrap();
        let servers = SftpServers::new(dir.path());
        let servers = Arc::new(Servers { servers, refusing: AtomicBool::new(false) });
        let config = host::Config { max_conns, ..host::Config::default() };
        let host = Arc::new(Host::connect(servers.clone(), config).await.unwrap());
        let recovering = Recovering::new(host.clone(), Config::default());
        Real { recovering, host, servers, dir }
    }

    async fn kill(&self) {
        self.servers.servers.kill().await;
    }

    fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(name)).unwrap()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 9)) as u8).collect()
}

const FILE_BYTES: usize = 8 << 20;
const PIECE_BYTES: usize = 64 << 10;
const KILLS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_complete_through_killed_servers() {
    let real = Real::new(3).await;
    let content = pattern(FILE_BYTES);
    let fh = real.recovering.open(&path("f"), making()).await.unwrap().fh;
    let pieces: Vec<_> = content.chunks(PIECE_BYTES).collect();
    for part in pieces.chunks(pieces.len() / KILLS) {
        let mut writes = JoinSet::new();
        for piece in part {
            let offset = (piece.as_ptr() as usize - content.as_ptr() as usize) as u64;
            let (recovering, data) = (real.recovering.clone(), Bytes::copy_from_slice(piece));
            writes.spawn(async move { recovering.write(fh, offset, data).await });
        }
        // Some are answered, some are in flight, some are not sent.
        for _ in 0..part.len() / 4 {
            writes.join_next().await.unwrap().unwrap().unwrap();
        }
        real.kill().await;
        while let Some(written) = writes.join_next().await {
            written.unwrap().unwrap();
        }
    }
    real.recovering.fsync(fh).await.unwrap();
    assert!(real.content("f") == content);
    // Reads the file back.
    let mut reads = JoinSet::new();
    for number in 0..pieces.len() {
        let (recovering, offset) = (real.recovering.clone(), (number * PIECE_BYTES) as u64);
        reads.spawn(async move { (number, recovering.read(fh, offset, PIECE_BYTES as u32).await) });
    }
    reads.join_next().await.unwrap().unwrap().1.unwrap();
    real.kill().await;
    while let Some(read) = reads.join_next().await {
        let (number, data) = read.unwrap();
        assert!(data.unwrap().to_vec() == pieces[number], "piece {number}");
    }
    real.recovering.close(fh);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_appended_line_is_in_the_file_once() {
    let real = Real::new(1).await;
    let flags = OpenFlags { append: true, ..making() };
    let fh = real.recovering.open(&path("log"), flags).await.unwrap().fh;
    let mut expected = String::new();
    for round in 0..KILLS {
        // Begun in order by one task, answered while the server is killed.
        let mut calls: Vec<_> = Vec::new();
        for number in 0..200 {
            let line = format!("round {round} line {number}\n");
            expected.push_str(&line);
            let mut call = real.recovering.write(fh, 0, Bytes::from(line));
            match super::stage::poll_once(&mut call) {
                Poll::Pending => calls.push(call),
                Poll::Ready(written) => written.unwrap(),
            }
        }
        let mut calls = calls.into_iter();
        calls.next().unwrap().await.unwrap();
        let killing = real.kill();
        let rest = async {
            for call in calls {
                call.await.unwrap();
            }
        };
        tokio::join!(killing, rest);
    }
    let content = String::from_utf8(real.content("log")).unwrap();
    let mut lines = content.lines().zip(expected.lines());
    assert_eq!(lines.find(|(line, expected)| line != expected), None);
    assert_eq!(content.len(), expected.len());
    real.recovering.close(fh);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_created_renamed_and_removed_through_killed_servers() {
    let real = Real::new(1).await;
    for round in 0..KILLS {
        let mut tasks = JoinSet::new();
        for number in 0..20 {
            let recovering = real.recovering.clone();
            tasks.spawn(async move {
                let name = |what: &str| path(&format!("{what}{round}-{number}"));
                recovering.mkdir(&name("d"), 0o755).await?;
                let exclusive = Create::Exclusive(0o644);
                let flags = OpenFlags { create: exclusive, ..making() };
                let fh = recovering.open(&name("f"), flags).await?.fh;
                let written = recovering.write(fh, 0, Bytes::from_static(b"content")).await;
                recovering.close(fh);
                written?;
                recovering.lstat(&name("f")).await?;
                recovering.rename(&name("f"), &name("g"), RenameMode::Replace).await?;
                recovering.symlink(b"g", &name("l")).await?;
                let read = OpenFlags::existing(Access::Read);
                let fh = recovering.open(&name("g"), read).await?.fh;
                let data = recovering.read(fh, 0, 100).await;
                recovering.close(fh);
                assert_eq!(data?.to_vec(), b"content");
                recovering.lstat(&name("l")).await?;
                recovering.unlink(&name("l")).await?;
                recovering.rmdir(&name("d")).await
            });
        }
        real.kill().await;
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap();
        }
    }
    let left = std::fs::read_dir(real.dir.path()).unwrap().count();
    assert_eq!(left, 20 * KILLS, "only the files that were renamed are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_is_disconnected_and_comes_back() {
    let real = Real::new(1).await;
    let fh = real.recovering.open(&path("f"), making()).await.unwrap().fh;
    assert!(!real.host.is_disconnected() && real.host.connection_error().is_none());
    let run = real.recovering.write_verifier().await.unwrap();
    real.servers.refusing.store(true, Ordering::SeqCst);
    real.kill().await;
    let recovering = real.recovering.clone();
    let writing =
        tokio::spawn(async move { recovering.write(fh, 0, Bytes::from_static(b"kept")).await });
    real.host.disconnected().await;
    assert!(real.host.is_disconnected());
    assert!(real.host.connection_error().unwrap().contains("refused by the test"));
    real.recovering.disconnected().await;
    assert!(real.recovering.is_disconnected());
    real.servers.refusing.store(false, Ordering::SeqCst);
    writing.await.unwrap().unwrap();
    assert!(!real.host.is_disconnected() && !real.recovering.is_disconnected());
    assert_eq!(real.host.connection_error(), None);
    assert_eq!(real.content("f"), b"kept");
    // The machine did not restart, so nothing had to be compared.
    assert_eq!(real.recovering.write_verifier().await.unwrap(), run);
    real.recovering.close(fh);
}

/// A child process that inherits a descriptor closes it while the parent uses it. The server gives
/// the handle to the next file that is opened.
#[tokio::test]
async fn reads_and_writes_during_a_flush_are_those_of_their_file() {
    let real = Real::new(1).await;
    for round in 0..50 {
        let (own, other) = (format!("own{round}"), format!("other{round}"));
        let fh = real.recovering.open(&path(&own), making()).await.unwrap().fh;
        real.recovering.write(fh, 0, Bytes::from_static(b"12345")).await.unwrap();
        std::fs::write(real.dir.path().join(&other), [b'x'; 100]).unwrap();
        let name = path(&other);
        let data = Bytes::from_static(b"6789");
        let (read, flushed, opened, written) = tokio::join!(
            biased;
            real.recovering.read(fh, 0, 100),
            real.recovering.flush(fh),
            real.recovering.open(&name, OpenFlags::existing(Access::ReadWrite)),
            real.recovering.write(fh, 5, data),
        );
        flushed.unwrap();
        written.unwrap();
        let read = read.unwrap().to_vec();
        assert!([&b"12345"[..], b"123456789"].contains(&&read[..]), "{read:?}");
        real.recovering.finish(fh).await.unwrap();
        real.recovering.close(opened.unwrap().fh);
        assert_eq!(real.content(&own), b"123456789");
        assert_eq!(real.content(&other), [b'x'; 100]);
    }
}
