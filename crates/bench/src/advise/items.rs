//! The measurements that advice rests on, and the advice on each setting. Pure.

use std::fmt::Write as _;

use crate::report::{Table, paragraph, row, table};
use crate::units::{bit_rate, duration_us, significant};

use super::rates::Figures;

/// OpenSSH's window for a channel in each direction: data sent and not yet consumed.
/// `CHAN_SES_WINDOW_DEFAULT` in its `channels.h`, fixed on both ends.
const SSH_WINDOW_BYTES: f64 = 2097152.0;

/// A cipher that needs at most this fraction of the CPU is worth an option even where the link
/// limits the rate.
const CHEAPER: f64 = 0.8;

/// The default of sshoal where the processor has instructions for it.
pub(super) const AES_CIPHER: &str = "aes128-gcm@openssh.com";

/// Verdicts: the setting would be faster or need less CPU; it gains nothing between these machines;
/// it could not be measured.
const MATTERS: &str = "matters here";
const NOT_HERE: &str = "does not matter here";
const UNKNOWN: &str = "not known here";

/// Advice on one setting.
#[derive(Debug)]
struct Item {
    /// Its name in ssh or sshoal: `Ciphers`, `max_conns`.
    setting: &'static str,
    verdict: &'static str,
    /// The figures behind the verdict, and what follows from them.
    why: String,
    /// Command lines; empty where nothing needs to be done.
    to_type: Vec<String>,
}

/// All measurements.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// The link's name, or the host.
    pub(super) host: String,
    /// The server's version. Printable.
    pub(super) server: String,
    /// The server is another machine.
    pub(super) is_network: bool,
    /// Of one byte: over TCP to a private server, through ssh to a host.
    pub(super) rtt_us: f64,
    /// TCP rate of a private server's link. For a network only the rate of ssh is known.
    pub(super) link_bytes_per_s: Option<f64>,
    /// Ciphers that both ends support, fastest first; those that failed last.
    pub(super) ciphers: Vec<Figures>,
    /// The default of ssh.
    pub(super) ssh_cipher: String,
    /// The default of sshoal.
    pub(super) sshoal_cipher: String,
    /// The best cipher through 1, 2, 4 and 8 sessions, all together.
    pub(super) sessions: Vec<Figures>,
    /// One session with `Compression=yes`, of text; `None` where the server has no compression.
    pub(super) compressed: Option<Figures>,
    /// The user's configuration has `Compression=yes`.
    pub(super) has_compression: bool,
}

impl Findings {
    /// The limit of one session: a window each round trip.
    fn ceiling_bytes_per_s(&self) -> f64 {
        if self.rtt_us > 0.0 { SSH_WINDOW_BYTES * 1e6 / self.rtt_us } else { f64::INFINITY }
    }

