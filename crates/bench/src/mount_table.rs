//! The mount table of this process. Nothing here accesses a mounted directory, which may hang.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mountinfo::Mount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The table of this process's mount namespace.
const TABLE: &str = "/proc/self/mountinfo";

/// Whether the files of a mount are, or may be, on another machine.
pub(crate) fn is_remote(mount: &Mount) -> bool {
    let remote = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "virtiofs", "lustre"];
    remote.iter().any(|kind| mount.kind == *kind) || mountinfo::is_fuse(&mount.kind)
}

/// The table, open, so that its changes can be waited for.
pub(crate) struct Table(File);

impl Table {
    pub(crate) fn open() -> io::Result<Table> {
        File::open(TABLE).map(Table)
    }

    /// All mounts now. A change after this wakes the next [`Table::wait`].
    pub(crate) fn read(&mut self) -> io::Result<Vec<Mount>> {
        let mut text = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut text)?;
        Ok(mountinfo::parse(&text))
    }

    /// The topmost mount at exactly this path.
    pub(crate) fn at(&mut self, point: &Path) -> io::Result<Option<Mount>> {
        Ok(self.read()?.into_iter().rfind(|mount| mount.mountpoint == point))
    }

    /// Returns when the table may have changed since it was read, when `other` is readable, or
    /// after `limit`.
    pub(crate) fn wait(&self, other: Option<&dyn AsFd>, limit: Duration) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.0, PollFlags::PRI)];
        let other = other.map(AsFd::as_fd);
        if let Some(other) = &other {
            fds.push(PollFd::new(other, PollFlags::IN));
        }
        let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Mount points at or below a directory, the innermost first.
pub(crate) fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut points: Vec<PathBuf> =
        Table::open()?.read()?.into_iter().map(|it| it.mountpoint).collect();
    points.retain(|point| point.starts_with(dir));
    points.reverse();
    Ok(points)
}

/// The mount that contains a path without symbolic links, by its name alone.
pub(crate) fn holding(mounts: &[Mount], path: &Path) -> Option<Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.mountpoint));
    // Of two at the same point the later one is on top.
    above.max_by_key(|mount| mount.mountpoint.as_os_str().len()).cloned()
}

/// A path or a name for messages.
pub(crate) fn shown(text: impl AsRef<OsStr>) -> String {
    text.as_ref().to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 4] = [
        "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
        "36 21 0:44 /x /mnt/a\\040b ro,nosuid shared:7 master:2 - fuse.sshfs host:/x rw,user_id=0",
        "37 21 0:45 / /mnt/nfs rw - nfs4 server:/e rw,vers=4.2",
        "38 36 0:46 / /mnt/nfs rw - nfs4 server:/top ro,vers=4.2",
    ];

    fn mounts() -> Vec<Mount> {
        mountinfo::parse(LINES.join("\n").as_bytes())
    }

    #[test]
    fn network_mounts_are_remote() {
        let remote: Vec<bool> = mounts().iter().map(is_remote).collect();
        assert_eq!(remote, [false, true, true, true]);
    }

    #[test]
    fn the_longest_and_topmost_mount_holds_a_path() {
        let mounts = mounts();
        let source = |path: &str| holding(&mounts, path.as_ref()).unwrap().source;
        assert_eq!(source("/mnt/nfs/sub"), "server:/top");
        assert_eq!(source("/mnt/nfsx"), "/dev/vda");
        assert_eq!(source("/mnt/a b"), "host:/x");
    }

    #[test]
    fn mounts_below_a_directory_are_found() {
        assert_eq!(below(Path::new("/proc")).unwrap().last(), Some(&PathBuf::from("/proc")));
    }

    #[test]
    fn the_table_of_this_process_has_a_root() {
        let mut table = Table::open().unwrap();
        assert!(table.at("/".as_ref()).unwrap().is_some());
        assert_eq!(table.at("/no/such/mount/point".as_ref()).unwrap(), None);
    }
}
