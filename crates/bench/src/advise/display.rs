//! Advice on a terminal: no line has more than [`WIDTH`] columns.

use std::fmt;

use super::findings::Findings;
use super::flow::Figures;
use super::{Advice, Item, Verdict};
use crate::report::number::{bit_rate, duration_us, significant};

const WIDTH: usize = 100;

/// In the order in which they are shown: what is to be done first.
const VERDICTS: [Verdict; 4] =
    [Verdict::Matters, Verdict::NotHere, Verdict::NoLonger, Verdict::Unknown];

/// Of a cipher or a number of connections.
const NAME: usize = 42;

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        head(f, &self.findings)?;
        tables(f, &self.findings)?;
        for verdict in VERDICTS {
            let items: Vec<&Item> =
                self.items.iter().filter(|item| item.verdict == verdict).collect();
            if verdict == Verdict::Matters && items.is_empty() {
                writeln!(f, "\nNothing that can be set would make it faster here.")?;
            } else if !items.is_empty() {
                writeln!(f, "\n{}", verdict.words().to_uppercase())?;
            }
            for item in items {
                show(f, item)?;
            }
        }
        Ok(())
    }
}

fn head(f: &mut fmt::Formatter<'_>, found: &Findings) -> fmt::Result {
    let rate = |bytes_per_s: f64| {
        format!("{} MB/s ({})", significant(bytes_per_s / 1e6), bit_rate(bytes_per_s))
    };
    wrapped(f, "", &format!("{}; server: {}", found.host, found.server))?;
    let wide = match found.link_bytes_per_s {
        Some(link) => format!("TCP brings {}", rate(link)),
        None => format!("ssh has brought {}", rate(found.wide_bytes_per_s())),
    };
    let product = found.product_bytes() / 1024.0;
    wrapped(
        f,
        "",
        &format!(
            "round trip {}; {wide}; bandwidth × delay {} KiB",
            duration_us(found.rtt_us),
            significant(product)
        ),
    )?;
    found.warnings().iter().try_for_each(|warning| wrapped(f, "  ", &format!("! {warning}")))
}

fn tables(f: &mut fmt::Formatter<'_>, found: &Findings) -> fmt::Result {
    let title = |first: &str| {
        format!(
            "\n{first:<NAME$}{:>8}{:>20}{:>18}{:>12}",
            "MB/s", "rounds", "CPU s/GB here", "server"
        )
    };
    writeln!(f, "{}", title("cipher"))?;
    for figures in &found.ciphers {
        let mark = match figures.name == found.ssh_cipher {
            true => " (ssh's own)",
            false => "",
        };
        row(f, &format!("{}{mark}", figures.name), figures)?;
    }
    if !found.macs.is_empty() {
        writeln!(f, "{}", title("MAC"))?;
        for figures in &found.macs {
            row(f, &figures.name, figures)?;
        }
    }
    writeln!(f, "{}", title("sessions at once"))?;
    for tried in &found.sessions {
        row(f, &tried.figures.name, &tried.figures)?;
    }
    row(f, "4 sessions over one connection", &found.shared)?;
    if let Some((text, noise)) = found.compressed_text.as_ref().zip(found.compressed_noise.as_ref())
    {
        writeln!(f, "{}", title("settings, best cipher"))?;
        row(f, "Compression=no", &found.plain)?;
        row(f, "Compression=yes, text", text)?;
        row(f, "Compression=yes, random data", noise)?;
        row(f, "IPQoS=none", &found.unmarked)?;
    }
    Ok(())
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, figures: &Figures) -> fmt::Result {
    if let Some(failure) = &figures.failure {
        let words = failure.lines().next().unwrap_or_default();
        return wrapped(f, "", &format!("{name}: failed: {words}"));
    }
    let mb = |bytes_per_s: f64| significant(bytes_per_s / 1e6);
    let cpu = |cpu: Option<f64>| cpu.map_or_else(|| "–".to_owned(), significant);
    let rounds = format!("{}–{}", mb(figures.slowest_bytes_per_s), mb(figures.fastest_bytes_per_s));
    writeln!(
        f,
        "{name:<NAME$}{:>8}{rounds:>20}{:>18}{:>12}",
        mb(figures.bytes_per_s),
        cpu(figures.client_cpu_s_per_gb),
        cpu(figures.server_cpu_s_per_gb)
    )
}

fn show(f: &mut fmt::Formatter<'_>, item: &Item) -> fmt::Result {
    writeln!(f, "  {}", item.setting)?;
    wrapped(f, "    ", &item.found)?;
    if !item.why.is_empty() {
        wrapped(f, "    ", &item.why)?;
    }
    // What is to be typed is never broken: it is to be copied.
    item.to_type.iter().try_for_each(|line| writeln!(f, "      {line}"))
}

/// A paragraph, broken at spaces.
fn wrapped(f: &mut fmt::Formatter<'_>, indent: &str, text: &str) -> fmt::Result {
    let mut line = String::from(indent);
    for word in text.split_whitespace() {
        let used = line.chars().count();
        if used > indent.len() && used + 1 + word.chars().count() > WIDTH {
            writeln!(f, "{line}")?;
            line = String::from(indent);
        }
        if line.len() > indent.len() {
            line.push(' ');
        }
        // A word that has no line of its own to fit into can only be cut.
        line.extend(word.chars().take(WIDTH - indent.len()));
    }
    writeln!(f, "{line}")
}
