//! The text of `sshoal status`: a few aligned lines per mount.
//!
//! All text from a daemon is escaped again, since the daemon may be another user's.

use std::fmt::Write as _;

use cli::printable;
use control::seen::{Daemon, SeenMount};
use control::status::{
    DiskStatus, HostStatus, MountStatus, SourceStatus, State, Unwritten, WatchedStatus,
};

use crate::connector::TYPE_AGAIN;
use crate::quantity::{bytes, count, duration, latency};

/// A server that has been silent for longer than this while requests wait is reported.
const SILENCE_MS: u64 = 1000;

/// The text for all mounts.
pub fn render(mounts: &[SeenMount]) -> String {
    let all: Vec<String> = mounts.iter().map(mount).collect();
    all.join("\n")
}

fn mount(mount: &SeenMount) -> String {
    let mut out = format!("{}\n", printable(&mount.mountpoint));
    mount.unmounted.iter().for_each(|words| fact(&mut out, "mounted", &printable(words)));
    match &mount.status {
        Some(status) => self::status(&mut out, status),
        None => {
            fact(&mut out, "source", &printable(&mount.source));
            fact(&mut out, "process", &unanswered(mount));
        }
    }
    out
}

fn unanswered(mount: &SeenMount) -> String {
    let what = match mount.daemon {
        Daemon::Answers => "sent an empty reply",
        Daemon::Hangs => "not responding",
        Daemon::Dead => "dead",
        Daemon::Mute => "cannot be queried",
        Daemon::NotAllowed => "not permitted",
    };
    let pid = mount.pid.map_or_else(String::new, |pid| format!("{pid}, "));
    let why = mount.why.as_deref().map_or_else(String::new, |why| format!(": {}", printable(why)));
    format!("{pid}{what}{why}")
}

/// One line with a heading.
fn fact(out: &mut String, heading: &str, words: &str) {
    let _ = writeln!(out, "  {heading:<10} {words}");
}

fn status(out: &mut String, status: &MountStatus) {
    let version = printable(&status.version);
    let up = duration(status.up_ms);
    fact(out, "process", &format!("{}, sshoal {version}, for {up}", status.pid));
    if let Some(union) = &status.union {
        let (create, action) = (printable(&union.create), printable(&union.action));
        fact(out, "branches", &format!("create {create}, action {action}"));
        branches(out, &status.sources);
    } else {
        for source in &status.sources {
            fact(
                out,
                "source",
                &format!("{}  {}", printable(&source.source), source_state(source)),
            );
            source.hosts.iter().for_each(|host| self::host(out, host));
        }
    }
    fact(out, "unwritten", &unwritten(&status.unwritten));
    status.lost.iter().for_each(|lost| fact(out, "lost", &printable(lost).to_string()));
    status.sources.iter().for_each(|source| waiting(out, source));
    let (files, directories) = (status.open.files, status.open.directories);
    fact(out, "open", &format!("{}, {}", count(files, "file"), count(directories, "directory")));
    let cache = &status.cache;
    let (inodes, names) = (count(cache.inodes, "inode"), count(cache.listed_names, "listed name"));
    let (listed, fetched) = (bytes(cache.listed_bytes), bytes(cache.fetched_bytes));
    fact(
        out,
        "cached",
        &format!("{inodes}; {names} ({listed}); {fetched} of file data prefetched"),
    );
    cache.watched.iter().for_each(|watched| self::watched(out, watched));
    status.disk.iter().for_each(|disk| self::disk(out, disk));
}

fn unwritten(unwritten: &Unwritten) -> String {
    let mut words = Vec::new();
    if unwritten.bytes > 0 {
        let (size, limit) = (bytes(unwritten.bytes), bytes(unwritten.limit_bytes));
        // A file that no process has open is not counted.
        let files = match unwritten.files {
            0 => String::new(),
            files => format!(" in {}", count(files, "file")),
        };
        words.push(format!("{size}{files} (limit {limit})"));
    }
    if unwritten.changes > 0 {
        words.push(count(unwritten.changes, "attribute change"));
    }
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

fn watched(out: &mut String, watched: &WatchedStatus) {
    let mut words = count(watched.directories, "directory");
    if watched.losses > 0 {
        words += &format!("; reports were lost {}", count(watched.losses, "time"));
    }
    if let Some(problem) = &watched.problem {
        words += &format!("; {}", printable(problem));
    }
    fact(out, "watched", &words);
}

fn disk(out: &mut String, disk: &DiskStatus) {
    let dir = printable(&disk.dir);
    let (used, limit) = (bytes(disk.used_bytes), bytes(disk.limit_bytes));
    let why = disk.why.as_deref().map(printable).unwrap_or_default();
    fact(
        out,
        "disk",
        &match (disk.on, disk.limit_bytes) {
            (true, _) => format!("{used} of {limit} in {dir}"),
            (false, 0) => format!("off: {why}"),
            (false, _) => format!("read-only: {why}; {used} of {limit} in {dir}"),
        },
    );
    if disk.limit_bytes == 0 {
        return;
    }
    let (here, there) = (bytes(disk.read_here_bytes), bytes(disk.read_there_bytes));
    let opens = disk.hits + disk.misses;
    let mut facts = vec![
        format!("{} of {} served from the disk cache", disk.hits, count(opens, "open")),
        format!("{here} read from the cache, {there} from the server"),
    ];
    let left_out = disk.left_out_bytes;
    let rare = [
        (disk.opened_through, count(disk.opened_through, "open"), "by kernel passthrough"),
        (disk.damaged, count(disk.damaged, "chunk"), "damaged"),
        (
            disk.changed_meanwhile,
            count(disk.changed_meanwhile, "file"),
            "changed while being fetched",
        ),
        (left_out, bytes(left_out), "not cached because the disk is slow"),
        (disk.too_large, count(disk.too_large, "open"), "of files too large for the cache"),
        (disk.missed_offline, count(disk.missed_offline, "request"), "not answerable offline"),
    ];
    let rare = rare.iter().filter(|(number, ..)| *number > 0);
    facts.extend(rare.map(|(_, counted, what)| format!("{counted} {what}")));
    fact(out, "", &facts.join("; "));
}

/// The branches, one line each.
pub fn branch_list(status: &MountStatus) -> String {
    table(&status.sources).into_iter().map(|line| line + "\n").collect()
}

/// The branches, each with its hosts below it.
fn branches(out: &mut String, sources: &[SourceStatus]) {
    for (line, source) in table(sources).iter().zip(sources) {
        let _ = writeln!(out, "    {line}");
        source.hosts.iter().for_each(|host| self::host(out, host));
    }
}

/// One line per source: name, mode, presence and state, in columns.
fn table(sources: &[SourceStatus]) -> Vec<String> {
    let rows: Vec<[String; 3]> = sources
        .iter()
        .map(|source| [&source.source, &source.mode, &source.presence].map(printable))
        .collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths = [width(0), width(1), width(2)];
    let line = |(row, source): (&[String; 3], &SourceStatus)| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let padding = width - cell.chars().count();
            let _ = write!(line, "{cell}{:padding$}  ", "");
        }
        line + &source_state(source)
    };
    rows.iter().zip(sources).map(line).collect()
}

