//! Interrupted copies of large files go on where they were, and are never put together wrongly.

use std::sync::Arc;

use base::{AttrChange, Errno, Remote};
use sha2::Digest as _;
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::digest::{Digest, Digester};
use transfer::{Options, Outcome};

use crate::kit::{
    assert_equal, content, copy, copy_well, copy_with, job, local_dir, mem, read, run, set_time,
    snapshot, temporaries,
};

const MIB: usize = 1 << 20;

async fn source(seed: u32) -> Arc<MemRemote> {
    let source = mem(|remote| remote.put_file("f", content(24 * MIB, seed)));
    set_time(&*source, "f", 100).await;
    source
}

/// A server that tells its run.
fn target() -> Arc<MemRemote> {
    mem(|remote| remote.set_write_verifier("a first run of this machine"))
}

/// Copies until the `nth` write fails; what is left is for the next run.
async fn interrupted(source: &Arc<MemRemote>, nth: u64) -> Arc<MemRemote> {
    let target = target();
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
    let span = span_of(&left);
    let size = target.lstat(&left).await.unwrap().size;
    target.edit(|tree| {
        let ino = tree.lookup(&left, testkit::tree::Follow::No).unwrap();
        let garbage = vec![0xee; 1 << span];
        tree.write(ino, size - (1 << span), &garbage).unwrap();
    });
    for sparse in [false, true] {
        let copied = self::target();
        copy_well(&target, &copied).await;
        let options = Options { sparse, ..Options::default() };
        let outcome = copy_with(&source, &copied, options).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert!(outcome.counts.bytes_resumed > 0);
        assert_eq!(read(&*copied, &path("f")).await, content(24 * MIB, 1));
    }
}

/// The span in the name of a left-over, in bits.
fn span_of(left: &base::RemotePath) -> u32 {
    let name = left.to_string();
    let (_, digits) = name.rsplit_once(".sshoal-").unwrap();
    u32::from_str_radix(&digits[12..14], 16).unwrap()
}

/// The name of what is left.
async fn left_over(target: &Arc<MemRemote>) -> base::RemotePath {
    path(temporaries(&snapshot(&**target).await)[0].trim_matches('"'))
}

fn overwrite(target: &MemRemote, left: &base::RemotePath, offset: u64, bytes: &[u8]) {
    target.edit(|tree| {
        let ino = tree.lookup(left, testkit::tree::Follow::No).unwrap();
        tree.write(ino, offset, bytes).unwrap();
    });
}

/// A server may send a file with such a name.
#[tokio::test]
async fn a_span_that_no_run_uses_is_not_continued() {
    let source = source(1).await;
    for span in ["01", "13", "29"] {
        let target = interrupted(&source, 150).await;
        let left = left_over(&target).await.to_string();
        let (begin, digits) = left.rsplit_once(".sshoal-").unwrap();
        let planted = format!("{begin}.sshoal-{}{span}{}", &digits[..12], &digits[14..]);
        target.move_to(&left, &planted);
        let outcome = go_on(&source, &target).await;
        assert_eq!(outcome.counts.bytes_resumed, 0, "{span}");
    }
}

#[tokio::test]
async fn another_content_is_found_far_from_the_end() {
    let source = source(1).await;
    let target = interrupted(&source, 150).await;
    let left = left_over(&target).await;
    overwrite(&target, &left, 0, &content(2 * MIB, 9));
    let outcome = go_on(&source, &target).await;
    assert_eq!(outcome.counts.bytes_resumed, 0);
}

#[tokio::test]
async fn after_a_restart_of_the_server_a_hole_is_found() {
    let source = source(1).await;
    for (run, resumed) in [("a first run of this machine", true), ("its second run, later", false)]
    {
        let target = interrupted(&source, 150).await;
        // No sample is taken of these bytes, and no length shows them.
        overwrite(&target, &left_over(&target).await, 100_000, &[0; 4096]);
        target.set_write_verifier(run);
        let outcome = copy_well(&source, &target).await;
        assert_eq!(outcome.counts.bytes_resumed > 0, resumed, "{run}");
        if !resumed {
            assert_equal(&*source, &*target).await;
        }
    }
}

#[tokio::test]
async fn after_a_restart_of_the_server_digests_decide() {
    let source = source(1).await;
    for hole in [false, true] {
        let target = interrupted(&source, 150).await;
        target.set_write_verifier("its second run, later");
        if hole {
            overwrite(&target, &left_over(&target).await, 100_000, &[0; 4096]);
        }
        let mut job = job(source.clone(), target.clone(), Options::default());
        for tree in [&mut job.sources[0].tree, &mut job.target] {
            tree.digester = Some(Arc::new(Reading(tree.remote.clone())));
        }
        let outcome = run(job).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_equal(&*source, &*target).await;
        assert_eq!(outcome.counts.bytes_resumed == 0, hole);
    }
}

/// Digests as a command at the server makes them.
struct Reading(Arc<dyn Remote>);

#[async_trait::async_trait]
impl Digester for Reading {
    async fn digest(&self, path: &base::RemotePath) -> Option<Digest> {
        self.digest_of_first(path, u64::MAX).await
    }

