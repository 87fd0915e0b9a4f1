//! What a server leaves out of its listings is reported, where somebody tells of it.

use std::sync::Arc;

use async_trait::async_trait;
use base::{Errno, RemotePath};
use testkit::path;
use transfer::unseen::{Complaint, Unseen};
use transfer::{Filter, Options, Outcome};

use crate::kit::{job, mem, run};

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
        assert_eq!(problem.name(), &path("d/mnt"));
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
