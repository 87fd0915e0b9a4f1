//! What a machine's kernel is set to: the same questions here and at the server, answered by the
//! same script.
//!
//! Nothing of it is needed: what a machine does not tell (another kernel than Linux, a container)
//! is not known, and the advice says so.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use serde::Serialize;

use crate::executor::Executor;
use crate::failure::Failure;
use crate::place::script;
use crate::server::Server;

/// It only reads files; through ssh there is a login.
const LIMIT: Duration = Duration::from_secs(60);

/// `$1` is the address of the other end; `ssh` stands for the one that ssh comes from.
///
/// What it prints is read by [`Facts::parse`]. `cat` reads the settings, since a shell's `read` takes
/// one byte at a time, and of these files only the first read gives anything.
const SCRIPT: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
{
for name in net/core/rmem_max net/core/wmem_max net/core/default_qdisc \
    net/core/netdev_max_backlog net/ipv4/tcp_rmem net/ipv4/tcp_wmem \
    net/ipv4/tcp_congestion_control net/ipv4/tcp_window_scaling net/ipv4/tcp_sack \
    net/ipv4/tcp_timestamps net/ipv4/tcp_moderate_rcvbuf net/ipv4/tcp_slow_start_after_idle
do
    if value=$(cat "/proc/sys/$name"); then echo "sysctl ${name##*/} $value"; fi
done
if grep -qE "^(flags|Features)" /proc/cpuinfo; then
    if grep -qwm1 aes /proc/cpuinfo; then echo "aes 1"; else echo "aes 0"; fi
fi
echo "cpus $(grep -c "^processor" /proc/cpuinfo)"
echo "load $(cat /proc/loadavg)"
grep "^Tcp:" /proc/net/snmp
while read -r packets dropped rest; do echo "softnet $dropped"; done </proc/net/softnet_stat
other=$1
if [ "$other" = ssh ]; then other=${SSH_CONNECTION%% *}; fi
if [ -n "$other" ]; then echo "route $(ip -o route get "$other")"; fi
for nic in /sys/class/net/*; do
    radio=wire; if [ -d "$nic/wireless" ]; then radio=radio; fi
    echo "nic ${nic##*/} $(cat "$nic/mtu") $radio $(cat "$nic/speed")"
done
} 2>/dev/null
true
"#;

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Its processor has instructions for AES.
    pub aes: Option<bool>,
    /// Processors.
    pub cpus: Option<u32>,
    /// Load average of the last minute, in hundredths.
    pub load_hundredths: Option<u32>,
    /// `net.core.rmem_max`, bytes.
    pub rmem_max: Option<u64>,
    /// `net.core.wmem_max`, bytes.
    pub wmem_max: Option<u64>,
    /// `net.ipv4.tcp_rmem`: least, first, most; bytes.
    pub tcp_rmem: Option<[u64; 3]>,
    /// `net.ipv4.tcp_wmem`: least, first, most; bytes.
    pub tcp_wmem: Option<[u64; 3]>,
    /// `net.ipv4.tcp_moderate_rcvbuf`: the receive buffer grows by itself.
    pub moderate_rcvbuf: Option<bool>,
    /// `net.ipv4.tcp_window_scaling`.
    pub window_scaling: Option<bool>,
    /// `net.ipv4.tcp_sack`.
    pub sack: Option<bool>,
    /// `net.ipv4.tcp_timestamps`; any kind of them.
    pub timestamps: Option<bool>,
    /// `net.ipv4.tcp_slow_start_after_idle`.
    pub slow_start_after_idle: Option<bool>,
    /// `net.ipv4.tcp_congestion_control`. Printable.
    pub congestion_control: Option<String>,
    /// `net.core.default_qdisc`. Printable.
    pub qdisc: Option<String>,
    /// `net.core.netdev_max_backlog`, packets.
    pub netdev_max_backlog: Option<u64>,
    /// Packets that this backlog was too short for, since the machine started.
    pub backlog_dropped: Option<u64>,
    /// TCP segments sent by the machine since it started.
    pub segments_sent: Option<u64>,
    /// Those of them that were sent again.
    pub segments_resent: Option<u64>,
    /// The interface that leads to the other machine.
    pub interface: Option<Interface>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Printable.
    pub name: String,
    /// Longest packet, bytes.
    pub mtu_bytes: u64,
    /// What the device says of itself; virtual ones say nothing.
    pub bits_per_s: Option<u64>,
    /// Wi-Fi.
    pub wireless: bool,
}

impl Facts {
    /// Of this machine. `other` is the address of the server, if there is a direct way to it.
    pub(super) fn here(other: Option<&str>, executor: &Executor) -> Result<Facts, Failure> {
        let command = script::command(None, SCRIPT, &[OsStr::new(other.unwrap_or_default())]);
        Facts::said(executor.run(command, LIMIT))
    }

