//! What fails, one call after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Errno, Remote};
use testkit::faulty::Which;
use testkit::{Call, FaultyRemote, MemRemote, path};
use transfer::{Doing, Fault, Options, Stop};

use crate::kit::{
    Notes, Snapshot, assert_equal, content, copy, copy_well, copy_with, job, mem, names, read,
    set_perm, set_time, snapshot, temporaries, watched,
};

/// A tree with something of each kind, old and new.
async fn source() -> Arc<MemRemote> {
    let source = mem(|remote| {
        remote.put_file("a/small", "new content");
        remote.put_file("a/b/other", content(5000, 1));
        remote.put_file("large", content(700_000, 2));
        remote.put_file("empty", "");
        remote.put_symlink("link", "a/small");
    });
    for name in ["a/small", "a/b/other", "large", "empty"] {
        set_time(&*source, name, 1_000_000).await;
    }
    source
}

fn target() -> Arc<MemRemote> {
    mem(|remote| {
        remote.put_file("a/small", "old");
        remote.put_file("large", content(300_000, 3));
        remote.put_symlink("link", "nowhere");
    })
}

/// Under final names there is what was there, or what is to be there, and nothing else.
fn assert_whole(now: &Snapshot, before: &Snapshot, after: &Snapshot) {
    for (name, seen) in now {
        if seen.kind == base::FileKind::Directory || name.contains(".sshoal-") {
            continue;
        }
        let old = before.get(name).is_some_and(|old| old.content == seen.content);
        let new = after.get(name).is_some_and(|new| {
            new.content == seen.content && (new.perm, new.secs) == (seen.perm, seen.secs)
        });
        let link = seen.kind == base::FileKind::Symlink
            && after.get(name).is_some_and(|new| new.content == seen.content);
        assert!(old || new || link, "{name} is neither old nor new: {} bytes", seen.content.len());
    }
}

/// Runs `make_fault` for the first call, the second and so on, until none is hit, and expects each
/// time that nothing is broken and that another run completes.
async fn sweep(fail_source: bool, make_fault: impl Fn(&FaultyRemote<MemRemote>, u64)) {
    let after = snapshot(&*source().await).await;
    for nth in 1.. {
        assert!(nth < 500, "the sweep does not end");
        let (source, target) = (source().await, target());
        let before = snapshot(&*target).await;
        let faulty_inner = if fail_source { source.clone() } else { target.clone() };
        let faulty = Arc::new(FaultyRemote::new(faulty_inner));
        make_fault(&faulty, nth);
        let plain = Options::default();
        let job = match fail_source {
            true => job(faulty.clone(), target.clone(), plain),
            false => job(source.clone(), faulty.clone(), plain),
        };
        // A target that cannot be looked at is a run that is not begun.
        let outcome = transfer::engine::copy(job, Arc::new(transfer::Silent)).await;
        let hit = faulty.not_reached() == 0;
        assert_whole(&snapshot(&*target).await, &before, &after);
        assert_eq!((source.open_handles(), target.open_handles()), (0, 0), "call {nth}");
        faulty.clear();
        copy_well(&source, &target).await;
        assert_equal(&*source, &*target).await;
        if !hit {
            let outcome = outcome.unwrap();
            assert!(outcome.is_complete(), "{outcome:#?}");
            assert!(nth > 10, "only {nth} calls");
            return;
        }
    }
}

#[tokio::test]
async fn any_call_to_the_target_may_fail() {
    sweep(false, |faulty, nth| faulty.fail(Which::Any, nth, Errno::EIO)).await;
}

#[tokio::test]
async fn any_call_to_the_source_may_fail() {
    sweep(true, |faulty, nth| faulty.fail(Which::Any, nth, Errno::EIO)).await;
}

#[tokio::test]
async fn any_answer_of_the_target_may_be_lost() {
    sweep(false, |faulty, nth| faulty.fail_after(Which::Any, nth, Errno::EHOSTDOWN)).await;
}

#[tokio::test]
async fn any_answer_of_the_source_may_be_lost() {
    sweep(true, |faulty, nth| faulty.fail_after(Which::Any, nth, Errno::ETIMEDOUT)).await;
}

