//! What was measured and read, and the arithmetic on it. Pure.

use serde::Serialize;

use super::facts::Facts;
use super::flow::Figures;

/// OpenSSH's window for a channel, each way: what is sent and not yet taken by the other side.
/// `CHAN_SES_WINDOW_DEFAULT` in its `channels.h`, on both ends, not to be set.
pub const SSH_WINDOW_BYTES: f64 = 2097152.0;

/// TCP begins with ten segments in flight (RFC 6928).
const FIRST_FLIGHT_BYTES: f64 = 14_480.0;

/// The slowest round of a quiet machine is no slower than this part of the fastest.
const STEADY: f64 = 0.75;

/// Load of each processor from which on something else runs on it.
const BUSY: f64 = 0.5;

/// What sshoal asks for first by itself, where the processor has instructions for it.
pub(super) const AES_CIPHER: &str = "aes128-gcm@openssh.com";

/// What is between client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Nothing: the server is on this machine.
    #[default]
    Loopback,
    /// A forwarder on this machine, at which TCP ends. Its rate and round trip are those of the
    /// link that it stands for, its TCP is not.
    Simulated,
    /// A network.
    Network,
}

/// Some sessions at once, each with a connection of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sessions {
    /// How many.
    pub connections: u32,
    /// Of all together.
    pub figures: Figures,
}

/// All that the advice rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// The link's name, or the host.
    pub host: String,
    /// What the server says of itself. Printable.
    pub server: String,
    /// What is between.
    pub path: Path,
    /// Of one byte: of TCP, or of ssh where there is no direct connection.
    pub rtt_us: f64,
    /// Of TCP, of a private server's link. Of a network only what ssh has brought is known.
    pub link_bytes_per_s: Option<f64>,
    /// Those that both ends support, fastest first; those that failed last.
    pub ciphers: Vec<Figures>,
    /// What ssh takes by itself.
    pub ssh_cipher: String,
    /// What sshoal takes by itself.
    pub sshoal_cipher: String,
    /// MACs that both ends support, where the best cipher needs one.
    pub macs: Vec<Figures>,
    /// What ssh takes by itself where it needs one: the first that both want.
    pub ssh_mac: String,
    /// One, two, four, eight.
    pub sessions: Vec<Sessions>,
    /// Four sessions over one connection, as with `ControlMaster`.
    pub shared: Figures,
    /// The best cipher, with nothing else set.
    pub plain: Figures,
    /// The same with `IPQoS=none`.
    pub unmarked: Figures,
    /// The same with `Compression=yes`, of text; `None` where the server has no compression.
    pub compressed_text: Option<Figures>,
    /// Of data that cannot be compressed.
    pub compressed_noise: Option<Figures>,
    /// The user's configuration has `Compression=yes`.
    pub has_compression: bool,
    /// The user's `IPQoS`. Printable.
    pub ipqos: String,
    /// The user's configuration has a `ControlPath`.
    pub has_shared_connection: bool,
    /// This machine before the measurements.
    pub here: Facts,
    /// The server.
    pub there: Facts,
    /// The part of TCP segments that were sent again meanwhile, at the end where it was greater.
    pub resent: Option<f64>,
    /// Packets that either end's backlog was too short for meanwhile.
    pub backlog_dropped: Option<u64>,
}

impl Findings {
    /// The widest that is known of the link, bytes a second: on a network what ssh has brought.
    #[must_use]
    pub fn wide_bytes_per_s(&self) -> f64 {
        let sessions = self.sessions.iter().map(|sessions| &sessions.figures);
        let measured = self.ciphers.iter().chain(sessions).map(|figures| figures.bytes_per_s);
        let ssh = measured.fold(0.0, f64::max);
        self.link_bytes_per_s.map_or(ssh, |link| link.max(ssh))
    }

    /// Bandwidth times delay: what has to be in flight to fill the link.
    #[must_use]
    pub fn product_bytes(&self) -> f64 {
        product_bytes(self.wide_bytes_per_s(), self.rtt_us)
    }

    /// Most that one session can bring: a window each round trip.
    #[must_use]
    pub fn ceiling_bytes_per_s(&self) -> f64 {
        ceiling_bytes_per_s(SSH_WINDOW_BYTES, self.rtt_us)
    }

