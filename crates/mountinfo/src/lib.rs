//! The kernel's mount table, `/proc/self/mountinfo`.
//!
//! Reading it accesses no mounted file system, so it also works when a mount is dead or hangs. For
//! the same reason a mount point is found by its name and never by `stat`.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The number by which the kernel knows a mounted file system; `st_dev` of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Zero for file systems without a block device.
    pub major: u32,
    /// Distinguishes file systems with the same major number.
    pub minor: u32,
}

impl Device {
    /// The number in `MAJOR:MINOR`.
    pub fn parse(text: &str) -> Option<Device> {
        let (major, minor) = text.split_once(':')?;
        Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The file system.
    pub device: Device,
    /// The directory of the file system that is shown at the mount point: `/` unless it is a bind
    /// mount.
    pub root: PathBuf,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The type with subtype, such as `fuse.sshoal`.
    pub kind: OsString,
    /// The source, such as `host:/dir`.
    pub source: OsString,
    /// The user who mounted it, if it is a FUSE mount.
    pub owner: Option<u32>,
    /// The options of the mount and those of the file system, separated by commas.
    pub options: OsString,
}

impl Mount {
    /// The group of the user who mounted it, if it is a FUSE mount.
    pub fn owner_group(&self) -> Option<u32> {
        id_after(self.options.as_bytes(), b"group_id=")
    }

    /// Whether the mount or its file system is read-only.
    pub fn is_read_only(&self) -> bool {
        self.options.as_bytes().split(|byte| *byte == b',').any(|option| option == b"ro")
    }
}

/// A mount with the numbers by which the lines refer to each other.
struct Line {
    id: u64,
    /// The mount on whose directory it is mounted.
    parent: u64,
    mount: Mount,
}

/// The mounts of a table in the form of `/proc/PID/mountinfo`. Malformed lines are skipped.
pub fn parse(table: &[u8]) -> Vec<Mount> {
    lines(table).map(|line| line.mount).collect()
}

fn lines(table: &[u8]) -> impl Iterator<Item = Line> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// All mounts of this process's namespace, in the order in which they were mounted.
///
/// # Errors
/// Those of reading `/proc/self/mountinfo`.
pub fn all() -> io::Result<Vec<Mount>> {
    Ok(parse(&own_table()?))
}

fn own_table() -> io::Result<Vec<u8>> {
    fs::read("/proc/self/mountinfo")
}

/// A process in another mount namespace in which the file system of `mount` is also mounted: a
/// container, a service with its own mounts, `unshare -m`. A namespace begins with a copy of all
/// mounts, and the file system exists until the last of them is unmounted.
pub fn elsewhere(mount: &Mount) -> Option<u32> {
    let own = fs::read_link("/proc/self/ns/mnt").ok()?;
    let mut looked_at = HashSet::from([own]);
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt"));
        if !namespace.is_ok_and(|namespace| looked_at.insert(namespace)) {
            return false;
        }
        let Ok(table) = fs::read(format!("/proc/{pid}/mountinfo")) else { return false };
        let mut there = lines(&table);
        // The device number is unique while the file system is mounted anywhere.
        there.any(|it| it.mount.device == mount.device && is_fuse(&it.mount.kind))
    })
}

/// Whether the kernel has the FUSE file system with this number: it is mounted in some mount
/// namespace, which need not be one that this user may see, or a file in it is open.
pub fn is_alive(device: Device) -> bool {
    Path::new(&format!("/sys/class/bdi/{device}")).exists()
}

/// Maximum number of symbolic links that lead to a mount point, as of the kernel for a path.
pub const MAX_LINKS: u32 = 40;

/// The mount whose files a path shows; `path` is absolute and without symbolic links.
///
/// # Errors
/// When the table cannot be read.
pub fn containing(path: &Path) -> io::Result<Option<Mount>> {
    let table: Vec<Line> = lines(&own_table()?).collect();
    Ok(visible(&table, path).cloned())
}

