//! `sshoal stats`: the counters of mounts, once or again and again.
//!
//! The daemons are queried over their [control sockets](control). A daemon that does not answer is
//! queried again at the next interval. When no mount is left, the command ends with exit code 1.

pub mod endpoint;
pub mod interval;
pub mod prometheus;
mod text;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, printable};
use control::client::{self, Silence};
use control::seen;
use control::status::MountStatus;
use mountinfo::Mount;

use interval::Interval;

/// A daemon removes its record before its mount is gone: while it is unmounted, this may take a
/// moment.
const ENDING: Duration = Duration::from_secs(1);

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The mount points; if omitted, all mounts of the user (as root, of all users).
    #[arg(id = "mountpoint", value_name = "MOUNTPOINT")]
    mountpoints: Vec<PathBuf>,
    /// Time between two lines, or updates.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// End after N intervals.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print lines, also on a terminal.
    #[arg(long)]
    lines: bool,
    /// Print one JSON object for each mount and interval.
    #[arg(long)]
    json: bool,
    /// Print the sums since the mount began, and end.
    #[arg(long, conflicts_with_all = ["count", "interval"])]
    total: bool,
    /// Print all counters since the mount began in Prometheus' format, and end.
    #[arg(long, conflicts_with_all = ["json", "total", "count", "interval", "lines"])]
    prometheus: bool,
}

/// Parses a time of 0.1 s to a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let wanted = || "must be a number of seconds from 0.1 to 86400".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wanted())?;
    if (0.1..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(wanted())
    }
}

/// Prints the counters. The exit code is 1 if a daemon did not answer, or no mount is left.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mounts = match &arguments.mountpoints[..] {
        [] => seen::all().or_problem("mount table")?,
        some => some.iter().map(|place| client::mount_at(place)).collect::<Result<_, _>>()?,
    };
    if mounts.is_empty() {
        eprintln!("sshoal: nothing is mounted");
        return Ok(ExitCode::from(EXIT_OK));
    }
    let mut watched: Vec<Watched> = mounts.into_iter().map(Watched::new).collect();
    if arguments.prometheus || arguments.total {
        return once(arguments, &watched);
    }
    let Arguments { interval, count, lines, json, .. } = *arguments;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    if !lines && !json && count.is_none() && io::stdout().is_terminal() && !is_dumb {
        return view::run(watched, interval);
    }
    repeat(&mut watched, interval, count, json)
}

/// A mount whose counters are read again and again.
pub struct Watched {
    mount: Mount,
    /// The mount point, escaped.
    name: String,
    last: Option<(Instant, Box<MountStatus>)>,
}

/// The result of reading the counters.
pub enum Seen {
    /// There is nothing to compare with yet.
    First,
    /// What happened since the last time.
    Interval(Box<Interval>, Box<MountStatus>),
    /// The daemon does not answer now.
    Silent(String),
    /// The daemon will never answer.
    Ended(String),
}

impl Watched {
    fn new(mount: Mount) -> Watched {
        Watched { name: printable(&mount.mountpoint), mount, last: None }
    }

    fn stats(&self) -> Result<Box<MountStatus>, Silence> {
        client::find(&self.mount).and_then(|found| client::stats(&found))
    }

    fn sample(&mut self) -> Seen {
        let now = match self.stats() {
            Ok(now) => now,
            Err(why @ (Silence::Hangs | Silence::Io(_))) => return Seen::Silent(why.to_string()),
            Err(why) => return Seen::Ended(self.end(why)),
        };
        let at = Instant::now();
        let Some((before_at, before)) = self.last.replace((at, now.clone())) else {
            return Seen::First;
        };
        let seconds = at.duration_since(before_at).as_secs_f64();
        Seen::Interval(Box::new(Interval::new(Some(&before), &now, seconds)), now)
    }

    /// Why the daemon does not answer: it ended in an orderly way, or it is dead.
    fn end(&self, why: Silence) -> String {
        match why {
            Silence::NoRecord | Silence::Unknown | Silence::Ended if self.is_unmounted_soon() => {
                "unmounted".to_owned()
            }
            Silence::Refused(problem) => problem.escaped().to_string(),
            why => why.to_string(),
        }
    }

