//! What ssh can be told.

use super::{item, known, link_rate, rate};
use crate::advise::findings::{self, Findings, Sessions};
use crate::advise::flow::Figures;
use crate::advise::{Item, Verdict};
use crate::report::number::{duration_us, significant};

/// A cipher that needs so much less CPU is worth an option even where the link is what limits.
const CHEAPER: f64 = 0.8;

/// `412 MB/s, 1.70 s of CPU for a GB`.
fn figures(figures: &Figures) -> String {
    let cpu = figures.cpu_s_per_gb();
    let cpu = cpu.map(|cpu| format!(", {} s of CPU for a GB", significant(cpu)));
    format!("{}{}", rate(figures.bytes_per_s), cpu.unwrap_or_default())
}

/// Whether one is worth an option in place of the other.
fn is_better(one: &Figures, than: &Figures) -> bool {
    let cheaper =
        one.cpu_s_per_gb().zip(than.cpu_s_per_gb()).is_some_and(|(one, than)| one < CHEAPER * than);
    one.clearly_faster(than) || (cheaper && !than.clearly_faster(one))
}

/// The best cipher against what ssh and sshoal take.
pub(super) fn ciphers(found: &Findings) -> Item {
    let Some(best) = found.best_cipher() else {
        return item("Ciphers", Verdict::Unknown, "no cipher was measured".into(), "");
    };
    let usual = found.cipher(&found.ssh_cipher);
    let ours = found.cipher(&found.sshoal_cipher);
    let mut text = format!("{}: {}", best.name, figures(best));
    if let Some(usual) = usual.filter(|usual| usual.name != best.name) {
        text += &format!("; {}, which ssh takes by itself: {}", usual.name, figures(usual));
    }
    let aes = |has: Option<bool>| known(has.map(|has| if has { "yes" } else { "no" }));
    text += &format!(
        ". Instructions for AES: here {}, at the server {}",
        aes(found.here.aes),
        aes(found.there.aes)
    );
    let gains = |now: Option<&Figures>| now.is_none_or(|now| is_better(best, now));
    let option = format!("-o Ciphers={}", best.name);
    let (ssh, sshoal) = (gains(usual), gains(ours));
    let why = match (ssh, sshoal) {
        (false, false) => "What is taken by itself is as good as any.",
        (true, false) => {
            "sshoal takes it by itself; ssh, scp, sftp, sshfs and rsync have to be told."
        }
        (_, true) => "It has to be named.",
    };
    let verdict = if ssh || sshoal { Verdict::Matters } else { Verdict::NotHere };
    let mut lines = Vec::new();
    if sshoal {
        lines.push(format!("sshoal {option} HOST:DIR MOUNTPOINT"));
    }
    if ssh {
        lines.push(format!("ssh {option} HOST        (also scp, sftp, sshfs)"));
        lines.push(format!("rsync -e 'ssh {option}' …"));
    }
    item("Ciphers", verdict, text, why).typing(lines)
}

/// Which MAC, where the best cipher needs one.
pub(super) fn macs(found: &Findings) -> Item {
    let cipher = found.best_cipher().map(|best| best.name.as_str()).unwrap_or_default();
    let Some(best) = findings::best(&found.macs, [&found.ssh_mac, ""]) else {
        let with_mac = found.ciphers.iter().find(|figures| figures.name.ends_with("-ctr"));
        let text = match with_mac.filter(|figures| figures.failure.is_none()) {
            Some(ctr) => format!("{} with a MAC: {}", ctr.name, figures(ctr)),
            None => "no cipher that needs one works here".to_owned(),
        };
        let why = format!("{cipher} authenticates by itself, and no MAC is used.");
        return item("MACs", Verdict::NotHere, text, why);
    };
    let usual = found.macs.iter().find(|mac| mac.name == found.ssh_mac && mac.failure.is_none());
    let mut text = format!("{} with {}: {}", cipher, best.name, figures(best));
    if let Some(usual) = usual.filter(|usual| usual.name != best.name) {
        text += &format!("; with {}, which ssh takes by itself: {}", usual.name, figures(usual));
    }
    if usual.is_some_and(|usual| !is_better(best, usual)) {
        return item("MACs", Verdict::NotHere, text, "What is taken by itself is as good as any.");
    }
    let why = "The best cipher here needs a MAC, and they differ.";
    item("MACs", Verdict::Matters, text, why).typing([format!("-o MACs={}", best.name)])
}

/// One session's ceiling against the link, and what several bring.
pub(super) fn sessions(found: &Findings) -> Item {
    const SETTING: &str = "max_conns";
    let ceiling = found.ceiling_bytes_per_s();
    let mut text = format!(
        "one session can bring 2 MiB in a round trip of {}: {} at most",
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
        let seems = |tried: &Sessions| tried.figures.bytes_per_s >= 1.1 * one.figures.bytes_per_s;
        if found.sessions.iter().any(seems) {
            let why = "Several seem faster, but the rounds differ too much to tell.";
            return item(SETTING, Verdict::Unknown, text, why);
        }
        return item(SETTING, Verdict::NotHere, text, "One session brings what several do.");
    }
    let why = if one.figures.bytes_per_s > 0.7 * ceiling {
        let windows = found.windows();
        format!(
            "The window of 2 MiB is ssh's own and cannot be set. The link holds {windows} of them."
        )
    } else {
        "One ssh is one thread at each end: several use more processors.".to_owned()
    };
    let line = format!("sshoal -o max_conns={} HOST:DIR MOUNTPOINT", enough.connections);
    item(SETTING, Verdict::Matters, text, why).typing([line])
}