    /// The figures of one connection, and those of the smallest number of connections with nine
    /// tenths of the best rate. `None` where one was not measured.
    fn enough(&self) -> Option<(&Figures, &Figures)> {
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
    fn cipher(&self, name: &str) -> Option<&Figures> {
        self.ciphers.iter().find(|figures| figures.name == name && figures.failure.is_none())
    }

    /// The cipher to use: of those that are not clearly slower than the fastest, the one with the
    /// least CPU. A default with at most a tenth more CPU than that comes first.
    pub(super) fn best_cipher(&self) -> Option<&Figures> {
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

/// The advice for a terminal of 100 columns.
pub(super) fn text(found: &Findings) -> String {
    let mut text = String::new();
    paragraph(&mut text, "", &format!("{}; server: {}", found.host, found.server));
    let link = found.link_bytes_per_s.map(|link| format!("; TCP rate {}", link_rate(link)));
    let rtt = duration_us(found.rtt_us);
    paragraph(&mut text, "", &format!("round trip {rtt}{}", link.unwrap_or_default()));
    if !found.is_network {
        let shared = "Client and server share this machine's processors. With a real server (--host) \
                      ciphers are faster, and several sessions gain more.";
        paragraph(&mut text, "  ! ", shared);
    }
    table(&mut text, &figures_table(found));
    for item in [ciphers(found), sessions(found), compression(found)] {
        let _ = writeln!(text, "\n{}: {}", item.setting, item.verdict);
        paragraph(&mut text, "  ", &item.why);
        // Command lines are not wrapped, so that they can be copied.
        for line in item.to_type {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

fn figures_table(found: &Findings) -> Table {
    let figures = found.ciphers.iter().chain(&found.sessions).chain(&found.compressed);
    let rows = figures.map(|figures| {
        let mb = |bytes_per_s: f64| significant(bytes_per_s / 1e6);
        let cpu = |cpu: Option<f64>| cpu.map_or_else(|| "–".to_owned(), significant);
        let (slow, fast) = (figures.slowest_bytes_per_s, figures.fastest_bytes_per_s);
        let default = if figures.name == found.ssh_cipher { " (default)" } else { "" };
        let cells = match &figures.failure {
            Some(why) => {
                let why = why.lines().next().unwrap_or_default().to_owned();
                ["failed".to_owned(), why, String::new(), String::new()]
            }
            None => [
                mb(figures.bytes_per_s),
                format!("{}–{}", mb(slow), mb(fast)),
                cpu(figures.client_cpu_s_per_gb),
                cpu(figures.server_cpu_s_per_gb),
            ],
        };
        row(format!("{}{default}", figures.name), cells)
    });
    let header = ["MB/s", "rounds", "CPU s/GB client", "server"];
    Table::new("rates of ssh", &header, rows.collect())
}

/// `412 MB/s`.
fn rate(bytes_per_s: f64) -> String {
    format!("{} MB/s", significant(bytes_per_s / 1e6))
}

/// `12.5 MB/s (100 Mbit/s)`.
fn link_rate(bytes_per_s: f64) -> String {
    format!("{} ({})", rate(bytes_per_s), bit_rate(bytes_per_s))
}

/// Whether one cipher is worth an option in place of another.
fn is_better(one: &Figures, than: &Figures) -> bool {
    let cheaper =
        one.cpu_s_per_gb().zip(than.cpu_s_per_gb()).is_some_and(|(one, than)| one < CHEAPER * than);
    one.clearly_faster(than) || (cheaper && !than.clearly_faster(one))
}

fn item(setting: &'static str, verdict: &'static str, why: String, to_type: Vec<String>) -> Item {
    Item { setting, verdict, why, to_type }
}

/// The best cipher against the defaults of ssh and sshoal.
fn ciphers(found: &Findings) -> Item {
    let Some(best) = found.best_cipher() else {
        return item("Ciphers", UNKNOWN, "No cipher was measured.".to_owned(), Vec::new());
    };
    let gains = |now: &str| found.cipher(now).is_none_or(|now| is_better(best, now));
    let option = format!("-o Ciphers={}", best.name);
    let for_ssh = format!("ssh {option} HOST        (also scp, sftp, sshfs; rsync -e 'ssh …')");
    let for_sshoal = format!("sshoal {option} HOST:DIR MOUNTPOINT");
    let of_sshoal = match &found.sshoal_cipher {
        own if *own == best.name => "it is the default of sshoal".to_owned(),
        own => format!("{own}, the default of sshoal, is as good"),
    };
    let only_ssh = format!("{of_sshoal}; ssh, scp, sftp, sshfs and rsync need the option.");
    let all = "it needs the option.";
    let (verdict, why, to_type) = match (gains(&found.ssh_cipher), gains(&found.sshoal_cipher)) {
        (false, false) => (NOT_HERE, "the default is as good as any.", Vec::new()),
        (true, false) => (MATTERS, only_ssh.as_str(), vec![for_ssh]),
        (false, true) => (MATTERS, all, vec![for_sshoal]),
        (true, true) => (MATTERS, all, vec![for_sshoal, for_ssh]),
    };
    item("Ciphers", verdict, format!("{}: {why}", best.name), to_type)
}

/// The limit of one session by its window against the link, and the rate of several sessions.
fn sessions(found: &Findings) -> Item {
    let ceiling = found.ceiling_bytes_per_s();
    let item = |verdict, why: &str, to_type| {
        let (rtt, most) = (duration_us(found.rtt_us), rate(ceiling));
        let limit = format!("One session carries 2 MiB in a round trip of {rtt}: {most} at most.");
        item("max_conns", verdict, format!("{limit} {why}"), to_type)
    };
    let Some((one, enough)) = found.enough() else {
        return item(UNKNOWN, "Several sessions could not be measured.", Vec::new());
    };
    if enough.connections == one.connections {
        let mut others = found.sessions.iter().map(|tried| tried.bytes_per_s);
        if others.any(|rate| rate >= 1.1 * one.bytes_per_s) {
            let why = "Several seem faster, but the rounds differ too much to be sure.";
            return item(UNKNOWN, why, Vec::new());
        }
        return item(NOT_HERE, "One session is as fast as several.", Vec::new());
    }
    let why = if one.bytes_per_s > 0.7 * ceiling {
        "ssh's window of 2 MiB is fixed, and the link holds several of them."
    } else {
        "ssh and sshd have one thread each: several sessions use more processors."
    };
    let line = format!("sshoal -o max_conns={} HOST:DIR MOUNTPOINT", enough.connections);
    item(MATTERS, why, vec![line])
}

/// Compression against the link.
fn compression(found: &Findings) -> Item {
    let item = |verdict, why, line: &[&str]| {
        item("Compression", verdict, why, line.iter().map(|&line| line.to_owned()).collect())
    };
    let Some(text) = &found.compressed else {
        return item(NOT_HERE, "The server does not offer zlib.".to_owned(), &[]);
    };
    let plain = found.sessions.first().filter(|plain| plain.failure.is_none());
    let Some(plain) = plain.filter(|_| text.failure.is_none()) else {
        return item(UNKNOWN, "It could not be measured.".to_owned(), &[]);
    };
    // The rate at which one thread compresses: by the CPU of the server, where it is known, and at
    // least the rate that was measured.
    let by_cpu = text.server_cpu_s_per_gb.filter(|cpu| *cpu > 0.0).map_or(0.0, |cpu| 1e9 / cpu);
    let limit = link_rate(by_cpu.max(text.bytes_per_s));
    let below = format!("It is zlib in one thread: worth it for text on links below {limit}");
    if text.clearly_faster(plain) {
        let why = format!("{below}, and never for data that are compressed already.");
        return item(
            MATTERS,
            why,
            &["sshoal -C HOST:DIR MOUNTPOINT        (text and sources only)"],
        );
    }
    if found.has_compression && plain.clearly_faster(text) {
        let why = format!("Your configuration has it on. {below}.");
        return item(MATTERS, why, &["sshoal -o Compression=no HOST:DIR MOUNTPOINT"]);
    }
    item(NOT_HERE, format!("{below}. Leave it off."), &[])
}

#[cfg(test)]
mod tests;
