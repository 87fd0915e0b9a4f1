//! Queries of the mount table of this process. Nothing here accesses a mounted directory, which may
//! hang.

use std::io;
use std::path::{Path, PathBuf};

use mountinfo::Mount;

/// Whether the files of a mount are, or may be, on another machine.
pub(crate) fn is_remote(mount: &Mount) -> bool {
    let remote = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "virtiofs", "lustre"];
    remote.iter().any(|kind| mount.kind == *kind) || mountinfo::is_fuse(&mount.kind)
}

/// The topmost mount at exactly this path.
pub(crate) fn at(point: &Path) -> io::Result<Option<Mount>> {
    Ok(mountinfo::all()?.into_iter().rfind(|mount| mount.mountpoint == point))
}

/// Mount points at or below a directory, the innermost first.
pub(crate) fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut points: Vec<PathBuf> = mountinfo::all()?.into_iter().map(|it| it.mountpoint).collect();
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
}
