//! A copy beside a mount in which two programs write, rename and remove files of the source or the
//! target.
//!
//! - A file that was pulled without a problem is, whole, the source at one moment of the pull;
//!   after a problem it has changed meanwhile, and the earlier target is left.
//! - A file that was pushed without a problem was, whole, at the target at one moment of the push.
//!   Under its final name, a pushed file is complete or not there.
//! - The mount shows the present files, as beside another mount.

use std::sync::Arc;

use testkit::interleave::{Interleave, seeds};
use testkit::mem::Options;
use testkit::{FaultyRemote, ManualClock, MemRemote, path};
use tokio::time::Instant;
use transfer::{Fault, Job, Outcome, Silent, Source, Tree, engine};

use super::kernel::{Mount, NAMES, Server, Version, shown};
use super::link;

/// Tokens of four bytes: some files are read and written in several pieces.
const LENGTHS: &[usize] = &[40_000, 1, 40_000, 40_000, 2];

/// Copies, one after the other.
const RUNS: i64 = 3;

async fn copy(from: Arc<dyn base::Remote>, to: Arc<dyn base::Remote>, delete: bool) -> Outcome {
    let source = Source { tree: Tree::remote(from), to: path("") };
    let options = transfer::Options { delete, ..transfer::Options::default() };
    let job = Job { sources: vec![source], target: Tree::remote(to), options };
    let outcome = engine::copy(job, Arc::new(Silent)).await.unwrap();
    assert_eq!(outcome.stopped, None);
    outcome
}

fn fault_of<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a Fault> {
    let problem = outcome.problems.iter().find(|problem| problem.name == path(name));
    problem.map(|problem| &problem.fault)
}

fn now(remote: &MemRemote, name: &str) -> Version {
    remote.exists(name).then(|| remote.content(name))
}

/// `pulled` is the target after a pull, and `been` are the states of the source during it.
fn assert_pulled(name: &str, pulled: &Version, been: &[Version], outcome: &Outcome, delete: bool) {
    let all: Vec<_> = been.iter().map(shown).collect();
    match fault_of(outcome, name) {
        Some(Fault::Changed | Fault::Vanished | Fault::Unlisted) => {
            assert!(been.len() > 1, "{name} has always been {all:?}: {outcome:?}");
        }
        Some(fault) => panic!("{fault}"),
        None => {
            // Without `delete` it may be from an earlier pull.
            let may_be_left = been.contains(&None) && !(delete && outcome.is_complete());
            let pulled_as = shown(pulled);
            assert!(been.contains(pulled) || may_be_left, "{name}: {pulled_as:?}, of {all:?}");
        }
    }
}

async fn pulls(server: Arc<Server>, link: Arc<FaultyRemote<MemRemote>>, delete: bool) {
    let here = Arc::new(MemRemote::new());
    for _ in 0..RUNS {
        let begun = Instant::now();
        let before = NAMES.map(|name| now(&here, name));
        let outcome = copy(link.clone(), here.clone(), delete).await;
        for (name, before) in NAMES.iter().zip(before) {
            let pulled = now(&here, name);
            let been = server.since(name, begun);
            assert_pulled(name, &pulled, &been, &outcome, delete);
            if fault_of(&outcome, name).is_some() {
                assert_eq!(shown(&pulled), shown(&before), "{name}");
            }
        }
        assert_no_temporaries(&here);
    }
}

async fn pushes(server: Arc<Server>, link: Arc<FaultyRemote<MemRemote>>) {
    for run in 0..RUNS {
        // A time that no file of the server has: this is not a test of the comparison.
        let options = Options { clock: ManualClock::at(run).into(), ..Options::default() };
        let here = Arc::new(MemRemote::with(options));
        let pushed = NAMES.map(|name| (name, server.version()));
        pushed.iter().for_each(|(name, content)| here.put_file(name, content));
        let begun = Instant::now();
        let outcome = copy(here, link.clone(), false).await;
        assert!(outcome.is_complete(), "{outcome:?}");
        for (name, content) in pushed {
            let been = server.since(name, begun);
            assert_pushed(name, &content, &been, &server.ever(name));
        }
    }
}

/// `content` was pushed as `name`, which had all of the states `been` meanwhile, and all of `ever`
/// so far.
fn assert_pushed(name: &str, content: &[u8], been: &[Version], ever: &[Version]) {
    let was_there = been.iter().flatten().any(|version| version == content);
    let all: Vec<_> = been.iter().map(shown).collect();
    assert!(was_there, "{name} was never {:?}, but {all:?}", shown(&Some(content.to_vec())));
    let token = &content[..4];
    for version in ever.iter().flatten() {
        let is_of_it = version.starts_with(token) || version.ends_with(token);
        assert!(!is_of_it || version == content, "{name}: {:?}", shown(&Some(version.clone())));
    }
}

fn assert_no_temporaries(remote: &MemRemote) {
    let names = remote.names("");
    assert!(!names.iter().any(|name| name.contains(".sshoal-")), "{names:?}");
}

/// The direction of the copy, seen from the machine with the mount.
#[derive(Clone, Copy)]
enum Way {
    Pull { delete: bool },
    Push,
}

async fn play(seed: u64, way: Way) {
    let server =
        Arc::new(Server::new(!seed.is_multiple_of(3), seed.is_multiple_of(2), LENGTHS, true));
    let mut play = Interleave::new(seed);
    let (to_mount, to_copy) = (link(&server), link(&server));
    let mount = Mount::new(&server, &to_mount, 0);
    play.client("mount", [to_mount], async move { mount.programs(seed * 4).await });
    let (copied, through) = (server.clone(), to_copy.clone());
    play.client("copy", [to_copy], async move {
        match way {
            Way::Pull { delete } => pulls(copied, through, delete).await,
            Way::Push => pushes(copied, through).await,
        }
    });
    let looked = server.clone();
    play.run(|_| looked.look()).await;
    assert_no_temporaries(&server.remote);
    assert_eq!(server.remote.open_handles(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pull_beside_a_mount_brings_whole_versions() {
    for seed in seeds(60, 3000) {
        play(seed, Way::Pull { delete: false }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_with_delete_beside_a_mount_ends_with_what_was_there() {
    for seed in seeds(60, 3000) {
        play(seed, Way::Pull { delete: true }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_beside_a_mount_puts_whole_versions() {
    for seed in seeds(60, 3000) {
        play(seed, Way::Push).await;
    }
}