    async fn digest_of_first(&self, path: &base::RemotePath, len: u64) -> Option<Digest> {
        let content = read(&*self.0, path).await;
        let len = content.len().min(usize::try_from(len).unwrap());
        Some(sha2::Sha256::digest(&content[..len]).into())
    }
}

#[tokio::test]
async fn what_somebody_else_has_planted_is_not_continued() {
    let source = source(1).await;
    for (what, change) in [
        ("owner", AttrChange { uid: Some(4711), gid: Some(4711), ..AttrChange::default() }),
        ("mode", AttrChange { perm: Some(0o666), ..AttrChange::default() }),
    ] {
        let target = interrupted(&source, 150).await;
        target.setattr(&left_over(&target).await, change).await.unwrap();
        let outcome = go_on(&source, &target).await;
        assert_eq!(outcome.counts.bytes_resumed, 0, "{what}");
    }
}

#[tokio::test]
async fn here_what_has_another_name_or_a_writer_is_not_continued() {
    let source = source(1).await;
    for busy in [false, true] {
        let (dir, local) = local_dir();
        let faulty = Arc::new(FaultyRemote::new(local.clone()));
        faulty.fail(Call::Write, 150, Errno::EHOSTDOWN);
        let mut job = job(source.clone(), faulty, Options::default());
        job.target.local = Some(dir.path().to_owned());
        let outcome = transfer::engine::copy(job, Arc::new(transfer::Silent)).await.unwrap();
        assert_eq!((outcome.stopped, outcome.problems_total), (None, 1), "{outcome:#?}");
        let left = dir.path().join(temporaries(&snapshot(&*local).await)[0].trim_matches('"'));
        let writer = std::fs::OpenOptions::new().write(true).open(&left).unwrap();
        match busy {
            true => writer.lock().unwrap(),
            false => std::fs::hard_link(&left, dir.path().join("another name")).unwrap(),
        }
        let mut job = self::job(source.clone(), local.clone(), Options::default());
        job.target.local = Some(dir.path().to_owned());
        let outcome = run(job).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert_eq!(outcome.counts.bytes_resumed, 0, "{busy}");
        assert_eq!(read(&*local, &path("f")).await, content(24 * MIB, 1));
        assert!(left.exists(), "it is not this run's to remove");
        // Its writer is gone, and it is alone.
        drop(writer);
        let _ = std::fs::remove_file(dir.path().join("another name"));
        std::fs::remove_file(dir.path().join("f")).unwrap();
        let mut job = self::job(source.clone(), local.clone(), Options::default());
        job.target.local = Some(dir.path().to_owned());
        let outcome = run(job).await;
        assert!(outcome.counts.bytes_resumed > 0, "{busy}");
        assert_eq!(read(&*local, &path("f")).await, content(24 * MIB, 1));
        assert_eq!(temporaries(&snapshot(&*local).await), Vec::<&String>::new());
    }
}

#[tokio::test]
async fn without_partial_nothing_is_left() {
    let source = source(1).await;
    let target = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    faulty.fail(Call::Write, 50, Errno::EIO);
    let options = Options { no_partial: true, ..Options::default() };
    let outcome = copy_with(&source, &faulty, options).await;
    assert_eq!(outcome.problems_total, 1);
    assert_eq!(snapshot(&*target).await.len(), 1);
}

#[tokio::test]
async fn without_partial_a_continued_file_is_removed_at_an_interruption() {
    let source = source(1).await;
    // While the file is compared with the source, and after that.
    for held in [Call::Read, Call::Write] {
        let target = interrupted(&source, 150).await;
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        let gate = faulty.hold(held, 1);
        let options = Options { no_partial: true, ..Options::default() };
        let job = job(source.clone(), faulty, options);
        let run = transfer::Run::start(job, Arc::new(transfer::Silent)).await.unwrap();
        let (stopper, progress) = (run.stopper(), run.progress());
        let running =
            tokio::spawn(
                async move { transfer::engine::drive(run, &mut Default::default()).await },
            );
        gate.arrived().await;
        // Once it is compared, it is continued, and not a new one.
        let done = progress.bytes_done.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(done > 0, held == Call::Write);
        stopper.stop();
        assert_eq!(running.await.unwrap().stopped, Some(transfer::Stop::Asked));
        assert_eq!(snapshot(&*target).await.len(), 1, "{held:?}");
        drop(gate);
    }
}

#[tokio::test]
async fn what_is_left_of_other_versions_goes_with_the_next_copy() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let stale = ".f.sshoal-0123456789ab14000000000000000001";
    let target = mem(|remote| remote.put_file(stale, "of another version"));
    copy_well(&source, &target).await;
    assert_eq!(temporaries(&snapshot(&*target).await).len(), 0);
}

#[tokio::test]
async fn what_is_left_of_a_file_that_is_right_by_now_is_removed() {
    let source = source(1).await;
    let target = interrupted(&source, 150).await;
    // Another run has brought it.
    target.put_file("f", content(24 * MIB, 1));
    set_time(&*target, "f", 100).await;
    let outcome = copy_well(&source, &target).await;
    assert_eq!(outcome.counts.files_copied, 0);
    assert_equal(&*source, &*target).await;
}

#[tokio::test]
async fn a_users_file_that_looks_like_a_left_over_stays() {
    let name = ".f.sshoal-0123456789ab14000000000000000001";
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
