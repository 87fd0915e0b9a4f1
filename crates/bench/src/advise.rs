//! Which settings of ssh would be faster between two machines: cipher, number of sessions,
//! compression. Each with the figures behind it.
//!
//! It measures plain `ssh`, which all subjects over ssh have in common: streams of zeros into a
//! pipe. [`Findings`] are the measurements; [`Item`]s follow from them without any I/O.
//!
//! Nothing is changed on either machine. On a server at most a megabyte is written into the run's
//! directory, and removed.

mod items;
mod rates;

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

pub use items::{Findings, Item, Path, Verdict};
pub use rates::Figures;

use crate::corpus;
use crate::environment;
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::report::{Table, paragraph, row, table};
use crate::server::{Handshake, Server};
use crate::size::TreeShape;
use crate::storage::script;
use crate::units::{counted, duration_us, significant};

use rates::{Timing, Trial, compare};

/// Numbers of connections that are tried. A server may refuse more than ten logins at once.
const CONNECTIONS: [u32; 4] = [1, 2, 4, 8];

/// Rounds of each trial. On a long link a round takes several seconds, and varies less.
const ROUNDS: usize = 5;
const ROUNDS_OF_LONG_LINKS: usize = 3;
const LONG_RTT_US: f64 = 20_000.0;

/// Text for compression: enough files that zlib's window of 32 KiB is passed many times.
const TEXT_FILES: u32 = 80;
const SEED: u64 = 1;

/// Its name in the server's directory.
const TEXT: &str = "advise-text";

/// Print a file again and again, or zeros, until the reader closes the pipe.
const REPEAT: &str = r#"while cat -- "$1"; do :; done"#;
const ZEROS: &str = "exec cat /dev/zero";

/// `ssh -G` and `ssh -Q` only read files.
const QUERY_LIMIT: Duration = Duration::from_secs(30);

/// Findings and the advice that follows from them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The measurements.
    pub findings: Findings,
    /// One for each setting, in the order in which they are shown.
    pub items: Vec<Item>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of each trial; `None` for the number that suits the link.
    rounds: Option<usize>,
    /// Length of a sample without any round trip.
    window: Duration,
}

impl Effort {
    /// For advice to rely on.
    pub const FULL: Effort = Effort { rounds: None, window: Duration::from_millis(500) };

    /// For a first look: only great differences show.
    pub const QUICK: Effort = Effort { rounds: Some(3), window: Duration::from_millis(100) };
}

/// Measures against a server, and derives the advice. [`Effort::FULL`] takes about a minute, on a
/// long link some minutes. `progress` receives a line for each part.
///
/// # Errors
/// In ssh's words when it does not work; also when the run was interrupted.
pub fn advise(
    server: &Server,
    executor: &Executor,
    progress: &mut dyn FnMut(&str),
    effort: Effort,
) -> Result<Advice> {
    progress("reading the settings of both ends");
    let handshake = Handshake::of(server.ssh(None), executor)?;
    let found = settings(server, &handshake, executor)?;
    let usual = if found.rtt_us < LONG_RTT_US { ROUNDS } else { ROUNDS_OF_LONG_LINKS };
    let timing = Timing::of(Duration::from_secs_f64(found.rtt_us / 1e6), effort.window);
    let rounds = effort.rounds.unwrap_or(usual);
    let measure = |trials: &[Trial]| compare(server, executor, timing, rounds, trials);

    let common = common_ciphers(&handshake, executor)?;
    progress(&format!("measuring {} ciphers", common.len()));
    let trials: Vec<_> = common.iter().map(|name| zeros(server, name, name.clone(), 1)).collect();
    let mut ciphers = measure(&trials)?;
    ciphers.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    let found = Findings { ciphers, ..found };
    let Some(best) = found.best_cipher().map(|best| best.name.clone()) else {
        let why = found.ciphers.iter().find_map(|figures| figures.failure.clone());
        let why = why.unwrap_or_else(|| "both ends have none in common".to_owned());
        return Err(Failure::failed(format!("no cipher works: {why}")));
    };

    progress("measuring several sessions at once, and compression");
    let name = |connections: u32| counted(connections.into(), "connection");
    let mut trials = Vec::from(CONNECTIONS.map(|n| zeros(server, &best, name(n), n)));
    let compresses = handshake.compression.iter().any(|name| name.starts_with("zlib"));
    if compresses {
        let dir = sandbox::private_dir("sshoal-advise-")?;
        server.storage().put(&text(dir.path())?, FilePath::new(TEXT))?;
        trials.push(compressed(server, &best));
    }
    let measured = measure(&trials);
    if compresses {
        // The whole directory is removed soon.
        let _ = server.storage().remove(FilePath::new(TEXT));
    }
    let mut sessions = measured?;
    let compressed = sessions.drain(CONNECTIONS.len()..).next();
    let findings = Findings { sessions, compressed, ..found };
    Ok(Advice { items: items::all(&findings), findings })
}

