//! The state of mounts as their daemons report it, or why a daemon does not report any.
//!
//! The mounts are read from the kernel's mount table, and from the records of this user's daemons.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::thread;

use cli::{Problem, printable};
use mountinfo::Mount;
use rustix::process::geteuid;
use serde::Serialize;

use crate::client::{self, Silence};
use crate::record;
use crate::status::MountStatus;

/// Daemons queried in parallel: one thread each, most of which only wait.
const PARALLEL_QUERIES: usize = 32;

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

/// The state of all mounts that this user may query.
pub fn everywhere() -> io::Result<Vec<SeenMount>> {
    Ok(look(&all()?))
}

/// The state of the mount at `mountpoint`.
pub fn at(mountpoint: &Path) -> Result<SeenMount, Problem> {
    Ok(look_at(&client::mount_at(mountpoint)?))
}

/// The mount at `mountpoint`. If there is none, those that were unmounted there and whose daemons
/// have not ended.
pub fn all_at(mountpoint: &Path) -> Result<Vec<Mount>, Problem> {
    client::mount_at(mountpoint).map(|mount| vec![mount]).or_else(|problem| {
        let ending = ending_at(mountpoint);
        if ending.is_empty() { Err(problem) } else { Ok(ending) }
    })
}

/// The mounts of this user that were unmounted at `mountpoint` and whose daemons have not ended.
pub fn ending_at(mountpoint: &Path) -> Vec<Mount> {
    let Ok(place) = client::patiently(mountpoint, Path::canonicalize) else { return Vec::new() };
    // A record has the path as it is shown.
    let place = printable(place);
    let is_ending =
        |mount: &Mount| mount.mountpoint.as_os_str() == &*place && !client::is_here(mount);
    record::served().into_iter().filter(is_ending).collect()
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

/// The state of these mounts, whose daemons are queried in parallel.
pub fn look(mounts: &[Mount]) -> Vec<SeenMount> {
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
    if client::is_here(mount) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use mountinfo::Device;

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
