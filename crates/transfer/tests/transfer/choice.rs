//! What is copied, and what is left.

use std::sync::Arc;

use base::{Errno, Remote, RemotePath};
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::{Fault, Filter, Job, Options, Source, Tree};

use crate::kit::{copy, copy_well, copy_with, job, mem, names, read, run, set_perm, set_time};

fn from_to(from: &Arc<MemRemote>, at: &str, to: &Arc<MemRemote>, name: &str) -> Job {
    let source = Source { tree: Tree::remote(from.clone()).at(path(at)), to: path(name) };
    Job { sources: vec![source], target: Tree::remote(to.clone()), options: Options::default() }
}

#[tokio::test]
async fn a_source_goes_into_the_target_or_becomes_it() {
    let source = mem(|remote| remote.put_file("a/b/f", "content"));
    let into = Arc::new(MemRemote::new());
    assert!(run(from_to(&source, "a/b", &into, "b")).await.is_complete());
    assert_eq!(read(&*into, &path("b/f")).await, b"content");
    let becomes = Arc::new(MemRemote::new());
    assert!(run(from_to(&source, "a/b", &becomes, "")).await.is_complete());
    assert_eq!(read(&*becomes, &path("f")).await, b"content");
    let file = Arc::new(MemRemote::new());
    assert!(run(from_to(&source, "a/b/f", &file, "f")).await.is_complete());
    assert_eq!(read(&*file, &path("f")).await, b"content");
}

#[tokio::test]
async fn a_target_that_is_absent_is_made() {
    let source = mem(|remote| remote.put_file("f", "content"));
    set_perm(&*source, "", 0o750).await;
    let target = Arc::new(MemRemote::new());
    let mut job = from_to(&source, "", &target, "");
    job.target.path = path("new");
    let outcome = run(job).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!((outcome.counts.dirs_made, outcome.counts.files_copied), (1, 1));
    assert_eq!(target.lstat(&path("new")).await.unwrap().perm, 0o750);
    assert_eq!(read(&*target, &path("new/f")).await, b"content");
}

#[tokio::test]
async fn several_sources_arrive_beside_each_other() {
    let source = mem(|remote| {
        remote.put_file("x/a/f", "one");
        remote.put_file("y/b", "two");
    });
    let target = Arc::new(MemRemote::new());
    let mut job = from_to(&source, "x/a", &target, "a");
    job.sources.push(Source { tree: Tree::remote(source.clone()).at(path("y/b")), to: path("b") });
    job.sources.push(Source { tree: Tree::remote(source).at(path("absent")), to: path("c") });
    let outcome = run(job).await;
    // What is missing is told, and the others are copied.
    assert_eq!(outcome.problems_total, 1);
    assert_eq!(outcome.problems[0].name, path("c"));
    assert_eq!(read(&*target, &path("a/f")).await, b"one");
    assert_eq!(read(&*target, &path("b")).await, b"two");
}

#[tokio::test]
async fn only_attributes_are_set_where_the_content_is_right() {
    let source = mem(|remote| remote.put_file("d/f", "content"));
    let target = Arc::new(MemRemote::new());
    copy_well(&source, &target).await;
    set_perm(&*source, "d/f", 0o600).await;
    set_perm(&*source, "d", 0o700).await;
    target.reset_calls();
    let outcome = copy_well(&source, &target).await;
    assert_eq!((outcome.counts.attrs_set, outcome.counts.files_copied), (2, 0));
    assert_eq!(target.calls(Call::Open), 0);
    assert_eq!(target.lstat(&path("d/f")).await.unwrap().perm, 0o600);
    assert_eq!(target.lstat(&path("d")).await.unwrap().perm, 0o700);
}

#[tokio::test]
async fn update_and_existing_leave_what_they_should() {
    let source = mem(|remote| {
        remote.put_file("newer", "source");
        remote.put_file("older", "source");
        remote.put_file("absent", "source");
        remote.put_file("dir/absent", "source");
    });
    let target = mem(|remote| {
        remote.put_file("newer", "the target's");
        remote.put_file("older", "the target's");
    });
    for (name, at_source, at_target) in [("newer", 100, 200), ("older", 200, 100)] {
        set_time(&*source, name, at_source).await;
        set_time(&*target, name, at_target).await;
    }
    let options = Options { update: true, existing: true, ..Options::default() };
    let outcome = copy_with(&source, &target, options).await;
    assert!(outcome.is_complete());
    assert_eq!((outcome.counts.skipped, outcome.counts.files_copied), (3, 1));
    assert_eq!(read(&*target, &path("newer")).await, b"the target's");
    assert_eq!(read(&*target, &path("older")).await, b"source");
    assert_eq!(names(&*target).await, ["\"newer\"", "\"older\""]);
}

