//! `sshoal profile`: which paths and processes cause the requests of a mount, and which of its caches
//! answer them.

pub mod recorder;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use cli::{Document, printable};
use control::client;
use control::profile::{Entry, MAX_SECONDS, Profile, Share};

use crate::quantity::{bytes, count, duration, latency};
use crate::stats::interval;

/// Rows of a table.
const SHOWN_ROWS: usize = 10;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The mount point.
    mountpoint: PathBuf,
    /// Time of the recording.
    #[arg(short = 't', long = "time", value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SECONDS)))]
    seconds: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Records requests for some seconds, and prints their causes.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { mountpoint, seconds, json } = arguments;
    let mount = client::mount_at(mountpoint)?;
    let recorded = client::find(&mount).and_then(|found| {
        if !json {
            eprintln!("sshoal: recording for {seconds} s; Ctrl-C ends without a result");
        }
        client::profile(&found, *seconds)
    });
    let content = recorded.map_err(|why| client::problem(mountpoint, why))?;
    let profile = Document { schema: 1, content };
    cli::print_as(*json, &profile, || text(&profile.content))
}

fn text(profile: &Profile) -> String {
    let total = &profile.total;
    let mut out = format!(
        "{} in {}: {} waited, {} read and written, {} to servers, and {} in the background\n",
        count(total.count(), "operation"),
        duration(profile.ms),
        latency(total.waited_us),
        bytes(total.bytes),
        count(total.requests, "request"),
        count(profile.background_requests, "request"),
    );
    caches(&mut out, profile);
    for (title, entries) in [
        ("program", &profile.programs),
        ("process", &profile.processes),
        ("directory", &profile.directories),
        ("path", &profile.paths),
    ] {
        table(&mut out, title, entries);
    }
    if profile.is_incomplete {
        out += "\nToo many paths to keep all: rarely used ones are missing, and others may have \
            waited longer than shown.\n";
    }
    out
}

/// The caches that were used. A daemon of an earlier version reports none.
fn caches(out: &mut String, profile: &Profile) {
    let Some(caches) = &profile.caches else { return };
    let rates = interval::rates(caches, profile.disk).into_iter();
    let rows = rates.filter_map(|(name, rate)| Some((name, rate, interval::percent(rate)?)));
    for (index, (name, (hits, all), percent)) in rows.enumerate() {
        if index == 0 {
            *out += "\n      hits  misses hits %  cache\n";
        }
        let _ = writeln!(out, "{hits:>10} {:>7} {percent:>6.0}  {name}", all - hits);
    }
}

fn table(out: &mut String, title: &str, entries: &[Entry]) {
    if entries.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n    waited     ops errors requests      data  {title}");
    for entry in entries.iter().take(SHOWN_ROWS) {
        let Entry { name, pid, share } = entry;
        let name = match (name.as_str(), pid) {
            // The process had ended before its name could be read.
            ("", Some(pid)) => format!("(pid {pid})"),
            ("", None) => "(unknown)".to_owned(),
            (name, Some(pid)) => format!("{} ({pid})", printable(name)),
            (name, None) => printable(name),
        };
        let _ = writeln!(
            out,
            "{:>10} {:>7} {:>6} {:>8} {:>9}  {name}  {}",
            latency(share.waited_us),
            share.count(),
            share.errors,
            share.requests,
            bytes(share.bytes),
            kinds(share),
        );
    }
    if entries.len() > SHOWN_ROWS {
        let _ = writeln!(out, "{:>10} more in the JSON form", entries.len() - SHOWN_ROWS);
    }
}

/// The most frequent operations.
fn kinds(share: &Share) -> String {
    let mut kinds: Vec<_> = share.operations.iter().collect();
    kinds.sort_by(|one, other| other.1.cmp(one.1).then(one.0.cmp(other.0)));
    let shown: Vec<String> =
        kinds.iter().take(4).map(|(name, count)| format!("{} {count}", printable(name))).collect();
    format!("[{}]", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::counters::{Caches, Disk};

    #[test]
    fn a_table_has_the_causes_and_no_control_characters() {
        let share = |reads: u64| Share {
            operations: [("read".to_owned(), reads), ("open".to_owned(), 1)].into(),
            errors: 1,
            waited_us: 1500,
            bytes: 2048,
            requests: 3,
        };
        let entry = |name: &str, pid| Entry { name: name.to_owned(), pid, share: share(5) };
        let profile = Profile {
            ms: 2000,
            total: share(5),
            background_requests: 2,
            caches: Some(Caches {
                lookup_hits: 5,
                lookup_absent_hits: 1,
                lookup_misses: 2,
                read_misses: 4,
                ..Caches::default()
            }),
            disk: Some(Disk { hits: 3, ..Disk::default() }),
            paths: (0..20).map(|_| entry("/a\u{1b}[2J", None)).collect(),
            directories: Vec::new(),
            processes: vec![entry("cat", Some(77)), entry("", Some(78))],
            programs: vec![entry("", None)],
            is_incomplete: true,
        };
        let text = text(&profile);
        assert!(text.starts_with(
            "6 operations in 2.0 s: 1.50 ms waited, 2 KiB read and written, 3 requests to servers, \
             and 2 requests in the background\n\n      hits  misses hits %  cache\n         \
             6       2     75  lookup\n         0       4      0  read\n         \
             3       0    100  disk\n\n    waited     ops errors requests      data  program\n"
        ), "{text}");
        assert!(
            text.contains(
                "process\n   1.50 ms       6      1        3     2 KiB  cat (77)  [read 5, open 1]\n"
            ),
            "{text}"
        );
        assert!(
            text.contains(" KiB  (pid 78)  [") && text.contains(" KiB  (unknown)  ["),
            "{text}"
        );
        assert!(!super::text(&Profile { caches: None, ..profile }).contains("cache"), "no numbers");
        assert!(!text.contains('\u{1b}') && text.contains("/a\\u{1b}[2J  [read 5"), "{text}");
        assert!(text.contains(" 10 more in the JSON form") && text.contains("Too many paths"));
        assert!(!text.contains("directory"));
    }
}
