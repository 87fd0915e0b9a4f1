//! Paths of the client, and where they lead.
//!
//! Without a root, a path is one of this process: relative ones start at its working directory.
//! With a root, the kernel resolves each path as if the process had that root (`RESOLVE_IN_ROOT`):
//! `..` and absolute symbolic links stay inside, also while directories are being moved. Where it
//! cannot be sure of that, it returns `EAGAIN`, and the path is resolved again.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use base::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, fstatfs, lstat, openat,
    openat2, readlinkat, statx,
};
use rustix::io::{Errno, Result};

/// Local file systems by their magic numbers in `statfs(2)`: ext2 to ext4, XFS, btrfs, tmpfs, F2FS,
/// overlayfs. Their attributes are in memory or on a disk of this machine.
const LOCAL_KINDS: [u32; 6] =
    [0xef53, 0x5846_5342, 0x9123_683e, TMPFS_KIND, 0xf2f5_2010, OVERLAY_KIND];

/// tmpfs.
const TMPFS_KIND: u32 = 0x0102_1994;

/// The same by their names in the table of mounts; without btrfs, whose files have device numbers
/// that are not in the table.
const LOCAL_NAMES: [&[u8]; 7] = [b"ext2", b"ext3", b"ext4", b"xfs", b"tmpfs", b"f2fs", b"overlay"];

/// File systems that number an entry anew when the kernel has forgotten it, by their magic numbers:
/// FAT, exFAT, VirtualBox's and FUSE, with which it depends on the program.
const UNNUMBERED_KINDS: [u32; 4] = [0x4d44, 0x2011_bab0, 0x786f_4256, 0x6573_5546];

/// CIFS, of which only the table of mounts shows whether it has the numbers of its server.
const CIFS_KINDS: [u32; 2] = [0xff53_4d42, 0xfe53_4d42];

/// The same as [`UNNUMBERED_KINDS`] by their names in the table of mounts, without a subtype.
const UNNUMBERED_NAMES: [&[u8]; 6] = [b"msdos", b"vfat", b"exfat", b"vboxsf", b"fuse", b"fuseblk"];

/// overlayfs.
const OVERLAY_KIND: u32 = 0x794c_7630;

/// procfs.
const PROC_KIND: u32 = 0x9fa0;

/// Longest path, with the NUL at its end.
const PATH_MAX: usize = 4096;

/// Attempts to resolve a path below a root. One with `..` fails with `EAGAIN` if any entry of this
/// machine was renamed meanwhile, or any file system mounted (openat2(2)). Once the directories are
/// in memory, that takes a microsecond.
const MAX_ATTEMPTS: usize = 32;

/// Resolves the client's paths.
#[derive(Debug)]
pub(crate) struct Paths {
    root: Option<Root>,
    /// The device of the root or of the working directory, and its type.
    start: Option<(Device, FileSystemType)>,
    /// The other file systems, once one was asked for.
    mounted: Mutex<Option<Mounted>>,
    /// The kernel can resolve a path in memory only (`RESOLVE_CACHED`, Linux 5.12).
    has_cached: bool,
}

#[derive(Debug)]
struct Root {
    fd: OwnedFd,
    /// Its path in this process.
    path: Vec<u8>,
}

/// A device number.
pub(crate) type Device = (u32, u32);

/// What the inode number of an entry shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// It lasts: with the time of creation it identifies the entry, with the ctime its last change.
    Identities,
    /// It identifies the last change only. On overlayfs the first change of an entry of a lower
    /// layer changes its time of creation, and the number if it has several names.
    Changes,
    /// Nothing, and the ctime of such a file system may be that of a copy, or any.
    Nothing,
}

/// What is known of a file system by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileSystemType {
    is_local: bool,
    is_procfs: bool,
    numbers: Numbers,
}

impl FileSystemType {
    /// The type with this magic number.
    fn of_kind(kind: u32) -> FileSystemType {
        let is_local = LOCAL_KINDS.contains(&kind);
        let numbers = match kind {
            OVERLAY_KIND => Numbers::Changes,
            _ if UNNUMBERED_KINDS.contains(&kind) => Numbers::Nothing,
            _ => Numbers::Identities,
        };
        FileSystemType { is_local, is_procfs: kind == PROC_KIND, numbers }
    }

