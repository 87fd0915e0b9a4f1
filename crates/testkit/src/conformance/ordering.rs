//! Calls on one handle take effect in the order of their first polls (rule 2 of [`base::remote`]),
//! and concurrent calls are atomic.

use base::{Access, Create, OpenFlags};
use bytes::Bytes;

use super::fixture::{Fixture, Started, all, ok, pattern, read_write, size_change, started};
use crate::path;

/// Long and short writes to one range, all in flight: the last one wins for every byte.
pub async fn overlapping_writes_end_as_the_last(fixture: &Fixture) {
    let fh = fixture.open_rw("a").await;
    for round in 0..20u8 {
        let lens = [600_000, 10, 70_000, 1, 300_000, 70_001, 5, 32_768, 100_000, 40_000];
        let mut expected = vec![0; 600_000];
        let mut calls: Vec<Started<'_, _>> = Vec::new();
        for (number, len) in lens.into_iter().enumerate() {
            let data = pattern(round ^ (number as u8 * 16), len);
            expected[..len].copy_from_slice(&data);
            calls.push(fixture.write(fh, 0, Bytes::from(data)));
        }
        for written in all(calls).await {
            ok("write", round, written);
        }
        assert!(fixture.bytes(fh, 0, 700_000).await == expected, "round {round}");
    }
    fixture.close(fh);
}

/// A read polled after a write returns its data, though neither was answered yet.
pub async fn a_read_sees_the_writes_before_it(fixture: &Fixture) {
    let fh = fixture.open_rw("a").await;
    for round in 0..50u8 {
        let data = pattern(round, 200_000);
        let write = started(fixture.write(fh, 0, Bytes::from(data.clone())));
        let read = started(fixture.read(fh, 0, 200_000));
        let (written, seen) = tokio::join!(write, read);
        ok("write", round, written);
        assert!(ok("read", round, seen).to_vec() == data, "round {round}");
    }
    fixture.close(fh);
}

/// Concurrent appends are executed in order, each whole if it fits into a request.
pub async fn appends_keep_their_order(fixture: &Fixture) {
    let flags = OpenFlags { append: true, ..read_write(Create::IfAbsent(0o644)) };
    let fh = fixture.handle("a", flags).await;
    let pieces: Vec<Vec<u8>> = (0..50).map(|number| pattern(number, 3_000)).collect();
    let calls = pieces.iter().map(|piece| fixture.write(fh, 0, Bytes::from(piece.clone())));
    for written in all(calls.collect()).await {
        ok("append", "a", written);
    }
    fixture.close(fh);
    assert!(fixture.get("a").await == pieces.concat());
}

/// Writes and changes of size on one handle, all in flight.
pub async fn a_size_change_keeps_its_order(fixture: &Fixture) {
    let fh = fixture.open_rw("a").await;
    for round in 0..20u8 {
        let data = pattern(round, 50_000);
        let calls: Vec<Started<'_, _>> = vec![
            fixture.write(fh, 0, Bytes::from(vec![0xee; 60_000])),
            fixture.fsetattr(fh, size_change(0)),
            fixture.write(fh, 0, Bytes::from(data.clone())),
            fixture.fsetattr(fh, size_change(40_000)),
            fixture.fsetattr(fh, size_change(45_000)),
        ];
        for done in all(calls).await {
            ok("change", round, done);
        }
        let expected = [&data[..40_000], &[0; 5_000]].concat();
        assert!(fixture.bytes(fh, 0, 70_000).await == expected, "round {round}");
    }
    fixture.close(fh);
}

/// Hundreds of calls from several tasks: each gets its own reply.
pub async fn many_calls_at_once_do_not_mix(fixture: &Fixture) {
    const FILES: usize = 40;
    for number in 0..FILES {
        fixture.put(&format!("f{number}"), &pattern(number as u8, 10_000 + number)).await;
    }
    let tasks: Vec<_> = (0..FILES)
        .map(|number| {
            let remote = fixture.shared();
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
