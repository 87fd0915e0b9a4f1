//! The file for a bug report: the checks, versions, and the state of the mounts.
//!
//! It contains no keys, passwords or contents of files. With `--hide-names`, each name of a user, a
//! host or a path that is known here, and each address, is replaced by a hash, the same for each
//! place where it occurs. Keys of the document stay.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cli::{OrProblem, Problem, printable};
use control::seen::{self, SeenMount};
use serde::Serialize;
use serde_json::Value;

use super::{Check, SCHEMA, Target};
use crate::sources::Origin;
use crate::stack::disk;

/// Names shorter than this are left: they would be found inside words.
const MIN_NAME_BYTES: usize = 3;

/// Parts of sources that are no names.
const NOT_NAMES: [&str; 2] = ["local", "ssh"];

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

/// Writes the file. With `hidden`, names are hidden, also these.
pub fn write(
    file: &Path,
    target: Option<&Target>,
    checks: &[Check],
    hidden: Option<&[String]>,
) -> Result<(), Problem> {
    let kernel = rustix::system::uname();
    let report = Report {
        schema: SCHEMA,
        program: concat!("sshoal ", env!("CARGO_PKG_VERSION")),
        kernel: format!("{:?} {:?}", kernel.release(), kernel.machine()),
        system: std::fs::read_to_string("/etc/os-release").unwrap_or_default(),
        checks,
        mounts: seen::everywhere().unwrap_or_default(),
    };
    let text = match hidden {
        None => cli::json(&report),
        Some(found) => {
            let names = [found, &known(target), &of_mounts(&report.mounts)].concat();
            hide(&report, names).and_then(|hidden| cli::json(&hidden))
        }
    };
    let text = text.or_problem(printable(file))?;
    // Not over a file, and not readable for others.
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(file);
    let written = made.and_then(|mut file| file.write_all(text.as_bytes()));
    written.or_problem(printable(file))
}

/// Fails if [`write()`] would at once: a report takes the place of no file.
pub fn may_create(file: &Path) -> Result<(), Problem> {
    match file.symlink_metadata() {
        Ok(_) => Err(Problem::new(printable(file), base::Errno::EEXIST.to_string())),
        Err(_) => Ok(()),
    }
}

/// The names of this machine, its user, and what is checked.
fn known(target: Option<&Target>) -> Vec<String> {
    let mut names = Vec::new();
    for variable in ["USER", "LOGNAME", "HOME"] {
        names.extend(std::env::var(variable));
    }
    names.push(rustix::system::uname().nodename().to_string_lossy().into_owned());
    names.extend(disk::default_dir().ok().map(printable));
    match target {
        Some(Target::Mount(place)) => names.push(printable(place)),
        Some(Target::Server(request)) => {
            for spec in &request.sources {
                names.push(spec.shown());
                match &spec.origin {
                    Origin::Hosts { gateways, directory } => {
                        // Messages have one form or the other.
                        names.push(directory.escape_ascii().to_string());
                        names.push(base::printable(directory));
                        names.extend(gateways.iter().map(ToString::to_string));
                    }
                    Origin::Local(path) => names.push(printable(path)),
                }
            }
        }
        None => {}
    }
    names
}

/// The names in the state of mounts. The mount table may have only the name of a mount, or all
/// sources as one text.
fn of_mounts(mounts: &[SeenMount]) -> Vec<String> {
    let mut names = Vec::new();
    for mount in mounts {
        names.extend([mount.mountpoint.clone(), mount.source.clone()]);
        let Some(status) = &mount.status else { continue };
        names.extend(status.disk.iter().map(|disk| disk.dir.clone()));
        for source in &status.sources {
            names.extend([source.source.clone(), source.place.clone()]);
            names.extend(source.hosts.iter().map(|host| host.host.clone()));
        }
    }
    names
}

/// The report with all `names` and addresses in its texts replaced.
fn hide(report: &impl Serialize, names: Vec<String>) -> anyhow::Result<Value> {
    // `P=me@host:/dir` and `sshoal#work` also occur in parts.
    let parts = |name: String| {
        let plain = name.strip_prefix("sshoal#").unwrap_or(&name);
        let parts = plain.split(['@', ':', '=', ',', ' ', '[', ']']);
        let parts = parts.map(|part| part.strip_prefix("//").unwrap_or(part));
        let parts: Vec<String> = parts.map(str::to_owned).collect();
        std::iter::once(name).chain(parts)
    };
    let mut names: Vec<String> = names.into_iter().flat_map(parts).collect();
    names.retain(|name| name.len() >= MIN_NAME_BYTES && !NOT_NAMES.contains(&&**name));
    // The longest first, since it may contain others.
    names.sort_by(|one, other| (other.len(), one).cmp(&(one.len(), other)));
    names.dedup();
    let mut report = serde_json::to_value(report)?;
    hide_in(&mut report, &names);
    Ok(report)
}

fn hide_in(value: &mut Value, names: &[String]) {
    match value {
        Value::String(text) => {
            for name in names {
                *text = text.replace(name, &hash(name));
            }
            *text = without_addresses(text);
        }
        Value::Array(values) => values.iter_mut().for_each(|value| hide_in(value, names)),
        Value::Object(fields) => fields.values_mut().for_each(|value| hide_in(value, names)),
        _ => {}
    }
}

