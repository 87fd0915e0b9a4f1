//! Two runs into one place at once: each ends with what the source has, and none harms the other.

use std::sync::Arc;

use testkit::interleave::{Interleave, Stop, seeds};
use testkit::{FaultyRemote, MemRemote, path};
use transfer::{Options, Outcome, Run, Silent, engine};

use crate::kit::{assert_equal, content, copy_well, job, mem, set_time, snapshot, temporaries};

/// Larger than a piece, in which the span leaves something to rely on.
const LARGE: usize = 3 << 20;

/// A file that is large, some that are not, and a link.
async fn source() -> Arc<MemRemote> {
    let source = mem(|remote| {
        remote.put_file("d/large", content(LARGE, 1));
        remote.put_file("d/small", content(3000, 2));
        remote.put_file("empty", "");
        remote.put_symlink("d/link", "small");
    });
    for name in ["d/large", "d/small", "empty", "d"] {
        set_time(&*source, name, 1_000_000).await;
    }
    source
}

/// What has its final name is whole.
fn assert_whole(source: &MemRemote, target: &MemRemote, stop: &Stop) {
    for name in ["d/large", "d/small"] {
        if target.exists(name) {
            assert_eq!(target.attr(name).size, source.attr(name).size, "{name}: {stop}");
            // Megabytes at each of hundreds of stops take too long.
            if stop.step().is_multiple_of(8) {
                assert!(target.content(name) == source.content(name), "{name}: {stop}");
            }
        }
    }
}

fn link(server: &Arc<MemRemote>) -> Arc<FaultyRemote<MemRemote>> {
    Arc::new(FaultyRemote::new(server.clone()))
}

/// How the second client ends.
#[derive(Clone, Copy, PartialEq)]
enum Second {
    RunsOn,
    IsKilled,
    IsInterrupted,
}

/// A partial that a run has left which was killed.
async fn left_over(source: &Arc<MemRemote>, target: &Arc<MemRemote>) {
    let faulty = link(target);
    faulty.fail(testkit::Call::Write, 20, base::Errno::EHOSTDOWN);
    let mut job = job(source.clone(), faulty, Options::default());
    job.sources[0].tree.path = path("d");
    job.sources[0].to = path("d");
    assert!(engine::copy(job, Arc::new(Silent)).await.unwrap().stopped.is_some());
}

/// Two runs over SFTP, where nothing tells whether the other one is at work.
async fn two_runs(seed: u64, second: Second) {
    let source = source().await;
    let target = mem(|remote| remote.set_write_verifier("the run of this machine"));
    if seed.is_multiple_of(2) {
        left_over(&source, &target).await;
    }
    let mut play = Interleave::<Outcome>::new(seed);
    for at in 0..2 {
        let (from, to) = (link(&source), link(&target));
        let job = job(from.clone(), to.clone(), Options::default());
        if at == 1 && second == Second::IsInterrupted {
            let (told, run) = tokio::sync::oneshot::channel::<transfer::Stopper>();
            let work = async move {
                let run = Run::start(job, Arc::new(Silent)).await.unwrap();
                let _ = told.send(run.stopper());
                engine::drive(run, &mut Default::default()).await
            };
            let mut run = Some(run);
            play.client("second", [from, to], work).interrupt(move || {
                let stopper = run.take().and_then(|mut run| run.try_recv().ok());
                stopper.iter().for_each(transfer::Stopper::stop);
            });
            continue;
        }
        let work = async move { engine::copy(job, Arc::new(Silent)).await.unwrap() };
        play.client(["first", "second"][at], [from, to], work);
        if at == 1 && second == Second::IsKilled {
            play.kill();
        }
    }
    let ends = play.run(|stop| assert_whole(&source, &target, stop)).await;
    let stopped = |end: &Option<Outcome>| end.as_ref().is_none_or(|end| end.stopped.is_some());
    for end in ends.iter().filter(|end| !stopped(end)).flatten() {
        assert!(end.is_complete(), "seed {seed}: {end:#?}");
    }
    assert!(!stopped(&ends[0]));
    let now = snapshot(&*target).await;
    for left in temporaries(&now) {
        // Of the second one, which goes with the next copy of that file.
        assert!(second != Second::RunsOn, "seed {seed}: {left}");
        target.remove(left.trim_matches('"'));
    }
    // The run that did not end has changed directories.
    for dir in ["", "d"] {
        set_time(&*source, dir, 1_000_000).await;
        set_time(&*target, dir, 1_000_000).await;
    }
    assert_equal(&*source, &*target).await;
    assert_eq!((source.open_handles(), target.open_handles()), (0, 0), "seed {seed}");
    let again = copy_well(&source, &target).await;
    assert_eq!(again.counts.unchanged, again.counts.entries, "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn two_runs_into_one_place_both_end_well() {
    for seed in seeds(25, 1000) {
        two_runs(seed, Second::RunsOn).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_killed_does_not_harm_the_other() {
    for seed in seeds(25, 1000) {
        two_runs(seed, Second::IsKilled).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_interrupted_does_not_harm_the_other() {
    for seed in seeds(25, 1000) {
        two_runs(seed, Second::IsInterrupted).await;
    }
}

#[tokio::test]
async fn long_names_that_begin_alike_do_not_meet() {
    let names = ["1", "2"].map(|last| format!("{}{last}", "n".repeat(250)));
    let source = mem(|remote| names.iter().for_each(|name| remote.put_file(name, name)));
    let target = mem(|_| {});
    // The second one is being written while the first one removes what is left of itself.
    let (slow, gate) = (link(&target), link(&target));
    let held = slow.hold(testkit::Call::Rename, 1);
    let mut one = job(source.clone(), slow, Options::default());
    one.sources[0].tree.path = path(&names[1]);
    one.sources[0].to = path(&names[1]);
    let other = job(source.clone(), gate, Options::default());
    let (one, ()) = tokio::join!(engine::copy(one, Arc::new(Silent)), async {
        held.arrived().await;
        let mut other = other;
        other.sources[0].tree.path = path(&names[0]);
        other.sources[0].to = path(&names[0]);
        assert!(engine::copy(other, Arc::new(Silent)).await.unwrap().is_complete());
        assert_eq!(temporaries(&snapshot(&*target).await).len(), 1);
        held.release();
    });
    let one = one.unwrap();
    assert!(one.is_complete(), "{one:#?}");
    assert_equal(&*source, &*target).await;
}
