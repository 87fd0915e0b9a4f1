//! A dry run tells what a run does.

use std::sync::Arc;

use testkit::path;
use transfer::{Filter, Options, Progress};

use crate::kit::{Notes, content, job, mem, set_perm, set_time, snapshot, watched};

#[tokio::test]
async fn a_dry_run_lists_exactly_what_a_run_does() {
    let source = mem(|remote| {
        remote.put_file("new/f", "content");
        remote.put_file("same", "same");
        remote.put_file("time", "same");
        remote.put_file("size", "longer");
        remote.put_file("mode", "same");
        remote.put_file("large", content(3 << 20, 1));
        remote.put_file("skip.o", "");
        remote.put_symlink("link", "a");
        remote.put_symlink("link-same", "a");
        remote.put_file("in-the-way", "file");
        remote.put_file("dir/unchanged", "");
    });
    let target = mem(|remote| {
        remote.put_file("same", "same");
        remote.put_file("time", "same");
        remote.put_file("size", "short");
        remote.put_file("mode", "same");
        remote.put_symlink("link", "b");
        remote.put_symlink("link-same", "a");
        remote.put_file("in-the-way/f", "");
        remote.put_file("dir/unchanged", "");
        remote.put_file("dir/old", "");
        remote.put_file("old/a/b", "");
        remote.put_file("old/keep.o", "");
    });
    for name in ["same", "mode", "size", "link-same", "dir/unchanged", "dir"] {
        set_time(&*source, name, 1000).await;
        set_time(&*target, name, 1000).await;
    }
    set_time(&*source, "time", 5).await;
    set_perm(&*source, "mode", 0o400).await;
    let mut rules = Filter::builder();
    let filter = rules.exclude("*.o").build().unwrap();
    let options = Options { filter, delete: true, dry_run: true, ..Options::default() };
    let before = snapshot(&*target).await;
    let foretold = Arc::new(Notes::default());
    let dry = job(source.clone(), target.clone(), options.clone());
    let dry = watched(dry, foretold.clone()).await;
    assert!(dry.is_complete(), "{dry:#?}");
    assert_eq!(snapshot(&*target).await, before);
    assert_eq!(target.open_handles(), 0);
    let happened = Arc::new(Notes::default());
    let options = Options { dry_run: false, ..options };
    let wet = watched(job(source, target, options), happened.clone()).await;
    assert!(wet.is_complete(), "{wet:#?}");
    assert_eq!(foretold.changes(), happened.changes());
    assert!(foretold.changes().len() > 12, "{:?}", foretold.changes());
    assert_eq!(dry.counts, wet.counts);
}

#[tokio::test]
async fn a_dry_run_does_not_need_the_target() {
    let source = mem(|remote| remote.put_file("a/f", "content"));
    let target = mem(|_| {});
    let mut job = job(source, target.clone(), Options { dry_run: true, ..Options::default() });
    job.target.path = path("not/there");
    let outcome = watched(job, Arc::new(Notes::default())).await;
    assert!(outcome.is_complete(), "{outcome:#?}");
    assert_eq!((outcome.counts.dirs_made, outcome.counts.files_copied), (2, 1));
    assert_eq!(snapshot(&*target).await.len(), 1);
}

#[tokio::test]
async fn progress_reaches_what_was_planned() {
    let source = mem(|remote| {
        remote.put_file("small", content(1000, 1));
        remote.put_file("large", content(2 << 20, 2));
    });
    let target = mem(|_| {});
    let job = job(source, target, Options::default());
    let run = transfer::Run::start(job, Arc::new(transfer::Silent)).await.unwrap();
    let progress = run.progress();
    let outcome = transfer::engine::drive(run, &mut Default::default()).await;
    assert!(outcome.is_complete());
    let seen = |counter: fn(&Progress) -> &std::sync::atomic::AtomicU64| {
        counter(&progress).load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!(seen(|progress| &progress.files_planned), 2);
    assert_eq!(seen(|progress| &progress.files_done), 2);
    assert_eq!(seen(|progress| &progress.bytes_planned), (2 << 20) + 1000);
    assert_eq!(seen(|progress| &progress.bytes_done), (2 << 20) + 1000);
    assert_eq!(outcome.counts.bytes_copied, (2 << 20) + 1000);
}