    /// Of the server.
    pub(super) fn there(server: &Server, executor: &Executor) -> Result<Facts, Failure> {
        let mut words = vec![OsString::from("ssh")];
        words.extend(server.ssh_options(None));
        words.push(server.destination().into());
        let command = script::command(Some(&words), SCRIPT, &[OsStr::new("ssh")]);
        Facts::said(executor.run(command, LIMIT))
    }

    /// A machine that does not answer is one of which nothing is known.
    fn said(ran: Result<crate::executor::Ran, Failure>) -> Result<Facts, Failure> {
        match ran {
            Ok(ran) => Ok(Facts::parse(&String::from_utf8_lossy(&ran.output.stdout))),
            Err(Failure::Interrupted) => Err(Failure::Interrupted),
            Err(_) => Ok(Facts::default()),
        }
    }

    /// Lines that begin with what they tell; others are the login's.
    fn parse(text: &str) -> Facts {
        let mut facts = Facts::default();
        let mut tcp_names: Option<Vec<&str>> = None;
        let mut interfaces = Vec::new();
        let mut route = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match &words[..] {
                ["sysctl", name, values @ ..] => facts.set(name, values),
                ["aes", has] => facts.aes = flag(has),
                ["cpus", cpus] => facts.cpus = cpus.parse().ok().filter(|&cpus| cpus > 0),
                ["load", load, ..] => {
                    let load: Option<f64> = load.parse().ok();
                    facts.load_hundredths = load.map(|load| (load * 100.0).round() as u32);
                }
                ["Tcp:", values @ ..] => match &tcp_names {
                    None => tcp_names = Some(values.to_vec()),
                    Some(names) => facts.count(names, values),
                },
                ["softnet", dropped] => {
                    if let Ok(dropped) = u64::from_str_radix(dropped, 16) {
                        *facts.backlog_dropped.get_or_insert(0) += dropped;
                    }
                }
                ["route", words @ ..] => route = Some(words.to_vec()),
                ["nic", rest @ ..] => interfaces.extend(interface(rest)),
                _ => (),
            }
        }
        facts.interface = route.and_then(|route| through(&route, &interfaces));
        facts
    }

    fn set(&mut self, name: &str, values: &[&str]) {
        let Some(&first) = values.first() else { return };
        let number = first.parse().ok();
        match name {
            "rmem_max" => self.rmem_max = number,
            "wmem_max" => self.wmem_max = number,
            "tcp_rmem" => self.tcp_rmem = three(values),
            "tcp_wmem" => self.tcp_wmem = three(values),
            "tcp_moderate_rcvbuf" => self.moderate_rcvbuf = flag(first),
            "tcp_window_scaling" => self.window_scaling = flag(first),
            "tcp_sack" => self.sack = flag(first),
            "tcp_timestamps" => self.timestamps = flag(first),
            "tcp_slow_start_after_idle" => self.slow_start_after_idle = flag(first),
            "tcp_congestion_control" => self.congestion_control = Some(printable(first)),
            "default_qdisc" => self.qdisc = Some(printable(first)),
            "netdev_max_backlog" => self.netdev_max_backlog = number,
            _ => (),
        }
    }

    fn count(&mut self, names: &[&str], values: &[&str]) {
        for (name, value) in names.iter().zip(values) {
            match *name {
                "OutSegs" => self.segments_sent = value.parse().ok(),
                "RetransSegs" => self.segments_resent = value.parse().ok(),
                _ => (),
            }
        }
    }

    /// The part of the segments since `before` that were sent again, of the whole machine.
    #[must_use]
    pub fn resent_since(&self, before: &Facts) -> Option<f64> {
        let sent = self.segments_sent?.checked_sub(before.segments_sent?)?;
        let again = self.segments_resent?.checked_sub(before.segments_resent?)?;
        (sent > 0).then(|| again as f64 / sent as f64)
    }

    /// Most bytes that TCP here lets the other side have in flight. Half of the buffer is kept
    /// for the kernel's own (`tcp_adv_win_scale`; newer kernels reckon about the same).
    #[must_use]
    pub fn receive_window_bytes(&self) -> Option<u64> {
        const UNSCALED: u64 = 65_535;
        let [_, first, most] = self.tcp_rmem?;
        let buffer = if self.moderate_rcvbuf == Some(false) { first } else { most };
        let scaled = buffer / 2;
        Some(if self.window_scaling == Some(false) { scaled.min(UNSCALED) } else { scaled })
    }

    /// Most bytes that TCP here has in flight towards the other side.
    #[must_use]
    pub fn send_window_bytes(&self) -> Option<u64> {
        self.tcp_wmem.map(|[_, _, most]| most / 2)
    }
}

fn printable(word: &str) -> String {
    word.escape_debug().to_string()
}

fn flag(word: &str) -> Option<bool> {
    word.parse().ok().map(|number: u64| number != 0)
}

fn three(values: &[&str]) -> Option<[u64; 3]> {
    let [least, first, most] = values else { return None };
    Some([least.parse().ok()?, first.parse().ok()?, most.parse().ok()?])
}