/// Sessions over one connection against connections of their own.
pub(super) fn shared_connection(found: &Findings) -> Item {
    const SETTING: &str = "ControlMaster";
    let apart = found.sessions.iter().find(|tried| tried.connections == 4);
    let Some(apart) = apart.map(|tried| &tried.figures).filter(|it| it.failure.is_none()) else {
        return item(SETTING, Verdict::Unknown, "not measured".into(), "");
    };
    if let Some(failure) = &found.shared.failure {
        let failure = failure.lines().next().unwrap_or_default();
        return item(SETTING, Verdict::Unknown, format!("not measured: {failure}"), "");
    }
    let configured = if found.has_shared_connection { "has" } else { "does not have" };
    let text = format!(
        "four sessions over one connection: {}; over four: {}. Your configuration {configured} it",
        rate(found.shared.bytes_per_s),
        rate(apart.bytes_per_s)
    );
    if !apart.clearly_faster(&found.shared) {
        let why = "One connection carries as much here. It saves logins, not time on the data.";
        return item(SETTING, Verdict::NotHere, text, why);
    }
    let why = "Sessions that share a connection share its TCP, one thread of ssh, and one of sshd.";
    if !found.has_shared_connection {
        let why = format!("{why} Leave it off for data.");
        return item(SETTING, Verdict::NotHere, text, why);
    }
    item(SETTING, Verdict::Matters, text, why)
        .typing(["sshoal -o ControlPath=none HOST:DIR MOUNTPOINT".to_owned()])
}

/// Compression against the link.
pub(super) fn compression(found: &Findings) -> Item {
    const SETTING: &str = "Compression";
    let Some((text, noise)) = found.compressed_text.as_ref().zip(found.compressed_noise.as_ref())
    else {
        let why = "The server does not offer it.";
        return item(SETTING, Verdict::NotHere, "no zlib in the server's offer".into(), why);
    };
    if let Some(failure) = text.failure.as_ref().or(found.plain.failure.as_ref()) {
        let failure = failure.lines().next().unwrap_or_default();
        return item(SETTING, Verdict::Unknown, format!("not measured: {failure}"), "");
    }
    let figures_text = format!(
        "without {}; with it, of text {}, of data that cannot be compressed {}",
        rate(found.plain.bytes_per_s),
        rate(text.bytes_per_s),
        rate(noise.bytes_per_s)
    );
    let limit = link_rate(compression_limit(text));
    let below = format!("It is zlib in one thread: worth it for text on links below {limit}");
    if text.clearly_faster(&found.plain) {
        let why = format!("{below}, and never for data that are compressed already.");
        let lines = ["sshoal -C HOST:DIR MOUNTPOINT        (text and sources only)".to_owned()];
        return item(SETTING, Verdict::Matters, figures_text, why).typing(lines);
    }
    if found.has_compression && found.plain.clearly_faster(text) {
        let why = format!("Your configuration has it on. {below}.");
        let lines = ["sshoal -o Compression=no HOST:DIR MOUNTPOINT".to_owned()];
        return item(SETTING, Verdict::Matters, figures_text, why).typing(lines);
    }
    item(SETTING, Verdict::NotHere, figures_text, format!("{below}. Leave it off."))
}

/// How much text one thread compresses: by the CPU of the side that does it, where that is known;
/// at least what was seen.
fn compression_limit(text: &Figures) -> f64 {
    let by_cpu = text.server_cpu_s_per_gb.filter(|cpu| *cpu > 0.0).map_or(0.0, |cpu| 1e9 / cpu);
    by_cpu.max(text.bytes_per_s)
}

/// The marks in IP packets.
pub(super) fn ipqos(found: &Findings) -> Item {
    let text = format!(
        "{}: {}; none: {}",
        found.ipqos,
        rate(found.plain.bytes_per_s),
        rate(found.unmarked.bytes_per_s)
    );
    let worked = found.plain.failure.is_none() && found.unmarked.failure.is_none();
    if worked && found.unmarked.clearly_faster(&found.plain) {
        let why = "Something on the way puts marked packets last.";
        let lines = ["sshoal -o IPQoS=none HOST:DIR MOUNTPOINT".to_owned()];
        return item("IPQoS", Verdict::Matters, text, why).typing(lines);
    }
    let wireless = |facts: &crate::advise::facts::Facts| {
        facts.interface.as_ref().is_some_and(|interface| interface.wireless)
    };
    let why = if wireless(&found.here) || wireless(&found.there) {
        "Wi-Fi may put `throughput` (cs1) last when it is busy. It did not while this was measured."
    } else {
        "Nothing on the way treats marked packets worse."
    };
    item("IPQoS", Verdict::NotHere, text, why)
}
