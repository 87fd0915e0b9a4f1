//! What a pool of gateways is for, through a real mount: two of them carry more than one, and one
//! may die while they are used.
//!
//! Each gateway is a server of its own behind a link of [`RATE_BYTES_PER_S`], with [`RTT`]. Who
//! carried what is asserted. How much faster that was is printed, since a busy machine cannot tell;
//! `SSHOAL_TEST_BIG=1` makes it large enough to be worth a look (`docs/many-hosts.md` has the
//! command and the figures).

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use sandbox::fleet::Plan;
use sandbox::link::LinkOptions;

use crate::behaviours::pattern;
use crate::hosts::Hosts;
use crate::mount::Mount;
use crate::process::shell;
use crate::world::is_big_run;

const GATEWAYS: [&str; 2] = ["gw1", "gw2"];

/// What each link carries.
const RATE_BYTES_PER_S: u64 = 40_000_000;

/// How long each link is.
const RTT: Duration = Duration::from_micros(500);

/// How long anything may take that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);

/// Files of a source tree are about so large; in bytes.
const SMALL_FILES: [usize; 6] = [300, 2_000, 6_000, 12_000, 25_000, 60_000];

/// Two gateways to one directory, and places to mount it.
struct Gateways {
    hosts: Hosts,
}

impl Gateways {
    fn new() -> Gateways {
        let link = LinkOptions { rtt: RTT, rate_bytes_per_s: Some(RATE_BYTES_PER_S) };
        let plans = GATEWAYS.map(|name| Plan::new(name).serving("shared").behind(link));
        Gateways { hosts: Hosts::of(plans) }
    }

    fn served(&self, name: &str) -> PathBuf {
        self.hosts.served(GATEWAYS[0], name)
    }

    /// `gateways:directory`, mounted where nothing is cached yet.
    #[track_caller]
    fn mount(&self, gateways: &[&str]) -> Mount {
        let source = format!("{}:{}", gateways.join(","), self.served("").display());
        self.hosts.mount(&[source], &[])
    }

    /// Bytes that came through each link so far.
    fn came(&self) -> [u64; 2] {
        GATEWAYS.map(|name| self.hosts.fleet.link(name).bytes_from_target())
    }

    /// A large file that was last changed long ago, as most are.
    fn put_large(&self) -> Vec<u8> {
        let mut content = pattern(1 << 20).repeat(if is_big_run() { 256 } else { 32 });
        for (number, block) in content.chunks_mut(4096).enumerate() {
            block[..8].copy_from_slice(&number.to_ne_bytes());
        }
        put(&self.served("large"), &content);
        content
    }

    /// A tree like that of a source; bytes and files in it.
    fn put_tree(&self) -> (u64, usize) {
        let (dirs, files) = if is_big_run() { (67, 30) } else { (40, 20) };
        let mut bytes = 0;
        for dir in 0..dirs {
            let place = self.served(&format!("tree/part{}/dir{dir}", dir % 9));
            fs::create_dir_all(&place).unwrap();
            for file in 0..files {
                let content = pattern(SMALL_FILES[(dir + file) % SMALL_FILES.len()] + dir);
                bytes += content.len() as u64;
                put(&place.join(format!("file{file}")), &content);
            }
        }
        (bytes, dirs * files)
    }

    /// Does it with one gateway and with both, twice in turn; asserts that both carried a share of
    /// `bytes`, which is small while the machine leaves one of them no time, and prints what it
    /// took at best.
    fn compare(&self, what: &str, bytes: u64, work: impl Fn(&Mount)) {
        let mut best = [Duration::MAX; 2];
        for _ in 0..2 {
            for (best, gateways) in best.iter_mut().zip([&GATEWAYS[..1], &GATEWAYS[..]]) {
                let mount = self.mount(gateways);
                let (before, begun) = (self.came(), Instant::now());
                work(&mount);
                *best = begun.elapsed().min(*best);
                let shares = [0, 1].map(|it| self.came()[it] - before[it]);
                mount.unmount();
                for share in &shares[..gateways.len()] {
                    assert!(*share > bytes / 50, "{what} through {gateways:?}: {shares:?}");
                }
            }
        }
        let [one, both] = best;
        let ratio = one.as_secs_f64() / both.as_secs_f64();
        println!("{what}: through one {one:.2?}, through both {both:.2?}: {ratio:.2} times");
    }
}

/// Makes a file that was last changed an hour ago.
fn put(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    let old = SystemTime::now() - Duration::from_secs(3_600);
    File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
}

/// Reads a file as `cp` does, and calls `at` with the bytes that have come after each call. The
/// longest time that one took.
fn read_through(path: &Path, expected: &[u8], mut at: impl FnMut(usize)) -> Duration {
    let mut file = File::open(path).unwrap();
    let (mut buffer, mut came, mut pause) = (vec![0; 128 << 10], 0, Duration::ZERO);
    loop {
        let begun = Instant::now();
        let count = file.read(&mut buffer).unwrap();
        pause = pause.max(begun.elapsed());
        if count == 0 {
            assert_eq!(came, expected.len());
            return pause;
        }
        assert!(buffer[..count] == expected[came..came + count], "wrong bytes at {came}");
        came += count;
        at(came);
    }
}

#[test]
fn a_large_file_is_read_through_both_gateways() {
    let gateways = Gateways::new();
    let content = gateways.put_large();
    gateways.compare("a large file", content.len() as u64, |mount| {
        read_through(&mount.at("large"), &content, |_| {});
    });
}

#[test]
fn a_tree_is_read_through_both_gateways() {
    let gateways = Gateways::new();
    let (bytes, files) = gateways.put_tree();
    gateways.compare(&format!("{files} files"), bytes, |mount| {
        // The second one compares it with what is there, all attributes included.
        let tar = "tar -C \"$1\" -cf - tree | tar -C \"$2\" -df -";
        shell(tar, &[mount.place(), &gateways.served("")]);
    });
}

/// The kernel asks again for nothing: what it waits for must come, and be right.
#[test]
fn a_gateway_may_die_in_the_middle_of_a_file() {
    for dies in GATEWAYS {
        let mut gateways = Gateways::new();
        let content = gateways.put_large();
        let mount = gateways.mount(&GATEWAYS).with_errors();
        let middle = content.len() / 2;
        let fleet = &mut gateways.hosts.fleet;
        let mut lives = true;
        let pause = read_through(&mount.at("large"), &content, |came| {
            if came >= middle && std::mem::take(&mut lives) {
                fleet.kill(dies);
            }
        });
        println!("{dies} dies: nothing came for {pause:.2?}");
        assert!(pause < LIMIT, "{pause:?}");
        mount.unmount();
    }
}
