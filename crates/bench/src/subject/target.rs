//! A mounted directory: NFS, SMB, any other.
//!
//! Nothing is known of what serves it. Its mount may hang, so that every look at it is a child
//! process with a deadline; what is mounted where is read from the kernel's table. The run writes
//! in a directory of its own below it, `.sshoal-bench-XXXXXX`, which is removed at its end.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::Result;
use crate::quoting::shown;
use crate::results::{LeftOut, SubjectInfo, Wire};
use crate::server::Server;
use crate::step::ServerMeter;
use crate::storage::{Directory, Storage};
use crate::subject::{Access, Session, Started, Subject, Tuning};

use mountinfo::Mount;

use crate::mount_table::{holding, is_remote};

/// Longest time for one look at a mount that works.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// Longest time to write and drop all caches.
const DROP_LIMIT: Duration = Duration::from_secs(120);

/// Loads the programs of the workloads with their libraries, and what `gcc --version` does not run.
/// Dropping all caches drops them too, and that the next step has to load its program from the disk
/// is not the target's fault.
const WARM: &str = "for program in sh cat tar wc ls find du grep rsync cp mkdir rm stat sha256sum \
    fio make ld; do $program --version; done; gcc -O2 -x c -c -o /dev/null /dev/null";

/// All caches of the machine are dropped: there is no other way to make a mount of the kernel's
/// forget. It needs root.
const DROP: &str = r#"sync -f "$1" && echo 3 >/proc/sys/vm/drop_caches"#;

/// A mounted directory, checked, with the run's own directory in it.
pub struct Target {
    name: String,
    asked: PathBuf,
    mount: Mount,
    storage: Directory,
    server: Option<Arc<Server>>,
}

/// Checks that a directory can be measured, and makes the run's directory in it. With a private
/// `server` in the same run, that one's page cache is filled again after caches were dropped.
///
/// # Errors
/// When it is not there, not mounted, read-only or not writable, or when it hangs.
pub fn target(
    name: &str,
    path: &Path,
    server: Option<Arc<Server>>,
    executor: &Executor,
) -> Result<Target, LeftOut> {
    let left_out = |why: String, remedy| {
        LeftOut::new(name, format!("{} {why}", shown(path))).with_remedy(remedy)
    };
    let real = output(executor, "realpath", &["-e".as_ref(), "--".as_ref(), path.as_ref()])
        .map_err(|error| left_out(format!("cannot be used: {error}"), "is it mounted?"))?;
    let mount = mount_of(&real).map_err(|why| {
        left_out(why, "name the directory at which it is mounted, as `findmnt` shows it")
    })?;
    if mount.is_read_only() {
        return Err(left_out("is mounted read-only".to_owned(), "mount it for writing"));
    }
    let pattern = real.join(".sshoal-bench-XXXXXX");
    let root = output(executor, "mktemp", &["-d".as_ref(), pattern.as_ref()]).map_err(|error| {
        left_out(format!("cannot be written to: {error}"), "the user who runs this has to own it")
    })?;
    let storage = Directory::new(name, root).with_executor(executor).mounted();
    Ok(Target { name: name.to_owned(), asked: path.to_owned(), mount, storage, server })
}

/// The mount that is meant: one at this very point, or one of a network file system above it.
fn mount_of(real: &Path) -> Result<Mount, String> {
    let mounts = mountinfo::all().map_err(|error| format!("cannot be looked for: {error}"))?;
    chosen(&mounts, real)
}

fn chosen(mounts: &[Mount], real: &Path) -> Result<Mount, String> {
    let mount = holding(mounts, real).ok_or("is on nothing that is mounted")?;
    if mount.mountpoint == real || is_remote(&mount) {
        return Ok(mount);
    }
    Err(format!(
        "is not a mount point: it is on {} ({})",
        shown(&mount.mountpoint),
        mount.kind.to_string_lossy()
    ))
}

/// Runs a program that prints one path.
fn output(executor: &Executor, program: &str, words: &[&OsStr]) -> Result<PathBuf> {
    let mut command = Command::new(program);
    command.args(words);
    let mut bytes = executor.succeed(command, LOOK_LIMIT)?.output.stdout;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(OsString::from_vec(bytes).into())
}

impl Subject for Target {
    fn info(&self) -> SubjectInfo {
        let Mount { kind, source, .. } = &self.mount;
        let command = format!("{} on {}", shown(source), shown(&self.asked));
        SubjectInfo { version: shown(kind), ..SubjectInfo::new(&self.name, "target", command) }
    }

    fn storage(&self) -> &dyn Storage {
        &self.storage
    }

    fn start(&self, _: &Path, _: &Tuning, executor: &Executor) -> Started {
        let (root, server) = (self.storage.root().to_owned(), self.server.clone());
        let mut session = TargetSession { root, server };
        session.forget(executor)?;
        Ok(Box::new(session))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.storage.remove_root();
    }
}

struct TargetSession {
    root: PathBuf,
    server: Option<Arc<Server>>,
}

impl Session for TargetSession {
    fn access(&self) -> Access<'_> {
        Access::Directory(&self.root)
    }

    fn wire(&self, _: &dyn ServerMeter) -> Option<Wire> {
        None
    }

    fn forget(&mut self, executor: &Executor) -> Result<bool> {
        if !rustix::process::geteuid().is_root() {
            return Ok(false);
        }
        let mut command = Command::new("sh");
        command.args(["-c", DROP, "sh"]).arg(&self.root);
        let ran = executor.run(command, DROP_LIMIT)?;
        if !ran.output.status.success() {
            // In most containers root may not.
            return Ok(false);
        }
        let mut warm = Command::new("sh");
        warm.args(["-c", WARM]);
        let _ = executor.run(warm, DROP_LIMIT);
        if let Some(server) = &self.server
            && server.is_private()
        {
            server.storage().warm(Path::new(""))?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(point: &str, kind: &str, options: &str) -> Mount {
        let line = format!("2 1 0:1 / {point} {options} - {kind} x rw");
        mountinfo::parse(line.as_bytes()).remove(0)
    }

    #[test]
    fn mount_points_and_what_is_below_network_mounts_are_targets() {
        let mounts = [
            mount("/", "ext4", "rw"),
            mount("/data", "xfs", "rw"),
            mount("/mnt/nfs", "nfs4", "rw"),
            mount("/mnt/x", "fuse.sshfs", "ro,nosuid"),
        ];
        for path in ["/data", "/mnt/nfs", "/mnt/nfs/home/ann", "/mnt/x/y"] {
            assert!(chosen(&mounts, path.as_ref()).is_ok(), "{path}");
        }
        let why = chosen(&mounts, "/data/sub".as_ref()).unwrap_err();
        assert_eq!(why, "is not a mount point: it is on /data (xfs)");
        assert!(chosen(&mounts, "/mnt".as_ref()).unwrap_err().contains("on / (ext4)"));
        assert!(chosen(&mounts, "/mnt/x".as_ref()).unwrap().is_read_only());
        assert!(chosen(&[], "/".as_ref()).is_err());
    }
}
