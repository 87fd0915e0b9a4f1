//! What kernels can be told.
//!
//! A simulated link ends TCP on this machine. Its round trip and rate are taken as those of a real
//! one with kernels that are set as these are.

use super::{both, item, rate, size};
use crate::advise::facts::Facts;
use crate::advise::findings::{
    Findings, Path, SSH_WINDOW_BYTES, ceiling_bytes_per_s, cubic_bytes_per_s,
};
use crate::advise::{Item, Verdict};
use crate::report::number::{bit_rate, duration_us, percent};

/// From here on a link is long: a lost packet, or a start from nothing, costs what people notice.
const LONG_RTT_US: f64 = 20_000.0;

/// Seconds of starting that are noticed.
const NOTICED_S: f64 = 0.1;

/// What reads go through, and what writes do: the kernels' names for both ends' limits.
struct Window {
    /// Which limit it is.
    name: &'static str,
    /// What it lets be in flight.
    bytes: u64,
}

fn windows(found: &Findings) -> Vec<Window> {
    let window = |name, bytes: Option<u64>| bytes.map(|bytes| Window { name, bytes });
    [
        window("tcp_rmem here", found.here.receive_window_bytes()),
        window("tcp_wmem at the server", found.there.send_window_bytes()),
        window("tcp_rmem at the server", found.there.receive_window_bytes()),
        window("tcp_wmem here", found.here.send_window_bytes()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The limits to which the kernel grows the buffers of a connection.
///
/// They matter where they keep in flight less than ssh's window, and the rate that this gives is
/// near to what was seen, or below.
pub(super) fn buffers(found: &Findings) -> Item {
    const SETTING: &str = "tcp_rmem, tcp_wmem";
    let Some(least) = windows(found).into_iter().min_by_key(|window| window.bytes) else {
        return item(SETTING, Verdict::Unknown, "the kernels do not tell".into(), "");
    };
    let window = least.bytes as f64;
    let product = found.product_bytes();
    let text = format!(
        "bandwidth × delay is {}; ssh keeps 2 MiB in flight at most; the kernels allow {} ({})",
        size(product),
        size(window),
        least.name
    );
    if window >= SSH_WINDOW_BYTES {
        let why = "Kernels grow a connection's buffers by themselves, up to these limits, and \
            they allow more than ssh can use.";
        return item(SETTING, Verdict::NoLonger, text, why);
    }
    let allowed = ceiling_bytes_per_s(window, found.rtt_us);
    if found.path == Path::Loopback || allowed >= 2.0 * found.wide_bytes_per_s() {
        let why = format!(
            "The limit is below ssh's window, but gives {} a connection at this round trip.",
            rate(allowed)
        );
        return item(SETTING, Verdict::NotHere, text, why);
    }
    let why = format!("It limits a connection to {} at this round trip.", rate(allowed));
    let place = if least.name.ends_with("here") { "here" } else { "at the server" };
    let line = if least.name.starts_with("tcp_rmem") {
        format!("sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'        ({place})")
    } else {
        format!("sysctl -w net.ipv4.tcp_wmem='4096 16384 4194304'        ({place})")
    };
    item(SETTING, Verdict::Matters, text, why).typing([line])
}

/// What programs may ask for, which ssh does not.
pub(super) fn socket_limits(found: &Findings) -> Item {
    let text = format!(
        "rmem_max {}, wmem_max {}",
        both(found.here.rmem_max, found.there.rmem_max),
        both(found.here.wmem_max, found.there.wmem_max)
    );
    let why = "They limit what a program asks for with SO_RCVBUF and SO_SNDBUF. ssh and sshd ask \
        for nothing: the limits of tcp_rmem and tcp_wmem are the ones that hold.";
    item("rmem_max, wmem_max", Verdict::NoLonger, text, why)
}

/// Switches that old articles turn off.
pub(super) fn switches(found: &Findings) -> Item {
    const SETTING: &str = "tcp_window_scaling and others";
    type Get = fn(&Facts) -> Option<bool>;
    let switches: [(&str, Get); 4] = [
        ("tcp_window_scaling", |facts| facts.window_scaling),
        ("tcp_sack", |facts| facts.sack),
        ("tcp_timestamps", |facts| facts.timestamps),
        ("tcp_moderate_rcvbuf", |facts| facts.moderate_rcvbuf),
    ];
    let mut off = Vec::new();
    for (place, facts) in [("here", &found.here), ("at the server", &found.there)] {
        let is_off = |(_, get): &&(&str, Get)| get(facts) == Some(false);
        off.extend(switches.iter().filter(is_off).map(|(name, _)| (*name, place)));
    }
    if off.is_empty() {
        let text = "window scaling, SACK, timestamps and growing buffers are on".to_owned();
        let known = switches.iter().any(|(_, get)| get(&found.here).is_some());
        let why = "So they are by default. Do not turn any of them off.";
        return if known {
            item(SETTING, Verdict::NoLonger, text, why)
        } else {
            item(SETTING, Verdict::Unknown, "the kernels do not tell".into(), why)
        };
    }
    let names: Vec<String> = off.iter().map(|(name, place)| format!("{name} ({place})")).collect();
    let text = format!("off: {}", names.join(", "));
    let lines =
        off.iter().map(|(name, place)| format!("sysctl -w net.ipv4.{name}=1        ({place})"));
    let lines: Vec<String> = lines.collect();
    let (verdict, why) = match found.path {
        Path::Loopback => (Verdict::NotHere, "Over a network it would be slow, or lose its pace."),
        _ => (Verdict::Matters, "Without them TCP is slow on long or lossy links."),
    };
    let lines = if verdict == Verdict::Matters { lines } else { Vec::new() };
    item(SETTING, verdict, text, why).typing(lines)
}

/// How the sender takes loss.
pub(super) fn congestion_control(found: &Findings) -> Item {
    const SETTING: &str = "tcp_congestion_control";
    let (here, there) = (&found.here.congestion_control, &found.there.congestion_control);
    let mut text = both(here.as_ref(), there.as_ref());
    let Some(resent) = found.resent.filter(|_| found.path == Path::Network) else {
        let why = "It matters on long links that lose packets. This one loses none.";
        let verdict = match found.path {
            Path::Network => Verdict::Unknown,
            Path::Loopback | Path::Simulated => Verdict::NotHere,
        };
        let why = if verdict == Verdict::Unknown { "Losses could not be counted." } else { why };
        return item(SETTING, verdict, text, why);
    };
    text += &format!("; {} of the segments were sent again meanwhile", percent(resent));
    let bbr = |facts: &Facts| facts.congestion_control.is_none() || is_bbr(facts);
    let cubic = cubic_bytes_per_s(found.rtt_us, resent);
    let harmless = found.rtt_us < LONG_RTT_US || cubic >= 2.0 * found.wide_bytes_per_s();
    if harmless || (bbr(&found.here) && bbr(&found.there)) {
        let why = "It matters on long links that lose packets, for whoever sends: the server for \
            reads, this machine for writes.";
        return item(SETTING, Verdict::NotHere, text, why);
    }
    let why = format!(
        "cubic takes every lost packet for congestion: with so many it gets about {} here. bbr does \
         not. It is the sender's: the server's for reads.",
        rate(cubic)
    );
    let mut lines = Vec::new();
    for (place, facts) in [("at the server", &found.there), ("here", &found.here)] {
        if !bbr(facts) {
            lines.push(format!("sysctl -w net.ipv4.tcp_congestion_control=bbr        ({place})"));
        }
    }
    item(SETTING, Verdict::Matters, text, why).typing(lines)
}

/// After a pause longer than its retransmission time-out TCP starts from ten segments; not so by
/// bbr, which keeps its own account of the link (`tcp_slow_start_after_idle_check` in the kernel).
pub(super) fn slow_start(found: &Findings) -> Item {
    const SETTING: &str = "tcp_slow_start_after_idle";
    let flag = |facts: &Facts| facts.slow_start_after_idle.map(u8::from);
    let cost = found.slow_start_s();
    let text = format!(
        "{}; from ten segments to a full link: {}",
        both(flag(&found.here), flag(&found.there)),
        duration_us(cost * 1e6)
    );
    let lines: Vec<String> = [("at the server", &found.there), ("here", &found.here)]
        .iter()
        .filter(|(_, facts)| flag(facts) == Some(1) && !is_bbr(facts))
        .map(|(place, _)| format!("sysctl -w net.ipv4.{SETTING}=0        ({place})"))
        .collect();
    if cost < NOTICED_S || found.path == Path::Loopback {
        return item(SETTING, Verdict::NotHere, text, "Starting takes no time at this distance.");
    }
    if lines.is_empty() {
        let why = "It is off where it has an effect: bbr does without it.";
        return item(SETTING, Verdict::NotHere, text, why);
    }
    let why = "People use a mount in bursts. After each pause TCP begins anew, and the first \
        megabytes of a burst are slow.";
    item(SETTING, Verdict::Matters, text, why).typing(lines)
}

fn is_bbr(facts: &Facts) -> bool {
    facts.congestion_control.as_ref().is_some_and(|name| name.starts_with("bbr"))
}

/// The order in which packets leave.
pub(super) fn qdisc(found: &Findings) -> Item {
    let text = both(found.here.qdisc.as_ref(), found.there.qdisc.as_ref());
    let why = "Articles set fq so that bbr can pace its packets. Since Linux 4.13 TCP paces by \
        itself. It matters to those who share the link, not to the rate.";
    item("default_qdisc", Verdict::NoLonger, text, why)
}

/// Packets that wait for a processor.
pub(super) fn backlog(found: &Findings) -> Item {
    const SETTING: &str = "netdev_max_backlog";
    let set = both(found.here.netdev_max_backlog, found.there.netdev_max_backlog);
    match found.backlog_dropped {
        None => {
            let why = "The kernels do not tell how many packets did not fit.";
            item(SETTING, Verdict::Unknown, set, why)
        }
        Some(0) => {
            let text = format!("{set}; no packet was dropped for it meanwhile");
            let why = "It matters where packets come faster than one processor takes them.";
            item(SETTING, Verdict::NotHere, text, why)
        }
        Some(dropped) => {
            let text = format!("{set}; {dropped} packets were dropped for it meanwhile");
            let why = "Packets come faster than one processor takes them.";
            item(SETTING, Verdict::Matters, text, why)
                .typing([format!("sysctl -w net.core.{SETTING}=10000")])
        }
    }
}

/// Jumbo frames: what their smaller headers would bring, if the wire is what limits.
pub(super) fn mtu(found: &Findings) -> Item {
    const SETTING: &str = "MTU";
    const JUMBO_BYTES: u64 = 9000;
    let ends = [&found.here.interface, &found.there.interface];
    let Some(narrow) = ends.into_iter().flatten().min_by_key(|interface| interface.mtu_bytes)
    else {
        let why = "It is not known which interfaces lead from one end to the other.";
        return item(SETTING, Verdict::Unknown, "unknown".into(), why);
    };
    let text = format!("{} bytes ({})", narrow.mtu_bytes, narrow.name);
    if found.path != Path::Network {
        let why = "Nothing leaves this machine.";
        return item(SETTING, Verdict::NotHere, text, why);
    }
    if narrow.mtu_bytes >= JUMBO_BYTES {
        return item(SETTING, Verdict::NotHere, text, "Frames are large already.");
    }
    let gain = payload(JUMBO_BYTES) / payload(narrow.mtu_bytes) - 1.0;
    let speeds = ends.into_iter().flatten().filter_map(|interface| interface.bits_per_s);
    let Some(speed) = speeds.min().map(|bits| bits as f64 / 8.0) else {
        let why = format!(
            "Large frames (9000) would bring {} at most, where the wire is what limits; its speed \
             is not known. Network cards cut and join packets themselves by now.",
            percent(gain)
        );
        return item(SETTING, Verdict::NotHere, text, why);
    };
    let used = found.wide_bytes_per_s() / (speed * payload(narrow.mtu_bytes));
    let text = format!("{text}; {} of {} are used", percent(used.min(1.0)), bit_rate(speed));
    if used < 0.85 {
        let why = "Large frames save headers on a wire that is full. Network cards cut and join \
            packets themselves by now, so that they save no CPU.";
        return item(SETTING, Verdict::NotHere, text, why);
    }
    let why = format!(
        "The wire is full: frames of 9000 bytes would bring {} more, if every device on the way \
         has them.",
        percent(gain)
    );
    item(SETTING, Verdict::Matters, text, why)
        .typing([format!("ip link set dev {} mtu 9000", narrow.name)])
}

/// The part of an Ethernet's bits that are data: IPv4, TCP and its timestamps take 52 bytes of a
/// packet; around it are 38 more (header, checksum, preamble, gap).
fn payload(mtu_bytes: u64) -> f64 {
    mtu_bytes.saturating_sub(52) as f64 / (mtu_bytes + 38) as f64
}

#[cfg(test)]
mod tests {
    use super::payload;

    #[test]
    fn the_part_that_is_data() {
        assert!((payload(1500) - 0.9415).abs() < 1e-4);
        assert!((payload(9000) - 0.9900).abs() < 1e-4);
        assert_eq!(payload(0), 0.0);
    }
}
