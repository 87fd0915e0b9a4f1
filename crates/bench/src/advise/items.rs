//! The measurements that advice rests on, and the advice on each setting. Pure.

use serde::Serialize;

use crate::units::{bit_rate, duration_us, significant};

use super::Figures;

/// OpenSSH's window for a channel in each direction: data sent and not yet consumed.
/// `CHAN_SES_WINDOW_DEFAULT` in its `channels.h`, fixed on both ends.
const SSH_WINDOW_BYTES: f64 = 2097152.0;

/// A cipher that needs at most this fraction of the CPU is worth an option even where the link
/// limits the rate.
const CHEAPER: f64 = 0.8;

/// The default of sshoal where the processor has instructions for it.
pub(super) const AES_CIPHER: &str = "aes128-gcm@openssh.com";

/// Advice on one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Item {
    /// Its name in ssh or sshoal: `Ciphers`, `max_conns`.
    pub setting: String,
    /// Whether it gains anything.
    pub verdict: Verdict,
    /// The figures behind the verdict.
    pub found: String,
    /// The reason.
    pub why: String,
    /// Command lines; empty where nothing needs to be done.
    pub to_type: Vec<String>,
}

/// Whether a setting gains anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It would be faster or need less CPU.
    Matters,
    /// It gains nothing between these machines.
    NotHere,
    /// It could not be measured.
    Unknown,
}

impl Verdict {
    /// The words for a reader.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Matters => "matters here",
            Verdict::NotHere => "does not matter here",
            Verdict::Unknown => "not known here",
        }
    }
}

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
    /// The best cipher through 1, 2, 4 and 8 sessions, all together.
    pub sessions: Vec<Figures>,
    /// One session with `Compression=yes`, of text; `None` where the server has no compression.
    pub compressed: Option<Figures>,
    /// The user's configuration has `Compression=yes`.
    pub has_compression: bool,
}

