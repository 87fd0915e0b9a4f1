//! Many files whose digests are needed: a command makes those of all that wait for one, so many
//! have to wait at the same time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::RemotePath;
use testkit::MemRemote;
use tokio::sync::Barrier;
use transfer::digest::{self, Digest, Digester};
use transfer::{Job, Options};

use crate::kit::{job, mem, run};

/// Makes digests when so many were requested.
struct Together {
    remote: Arc<MemRemote>,
    requested: Barrier,
}

#[async_trait]
impl Digester for Together {
    async fn digest(&self, path: &RemotePath) -> Option<Digest> {
        self.requested.wait().await;
        Some(digest::of_bytes(&self.remote.content(path.to_string().trim_matches('"'))))
    }

    async fn digest_of_first(&self, _path: &RemotePath, _len: u64) -> Option<Digest> {
        None
    }
}

/// Copies this many files from a source whose digests are made for `at_once` of them together.
async fn copied(files: usize, at_once: usize, target: &Arc<MemRemote>, options: Options) -> u64 {
    let source = mem(|remote| {
        for number in 0..files {
            remote.put_file(&format!("f{number}"), number.to_string());
        }
    });
    let requested = Barrier::new(at_once);
    let digester = Together { remote: source.clone(), requested };
    let mut job: Job = job(source, target.clone(), options);
    job.sources[0].tree.digester = Some(Arc::new(digester));
    // Else it would wait for ever.
    let outcome = tokio::time::timeout(Duration::from_secs(300), run(job)).await.unwrap();
    assert!(outcome.is_complete(), "{outcome:#?}");
    outcome.counts.files_copied
}

#[tokio::test]
async fn the_digests_of_many_files_are_requested_together() {
    let target = mem(|_| {});
    let verify = Options { verify: true, ..Options::default() };
    // As many as there may be handles at the source.
    assert_eq!(copied(1024, 64, &target, verify).await, 1024);
    let checksum = Options { checksum: true, ..Options::default() };
    assert_eq!(copied(1024, 1024, &target, checksum).await, 0);
}
