//! Several sessions and the choice among them.

use base::{Access, Create, Errno, OpenFlags, Remote, RenameMode};
use bytes::Bytes;
use host::{Config, Role};

use super::peer::{Real, path};

async fn real(max_conns: usize) -> Real {
    let real = Real::with(Config { max_conns, ..Config::default() }).await;
    for number in 0..4 {
        real.write_local(&format!("{number}"), vec![number; 1_000_000]);
    }
    real
}

#[tokio::test]
async fn one_session_serves_everything() {
    let real = real(1).await;
    let (one, other) = (real.open("0", Access::Read).await, real.open("1", Access::Read).await);
    assert_eq!(real.host.read(one, 5, 5).await.unwrap().to_vec(), [0; 5]);
    assert_eq!(real.host.read(other, 5, 5).await.unwrap().to_vec(), [1; 5]);
    assert_eq!(real.servers.roles(), [Role::Metadata]);
}

#[tokio::test]
async fn small_transfers_open_no_further_session_and_keep_their_order() {
    let real = real(3).await;
    real.host.lstat(&path("0")).await.unwrap();
    let first = real.open("0", Access::Read).await;
    let again = real.open("0", Access::ReadWrite).await;
    for number in 1..4_u8 {
        let fh = real.open(&number.to_string(), Access::Read).await;
        assert_eq!(real.host.read(fh, 0, 1).await.unwrap().to_vec(), [number]);
    }
    // A write through one handle is visible through the other at once.
    for round in 0..200_u8 {
        real.host.write(again, 0, Bytes::from(vec![round; 1000])).await.unwrap();
        assert_eq!(real.host.read(first, 0, 1000).await.unwrap().to_vec(), [round; 1000]);
    }
    assert_eq!(real.servers.roles(), [Role::Metadata]);
    assert_eq!(real.host.copy((first, 0), (again, 0), 1).await, Err(Errno::EOPNOTSUPP));
}

#[tokio::test]
async fn a_renamed_file_keeps_its_order() {
    let real = real(3).await;
    std::fs::create_dir(real.local("d")).unwrap();
    real.write_local("d/f", "x");
    let old = real.open("d/f", Access::ReadWrite).await;
    real.host.rename(&path("d"), &path("e"), RenameMode::Replace).await.unwrap();
    let new = real.open("e/f", Access::Read).await;
    for round in 0..100_u8 {
        let written = real.host.write(old, 0, Bytes::from(vec![round]));
        let seen = real.host.read(new, 0, 1);
        let (written, seen) = tokio::join!(written, seen);
        written.unwrap();
        assert_eq!(seen.unwrap().to_vec(), [round], "the order of first polls is kept");
    }
}

#[tokio::test]
async fn a_window_is_suggested() {
    let real = real(8).await;
    let window = real.host.suggested_window();
    assert_eq!(window.request_bytes, 128 << 10);
    assert!((1 << 20..8 << 20).contains(&window.bytes), "{window:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_opens_and_closes_leak_no_handle() {
    let real = real(2).await;
    let flags =
        OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::ReadWrite) };
    let few = std::time::Duration::from_micros;
    for round in 0..400 {
        let name = path(&format!("new{}", round % 7));
        match tokio::time::timeout(few(round % 150), real.host.open(&name, flags)).await {
            Ok(opened) => real.host.close(opened.unwrap().fh),
            Err(_) => {
                let root = path("");
                let listing = tokio::time::timeout(few(round % 90), real.host.opendir(&root));
                if let Ok(dh) = listing.await {
                    real.host.closedir(dh.unwrap());
                }
            }
        }
        if round % 7 == 0 {
            let _ = real.host.unlink(&name).await;
        }
    }
    // Checked by the servers' descriptors: after one more call everything before it is complete.
    let fh = real.open("0", Access::Read).await;
    real.host.read(fh, 0, 1).await.unwrap();
    real.host.close(fh);
    real.host.lstat(&path("")).await.unwrap();
    // A CLOSE may be in flight.
    let patience = std::time::Instant::now();
    while real.servers.open_below(real.dir.path()) > 0 {
        assert!(patience.elapsed().as_secs() < 5, "a handle was leaked");
        tokio::task::yield_now().await;
    }
}
