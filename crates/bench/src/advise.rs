//! Which settings of ssh would be faster between two machines: cipher, number of sessions,
//! compression, IPQoS. Each with the figures behind it.
//!
//! It measures plain `ssh`, which all subjects over ssh have in common: streams of zeros into a
//! pipe. [`Findings`] are the measurements; [`Item`]s follow from them without any I/O.
//!
//! Nothing is changed on either machine. On a server at most two megabytes are written into the
//! run's directory, and removed.

mod findings;
mod items;
mod rates;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::corpus;
use crate::environment;
use crate::executor::Executor;
use crate::failure::Failure;
use crate::server::{Handshake, Server};
use crate::storage::script;
use crate::units::{counted, duration_us, significant};

pub use findings::{Findings, Path, SSH_WINDOW_BYTES, Sessions};
pub use rates::Figures;
use rates::{Timing, Trial, compare};

/// Columns of the terminal that text is wrapped for.
const WIDTH: usize = 100;

/// Numbers of connections that are tried. A server may refuse more than ten logins at once.
const CONNECTIONS: [u32; 4] = [1, 2, 4, 8];

/// Rounds of each trial. On a long link a round takes several seconds, and varies less.
const ROUNDS: usize = 5;
const ROUNDS_OF_LONG_LINKS: usize = 3;
const LONG_RTT_US: f64 = 20_000.0;

/// Text for compression: enough files that zlib's window of 32 KiB is passed many times.
const TEXT_FILES: u32 = 80;
const RANDOM_BYTES: u64 = 1 << 20;
const SEED: u64 = 1;

/// Names in the server's directory.
const TEXT: &str = "advise-text";
const RANDOM: &str = "advise-random";

/// Prints a file again and again, until the reader closes the pipe.
const REPEAT: &str = r#"while cat -- "$1"; do :; done"#;

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
) -> Result<Advice, Failure> {
    progress("reading the settings of both ends");
    let handshake = Handshake::of(server.ssh(None), executor)?;
    let found = settings(server, &handshake, executor)?;
    let usual = if found.rtt_us < LONG_RTT_US { ROUNDS } else { ROUNDS_OF_LONG_LINKS };
    let timing = Timing::of(Duration::from_secs_f64(found.rtt_us / 1e6), effort.window);
    let rounds = effort.rounds.unwrap_or(usual);
    let findings = Run { server, executor, progress, timing, rounds }.measure(&handshake, found)?;
    Ok(Advice { items: items::all(&findings), findings })
}

/// All that is read and not measured.
fn settings(
    server: &Server,
    handshake: &Handshake,
    executor: &Executor,
) -> Result<Findings, Failure> {
    let query = |arguments: &[OsString]| {
        let mut ssh = Command::new("ssh");
        ssh.arg("-G").args(arguments);
        let said = executor.succeed(ssh, QUERY_LIMIT)?.output.stdout;
        Ok::<_, Failure>(String::from_utf8_lossy(&said).into_owned())
    };
    let mut arguments = server.ssh_options(None);
    arguments.push(server.destination().into());
    let of_user = query(&arguments)?;
    let without_user = query(&["-F", "none", "localhost"].map(OsString::from))?;
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
        ipqos: value(&of_user, "ipqos").unwrap_or_default().escape_debug().to_string(),
        host: link.name,
        ..Findings::default()
    })
}

/// The default of sshoal: that of ssh, unless the user has chosen no ciphers, the processor has AES
/// and the server offers the cipher made for it.
fn sshoal_cipher(handshake: &Handshake, chosen: bool, has_aes: bool) -> String {
    let offered = handshake.ciphers.iter().any(|name| name == findings::AES_CIPHER);
    let fast = !chosen && has_aes && offered;
    if fast { findings::AES_CIPHER.to_owned() } else { handshake.cipher.clone() }
}

/// The measurements of one call of [`advise`].
struct Run<'a> {
    server: &'a Server,
    executor: &'a Executor,
    progress: &'a mut dyn FnMut(&str),
    timing: Timing,
    rounds: usize,
}

