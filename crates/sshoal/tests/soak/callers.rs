//! Programs that are killed at any moment of their calls: how long they stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::dice::Dice;

use crate::mount::Mount;
use crate::process::Process;
use crate::tally::Tally;

/// Lines of shell, in a directory of the mount. Each makes few calls, again and again.
const SCRIPTS: [&str; 8] = [
    "while :; do cat file >/dev/null; done",
    "while :; do ls -l >/dev/null; done",
    "while :; do dd if=/dev/zero of=out bs=64k count=16 conv=fsync status=none; done",
    "while :; do echo x >short; rm -f short; done",
    "while :; do mkdir dir; mv dir moved; rmdir moved; done",
    "while :; do dd if=file of=/dev/null iflag=direct bs=64k status=none; done",
    "while :; do ln -sf file link; readlink link >/dev/null; done",
    "while :; do cat /dev/zero >long; done",
];

/// Size of the file that they read, in bytes.
const FILE_BYTES: usize = 1 << 20;

/// Longest time that a caller is left alone.
const MOST_LIFE: Duration = Duration::from_millis(600);

/// A caller that is there for longer after its kill is described in the report, to find what it
/// waits for.
const LATE: Duration = Duration::from_millis(400);

/// How long a caller that was killed is waited for.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// Starts programs in the mount and kills them, until `done`. Each has a directory of its own: a
/// caller waits for another one that changes the same directory, whatever its signals are (A5).
pub fn kill_callers(
    tally: &Tally,
    lane: &str,
    mount: &Mount,
    place: &str,
    dice: &mut Dice,
    done: &AtomicBool,
) {
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        let dir = mount.at(place).join(number.to_string());
        number += 1;
        let prepared = fs::create_dir_all(&dir)
            .and_then(|()| fs::write(dir.join("file"), vec![7; FILE_BYTES]));
        if let Err(why) = prepared {
            tally.divergence(lane, &format!("preparing {}: {why}", dir.display()));
            return;
        }
        let script = dice.pick(&SCRIPTS);
        // One process: a shell would be killed, and what it has started would not.
        let script = format!("ulimit -f 8000; cd \"$1\" && {script}");
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", &script, "sh"]).arg(&dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(&mut command);
        std::thread::sleep(dice.time(MOST_LIFE));
        let took = kill_session(process, |waiting| tally.note(lane, waiting)).unwrap_or(GIVEN_UP);
        tally.caller_killed(lane, &script, took);
        // Its directory stays, until nothing is mounted: what was written by a caller that was
        // killed is sent later, and a file that is removed before that is lost over a cut (A7).
    }
}

/// Kills a shell and what it has started. Returns how long after that one of them was seen to live:
/// the time of a later look that finds none may be late itself. Describes those that are late.
fn kill_session(process: Process, describe: impl Fn(&str)) -> Option<Duration> {
    let group = rustix::process::Pid::from_raw(process.pid().cast_signed()).unwrap();
    let begun = Instant::now();
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    // It may not have made the group yet.
    process.signal(Signal::KILL);
    let mut is_described = false;
    let mut seen = Duration::ZERO;
    // Its children are init's or a subreaper's; the group is gone when all of them are dead.
    while begun.elapsed() < GIVEN_UP {
        let looked = begun.elapsed();
        let living = living(process.pid());
        if living.is_empty() {
            return Some(seen);
        }
        seen = looked;
        if seen > LATE && !is_described {
            is_described = true;
            living.iter().for_each(|process| describe(&state(process)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// The directories in `/proc` of those processes of a group that live: zombies that were not
/// waited for do not.
fn living(group: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_living = |process: &PathBuf| {
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, of) = (fields.next(), fields.nth(1));
        of.is_some_and(|of| of == group.to_string()) && !matches!(state, Some("Z" | "X"))
    };
    let is_number = |process: &PathBuf| {
        process.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit())
    };
    entries.filter(is_number).filter(is_living).collect()
}

/// What a process does, from its directory in `/proc`.
fn state(process: &Path) -> String {
    let of = |name| fs::read_to_string(process.join(name)).unwrap_or_default();
    let (status, stack) = (of("status"), of("stack"));
    let fields = status.lines().filter(|line| line.starts_with("Sig") || line.starts_with("Shd"));
    let fields: Vec<_> =
        fields.chain(of("stat").lines().map(str::trim)).map(str::to_owned).collect();
    format!("{}: {}; {}", of("comm").trim(), fields.join(" "), stack.replace('\n', " "))
}