    /// The type of a mount of the table.
    fn of_mount(mount: &mountinfo::Mount) -> FileSystemType {
        let kind = mount.kind.as_bytes();
        let name = kind.split(|byte| *byte == b'.').next().unwrap_or(kind);
        // CIFS without the numbers of its server.
        let mut options = mount.options.as_bytes().split(|byte| *byte == b',');
        let is_numbered_here = options.any(|option| option == b"noserverino");
        let numbers = match name {
            b"overlay" => Numbers::Changes,
            _ if UNNUMBERED_NAMES.contains(&name) || is_numbered_here => Numbers::Nothing,
            _ => Numbers::Identities,
        };
        let is_local = LOCAL_NAMES.contains(&kind);
        FileSystemType { is_local, is_procfs: name == b"proc", numbers }
    }
}

/// A file system that is not a local one: it may never answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    pub(crate) device: Device,
    /// False for a path of which the kernel knows only the beginning: it may lead to another one.
    pub(crate) is_certain: bool,
}

impl FileSystem {
    /// Whether a request for `other` certainly is for another file system.
    pub(crate) fn is_not(self, other: Option<FileSystem>) -> bool {
        other.is_none_or(|other| self.is_certain && other.is_certain && self.device != other.device)
    }
}

/// A name and the directory that contains it.
pub(crate) struct Entry<'a> {
    dir: Option<OwnedFd>,
    /// The name; without a root the whole path, relative to the working directory.
    pub(crate) name: &'a [u8],
}

impl Entry<'_> {
    /// The directory to which the name is relative.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(CWD, OwnedFd::as_fd)
    }
}

impl Paths {
    /// Paths of this process, or below `root`.
    pub(crate) fn new(root: Option<&Path>) -> Result<Paths> {
        let root = root.map(Root::open).transpose()?;
        let start = root.as_ref().map_or(CWD, |root| root.fd.as_fd());
        let kind = openat(start, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .and_then(fstatfs)
            .map(|found| found.f_type as u32);
        let kind = kind.ok().filter(|kind| !CIFS_KINDS.contains(kind));
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let cached = openat2(start, ".", flags, Mode::empty(), ResolveFlags::CACHED);
        let has_cached = matches!(cached, Ok(_) | Err(Errno::AGAIN));
        let start = device(start, ".").ok().zip(kind.map(FileSystemType::of_kind));
        Ok(Paths { root, start, mounted: Mutex::default(), has_cached })
    }

    /// Whether all paths are below a root.
    pub(crate) fn has_root(&self) -> bool {
        self.root.is_some()
    }

    /// Whether this is the directory that clients see as `/`.
    pub(crate) fn is_root(&self, dir: &OwnedFd) -> Result<bool> {
        let Some(root) = &self.root else { return Ok(false) };
        let (root, found) = (fstat(&root.fd)?, fstat(dir)?);
        Ok((root.st_dev, root.st_ino) == (found.st_dev, found.st_ino))
    }

    /// Opens the entry at `path`. With `NOFOLLOW`, a symbolic link in the last component is not
    /// followed.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        self.open_with(path, flags, mode, ResolveFlags::empty())
    }

    fn open_with(
        &self,
        path: &[u8],
        flags: OFlags,
        mode: Mode,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        // `openat2` refuses a mode that `openat` ignores.
        let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
        match &self.root {
            Some(root) => {
                let resolve = resolve | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                let open = || openat2(&root.fd, path, flags, mode, resolve);
                // With `CACHED` the error says that the path is not in memory.
                let is_final = |opened: &Result<OwnedFd>| {
                    opened.as_ref().err() != Some(&Errno::AGAIN)
                        || resolve.contains(ResolveFlags::CACHED)
                };
                let earlier = (1..MAX_ATTEMPTS).map(|_| open()).find(is_final);
                earlier.unwrap_or_else(open)
            }
            None if resolve.is_empty() => openat(CWD, path, flags, mode),
            None => openat2(CWD, path, flags, mode, resolve),
        }
    }

    /// A descriptor of the entry itself, of any type, which permits no I/O.
    pub(crate) fn pin(&self, path: &[u8], follow: bool) -> Result<OwnedFd> {
        let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.open(path, OFlags::PATH | nofollow, Mode::empty())
    }