/// `NAME MTU wire|radio [SPEED]`, the speed in Mbit/s; -1 is not known.
fn interface(words: &[&str]) -> Option<Interface> {
    let (name, rest) = words.split_first()?;
    let (mtu, rest) = rest.split_first()?;
    let (medium, rest) = rest.split_first()?;
    let mbits: Option<u64> = rest.first().and_then(|speed| speed.parse().ok());
    Some(Interface {
        name: printable(name),
        mtu_bytes: mtu.parse().ok()?,
        bits_per_s: mbits.filter(|&mbits| mbits > 0).map(|mbits| mbits.saturating_mul(1_000_000)),
        wireless: *medium == "radio",
    })
}

/// The interface of a route as `ip -o route get` shows it; a route may have an MTU of its own.
fn through(route: &[&str], interfaces: &[Interface]) -> Option<Interface> {
    let after = |key| {
        let mut words = route.iter().skip_while(move |word| **word != key);
        words.nth(1).copied()
    };
    let name = printable(after("dev")?);
    let mut found = interfaces.iter().find(|interface| interface.name == name)?.clone();
    if let Some(mtu) = after("mtu").and_then(|mtu| mtu.parse().ok()) {
        found.mtu_bytes = found.mtu_bytes.min(mtu);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read() {
        let text = "Welcome!\n\
            sysctl rmem_max 212992\nsysctl tcp_rmem 4096\t131072\t6291456\n\
            sysctl tcp_wmem 4096 16384 4194304\nsysctl tcp_window_scaling 1\n\
            sysctl tcp_sack 0\nsysctl tcp_timestamps 2\nsysctl tcp_congestion_control cu\x1bbic\n\
            sysctl tcp_moderate_rcvbuf 1\nsysctl default_qdisc fq_codel\nsysctl odd\n\
            aes 1\ncpus 4\nload 2.51 1.00 0.50 1/99 1234\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 1000 7\n\
            softnet 00000010\nsoftnet 00000001\nsoftnet nonsense\n\
            route 1.1.1.1 via 10.0.0.1 dev eth0 src 10.0.0.2 mtu 1420 uid 0 \\ cache\n\
            nic lo 65536 wire\nnic eth0 1500 wire 10000\nnic wlan0 1500 radio -1\n";
        let facts = Facts::parse(text);
        assert_eq!((facts.rmem_max, facts.wmem_max), (Some(212_992), None));
        assert_eq!(facts.tcp_rmem, Some([4096, 131_072, 6_291_456]));
        assert_eq!((facts.sack, facts.timestamps), (Some(false), Some(true)));
        assert_eq!(facts.congestion_control.as_deref(), Some("cu\\u{1b}bic"));
        assert_eq!((facts.cpus, facts.load_hundredths), (Some(4), Some(251)));
        assert_eq!((facts.aes, facts.backlog_dropped), (Some(true), Some(17)));
        assert_eq!((facts.segments_sent, facts.segments_resent), (Some(1000), Some(7)));
        let interface = facts.interface.as_ref().unwrap();
        assert_eq!((interface.name.as_str(), interface.mtu_bytes), ("eth0", 1420));
        assert_eq!(interface.bits_per_s, Some(10_000_000_000));
        assert_eq!(facts.receive_window_bytes(), Some(3 << 20));
        assert_eq!(facts.send_window_bytes(), Some(2 << 20));
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        for text in [
            "",
            "sysctl tcp_rmem 1 2\nroute\nnic\nnic x y z\nTcp: a\nTcp:\nsoftnet\naes ?\ncpus 0\nload x",
        ] {
            assert_eq!(Facts::parse(text), Facts::default(), "{text}");
        }
        // A route through an interface of which nothing is known.
        assert_eq!(Facts::parse("route x dev tun0\n").interface, None);
    }

    #[test]
    fn windows_depend_on_the_switches() {
        let facts = Facts { tcp_rmem: Some([1, 131_072, 6_291_456]), ..Facts::default() };
        let fixed = Facts { moderate_rcvbuf: Some(false), ..facts.clone() };
        assert_eq!(fixed.receive_window_bytes(), Some(65_536));
        let unscaled = Facts { window_scaling: Some(false), ..facts };
        assert_eq!(unscaled.receive_window_bytes(), Some(65_535));
    }

    #[test]
    fn resent_segments_are_a_part_of_those_sent_meanwhile() {
        let at = |sent, again| Facts {
            segments_sent: Some(sent),
            segments_resent: Some(again),
            ..Facts::default()
        };
        assert_eq!(at(3000, 30).resent_since(&at(1000, 10)), Some(0.01));
        assert_eq!(at(1000, 30).resent_since(&at(1000, 10)), None);
        assert_eq!(at(1000, 30).resent_since(&Facts::default()), None);
    }

    #[test]
    fn this_machine_answers() {
        let facts = Facts::here(Some("127.0.0.1"), &Executor::new()).unwrap();
        assert!(facts.tcp_rmem.is_some() && facts.segments_sent.is_some(), "{facts:?}");
        assert!(facts.backlog_dropped.is_some(), "{facts:?}");
    }
}
