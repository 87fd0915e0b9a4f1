//! What has happened in a run, and the table of it.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandbox::leftover;

use crate::mount::Mount;

/// Within this time a process has to be gone after SIGKILL, whatever it was doing (A5).
const HANG_LIMIT: Duration = Duration::from_secs(1);

/// The same in the short run of the ordinary tests, which run beside others on slow machines: it
/// finds what hangs, and a long run measures.
const SHORT_RUN_HANG_LIMIT: Duration = Duration::from_secs(10);

/// Steps of the end of a process that waits for the mount: signal, request, answer, exit, wait.
const LATE_STEPS: u32 = 10;

/// A call that takes longer is worth a line: outages are shorter.
const SLOW: Duration = Duration::from_secs(15);

/// With so many findings more of them say nothing new.
const MOST_FINDINGS: usize = 50;

/// Longest finding that is printed, in characters: a list of operations and what differs.
const MOST_CHARS: usize = 12_000;

/// How often a long run prints a line.
const PROGRESS: Duration = Duration::from_secs(60);

/// A number that lanes count up.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Tally {
    is_long: bool,
    begun: Instant,
    pub operations: Count,
    pub cuts: Count,
    pub stalls: Count,
    pub server_kills: Count,
    pub server_stops: Count,
    pub daemon_kills: Count,
    pub flips: Count,
    pub full_disks: Count,
    pub callers: Count,
    /// Of changes that `fsync`, `close` or a change by name has acknowledged.
    pub lost_bytes: Count,
    pub wrong_bytes: Count,
    leftovers: Count,
    hang_us: Count,
    memory_kib: Count,
    notes: Count,
    longest_call: Mutex<(Duration, String)>,
    findings: Mutex<Vec<(String, String)>>,
}

impl Tally {
    /// That of a long run, or of the short one of the ordinary tests.
    pub fn new(is_long: bool) -> Tally {
        Tally {
            is_long,
            begun: Instant::now(),
            operations: Count::default(),
            cuts: Count::default(),
            stalls: Count::default(),
            server_kills: Count::default(),
            server_stops: Count::default(),
            daemon_kills: Count::default(),
            flips: Count::default(),
            full_disks: Count::default(),
            callers: Count::default(),
            lost_bytes: Count::default(),
            wrong_bytes: Count::default(),
            leftovers: Count::default(),
            hang_us: Count::default(),
            memory_kib: Count::default(),
            notes: Count::default(),
            longest_call: Mutex::default(),
            findings: Mutex::default(),
        }
    }

    /// Something that must not be.
    pub fn divergence(&self, lane: &str, what: &str) {
        let short: String = what.chars().take(MOST_CHARS).collect();
        self.note(lane, &short);
        self.findings.lock().unwrap().push((lane.to_owned(), short));
    }

    /// Whether there are so many findings that the run should end.
    pub fn is_hopeless(&self) -> bool {
        self.findings.lock().unwrap().len() >= MOST_FINDINGS
    }

    pub fn has_finding(&self, lane: &str, what: &str) -> bool {
        let findings = self.findings.lock().unwrap();
        findings.iter().any(|(of, text)| of == lane && text.contains(what))
    }

    /// Does a call of a lane.
    pub fn call<T>(&self, lane: &str, what: &str, act: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = act();
        let took = begun.elapsed();
        self.operations.add(1);
        if took > SLOW {
            self.note(lane, &format!("{what} took {:.1} s", took.as_secs_f64()));
        }
        let mut longest = self.longest_call.lock().unwrap();
        if took > longest.0 {
            *longest = (took, format!("{lane}: {what}"));
        }
        result
    }

    /// Prints what may help to understand a finding.
    pub fn note(&self, lane: &str, what: &str) {
        println!("{:8.1} s  {lane}: {what}", self.begun.elapsed().as_secs_f64());
        self.notes.add(1);
    }

    /// How many findings and slow calls there were.
    pub fn notes(&self) -> u64 {
        self.notes.get()
    }