    /// Opens the entry at `path`, on which another process has a lease (fcntl(2)): that was the
    /// error of [`Paths::open`] with `NONBLOCK`; or whose truncation takes long. Before this waits,
    /// it calls `release`: from then on no change of a name has an effect on what is opened. `None`
    /// without `/proc`, and then without a call of `release`.
    pub(crate) fn open_leased(
        &self,
        path: &[u8],
        flags: OFlags,
        release: &dyn Fn(),
    ) -> Result<Option<OwnedFd>> {
        let pinned = self.pin(path, !flags.contains(OFlags::NOFOLLOW))?;
        let own = own_path(pinned.as_fd());
        if lstat(&own).is_err() {
            return Ok(None);
        }
        // The entry exists.
        let mut flags = (flags - OFlags::CREATE) | OFlags::CLOEXEC;
        // A FIFO may have taken the name: its open would wait for the other end.
        if FileType::from_raw_mode(fstat(&pinned)?.st_mode) == FileType::RegularFile {
            flags -= OFlags::NONBLOCK;
            release();
        }
        openat(CWD, own, flags, Mode::empty()).map(Some)
    }

    /// The last name of `path` and its directory, for a call that creates, removes or renames it.
    /// With a root, `EBUSY` for a path without a last name.
    pub(crate) fn entry<'a>(&self, path: &'a [u8]) -> Result<Entry<'a>> {
        if self.root.is_none() {
            return Ok(Entry { dir: None, name: path });
        }
        let (parent, name) = split(path);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::BUSY);
        }
        let dir = self.open(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Entry { dir: Some(dir), name })
    }

    /// The entry at `path`, or the error of its lookup, if a request for it needs no other machine:
    /// its directory is known to the kernel, and on a local file system, and the last name does not
    /// lead to another one: also not by a symbolic link, if the request `follows` one. With a root,
    /// only the file system of the root.
    pub(crate) fn local(&self, path: &[u8], follows: bool) -> Option<Result<OwnedFd>> {
        let (parent, name) = if path.ends_with(b".") { (path, &b"."[..]) } else { split(path) };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let opened = self.open_with(parent, flags, Mode::empty(), ResolveFlags::CACHED);
        let dir = opened.ok().filter(|dir| self.file_system(dir).is_none())?;
        // Looked up on that file system only; the name may be absent. Following a link sets its
        // time of access.
        let nofollow = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC | nofollow, ResolveFlags::NO_XDEV);
        let found = match &self.root {
            // An absolute link starts at the root.
            Some(_) => self.open_with(path, flags, Mode::empty(), resolve),
            None => openat2(&dir, name, flags, Mode::empty(), resolve),
        };
        (found.as_ref().err() != Some(&Errno::XDEV)).then_some(found)
    }

    /// The file system of an open file; `None` if it is a local one. Asks no other machine, as
    /// `fstatfs` would.
    pub(crate) fn file_system(&self, file: &OwnedFd) -> Option<FileSystem> {
        // Those that are unknown are taken for one.
        let found = device(file.as_fd(), "");
        let (device, is_certain) = (found.unwrap_or_default(), found.is_ok());
        (!self.is_local_device(device)).then_some(FileSystem { device, is_certain })
    }

    /// Whether the file system of a device is local.
    pub(crate) fn is_local_device(&self, device: Device) -> bool {
        self.type_of(device).is_some_and(|found| found.is_local)
    }

    /// What the inode numbers of a device show. `file` is an open file of it.
    pub(crate) fn numbers(&self, device: Device, file: impl AsFd) -> Numbers {
        self.type_at(device, file).map_or(Numbers::Nothing, |found| found.numbers)
    }

    /// Whether a device is a procfs. `file` is an open file of it.
    pub(crate) fn is_procfs(&self, device: Device, file: impl AsFd) -> bool {
        self.type_at(device, file).is_some_and(|found| found.is_procfs)
    }

    /// The type of the file system. The kernel is asked for it, by an open `file` of it, only if the
    /// table of mounts does not contain the device: with btrfs, with some files of overlayfs, and in
    /// mounts of other namespaces.
    fn type_at(&self, device: Device, file: impl AsFd) -> Option<FileSystemType> {
        let asked = || fstatfs(file).map(|found| FileSystemType::of_kind(found.f_type as u32));
        self.type_of(device).or_else(|| asked().ok())
    }

    fn type_of(&self, device: Device) -> Option<FileSystemType> {
        match self.start {
            Some((start, found)) if start == device => Some(found),
            _ => self.mounted_type(device),
        }
    }

    /// The file system to which `path` leads, as far as the kernel knows the path without a request
    /// to another machine: an unknown name is taken to be on that of its directory.
    pub(crate) fn file_system_at(&self, path: &[u8], follows: bool) -> Option<FileSystem> {
        if !self.has_cached {
            return self.file_system_by_name(path);
        }
        let mut flags = OFlags::PATH;
        flags.set(OFlags::NOFOLLOW, !follows);
        let mut known = path;
        // A longer path is invalid.
        while known.len() <= PATH_MAX {
            match self.open_with(known, flags, Mode::empty(), ResolveFlags::CACHED) {
                Ok(found) => {
                    let is_certain = known == path || known == split(path).0;
                    let found = self.file_system(&found)?;
                    return Some(FileSystem { is_certain, ..found });
                }
                Err(_) if matches!(known, b"" | b"." | b"/") => break,
                Err(_) => known = split(known).0,
            }
            flags = OFlags::PATH;
        }
        None
    }

    /// As [`Paths::file_system_at`], by the names in `path` only: symbolic links are not known.
    fn file_system_by_name(&self, path: &[u8]) -> Option<FileSystem> {
        let root = self.root.as_ref().map(|root| native(&root.path));
        let mut named = match root {
            Some(root) => root.to_owned(),
            None => std::env::current_dir().unwrap_or_default(),
        };
        for part in native(path).components() {
            match part {
                Component::Normal(name) => named.push(name),
                Component::ParentDir if root != Some(&named) => drop(named.pop()),
                Component::RootDir if root.is_none() => named = PathBuf::from("/"),
                _ => {}
            }
        }
        self.mounted(|mounted| {
            let around = mounted.mounts.iter().filter(|it| named.starts_with(&it.mountpoint));
            // Of several at one mount point the last one is visible.
            let mount = around.max_by_key(|it| it.mountpoint.as_os_str().len())?;
            let is_local = FileSystemType::of_mount(mount).is_local || mount.kind == "btrfs";
            let device = (mount.device.major, mount.device.minor);
            (!is_local).then_some(FileSystem { device, is_certain: false })
        })
    }

    fn mounted_type(&self, device: Device) -> Option<FileSystemType> {
        self.mounted(|mounted| mounted.types.get(&device).copied())
    }

    /// What the table of mounts shows.
    fn mounted<T>(&self, find: impl FnOnce(&Mounted) -> Option<T>) -> Option<T> {
        let mut mounted = self.mounted.lock();
        if !mounted.as_ref().is_some_and(Mounted::is_current) {
            *mounted = Mounted::read().ok();
        }
        find(mounted.as_ref()?)
    }

    /// The absolute path of the entry to which `path` leads. The last name may be absent.
    pub(crate) fn real(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self.pin(path, true) {
            Ok(fd) => self.shown(&fd),
            // Not if it is a symbolic link to an absent entry.
            Err(Errno::NOENT) if self.pin(path, false).err() == Some(Errno::NOENT) => {
                let (parent, name) = split(path);
                if matches!(name, b"" | b"." | b"..") {
                    return Err(Errno::NOENT);
                }
                let parent = self.open(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                let mut real = self.shown(&parent)?;
                if !real.ends_with(b"/") {
                    real.push(b'/');
                }
                real.extend_from_slice(name);
                Ok(real)
            }
            Err(error) => Err(error),
        }
    }

    /// The path of an open file, as the client sees it.
    fn shown(&self, fd: &OwnedFd) -> Result<Vec<u8>> {
        let path = path_of(fd.as_fd())?;
        let Some(root) = &self.root else { return Ok(path) };
        match path.strip_prefix(&root.path[..]) {
            _ if root.path == b"/" => Ok(path),
            Some([]) => Ok(b"/".to_vec()),
            Some(rest) if rest.starts_with(b"/") => Ok(rest.to_vec()),
            // The root was renamed.
            _ => Err(Errno::NOENT),
        }
    }
}