#[tokio::test]
async fn a_run_may_be_dropped_at_any_call() {
    let after = snapshot(&*source().await).await;
    for nth in 1.. {
        assert!(nth < 500, "the sweep does not end");
        let (source, target) = (source().await, target());
        let before = snapshot(&*target).await;
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        let gate = faulty.hold_answer(Which::Any, nth);
        let job = job(source.clone(), faulty.clone(), Options::default());
        let copying = transfer::engine::copy(job, Arc::new(transfer::Silent));
        let over = tokio::select! {
            outcome = copying => Some(outcome.unwrap()),
            () = gate.arrived() => None,
        };
        if let Some(outcome) = over {
            assert!(outcome.is_complete(), "{outcome:#?}");
            assert!(nth > 10, "only {nth} calls");
            return;
        }
        faulty.clear();
        drop(gate);
        // Aborted tasks end when they are polled.
        while source.open_handles() + target.open_handles() > 0 {
            tokio::task::yield_now().await;
        }
        assert_whole(&snapshot(&*target).await, &before, &after);
        copy_well(&source, &target).await;
        assert_equal(&*source, &*target).await;
        assert_eq!(temporaries(&snapshot(&*target).await), Vec::<&String>::new(), "call {nth}");
    }
}

#[tokio::test]
async fn a_run_that_is_asked_to_stop_cleans_up_what_is_small() {
    let source = mem(|remote| remote.put_file("f", "content"));
    let target = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(target.clone()));
    let gate = faulty.hold(Call::Write, 1);
    let job = job(source, faulty.clone(), Options::default());
    let run = transfer::Run::start(job, Arc::new(transfer::Silent)).await.unwrap();
    let stopper = run.stopper();
    let running =
        tokio::spawn(async move { transfer::engine::drive(run, &mut Default::default()).await });
    gate.arrived().await;
    assert_eq!(temporaries(&snapshot(&*target).await).len(), 1);
    stopper.stop();
    let outcome = running.await.unwrap();
    assert_eq!(outcome.stopped, Some(Stop::Asked));
    assert!(!outcome.is_complete());
    assert_eq!(snapshot(&*target).await.len(), 1);
    drop(gate);
}

#[tokio::test]
async fn a_full_disk_is_told_for_each_file_and_the_rest_goes_on() {
    let source = mem(|remote| {
        remote.put_file("large", content(900_000, 1));
        remote.put_file("small/f", "fits");
    });
    let target = Arc::new(MemRemote::new());
    target.edit(|tree| tree.set_capacity(Some(400_000)));
    let outcome =
        copy_with(&source, &target, Options { no_partial: true, ..Options::default() }).await;
    assert_eq!(outcome.problems_total, 1, "{outcome:#?}");
    let expected = Fault::Failed { doing: Doing::Write, errno: Errno::ENOSPC }.of(&path("large"));
    assert_eq!(outcome.problems[0], expected);
    assert_eq!(read(&*target, &path("small/f")).await, b"fits");
    assert_eq!(temporaries(&snapshot(&*target).await), Vec::<&String>::new());
    target.edit(|tree| tree.set_capacity(None));
    copy_well(&source, &target).await;
    assert_equal(&*source, &*target).await;
}

#[tokio::test]
async fn what_may_not_be_read_is_told_and_the_rest_goes_on() {
    let inner = mem(|remote| {
        remote.put_file("a", "1");
        remote.put_file("b", "2");
    });
    let source = Arc::new(FaultyRemote::new(inner));
    source.fail(Call::Open, 1, Errno::EACCES);
    let target = Arc::new(MemRemote::new());
    let outcome = copy(&source, &target).await;
    assert_eq!((outcome.counts.failed, outcome.counts.files_copied), (1, 1));
    assert!(matches!(outcome.problems[0].fault, Fault::Failed { errno: Errno::EACCES, .. }));
    assert!(outcome.problems[0].to_string().contains("cannot read"), "{}", outcome.problems[0]);
}

#[tokio::test]
async fn what_vanishes_is_told() {
    let inner = mem(|remote| remote.put_file("a", "1"));
    let source = Arc::new(FaultyRemote::new(inner.clone()));
    let gate = source.hold(Call::Open, 1);
    let target = Arc::new(MemRemote::new());
    let (outcome, ()) = tokio::join!(copy(&source, &target), async {
        gate.arrived().await;
        inner.remove("a");
        gate.release();
    });
    assert_eq!(outcome.problems, [Fault::Vanished.of(&path("a"))]);
    assert_eq!(snapshot(&*target).await.len(), 1);
}

