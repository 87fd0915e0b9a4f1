//! Deleting: last, only after success, and never too much.

use std::sync::Arc;

use base::{Errno, Remote};
use testkit::{Call, FaultyRemote, path};
use transfer::{Filter, Options};

use crate::kit::{copy_with, mem, names, read};

fn delete() -> Options {
    Options { delete: true, ..Options::default() }
}

#[tokio::test]
async fn what_the_source_lacks_goes_with_all_below_it() {
    let source = mem(|remote| remote.put_file("keep/f", "1"));
    let target = mem(|remote| {
        remote.put_file("keep/old", "");
        remote.put_file("gone/a/b/f", "");
        remote.put_symlink("link", "keep");
    });
    let outcome = copy_with(&source, &target, delete()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(outcome.counts.deleted, 6);
    assert_eq!(names(&*target).await, ["\"keep\"", "\"keep/f\""]);
    let times = |remote: Arc<testkit::MemRemote>| async move {
        remote.lstat(&path("keep")).await.unwrap().mtime.secs
    };
    assert_eq!(times(source).await, times(target).await);
}

#[tokio::test]
async fn nothing_is_deleted_after_a_failure() {
    for call in [Call::Write, Call::Opendir, Call::Mkdir] {
        let source = mem(|remote| remote.put_file("d/f", "content"));
        let target = mem(|remote| remote.put_file("old", "precious"));
        // The directory of the target is listed first.
        let nth = if call == Call::Opendir { 2 } else { 1 };
        let faulty = Arc::new(FaultyRemote::new(match call {
            Call::Opendir => source.clone(),
            _ => target.clone(),
        }));
        faulty.fail(call, nth, Errno::EACCES);
        let outcome = match call {
            Call::Opendir => copy_with(&faulty, &target, delete()).await,
            _ => copy_with(&source, &faulty, delete()).await,
        };
        assert_eq!(faulty.not_reached(), 0, "{call:?}");
        assert_eq!(outcome.deletions_withheld, 1, "{call:?}: {outcome:#?}");
        assert_eq!(outcome.counts.deleted, 0, "{call:?}");
        assert_eq!(read(&*target, &path("old")).await, b"precious");
    }
}

#[tokio::test]
async fn too_many_deletions_are_none() {
    let source = mem(|remote| remote.put_file("f", "content"));
    for (max, deleted, withheld) in [(2, 0, 3), (3, 3, 0)] {
        let target = mem(|remote| remote.put_file("a/b/old", ""));
        let options = Options { max_delete: Some(max), ..delete() };
        let outcome = copy_with(&source, &target, options).await;
        assert_eq!(outcome.counts.deleted, deleted);
        assert_eq!(outcome.deletions_withheld, withheld);
        assert_eq!(outcome.counts.files_copied, 1);
    }
}

#[tokio::test]
async fn what_is_excluded_is_not_deleted() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let target = mem(|remote| {
        remote.put_file("a/keep.o", "");
        remote.put_file("a/old", "");
        remote.put_file("keep.o", "");
    });
    let mut rules = Filter::builder();
    let filter = rules.exclude("*.o").build().unwrap();
    let outcome = copy_with(&source, &target, Options { filter, ..delete() }).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!(outcome.counts.deleted, 1);
    assert_eq!(names(&*target).await, ["\"a\"", "\"a/keep.o\"", "\"f\"", "\"keep.o\""]);
}

#[tokio::test]
async fn a_full_directory_in_a_files_place_goes_with_delete_only() {
    let source = mem(|remote| remote.put_file("d", "file"));
    let target = mem(|remote| remote.put_file("d/f", "in it"));
    for dry_run in [true, false] {
        let outcome = copy_with(&source, &target, Options { dry_run, ..Options::default() }).await;
        assert_eq!((outcome.counts.failed, outcome.problems_total), (1, 1), "{outcome:#?}");
        assert_eq!(read(&*target, &path("d/f")).await, b"in it");
    }
    let outcome = copy_with(&source, &target, delete()).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!((outcome.counts.deleted, outcome.counts.files_copied), (2, 1));
    assert_eq!(read(&*target, &path("d")).await, b"file");
}
