//! Interrupted copies of large files go on where they were, and are never put together wrongly.

use std::sync::Arc;

use base::{Errno, Remote};
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::{Options, Outcome};

use crate::kit::{
    assert_equal, content, copy, copy_well, copy_with, mem, read, set_time, snapshot, temporaries,
};

const MIB: usize = 1 << 20;

async fn source(seed: u32) -> Arc<MemRemote> {
    let source = mem(|remote| remote.put_file("f", content(24 * MIB, seed)));
    set_time(&*source, "f", 100).await;
    source
}

/// Copies until the `nth` write fails; what is left is for the next run.
async fn interrupted(source: &Arc<MemRemote>, nth: u64) -> Arc<MemRemote> {
    let target = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    faulty.fail(Call::Write, nth, Errno::EHOSTDOWN);
    let outcome = copy(source, &faulty).await;
    assert!(outcome.stopped.is_some());
    assert_eq!(temporaries(&snapshot(&*target).await).len(), 1);
    target
}

async fn go_on(source: &Arc<MemRemote>, target: &Arc<MemRemote>) -> Outcome {
    let outcome = copy_well(source, target).await;
    assert_equal(&**source, &**target).await;
    outcome
}

#[tokio::test]
async fn a_large_file_is_continued() {
    let source = source(1).await;
    let target = interrupted(&source, 150).await;
    let outcome = go_on(&source, &target).await;
    let counts = outcome.counts;
    assert!(counts.bytes_resumed > 4 * MIB as u64, "{counts:?}");
    assert_eq!(counts.bytes_resumed + counts.bytes_copied, 24 * MIB as u64);
}

#[tokio::test]
async fn another_version_is_not_continued() {
    let target = interrupted(&source(1).await, 150).await;
    let other = source(2).await;
    set_time(&*other, "f", 101).await;
    let outcome = go_on(&other, &target).await;
    assert_eq!(outcome.counts.bytes_resumed, 0);
}

#[tokio::test]
async fn what_differs_from_the_source_is_not_continued() {
    // As if the content had been changed within the second, and the length kept.
    let target = interrupted(&source(1).await, 150).await;
    let outcome = go_on(&source(2).await, &target).await;
    assert_eq!(outcome.counts.bytes_resumed, 0);
}

#[tokio::test]
async fn holes_of_an_interrupted_copy_are_filled() {
    // All of the file has its length, and all but what may be relied on is garbage.
    let source = source(1).await;
    let target = interrupted(&source, 150).await;
    let names = snapshot(&*target).await;
    let left = path(temporaries(&names)[0].trim_matches('"'));
    let span = u32::from_str_radix(&left.to_string()[left.to_string().len() - 2..], 16).unwrap();
    let size = target.lstat(&left).await.unwrap().size;
    target.edit(|tree| {
        let ino = tree.lookup(&left, testkit::tree::Follow::No).unwrap();
        let garbage = vec![0xee; 1 << span];
        tree.write(ino, size - (1 << span), &garbage).unwrap();
    });
    for sparse in [false, true] {
        let copied = mem(|_| {});
        copy_well(&target, &copied).await;
        let options = Options { sparse, ..Options::default() };
        let outcome = copy_with(&source, &copied, options).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert!(outcome.counts.bytes_resumed > 0);
        assert_eq!(read(&*copied, &path("f")).await, content(24 * MIB, 1));
    }
}

#[tokio::test]
async fn without_partial_nothing_is_left() {
    let source = source(1).await;
    let target = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    faulty.fail(Call::Write, 50, Errno::EIO);
    let options = Options { partial: false, ..Options::default() };
    let outcome = copy_with(&source, &faulty, options).await;
    assert_eq!(outcome.problems_total, 1);
    assert_eq!(snapshot(&*target).await.len(), 1);
}

#[tokio::test]
async fn what_is_left_of_other_versions_goes_with_the_next_copy() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let stale = ".f.sshoal-0123456789ab14";
    let target = mem(|remote| remote.put_file(stale, "of another version"));
    copy_well(&source, &target).await;
    assert_eq!(temporaries(&snapshot(&*target).await).len(), 0);
}

#[tokio::test]
async fn a_users_file_that_looks_like_a_left_over_stays() {
    let name = ".f.sshoal-0123456789ab14";
    let source = mem(|remote| {
        remote.put_file("f", "content");
        remote.put_file(name, "a user's");
    });
    let target = Arc::new(MemRemote::new());
    copy_well(&source, &target).await;
    source.put_file("f", "longer content");
    copy_well(&source, &target).await;
    assert_eq!(read(&*target, &path(name)).await, b"a user's");
}
