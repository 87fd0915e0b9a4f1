//! Which settings of ssh would be faster between two machines: cipher, number of sessions,
//! compression. Each with the figures behind it.
//!
//! It measures plain `ssh`, which all subjects over ssh have in common: data without end into a
//! pipe. `Findings` are the measurements; the advice follows from them without any I/O.
//!
//! Nothing is changed on either machine. On a server at most a megabyte is written into the run's
//! directory, and removed.

mod items;
mod rates;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::corpus;
use crate::environment;
use crate::executor::Executor;
use crate::failure::{Failure, Result};
use crate::server::{Handshake, Server, query_ssh};
use crate::size::TreeShape;
use crate::units::counted;

use items::Findings;
use rates::{Timing, Trial, compare};

/// Numbers of connections that are tried. A server may refuse more than ten logins at once.
const CONNECTIONS: [u32; 4] = [1, 2, 4, 8];

/// From this round trip on three rounds do: a round takes several seconds, and varies less.
const LONG_RTT_US: f64 = 20_000.0;

/// Text for compression: enough files that zlib's window of 32 KiB is passed many times.
const TEXT_FILES: u32 = 80;
const SEED: u64 = 1;

/// Its name in the server's directory.
const TEXT: &str = "advise-text";

/// Measures against a server; the advice, for a terminal. It takes about a minute, on a long link
/// some minutes; less if it is `quick`, when only great differences show. `progress` receives a
/// line for each part.
///
/// # Errors
/// In ssh's words when it does not work; also when the run was interrupted.
pub fn advise(
    server: &Server,
    executor: &Executor,
    progress: &mut dyn FnMut(&str),
    quick: bool,
) -> Result<String> {
    Ok(items::text(&findings(server, executor, progress, quick)?))
}

fn findings(
    server: &Server,
    executor: &Executor,
    progress: &mut dyn FnMut(&str),
    quick: bool,
) -> Result<Findings> {
    progress("reading the settings of both ends");
    let handshake = Handshake::of(server.ssh(None), executor)?;
    let found = settings(server, &handshake, executor)?;
    let rounds = if quick || found.rtt_us >= LONG_RTT_US { 3 } else { 5 };
    let window = Duration::from_millis(if quick { 100 } else { 500 });
    let timing = Timing::of(Duration::from_secs_f64(found.rtt_us / 1e6), window);
    let measure = |trials: &[Trial]| compare(server, executor, timing, rounds, trials);
    let trial = |name: &str, cipher: &str, connections| Trial {
        name: name.to_owned(),
        cipher: cipher.to_owned(),
        connections,
        text: None,
    };

    let common = common_ciphers(&handshake, executor)?;
    progress(&format!("measuring {} ciphers", common.len()));
    let trials: Vec<_> = common.iter().map(|name| trial(name, name, 1)).collect();
    let mut ciphers = measure(&trials)?;
    ciphers.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    let found = Findings { ciphers, ..found };
    let Some(best) = found.best_cipher().map(|best| best.name.clone()) else {
        let why = found.ciphers.iter().find_map(|figures| figures.failure.clone());
        let why = why.unwrap_or_else(|| "both ends have none in common".to_owned());
        return Err(Failure::failed(format!("no cipher works: {why}")));
    };

    progress("measuring several sessions at once, and compression");
    let several = |n: u32| trial(&counted(n.into(), "connection"), &best, n);
    let mut trials = Vec::from(CONNECTIONS.map(several));
    let compresses = handshake.compression.iter().any(|name| name.starts_with("zlib"));
    if compresses {
        let dir = sandbox::private_dir("sshoal-advise-")?;
        server.storage().put(&text(dir.path())?, Path::new(TEXT))?;
        let text = Some(server.storage().root().join(TEXT));
        trials.push(Trial { text, ..trial("Compression=yes, text", &best, 1) });
    }
    let measured = measure(&trials);
    if compresses {
        // The whole directory is removed soon.
        let _ = server.storage().remove(Path::new(TEXT));
    }
    let mut sessions = measured?;
    let compressed = sessions.drain(CONNECTIONS.len()..).next();
    Ok(Findings { sessions, compressed, ..found })
}

/// All that is read and not measured.
fn settings(server: &Server, handshake: &Handshake, executor: &Executor) -> Result<Findings> {
    let of_user = server.settings(executor)?;
    let without_user = query_ssh(&["-G", "-F", "none", "localhost"], executor)?;
    // Lines `keyword value`, keywords in small letters (ssh(1), `-G`).
    let value = |text: &str, keyword: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == keyword).map(|(_, value)| value.to_owned())
    };
    let link = server.link_report();
    let chosen = value(&of_user, "ciphers") != value(&without_user, "ciphers");
    let has_aes = environment::cpu_flags().iter().any(|flag| flag == "aes");
    Ok(Findings {
        server: handshake.version.clone(),
        is_network: !server.is_private(),
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
    let known = query_ssh(&["-Q", "cipher"], executor)?;
    let common = known.lines().filter(|name| handshake.ciphers.iter().any(|it| it == name));
    Ok(common.map(str::to_owned).collect())
}

/// The files of a generated tree in one file, which compresses as sources do.
fn text(dir: &Path) -> Result<PathBuf> {
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

#[cfg(test)]
mod tests;
