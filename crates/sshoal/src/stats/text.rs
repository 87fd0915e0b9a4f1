//! The forms of an interval without a terminal: a line with a header now and then, and JSON.

use std::fmt::Write as _;

use cli::printable;
use control::counters::{Caches, Disk, Latency};
use control::status::State;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::interval::{HostInterval, Interval, percent, quantile_us};

/// Lines after which the header is repeated.
pub const HEADER_EVERY: usize = 20;

/// The titles of the columns; two lines.
pub const HEADER: &str = concat!(
    "    fuse            MB/s      latency ms              hits %   servers            MB/s        \n",
    "   ops/s    read   write     p50     p99 look attr open read     req/s      in     out waiting\n",
);

/// The line of an interval, and one of each host if there are several.
pub fn lines(interval: &Interval) -> String {
    let mega = |bytes: u64| interval.per_second(bytes) / 1e6;
    let (requests, received, sent) = interval.traffic();
    let latency = &interval.all.latency;
    let mut out = format!(
        "{:>8.0} {:>7.1} {:>7.1} {:>7} {:>7}",
        interval.per_second(latency.count()),
        mega(interval.read_bytes),
        mega(interval.written_bytes),
        milliseconds(latency, 0.5),
        milliseconds(latency, 0.99),
    );
    for (_, rate) in interval.rates().into_iter().take(4) {
        let _ =
            write!(out, " {:>4}", percent(rate).map_or("-".into(), |rate| format!("{rate:.0}")));
    }
    let _ = writeln!(
        out,
        " {:>9.0} {:>7.1} {:>7.1} {:>7}",
        interval.per_second(requests),
        mega(received),
        mega(sent),
        interval.waiting_calls,
    );
    if interval.hosts.len() > 1 {
        interval.hosts.iter().for_each(|host| host_line(&mut out, interval, host));
    }
    out
}

fn host_line(out: &mut String, interval: &Interval, host: &HostInterval) {
    let _ = writeln!(
        out,
        "{:>61} {:>9.0} {:>7.1} {:>7.1} {:>7}",
        format!("{} {}", printable(&host.status.host), state(host.status.state)),
        interval.per_second(host.requests()),
        interval.per_second(host.counters.received_bytes) / 1e6,
        interval.per_second(host.counters.sent_bytes) / 1e6,
        host.status.in_flight(),
    );
}

/// The word for the state of a host.
pub fn state(state: State) -> &'static str {
    match state {
        State::Connected => "connected",
        State::Reconnecting => "reconnecting",
        State::Lost => "lost",
        State::LeftOut => "left out",
        State::Returning => "returning",
        State::Idle => "not connected",
    }
}

/// A quantile in milliseconds, or a dash.
pub fn milliseconds(latency: &Latency, part: f64) -> String {
    match latency.quantile(part).map(|time| time.as_secs_f64() * 1e3) {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.2}"),
        Some(ms) if ms < 100.0 => format!("{ms:.1}"),
        Some(ms) => format!("{ms:.0}"),
    }
}

/// The JSON form of an interval.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    mountpoint: &'a str,
    interval_ms: u64,
    operations: Map<String, Value>,
    all: Value,
    read_bytes: u64,
    written_bytes: u64,
    in_flight: u64,
    waiting_calls: u64,
    unwritten_bytes: u64,
    caches: &'a Caches,
    disk: Option<Disk>,
    hosts: Vec<Value>,
}

/// Incremented when a field changes its name, its meaning or its unit.
const SCHEMA: u32 = 1;