/// The file systems in the table of mounts.
#[derive(Debug)]
struct Mounted {
    table: File,
    mounts: Vec<mountinfo::Mount>,
    types: HashMap<Device, FileSystemType>,
}

impl Mounted {
    fn read() -> std::io::Result<Mounted> {
        // What changes from now on is a change of this open file.
        let mut table = File::open("/proc/self/mountinfo")?;
        let mut content = Vec::new();
        table.read_to_end(&mut content)?;
        let mounts = mountinfo::parse(&content);
        Ok(Mounted { table, types: types(&mounts), mounts })
    }

    /// Whether nothing was mounted or unmounted since: a device number may become that of another
    /// file system.
    fn is_current(&self) -> bool {
        let table = &mut [PollFd::new(&self.table, PollFlags::PRI)];
        poll(table, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

impl Root {
    fn open(path: &Path) -> Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty())?;
        // Fails on a kernel without `openat2`.
        openat2(&fd, ".", flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
        let path = path_of(fd.as_fd())?;
        Ok(Root { fd, path })
    }
}

/// The path by which this process reaches its own descriptor.
pub(crate) fn own_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The types of the mounted file systems.
fn types(mounts: &[mountinfo::Mount]) -> HashMap<Device, FileSystemType> {
    let device = |mount: &mountinfo::Mount| (mount.device.major, mount.device.minor);
    mounts.iter().map(|mount| (device(mount), FileSystemType::of_mount(mount))).collect()
}

/// The path of an open file in this process.
fn path_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    // Without `/proc`.
    let error = |errno| if errno == Errno::NOENT { Errno::NOSYS } else { errno };
    Ok(readlinkat(CWD, own_path(fd), Vec::new()).map_err(error)?.into_bytes())
}

/// Whether an entry is on a file system that no other machine changes.
pub(crate) fn is_of_this_machine(entry: &OwnedFd) -> Result<bool> {
    Ok(LOCAL_KINDS.contains(&(fstatfs(entry)?.f_type as u32)))
}

/// Whether a local file is in memory, or swapped out as memory of this process may be.
pub(crate) fn is_in_memory(file: impl AsFd) -> Result<bool> {
    Ok(fstatfs(file)?.f_type as u32 == TMPFS_KIND)
}

/// The device of the file system, without a request to another machine.
fn device(dir: BorrowedFd<'_>, path: &str) -> Result<Device> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(dir, path, flags, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// The directory and the last name of a path. Slashes at its end are ignored.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let (path, all) = (&path[..end], path);
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None if path.is_empty() && !all.is_empty() => (b"/", b""),
        None => (b".", path),
    }
}