/// The mount of `table` whose files `path` shows. A mount hides those at and below its mount point
/// that have the same parent, and is itself hidden by one on its root directory.
fn visible<'a>(table: &'a [Line], path: &Path) -> Option<&'a Mount> {
    let ids: HashSet<u64> = table.iter().map(|line| line.id).collect();
    // The mount of the root directory, or in a chroot(2) without such a mount, those in it.
    let is_outermost = |line: &Line| line.id == line.parent || !ids.contains(&line.parent);
    let mut found: Option<&Line> = None;
    // Each step leads to another line.
    for _ in table {
        let is_next = |line: &&Line| match found {
            None => is_outermost(line),
            // A path begins in the root directory of the process, whatever is mounted on it since.
            Some(outer) => line.parent == outer.id && line.mount.mountpoint != Path::new("/"),
        };
        let around = table.iter().filter(is_next);
        let around = around.filter(|line| path.starts_with(&line.mount.mountpoint));
        match around.min_by_key(|line| line.mount.mountpoint.as_os_str().len()) {
            None => break,
            next => found = next,
        }
    }
    found.map(|line| &line.mount)
}

/// The visible mount at `mountpoint`: the last of those stacked on it.
///
/// `mountpoint` need not be absolute; only its parent directories are accessed.
///
/// # Errors
/// When the table or a parent directory cannot be read.
pub fn find(mountpoint: &Path) -> io::Result<Option<Mount>> {
    let table: Vec<Line> = lines(&own_table()?).collect();
    let at = |place: &Path| visible(&table, place).filter(|it| it.mountpoint == place).cloned();
    let mut place = without_links_in_parent(mountpoint)?;
    // The last component may be a symbolic link to the mount point, or to another link.
    for _ in 0..=MAX_LINKS {
        if let Some(mount) = at(&place) {
            return Ok(Some(mount));
        }
        let Ok(target) = fs::read_link(&place) else { break };
        let parent = place.parent().unwrap_or(Path::new("/"));
        place = without_links_in_parent(&parent.join(target))?;
    }
    Ok(None)
}

/// The innermost mount that contains `path`, of which only the part before a dead mount has to
/// exist.
pub fn around(path: &Path) -> Option<Mount> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|place| find(place).ok().flatten())
}

/// The absolute path of `path`, with symbolic links resolved in all but the last component.
///
/// # Errors
/// When a directory on the path cannot be accessed.
pub fn without_links_in_parent(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent == Path::new("") { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        // `/`, `.` and `..` have no last component of their own.
        _ => path.canonicalize(),
    }
}

/// Parses a line; `None` if it is not as in proc(5).
fn parse_line(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (id, parent) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let device = Device::parse(text()?)?;
    let root = unescape(fields.next()?).into();
    let mountpoint = unescape(fields.next()?).into();
    let own_options = fields.next()?;
    // Any number of tagged fields up to the hyphen.
    fields.find(|field| *field == b"-")?;
    let kind = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    let options = [own_options, fields.next().unwrap_or_default()].join(&b',');
    let owner = id_after(&options, b"user_id=");
    let options = OsString::from_vec(options);
    let mount = Mount { device, root, mountpoint, kind, source, owner, options };
    Some(Line { id, parent, mount })
}

/// The number that follows `name` in the options.
fn id_after(options: &[u8], name: &[u8]) -> Option<u32> {
    let mut all = options.split(|byte| *byte == b',');
    all.find_map(|option| std::str::from_utf8(option.strip_prefix(name)?).ok()?.parse().ok())
}

/// Decodes a field: space, tab, newline and backslash are written as a backslash and three octal
/// digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = (byte == b'\\').then(|| octal(tail)).flatten();
        out.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(out)
}

/// The byte given by three octal digits at the start of `text`.
fn octal(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text.get(..3)?).ok()?;
    u8::from_str_radix(digits, 8).ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether the type is FUSE's, with any subtype.
