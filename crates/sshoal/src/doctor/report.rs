//! The file for a bug report: the checks, versions, and the state of the mounts.
//!
//! It contains no keys, passwords or contents of files. With `--hide-names`, each name of a user, a
//! host or a path that is known here is replaced by a hash, the same for each place where it
//! occurs.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cli::{Problem, printable};
use control::seen::{self, SeenMount};
use serde::Serialize;

use super::{Check, SCHEMA, Target};
use crate::sources::Origin;

/// Names shorter than this are left: they would be found inside words.
const MIN_NAME_BYTES: usize = 3;

/// The file.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    program: &'static str,
    kernel: String,
    system: String,
    checks: &'a [Check],
    mounts: Vec<SeenMount>,
}

pub fn write(
    file: &Path,
    target: Option<&Target>,
    checks: &[Check],
    hidden: Option<&[String]>,
) -> Result<(), Problem> {
    let failed = |error: String| Problem::new(printable(file), error);
    let kernel = rustix::system::uname();
    let report = Report {
        schema: SCHEMA,
        program: concat!("sshoal ", env!("CARGO_PKG_VERSION")),
        kernel: format!("{:?} {:?}", kernel.release(), kernel.machine()),
        system: std::fs::read_to_string("/etc/os-release").unwrap_or_default(),
        checks,
        mounts: seen::everywhere().unwrap_or_default(),
    };
    let names = hidden.map(|found| [found, &names(target, &report.mounts)].concat());
    let names = names.unwrap_or_default();
    let text = cli::json(&report).map_err(|error| failed(error.to_string()))?;
    let text = hide(text, names);
    // Not over a file, and not readable for others.
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(file);
    let written = made.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| failed(error.to_string()))
}

/// The names of users, hosts and paths that are known here.
fn names(target: Option<&Target>, mounts: &[SeenMount]) -> Vec<String> {
    let mut names = Vec::new();
    for variable in ["USER", "LOGNAME", "HOME"] {
        names.extend(std::env::var(variable));
    }
    names.push(rustix::system::uname().nodename().to_string_lossy().into_owned());
    match target {
        Some(Target::Mount(place)) => names.push(printable(place)),
        Some(Target::Server(request)) => {
            for spec in &request.sources {
                let Origin::Hosts { gateways, directory } = &spec.origin else { continue };
                names.push(directory.escape_ascii().to_string());
                names.extend(gateways.iter().map(ToString::to_string));
            }
        }
        None => {}
    }
    for mount in mounts {
        names.extend([mount.mountpoint.clone(), mount.source.clone()]);
        let sources = mount.status.iter().flat_map(|status| &status.sources);
        names.extend(sources.flat_map(|source| &source.hosts).map(|host| host.host.clone()));
    }
    // `me@host:/dir` also occurs in parts.
    let parts = |name: String| {
        let parts: Vec<String> = name.split(['@', ':']).map(str::to_owned).collect();
        std::iter::once(name).chain(parts)
    };
    names.into_iter().flat_map(parts).collect()
}

/// `text` with each of `names` replaced by its hash, the longest first.
fn hide(mut text: String, mut names: Vec<String>) -> String {
    names.retain(|name| name.len() >= MIN_NAME_BYTES);
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    names.dedup();
    for name in names {
        let hash = blake3::hash(name.as_bytes()).to_hex();
        // As the text has it.
        let quoted = serde_json::to_string(&name).unwrap_or_default();
        text = text.replace(quoted.trim_matches('"'), &format!("name-{}", &hash[..8]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hidden_wherever_it_occurs() {
        let text = r#"{"source": "ann@host:/srv/x", "why": "host: no \"q\" there"}"#.to_owned();
        let names = ["ann@host:/srv/x", "ann", "host", "/srv/x", "\"q\"", "s"];
        let hidden = hide(text, names.map(str::to_owned).to_vec());
        for name in ["ann", "host", "/srv/x", "q\\\""] {
            assert!(!hidden.contains(name), "{name}: {hidden}");
        }
        assert!(hidden.contains("\"source\": \"name-"), "{hidden}");
    }
}
