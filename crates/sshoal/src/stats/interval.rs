//! What happened in a mount between two samples of its counters, or since it began.

use std::collections::BTreeMap;

use control::counters::{Caches, Disk, HostCounters, Latency, Operation};
use control::status::{HostStatus, MountStatus, SessionStatus};

use crate::quantity::micros;

/// Sums over an interval, and the state at its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// Its length.
    pub seconds: f64,
    /// FUSE requests by kind.
    pub operations: BTreeMap<String, Operation>,
    /// All of them.
    pub all: Operation,
    /// Bytes that applications have read, and written.
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// FUSE requests in progress at the end, and those that wait for an unreachable host.
    pub in_flight: u64,
    pub waiting_calls: u64,
    /// Bytes that no server has acknowledged at the end.
    pub unwritten_bytes: u64,
    /// The caches in memory.
    pub caches: Caches,
    /// The disk cache, if there is one.
    pub disk: Option<Disk>,
    /// The hosts, in the order of the sources.
    pub hosts: Vec<HostInterval>,
}

/// One host in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostInterval {
    /// The source as the user wrote it.
    pub source: String,
    /// The state of the host at the end.
    pub status: HostStatus,
    /// The requests that were sent, and their bytes.
    pub counters: HostCounters,
}

/// Hits, and hits with misses.
pub type Rate = (u64, u64);

impl Interval {
    /// What happened in `seconds` between `before` and `now`; since the mount began without
    /// `before`.
    pub fn new(before: Option<&MountStatus>, now: &MountStatus, seconds: f64) -> Interval {
        let none = MountStatus::default();
        let before = before.unwrap_or(&none);
        let (old, new) = (before.counters.clone(), now.counters.clone());
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        let absent = Operation::default();
        let mut all = Operation::default();
        let mut operations = BTreeMap::new();
        for (name, now) in &new.operations {
            let before = old.operations.get(name).unwrap_or(&absent);
            let part = Operation {
                errors: now.errors.saturating_sub(before.errors),
                latency: now.latency.since(&before.latency),
            };
            if part.latency.count() > 0 {
                all.errors = all.errors.saturating_add(part.errors);
                all.latency.add(&part.latency);
                operations.insert(name.clone(), part);
            }
        }
        Interval {
            seconds,
            operations,
            all,
            read_bytes: new.read_bytes.saturating_sub(old.read_bytes),
            written_bytes: new.written_bytes.saturating_sub(old.written_bytes),
            in_flight: new.in_flight,
            waiting_calls: sum(now.sources.iter().map(|source| source.waiting_calls)),
            unwritten_bytes: now.unwritten.bytes,
            caches: caches(&old.caches, &new.caches),
            disk: disk(before, now),
            hosts: hosts(before, now),
        }
    }

    /// A number for each second.
    pub fn per_second(&self, number: u64) -> f64 {
        if self.seconds > 0.0 { number as f64 / self.seconds } else { 0.0 }
    }

    /// Hits of each cache, by the name of its column.
    pub fn rates(&self) -> Vec<(&'static str, Rate)> {
        rates(&self.caches, self.disk)
    }

    /// Requests to all hosts, bytes received, and bytes sent.
    pub fn traffic(&self) -> (u64, u64, u64) {
        (
            sum(self.hosts.iter().map(HostInterval::requests)),
            sum(self.hosts.iter().map(|host| host.counters.received_bytes)),
            sum(self.hosts.iter().map(|host| host.counters.sent_bytes)),
        )
    }
}

impl HostInterval {
    /// Number of requests of all kinds.
    pub fn requests(&self) -> u64 {
        sum(self.counters.requests.values().copied())
    }

    /// The first session at the end: what serves it.
    pub fn first(&self) -> SessionStatus {
        self.status.sessions.first().cloned().unwrap_or_default()
    }
}

/// Hits of each cache, by the name of its column.
pub fn rates(caches: &Caches, disk: Option<Disk>) -> Vec<(&'static str, Rate)> {
    let rate = |hits: u64, misses: u64| (hits, hits.saturating_add(misses));
    let lookups = caches.lookup_hits.saturating_add(caches.lookup_absent_hits);
    let reads = caches.read_prefetched.saturating_add(caches.read_hits);
    let mut rates = vec![
        ("lookup", rate(lookups, caches.lookup_misses)),
        ("attr", rate(caches.attribute_hits, caches.attribute_misses)),
        ("open", rate(caches.open_hits, caches.open_misses)),
        ("read", rate(reads, caches.read_waited.saturating_add(caches.read_misses))),
    ];
    rates.extend(disk.map(|disk| ("disk", rate(disk.hits, disk.misses))));
    rates
}

