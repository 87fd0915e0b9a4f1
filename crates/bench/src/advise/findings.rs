//! The measurements that advice rests on, and the arithmetic on them. Pure.

use serde::Serialize;

use super::rates::Figures;

/// OpenSSH's window for a channel in each direction: data sent and not yet consumed.
/// `CHAN_SES_WINDOW_DEFAULT` in its `channels.h`, fixed on both ends.
pub const SSH_WINDOW_BYTES: f64 = 2097152.0;

/// On a quiet machine the slowest round has at least this fraction of the fastest round's rate.
const STEADY: f64 = 0.75;

/// The default of sshoal where the processor has instructions for it.
pub(super) const AES_CIPHER: &str = "aes128-gcm@openssh.com";

/// What is between client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Nothing: the server is on this machine.
    #[default]
    Loopback,
    /// A forwarder on this machine that adds delay and limits the rate.
    Simulated,
    /// A network.
    Network,
}

/// Sessions at the same time, each with a connection of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sessions {
    /// Number of connections.
    pub connections: u32,
    /// Of all together.
    pub figures: Figures,
}

/// All measurements.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// The link's name, or the host.
    pub host: String,
    /// The server's version. Printable.
    pub server: String,
    /// What is between client and server.
    pub path: Path,
    /// Of one byte: over TCP to a private server, through ssh to a host.
    pub rtt_us: f64,
    /// TCP rate of a private server's link. For a network only the rate of ssh is known.
    pub link_bytes_per_s: Option<f64>,
    /// Ciphers that both ends support, fastest first; those that failed last.
    pub ciphers: Vec<Figures>,
    /// The default of ssh.
    pub ssh_cipher: String,
    /// The default of sshoal.
    pub sshoal_cipher: String,
    /// 1, 2, 4 and 8 sessions.
    pub sessions: Vec<Sessions>,
    /// The best cipher with no other setting.
    pub plain: Figures,
    /// With `IPQoS=none`.
    pub unmarked: Figures,
    /// With `Compression=yes`, of text; `None` where the server has no compression.
    pub compressed_text: Option<Figures>,
    /// With `Compression=yes`, of data that do not compress.
    pub compressed_random: Option<Figures>,
    /// The user's configuration has `Compression=yes`.
    pub has_compression: bool,
    /// The user's `IPQoS`. Printable.
    pub ipqos: String,
}

impl Findings {
    /// The greatest known rate of the link, bytes per second: on a network that of ssh.
    pub fn wide_bytes_per_s(&self) -> f64 {
        let sessions = self.sessions.iter().map(|sessions| &sessions.figures);
        let measured = self.ciphers.iter().chain(sessions).map(|figures| figures.bytes_per_s);
        let ssh = measured.fold(0.0, f64::max);
        self.link_bytes_per_s.map_or(ssh, |link| link.max(ssh))
    }

    /// Bandwidth × delay: the bytes in flight that fill the link.
    pub fn product_bytes(&self) -> f64 {
        self.wide_bytes_per_s() * self.rtt_us / 1e6
    }

    /// The limit of one session: a window each round trip.
    pub fn ceiling_bytes_per_s(&self) -> f64 {
        if self.rtt_us > 0.0 { SSH_WINDOW_BYTES * 1e6 / self.rtt_us } else { f64::INFINITY }
    }

    /// The number of windows that fill the link.
    pub fn windows(&self) -> u32 {
        (self.product_bytes() / SSH_WINDOW_BYTES).ceil().clamp(1.0, 1000.0) as u32
    }

    /// The figures of one connection, and those of the smallest number of connections with nine
    /// tenths of the best rate. `None` where one was not measured.
    pub fn enough(&self) -> Option<(&Sessions, &Sessions)> {
        let worked = || self.sessions.iter().filter(|tried| tried.figures.bytes_per_s > 0.0);
        let best = worked().map(|tried| tried.figures.bytes_per_s).fold(0.0, f64::max);
        let one = worked().find(|tried| tried.connections == 1)?;
        let enough = worked().find(|tried| tried.figures.bytes_per_s >= 0.9 * best)?;
        // A rate above the limit of one session needs no comparison with its measured rate.
        let gains = enough.figures.clearly_faster(&one.figures)
            || enough.figures.bytes_per_s >= 1.1 * self.ceiling_bytes_per_s();
        Some((one, if gains { enough } else { one }))
    }