    /// How many windows fill the link.
    #[must_use]
    pub fn windows(&self) -> u32 {
        (self.product_bytes() / SSH_WINDOW_BYTES).ceil().clamp(1.0, 1000.0) as u32
    }

    /// The least number of connections that brings nine tenths of what any number does, and the
    /// figures of one and of it. `None` where one was not measured.
    #[must_use]
    pub fn enough(&self) -> Option<(&Sessions, &Sessions)> {
        let worked = || self.sessions.iter().filter(|tried| tried.figures.bytes_per_s > 0.0);
        let best = worked().map(|tried| tried.figures.bytes_per_s).fold(0.0, f64::max);
        let one = worked().find(|tried| tried.connections == 1)?;
        let enough = worked().find(|tried| tried.figures.bytes_per_s >= 0.9 * best)?;
        // More than one can bring in theory needs no comparison with what it brings.
        let gains = enough.figures.clearly_faster(&one.figures)
            || enough.figures.bytes_per_s >= 1.1 * self.ceiling_bytes_per_s();
        Some((one, if gains { enough } else { one }))
    }

    /// What makes the figures less trustworthy, each with the remedy.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let spread = |figures: &Figures| figures.slowest_bytes_per_s / figures.fastest_bytes_per_s;
        if let Some(best) = self.best_cipher().filter(|best| spread(best) < STEADY) {
            let percent = (100.0 * (1.0 - spread(best))).round();
            warnings.push(format!(
                "The rounds of {} differ by {percent} %: something else uses the machines or the \
                 link. Repeat it when they are quiet; until then differences mean little.",
                best.name
            ));
        }
        let ends = [("This machine", &self.here), ("The server", &self.there)];
        // A private server is this machine.
        let ends = if self.path == Path::Network { &ends[..] } else { &ends[..1] };
        for (end, facts) in ends {
            let Some((load, cpus)) = facts.load_hundredths.zip(facts.cpus) else { continue };
            if f64::from(load) > 100.0 * BUSY * f64::from(cpus) {
                let load = f64::from(load) / 100.0;
                warnings.push(format!(
                    "{end} was busy when this began (load {load} on {cpus} processors): ciphers \
                     and compression can do more than is shown here. Repeat it when it is quiet."
                ));
            }
        }
        match self.path {
            Path::Loopback | Path::Simulated => warnings.push(
                "Client and server share this machine's processors. With a real server \
                 (--host) ciphers are faster, and several sessions bring more."
                    .to_owned(),
            ),
            Path::Network => (),
        }
        if self.path == Path::Simulated {
            warnings.push(
                "The link is simulated, and TCP ends on this machine: what is said of TCP is \
                 reckoned for a real link of this round trip and rate."
                    .to_owned(),
            );
        }
        warnings
    }

    /// The figures of a cipher that worked.
    #[must_use]
    pub fn cipher(&self, name: &str) -> Option<&Figures> {
        self.ciphers.iter().find(|figures| figures.name == name && figures.failure.is_none())
    }

    /// The cipher to take.
    #[must_use]
    pub fn best_cipher(&self) -> Option<&Figures> {
        best(&self.ciphers, [&self.sshoal_cipher, &self.ssh_cipher])
    }

    /// Round trips that TCP needs from its first flight to a full link, as seconds. Silence of
    /// half a second sends it back there, unless the kernel is told not to.
    #[must_use]
    pub fn slow_start_s(&self) -> f64 {
        let full = self.product_bytes().min(SSH_WINDOW_BYTES);
        (full / FIRST_FLIGHT_BYTES).log2().max(0.0).ceil() * self.rtt_us / 1e6
    }
}

/// What has to be in flight to fill a link.
#[must_use]
pub fn product_bytes(bytes_per_s: f64, rtt_us: f64) -> f64 {
    bytes_per_s * rtt_us / 1e6
}

/// What a window brings that is refilled once in a round trip.
#[must_use]
pub fn ceiling_bytes_per_s(window_bytes: f64, rtt_us: f64) -> f64 {
    if rtt_us > 0.0 { window_bytes * 1e6 / rtt_us } else { f64::INFINITY }
}

