//! The cost of a call through [`local::Local`] compared with the bare system call.
//!
//! `cargo run --release -p local --example cost [DIRECTORY]`: microseconds per call, the least of
//! five rounds, one call after the other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::{Access, Create, OpenFlags, Remote, RemotePath};
use bytes::Bytes;
use local::Local;
use rustix::fs::{AtFlags, CWD, fstat, openat, statat};
use rustix::fs::{Mode, OFlags};

/// Calls per round.
const CALLS: u32 = 5_000;

/// The time of one call, the least of five rounds.
async fn usual(mut call: impl AsyncFnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        for _ in 0..CALLS {
            call().await;
        }
        best = best.min(begun.elapsed() / CALLS);
    }
    best
}

fn show(what: &str, through: Duration, at_once: Duration) {
    let us = |time: Duration| time.as_nanos() as f64 / 1_000.0;
    println!("{what:24} {:8.2} us   at once {:8.2} us", us(through), us(at_once));
}

async fn measure(dir: PathBuf) {
    let local = Local::open(&dir).expect("the directory can be used");
    let path = RemotePath::parse(b"cost/deep/file").expect("a path");
    let name = dir.join("cost/deep/file");
    std::fs::create_dir_all(dir.join("cost/deep")).expect("directories can be made");
    std::fs::write(&name, vec![1; 1 << 20]).expect("a file can be made");
    let flags = OpenFlags { create: Create::Never, ..OpenFlags::existing(Access::ReadWrite) };
    let fh = local.open(&path, flags).await.expect("it is there").fh;
    let fd = openat(CWD, &name, OFlags::RDWR, Mode::empty()).expect("it is there");

    let through = usual(async || _ = local.lstat(&path).await).await;
    let at_once = usual(async || _ = statat(CWD, &name, AtFlags::SYMLINK_NOFOLLOW)).await;
    show("lstat", through, at_once);

    let absent = RemotePath::parse(b"cost/deep/none").expect("a path");
    let none = dir.join("cost/deep/none");
    let through = usual(async || _ = local.lstat(&absent).await).await;
    let at_once = usual(async || _ = statat(CWD, &none, AtFlags::SYMLINK_NOFOLLOW)).await;
    show("lstat of what is absent", through, at_once);

    let through = usual(async || _ = local.fstat(fh).await).await;
    show("fstat", through, usual(async || _ = fstat(&fd)).await);

    for len in [4_096, 131_072, 262_144, 524_288] {
        let through = usual(async || _ = local.read(fh, 0, len).await).await;
        let at_once = usual(async || {
            let mut buffer = vec![0; len as usize];
            let _ = rustix::io::pread(&fd, &mut buffer[..], 0);
        });
        show(&format!("read {len}"), through, at_once.await);
    }
    for len in [4_096, 131_072] {
        let data = Bytes::from(vec![2; len]);
        let through = usual(async || _ = local.write(fh, 0, data.clone()).await).await;
        let at_once = usual(async || _ = rustix::io::pwrite(&fd, &data, 0));
        show(&format!("write {len}"), through, at_once.await);
    }
    let through = usual(async || {
        if let Ok(opened) = local.open(&path, flags).await {
            local.close(opened.fh);
        }
    });
    let through = through.await;
    let at_once = usual(async || _ = openat(CWD, &name, OFlags::RDWR, Mode::empty())).await;
    show("open and close", through, at_once);
    local.close(fh);
    let _ = std::fs::remove_dir_all(dir.join("cost"));
}

fn main() {
    let dir = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(measure(dir));
}