#[tokio::test]
async fn checksum_sees_what_size_and_time_do_not() {
    let source = mem(|remote| {
        remote.put_file("f", "one");
        remote.put_file("g", "same");
    });
    let target = mem(|remote| {
        remote.put_file("f", "two");
        remote.put_file("g", "same");
    });
    for remote in [&source, &target] {
        set_time(&**remote, "f", 100).await;
    }
    set_time(&*source, "g", 100).await;
    set_time(&*target, "g", 200).await;
    let plain = copy(&source, &target).await;
    // Another time alone makes a copy.
    assert_eq!(plain.counts.files_copied, 1);
    assert_eq!(read(&*target, &path("f")).await, b"two");
    set_time(&*target, "g", 200).await;
    let options = Options { checksum: true, ..Options::default() };
    let outcome = copy_with(&source, &target, options).await;
    assert_eq!((outcome.counts.files_copied, outcome.counts.attrs_set), (1, 1));
    assert_eq!(read(&*target, &path("f")).await, b"one");
    assert_eq!(target.lstat(&path("g")).await.unwrap().mtime.secs, 100);
}

#[tokio::test]
async fn what_is_excluded_is_neither_copied_nor_listed() {
    let source = mem(|remote| {
        remote.put_file("a.o", "");
        remote.put_file("keep.o", "");
        remote.put_file("build/deep/f", "");
        remote.put_file("src/build/f", "");
    });
    let mut rules = Filter::builder();
    rules.include("keep.o").exclude("*.o").exclude("/build/");
    let filter = rules.build().unwrap();
    let target = Arc::new(MemRemote::new());
    source.reset_calls();
    let options = Options { filter, ..Options::default() };
    let outcome = copy_with(&source, &target, options).await;
    assert_eq!(outcome.counts.entries, 5);
    let expected = ["\"keep.o\"", "\"src\"", "\"src/build\"", "\"src/build/f\""];
    assert_eq!(names(&*target).await, expected);
    assert_eq!(source.calls(Call::Opendir), 3);
}

#[tokio::test]
async fn a_target_that_is_a_file_is_refused() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let target = mem(|remote| remote.put_file("file", ""));
    let mut job = from_to(&source, "", &target, "");
    job.target.path = path("file");
    let refused = transfer::engine::copy(job, Arc::new(transfer::Silent)).await;
    assert_eq!(refused.unwrap_err(), transfer::JobError::TargetNoDirectory);
}

#[tokio::test]
async fn kinds_that_differ_are_replaced() {
    let source = mem(|remote| {
        remote.put_file("was-link", "file");
        remote.put_symlink("was-file", "somewhere");
        remote.put_file("was-file-2/f", "in a directory");
        remote.put_file("was-empty-dir", "file");
    });
    let target = mem(|remote| {
        remote.put_file("elsewhere/f", "untouched");
        remote.put_symlink("was-link", "elsewhere/f");
        remote.put_file("was-file", "file");
        remote.put_symlink("was-file-2", "elsewhere");
        remote.put_dir("was-empty-dir");
    });
    let outcome = copy_well(&source, &target).await;
    assert_eq!(outcome.counts.failed, 0);
    assert_eq!(read(&*target, &path("elsewhere/f")).await, b"untouched");
    assert_eq!(read(&*target, &path("was-file-2/f")).await, b"in a directory");
    assert_eq!(target.readlink(&path("was-file")).await.unwrap(), b"somewhere");
    assert_eq!(read(&*target, &RemotePath::parse(b"was-empty-dir").unwrap()).await, b"file");
}

#[tokio::test]
async fn one_file_system_is_not_left() {
    let root: Arc<dyn Remote> = Arc::new(local::Local::open("/").unwrap());
    let mut rules = Filter::builder();
    let filter = rules.include("/proc").exclude("/*").exclude("/proc/*/*").build().unwrap();
    for one_file_system in [true, false] {
        let source = Source { tree: Tree::remote(root.clone()), to: path("") };
        let filter = filter.clone();
        let options = Options { dry_run: true, one_file_system, filter, ..Options::default() };
        let target = Tree::remote(Arc::new(MemRemote::new()));
        let outcome = run(Job { sources: vec![source], target, options }).await;
        // The root and the directory itself, as rsync has it.
        assert_eq!(outcome.counts.entries == 2, one_file_system, "{:?}", outcome.counts);
    }
}

#[tokio::test]
async fn a_source_that_does_not_distinguish_its_file_systems_is_a_problem_on_request() {
    let filled = || mem(|remote| remote.put_file("d/f", "content"));
    let (without_ids, known) = (filled(), filled());
    without_ids.set_mount("", 0);
    let without_request = FaultyRemote::new(filled());
    without_request.fail_always(Call::Statvfs, Errno::EOPNOTSUPP);
    let sources: [(Arc<dyn Remote>, bool); 3] =
        [(without_ids, true), (Arc::new(without_request), true), (known, false)];
    for (source, is_problem) in sources {
        for one_file_system in [true, false] {
            let target = Arc::new(MemRemote::new());
            let options = Options { one_file_system, ..Options::default() };
            let outcome = run(job(source.clone(), target.clone(), options)).await;
            let problem = Fault::SourceFileSystems.of(&path(""));
            let expected = if one_file_system && is_problem { vec![problem] } else { Vec::new() };
            assert_eq!(outcome.problems, expected);
            assert_eq!(target.content("d/f"), b"content");
        }
    }
}