/// What one connection gets by cubic where this part of the segments is lost, bytes a second:
/// 1.054 · (RTT / loss)^¾ segments in flight (RFC 9438, 5.2, with its constants).
#[must_use]
pub fn cubic_bytes_per_s(rtt_us: f64, loss: f64) -> f64 {
    const SEGMENT_BYTES: f64 = 1448.0;
    let segments = 1.054 * (rtt_us / 1e6 / loss.max(1e-12)).powf(0.75);
    ceiling_bytes_per_s(segments * SEGMENT_BYTES, rtt_us)
}

/// Of those that are as fast as any, the one that needs the least CPU; of the `usual` ones the
/// first that needs no tenth more than it.
pub(super) fn best<'a>(tried: &'a [Figures], usual: [&str; 2]) -> Option<&'a Figures> {
    let worked = || tried.iter().filter(|figures| figures.bytes_per_s > 0.0);
    let fastest = worked().max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s))?;
    let as_fast = || worked().filter(|figures| !fastest.clearly_faster(figures));
    let cpu = |figures: &Figures| figures.cpu_s_per_gb().unwrap_or(f64::MAX);
    let cheapest = as_fast().min_by(|a, b| cpu(a).total_cmp(&cpu(b)))?;
    let is_cheap = |figures: &&Figures| cpu(figures) <= 1.1 * cpu(cheapest);
    let cheap = |name: &&str| as_fast().filter(is_cheap).find(|figures| figures.name == **name);
    Some(usual.iter().find_map(cheap).unwrap_or(cheapest))
}

/// The cipher that sshoal takes: ssh's own, unless nobody has chosen, the processor has AES, and
/// both ends know the one that is made for it.
pub(super) fn sshoal_cipher(
    ssh: &str,
    chosen: bool,
    aes: Option<bool>,
    common: &[String],
) -> String {
    let fast = !chosen && aes == Some(true) && common.iter().any(|name| name == AES_CIPHER);
    if fast { AES_CIPHER.to_owned() } else { ssh.to_owned() }
}

