//! From findings to advice, one function for each setting. Pure.

use super::findings::Findings;
use super::rates::Figures;
use super::{Item, Verdict};
use crate::units::{bit_rate, duration_us, significant};

/// A cipher that needs at most this fraction of the CPU is worth an option even where the link
/// limits the rate.
const CHEAPER: f64 = 0.8;

/// Advice on all settings, in the order in which it is shown.
pub(super) fn all(found: &Findings) -> Vec<Item> {
    vec![ciphers(found), sessions(found), compression(found), ipqos(found)]
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
    let tried = found.sessions.iter().map(|tried| match &tried.figures.failure {
        None => format!("{}: {}", tried.connections, rate(tried.figures.bytes_per_s)),
        Some(_) => format!("{}: failed", tried.connections),
    });
    text += &format!(". Measured connections: {}", tried.collect::<Vec<_>>().join(", "));
    if enough.connections == one.connections {
        let mut others = found.sessions.iter().map(|tried| tried.figures.bytes_per_s);
        if others.any(|rate| rate >= 1.1 * one.figures.bytes_per_s) {
            let why = "Several seem faster, but the rounds differ too much to be sure.";
            return item(SETTING, Verdict::Unknown, text, why);
        }
        return item(SETTING, Verdict::NotHere, text, "One session is as fast as several.");
    }
    let why = if one.figures.bytes_per_s > 0.7 * ceiling {
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
    let Some((text, random)) = found.compressed_text.as_ref().zip(found.compressed_random.as_ref())
    else {
        let why = "The server does not offer it.";
        return item(SETTING, Verdict::NotHere, "no zlib in the server's offer".into(), why);
    };
    if let Some(failure) = text.failure.as_ref().or(found.plain.failure.as_ref()) {
        let failure = failure.lines().next().unwrap_or_default();
        return item(SETTING, Verdict::Unknown, format!("not measured: {failure}"), "");
    }
    let measured = format!(
        "without {}; with it, text {}, data that do not compress {}",
        rate(found.plain.bytes_per_s),
        rate(text.bytes_per_s),
        rate(random.bytes_per_s)
    );
    // The rate at which one thread compresses: by the CPU of the server, where it is known, and at
    // least the rate that was measured.
    let by_cpu = text.server_cpu_s_per_gb.filter(|cpu| *cpu > 0.0).map_or(0.0, |cpu| 1e9 / cpu);
    let limit = link_rate(by_cpu.max(text.bytes_per_s));
    let below = format!("It is zlib in one thread: worth it for text on links below {limit}");
    if text.clearly_faster(&found.plain) {
        let why = format!("{below}, and never for data that are compressed already.");
        let lines = ["sshoal -C HOST:DIR MOUNTPOINT        (text and sources only)".to_owned()];
        return item(SETTING, Verdict::Matters, measured, why).typing(lines);
    }
    if found.has_compression && found.plain.clearly_faster(text) {
        let why = format!("Your configuration has it on. {below}.");
        let lines = ["sshoal -o Compression=no HOST:DIR MOUNTPOINT".to_owned()];
        return item(SETTING, Verdict::Matters, measured, why).typing(lines);
    }
    item(SETTING, Verdict::NotHere, measured, format!("{below}. Leave it off."))
}

/// The marks in IP packets.
fn ipqos(found: &Findings) -> Item {
    let text = format!(
        "{}: {}; none: {}",
        found.ipqos,
        rate(found.plain.bytes_per_s),
        rate(found.unmarked.bytes_per_s)
    );
    let worked = found.plain.failure.is_none() && found.unmarked.failure.is_none();
    if worked && found.unmarked.clearly_faster(&found.plain) {
        let why = "The network gives marked packets a lower priority.";
        let lines = ["sshoal -o IPQoS=none HOST:DIR MOUNTPOINT".to_owned()];
        return item("IPQoS", Verdict::Matters, text, why).typing(lines);
    }
    let why = "Marked packets were as fast. A busy Wi-Fi may give them a lower priority.";
    item("IPQoS", Verdict::NotHere, text, why)
}

#[cfg(test)]
mod tests;