/// A path as `std` wants it.
pub(crate) fn native(path: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_its_last_name() {
        let cases: [(&[u8], &[u8], &[u8]); 8] = [
            (b"a", b".", b"a"),
            (b"/a", b"/", b"a"),
            (b"a/b/", b"a", b"b"),
            (b"/a//b", b"/a/", b"b"),
            (b"/", b"/", b""),
            (b"", b".", b""),
            (b"a/..", b"a", b".."),
            (b"//", b"/", b""),
        ];
        for (path, parent, name) in cases {
            assert_eq!(split(path), (parent, name), "{path:?}");
        }
    }

    /// Other local file systems than that of the working directory are as quick.
    #[test]
    fn files_of_other_local_file_systems_need_no_other_machine() {
        let paths = Paths::new(None).unwrap();
        let start = device(CWD, ".").unwrap();
        let shared =
            paths.pin(b"/dev/shm", true).ok().filter(|dir| is_of_this_machine(dir).unwrap());
        let Some(shared) = shared.filter(|dir| device(dir.as_fd(), "").unwrap() != start) else {
            eprintln!("skipped: no other local file system");
            return;
        };
        let absent = paths.local(b"/dev/shm/absent", true);
        assert!(paths.file_system(&shared).is_none() && absent.is_some());
        assert!(paths.local(b"/proc/self/status", true).is_none());
    }

    /// Before Linux 5.12 the names are all that is known without a request.
    #[test]
    fn an_old_kernel_shows_the_file_system_by_the_names_of_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let of_proc = device(CWD, "/proc").unwrap();
        for root in [None, Some(Path::new("/"))] {
            let mut paths = Paths::new(root).unwrap();
            assert!(paths.has_cached);
            paths.has_cached = false;
            for path in ["/proc", "/proc/absent/x", "//proc/./self/../x", "/tmp/../proc/x"] {
                let found = paths.file_system_at(path.as_bytes(), true);
                let expected = FileSystem { device: of_proc, is_certain: false };
                assert_eq!(found, Some(expected), "{path}");
            }
            let local = dir.path().join("x");
            for path in [local.as_os_str().as_bytes(), b"/processes"] {
                assert_eq!(paths.file_system_at(path, true), None);
            }
        }
        let mut paths = Paths::new(Some(Path::new("/proc"))).unwrap();
        paths.has_cached = false;
        for path in [&b"/"[..], b"../..", b"/tmp", b""] {
            assert_eq!(paths.file_system_at(path, true).unwrap().device, of_proc);
        }
    }

    /// Numbers of network file systems are those of their servers.
    #[test]
    fn the_type_of_a_mount_shows_what_its_numbers_are() {
        use Numbers::{Changes, Identities, Nothing};
        let cases = [
            ("ext4", "rw", Identities),
            ("xfs", "rw", Identities),
            ("btrfs", "rw", Identities),
            ("tmpfs", "rw", Identities),
            ("nfs4", "rw", Identities),
            ("9p", "rw", Identities),
            ("virtiofs", "rw", Identities),
            ("cifs", "rw,serverino", Identities),
            ("cifs", "rw,noserverino", Nothing),
            ("overlay", "rw,lowerdir=/l", Changes),
            ("vfat", "rw", Nothing),
            ("exfat", "rw", Nothing),
            ("fuse", "rw", Nothing),
            ("fuse.sshfs", "rw", Nothing),
            ("fuseblk", "rw", Nothing),
        ];
        let line = |(minor, (kind, options, _)): (usize, &(&str, &str, Numbers))| {
            format!("{minor} 1 0:{minor} / /m/{minor} rw - {kind} source {options}\n")
        };
        let table: String = cases.iter().enumerate().map(line).collect();
        let found = types(&mountinfo::parse(table.as_bytes()));
        for (minor, (kind, options, numbers)) in (0..).zip(cases) {
            assert_eq!(found[&(0, minor)].numbers, numbers, "{kind} {options}");
        }
        assert!(found[&(0, 0)].is_local && !found[&(0, 4)].is_local);
    }

    #[test]
    fn a_mount_is_noticed_at_once() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can mount");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(None).unwrap();
        let status = paths.pin(b"/proc/self/status", true).unwrap();
        assert!(paths.file_system(&status).is_some());
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), None).unwrap();
        let mounted = paths.pin(dir.path().as_os_str().as_bytes(), true).unwrap();
        let found = paths.file_system(&mounted);
        unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        assert_eq!(found, None);
        // It is not in the table any more, although it still exists.
        assert!(paths.file_system(&mounted).is_some());
    }

    /// Each rename on the machine makes the kernel doubt where `..` leads.
    #[test]
    fn a_path_with_a_parent_is_found_while_files_are_renamed() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), "").unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        std::fs::write(&one, "").unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    std::fs::rename(&one, &other).unwrap();
                    std::fs::rename(&other, &one).unwrap();
                }
            });
            let found = (0..100_000).map(|_| paths.pin(b"d/../d/f", true).err());
            let failed = found.flatten().count();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0);
        });
    }

    #[test]
    fn what_has_taken_the_name_of_a_leased_file_is_opened_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, fifo, FileType::Fifo, mode, 0).unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let release = || panic!("it waits");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        assert!(paths.open_leased(b"fifo", flags, &release).unwrap().is_some());
    }

    #[test]
    fn no_path_leads_out_of_the_root() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        std::fs::create_dir_all(root.join("dir")).unwrap();
        std::fs::write(outer.path().join("secret"), "").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("up")).unwrap();
        std::os::unix::fs::symlink("/dir", root.join("absolute")).unwrap();
        let secret = outer.path().join("secret");
        std::os::unix::fs::symlink(&secret, root.join("dir/out")).unwrap();
        let paths = Paths::new(Some(&root)).unwrap();
        for path in [
            &b"../secret"[..],
            b"up",
            b"dir/out",
            b"dir/../../secret",
            secret.as_os_str().as_bytes(),
            b"/../secret",
        ] {
            let opened = paths.open(path, OFlags::RDONLY, Mode::empty());
            assert_eq!(opened.unwrap_err(), Errno::NOENT, "{}", path.escape_ascii());
        }
        // As in a chroot, `..` at the root is the root, and a link is relative to it.
        assert_eq!(paths.real(b"../..").unwrap(), b"/");
        assert_eq!(paths.real(b"absolute").unwrap(), b"/dir");
        assert_eq!(paths.real(b"dir/new").unwrap(), b"/dir/new");
        assert_eq!(paths.real(b"up").unwrap_err(), Errno::NOENT);
        for path in [&b".."[..], b"/", b"dir/..", b"."] {
            assert_eq!(paths.entry(path).err(), Some(Errno::BUSY), "{}", path.escape_ascii());
        }
    }
}