/// Those of the first list that the second has, in the order of the first.
pub(super) fn common(ours: &[String], theirs: &[String]) -> Vec<String> {
    ours.iter().filter(|name| theirs.contains(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str, mb: f64, cpu: Option<f64>) -> Figures {
        Figures {
            name: name.to_owned(),
            bytes_per_s: mb * 1e6,
            slowest_bytes_per_s: mb * 0.98e6,
            fastest_bytes_per_s: mb * 1.02e6,
            client_cpu_s_per_gb: cpu,
            ..Figures::default()
        }
    }

    #[test]
    fn bandwidth_times_delay() {
        assert_eq!(product_bytes(125e6, 100_000.0), 12_500_000.0);
        assert_eq!(product_bytes(125e6, 500.0), 62_500.0);
        assert_eq!(ceiling_bytes_per_s(SSH_WINDOW_BYTES, 100_000.0), 20_971_520.0);
        assert_eq!(ceiling_bytes_per_s(SSH_WINDOW_BYTES, 0.0), f64::INFINITY);
        let long = Findings { rtt_us: 1e5, link_bytes_per_s: Some(125e6), ..Findings::default() };
        assert_eq!(long.windows(), 6);
        // 14.5 KB doubled eight times is more than 2 MiB.
        assert_eq!(long.slow_start_s(), 0.8);
        let short = Findings { rtt_us: 100.0, ..long };
        assert_eq!((short.windows(), short.slow_start_s()), (1, 0.0));
        assert_eq!((Findings::default().windows(), Findings::default().slow_start_s()), (1, 0.0));
    }

    #[test]
    fn cubic_is_slow_where_packets_are_lost_on_a_long_link() {
        let megabytes = |rtt_us, loss| cubic_bytes_per_s(rtt_us, loss) / 1e6;
        assert!((megabytes(100_000.0, 0.001) - 0.4826).abs() < 0.001);
        assert!(megabytes(100_000.0, 0.0) > 1000.0);
        assert!(megabytes(200.0, 0.001) > 2.0 * megabytes(100_000.0, 0.001));
    }

    #[test]
    fn the_best_cipher_is_the_cheapest_of_the_fastest() {
        let name = |tried: &[Figures], usual| best(tried, usual).map(|best| best.name.clone());
        let tried = [
            figures("a", 400.0, Some(1.0)),
            figures("b", 410.0, Some(2.0)),
            figures("c", 200.0, Some(0.5)),
        ];
        assert_eq!(name(&tried, ["", ""]).as_deref(), Some("a"));
        // What is usual stays, unless it costs more or is slower.
        assert_eq!(name(&tried, ["b", "c"]).as_deref(), Some("a"));
        let alike = [figures("a", 400.0, Some(1.0)), figures("b", 395.0, Some(1.05))];
        assert_eq!(name(&alike, ["x", "b"]).as_deref(), Some("b"));
        // On a slow link nothing is known of CPU.
        let slow = [figures("a", 10.0, None), figures("b", 9.9, None)];
        assert_eq!(name(&slow, ["b", "a"]).as_deref(), Some("b"));
        let failed = [Figures { failure: Some("no".into()), ..Figures::default() }];
        assert_eq!(name(&failed, ["", ""]), None);
    }

    #[test]
    fn unsteady_figures_are_told() {
        let steady = figures("a", 100.0, None);
        let unsteady = Figures { slowest_bytes_per_s: 50e6, ..steady.clone() };
        let warnings = |of: &Figures, path| {
            Findings { ciphers: vec![of.clone()], path, ..Findings::default() }.warnings()
        };
        assert_eq!(warnings(&steady, Path::Network), [""; 0]);
        assert!(warnings(&unsteady, Path::Network)[0].contains("differ by 51 %"));
        assert_eq!(warnings(&steady, Path::Loopback).len(), 1);
        assert_eq!(warnings(&unsteady, Path::Simulated).len(), 3);
        let load = |hundredths| Facts {
            load_hundredths: Some(hundredths),
            cpus: Some(2),
            ..Facts::default()
        };
        let found = Findings { here: load(90), there: load(110), ..Findings::default() };
        assert_eq!(found.warnings().len(), 1);
        let network = Findings { path: Path::Network, ..found };
        assert!(network.warnings()[0].starts_with("The server was busy"), "{network:?}");
    }

    #[test]
    fn sshoal_takes_aes_where_nobody_has_chosen() {
        let common = [AES_CIPHER.to_owned(), "b".to_owned()];
        assert_eq!(sshoal_cipher("b", false, Some(true), &common), AES_CIPHER);
        assert_eq!(sshoal_cipher("b", true, Some(true), &common), "b");
        assert_eq!(sshoal_cipher("b", false, None, &common), "b");
        assert_eq!(sshoal_cipher("b", false, Some(true), &common[1..]), "b");
    }

    #[test]
    fn enough_is_the_least_number_that_fills() {
        let sessions = |rates: &[(u32, f64)]| Findings {
            sessions: rates
                .iter()
                .map(|&(connections, mb)| Sessions { connections, figures: figures("", mb, None) })
                .collect(),
            ..Findings::default()
        };
        let enough = |rates: &[(u32, f64)]| {
            sessions(rates).enough().map(|(one, enough)| (one.connections, enough.connections))
        };
        assert_eq!(enough(&[(1, 20.0), (2, 40.0), (4, 80.0), (8, 117.0)]), Some((1, 8)));
        assert_eq!(enough(&[(1, 20.0), (2, 40.0), (4, 112.0), (8, 117.0)]), Some((1, 4)));
        assert_eq!(enough(&[(1, 100.0), (2, 101.0), (4, 95.0)]), Some((1, 1)));
        // A round that stalled does not hide what is beyond one window in a round trip.
        let mut far = sessions(&[(1, 10.0), (2, 12.4)]);
        far.sessions[1].figures.slowest_bytes_per_s = 0.2e6;
        far.rtt_us = 206_000.0;
        assert_eq!(far.enough().map(|(_, enough)| enough.connections), Some(2));
        far.rtt_us = 20_000.0;
        assert_eq!(far.enough().map(|(_, enough)| enough.connections), Some(1));
        // Eight that did not work say nothing.
        assert_eq!(enough(&[(1, 20.0), (2, 40.0), (8, 0.0)]), Some((1, 2)));
        assert_eq!(enough(&[(1, 0.0), (2, 1.0)]), None);
    }

    #[test]
    fn common_names_keep_our_order() {
        let words = |list: &str| list.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(common(&words("c b a"), &words("a x c")), words("c a"));
    }
}
