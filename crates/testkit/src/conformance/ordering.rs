//! Calls on one handle take effect in the order of their first poll (rule 2 of [`base::remote`]),
//! and calls at the same time do not mix.

use base::{Access, Create, OpenFlags};
use bytes::Bytes;

use super::ground::{Ground, Started, all, ok, pattern, poll_once, read_write, size_change};
use crate::path;

/// Long and short writes to one place, all under way at once: the last one wins, everywhere.
pub async fn overlapping_writes_end_as_the_last(ground: &Ground) {
    let fh = ground.open_rw("a").await;
    for round in 0..20u8 {
        let lens = [600_000, 10, 70_000, 1, 300_000, 70_001, 5, 32_768, 100_000, 40_000];
        let mut expected = vec![0; 600_000];
        let mut calls: Vec<Started<'_, _>> = Vec::new();
        for (number, len) in lens.into_iter().enumerate() {
            let data = pattern(round ^ (number as u8 * 16), len);
            expected[..len].copy_from_slice(&data);
            calls.push(ground.write(fh, 0, Bytes::from(data)));
        }
        for written in all(calls).await {
            ok("write", round, written);
        }
        assert!(ground.bytes(fh, 0, 700_000).await == expected, "round {round}");
    }
    ground.close(fh);
}

/// A read that was polled after a write sees it, though neither is answered yet.
pub async fn a_read_sees_the_writes_before_it(ground: &Ground) {
    let fh = ground.open_rw("a").await;
    for round in 0..50u8 {
        let data = pattern(round, 200_000);
        let mut write = ground.write(fh, 0, Bytes::from(data.clone()));
        let written_at_once = poll_once(&mut write);
        let mut read = ground.read(fh, 0, 200_000);
        let read_at_once = poll_once(&mut read);
        let write = async move {
            match written_at_once {
                std::task::Poll::Ready(result) => result,
                std::task::Poll::Pending => write.await,
            }
        };
        let read = async move {
            match read_at_once {
                std::task::Poll::Ready(result) => result,
                std::task::Poll::Pending => read.await,
            }
        };
        let (written, seen) = tokio::join!(write, read);
        ok("write", round, written);
        assert!(ok("read", round, seen).to_vec() == data, "round {round}");
    }
    ground.close(fh);
}

/// Appends that are under way at once come one after the other, each whole if it fits a request.
pub async fn appends_keep_their_order(ground: &Ground) {
    let flags = OpenFlags { append: true, ..read_write(Create::IfAbsent(0o644)) };
    let fh = ground.handle("a", flags).await;
    let pieces: Vec<Vec<u8>> = (0..50).map(|number| pattern(number, 3_000)).collect();
    let calls = pieces.iter().map(|piece| ground.write(fh, 0, Bytes::from(piece.clone())));
    for written in all(calls.collect()).await {
        ok("append", "a", written);
    }
    ground.close(fh);
    assert!(ground.get("a").await == pieces.concat());
}

/// Writes and changes of size on one handle, under way at once.
pub async fn a_size_change_takes_its_turn(ground: &Ground) {
    let fh = ground.open_rw("a").await;
    for round in 0..20u8 {
        let data = pattern(round, 50_000);
        let calls: Vec<Started<'_, _>> = vec![
            ground.write(fh, 0, Bytes::from(vec![0xee; 60_000])),
            ground.fsetattr(fh, size_change(0)),
            ground.write(fh, 0, Bytes::from(data.clone())),
            ground.fsetattr(fh, size_change(40_000)),
            ground.fsetattr(fh, size_change(45_000)),
        ];
        for done in all(calls).await {
            ok("change", round, done);
        }
        let expected = [&data[..40_000], &[0; 5_000]].concat();
        assert!(ground.bytes(fh, 0, 70_000).await == expected, "round {round}");
    }
    ground.close(fh);
}

/// Hundreds of calls from several tasks, each of which gets its own answer.
pub async fn many_calls_at_once_do_not_mix(ground: &Ground) {
    const FILES: usize = 40;
    for number in 0..FILES {
        ground.put(&format!("f{number}"), &pattern(number as u8, 10_000 + number)).await;
    }
    let tasks: Vec<_> = (0..FILES)
        .map(|number| {
            let remote = ground.shared();
            tokio::spawn(async move {
                let at = path(&format!("f{number}"));
                let flags = OpenFlags::existing(Access::Read);
                for _ in 0..10 {
                    let attr = ok("lstat", &at, remote.lstat(&at).await);
                    assert_eq!(attr.size, 10_000 + number as u64, "{at}");
                    let fh = ok("open", &at, remote.open(&at, flags).await).fh;
                    let data = ok("read", &at, remote.read(fh, 0, 20_000).await);
                    assert!(data.to_vec() == pattern(number as u8, 10_000 + number), "{at}");
                    remote.close(fh);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task failed");
    }
}
