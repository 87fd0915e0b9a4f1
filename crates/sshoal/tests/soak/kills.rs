//! The lane of daemons that are killed: what was acknowledged is there in the next mount.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::model::Lists;

use crate::Soak;
use crate::disturb::{Done, Target, pause};
use crate::ledger::Ledger;
use crate::scene::Scene;
use crate::worker::{MOST_OPS, Worker};

const LANE: &str = "kills";

/// Longest life of a daemon.
const MOST_LIFE: Duration = Duration::from_millis(2_500);

/// Options of the mounts.
const OPTIONS: [&str; 4] = ["", "cache=disk", "max_conns=3,dir_cache=no", "consistency=timeout"];

const WORKERS: u64 = 2;

/// In so many of 100 rounds the link breaks before the daemon is killed.
const CUT_PERCENT: u64 = 30;

/// After so many rounds all volumes of the ledgers are compared, not only the last one.
const ALL_VOLUMES: u64 = 40;

/// See the [module](self).
pub fn lane(soak: &Soak) {
    let scene = Scene::new(soak, LANE);
    let mut dice = soak.dice(LANE, 0);
    let part = |number: u64| {
        // Links break, too.
        let lists = Lists::by_one_name(soak.dice(LANE, 1 + number).any(), MOST_OPS);
        let worker = Worker::new(LANE, &soak.tally, number, lists, false);
        let dice = soak.dice("ledger", number);
        (worker, Ledger::new(LANE, &soak.tally, &format!("ledger{number}"), dice))
    };
    let mut parts: Vec<(Worker, Ledger)> = (0..WORKERS).map(part).collect();
    let served = scene.served("");
    let mut round = 0;
    while soak.has_time(LANE) {
        round += 1;
        let mount = scene.mount(0, dice.pick(&OPTIONS));
        let place = mount.place().to_owned();
        let killed = AtomicBool::new(false);
        let calm = RwLock::new(());
        std::thread::scope(|scope| {
            let _ends = Done(&killed);
            for (worker, ledger) in &mut parts {
                let (place, served, killed) = (&place, &served, &killed);
                scope.spawn(move || {
                    let is_killed = || killed.load(Ordering::Relaxed);
                    let all = round % ALL_VOLUMES == 0;
                    worker.inspect_in_mount(place, served, &is_killed);
                    ledger.inspect("in the next mount", place, all, &is_killed);
                    while !is_killed() && worker.list(place, served, &is_killed) {
                        if let Err(why) = ledger.write(place) {
                            if !is_killed() {
                                soak.tally.divergence(LANE, &format!("ledger: {why}"));
                            }
                            return;
                        }
                    }
                });
            }
            pause(dice.time(MOST_LIFE), &killed);
            if dice.chance(CUT_PERCENT) {
                let target = Target {
                    links: scene.links(),
                    sshd: scene.sshd(),
                    tally: &soak.tally,
                    calm: &calm,
                };
                target.once(&mut dice, &killed);
            }
            killed.store(true, Ordering::Relaxed);
            scene.kill(&mount);
        });
        scene.clear(mount);
        for (worker, ledger) in &mut parts {
            if soak.damages {
                ledger.damage(&served);
            }
            worker.inspect_at_server(&served);
            ledger.inspect(
                "at the server after a kill",
                &served,
                round % ALL_VOLUMES == 0,
                &|| false,
            );
        }
    }
    for (_, ledger) in &mut parts {
        ledger.inspect("at the end", &served, true, &|| false);
    }
    scene.end();
}