    /// Whether the mount is gone, or goes within [`ENDING`].
    fn is_unmounted_soon(&self) -> bool {
        let deadline = Instant::now() + ENDING;
        let is_mounted = || {
            mountinfo::all().is_ok_and(|all| all.iter().any(|it| it.device == self.mount.device))
        };
        loop {
            if !is_mounted() {
                return true;
            } else if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Prints the counters since the mounts began.
fn once(arguments: &Arguments, watched: &[Watched]) -> anyhow::Result<ExitCode> {
    let mut code = EXIT_OK;
    let mut found = Vec::new();
    for mount in watched {
        match mount.stats() {
            Ok(status) => found.push((&*mount.name, status)),
            Err(why) => {
                eprintln!("sshoal: {}: {}", mount.name, mount.end(why));
                code = EXIT_FAILURE;
            }
        }
    }
    let mut out = String::new();
    if arguments.prometheus {
        let mounts: Vec<_> = found.iter().map(|(name, status)| (*name, &**status)).collect();
        out = prometheus::text(&mounts);
    } else {
        for (index, (name, status)) in found.iter().enumerate() {
            let total = Interval::new(None, status, status.up_ms as f64 / 1e3);
            if arguments.json {
                out += &text::json(name, &total)?;
            } else {
                out += if index == 0 { text::HEADER } else { "" };
                out += &labelled(&text::lines(&total), name, found.len());
            }
        }
    }
    cli::print(&out)?;
    Ok(ExitCode::from(code))
}

/// The lines of a mount, with its name if there are `mounts`, more than one.
fn labelled(lines: &str, name: &str, mounts: usize) -> String {
    match lines.split_once('\n') {
        Some((first, rest)) if mounts > 1 => format!("{first}  {name}\n{rest}"),
        _ => lines.to_owned(),
    }
}

/// Prints a line for each mount and interval.
fn repeat(
    watched: &mut Vec<Watched>,
    interval: Duration,
    count: Option<u64>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let mounts = watched.len();
    let mut next = Instant::now();
    let mut printed = 0;
    let mut intervals = 0;
    let mut code = EXIT_OK;
    loop {
        let mut out = String::new();
        let mut ended = Vec::new();
        for (index, mount) in watched.iter_mut().enumerate() {
            match mount.sample() {
                Seen::First => {}
                Seen::Interval(it, _) if json => out += &text::json(&mount.name, &it)?,
                Seen::Interval(it, _) => {
                    if printed % text::HEADER_EVERY == 0 {
                        out += text::HEADER;
                    }
                    printed += 1;
                    out += &labelled(&text::lines(&it), &mount.name, mounts);
                }
                Seen::Silent(why) => {
                    eprintln!("sshoal: {}: {why}", mount.name);
                    code = EXIT_FAILURE;
                }
                Seen::Ended(why) => {
                    eprintln!("sshoal: {}: {why}", mount.name);
                    ended.push(index);
                    code = EXIT_FAILURE;
                }
            }
        }
        if !cli::print_bytes(out.as_bytes())? {
            return Ok(ExitCode::from(EXIT_OK));
        }
        ended.into_iter().rev().for_each(|index| drop(watched.remove(index)));
        if watched.is_empty() {
            return Ok(ExitCode::from(EXIT_FAILURE));
        }
        if count == Some(intervals) {
            return Ok(ExitCode::from(code));
        }
        intervals += 1;
        next += interval;
        let now = Instant::now();
        // A late answer does not make the following intervals shorter.
        next = next.max(now);
        thread::sleep(next - now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "0.01", "-1", "x", "nan", "inf", "1e9"] {
            assert!(seconds(wrong).unwrap_err().contains("from 0.1"), "{wrong}");
        }
    }

    #[test]
    fn several_mounts_are_named() {
        assert_eq!(labelled("1 2\n3\n", "/a", 2), "1 2  /a\n3\n");
        assert_eq!(labelled("1 2\n", "/a", 1), "1 2\n");
    }
}
