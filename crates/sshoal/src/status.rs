//! `sshoal status`: the state of mounts, as their daemons report it.
//!
//! The mounts are read from the kernel's mount table; each daemon is queried over its
//! [control socket](crate::control). No mounted file system is accessed, so this also reports a
//! mount that hangs, or whose daemon is dead.

pub mod gather;
pub mod schema;
mod text;

pub use text::branch_list;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use cli::{EXIT_FAILURE, EXIT_OK, Problem, printable};
use mountinfo::Mount;
use rustix::process::geteuid;

use crate::control::client::{self, DEADLINE, Silence};
use crate::control::{Reply, Wish};
use crate::record;
use schema::{Daemon, Document, SCHEMA, SeenMount};

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
        Some(mountpoint) => vec![find(mountpoint)?],
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

/// The mount of sshoal that is visible at `mountpoint`.
pub fn find(mountpoint: &Path) -> Result<Mount, Problem> {
    let what = format!("'{}'", printable(mountpoint));
    let found =
        mountinfo::find(mountpoint).map_err(|error| Problem::new(&what, error.to_string()))?;
    let mount = found.ok_or_else(|| {
        Problem::new(&what, "nothing is mounted here").hint("`sshoal status` lists the mounts")
    })?;
    if is_ours(&mount) {
        Ok(mount)
    } else {
        let kind = printable(&mount.kind);
        Err(Problem::new(what, format!("not a mount of sshoal, but of type {kind}")))
    }
}

/// All mounts that this user may query.
fn all() -> io::Result<Vec<Mount>> {
    let me = geteuid().as_raw();
    let mine = |mount: &Mount| me == 0 || mount.owner == Some(me);
    let mut mounts = mountinfo::all()?;
    mounts.retain(|mount| mountinfo::is_fuse(&mount.kind) && mine(mount) && is_ours(mount));
    // A file system may be mounted at several places.
    let mut devices = std::collections::HashSet::new();
    mounts.retain(|mount| devices.insert(mount.device));
    // The daemon of an unmounted file system may still run: it writes the remaining data, or the
    // file system is mounted in another mount namespace.
    mounts.extend(record::served().into_iter().filter(|mount| devices.insert(mount.device)));
    Ok(mounts)
}

/// Whether it is a mount of sshoal. The type can be chosen (`subtype`), but only sshoal creates
/// records.
fn is_ours(mount: &Mount) -> bool {
    mount.kind == "fuse.sshoal" || record::find(mount).is_some()
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
pub fn look_at(mount: &Mount) -> SeenMount {
    let seen = |daemon, why: Option<String>| SeenMount {
        mountpoint: printable(&mount.mountpoint),
        source: printable(&mount.source),
        owner: mount.owner,
        daemon,
        pid: None,
        unmounted: unmounted(mount),
        why,
        status: None,
    };
    let me = geteuid().as_raw();
    if let Some(owner) = mount.owner.filter(|owner| me != 0 && *owner != me) {
        return seen(Daemon::NotAllowed, Some(whose(owner)));
    }
    let Some(mut found) = record::find(mount) else {
        return seen(Daemon::Dead, Some(no_record()));
    };
    let pid = found.pid();
    let seen = match client::ask(&found, Wish::Status) {
        Ok(Reply::Status(status)) => {
            SeenMount { status: Some(status), ..seen(Daemon::Answers, None) }
        }
        Ok(Reply::Refused(problem)) => seen(Daemon::Mute, Some(printable(problem.to_string()))),
        Ok(Reply::Working | Reply::Progress(_) | Reply::Done | Reply::Tally(_)) => {
            seen(Daemon::Mute, Some(silence(&Silence::Garbled)))
        }
        Err(why) => {
            let daemon = match why {
                Silence::Hangs => Daemon::Hangs,
                Silence::Ended => Daemon::Dead,
                Silence::NoSocket | Silence::Garbled | Silence::Io(_) => Daemon::Mute,
            };
            seen(daemon, Some(silence(&why)))
        }
    };
    SeenMount { pid, ..seen }
}

/// The message for a user who does not own the mount.
pub fn whose(owner: u32) -> String {
    format!("mounted by user {owner}; only that user and root may query it")
}

/// The message for a mount without a daemon.
pub fn no_record() -> String {
    "no daemon serves this mount; `sshoal umount` removes it".to_owned()
}

/// Why a daemon did not answer.
pub fn silence(why: &Silence) -> String {
    match why {
        Silence::NoSocket => {
            "the daemon has no control socket; perhaps it is of an older version".to_owned()
        }
        Silence::Ended => "the daemon has just ended".to_owned(),
        Silence::Hangs => format!("no reply within {} s", DEADLINE.as_secs()),
        Silence::Garbled => "the reply of the daemon was invalid".to_owned(),
        Silence::Io(error) => error.to_string(),
    }
}

fn json(mounts: Vec<SeenMount>) -> anyhow::Result<String> {
    cli::json(&Document { schema: SCHEMA, mounts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mountinfo::Device;
    use schema::{DiskStatus, HostStatus, MountStatus, SourceStatus};

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
        let cache = sorted("inodes listed_names listed_bytes fetched_bytes");
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
        let fields =
            sorted("host state state_ms why round_trip_us latency_us max_sessions sessions");
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

    #[test]
    fn what_is_no_mount_of_ours_is_refused() {
        let other = find(Path::new("/proc")).unwrap_err().to_string();
        assert!(other.contains("not a mount of sshoal, but of type proc"), "{other}");
        let dir = tempfile::tempdir().unwrap();
        let nothing = find(dir.path()).unwrap_err().to_string();
        assert!(nothing.contains("nothing is mounted here\n  `sshoal status`"), "{nothing}");
    }
}
