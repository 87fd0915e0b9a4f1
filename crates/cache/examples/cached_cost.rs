//! The cost and the gain of a cached remote over one in memory, which answers at once or after a
//! round trip: for a tree of small files, and a large file. Prints figures; run by hand:
//!
//! ```text
//! cargo run --release -p cache --example cached_cost [ROUND_TRIP_US]
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Access, OpenFlags, Remote};
use cache::{Cached, CachedConfig, Mode, SourceId, Store, StoreConfig};
use testkit::{MemRemote, path};

const FILES: usize = 4000;
const FILE_BYTES: usize = 8 << 10;
const LARGE_BYTES: usize = 256 << 20;
const REQUEST: u32 = 256 << 10;
/// Long ago, in 2001.
const OLD: i64 = 1_000_000_000;

fn tree() -> MemRemote {
    let memory = MemRemote::new();
    for file in 0..FILES {
        let at = format!("d{}/f{file}", file / 50);
        memory.put_file(&at, vec![file as u8; FILE_BYTES]);
        memory.set_mtime(&at, OLD);
    }
    memory.put_file("large", vec![7; LARGE_BYTES]);
    memory.set_mtime("large", OLD);
    memory
}

async fn read(remote: &dyn Remote, at: &str) -> usize {
    let opened = remote.open(&path(at), OpenFlags::existing(Access::Read)).await.unwrap();
    let mut bytes = 0;
    while (bytes as u64) < opened.attr.size {
        bytes += remote.read(opened.fh, bytes as u64, REQUEST).await.unwrap().len();
    }
    remote.close(opened.fh);
    bytes
}

async fn walk(what: &str, remote: &dyn Remote) {
    let begun = Instant::now();
    for dir in 0..FILES / 50 {
        let dh = remote.opendir(&path(&format!("d{dir}"))).await.unwrap();
        while remote.readdir(dh).await.unwrap().is_some() {}
        remote.closedir(dh);
        for file in dir * 50..(dir + 1) * 50 {
            assert_eq!(read(remote, &format!("d{dir}/f{file}")).await, FILE_BYTES);
        }
    }
    let small = begun.elapsed();
    let begun = Instant::now();
    assert_eq!(read(remote, "large").await, LARGE_BYTES);
    let large = begun.elapsed();
    let each = small.as_secs_f64() * 1e6 / FILES as f64;
    let rate = LARGE_BYTES as f64 / 1e6 / large.as_secs_f64();
    println!("{what:<34} {each:>8.1} us a file of 8 KiB, {rate:>8.0} MB/s");
}

fn main() {
    let round_trip = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::TempDir::new().unwrap();
        let memory = Arc::new(tree());
        if round_trip > 0 {
            memory.set_latency(Some(Duration::from_micros(round_trip)));
        }
        let mount = |mode| {
            let store = Store::open(StoreConfig::new(dir.path().join("store"))).unwrap();
            let config = CachedConfig { mode, ..CachedConfig::new(SourceId::new(b"cost")) };
            Cached::new(memory.clone(), store, config).unwrap()
        };
        walk("without a cache", &*memory).await;
        let cached = mount(Mode::CloseToOpen);
        walk("first read, close-to-open", &*cached).await;
        let begun = Instant::now();
        cached.wait_idle().await;
        println!("{:<34} {:>8.1?} after the last read", "all is kept", begun.elapsed());
        println!("{:?}", cached.status());
        walk("again", &*cached).await;
        walk("after a remount, close-to-open", &*mount(Mode::CloseToOpen)).await;
        walk("first read, immutable", &*mount(Mode::Immutable)).await;
        walk("after a remount, immutable", &*mount(Mode::Immutable)).await;
        walk("without a cache", &*memory).await;
    });
}