    /// A caller was killed, and gone after this time.
    pub fn caller_killed(&self, lane: &str, what: &str, took: Duration) {
        self.callers.add(1);
        self.hang_us.raise(took.as_micros() as u64);
        if took <= HANG_LIMIT {
            return;
        }
        let limit = if self.is_long { HANG_LIMIT } else { SHORT_RUN_HANG_LIMIT };
        // On a machine that has too much to do, each step of a process's end is late.
        let late = LATE_STEPS * lateness();
        let text = format!("{what} is there {took:.1?} after SIGKILL, the machine late {late:.1?}");
        if took > limit + late {
            self.divergence(lane, &text);
        } else {
            self.note(lane, &text);
        }
    }

    pub fn memory_of(&self, mount: &Mount) {
        self.memory_kib.raise(mount.peak_memory_kib());
    }

    /// Counts mounts and processes that are left of a directory of a lane that has ended.
    pub fn leftovers_of(&self, lane: &str, dir: &Path) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let left = loop {
            let left = leftover::find(dir).unwrap();
            if left.is_empty() || Instant::now() > deadline {
                break left;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        if !left.is_empty() {
            self.leftovers.add(left.len() as u64);
            self.divergence(lane, &format!("left behind: {left:#?}"));
        }
    }

    pub fn is_clean(&self) -> bool {
        self.findings.lock().unwrap().is_empty()
            && [&self.lost_bytes, &self.wrong_bytes, &self.leftovers]
                .iter()
                .all(|count| count.get() == 0)
    }

    /// Prints a line now and then, until the end of the run.
    pub fn report_progress(&self, until: Instant) {
        loop {
            let next = until.min(Instant::now() + PROGRESS);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            if next == until || self.is_hopeless() {
                return;
            }
            println!(
                "{:6.0} s  {} operations, {} cuts, {} daemon kills, {} flips, {} divergences",
                self.begun.elapsed().as_secs_f64(),
                self.operations.get(),
                self.cuts.get(),
                self.daemon_kills.get(),
                self.flips.get(),
                self.findings.lock().unwrap().len(),
            );
        }
    }

    /// The table, as Markdown.
    pub fn table(&self, seed: u64, took: Duration) -> String {
        let (longest, what) = self.longest_call.lock().unwrap().clone();
        let count = |count: &Count| grouped(count.get());
        let rows = [
            ("seed", seed.to_string()),
            ("time", format!("{:.1} min", took.as_secs_f64() / 60.0)),
            ("operations", count(&self.operations)),
            ("link cuts", count(&self.cuts)),
            ("link stalls", count(&self.stalls)),
            ("server kills", count(&self.server_kills)),
            ("server stops", count(&self.server_stops)),
            ("daemon kills (SIGKILL) and remounts", count(&self.daemon_kills)),
            ("bit flips in the disk cache", count(&self.flips)),
            ("full disks", count(&self.full_disks)),
            ("callers killed (SIGKILL)", count(&self.callers)),
            ("divergences", grouped(self.findings.lock().unwrap().len() as u64)),
            ("lost bytes that were acknowledged", count(&self.lost_bytes)),
            ("wrong bytes read", count(&self.wrong_bytes)),
            (
                "longest hang of a call after SIGKILL to its caller",
                format!("{:.3} s", self.hang_us.get() as f64 / 1e6),
            ),
            ("longest call", format!("{:.1} s ({what})", longest.as_secs_f64())),
            ("peak memory of a daemon", format!("{} MiB", self.memory_kib.get() / 1024)),
            ("mounts and processes left", count(&self.leftovers)),
        ];
        let mut text = "| | |\n|---|--:|\n".to_owned();
        for (name, value) in rows {
            let _ = writeln!(text, "| {name} | {value} |");
        }
        text
    }
}

/// How long a program takes that does nothing: the longest of some.
fn lateness() -> Duration {
    let one = |_| {
        let begun = Instant::now();
        let _ = Command::new("true").status();
        begun.elapsed()
    };
    (0..5).map(one).max().unwrap_or_default()
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