impl Run<'_> {
    fn measure(mut self, handshake: &Handshake, found: Findings) -> Result<Findings, Failure> {
        let mut ssh = Command::new("ssh");
        ssh.args(["-Q", "cipher"]);
        let known = self.executor.succeed(ssh, QUERY_LIMIT)?.output.stdout;
        let known = String::from_utf8_lossy(&known).into_owned();
        let common = known.lines().filter(|name| handshake.ciphers.iter().any(|it| it == name));
        let ciphers = self.ciphers(&common.collect::<Vec<_>>())?;
        let found = Findings { ciphers, ..found };
        let Some(best) = found.best_cipher().map(|best| best.name.clone()) else {
            let why = found.ciphers.iter().find_map(|figures| figures.failure.clone());
            let why = why.unwrap_or_else(|| "both ends have none in common".to_owned());
            return Err(Failure::failed(format!("no cipher works: {why}")));
        };
        let sessions = self.sessions(&best)?;
        let compresses = handshake.compression.iter().any(|name| name.starts_with("zlib"));
        self.options(&best, compresses, Findings { sessions, ..found })
    }

    fn compare(&self, trials: &[Trial<'_>]) -> Result<Vec<Figures>, Failure> {
        compare(self.server, self.executor, self.timing, self.rounds, trials)
    }

    fn ciphers(&mut self, names: &[&str]) -> Result<Vec<Figures>, Failure> {
        (self.progress)(&format!("measuring {} ciphers", names.len()));
        let trials: Vec<_> =
            names.iter().map(|name| zeros(self.server, name, name.to_string(), &[], 1)).collect();
        let mut figures = self.compare(&trials)?;
        figures.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
        Ok(figures)
    }

    fn sessions(&mut self, cipher: &str) -> Result<Vec<Sessions>, Failure> {
        (self.progress)("measuring several sessions at once");
        let name = |connections: u32| counted(connections.into(), "connection");
        let trials = CONNECTIONS.map(|n| zeros(self.server, cipher, name(n), &[], n));
        let figures = self.compare(&trials)?.into_iter().zip(CONNECTIONS);
        Ok(figures.map(|(figures, connections)| Sessions { connections, figures }).collect())
    }

    /// Compression and IPQoS, against the default of each.
    fn options(
        &mut self,
        cipher: &str,
        compresses: bool,
        found: Findings,
    ) -> Result<Findings, Failure> {
        (self.progress)("measuring compression and IPQoS");
        let storage = self.server.storage();
        let dir = sandbox::private_dir("sshoal-advise-")?;
        let mut trials = vec![
            zeros(self.server, cipher, "plain".to_owned(), &[], 1),
            zeros(self.server, cipher, "IPQoS=none".to_owned(), &["-o", "IPQoS=none"], 1),
        ];
        if compresses {
            storage.put(&text(dir.path())?, FilePath::new(TEXT))?;
            let random = corpus::file(dir.path(), RANDOM, RANDOM_BYTES, SEED)?;
            storage.put(&random, FilePath::new(RANDOM))?;
            trials.extend([TEXT, RANDOM].map(|file| compressed(self.server, cipher, file)));
        }
        let figures = self.compare(&trials);
        if compresses {
            for name in [TEXT, RANDOM] {
                // The whole directory is removed soon.
                let _ = storage.remove(FilePath::new(name));
            }
        }
        let mut figures = figures?.into_iter();
        Ok(Findings {
            plain: figures.next().unwrap_or_default(),
            unmarked: figures.next().unwrap_or_default(),
            compressed_text: figures.next(),
            compressed_random: figures.next(),
            ..found
        })
    }
}

/// Zeros without end, through some ssh commands at once. No cipher is faster for certain data.
fn zeros<'a>(
    server: &'a Server,
    cipher: &'a str,
    name: String,
    options: &'a [&'a str],
    streams: u32,
) -> Trial<'a> {
    let one = move || {
        let mut ssh = server.ssh(Some(cipher));
        // Options have precedence over the user's configuration.
        ssh.args(options).args(["-o", "Compression=no", "cat /dev/zero"]);
        ssh
    };
    Trial { name, commands: Box::new(move || (0..streams).map(|_| one()).collect()), windows: 1 }
}

