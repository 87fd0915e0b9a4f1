//! Links that break and servers that fail, again and again.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandbox::link::Link;
use sandbox::sshd::Sshd;
use testkit::dice::Dice;

use crate::tally::Tally;

/// Least bytes that cross the links between two outages: more than a login takes. An outage during
/// each login would keep the mount away for as long as the run lasts; some logins are hit, since
/// there are several clients and sessions.
const LOGIN_BYTES: u64 = 20 << 10;

/// How long these are waited for on a machine that is busy.
const MOST_LOGIN: Duration = Duration::from_secs(20);

/// Most bytes that cross them then: some hundred operations. So an outage comes at any moment of
/// an operation.
const MOST_BYTES: u64 = 256 << 10;

/// Most time for these, for those who send little.
const MOST_PAUSE: Duration = Duration::from_secs(2);

/// Longest outage as a rule: longer than it takes to notice it and to try again.
const SHORT_OUTAGE: Duration = Duration::from_millis(150);

/// Longest one of the others: longer than a caller that was killed may wait.
const LONG_OUTAGE: Duration = Duration::from_secs(3);

/// How many of 100 are long.
const LONG_PERCENT: u64 = 8;

/// A server and the links to it.
pub struct Target<'a> {
    pub links: Vec<&'a Link>,
    pub sshd: &'a Sshd,
    pub tally: &'a Tally,
    /// Held while something is broken.
    pub calm: &'a RwLock<()>,
}

impl Target<'_> {
    /// Breaks something, and restores it, until `done`.
    pub fn disturb(&self, dice: &mut Dice, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            self.wait_moved(LOGIN_BYTES, MOST_LOGIN, done);
            self.wait_moved(dice.below(MOST_BYTES), dice.time(MOST_PAUSE), done);
            let _broken = self.calm.write().unwrap();
            self.once(dice, done);
        }
    }

    /// One outage.
    pub fn once(&self, dice: &mut Dice, done: &AtomicBool) {
        let most = if dice.chance(LONG_PERCENT) { LONG_OUTAGE } else { SHORT_OUTAGE };
        let length = dice.time(most);
        let link = dice.pick(&self.links);
        match dice.below(8) {
            0..=2 => {
                link.cut();
                self.tally.cuts.add(1);
            }
            3 => {
                link.refuse();
                link.cut();
                self.tally.cuts.add(1);
                pause(length, done);
                link.accept();
            }
            4 => {
                link.stall();
                self.tally.stalls.add(1);
                pause(length, done);
                link.resume();
            }
            5 => {
                self.sshd.kill_sessions();
                self.tally.server_kills.add(1);
            }
            6 => {
                self.sshd.kill_sftp_servers();
                self.tally.server_kills.add(1);
            }
            _ => {
                self.sshd.stop();
                self.tally.server_stops.add(1);
                pause(length, done);
                self.sshd.cont();
            }
        }
    }

    fn moved(&self) -> u64 {
        self.links.iter().map(|link| link.bytes_to_target() + link.bytes_from_target()).sum()
    }

    /// Returns when so many bytes have crossed the links from now on, or when it has been long.
    fn wait_moved(&self, bytes: u64, most: Duration, done: &AtomicBool) {
        let (begun, before) = (Instant::now(), self.moved());
        while self.moved() < before + bytes
            && begun.elapsed() < most
            && !done.load(Ordering::Relaxed)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Lets time pass, less of it once the round is over.
pub fn pause(length: Duration, done: &AtomicBool) {
    let until = Instant::now() + length;
    while Instant::now() < until && !done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sets a flag when it is dropped, also when the round panics.
pub struct Done<'a>(pub &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
