//! Entries that cannot be `lstat`ed: those that a server omits from its listings are reported if a
//! command finds them, and those that are listed are one problem each.

use std::sync::Arc;

use async_trait::async_trait;
use base::{Errno, RemotePath};
use testkit::tree::Limits;
use testkit::{MemRemote, path};
use transfer::unseen::{Complaint, Unseen};
use transfer::{Doing, Fault, Filter, Options, Outcome, Problem};

use crate::kit::{copy_with, job, mem, names, run};

/// Complains of these paths.
struct Complains(Vec<&'static str>);

#[async_trait]
impl Unseen for Complains {
    async fn below(&self, _: &RemotePath) -> Option<Vec<Complaint>> {
        let words = || "Stale file handle".to_owned();
        Some(self.0.iter().map(|at| Complaint { path: Some(path(at)), words: words() }).collect())
    }
}

async fn copied(of: &[&'static str], exclude: Option<&str>, delete: bool) -> Outcome {
    let source = mem(|remote| {
        remote.put_file("f", "content");
        remote.put_file("d/mnt/g", "content");
        remote.set_unseen("d/mnt", Errno::EIO);
    });
    let target = mem(|remote| remote.put_file("old", ""));
    let mut rules = Filter::builder();
    if let Some(pattern) = exclude {
        rules.exclude(pattern);
    }
    let filter = rules.build().unwrap();
    let mut job = job(source, target, Options { filter, delete, ..Options::default() });
    job.sources[0].tree.unseen = Some(Arc::new(Complains(of.to_vec())));
    run(job).await
}

#[tokio::test]
async fn what_the_server_cannot_look_at_is_a_problem() {
    for delete in [true, false] {
        let outcome = copied(&["d/mnt"], None, delete).await;
        assert_eq!(outcome.problems_total, 1, "{outcome:#?}");
        let problem = &outcome.problems[0];
        assert_eq!(problem.name, path("d/mnt"));
        assert!(problem.to_string().contains("Stale file handle"), "{problem}");
        assert_eq!(outcome.counts.files_copied, 1);
        assert_eq!(outcome.deletions_withheld, u64::from(delete));
    }
}

#[tokio::test]
async fn what_is_excluded_or_gone_or_listed_is_none() {
    for (of, exclude) in [
        (&["d/mnt"][..], Some("mnt")),
        (&["d/mnt"], Some("/d/")),
        (&["gone", "d/mnt/absent/x", "f"], None),
    ] {
        let outcome = copied(of, exclude, false).await;
        assert!(outcome.is_complete(), "{of:?} {exclude:?}: {outcome:#?}");
    }
}

/// A remote that lists `d/mnt`, whose `lstat` fails, as a local directory lists a dead mount.
fn with_dead_mount(fill: impl FnOnce(&MemRemote)) -> Arc<MemRemote> {
    let options = testkit::mem::Options { listing_attrs: false, ..Default::default() };
    let remote = Arc::new(MemRemote::with(options));
    remote.put_file("d/mnt/g", "content");
    fill(&remote);
    remote.set_unseen("d/mnt", Errno::ENOTCONN);
    remote
}

fn with_delete(delete: bool, exclude: Option<&str>) -> Options {
    let mut rules = Filter::builder();
    if let Some(pattern) = exclude {
        rules.exclude(pattern);
    }
    Options { delete, filter: rules.build().unwrap(), ..Options::default() }
}

#[tokio::test]
async fn an_entry_of_the_source_without_attributes_is_one_problem() {
    for delete in [false, true] {
        let source = with_dead_mount(|remote| {
            remote.put_file("d/h", "content");
            remote.put_file("f", "content");
        });
        let target = mem(|remote| {
            remote.put_file("d/mnt/old", "");
            remote.put_file("d/surplus", "");
        });
        let outcome = copy_with(&source, &target, with_delete(delete, None)).await;
        let (doing, errno) = (Doing::LookSource, Errno::ENOTCONN);
        let problem = Fault::Failed { doing, errno }.of(&path("d/mnt"));
        assert_eq!(outcome.problems, [problem]);
        let expected = ["d", "d/h", "d/mnt", "d/mnt/old", "d/surplus", "f"];
        assert_eq!(names(&*target).await, expected.map(|name| format!("{name:?}")));
        assert_eq!(outcome.deletions_withheld, u64::from(delete));
        let excluded = copy_with(&source, &target, with_delete(delete, Some("mnt"))).await;
        assert!(excluded.is_complete(), "{excluded:#?}");
    }
}

#[tokio::test]
async fn an_entry_of_the_target_without_attributes_is_one_problem_if_it_is_needed() {
    let problem =
        Fault::Failed { doing: Doing::LookTarget, errno: Errno::ENOTCONN }.of(&path("d/mnt"));
    for (has_name, delete) in [(true, false), (true, true), (false, false), (false, true)] {
        let source = mem(|remote| {
            remote.put_file("d/h", "content");
            if has_name {
                remote.put_file("d/mnt/g", "other");
            }
        });
        let target = with_dead_mount(|remote| remote.put_file("d/surplus", ""));
        let outcome = copy_with(&source, &target, with_delete(delete, None)).await;
        let expected: &[Problem] =
            if has_name || delete { std::slice::from_ref(&problem) } else { &[] };
        assert_eq!(outcome.problems, expected, "{has_name} {delete}");
        assert_eq!(outcome.counts.files_copied, 1);
        assert_eq!(outcome.deletions_withheld, u64::from(delete));
        let excluded = copy_with(&source, &target, with_delete(delete, Some("mnt"))).await;
        assert!(excluded.is_complete(), "{excluded:#?}");
    }
}

/// As the helper, whose listings omit nothing: no command searches for what they leave out.
#[tokio::test]
async fn a_source_that_lists_all_entries_is_not_searched() {
    for lists_all in [true, false] {
        let limits = Limits { shows_inodes: lists_all, ..Limits::default() };
        let options = testkit::mem::Options { limits, ..Default::default() };
        let source = Arc::new(MemRemote::with(options));
        source.put_file("d/mnt/g", "content");
        source.set_unseen("d/mnt", Errno::EIO);
        let mut job = job(source, mem(|_| {}), Options::default());
        job.sources[0].tree.unseen = Some(Arc::new(Complains(vec!["d/mnt"])));
        let outcome = run(job).await;
        assert_eq!(outcome.problems_total, u64::from(!lists_all), "{outcome:#?}");
    }
}

/// Reports that these are names of one file.
struct Links(Vec<&'static str>);

#[async_trait]
impl Unseen for Links {
    async fn below(&self, _: &RemotePath) -> Option<Vec<Complaint>> {
        Some(Vec::new())
    }

    async fn links(&self, _: &RemotePath) -> Option<transfer::unseen::Links> {
        Some(self.0.iter().map(|at| (path(at), (1, 2))).collect())
    }
}

/// The names of a file are found before all of them are listed.
#[tokio::test]
async fn a_name_that_was_replaced_since_is_no_other_name_of_the_file() {
    for shows_inodes in [false, true] {
        // As on overlayfs, where only the number of names is known.
        let limits = Limits { shows_inodes, hides_identities: true, ..Limits::default() };
        let options = testkit::mem::Options { limits, ..Default::default() };
        let source = Arc::new(MemRemote::with(options));
        for name in ["a", "d/replaced", "single"] {
            source.put_file(name, "content");
            source.set_mtime(name, 1_000_000_000);
        }
        source.set_mtime("d/replaced", 1_000_000_001);
        for (name, other) in [("a", "b"), ("d/replaced", "d/other")] {
            source.edit(|tree| tree.link(&path(name), &path(other))).unwrap();
        }
        let target = mem(|_| {});
        let options = Options { hard_links: true, ..Options::default() };
        let mut job = job(source, target.clone(), options);
        job.sources[0].tree.unseen = Some(Arc::new(Links(vec!["a", "b", "d/replaced"])));
        let outcome = run(job).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!((outcome.counts.files_copied, outcome.counts.names_made), (4, 1));
    }
}
