//! `sshoal status`: the state of mounts, as their daemons report it.
//!
//! The mounts are read from the kernel's mount table; each daemon is queried over its
//! [control socket](control). No mounted file system is accessed, so this also reports a mount that
//! hangs, or whose daemon is dead.

pub mod gather;
mod text;

pub use text::branch_list;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use cli::{EXIT_FAILURE, EXIT_OK, Problem, printable};
use control::client::{self, Silence};
use control::record;
use control::status::MountStatus;
use mountinfo::Mount;
use rustix::process::geteuid;
use serde::Serialize;

/// Daemons queried in parallel: one thread each, most of which only wait.
const PARALLEL_QUERIES: usize = 32;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The mount point; if omitted, all mounts of the user (as root, of all users).
    mountpoint: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the state of the mounts. The exit code is 1 if a daemon did not answer.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mounts = match &arguments.mountpoint {
        Some(mountpoint) => vec![client::mount_at(mountpoint)?],
        None => all().map_err(|error| Problem::new("mount table", error.to_string()))?,
    };
    let seen = look(&mounts);
    let answers = seen.iter().all(|mount| mount.daemon == Daemon::Answers);
    if arguments.json {
        cli::print(&json(seen)?)?;
    } else if seen.is_empty() {
        eprintln!("sshoal: nothing is mounted");
    } else {
        cli::print(&text::render(&seen))?;
    }
    Ok(ExitCode::from(if answers { EXIT_OK } else { EXIT_FAILURE }))
}

/// The state of all mounts that this user may query.
pub fn seen() -> io::Result<Vec<SeenMount>> {
    Ok(look(&all()?))
}

/// The state of the mount at `mountpoint`.
pub fn seen_at(mountpoint: &Path) -> Result<SeenMount, Problem> {
    Ok(look_at(&client::mount_at(mountpoint)?))
}

/// All mounts that this user may query.
pub fn all() -> io::Result<Vec<Mount>> {
    let me = geteuid().as_raw();
    let mine = |mount: &Mount| me == 0 || mount.owner == Some(me);
    let is_ours =
        |mount: &Mount| mountinfo::is_fuse(&mount.kind) && mine(mount) && record::is_ours(mount);
    let mut mounts = mountinfo::all()?;
    mounts.retain(is_ours);
    // The daemon of an unmounted file system may still run: it writes the remaining data, or the
    // file system is mounted in another mount namespace.
    mounts.extend(record::served());
    // A file system may be mounted at several places.
    let mut devices = HashSet::new();
    mounts.retain(|mount| devices.insert(mount.device));
    Ok(mounts)
}

fn look(mounts: &[Mount]) -> Vec<SeenMount> {
    let mut seen = Vec::with_capacity(mounts.len());
    for some in mounts.chunks(PARALLEL_QUERIES) {
        thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|mount| scope.spawn(|| look_at(mount))).collect();
            seen.extend(asked.into_iter().filter_map(|asked| asked.join().ok()));
        });
    }
    seen
}

/// Why a mount has a daemon but is not in the mount table; `None` if it is in the table.
fn unmounted(mount: &Mount) -> Option<String> {
    if mountinfo::all().ok()?.iter().any(|it| it.device == mount.device) {
        return None;
    }
    Some(match mountinfo::elsewhere(mount) {
        Some(pid) => format!("not in this mount namespace, but in that of process {pid}"),
        None => "unmounted; its daemon is ending".to_owned(),
    })
}

/// The state of one mount, within the deadline of the control socket.
fn look_at(mount: &Mount) -> SeenMount {
    let mut pid = None;
    let told = client::find(mount).and_then(|found| {
        pid = found.pid();
        client::status(&found)
    });
    let daemon = match &told {
        Ok(_) => Daemon::Answers,
        Err(Silence::Hangs) => Daemon::Hangs,
        Err(Silence::NoRecord | Silence::Ended) => Daemon::Dead,
        Err(Silence::Foreign(_)) => Daemon::NotAllowed,
        Err(_) => Daemon::Mute,
    };
    SeenMount {
        mountpoint: printable(&mount.mountpoint),
        source: printable(&mount.source),
        owner: mount.owner,
        daemon,
        pid,
        unmounted: unmounted(mount),
        why: told.as_ref().err().map(|why| printable(why.to_string())),
        status: told.ok(),
    }
}

fn json(mounts: Vec<SeenMount>) -> anyhow::Result<String> {
    cli::json(&Document { schema: SCHEMA, mounts })
}