/// `text` with each address of the network replaced by its hash. A port stays.
fn without_addresses(text: &str) -> String {
    let is_outside = |char: char| !(char.is_alphanumeric() || "_.:%".contains(char));
    let hidden = |word: &str| {
        // What ends a clause may follow, and the zone of an address.
        let plain = word.trim_end_matches([':', '.']).split('%').next().unwrap_or_default();
        let is_address = plain.parse::<IpAddr>().is_ok();
        let with_port = || {
            let (address, _) = plain.rsplit_once(':')?;
            address.parse::<Ipv4Addr>().is_ok().then_some(address)
        };
        match is_address.then_some(plain).or_else(with_port) {
            Some(address) => word.replacen(address, &hash(address), 1),
            None => word.to_owned(),
        }
    };
    let piece = |piece: &str| {
        let word = piece.trim_end_matches(is_outside);
        hidden(word) + &piece[word.len()..]
    };
    text.split_inclusive(is_outside).map(piece).collect()
}

fn hash(name: &str) -> String {
    format!("name-{}", &blake3::hash(name.as_bytes()).to_hex()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::seen::Daemon;
    use control::status::{DiskStatus, HostStatus, MountStatus, SourceStatus};

    fn hidden(texts: &[&str], names: &[&str]) -> Vec<String> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        serde_json::from_value(hide(&texts, names).unwrap()).unwrap()
    }

    #[test]
    fn a_name_is_hidden_wherever_it_occurs() {
        let texts = ["ann@host:/srv/x", "ssh: host: no \"q\" there, ann", "sshoal 1.0, 'work'"];
        let names = ["ann@host:/srv/x", "ssh://host:22/", "\"q\"", "s", "sshoal#work"];
        let hidden = hidden(&texts, &names);
        for name in ["ann", "host", "/srv/x", "q\"", "work"] {
            assert!(!hidden.concat().contains(name), "{name}: {hidden:?}");
        }
        assert!(hidden[0].starts_with("name-"), "{hidden:?}");
        assert!(hidden[1].starts_with("ssh: name-"), "{hidden:?}");
        assert!(hidden[2].starts_with("sshoal 1.0, 'name-"), "{hidden:?}");
    }

    #[test]
    fn an_address_is_hidden_and_what_looks_like_one_is_not() {
        let addresses = [
            "10.1.2.3",
            "connect to host 10.1.2.3 port 22: Connection refused",
            "10.1.2.3:4711: Connection refused",
            "TLS 1.3 to [2001:db8::7]:4711",
            "fe80::7%eth0: No route to host.",
            "2001:db8::7.",
        ];
        for (text, hidden) in addresses.iter().zip(hidden(&addresses, &[])) {
            assert!(hidden.contains("name-"), "{hidden}");
            assert!(!["10.1.2.3", "db8", "fe80"].iter().any(|it| hidden.contains(it)), "{hidden}");
            assert_eq!(text.contains("4711"), hidden.contains("4711"), "{hidden}");
        }
        let others = ["6.18.3-amd64, 1.2.3", "12:30:45: std::io", "::"];
        assert_eq!(hidden(&others, &[]), others);
    }

    /// A bug report is read by everybody.
    #[test]
    fn no_name_of_a_mount_is_left() {
        let host = |name: &str| HostStatus {
            host: name.into(),
            direct: Some("10.1.2.3:4711".into()),
            why: Some(format!("ssh: connect to host {name} (10.1.2.3) port 22: timed out")),
            ..HostStatus::default()
        };
        let source = |text: &str, place: &str, name: &str| SourceStatus {
            source: text.into(),
            place: place.into(),
            hosts: vec![host(name)],
            ..SourceStatus::default()
        };
        let mount = |table: &str, sources: Vec<SourceStatus>| SeenMount {
            mountpoint: "/home/ann/acme".into(),
            source: table.into(),
            owner: Some(1000),
            daemon: Daemon::Answers,
            pid: Some(77),
            unmounted: None,
            why: None,
            status: Some(Box::new(MountStatus {
                sources,
                disk: Some(DiskStatus { dir: "/big/ann".into(), ..DiskStatus::default() }),
                ..MountStatus::default()
            })),
        };
        let mounts = [
            // A mount of the configuration file, and several sources.
            mount("work", vec![source("me@gate:/srv/customers/acme", "", "me@gate")]),
            mount(
                "alpha:/data/one P/Q=beta:/data/two",
                vec![
                    source("alpha:/data/one", "", "alpha"),
                    source("P/Q=beta:/data/two", "P/Q", "beta"),
                ],
            ),
        ];
        let value = hide(&mounts, of_mounts(&mounts)).unwrap();
        let text = value.to_string();
        for name in ["work", "gate", "customers", "alpha", "beta", "/data", "P/Q", "ann", "10.1"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        // The keys are there, also one that is the name of a user or host.
        let named = hide(&mounts, vec!["source".into(), "host".into()]).unwrap();
        assert!(named[0]["status"]["sources"][0]["hosts"][0]["host"].is_string(), "{named}");
    }
}