/// A rate in percent; `None` if nothing was requested.
pub fn percent((hits, all): Rate) -> Option<f64> {
    (all > 0).then(|| 100.0 * hits as f64 / all as f64)
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn caches(old: &Caches, new: &Caches) -> Caches {
    let since = |part: fn(&Caches) -> u64| part(new).saturating_sub(part(old));
    Caches {
        lookup_hits: since(|it| it.lookup_hits),
        lookup_absent_hits: since(|it| it.lookup_absent_hits),
        lookup_misses: since(|it| it.lookup_misses),
        attribute_hits: since(|it| it.attribute_hits),
        attribute_misses: since(|it| it.attribute_misses),
        open_hits: since(|it| it.open_hits),
        open_prefetched: since(|it| it.open_prefetched),
        open_misses: since(|it| it.open_misses),
        open_passthrough: since(|it| it.open_passthrough),
        no_open: new.no_open,
        read_prefetched: since(|it| it.read_prefetched),
        read_hits: since(|it| it.read_hits),
        read_waited: since(|it| it.read_waited),
        read_misses: since(|it| it.read_misses),
    }
}

fn disk(before: &MountStatus, now: &MountStatus) -> Option<Disk> {
    let (new, old) = (now.disk.as_ref()?, before.disk.clone().unwrap_or_default());
    Some(Disk {
        hits: new.hits.saturating_sub(old.hits),
        misses: new.misses.saturating_sub(old.misses),
        read_here_bytes: new.read_here_bytes.saturating_sub(old.read_here_bytes),
        read_there_bytes: new.read_there_bytes.saturating_sub(old.read_there_bytes),
    })
}

fn hosts(before: &MountStatus, now: &MountStatus) -> Vec<HostInterval> {
    let mut intervals = Vec::new();
    for source in &now.sources {
        // Branches may have been added and removed.
        let old = before
            .sources
            .iter()
            .find(|old| old.source == source.source && old.place == source.place);
        for (index, host) in source.hosts.iter().enumerate() {
            let old = old.and_then(|old| old.hosts.get(index)).filter(|old| old.host == host.host);
            let old = old.and_then(|old| old.counters.clone()).unwrap_or_default();
            let new = host.counters.clone().unwrap_or_default();
            intervals.push(HostInterval {
                source: source.source.clone(),
                counters: host_counters(&old, &new),
                status: HostStatus { counters: None, ..host.clone() },
            });
        }
    }
    intervals
}

fn host_counters(old: &HostCounters, new: &HostCounters) -> HostCounters {
    let before = |name: &String| old.requests.get(name).copied().unwrap_or(0);
    let requests = new.requests.iter();
    HostCounters {
        requests: requests
            .map(|(name, count)| (name.clone(), count.saturating_sub(before(name))))
            .filter(|(_, count)| *count > 0)
            .collect(),
        sent_bytes: new.sent_bytes.saturating_sub(old.sent_bytes),
        received_bytes: new.received_bytes.saturating_sub(old.received_bytes),
        sent_saved_bytes: new.sent_saved_bytes.saturating_sub(old.sent_saved_bytes),
        received_saved_bytes: new.received_saved_bytes.saturating_sub(old.received_saved_bytes),
        small_latency: new.small_latency.since(&old.small_latency),
    }
}

/// A quantile in microseconds.
pub fn quantile_us(latency: &Latency, part: f64) -> Option<u64> {
    latency.quantile(part).map(micros)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use control::counters::Counters;
    use control::status::{DiskStatus, SourceStatus, State};

    /// A mount in which all of this has happened `times` times.
    pub fn sample(times: u64) -> MountStatus {
        let latency = |at: usize| {
            let mut counts = vec![0; at + 1];
            counts[at] = times;
            Latency { counts, nanos: 1_000_000 * times }
        };
        let operation = |at, errors| Operation { errors, latency: latency(at) };
        let host = HostStatus {
            host: "alpha".into(),
            state: State::Connected,
            counters: Some(HostCounters {
                requests: [("lstat".to_owned(), 2 * times), ("read".to_owned(), times)].into(),
                sent_bytes: 1000 * times,
                received_bytes: 1_000_000 * times,
                sent_saved_bytes: 10 * times,
                received_saved_bytes: 100 * times,
                small_latency: latency(40),
            }),
            ..HostStatus::default()
        };
        let source = SourceStatus {
            source: "alpha:/x".into(),
            hosts: vec![host],
            ..SourceStatus::default()
        };
        let counters = Counters {
            operations: [
                ("lookup".to_owned(), operation(20, times)),
                ("read".to_owned(), operation(52, 0)),
            ]
            .into(),
            in_flight: 2,
            read_bytes: 2_000_000 * times,
            written_bytes: 500_000 * times,
            caches: Caches {
                lookup_hits: 8 * times,
                lookup_absent_hits: times,
                lookup_misses: times,
                read_hits: 3 * times,
                read_misses: times,
                ..Caches::default()
            },
        };
        MountStatus {
            up_ms: 1000 * times,
            sources: vec![source],
            disk: Some(DiskStatus { hits: times, ..DiskStatus::default() }),
            counters: Some(Box::new(counters)),
            ..MountStatus::default()
        }
    }

    #[test]
    fn an_interval_has_the_differences_and_the_last_state() {
        let interval = Interval::new(Some(&sample(10)), &sample(30), 2.0);
        assert_eq!(interval.all.latency.count(), 40);
        assert_eq!((interval.all.errors, interval.in_flight), (20, 2));
        assert_eq!(interval.per_second(interval.read_bytes), 20e6);
        assert_eq!(interval.traffic(), (60, 20_000_000, 20_000));
        assert_eq!(interval.hosts[0].counters.requests["lstat"], 40);
        let rates: Vec<_> =
            interval.rates().into_iter().map(|(name, rate)| (name, percent(rate))).collect();
        assert_eq!(rates[0], ("lookup", Some(90.0)));
        assert_eq!(rates[1], ("attr", None));
        assert_eq!((rates[3], rates[4]), (("read", Some(75.0)), ("disk", Some(100.0))));
        assert!(quantile_us(&interval.all.latency, 0.99) > quantile_us(&interval.all.latency, 0.4));
    }

    #[test]
    fn nothing_is_negative_if_a_branch_or_a_daemon_is_new() {
        let interval = Interval::new(Some(&sample(30)), &sample(10), 1.0);
        assert_eq!((interval.read_bytes, interval.traffic().1), (0, 0));
        assert!(interval.operations.is_empty());
        let total = Interval::new(None, &sample(5), 5.0);
        assert_eq!((total.read_bytes, total.all.latency.count()), (10_000_000, 10));
        let empty = Interval::new(None, &MountStatus::default(), 0.0);
        assert_eq!((empty.per_second(7), empty.disk), (0.0, None));
    }
}