/// A mount, with or without an answer of its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeenMount {
    /// The mount point, escaped.
    pub mountpoint: String,
    /// The source in the mount table, escaped.
    pub source: String,
    /// The user who mounted it.
    pub owner: Option<u32>,
    /// The result of querying the daemon.
    pub daemon: Daemon,
    /// Process id of the daemon, from its record.
    pub pid: Option<u32>,
    /// Why a daemon runs although nothing is mounted here, escaped; absent if it is mounted.
    pub unmounted: Option<String>,
    /// The reason, if the daemon did not answer.
    pub why: Option<String>,
    /// The status, if the daemon answered.
    pub status: Option<Box<MountStatus>>,
}

/// The result of querying a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Daemon {
    /// It answered.
    Answers,
    /// It runs but does not answer.
    Hangs,
    /// It has ended, or cannot be found.
    Dead,
    /// It runs but cannot be queried: its version has no status, or another protocol.
    Mute,
    /// It belongs to another user.
    NotAllowed,
}

/// The output of `sshoal status --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The mounts.
    pub mounts: Vec<SeenMount>,
}

/// Incremented when a field changes its name, its meaning or its unit.
pub const SCHEMA: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use control::status::{DiskStatus, HostStatus, SourceStatus};
    use mountinfo::Device;

    fn seen() -> SeenMount {
        let hosts = vec![HostStatus { host: "\u{9b}".into(), ..HostStatus::default() }];
        let source = SourceStatus { source: "a:/x".into(), hosts, ..SourceStatus::default() };
        SeenMount {
            mountpoint: "/mnt".into(),
            source: "a:/x".into(),
            owner: Some(7),
            daemon: Daemon::Answers,
            pid: Some(1),
            unmounted: None,
            why: None,
            status: Some(Box::new(MountStatus {
                sources: vec![source],
                disk: Some(DiskStatus::default()),
                ..MountStatus::default()
            })),
        }
    }

    /// Other programs read this: a change of these fields needs a new schema number.
    #[test]
    fn the_json_has_the_fields_that_it_had() {
        let told: serde_json::Value = serde_json::from_str(&json(vec![seen()]).unwrap()).unwrap();
        let keys = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        let sorted = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(told["schema"], 1);
        let mount = &told["mounts"][0];
        assert_eq!(keys(mount), sorted("mountpoint source owner daemon pid unmounted why status"));
        assert_eq!(mount["daemon"], "answers");
        let status = &mount["status"];
        assert_eq!(
            keys(status),
            sorted("version pid up_ms union sources unwritten lost open cache disk")
        );
        assert_eq!(keys(&status["unwritten"]), sorted("bytes limit_bytes files changes"));
        assert_eq!(keys(&status["open"]), sorted("files directories"));
        let cache = sorted("inodes listed_names listed_bytes fetched_bytes watched");
        assert_eq!(keys(&status["cache"]), cache);
        let disk = "dir on why used_bytes limit_bytes hits misses read_here_bytes read_there_bytes \
            completed changed_meanwhile left_out_bytes too_large damaged missed_offline opened_through";
        assert_eq!(keys(&status["disk"]), sorted(disk));
        let source = &status["sources"][0];
        let fields = sorted(
            "source place mode presence state state_ms why waiting_calls unacknowledged_bytes \
             unsynced_files pool hosts",
        );
        assert_eq!(keys(source), fields);
        assert_eq!(source["state"], "idle");
        let fields = sorted(
            "host state state_ms why round_trip_us latency_us max_sessions password direct \
             not_direct sessions",
        );
        assert_eq!(keys(&source["hosts"][0]), fields);
    }

    #[test]
    fn no_control_character_comes_out_of_it() {
        let text = json(vec![seen()]).unwrap();
        assert!(text.contains("\"\\u009b\""), "{text}");
        assert!(text.chars().all(|char| !char.is_control() || char == '\n'));
    }

    #[test]
    fn a_mount_without_a_daemon_is_told_to_be_so() {
        let mount = Mount {
            device: Device { major: 0, minor: u32::MAX },
            root: "/".into(),
            mountpoint: "/mnt\n".into(),
            kind: "fuse.sshoal".into(),
            source: "host:/dir".into(),
            owner: Some(geteuid().as_raw()),
            options: "".into(),
        };
        let [seen] = &look(&[mount])[..] else { panic!() };
        assert_eq!((seen.daemon, seen.mountpoint.as_str()), (Daemon::Dead, "/mnt\\n"));
        assert!(seen.why.as_ref().unwrap().contains("`sshoal umount`"));
    }
}