/// All that is read and not measured.
fn settings(server: &Server, handshake: &Handshake, executor: &Executor) -> Result<Findings> {
    let of_user = server.settings(executor)?;
    let mut ssh = Command::new("ssh");
    ssh.args(["-G", "-F", "none", "localhost"]);
    let without_user = executor.succeed(ssh, QUERY_LIMIT)?.output.stdout;
    let without_user = String::from_utf8_lossy(&without_user).into_owned();
    // Lines `keyword value`, keywords in small letters (ssh(1), `-G`).
    let value = |text: &str, keyword: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == keyword).map(|(_, value)| value.to_owned())
    };
    let link = server.link_report();
    let is_plain = link.asked_rtt_us.is_none() && link.asked_bytes_per_s.is_none();
    let chosen = value(&of_user, "ciphers") != value(&without_user, "ciphers");
    let has_aes = environment::cpu_flags().iter().any(|flag| flag == "aes");
    Ok(Findings {
        server: handshake.version.clone(),
        path: match (server.is_private(), is_plain) {
            (false, _) => Path::Network,
            (true, true) => Path::Loopback,
            (true, false) => Path::Simulated,
        },
        rtt_us: link.measured_rtt_us.unwrap_or(0.0),
        link_bytes_per_s: link.measured_bytes_per_s.filter(|_| server.is_private()),
        sshoal_cipher: sshoal_cipher(handshake, chosen, has_aes),
        ssh_cipher: handshake.cipher.clone(),
        has_compression: value(&of_user, "compression").as_deref() == Some("yes"),
        host: link.name,
        ..Findings::default()
    })
}

/// The default of sshoal: that of ssh, unless the user has chosen no ciphers, the processor has AES
/// and the server offers the cipher made for it.
fn sshoal_cipher(handshake: &Handshake, chosen: bool, has_aes: bool) -> String {
    let offered = handshake.ciphers.iter().any(|name| name == items::AES_CIPHER);
    let fast = !chosen && has_aes && offered;
    if fast { items::AES_CIPHER.to_owned() } else { handshake.cipher.clone() }
}

/// The ciphers that both ends have, in the client's order.
fn common_ciphers(handshake: &Handshake, executor: &Executor) -> Result<Vec<String>> {
    let mut ssh = Command::new("ssh");
    ssh.args(["-Q", "cipher"]);
    let known = executor.succeed(ssh, QUERY_LIMIT)?.output.stdout;
    let known = String::from_utf8_lossy(&known).into_owned();
    let common = known.lines().filter(|name| handshake.ciphers.iter().any(|it| it == name));
    Ok(common.map(str::to_owned).collect())
}

/// An ssh to the server with these settings, which have precedence over the user's.
fn ssh(server: &Server, cipher: &str, compression: &str) -> Vec<OsString> {
    let mut words = vec![OsString::from("ssh")];
    words.extend(server.ssh_options(Some(cipher)));
    words.extend(["-o".into(), format!("Compression={compression}").into()]);
    words.push(server.destination().into());
    words
}

/// Zeros without end, through some sessions at once. No cipher is faster for certain data.
fn zeros(server: &Server, cipher: &str, name: String, streams: u32) -> Trial {
    let words = ssh(server, cipher, "no");
    let command = Box::new(move || script::command(Some(&words), ZEROS, &[]));
    Trial { name, command, streams, windows: 1 }
}

/// The text in the server's directory without end, compressed.
fn compressed(server: &Server, cipher: &str) -> Trial {
    let (words, path) = (ssh(server, cipher, "yes"), server.storage().root().join(TEXT));
    let command = Box::new(move || script::command(Some(&words), REPEAT, &[path.as_os_str()]));
    Trial { name: "Compression=yes, text".to_owned(), command, streams: 1, windows: 3 }
}

/// The files of a generated tree in one file, which compresses as sources do.
fn text(dir: &FilePath) -> Result<PathBuf> {
    let tree = dir.join("tree");
    corpus::tree::make(&tree, TEXT_FILES, TreeShape::Sources, SEED)?;
    let mut whole = Vec::new();
    for file in corpus::tree::files(&tree)? {
        whole.extend(fs::read(file)?);
    }
    let path = dir.join(TEXT);
    fs::write(&path, whole)?;
    Ok(path)
}

impl fmt::Display for Advice {
    /// For a terminal of 100 columns; what is to be done comes first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = &self.findings;
        let wide = match found.link_bytes_per_s {
            Some(link) => format!("TCP rate {}", items::link_rate(link)),
            None => format!("ssh rate {}", items::link_rate(found.wide_bytes_per_s())),
        };
        let rtt = duration_us(found.rtt_us);
        let product = significant(found.product_bytes() / 1024.0);
        let mut text = String::new();
        paragraph(&mut text, "", &format!("{}; server: {}", found.host, found.server));
        let facts = format!("round trip {rtt}; {wide}; bandwidth × delay {product} KiB");
        paragraph(&mut text, "", &facts);
        if found.path != Path::Network {
            paragraph(&mut text, "  ! ", SHARED_PROCESSORS);
        }
        table(&mut text, &figures_table(found));
        for verdict in [Verdict::Matters, Verdict::NotHere, Verdict::Unknown] {
            let mut items = self.items.iter().filter(|item| item.verdict == verdict).peekable();
            if items.peek().is_some() {
                writeln!(text, "\n{}", verdict.words().to_uppercase())?;
            } else if verdict == Verdict::Matters {
                writeln!(text, "\nNo setting would be faster here.")?;
            }
            for item in items {
                writeln!(text, "  {}", item.setting)?;
                paragraph(&mut text, "    ", &item.found);
                paragraph(&mut text, "    ", &item.why);
                // Command lines are not wrapped, so that they can be copied.
                item.to_type.iter().try_for_each(|line| writeln!(text, "      {line}"))?;
            }
        }
        f.write_str(&text)
    }
}

const SHARED_PROCESSORS: &str = "Client and server share this machine's processors. With a real \
    server (--host) ciphers are faster, and several sessions gain more.";

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

#[cfg(test)]
mod tests;