/// A file of the server's directory without end, compressed.
fn compressed(server: &Server, cipher: &str, file: &str) -> Trial<'static> {
    let mut words = vec![OsString::from("ssh")];
    words.extend(server.ssh_options(Some(cipher)));
    words.extend(["-o".into(), "Compression=yes".into(), server.destination().into()]);
    let path = server.storage().root().join(file);
    let command = move || script::command(Some(&words), REPEAT, &[path.as_os_str()]);
    Trial { name: file.to_owned(), commands: Box::new(move || vec![command()]), windows: 3 }
}

/// The files of a generated tree in one file, which compresses as sources do.
fn text(dir: &FilePath) -> Result<PathBuf, Failure> {
    let tree = dir.join("tree");
    corpus::tree::make(&tree, TEXT_FILES, SEED)?;
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
        paragraph(f, "", &format!("{}; server: {}", found.host, found.server))?;
        let rtt = duration_us(found.rtt_us);
        let product = significant(found.product_bytes() / 1024.0);
        paragraph(f, "", &format!("round trip {rtt}; {wide}; bandwidth × delay {product} KiB"))?;
        for warning in found.warnings() {
            paragraph(f, "  ! ", &warning)?;
        }
        writeln!(f, "\n{}", figures_table(found))?;
        for verdict in [Verdict::Matters, Verdict::NotHere, Verdict::Unknown] {
            let mut items = self.items.iter().filter(|item| item.verdict == verdict).peekable();
            if items.peek().is_some() {
                writeln!(f, "\n{}", verdict.words().to_uppercase())?;
            } else if verdict == Verdict::Matters {
                writeln!(f, "\nNo setting would be faster here.")?;
            }
            for item in items {
                writeln!(f, "  {}", item.setting)?;
                paragraph(f, "    ", &item.found)?;
                paragraph(f, "    ", &item.why)?;
                // Command lines are not wrapped, so that they can be copied.
                item.to_type.iter().try_for_each(|line| writeln!(f, "      {line}"))?;
            }
        }
        Ok(())
    }
}

fn paragraph(f: &mut fmt::Formatter<'_>, indent: &str, text: &str) -> fmt::Result {
    let rest = " ".repeat(indent.len());
    let options = textwrap::Options::new(WIDTH).initial_indent(indent).subsequent_indent(&rest);
    textwrap::wrap(text, options).iter().try_for_each(|line| writeln!(f, "{line}"))
}

fn figures_table(found: &Findings) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(WIDTH as u16);
    table.set_header(["", "MB/s", "rounds", "CPU s/GB client", "server"]);
    let mut row = |name: String, figures: &Figures| {
        let mb = |bytes_per_s: f64| significant(bytes_per_s / 1e6);
        let cpu = |cpu: Option<f64>| cpu.map_or_else(|| "–".to_owned(), significant);
        let (slow, fast) = (figures.slowest_bytes_per_s, figures.fastest_bytes_per_s);
        match &figures.failure {
            Some(why) => {
                let why = why.lines().next().unwrap_or_default().escape_debug();
                table.add_row([name, "failed".to_owned(), why.to_string()])
            }
            None => table.add_row([
                name,
                mb(figures.bytes_per_s),
                format!("{}–{}", mb(slow), mb(fast)),
                cpu(figures.client_cpu_s_per_gb),
                cpu(figures.server_cpu_s_per_gb),
            ]),
        };
    };
    for figures in &found.ciphers {
        let default = if figures.name == found.ssh_cipher { " (default of ssh)" } else { "" };
        row(format!("{}{default}", figures.name), figures);
    }
    for tried in &found.sessions {
        row(tried.figures.name.clone(), &tried.figures);
    }
    if let Some((text, random)) =
        found.compressed_text.as_ref().zip(found.compressed_random.as_ref())
    {
        row("Compression=no".to_owned(), &found.plain);
        row("Compression=yes, text".to_owned(), text);
        row("Compression=yes, random data".to_owned(), random);
    }
    row("IPQoS=none".to_owned(), &found.unmarked);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests;