impl Findings {
    /// The greatest known rate of the link, bytes per second: on a network that of ssh.
    pub fn wide_bytes_per_s(&self) -> f64 {
        let measured = self.ciphers.iter().chain(&self.sessions).map(|it| it.bytes_per_s);
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
    pub fn enough(&self) -> Option<(&Figures, &Figures)> {
        let worked = || self.sessions.iter().filter(|tried| tried.bytes_per_s > 0.0);
        let best = worked().map(|tried| tried.bytes_per_s).fold(0.0, f64::max);
        let one = worked().find(|tried| tried.connections == 1)?;
        let enough = worked().find(|tried| tried.bytes_per_s >= 0.9 * best)?;
        // A rate above the limit of one session needs no comparison with its measured rate.
        let gains =
            enough.clearly_faster(one) || enough.bytes_per_s >= 1.1 * self.ceiling_bytes_per_s();
        Some((one, if gains { enough } else { one }))
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

/// Advice on all settings, in the order in which it is shown.
pub(super) fn all(found: &Findings) -> Vec<Item> {
    vec![ciphers(found), sessions(found), compression(found)]
}

/// An item with nothing to type.
fn item(setting: &str, verdict: Verdict, found: String, why: impl Into<String>) -> Item {
    Item { setting: setting.to_owned(), verdict, found, why: why.into(), to_type: Vec::new() }
}

impl Item {
    fn typing(mut self, lines: impl IntoIterator<Item = String>) -> Item {
        self.to_type = lines.into_iter().collect();
        self
    }
}

/// `412 MB/s`.
pub(super) fn rate(bytes_per_s: f64) -> String {
    format!("{} MB/s", significant(bytes_per_s / 1e6))
}

/// `12.5 MB/s (100 Mbit/s)`.
pub(super) fn link_rate(bytes_per_s: f64) -> String {
    format!("{} ({})", rate(bytes_per_s), bit_rate(bytes_per_s))
}

/// `412 MB/s, 1.70 s of CPU for a GB`.
fn figures(figures: &Figures) -> String {
    let cpu = figures.cpu_s_per_gb();
    let cpu = cpu.map(|cpu| format!(", {} s of CPU for a GB", significant(cpu)));
    format!("{}{}", rate(figures.bytes_per_s), cpu.unwrap_or_default())
}

/// Whether one cipher is worth an option in place of another.
fn is_better(one: &Figures, than: &Figures) -> bool {
    let cheaper =
        one.cpu_s_per_gb().zip(than.cpu_s_per_gb()).is_some_and(|(one, than)| one < CHEAPER * than);
    one.clearly_faster(than) || (cheaper && !than.clearly_faster(one))
}

/// The best cipher against the defaults of ssh and sshoal.
fn ciphers(found: &Findings) -> Item {
    let Some(best) = found.best_cipher() else {
        return item("Ciphers", Verdict::Unknown, "no cipher was measured".into(), "");
    };
    let of_ssh = found.cipher(&found.ssh_cipher);
    let of_sshoal = found.cipher(&found.sshoal_cipher);
    let mut text = format!("{}: {}", best.name, figures(best));
    if let Some(of_ssh) = of_ssh.filter(|of_ssh| of_ssh.name != best.name) {
        text += &format!("; {}, the default of ssh: {}", of_ssh.name, figures(of_ssh));
    }
    let gains = |now: Option<&Figures>| now.is_none_or(|now| is_better(best, now));
    let option = format!("-o Ciphers={}", best.name);
    let for_ssh = [
        format!("ssh {option} HOST        (also scp, sftp, sshfs)"),
        format!("rsync -e 'ssh {option}' …"),
    ];
    match (gains(of_ssh), gains(of_sshoal)) {
        (false, false) => item("Ciphers", Verdict::NotHere, text, "The default is as good as any."),
        (true, false) => {
            let why =
                "It is the default of sshoal; ssh, scp, sftp, sshfs and rsync need the option.";
            item("Ciphers", Verdict::Matters, text, why).typing(for_ssh)
        }
        (ssh, true) => {
            let lines = [format!("sshoal {option} HOST:DIR MOUNTPOINT")].into_iter();
            let for_ssh = for_ssh.into_iter().filter(|_| ssh);
            item("Ciphers", Verdict::Matters, text, "It needs the option.")
                .typing(lines.chain(for_ssh))
        }
    }
}

/// The limit of one session by its window against the link, and the rate of several sessions.
fn sessions(found: &Findings) -> Item {
    const SETTING: &str = "max_conns";
    let ceiling = found.ceiling_bytes_per_s();
    let mut text = format!(
        "one session carries 2 MiB in a round trip of {}: {} at most",
        duration_us(found.rtt_us),
        rate(ceiling)
    );
    let link = found.link_bytes_per_s.map(|link| format!("; the link: {}", link_rate(link)));
    text += &link.unwrap_or_default();
    let Some((one, enough)) = found.enough() else {
        return item(SETTING, Verdict::Unknown, text, "Several sessions could not be measured.");
    };
    let tried = found.sessions.iter().map(|tried| match &tried.failure {
        None => format!("{}: {}", tried.connections, rate(tried.bytes_per_s)),
        Some(_) => format!("{}: failed", tried.connections),
    });
    text += &format!(". Measured connections: {}", tried.collect::<Vec<_>>().join(", "));
    if enough.connections == one.connections {
        let mut others = found.sessions.iter().map(|tried| tried.bytes_per_s);
        if others.any(|rate| rate >= 1.1 * one.bytes_per_s) {
            let why = "Several seem faster, but the rounds differ too much to be sure.";
            return item(SETTING, Verdict::Unknown, text, why);
        }
        return item(SETTING, Verdict::NotHere, text, "One session is as fast as several.");
    }
    let why = if one.bytes_per_s > 0.7 * ceiling {
        let windows = found.windows();
        format!("ssh's window of 2 MiB is fixed. The link holds {windows} of them.")
    } else {
        "ssh and sshd have one thread each: several sessions use more processors.".to_owned()
    };
    let line = format!("sshoal -o max_conns={} HOST:DIR MOUNTPOINT", enough.connections);
    item(SETTING, Verdict::Matters, text, why).typing([line])
}

/// Compression against the link.
fn compression(found: &Findings) -> Item {
    const SETTING: &str = "Compression";
    let Some(text) = &found.compressed else {
        let why = "The server does not offer it.";
        return item(SETTING, Verdict::NotHere, "no zlib in the server's offer".into(), why);
    };
    let failed = Figures { failure: Some("no session".to_owned()), ..Figures::default() };
    let plain = found.sessions.first().unwrap_or(&failed);
    if let Some(failure) = text.failure.as_ref().or(plain.failure.as_ref()) {
        let failure = failure.lines().next().unwrap_or_default();
        return item(SETTING, Verdict::Unknown, format!("not measured: {failure}"), "");
    }
    let (without, with) = (rate(plain.bytes_per_s), rate(text.bytes_per_s));
    let measured = format!("without {without}; with it, text {with}");
    // The rate at which one thread compresses: by the CPU of the server, where it is known, and at
    // least the rate that was measured.
    let by_cpu = text.server_cpu_s_per_gb.filter(|cpu| *cpu > 0.0).map_or(0.0, |cpu| 1e9 / cpu);
    let limit = link_rate(by_cpu.max(text.bytes_per_s));
    let below = format!("It is zlib in one thread: worth it for text on links below {limit}");
    if text.clearly_faster(plain) {
        let why = format!("{below}, and never for data that are compressed already.");
        let lines = ["sshoal -C HOST:DIR MOUNTPOINT        (text and sources only)".to_owned()];
        return item(SETTING, Verdict::Matters, measured, why).typing(lines);
    }
    if found.has_compression && plain.clearly_faster(text) {
        let why = format!("Your configuration has it on. {below}.");
        let lines = ["sshoal -o Compression=no HOST:DIR MOUNTPOINT".to_owned()];
        return item(SETTING, Verdict::Matters, measured, why).typing(lines);
    }
    item(SETTING, Verdict::NotHere, measured, format!("{below}. Leave it off."))
}

#[cfg(test)]
mod tests;
