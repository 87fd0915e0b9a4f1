//! The cost of the client over a bare sftp-server: no ssh, no FUSE, only a socketpair.
//! `cargo run --release -p sftp --example pipeline [DIR]` prints 4 KiB random reads at depth 1 and
//! at depth 32, and sequential reads and writes. DIR (default: /dev/shm) holds the file.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::task::Task;
use bytes::Bytes;
use sftp::{Client, FileAttrs, OpenFlags, Options, RemoteHandle};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

const FILE_BYTES: u64 = 512 << 20;
const BLOCK_BYTES: u32 = 4096;
const RANDOM_READS: u64 = 100_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("/dev/shm"), Into::into);
    let dir = tempfile::tempdir_in(parent)?;
    std::fs::write(dir.path().join("file"), vec![7; FILE_BYTES as usize])?;

    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut server = tokio::process::Command::new("/usr/lib/openssh/sftp-server")
        .current_dir(dir.path())
        .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .kill_on_drop(true)
        .spawn()?;
    let (reader, writer) = UnixStream::from_std(ours)?.into_split();
    let client = Arc::new(Client::connect_halves(reader, writer, Options::default()).await?);
    let handle = client.open(b"file", OpenFlags::READ, FileAttrs::default()).await?;
    let to = OpenFlags::WRITE | OpenFlags::CREATE;
    let copy = client.open(b"copy", to, FileAttrs::with_permissions(0o600)).await?;

    for round in 1..=3 {
        println!("round {round}");
        for depth in [1, 32] {
            random_reads(&client, &handle, depth).await;
        }
        for (bytes, in_flight) in [(64 << 10, 16), (128 << 10, 8), (255 << 10, 4), (255 << 10, 16)]
        {
            sequential("read", bytes, in_flight, |offset, len| {
                let read = client.read(&handle, offset, len);
                async move { read.await.map(|data| assert!(data.is_some())) }
            })
            .await;
        }
        let body = Bytes::from(vec![1; 255 << 10]);
        for (bytes, in_flight) in [(64 << 10, 16), (255 << 10, 4)] {
            sequential("write", bytes, in_flight, |offset, len| {
                client.write(&copy, offset, body.slice(..len as usize))
            })
            .await;
        }
    }
    drop(client);
    server.wait().await?;
    Ok(())
}

/// CPU time of this process so far, user and system.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |field: usize| -> u64 {
        after_name.split_whitespace().nth(field).and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    // Fields 14 and 15 of the line, in ticks of 10 ms.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Each of `depth` readers requests the next block when it has received one, as an in-place task.
async fn random_reads(client: &Arc<Client>, handle: &RemoteHandle, depth: u64) {
    let left = Arc::new(AtomicU64::new(RANDOM_READS));
    let (begin, cpu_before) = (Instant::now(), cpu());
    let mut readers = Vec::new();
    for reader in 0..depth {
        let (client, handle, left) = (client.clone(), handle.clone(), left.clone());
        let (done, finished) = oneshot::channel();
        let task = Task::start(async move {
            let mut state = reader + 1;
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
            {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let block = (state >> 33) % (FILE_BYTES / u64::from(BLOCK_BYTES));
                let read = client.read(&handle, block * u64::from(BLOCK_BYTES), BLOCK_BYTES);
                let data = read.await.expect("a read failed").expect("the file has ended");
                assert_eq!(data.len(), BLOCK_BYTES as usize);
            }
            let _ = done.send(());
        });
        readers.push((task, finished));
    }
    for (_task, finished) in readers {
        finished.await.expect("a reader was dropped");
    }
    let (took, cpu) = (begin.elapsed(), cpu() - cpu_before);
    println!(
        "  4 KiB random, depth {depth:2}: {:6.1} us each, {:7.0} IOPS, {:.1} us CPU each",
        took.as_secs_f64() * 1e6 / RANDOM_READS as f64 * depth as f64,
        RANDOM_READS as f64 / took.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / RANDOM_READS as f64,
    );
}

/// Reads or writes the file once, with `in_flight` requests in flight.
async fn sequential<C>(what: &str, bytes: u32, in_flight: usize, call: impl Fn(u64, u32) -> C)
where
    C: Future<Output = sftp::Result<()>> + Send + 'static,
{
    let (begin, cpu_before) = (Instant::now(), cpu());
    let mut calls = std::collections::VecDeque::new();
    let mut offset = 0;
    while offset + u64::from(bytes) <= FILE_BYTES {
        if calls.len() == in_flight {
            wait_for(calls.pop_front()).await;
        }
        let (done, finished) = oneshot::channel();
        let operation = call(offset, bytes);
        let task = Task::start(async move {
            let _ = done.send(operation.await);
        });
        calls.push_back((task, finished));
        offset += u64::from(bytes);
    }
    while !calls.is_empty() {
        wait_for(calls.pop_front()).await;
    }
    let (took, cpu) = (begin.elapsed(), cpu() - cpu_before);
    println!(
        "  sequential {what}, {:3} KiB x {in_flight:2}: {:6.0} MB/s, {:.2} s CPU per GB",
        bytes >> 10,
        offset as f64 / 1e6 / took.as_secs_f64(),
        cpu.as_secs_f64() / (offset as f64 / 1e9),
    );
}

/// An operation in flight, and the channel of its result.
type Running = (Option<Arc<Task>>, oneshot::Receiver<sftp::Result<()>>);

async fn wait_for(call: Option<Running>) {
    if let Some((_task, finished)) = call {
        finished.await.expect("a call was dropped").expect("a call failed");
    }
}
