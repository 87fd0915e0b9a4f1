//! From findings to advice. Pure: each function has the whole of one setting.
//!
//! [`ssh`] has what ssh is told, [`tcp`] what the kernels are.

mod ssh;
mod tcp;

use super::findings::Findings;
use super::{Item, Verdict};
use crate::report::number::{bit_rate, significant};

/// Advice on all settings: ssh's first.
pub(super) fn all(found: &Findings) -> Vec<Item> {
    vec![
        ssh::ciphers(found),
        ssh::macs(found),
        ssh::sessions(found),
        ssh::shared_connection(found),
        ssh::compression(found),
        ssh::ipqos(found),
        tcp::buffers(found),
        tcp::socket_limits(found),
        tcp::switches(found),
        tcp::congestion_control(found),
        tcp::slow_start(found),
        tcp::qdisc(found),
        tcp::backlog(found),
        tcp::mtu(found),
    ]
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
fn rate(bytes_per_s: f64) -> String {
    format!("{} MB/s", significant(bytes_per_s / 1e6))
}

/// `12.5 MB/s (100 Mbit/s)`: as files are counted, and as links are sold.
fn link_rate(bytes_per_s: f64) -> String {
    format!("{} ({})", rate(bytes_per_s), bit_rate(bytes_per_s))
}

/// `2.00 MiB`, `87.4 KiB`.
fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 1024.0 => format!("{} bytes", significant(bytes)),
        bytes if bytes < 1048576.0 => format!("{} KiB", significant(bytes / 1024.0)),
        bytes => format!("{} MiB", significant(bytes / 1048576.0)),
    }
}

/// A value that may not be known.
fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

/// What both ends have: once if it is the same.
fn both<T: ToString>(here: Option<T>, there: Option<T>) -> String {
    match (known(here), known(there)) {
        (here, there) if here == there => here,
        (here, there) => format!("{here} here, {there} at the server"),
    }
}

#[cfg(test)]
mod tests;
