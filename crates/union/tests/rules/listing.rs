//! Directories of several branches as one.

use std::collections::BTreeSet;

use base::{Errno, FileKind, Remote, Timestamp};
use testkit::mem::Options;
use testkit::{Call, MemRemote, path};
use union::Policies;

use crate::kit::{Built, Source, soon};

#[tokio::test]
async fn a_listing_has_each_name_once_with_the_attributes_of_the_first_branch() {
    let built = Built::new(3);
    built.mem(0).put_file("same", "first");
    built.mem(1).put_file("same", "second!");
    built.mem(1).put_file("both-later", "12");
    built.mem(2).put_file("both-later", "123");
    built.mem(2).put_file("last", "1");
    built.mem(0).put_file("kind", "a file");
    built.mem(1).put_dir("kind");
    let dh = built.union.opendir(&path("")).await.unwrap();
    let mut entries = Vec::new();
    while let Some(batch) = built.union.readdir(dh).await.unwrap() {
        entries.extend(batch);
    }
    built.union.closedir(dh);
    let mut seen: Vec<_> =
        entries.iter().map(|entry| (entry.name.to_string(), entry.attr.unwrap())).collect();
    seen.sort_by(|one, other| one.0.cmp(&other.0));
    let sizes: Vec<_> = seen.iter().map(|(name, attr)| (name.as_str(), attr.size)).collect();
    assert_eq!(sizes, [("both-later", 2), ("kind", 6), ("last", 1), ("same", 5)]);
    assert_eq!(seen[1].1.kind, FileKind::Regular);
    assert_eq!(built.open_handles(), 0);
}

#[tokio::test]
async fn directories_merge_to_any_depth() {
    let built = Built::new(3);
    for number in 0..3 {
        built.mem(number).put_file(&format!("a/b/c/d/{number}"), "");
    }
    built.mem(1).put_file("a/only", "");
    assert_eq!(built.names("a/b/c/d").await.unwrap(), ["0", "1", "2"]);
    assert_eq!(built.names("a").await.unwrap(), ["b", "only"]);
    assert_eq!(built.names("").await.unwrap(), ["a"]);
}

#[tokio::test]
async fn large_listings_of_many_batches_are_whole() {
    let options = || Options { listing_batch: 13, ..Options::default() };
    let sources = (0..3).map(|_| Source::of(MemRemote::with(options()))).collect();
    let built = Built::of(sources, Policies::default(), |_, _| {});
    for number in 0..3_000 {
        let at = |name: &str| format!("d/{name}{number}");
        built.mem(number % 3).put_file(&at("own"), "");
        built.mem(number % 2).put_file(&at("shared"), "");
        built.mem(2).put_dir(&at(if number % 2 == 0 { "shared" } else { "dir" }));
    }
    let names = built.names("d").await.unwrap();
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (3_000 + 3_000 + 1_500, 7_500));
}

#[tokio::test]
async fn branches_are_read_at_the_same_time() {
    let built = Built::new(2);
    built.mem(0).put_file("a", "");
    built.mem(1).put_file("b", "");
    let gates = [0, 1].map(|number| built.faults(number).hold(Call::Readdir, 1));
    let call = built.start(|union| async move {
        let dh = union.opendir(&path("")).await.unwrap();
        let first = union.readdir(dh).await.unwrap();
        union.closedir(dh);
        first
    });
    for gate in &gates {
        soon(gate.arrived()).await;
    }
    drop(gates);
    assert!(soon(call).await.unwrap().is_some());
}

#[tokio::test]
async fn a_given_up_call_loses_no_name() {
    let built = Built::new(2);
    for number in 0..250 {
        built.mem(number % 2).put_file(&number.to_string(), "");
    }
    let dh = built.union.opendir(&path("")).await.unwrap();
    let mut names = Vec::new();
    for nth in 1..=2 {
        // Its answer is in flight when the call is dropped.
        let held = built.faults(0).hold_answer(Call::Readdir, nth);
        loop {
            tokio::select! {
                biased;
                () = held.arrived() => break,
                batch = built.union.readdir(dh) => names.extend(batch.unwrap().unwrap()),
            }
        }
        held.release();
    }
    while let Some(batch) = built.union.readdir(dh).await.unwrap() {
        names.extend(batch);
    }
    built.union.closedir(dh);
    let distinct: BTreeSet<_> = names.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!((names.len(), distinct.len()), (250, 250));
    assert_eq!(built.open_handles(), 0);
}

#[tokio::test]
async fn an_error_in_the_middle_fails_the_listing() {
    let options = Options { listing_batch: 10, ..Options::default() };
    let sources = vec![Source::new(), Source::of(MemRemote::with(options))];
    let built = Built::of(sources, Policies::default(), |_, _| {});
    for number in 0..100 {
        built.mem(1).put_file(&number.to_string(), "");
    }
    built.faults(1).fail(Call::Readdir, 3, Errno::EIO);
    assert_eq!(built.names("").await, Err(Errno::EIO));
    assert_eq!(built.faults(1).not_reached(), 0);
    assert_eq!(built.open_handles(), 0);
    assert_eq!(built.names("").await.unwrap().len(), 100);
}

#[tokio::test]
async fn a_walk_queries_each_branch_only_for_its_own_directories() {
    let built = Built::new(2);
    for number in 0..20 {
        built.mem(0).put_file(&format!("a/{number}/x"), "");
    }
    built.mem(1).put_file("b/x", "");
    built.names("").await.unwrap();
    built.names("a").await.unwrap();
    built.reset_calls();
    for number in 0..20 {
        built.names(&format!("a/{number}")).await.unwrap();
    }
    // Each time it is queried for the directory `a`, and for nothing below it.
    assert_eq!(built.requests()[1], 20);
    assert_eq!(built.faults(1).calls(Call::Opendir), 0);
    assert_eq!(built.faults(0).calls(Call::Lstat), 0, "listed as directories a moment ago");
}

#[tokio::test]
async fn a_merged_directory_shows_the_latest_change() {
    let built = Built::new(2);
    built.mem(0).put_dir("d");
    built.mem(1).put_dir("d");
    built.mem(0).set_mtime("d", 1_000);
    built.mem(0).set_perm("d", 0o711);
    built.mem(1).set_mtime("d", 2_000);
    let attr = built.union.lstat(&path("d")).await.unwrap();
    assert_eq!((attr.mtime, attr.perm), (Timestamp::from_secs(2_000), 0o711));
    let dh = built.union.opendir(&path("")).await.unwrap();
    let listed = built.union.readdir(dh).await.unwrap().unwrap();
    assert_eq!(listed[0].attr, Some(attr));
    built.union.closedir(dh);
    built.mem(0).set_mtime("d", 3_000);
    let attr = built.union.lstat(&path("d")).await.unwrap();
    assert_eq!(attr.mtime, Timestamp::from_secs(3_000));
}

#[tokio::test]
async fn missing_attributes_of_a_branch_are_not_invented() {
    let options = Options { listing_attrs: false, ..Options::default() };
    let sources = vec![Source::new(), Source::of(MemRemote::with(options))];
    let built = Built::of(sources, Policies::default(), |_, _| {});
    for number in 0..2 {
        built.mem(number).put_dir("both");
    }
    built.mem(0).put_dir("first");
    let dh = built.union.opendir(&path("")).await.unwrap();
    let mut listed = built.union.readdir(dh).await.unwrap().unwrap();
    built.union.closedir(dh);
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    // The mtime of the second one could be later.
    let told: Vec<bool> = listed.iter().map(|entry| entry.attr.is_some()).collect();
    assert_eq!(told, [false, true]);
}
