//! The mount table of this process. Nothing here accesses a mounted directory, which may hang.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The table of this process's mount namespace.
const TABLE: &str = "/proc/self/mountinfo";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Device number: of FUSE, the minor one is the connection's number.
    pub device: (u32, u32),
    pub point: PathBuf,
    /// Its own options and those of the file system, by commas.
    pub options: String,
    /// `fuse.sshfs`, `nfs4`.
    pub kind: String,
    /// What is mounted: `host:dir`, `/dev/sda1`.
    pub source: String,
}

impl Mount {
    /// Whether the mount or its file system is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }

    /// Whether its files are, or may be, on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        let remote = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "virtiofs", "lustre"];
        remote.contains(&self.kind.as_str()) || self.kind.split('.').next() == Some("fuse")
    }
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
        Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
    }

    /// The topmost mount at exactly this path.
    pub(crate) fn at(&mut self, point: &Path) -> io::Result<Option<Mount>> {
        Ok(self.read()?.into_iter().rfind(|mount| mount.point == point))
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
    let mut points: Vec<PathBuf> = Table::open()?.read()?.into_iter().map(|it| it.point).collect();
    points.retain(|point| point.starts_with(dir));
    points.reverse();
    Ok(points)
}

/// The mount that contains a path without symbolic links, by its name alone.
pub(crate) fn holding(mounts: &[Mount], path: &Path) -> Option<Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // Of two at the same point the later one is on top.
    above.max_by_key(|mount| mount.point.as_os_str().len()).cloned()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &[u8]) -> Option<Mount> {
    let text = |field: &[u8]| unescaped(field).to_string_lossy().into_owned();
    let mut fields = line.split(|&byte| byte == b' ');
    let device = str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let point = unescaped(fields.nth(1)?).into();
    let own = text(fields.next()?);
    fields.find(|&field| field == b"-")?;
    let (kind, source) = (text(fields.next()?), text(fields.next()?));
    let options = format!("{own},{}", text(fields.next()?));
    Some(Mount { device: (major.parse().ok()?, minor.parse().ok()?), point, options, kind, source })
}

/// The kernel writes space, tab, newline, backslash and `#` as `\` and three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match (byte, octal) {
            (b'\\', Some(digits)) => {
                let value = digits.iter().fold(0u8, |value, d| value.wrapping_mul(8) + (d - b'0'));
                bytes.push(value);
                rest = &after[3..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// A path for messages.
pub(crate) fn shown(path: &Path) -> String {
    OsStr::from_bytes(path.as_os_str().as_bytes()).to_string_lossy().escape_debug().to_string()
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

    #[test]
    fn lines_are_taken_apart() {
        let mount = parse(LINES[1].as_bytes()).unwrap();
        let wanted = Mount {
            device: (0, 44),
            point: "/mnt/a b".into(),
            options: "ro,nosuid,rw,user_id=0".into(),
            kind: "fuse.sshfs".into(),
            source: "host:/x".into(),
        };
        assert_eq!(mount, wanted);
        assert!(mount.is_read_only() && mount.is_remote());
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 98:0 /mnt1 /mnt2 rw"), None);
    }

    #[test]
    fn the_longest_and_topmost_mount_holds_a_path() {
        let mounts: Vec<Mount> = LINES.iter().filter_map(|line| parse(line.as_bytes())).collect();
        let source = |path: &str| holding(&mounts, path.as_ref()).unwrap().source;
        assert_eq!(source("/mnt/nfs/sub"), "server:/top");
        assert_eq!(source("/mnt/nfsx"), "/dev/vda");
        assert_eq!(source("/mnt/a b"), "host:/x");
    }

    #[test]
    fn names_in_the_table_are_unescaped() {
        for (word, expected) in [
            (&b"/mnt/a"[..], "/mnt/a"),
            (b"/mnt/a\\040b\\134", "/mnt/a b\\"),
            (b"/x\\04", "/x\\04"),
        ] {
            assert_eq!(unescaped(word), OsString::from(expected));
        }
        assert_eq!(below(Path::new("/proc")).unwrap().last(), Some(&PathBuf::from("/proc")));
    }

    #[test]
    fn the_table_of_this_process_has_a_root() {
        let mut table = Table::open().unwrap();
        assert!(table.at("/".as_ref()).unwrap().is_some());
        assert_eq!(table.at("/no/such/mount/point".as_ref()).unwrap(), None);
    }
}
