//! The soak: random work on real mounts of the program while links, servers, daemons, disks and
//! caches fail, compared with the reference model and with the server's own files.
//!
//! `make soak SOAK_MINUTES=10 SOAK_SEED=1` runs it for long; without these variables it runs for
//! half a minute, as a test of the machinery. `SOAK_LANES=cuts,kills` runs some of the lanes.
//! `docs/reliability.md` says what it proves.
//!
//! Five lanes run side by side, each with a server of its own:
//!
//! | lane | what fails | what must hold |
//! |---|---|---|
//! | [`cuts`] | links are cut and stalled, sessions and SFTP servers killed and stopped | every answer is the model's; the server has the model's tree; threads that share files get no error and lose nothing |
//! | `direct` | as in `cuts`, and the link of the direct connections | as in `cuts` |
//! | [`kills`] | the daemon is killed with SIGKILL and mounted again | what `close`, `fsync` or a change by name has acknowledged is there |
//! | [`flips`] | bits flip in the disk cache | every byte, name and attribute that is read is right |
//! | [`pair`] | the disk of the server of two clients fills up, their links are cut | records are appended once, locks exclude, an open after a close shows what was closed |
//!
//! Two tests in one binary of their own, which is linked once more: what runs for hours should not
//! wait for what the other tests need.
#![deny(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "in a test binary, `pub` says what a module offers to the others"
)]

mod callers;
mod cuts;
mod disturb;
mod flips;
mod kills;
mod ledger;
mod pair;
mod scene;
mod shared;
mod tally;
mod worker;

// The end-to-end tests' own; not all of each is used here.
#[allow(dead_code)]
#[path = "../e2e/mount.rs"]
mod mount;
#[allow(dead_code)]
#[path = "../e2e/process.rs"]
mod process;
#[allow(dead_code)]
#[path = "../e2e/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use testkit::dice::Dice;

use tally::Tally;

/// How long the run of the ordinary tests takes.
const SHORT: Duration = Duration::from_secs(20);

/// How long the run with damage may take: each lane ends when it has found its own.
const DAMAGED: Duration = Duration::from_secs(120);

/// Longest round of that.
const DAMAGED_ROUND: Duration = Duration::from_secs(5);

/// The runs take turns: each of them uses all of the machine.
static TURN: Mutex<()> = Mutex::new(());

/// What all lanes share.
pub struct Soak {
    /// What has happened.
    pub tally: Tally,
    seed: u64,
    until: Instant,
    /// Whether the lanes damage what is at the server themselves, to prove that it is found.
    pub damages: bool,
}

impl Soak {
    /// Whether a lane should begin another round.
    pub fn has_time(&self, lane: &str) -> bool {
        let is_done = self.damages && self.tally.has_finding(lane, "");
        Instant::now() < self.until && !self.tally.is_hopeless() && !is_done
    }

    /// A time that is over at the end of the run at the latest.
    pub fn until_end(&self, time: Duration) -> Duration {
        let most = if self.damages { DAMAGED_ROUND } else { Duration::MAX };
        time.min(most).min(self.until.saturating_duration_since(Instant::now()))
    }

    /// Dice for a part of the run.
    pub fn dice(&self, part: &str, number: u64) -> Dice {
        Dice::of_part(self.seed, part, number)
    }
}

type Lane = fn(&Soak);

/// Runs all lanes for a time.
fn run(time: Duration, seed: u64, damages: bool) -> Tally {
    let until = Instant::now() + time;
    let soak = Soak { tally: Tally::new(time > SHORT), seed, until, damages };
    println!("soak: {} s, SOAK_SEED={seed}", time.as_secs());
    let lanes: [(&str, Lane); 5] = [
        ("cuts", cuts::lane),
        ("direct", cuts::direct_lane),
        ("kills", kills::lane),
        ("flips", flips::lane),
        ("pair", pair::lane),
    ];
    std::thread::scope(|scope| {
        let chosen = std::env::var("SOAK_LANES").ok().filter(|names| !names.is_empty());
        let is_chosen = |name: &str| {
            chosen.as_ref().is_none_or(|names| names.split(',').any(|chosen| chosen == name))
        };
        for (name, lane) in lanes.into_iter().filter(|(name, _)| is_chosen(name)) {
            let soak = &soak;
            let guarded = move || {
                // The panic's message has been printed.
                if catch_unwind(AssertUnwindSafe(|| lane(soak))).is_err() {
                    soak.tally.divergence(name, "the lane ended with a panic");
                }
            };
            let named = std::thread::Builder::new().name(name.to_owned());
            named.spawn_scoped(scope, guarded).unwrap();
        }
        if !damages {
            scope.spawn(|| soak.tally.report_progress(until));
        }
    });
    soak.tally
}

fn variable(name: &str) -> Option<f64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: not a number")))
}

#[test]
fn nothing_is_lost() {
    let _turn = TURN.lock();
    let time = variable("SOAK_MINUTES").map_or(SHORT, |it| Duration::from_secs_f64(it * 60.0));
    let any = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into();
    let seed = variable("SOAK_SEED").map_or_else(any, |seed| seed as u64);
    let begun = Instant::now();
    let tally = run(time, seed, false);
    println!("{}", tally.table(seed, begun.elapsed()));
    assert!(tally.is_clean(), "SOAK_SEED={seed} repeats the choices of this run");
}

/// The machinery can fail: a byte that is changed at the server behind the mount's back is
/// reported by each lane that reads it.
#[test]
fn damage_at_the_server_is_reported() {
    if variable("SOAK_MINUTES").is_some() {
        println!("left out of a long run");
        return;
    }
    let _turn = TURN.lock();
    let begun = Instant::now();
    let tally = run(DAMAGED, 1, true);
    let table = tally.table(1, begun.elapsed());
    println!("{table}");
    assert!(!tally.is_clean(), "{table}");
    for (lane, what) in
        [("cuts", "content of"), ("kills", "ledger"), ("flips", "wrong bytes"), ("pair", "record")]
    {
        assert!(tally.has_finding(lane, what), "nothing of {lane} about {what}:\n{table}");
    }
}