/// A file that is changed at its first reading, and perhaps at its second.
async fn changed_while_read(len: usize, times: u64) -> (Arc<MemRemote>, transfer::Outcome) {
    let inner = mem(|remote| remote.put_file("f", content(len, 1)));
    set_time(&*inner, "f", 100).await;
    let source = Arc::new(FaultyRemote::new(inner.clone()));
    let target = Arc::new(MemRemote::new());
    // The content is changed before the look that follows the reading.
    let reads = source.hold(Call::Read, 1);
    let again = (times > 1).then(|| source.hold(Call::Read, 2));
    let meddle = async {
        reads.arrived().await;
        inner.put_file("f", content(len, 2));
        set_time(&*inner, "f", 200).await;
        reads.release();
        if let Some(again) = &again {
            again.arrived().await;
            inner.put_file("f", content(len, 3));
            set_time(&*inner, "f", 300).await;
            again.release();
        }
    };
    let job = job(source, target.clone(), Options::default());
    let run = transfer::Run::start(job, Arc::new(transfer::Silent)).await.unwrap();
    let progress = run.progress();
    let mut streams = Default::default();
    let (outcome, ()) = tokio::join!(transfer::engine::drive(run, &mut streams), meddle);
    let (done, planned) = (progress.bytes_done.load(Relaxed), progress.bytes_planned.load(Relaxed));
    assert!(done <= planned, "{done} of {planned} bytes");
    (target, outcome)
}

#[tokio::test]
async fn what_changes_while_it_is_read_is_read_again() {
    for len in [1000, 700_000] {
        let (target, outcome) = changed_while_read(len, 1).await;
        assert!(outcome.is_complete(), "{outcome:#?}");
        assert!(read(&*target, &path("f")).await == content(len, 2));
        assert_eq!(target.lstat(&path("f")).await.unwrap().mtime.secs, 200);
    }
}