fn source_state(source: &SourceStatus) -> String {
    let mut words = state(source.state, source.state_ms, source.why.as_deref());
    if let Some(pool) = &source.pool {
        let _ = write!(words, " (pool, {})", printable(pool));
    }
    words
}

/// A state, with its duration and reason if it is a failure.
fn state(state: State, ms: Option<u64>, why: Option<&str>) -> String {
    let word = match state {
        State::Connected => return "connected".to_owned(),
        State::Idle => return "not connected yet".to_owned(),
        State::Reconnecting => "reconnecting",
        State::Lost => "lost",
        State::LeftOut => "left out",
        State::Returning => "returning",
    };
    let time = ms.map_or_else(String::new, |ms| format!(" for {}", duration(ms)));
    let why = why.map_or_else(String::new, |why| format!(": {}", printable(why)));
    let remedy = if state == State::Lost { "; mount again" } else { "" };
    format!("{word}{time}{why}{remedy}")
}

fn host(out: &mut String, host: &HostStatus) {
    let (up, most) = (host.sessions_up(), count(host.max_sessions, "session"));
    let mut facts = vec![format!("{up} of {most}")];
    facts.extend(server(host));
    facts.extend(host.direct.as_ref().map(|at| format!("direct to {}", printable(at))));
    facts.extend(host.not_direct.as_ref().map(|why| format!("not direct: {}", printable(why))));
    if host.sessions.iter().any(|session| session.is_compressed) {
        facts.push("compressed".to_owned());
    }
    facts.extend(host.round_trip_us.map(|us| format!("round trip {}", latency(us))));
    facts.extend(host.latency_us.map(|us| format!("latency {}", latency(us))));
    if host.in_flight() > 0 {
        facts.push(format!("{} in flight", count(host.in_flight(), "request")));
    }
    let silent = host.sessions.iter().map(|session| session.silent_ms).max().unwrap_or_default();
    if silent >= SILENCE_MS {
        facts.push(format!("silent for {}", duration(silent)));
    }
    if !matches!(host.state, State::Connected | State::Idle) {
        facts.push(state(host.state, host.state_ms, host.why.as_deref()));
    }
    match host.password.as_deref() {
        Some("kept") => facts.push("password kept".to_owned()),
        Some(_) => facts.push(format!("needs the password again: {TYPE_AGAIN}")),
        None => (),
    }
    let _ = writeln!(out, "      {}: {}", printable(&host.host), facts.join(", "));
    for session in host.sessions.iter().skip(1) {
        // A failure of the first session is reported as the host's.
        if let Some(why) = &session.why {
            let _ = writeln!(out, "        session {}: {}", session.slot, printable(why));
        }
    }
}

/// The program that serves the first session, and so all of them; `None` while there is none.
pub fn server(host: &HostStatus) -> Option<String> {
    let first = host.sessions.first()?;
    Some(match (first.server.as_deref()?, &first.server_version) {
        ("sftp", _) => "plain SFTP".to_owned(),
        (name, None) => printable(name),
        (name, Some(version)) => printable(format!("{name} {version}")),
    })
}

fn waiting(out: &mut String, source: &SourceStatus) {
    if source.waiting_calls == 0 && source.unacknowledged_bytes == 0 {
        return;
    }
    let mut words = Vec::new();
    if source.waiting_calls > 0 {
        words.push(count(source.waiting_calls, "call"));
    }
    if source.unacknowledged_bytes > 0 {
        words.push(format!("{} of writes", bytes(source.unacknowledged_bytes)));
    }
    fact(out, "waiting", &format!("{} for {}", words.join(" and "), printable(&source.source)));
}

#[cfg(test)]
mod tests;
