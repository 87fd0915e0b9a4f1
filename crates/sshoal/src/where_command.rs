//! `sshoal where`: the place of a path of a mount at its host, as scp(1) and rsync(1) take it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cli::{Document, EXIT_FAILURE, EXIT_OK, Problem, printable};
use control::place::Place;
use serde::Serialize;

use control::inside;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Paths in mounts of sshoal; the last name need not exist.
    #[arg(required = true, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// End each line with a NUL instead of a newline.
    #[arg(short = '0')]
    nul: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "nul")]
    json: bool,
}

/// One path, with all texts escaped.
#[derive(Debug, Serialize)]
struct Found {
    path: String,
    place: String,
    source: String,
    user: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    remote_path: String,
}

/// Prints the places. The exit code is 1 if a path has none.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut code = EXIT_OK;
    let mut found = Vec::new();
    for path in &arguments.paths {
        match place(path) {
            Ok(place) => found.push((path, place)),
            Err(problem) => {
                eprintln!("sshoal: {problem}");
                code = EXIT_FAILURE;
            }
        }
    }
    if arguments.json {
        let paths: Vec<Found> = found.iter().map(|(path, place)| described(path, place)).collect();
        let content = BTreeMap::from([("paths", paths)]);
        cli::print(&cli::json(&Document { schema: 1, content })?)?;
        return Ok(ExitCode::from(code));
    }
    let is_terminal = io::stdout().is_terminal();
    let mut out = Vec::new();
    for (_, place) in &found {
        out.extend(line(place, is_terminal));
        out.push(if arguments.nul { 0 } else { b'\n' });
    }
    cli::print_bytes(&out)?;
    Ok(ExitCode::from(code))
}

fn place(path: &Path) -> Result<Place, Problem> {
    let resolved = inside::resolve(path)?;
    inside::find(&resolved, path)?.place()
}

fn line(place: &Place, is_terminal: bool) -> Vec<u8> {
    let text = written(place);
    if is_terminal { base::printable(&text).into_bytes() } else { text }
}

/// `[user@]host:path`; the path alone for a local directory.
fn written(place: &Place) -> Vec<u8> {
    let Some(host) = &place.host else { return place.path.0.clone() };
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let name = match host.name.contains(':') {
        true => format!("[{}]", host.name),
        false => host.name.clone(),
    };
    [format!("{user}{name}:").as_bytes(), &place.path.0].concat()
}

fn described(path: &Path, place: &Place) -> Found {
    let host = place.host.as_ref();
    Found {
        path: printable(path),
        place: base::printable(&written(place)),
        source: place.source.clone(),
        user: host.and_then(|host| host.user.clone()),
        host: host.map(|host| host.name.clone()),
        port: host.and_then(|host| host.port),
        remote_path: base::printable(&place.path.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::place::{Bytes, Host};

    #[test]
    fn places_are_written_as_scp_takes_them() {
        let host = |user: Option<&str>, name: &str| {
            let (user, name) = (user.map(str::to_owned), name.to_owned());
            Some(Host { user, name, port: None, ssh: None })
        };
        for (host, text) in
            [(host(None, "h"), "h:/a\n"), (host(Some("u"), "::1"), "u@[::1]:/a\n"), (None, "/a\n")]
        {
            let place = Place { source: "s".into(), path: Bytes(b"/a\n".to_vec()), host };
            assert_eq!(line(&place, false), text.as_bytes());
            assert_eq!(line(&place, true), text.replace('\n', "\\n").as_bytes());
        }
    }
}
