//! Random operations over a link that breaks at random moments agree with the reference model,
//! errno included: nothing that was acknowledged is lost, and nobody learns of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use testkit::model::{DirSubject, Runs, ops_by_one_name, run_lists};

use super::{HOST, Line, Outage};
use crate::world::is_big_run;

/// Two hundred rounds of up to two thousand, so a thousand on average, each over several outages.
const RUNS: Runs = Runs { lists: 200, most_ops: 2_000 };

/// Most time between two outages: some hundred operations.
const MOST_PAUSE: Duration = Duration::from_millis(600);

/// Longest outage: longer than it takes to notice it and to try again.
const MOST_OUTAGE: Duration = Duration::from_millis(150);

/// Numbers that look random. (xorshift64)
struct Dice(u64);

impl Dice {
    /// The seed is told, so that a failing run can be looked into.
    fn new() -> Dice {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        eprintln!("seed of the outages: {seed}");
        Dice(u64::from(seed) | 1 << 40)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn time(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.below(most.as_micros() as u64))
    }
}

/// Breaks the link in one way or another until told to stop; how often it did.
fn break_again_and_again(line: &Line, done: &AtomicBool) -> u32 {
    let mut dice = Dice::new();
    let mut count = 0;
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(dice.time(MOST_PAUSE));
        let length = dice.time(MOST_OUTAGE);
        match dice.below(3) {
            0 => line.fleet.link(HOST).cut(),
            1 => line.fleet.sshd(HOST).kill_sessions(),
            _ => {
                line.break_it(Outage::Stall);
                std::thread::sleep(length);
                line.mend(Outage::Stall);
            }
        }
        count += 1;
    }
    count
}

/// L2
#[track_caller]
fn agrees(options: &[&str], max_conns: usize) {
    // It takes an hour.
    if !is_big_run() {
        eprintln!("left out without SSHOAL_TEST_BIG=1");
        return;
    }
    let line = Line::new(None);
    let mount = line.mount(options);
    let done = AtomicBool::new(false);
    /// Ends the outages, also when the test fails.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let breaking = scope.spawn(|| break_again_and_again(&line, &done));
        let ends = Done(&done);
        // Not promised (A7, L4): files without a name, and with two.
        let ops = ops_by_one_name(RUNS.most_ops);
        run_lists(RUNS, &ops, || DirSubject::below(mount.place(), false));
        drop(ends);
        let count = breaking.join().unwrap();
        eprintln!("{} lists of operations over {count} outages", RUNS.lists);
        assert!(count > 0, "no outage");
    });
    line.assert_nothing_leaked(&mount, max_conns);
    assert_eq!(std::fs::read_dir(line.served("")).unwrap().count(), 0);
    mount.unmount();
}

#[test]
fn operations_over_a_link_that_breaks() {
    agrees(&[], 8);
}

#[test]
fn operations_over_several_connections_that_break() {
    agrees(&["-o", "max_conns=3,dir_cache=no"], 3);
}