#[tokio::test]
async fn what_changes_each_time_is_given_up() {
    let (target, outcome) = changed_while_read(1000, 2).await;
    assert_eq!(outcome.problems, [Fault::Changed.of(&path("f"))]);
    assert_eq!(snapshot(&*target).await.len(), 1);
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_fails_with_all_below_it() {
    let source = mem(|remote| {
        remote.put_file("d/a/f", "");
        remote.put_file("e", "");
    });
    let target = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
    target.fail_always(Call::Mkdir, Errno::EDQUOT);
    let outcome = copy(&source, &target).await;
    assert_eq!((outcome.counts.failed, outcome.counts.files_copied), (3, 1), "{outcome:#?}");
    assert_eq!(outcome.problems_total, 3);
}

#[tokio::test]
async fn verifying_finds_what_the_target_has_made_of_it() {
    for len in [1000, 700_000] {
        let source = mem(|remote| remote.put_file("f", content(len, 1)));
        let inner = Arc::new(MemRemote::new());
        let target = Arc::new(FaultyRemote::new(inner.clone()));
        let gate = target.hold(Call::Fstat, 1);
        let options = Options { verify: true, ..Options::default() };
        let (outcome, ()) = tokio::join!(copy_with(&source, &target, options), async {
            gate.arrived().await;
            // A byte goes bad.
            let name = snapshot(&*inner).await.into_keys().find(|name| name.contains("sshoal"));
            let name = name.unwrap();
            let bad = path(name.trim_matches('"'));
            inner.edit(|tree| {
                let ino = tree.lookup(&bad, testkit::tree::Follow::No).unwrap();
                tree.write(ino, 10, b"bad").unwrap();
            });
            gate.release();
        });
        let differs = Fault::Differs { what: "digest" }.of(&path("f"));
        assert_eq!(outcome.problems, [differs]);
        assert_eq!(snapshot(&*inner).await.len(), 1, "{len}");
    }
}

/// A program may show the first problems only.
#[tokio::test]
async fn the_reason_comes_before_what_follows_from_it() {
    let source = mem(|remote| {
        for number in 0..1500 {
            remote.put_file(&format!("d/{number}"), "content");
        }
    });
    let target = Arc::new(FaultyRemote::new(mem(|_| {})));
    target.fail_always(Call::Mkdir, Errno::ENOSPC);
    let outcome = copy(&source, &target).await;
    let (name, doing, errno) = (path("d"), Doing::MakeDir, Errno::ENOSPC);
    assert_eq!(outcome.problems[0], Fault::Failed { doing, errno }.of(&name));
    assert_eq!((outcome.problems.len(), outcome.problems_total), (1000, 1501));
}

/// What the next run would not continue takes room on a disk that is full.
#[tokio::test]
async fn a_full_disk_keeps_only_what_the_next_run_continues() {
    let source = mem(|remote| remote.put_file("f", content(24 << 20, 1)));
    for (nth, kept) in [(1, 0), (150, 1)] {
        let target = mem(|remote| remote.set_write_verifier("a run of this machine"));
        let faulty = Arc::new(FaultyRemote::new(target.clone()));
        faulty.fail(Call::Write, nth, Errno::ENOSPC);
        let outcome = copy(&source, &faulty).await;
        assert_eq!(outcome.problems_total, 1);
        assert_eq!(temporaries(&snapshot(&*target).await).len(), kept, "write {nth}");
        let outcome = copy_well(&source, &target).await;
        assert_eq!(outcome.counts.bytes_resumed > 0, kept == 1, "{outcome:#?}");
        assert_eq!(temporaries(&snapshot(&*target).await).len(), 0);
    }
}

/// A directory of this machine in which a network file system is mounted whose server is down.
fn with_mount_that_is_down(errno: Errno) -> Arc<MemRemote> {
    let options =
        testkit::mem::Options { listing_attrs: false, may_be_lost: false, ..Default::default() };
    let remote = Arc::new(MemRemote::with(options));
    for file in ["a", "mnt/f", "z"] {
        remote.put_file(file, "content");
    }
    remote.set_unseen("mnt", errno);
    remote
}

#[tokio::test]
async fn a_mounted_file_system_that_is_down_does_not_end_the_copy() {
    for errno in [Errno::EHOSTDOWN, Errno::ETIMEDOUT] {
        let failed = |doing| Fault::Failed { doing, errno }.of(&path("mnt"));
        let target = Arc::new(MemRemote::new());
        let outcome = copy(&with_mount_that_is_down(errno), &target).await;
        assert_eq!((outcome.stopped, outcome.problems), (None, vec![failed(Doing::LookSource)]));
        assert_eq!(target.names(""), ["a", "z"]);

        let source = mem(|remote| {
            remote.put_file("b", "content");
            remote.put_file("mnt/f", "content");
        });
        let target = with_mount_that_is_down(errno);
        let outcome = copy(&source, &target).await;
        assert_eq!((outcome.stopped, outcome.problems), (None, vec![failed(Doing::LookTarget)]));
        assert_eq!(target.content("b"), b"content");
    }
}

#[tokio::test]
async fn a_directory_of_a_mounted_file_system_that_is_down_is_one_reason() {
    let options = testkit::mem::Options { may_be_lost: false, ..Default::default() };
    let source = mem(|remote| {
        remote.put_file("d/f", "content");
        remote.put_file("z", "content");
    });
    let target = Arc::new(FaultyRemote::new(Arc::new(MemRemote::with(options))));
    target.fail(Call::Mkdir, 1, Errno::EHOSTDOWN);
    let outcome = copy(&source, &target).await;
    let (name, doing, errno) = (path("d"), Doing::MakeDir, Errno::EHOSTDOWN);
    let reason = Fault::Failed { doing, errno }.of(&name);
    let problems = [reason, Fault::NoDirectory.of(&path("d/f"))];
    assert_eq!((outcome.stopped, outcome.problems), (None, problems.into()));
    assert_eq!(outcome.counts.files_copied, 1);
}

#[tokio::test]
async fn a_problem_that_is_not_of_an_entry_is_shown_by_itself() {
    let source = Arc::new(FaultyRemote::new(mem(|remote| {
        remote.put_file("d/f", "content");
        remote.put_file("e", "content");
    })));
    // That of `d`.
    source.fail(Call::Opendir, 2, Errno::EACCES);
    let target = Arc::new(FaultyRemote::new(mem(|_| {})));
    target.fail_always(Call::Write, Errno::EIO);
    let notes = Arc::new(Notes::default());
    let outcome = watched(job(source, target, Options::default()), notes.clone()).await;
    assert_eq!(outcome.problems_total, 2, "{outcome:#?}");
    let (name, doing, errno) = (path("d"), Doing::ListSource, Errno::EACCES);
    assert_eq!(notes.problems(), [Fault::Failed { doing, errno }.of(&name)]);
}

/// A tree with more files than a server has handles, in several directories.
fn many_files() -> Arc<MemRemote> {
    mem(|remote| {
        for number in 0..400 {
            remote.put_file(&format!("{}/{number}", number % 40), content(100, number));
        }
    })
}

/// A server with few handles, which takes so long that many files are in progress.
fn with_few_handles(max_handles: usize) -> MemRemote {
    let remote = MemRemote::with(testkit::mem::Options { max_handles, ..Default::default() });
    remote.set_latency(Some(std::time::Duration::from_millis(2)));
    remote
}

#[tokio::test]
async fn a_server_with_few_handles_gets_all_files() {
    let target = Arc::new(with_few_handles(90));
    let source = many_files();
    copy_well(&source, &target).await;
    assert_equal(&*source, &*target).await;
}

#[tokio::test]
async fn a_server_with_few_handles_gives_all_files() {
    let (source, target) = (with_few_handles(90), Arc::new(MemRemote::new()));
    for number in 0..400 {
        source.put_file(&format!("{}/{number}", number % 40), content(100, number));
    }
    let source = Arc::new(source);
    copy_well(&source, &target).await;
    assert_equal(&*source, &*target).await;
}

#[tokio::test]
async fn files_that_cannot_be_made_are_tried_again_a_few_times() {
    let source = many_files();
    let target = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
    target.fail_always(Call::Open, Errno::EPERM);
    let outcome = copy(&source, &target).await;
    assert_eq!(outcome.problems_total, 400);
    assert_eq!(target.calls(Call::Open), 408);
}

/// A server that ignores the mode of a new file.
#[tokio::test]
async fn a_file_that_others_could_read_then_does_not_get_its_name() {
    for (perm, is_there) in [(0o600, false), (0o640, false), (0o644, true)] {
        let source = mem(|remote| remote.put_file("f", "content"));
        set_perm(&*source, "f", perm).await;
        let inner = Arc::new(MemRemote::new());
        let target = Arc::new(FaultyRemote::new(inner.clone()));
        target.fail_always(Call::Fsetattr, Errno::EPERM);
        target.fail_always(Call::Setattr, Errno::EPERM);
        let gate = target.hold(Call::Fsetattr, 1);
        let (outcome, ()) = tokio::join!(copy(&source, &target), async {
            gate.arrived().await;
            let name = snapshot(&*inner).await.into_keys().find(|name| name.contains("sshoal"));
            set_perm(&*inner, name.unwrap().trim_matches('"'), 0o644).await;
            gate.release();
        });
        let of_file = outcome.problems.iter().find(|problem| problem.name == path("f")).unwrap();
        let expected = match is_there {
            true => Fault::RefusedAttributes { errno: Errno::EPERM },
            false => Fault::Failed { doing: Doing::SetAttr, errno: Errno::EPERM },
        };
        assert_eq!(of_file.fault, expected);
        let names = names(&*inner).await;
        assert_eq!(names.len(), usize::from(is_there), "{names:?}");
    }
}

#[tokio::test]
async fn a_target_that_may_not_replace_files_has_a_hint() {
    let source = mem(|remote| remote.put_file("f", "new"));
    let target = Arc::new(FaultyRemote::new(mem(|remote| remote.put_file("f", "old one"))));
    target.fail_always(Call::Rename, Errno::EPERM);
    let outcome = copy(&source, &target).await;
    let words = outcome.problems[0].to_string();
    assert!(words.contains("-o workaround=rename"), "{words}");
}

/// As in an outage: the attributes of directories are set when everything in them is done.
#[tokio::test]
async fn a_directory_that_gets_no_answer_does_not_delay_the_end() {
    let source = mem(|remote| remote.put_file("a/small", ""));
    set_perm(&*source, "a", 0o750).await;
    let faulty = Arc::new(FaultyRemote::new(Arc::new(MemRemote::new())));
    let gate = faulty.hold(Call::Setattr, 1);
    let job = job(source, faulty, Options::default());
    let run = transfer::Run::start(job, Arc::new(transfer::Silent)).await.unwrap();
    let stopper = run.stopper();
    let mut streams = Default::default();
    let ending = async {
        gate.arrived().await;
        stopper.stop();
    };
    let both = async { tokio::join!(transfer::engine::drive(run, &mut streams), ending) };
    let limit = std::time::Duration::from_secs(10);
    let (outcome, ()) = tokio::time::timeout(limit, both).await.unwrap();
    assert_eq!(outcome.stopped, Some(Stop::Asked));
}
