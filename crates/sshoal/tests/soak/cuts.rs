//! The lane of links that break: nothing of it is to be noticed, but that calls take longer. Some
//! threads of the mount have trees of their own, others share files ([`shared`](crate::shared)).

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::model::Lists;

use crate::Soak;
use crate::callers::kill_callers;
use crate::disturb::{Done, Target, pause};
use crate::process::eventually;
use crate::scene::Scene;
use crate::shared::Shared;
use crate::worker::{MOST_OPS, Worker};

const LANE: &str = "cuts";

/// The lane whose mounts have direct connections.
const DIRECT_LANE: &str = "direct";

/// How long one mount is kept.
const ROUND: Duration = Duration::from_secs(60);

/// Options of the mounts, one after the other.
const OPTIONS: [&str; 5] =
    ["", "max_conns=3,dir_cache=no", "cache=disk", "consistency=strict,sshfs_sync", "max_conns=1"];

/// As [`OPTIONS`], for mounts with direct connections.
const DIRECT_OPTIONS: [&str; 4] =
    ["", "consistency=watch", "max_conns=3,dir_cache=no", "poll_us=0,max_conns=1"];

const WORKERS: u64 = 2;

/// Threads that share files.
const SHARERS: u64 = 3;

/// Sessions that a mount may have.
const MOST_SESSIONS: usize = 8;

/// See the [module](self).
pub fn lane(soak: &Soak) {
    run(soak, LANE, Scene::new(soak, LANE), &OPTIONS);
}

/// As [`lane`], with direct connections, whose link breaks as well.
pub fn direct_lane(soak: &Soak) {
    run(soak, DIRECT_LANE, Scene::direct(soak, DIRECT_LANE), &DIRECT_OPTIONS);
}

fn run(soak: &Soak, lane: &'static str, scene: Scene<'_>, all_options: &[&str]) {
    let mut options = soak.dice(lane, 0);
    let mut outages = soak.dice(&format!("outages of {lane}"), 0);
    let mut callers = soak.dice(&format!("callers of {lane}"), 0);
    let worker = |number| {
        // Not promised over a loss (A7, L4): files without a name, and with two.
        let seed = soak.dice(lane, 1 + number).any();
        let lists = Lists::by_one_name(seed, MOST_OPS);
        Worker::new(lane, &soak.tally, number, lists, soak.damages)
    };
    let mut workers: Vec<Worker> = (0..WORKERS).map(worker).collect();
    let shared = Shared::of_threads(lane, &soak.tally, SHARERS);
    let mut sharers: Vec<_> = (0..SHARERS)
        .map(|number| (number, soak.dice(&format!("sharers of {lane}"), number)))
        .collect();
    while soak.has_time(lane) {
        shared.prepare(&scene.served(""));
        let mount = scene.mount(0, options.pick(all_options));
        let (place, served) = (mount.place(), scene.served(""));
        let done = AtomicBool::new(false);
        let calm = &RwLock::new(());
        let until = Instant::now() + soak.until_end(ROUND);
        std::thread::scope(|scope| {
            let _ends = Done(&done);
            let done = &done;
            for worker in &mut workers {
                let served = &served;
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) && !soak.tally.is_hopeless() {
                        worker.list(place, served, &|| false);
                    }
                });
            }
            for (number, dice) in &mut sharers {
                let shared = &shared;
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) && !soak.tally.is_hopeless() {
                        shared.once(*number, place, calm, dice);
                    }
                });
            }
            let (mount, callers) = (&mount, &mut callers);
            scope.spawn(|| {
                kill_callers(&soak.tally, lane, mount, "callers", callers, done);
            });
            let links = scene.links();
            let target = Target { links, sshd: scene.sshd(), tally: &soak.tally, calm };
            let outages = &mut outages;
            scope.spawn(move || target.disturb(outages, done));
            pause(until.saturating_duration_since(Instant::now()), done);
        });
        eventually(Duration::from_secs(60), "sessions that were lost have ended", || {
            let _ = std::fs::metadata(place);
            scene.sshd().session_pids().len() <= MOST_SESSIONS
        });
        scene.unmount(mount);
        shared.inspect(&scene.served(""));
        let _ = std::fs::remove_dir_all(scene.served("callers"));
    }
    scene.end();
}
