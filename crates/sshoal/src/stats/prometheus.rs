//! The counters in Prometheus' text format, version 0.0.4.

use std::fmt::Write as _;
use std::time::Duration;

use base::metrics::{BUCKETS, bucket_start};
use control::counters::{Counters, Latency};
use control::status::{HostStatus, MountStatus, SourceStatus, State};

/// A mount point, escaped, and the status with the counters.
pub type Mount<'a> = (&'a str, &'a MountStatus);

/// Every how many buckets of a histogram are shown as one: two powers of two.
const BUCKETS_SHOWN_AS_ONE: usize = 8;

/// The text of all metrics of these mounts.
pub fn text(mounts: &[Mount<'_>]) -> String {
    let mut out = Text { out: String::new(), name: "", mounts };
    out.mount_metrics();
    out.request_metrics();
    out.cache_metrics();
    out.host_metrics();
    out.out
}

/// The text so far, and the family whose samples are written.
struct Text<'a> {
    out: String,
    name: &'static str,
    mounts: &'a [Mount<'a>],
}

/// The labels of a sample.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text<'_> {
    /// Begins a family, and calls `samples` for each mount.
    fn family(
        &mut self,
        name: &'static str,
        kind: &str,
        help: &str,
        samples: impl Fn(&mut Self, &str, &MountStatus),
    ) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self.name = name;
        for (mountpoint, status) in self.mounts {
            samples(self, mountpoint, status);
        }
    }

    /// A family with one number of each mount.
    fn number(
        &mut self,
        name: &'static str,
        kind: &str,
        help: &str,
        number: impl Fn(&MountStatus) -> f64,
    ) {
        self.family(name, kind, help, |out, mountpoint, status| {
            out.sample("", &[("mountpoint", mountpoint)], number(status));
        });
    }

    /// A family with samples of each host.
    fn hosts(
        &mut self,
        name: &'static str,
        kind: &str,
        help: &str,
        samples: impl Fn(&mut Self, Labels<'_>, &HostStatus),
    ) {
        self.family(name, kind, help, |out, mountpoint, status| {
            // With its place, a source is unique within a mount.
            for SourceStatus { source, hosts, .. } in &status.sources {
                for host in hosts {
                    let labels =
                        [("mountpoint", mountpoint), ("source", source), ("host", &host.host)];
                    samples(out, &labels, host);
                }
            }
        });
    }

    fn sample(&mut self, suffix: &str, labels: Labels<'_>, value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.out, "{}{suffix}{{{}}} {value}", self.name, labels.join(","));
    }

    fn histogram(&mut self, labels: Labels<'_>, latency: &Latency) {
        let bucket = |out: &mut Self, limit: &str, count: u64| {
            out.sample("_bucket", &[labels, &[("le", limit)]].concat(), count as f64);
        };
        for index in (BUCKETS_SHOWN_AS_ONE..BUCKETS).step_by(BUCKETS_SHOWN_AS_ONE) {
            let limit: Duration = bucket_start(index);
            bucket(self, &limit.as_secs_f64().to_string(), latency.shorter(limit));
        }
        bucket(self, "+Inf", latency.count());
        self.sample("_sum", labels, latency.nanos as f64 / 1e9);
        self.sample("_count", labels, latency.count() as f64);
    }

    fn mount_metrics(&mut self) {
        let help = "Constant 1, with the version of the daemon.";
        self.family("sshoal_info", "gauge", help, |out, mountpoint, status| {
            let labels = [("mountpoint", mountpoint), ("version", &*status.version)];
            out.sample("", &labels, 1.0);
        });
        self.number("sshoal_uptime_seconds", "gauge", "Time since the mount began.", |it| {
            it.up_ms as f64 / 1e3
        });
        let help = "Bytes acknowledged to applications and not yet by the server.";
        self.number("sshoal_unwritten_bytes", "gauge", help, |it| it.unwritten.bytes as f64);
        self.number("sshoal_open_files", "gauge", "Open files.", |it| it.open.files as f64);
        self.number("sshoal_inodes", "gauge", "Inodes in memory.", |it| it.cache.inodes as f64);
        let help = "Calls that wait for an unreachable host.";
        self.number("sshoal_waiting_calls", "gauge", help, |it| {
            it.sources.iter().map(|source| source.waiting_calls as f64).sum()
        });
    }

    fn request_metrics(&mut self) {
        let counted = |part: fn(&Counters) -> u64| {
            move |it: &MountStatus| it.counters.as_ref().map_or(0.0, |it| part(it) as f64)
        };
        let help = "Times of FUSE requests, by operation.";
        self.family("sshoal_fuse_request_duration_seconds", "histogram", help, |out, at, it| {
            for (name, operation) in it.counters.iter().flat_map(|it| &it.operations) {
                out.histogram(&[("mountpoint", at), ("operation", name)], &operation.latency);
            }
        });
        let help = "FUSE requests answered with an error, by operation.";
        self.family("sshoal_fuse_errors_total", "counter", help, |out, at, it| {
            for (name, operation) in it.counters.iter().flat_map(|it| &it.operations) {
                let labels = [("mountpoint", at), ("operation", &**name)];
                out.sample("", &labels, operation.errors as f64);
            }
        });
        let help = "FUSE requests in progress.";
        self.number("sshoal_fuse_requests_in_flight", "gauge", help, counted(|it| it.in_flight));
        let help = "Bytes that applications have read.";
        self.number("sshoal_read_bytes_total", "counter", help, counted(|it| it.read_bytes));
        let help = "Bytes that applications have written.";
        self.number("sshoal_written_bytes_total", "counter", help, counted(|it| it.written_bytes));
    }

    fn cache_metrics(&mut self) {
        let help = "Answers of each cache, by result.";
        self.family("sshoal_cache_requests_total", "counter", help, |out, mountpoint, status| {
            let caches = status.counters.as_ref().map(|it| it.caches.clone()).unwrap_or_default();
            let mut results = vec![
                ("lookup", "hit", caches.lookup_hits),
                ("lookup", "absent", caches.lookup_absent_hits),
                ("lookup", "miss", caches.lookup_misses),
                ("attributes", "hit", caches.attribute_hits),
                ("attributes", "miss", caches.attribute_misses),
                ("open", "hit", caches.open_hits),
                ("open", "miss", caches.open_misses),
                ("read", "hit", caches.read_hits),
                ("read", "prefetched", caches.read_prefetched),
                ("read", "waited", caches.read_waited),
                ("read", "miss", caches.read_misses),
            ];
            if let Some(disk) = &status.disk {
                results.extend([("disk", "hit", disk.hits), ("disk", "miss", disk.misses)]);
            }
            for (cache, result, count) in results {
                let labels = [("mountpoint", mountpoint), ("cache", cache), ("result", result)];
                out.sample("", &labels, count as f64);
            }
        });
        // Not a result of its own: a difference of counters that are read one after the other can
        // decrease.
        let help = "Hits of opens whose content was prefetched.";
        self.number("sshoal_prefetched_opens_total", "counter", help, |it| {
            it.counters.as_ref().map_or(0.0, |it| it.caches.open_prefetched as f64)
        });
        let help = "Opens whose content the kernel reads directly from the disk cache.";
        self.number("sshoal_passthrough_opens_total", "counter", help, |it| {
            it.counters.as_ref().map_or(0.0, |it| it.caches.open_passthrough as f64)
        });
        let help = "Bytes of opened files read from the disk cache and from servers.";
        self.family("sshoal_disk_cache_read_bytes_total", "counter", help, |out, at, it| {
            if let Some(disk) = &it.disk {
                for (from, bytes) in
                    [("cache", disk.read_here_bytes), ("server", disk.read_there_bytes)]
                {
                    out.sample("", &[("mountpoint", at), ("from", from)], bytes as f64);
                }
            }
        });
        let help = "Size of the disk cache, which several mounts may share.";
        self.family("sshoal_disk_cache_bytes", "gauge", help, |out, at, it| {
            if let Some(disk) = &it.disk {
                out.sample("", &[("mountpoint", at)], disk.used_bytes as f64);
            }
        });
    }

    fn host_metrics(&mut self) {
        let help = "Whether the host is connected.";
        self.hosts("sshoal_host_connected", "gauge", help, |out, labels, host| {
            let is_connected = matches!(host.state, State::Connected | State::Returning);
            out.sample("", labels, f64::from(u8::from(is_connected)));
        });
        let help = "Sessions that are up.";
        self.hosts("sshoal_host_sessions", "gauge", help, |out, labels, host| {
            out.sample("", labels, host.sessions_up() as f64);
        });
        let help = "Whether the helper serves the sessions.";
        self.hosts("sshoal_host_helper", "gauge", help, |out, labels, host| {
            let server = host.sessions.first().and_then(|first| first.server.as_deref());
            out.sample("", labels, f64::from(u8::from(server == Some("helper"))));
        });
        let help = "SFTP requests without a reply.";
        self.hosts("sshoal_sftp_requests_in_flight", "gauge", help, |out, labels, host| {
            out.sample("", labels, host.in_flight() as f64);
        });
        let help = "Shortest recent round trip.";
        self.hosts("sshoal_host_round_trip_seconds", "gauge", help, |out, labels, host| {
            if let Some(us) = host.round_trip_us {
                out.sample("", labels, us as f64 / 1e6);
            }
        });
        let help = "SFTP requests sent, by kind.";
        self.hosts("sshoal_sftp_requests_total", "counter", help, |out, labels, host| {
            for (kind, count) in host.counters.iter().flat_map(|it| &it.requests) {
                out.sample("", &[labels, &[("request", kind)]].concat(), *count as f64);
            }
        });
        let help = "Bytes of SFTP packets sent, before ssh encrypts or compresses them.";
        self.hosts("sshoal_sftp_sent_bytes_total", "counter", help, |out, labels, host| {
            let bytes = host.counters.as_ref().map_or(0, |it| it.sent_bytes);
            out.sample("", labels, bytes as f64);
        });
        let help = "Bytes of SFTP packets received.";
        self.hosts("sshoal_sftp_received_bytes_total", "counter", help, |out, labels, host| {
            let bytes = host.counters.as_ref().map_or(0, |it| it.received_bytes);
            out.sample("", labels, bytes as f64);
        });
        let help = "Times of SFTP requests that neither carry nor return file content.";
        let name = "sshoal_sftp_small_request_duration_seconds";
        self.hosts(name, "histogram", help, |out, labels, host| {
            if let Some(counters) = &host.counters {
                out.histogram(labels, &counters.small_latency);
            }
        });
    }
}