/// An interval as JSON. `mountpoint` is escaped.
pub fn json(mountpoint: &str, interval: &Interval) -> anyhow::Result<String> {
    let times = |latency: &Latency| {
        let mean = latency.nanos.checked_div(latency.count()).map(|nanos| nanos / 1000);
        json!({
            "count": latency.count(),
            "mean_us": mean,
            "p50_us": quantile_us(latency, 0.5),
            "p95_us": quantile_us(latency, 0.95),
            "p99_us": quantile_us(latency, 0.99),
        })
    };
    let operation = |it: &control::counters::Operation| {
        let mut value = times(&it.latency);
        value["errors"] = it.errors.into();
        value
    };
    let host = |host: &HostInterval| {
        let first = host.first();
        json!({
            "source": host.source,
            "host": host.status.host,
            "state": host.status.state,
            "sessions": host.status.sessions_up(),
            "server": first.server,
            "server_version": first.server_version,
            "extensions": first.extensions,
            "in_flight": host.status.in_flight(),
            "requests": host.counters.requests,
            "sent_bytes": host.counters.sent_bytes,
            "received_bytes": host.counters.received_bytes,
            "sent_saved_bytes": host.counters.sent_saved_bytes,
            "received_saved_bytes": host.counters.received_saved_bytes,
            "small_requests": times(&host.counters.small_latency),
        })
    };
    let operations = interval.operations.iter();
    let document = Document {
        schema: SCHEMA,
        mountpoint,
        interval_ms: (interval.seconds * 1e3).round() as u64,
        operations: operations.map(|(name, it)| (name.clone(), operation(it))).collect(),
        all: operation(&interval.all),
        read_bytes: interval.read_bytes,
        written_bytes: interval.written_bytes,
        in_flight: interval.in_flight,
        waiting_calls: interval.waiting_calls,
        unwritten_bytes: interval.unwritten_bytes,
        caches: &interval.caches,
        disk: interval.disk,
        hosts: interval.hosts.iter().map(host).collect(),
    };
    Ok(base::printable::printable_json(&serde_json::to_string(&document)?) + "\n")
}

#[cfg(test)]
mod tests {
    use super::super::interval::tests::sample;
    use super::*;

    #[test]
    fn columns_are_below_their_titles() {
        let interval = Interval::new(Some(&sample(10)), &sample(30), 2.0);
        let text = HEADER.to_owned() + &lines(&interval);
        let [groups, titles, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        let ends = |line: &str| -> Vec<usize> {
            let bytes = line.as_bytes();
            (1..=bytes.len())
                .filter(|at| {
                    bytes[at - 1] != b' ' && bytes.get(*at).is_none_or(|next| *next == b' ')
                })
                .collect()
        };
        assert_eq!(ends(titles), ends(line), "{text}");
        assert!(line.len() <= 110 && groups.len() <= titles.len(), "{text}");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..3], ["20", "20.0", "5.0"]);
        assert_eq!(words[5..], ["90", "-", "-", "75", "30", "10.0", "0.0", "0"]);
    }

    #[test]
    fn several_hosts_have_a_line_each() {
        let mut status = sample(1);
        let mut other = status.sources[0].hosts[0].clone();
        other.host = "be\u{1b}ta".into();
        status.sources[0].hosts.push(other);
        let text = lines(&Interval::new(None, &status, 1.0));
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.contains("alpha connected ") && text.contains("be\\u{1b}ta connected"),
            "{text}"
        );
    }

    /// Other programs read this: a change of these fields needs a new schema number.
    #[test]
    fn the_json_is_one_line_with_its_fields() {
        let text = json("/mnt", &Interval::new(None, &sample(3), 3.0)).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&text).unwrap();
        let mut keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(
            keys,
            [
                "all",
                "caches",
                "disk",
                "hosts",
                "in_flight",
                "interval_ms",
                "mountpoint",
                "operations",
                "read_bytes",
                "schema",
                "unwritten_bytes",
                "waiting_calls",
                "written_bytes"
            ]
        );
        assert_eq!(value["interval_ms"], 3000);
        assert_eq!(value["operations"]["lookup"]["count"], 3);
        assert_eq!(value["operations"]["lookup"]["errors"], 3);
        assert_eq!(value["caches"]["lookup_hits"], 24);
        assert_eq!(value["hosts"][0]["requests"]["lstat"], 6);
        assert_eq!(value["hosts"][0]["small_requests"]["count"], 3);
        assert_eq!(value["disk"]["hits"], 3);
    }
}