    /// What makes the figures less trustworthy, each with the remedy.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let spread = |figures: &Figures| figures.slowest_bytes_per_s / figures.fastest_bytes_per_s;
        if let Some(best) = self.best_cipher().filter(|best| spread(best) < STEADY) {
            let percent = (100.0 * (1.0 - spread(best))).round();
            warnings.push(format!(
                "The rounds of {} differ by {percent} %: other programs use the machines or the \
                 link. Repeat the measurement when they are idle.",
                best.name
            ));
        }
        if self.path != Path::Network {
            warnings.push(
                "Client and server share this machine's processors. With a real server \
                 (--host) ciphers are faster, and several sessions gain more."
                    .to_owned(),
            );
        }
        warnings
    }

    /// The figures of a cipher that worked.
    pub fn cipher(&self, name: &str) -> Option<&Figures> {
        self.ciphers.iter().find(|figures| figures.name == name && figures.failure.is_none())
    }

    /// The cipher to use: of those that are not clearly slower than the fastest, the one with the
    /// least CPU. A default with at most a tenth more CPU than that comes first.
    pub fn best_cipher(&self) -> Option<&Figures> {
        let worked = || self.ciphers.iter().filter(|figures| figures.bytes_per_s > 0.0);
        let fastest = worked().max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s))?;
        let as_fast = || worked().filter(|figures| !fastest.clearly_faster(figures));
        let cpu = |figures: &Figures| figures.cpu_s_per_gb().unwrap_or(f64::MAX);
        let cheapest = as_fast().min_by(|a, b| cpu(a).total_cmp(&cpu(b)))?;
        let default = [&self.sshoal_cipher, &self.ssh_cipher].into_iter().find_map(|name| {
            as_fast().find(|it| it.name == *name && cpu(it) <= 1.1 * cpu(cheapest))
        });
        Some(default.unwrap_or(cheapest))
    }
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
        let long = Findings { rtt_us: 1e5, link_bytes_per_s: Some(125e6), ..Findings::default() };
        assert_eq!(
            (long.product_bytes(), long.ceiling_bytes_per_s()),
            (12_500_000.0, 20_971_520.0)
        );
        assert_eq!(long.windows(), 6);
        let short = Findings { rtt_us: 100.0, ..long };
        assert_eq!(short.windows(), 1);
        assert_eq!(Findings::default().windows(), 1);
        assert_eq!(Findings::default().ceiling_bytes_per_s(), f64::INFINITY);
    }

    #[test]
    fn the_best_cipher_is_the_cheapest_of_the_fastest() {
        let name = |tried: &[Figures], defaults: [&str; 2]| {
            let [sshoal, ssh] = defaults.map(str::to_owned);
            let found = Findings {
                ciphers: tried.to_vec(),
                sshoal_cipher: sshoal,
                ssh_cipher: ssh,
                ..Findings::default()
            };
            found.best_cipher().map(|best| best.name.clone())
        };
        let tried = [
            figures("a", 400.0, Some(1.0)),
            figures("b", 410.0, Some(2.0)),
            figures("c", 200.0, Some(0.5)),
        ];
        assert_eq!(name(&tried, ["", ""]).as_deref(), Some("a"));
        // A default stays, unless it costs more or is slower.
        assert_eq!(name(&tried, ["b", "c"]).as_deref(), Some("a"));
        let alike = [figures("a", 400.0, Some(1.0)), figures("b", 395.0, Some(1.05))];
        assert_eq!(name(&alike, ["x", "b"]).as_deref(), Some("b"));
        // On a slow link the CPU is not known.
        let slow = [figures("a", 10.0, None), figures("b", 9.9, None)];
        assert_eq!(name(&slow, ["b", "a"]).as_deref(), Some("b"));
        let failed = [Figures { failure: Some("no".into()), ..Figures::default() }];
        assert_eq!(name(&failed, ["", ""]), None);
    }

    #[test]
    fn unsteady_figures_are_reported() {
        let steady = figures("a", 100.0, None);
        let unsteady = Figures { slowest_bytes_per_s: 50e6, ..steady.clone() };
        let warnings = |of: &Figures, path| {
            Findings { ciphers: vec![of.clone()], path, ..Findings::default() }.warnings()
        };
        assert_eq!(warnings(&steady, Path::Network), [""; 0]);
        assert!(warnings(&unsteady, Path::Network)[0].contains("differ by 51 %"));
        assert_eq!(warnings(&steady, Path::Loopback).len(), 1);
        assert_eq!(warnings(&unsteady, Path::Simulated).len(), 2);
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
        // A round that stalled does not hide a rate beyond one window in a round trip.
        let mut far = sessions(&[(1, 10.0), (2, 12.4)]);
        far.sessions[1].figures.slowest_bytes_per_s = 0.2e6;
        far.rtt_us = 206_000.0;
        assert_eq!(far.enough().map(|(_, enough)| enough.connections), Some(2));
        far.rtt_us = 20_000.0;
        assert_eq!(far.enough().map(|(_, enough)| enough.connections), Some(1));
        // Eight that failed have no say.
        assert_eq!(enough(&[(1, 20.0), (2, 40.0), (8, 0.0)]), Some((1, 2)));
        assert_eq!(enough(&[(1, 0.0), (2, 1.0)]), None);
    }
}