/// A label's value with the escapes of the format.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::interval::tests::sample;
    use super::*;
    use control::counters::Caches;

    #[test]
    fn every_family_has_its_help_type_and_samples() {
        let (one, mut two) = (sample(3), sample(5));
        two.sources[0].source = "P/Q=alpha:/x".into();
        two.sources[0].place = "P/Q".into();
        let text = text(&[("/a", &one), ("/b \"\\", &two)]);
        let families = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
        assert_eq!(text.lines().filter(|line| line.starts_with("# HELP ")).count(), families);
        for line in [
            "sshoal_uptime_seconds{mountpoint=\"/a\"} 3",
            "sshoal_read_bytes_total{mountpoint=\"/b \\\"\\\\\"} 10000000",
            "sshoal_fuse_errors_total{mountpoint=\"/a\",operation=\"lookup\"} 3",
            "sshoal_cache_requests_total{mountpoint=\"/a\",cache=\"lookup\",result=\"hit\"} 24",
            "sshoal_sftp_requests_total{mountpoint=\"/a\",source=\"alpha:/x\",host=\"alpha\",request=\"lstat\"} 6",
            "sshoal_host_connected{mountpoint=\"/a\",source=\"alpha:/x\",host=\"alpha\"} 1",
            "sshoal_host_connected{mountpoint=\"/b \\\"\\\\\",source=\"P/Q=alpha:/x\",host=\"alpha\"} 1",
            "sshoal_fuse_request_duration_seconds_count{mountpoint=\"/a\",operation=\"read\"} 3",
            "sshoal_fuse_request_duration_seconds_sum{mountpoint=\"/a\",operation=\"read\"} 0.003",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_hit_stays_one_when_it_is_found_to_be_prefetched() {
        let text = |open_hits, open_prefetched| {
            let mut status = sample(1);
            let caches = Caches { open_hits, open_prefetched, ..Caches::default() };
            status.counters.as_mut().unwrap().caches = caches;
            self::text(&[("/a", &status)])
        };
        let hits =
            "sshoal_cache_requests_total{mountpoint=\"/a\",cache=\"open\",result=\"hit\"} 7\n";
        for prefetched in [0, 3] {
            let text = text(7, prefetched);
            assert!(text.contains(hits), "{text}");
            let own = format!("sshoal_prefetched_opens_total{{mountpoint=\"/a\"}} {prefetched}\n");
            assert!(text.contains(&own), "{text}");
        }
    }

    #[test]
    fn a_histogram_grows_up_to_its_count() {
        let status = sample(7);
        let text = text(&[("/a", &status)]);
        let begin =
            "sshoal_fuse_request_duration_seconds_bucket{mountpoint=\"/a\",operation=\"lookup\",";
        let counts: Vec<f64> = text
            .lines()
            .filter(|line| line.starts_with(begin))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!((counts.first(), counts.last()), (Some(&0.0), Some(&7.0)));
        assert!(text.contains(&format!("{begin}le=\"+Inf\"}} 7")), "{text}");
        assert!(text.contains(&format!("{begin}le=\"0.000002048\"}} 0")), "{text}");
    }
}
