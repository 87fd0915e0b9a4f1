//! The order of the operations on one handle, and cancelled calls.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, Fh, OpenFlags, Remote};
use bytes::Bytes;
use local::Local;
use testkit::path;

use super::{Real, poll_once};

/// Bound on a call that must not block for ever.
const PATIENCE: Duration = Duration::from_secs(60);

async fn create(local: &Local, name: &str) -> Fh {
    let flags =
        OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::ReadWrite) };
    local.open(&path(name), flags).await.unwrap().fh
}

/// A thousand overlapping writes, truncations and reads, started one after the other and all in
/// flight at once, have the result of running them one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_on_one_handle_end_as_one_by_one() {
    let real = Real::new();
    let fh = create(&real.local, "file").await;
    let mut expected: Vec<u8> = Vec::new();
    for round in 0..10u64 {
        let mut seed = round + 1;
        let mut calls: Vec<std::pin::Pin<Box<dyn Future<Output = bool> + Send>>> = Vec::new();
        for number in 0..300u64 {
            // Knuth's constants: any varying sequence would do.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number);
            let (offset, len) = ((seed >> 33) as usize % 9_000, (seed >> 13) as usize % 9_000);
            let local = &real.local;
            match (seed >> 60) % 4 {
                0 => {
                    expected.resize(offset, 0);
                    let size = Some(offset as u64);
                    let change = AttrChange { size, ..AttrChange::default() };
                    calls.push(Box::pin(async move { local.fsetattr(fh, change).await.is_ok() }));
                }
                1 => {
                    let end = expected.len().min(offset + len);
                    let seen = expected.get(offset..end).unwrap_or_default().to_vec();
                    calls.push(Box::pin(async move {
                        let data = local.read(fh, offset as u64, len as u32).await;
                        data.unwrap().to_vec() == seen
                    }));
                }
                _ => {
                    let data = vec![number as u8; len];
                    if len > 0 {
                        expected.resize(expected.len().max(offset + len), 0);
                        expected[offset..offset + len].copy_from_slice(&data);
                    }
                    let data = Bytes::from(data);
                    calls.push(Box::pin(async move {
                        local.write(fh, offset as u64, data).await.is_ok()
                    }));
                }
            }
        }
        // The first poll of each, in order; then whichever is ready.
        let mut left: Vec<_> = calls
            .into_iter()
            .enumerate()
            .filter_map(|(number, mut call)| match poll_once(&mut call) {
                Poll::Ready(right) => {
                    assert!(right, "call {number} of round {round}");
                    None
                }
                Poll::Pending => Some((number, call)),
            })
            .collect();
        // The last ones are polled first, so that the order cannot come from this loop.
        left.reverse();
        while !left.is_empty() {
            left.retain_mut(|(number, call)| match poll_once(call) {
                Poll::Ready(right) => {
                    assert!(right, "call {number} of round {round}");
                    false
                }
                Poll::Pending => true,
            });
            tokio::task::yield_now().await;
        }
        assert!(std::fs::read(real.at("file")).unwrap() == expected, "round {round}");
    }
    real.local.close(fh);
}

/// Copies between two files in both directions, started at once, do not deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_in_both_directions_do_not_lock_each_other_out() {
    let real = Real::new();
    let (one, other) = (create(&real.local, "one").await, create(&real.local, "other").await);
    for fh in [one, other] {
        real.local.write(fh, 0, Bytes::from(vec![1; 100_000])).await.unwrap();
    }
    let runtime = tokio::runtime::Handle::current();
    for round in 0..300 {
        // Both start at the same moment, as far as two threads can.
        let ready = AtomicUsize::new(0);
        let begin = |from, to| {
            let _within = runtime.enter();
            let mut copy = real.local.copy((from, 0), (to, 0), 10);
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 {
                std::hint::spin_loop();
            }
            match poll_once(&mut copy) {
                Poll::Ready(done) => Box::pin(std::future::ready(done)),
                Poll::Pending => copy,
            }
        };
        let (there, back) = std::thread::scope(|scope| {
            let there = scope.spawn(|| begin(one, other));
            (begin(other, one), there.join().unwrap())
        });
        let both = async { tokio::join!(there, back) };
        let done = tokio::time::timeout(PATIENCE, both).await;
        let done = done.unwrap_or_else(|_| panic!("they wait for each other, round {round}"));
        assert_eq!(done, (Ok(10), Ok(10)));
    }
    // Within one file the system decides.
    assert_eq!(real.local.copy((one, 0), (one, 200_000), 1_000).await, Ok(1_000));
    assert_eq!(real.local.copy((one, 0), (one, 500), 1_000).await, Err(Errno::EINVAL));
}

/// Between file systems of different kinds a copy fails with an errno that makes the caller copy
/// the data itself.
#[tokio::test]
async fn a_copy_between_file_systems_fails_so_that_the_caller_copies() {
    let real = Real::new();
    // Mounts below the root belong to it.
    let top = Local::open("/").unwrap();
    let file = real.at("file");
    let file = path(file.to_str().unwrap().trim_start_matches('/'));
    real.put("file", "");
    let from = top.open(&path("proc/version"), OpenFlags::existing(Access::Read)).await.unwrap().fh;
    let to = top.open(&file, OpenFlags::existing(Access::Write)).await.unwrap().fh;
    assert!(!top.read(from, 0, 1_000).await.unwrap().is_empty());
    assert_eq!(top.copy((from, 0), (to, 0), 10).await, Err(Errno::EOPNOTSUPP));
    let fh = create(&real.local, "file").await;
    let strange = Fh(u64::MAX);
    assert_eq!(real.local.copy((strange, 0), (fh, 0), 10).await, Err(Errno::EBADF));
    assert_eq!(real.local.copy((fh, 0), (strange, 0), 10).await, Err(Errno::EBADF));
}