pub fn is_fuse(kind: &OsStr) -> bool {
    kind == "fuse" || kind.as_bytes().starts_with(b"fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = br"36 25 0:41 / /mnt/my\040dir rw,nosuid shared:7 master:2 - fuse.sshoal \
u@h:/a\134b rw,user_id=1000,group_id=100,default_permissions";

    #[test]
    fn a_line_is_taken_apart() {
        let line: Vec<u8> = String::from_utf8_lossy(LINE).replace("\\\n", "").into_bytes();
        let Line { id, parent, mount } = parse_line(&line).unwrap();
        assert_eq!((id, parent), (36, 25));
        assert_eq!(mount.device, Device { major: 0, minor: 41 });
        assert_eq!(mount.device.to_string(), "0:41");
        assert_eq!(mount.owner_group(), Some(100));
        assert_eq!(mount.root, Path::new("/"));
        assert_eq!(mount.mountpoint, Path::new("/mnt/my dir"));
        assert_eq!(mount.kind, "fuse.sshoal");
        assert!(is_fuse(&mount.kind));
        assert_eq!(mount.source, "u@h:/a\\b");
        assert_eq!(mount.owner, Some(1000));
        assert!(!mount.is_read_only());
    }

    #[test]
    fn other_lines_have_no_owner_and_broken_ones_are_no_mounts() {
        let root = parse_line(b"1 0 8:1 / / rw - ext4 /dev/sda1 ro").unwrap().mount;
        assert!(root.is_read_only());
        assert_eq!((root.owner, is_fuse(&root.kind)), (None, false));
        let broken = [
            &b""[..],
            b"1 0 8:1 / / rw",
            b"1 0 x:y / / rw - ext4 a rw",
            b"x 0 8:1 / / rw - ext4 a rw",
            b"- - - - -",
        ];
        for line in broken {
            assert!(parse_line(line).is_none());
        }
        assert_eq!(unescape(br"a\04"), OsStr::new(r"a\04"));
        assert_eq!(unescape(br"\+12\999"), OsStr::new(r"\+12\999"));
    }

    fn table(text: &[&str]) -> Vec<Line> {
        let line = |line: &&str| {
            let [id, parent, place, source] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            parse_line(format!("{id} {parent} 0:{id} / {place} rw - fuse {source} rw").as_bytes())
        };
        text.iter().map(|text| line(text).unwrap()).collect()
    }

    #[test]
    fn a_path_shows_the_mount_that_is_not_hidden() {
        let shown = |table: &[Line], path: &str| {
            visible(table, Path::new(path)).map(|mount| mount.source.to_str().unwrap().to_owned())
        };
        let nested = table(&["20 1 / root", "30 20 /m outer", "31 30 /m/sub inner"]);
        for (path, source) in
            [("/m/sub/x", "inner"), ("/m/sub", "inner"), ("/m/subx", "outer"), ("/mx", "root")]
        {
            assert_eq!(shown(&nested, path).as_deref(), Some(source), "{path}");
        }
        // The mount around it was made later, and so was one on its own root directory.
        let hidden = table(&["20 1 / root", "30 20 /m/sub below", "31 20 /m over", "32 31 /m top"]);
        for path in ["/m", "/m/sub", "/m/sub/x"] {
            assert_eq!(shown(&hidden, path).as_deref(), Some("top"), "{path}");
        }
        // Of no effect on paths, which begin below it.
        let on_root = table(&["20 1 / root", "30 20 / later", "31 20 /m mine"]);
        assert_eq!(shown(&on_root, "/m/x").as_deref(), Some("mine"));
        assert_eq!(shown(&on_root, "/x").as_deref(), Some("root"));
        let in_chroot = table(&["30 20 /proc proc", "31 20 /m mine", "32 31 /m/sub inner"]);
        assert_eq!(shown(&in_chroot, "/m/sub").as_deref(), Some("inner"));
        assert_eq!(shown(&in_chroot, "/etc"), None);
    }

    #[test]
    fn a_mount_point_is_found_by_any_of_its_names() {
        let proc = find(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(proc.kind, "proc");
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert_eq!(find(&link).unwrap(), Some(proc));
        assert_eq!(find(dir.path()).unwrap(), None);
        assert_eq!(containing(Path::new("/proc/self")).unwrap(), find(&link).unwrap());
        assert!(find(Path::new("/no/such/dir")).is_err());
    }
}