/// A blocked call does not block the runtime's only thread, and dropping its future frees the
/// caller.
#[tokio::test]
async fn a_blocked_call_does_not_block_the_runtime() {
    let real = Real::new();
    let fh = create(&real.local, "file").await;
    let mut pending = 0;
    for round in 0..10u8 {
        // A write in flight, and one that waits for it.
        let mut long = real.local.write(fh, 0, Bytes::from(vec![7; 16 << 20]));
        pending += u32::from(poll_once(&mut long).is_pending());
        let mut waiting = real.local.write(fh, 0, Bytes::from_static(b"later"));
        pending += u32::from(poll_once(&mut waiting).is_pending());
        // Calls on other files are answered on the only thread.
        let other = create(&real.local, "other").await;
        real.local.write(other, 0, Bytes::from_static(b"x")).await.unwrap();
        assert_eq!(real.local.fstat(other).await.unwrap().size, 1);
        real.local.close(other);
        // A call that was started keeps its place in the order when its future is dropped.
        drop(long);
        drop(waiting);
        real.local.write(fh, 0, Bytes::from(vec![round; 5])).await.unwrap();
        real.local.fsync(fh).await.unwrap();
        let content = std::fs::read(real.at("file")).unwrap();
        assert!(content.starts_with(&[round; 5]), "a dropped write came late");
    }
    // On a busy machine a single write may end before it is checked; not all of them.
    assert!(pending > 0, "writes are made on the runtime's thread");
    real.local.close(fh);
}

/// More calls than threads: all are answered, and one that is cancelled while it waits for a thread
/// leaves its place to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_than_threads_are_answered() {
    let real = Real::new();
    real.put("file", "content");
    std::fs::create_dir(real.at("dir")).unwrap();
    let calls: Vec<_> = (0..1_000)
        .map(|number| {
            let local = real.local.clone();
            tokio::spawn(async move {
                let at = path(&format!("dir/{number}"));
                if number % 3 == 0 {
                    let mut call = pin!(local.mkdir(&at, 0o755));
                    let _ = poll_once(&mut call);
                    return true;
                }
                local.symlink(b"x", &at).await.unwrap();
                local.statvfs(&at).await.is_ok()
            })
        })
        .collect();
    for call in calls {
        assert!(tokio::time::timeout(PATIENCE, call).await.expect("it waits").unwrap());
    }
    let made = std::fs::read_dir(real.at("dir"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_symlink());
    assert_eq!(made.count(), 666);
}

/// A batch of a listing whose future was dropped is returned by the next call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_was_given_up_loses_no_entry() {
    let real = Real::new();
    for number in 0..3_000 {
        real.put(&format!("file{number}"), "");
    }
    let dh = real.local.opendir(&path("")).await.unwrap();
    let mut names = std::collections::BTreeSet::new();
    let mut seen = 0;
    for round in 0.. {
        // Dropped before it is polled, at once, or when the batch has been read.
        let mut call = real.local.readdir(dh);
        let answered = match round % 3 {
            0 => Poll::Pending,
            1 => poll_once(&mut call),
            _ => {
                let first = poll_once(&mut call);
                tokio::time::sleep(Duration::from_millis(5)).await;
                first
            }
        };
        if let Poll::Ready(batch) = answered {
            let batch = batch.unwrap().unwrap_or_default();
            seen += batch.len();
            names.extend(batch.into_iter().map(|entry| entry.name));
        }
        drop(call);
        match real.local.readdir(dh).await.unwrap() {
            Some(batch) => {
                seen += batch.len();
                names.extend(batch.into_iter().map(|entry| entry.name));
            }
            None => break,
        }
    }
    assert_eq!((seen, names.len()), (3_000, 3_000));
    real.local.closedir(dh);
    assert_eq!(real.local.readdir(dh).await.err(), Some(Errno::EBADF));
}

/// Data in the page cache is returned in the first poll, and is the data that a blocking read
/// returns.
#[tokio::test]
async fn data_in_the_page_cache_is_read_without_a_thread() {
    let real = Real::new();
    real.put("file", vec![3; 100_000]);
    let fh = create(&real.local, "file").await;
    let Poll::Ready(data) = poll_once(&mut real.local.read(fh, 10, 50_000)) else {
        // On a file system without `RWF_NOWAIT` a blocking thread reads.
        assert_eq!(real.local.read(fh, 10, 50_000).await.unwrap().len(), 50_000);
        return;
    };
    assert_eq!(data.unwrap().to_vec(), vec![3; 50_000]);
    let Poll::Ready(data) = poll_once(&mut real.local.read(fh, 90_000, 50_000)) else {
        panic!("the end of the file is in memory too");
    };
    assert_eq!(data.unwrap().len(), 10_000);
    // Not before a write in flight.
    let mut write = real.local.write(fh, 0, Bytes::from(vec![4; 8 << 20]));
    let written = poll_once(&mut write);
    let mut read = real.local.read(fh, 0, 10);
    let early = poll_once(&mut read);
    match written {
        Poll::Ready(written) => written.unwrap(),
        Poll::Pending => write.await.unwrap(),
    }
    let data = match early {
        Poll::Ready(data) => data,
        Poll::Pending => read.await,
    };
    assert_eq!(data.unwrap().to_vec(), vec![4; 10]);
}
