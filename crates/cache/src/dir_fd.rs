//! A directory of the store by its descriptor: every name is one component, and no link is
//! followed.
//!
//! The store's directory belongs to the user alone, but may not always have: entries that another
//! user could have planted (a link, a FIFO, a hard link to some other file) are refused here, in
//! one place. This module does not know what the files are for.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use base::{AttrChange, Timestamp};
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

/// How long a lock is waited for. Its holders do a few system calls under it; a holder that was
/// stopped meanwhile must not stop other processes.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);

/// Time in seconds after which a use is recorded again. A finer resolution is not needed to order
/// files by age, and each record is a write to the disk.
pub(crate) const USE_SECS: i64 = 3600;

/// An open directory.
#[derive(Debug)]
pub(crate) struct DirFd(OwnedFd);

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl DirFd {
    /// The directory at a path given by the user; links in it are followed.
    pub(crate) fn at(path: &Path) -> io::Result<DirFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(DirFd(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    pub(crate) fn sub(&self, name: &[u8]) -> io::Result<DirFd> {
        Ok(DirFd(rustix::fs::openat(&self.0, name, DIR_FLAGS, Mode::empty())?))
    }

    /// Opens the directory `name`; creates it if it is absent.
    pub(crate) fn make_sub(&self, name: &[u8]) -> io::Result<DirFd> {
        match self.sub(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match rustix::fs::mkdirat(&self.0, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.sub(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a directory several levels below, through no link; creates those that are absent.
    pub(crate) fn make_below(&self, path: &[u8]) -> io::Result<DirFd> {
        match self.below(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        // A tree is mostly created from its root down.
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => self.make_below(&path[..at])?.make_sub(&path[at + 1..]),
            None => self.make_sub(path),
        }
    }

    /// A directory several levels below, through no link.
    pub(crate) fn below(&self, path: &[u8]) -> io::Result<DirFd> {
        Ok(DirFd(self.open_below(path, DIR_FLAGS)?))
    }

    fn open_below(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        match local::open_beneath(&self.0, path, flags) {
            // The directory was moved away during the look-up.
            Err(Errno::XDEV) => Err(Errno::NOENT.into()),
            opened => Ok(opened?),
        }
    }

    /// A new file; fails if the name exists.
    pub(crate) fn create(&self, name: &[u8]) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    pub(crate) fn read_only(&self, name: &[u8]) -> io::Result<(File, Stat)> {
        self.existing(name, OFlags::RDONLY)
    }

    /// The whole file; `None` if it is longer than `max_bytes`.
    pub(crate) fn read_whole(&self, name: &[u8], max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let (file, stat) = self.read_only(name)?;
        match stat.st_size as u64 {
            len if len <= max_bytes => read_exact_at(&file, 0, len as usize),
            _ => Ok(None),
        }
    }

    pub(crate) fn read_write(&self, name: &[u8]) -> io::Result<(File, Stat)> {
        self.existing(name, OFlags::RDWR)
    }

    /// Opens the file `name` for reading and writing; creates it if it is absent.
    pub(crate) fn ensure(&self, name: &[u8]) -> io::Result<(File, Stat)> {
        self.existing(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// A file several levels below, through no link.
    pub(crate) fn file_below(&self, path: &[u8], flags: OFlags) -> io::Result<(File, Stat)> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        checked(self.open_below(path, flags)?, flags)
    }

    fn existing(&self, name: &[u8], flags: OFlags) -> io::Result<(File, Stat)> {
        // Without O_NONBLOCK the open of a FIFO would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        checked(fd, flags)
    }

    /// The status of the name itself, if it is a link.
    pub(crate) fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Whether the name is that of this open file.
    pub(crate) fn leads_to(&self, name: &[u8], file: &File) -> bool {
        let same =
            |one: Stat, other: Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        rustix::fs::fstat(file).is_ok_and(|it| self.stat(name).is_ok_and(|at| same(at, it)))
    }

    pub(crate) fn rename(&self, from: &[u8], to_dir: &DirFd, to: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &to_dir.0, to)?)
    }

    /// Renames `from`; fails if the new name exists.
    pub(crate) fn rename_new(&self, from: &[u8], to_dir: &DirFd, to: &[u8]) -> io::Result<()> {
        let renamed =
            rustix::fs::renameat_with(&self.0, from, &to_dir.0, to, RenameFlags::NOREPLACE);
        match renamed {
            // Some file systems do not support the flag. A hard link has the same effect.
            Err(Errno::INVAL) => {
                rustix::fs::linkat(&self.0, from, &to_dir.0, to, AtFlags::empty())?;
                self.unlink(from)
            }
            renamed => Ok(renamed?),
        }
    }

    pub(crate) fn unlink(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    pub(crate) fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// All names with their types, without `.` and `..`.
    pub(crate) fn names(&self) -> io::Result<Vec<(Vec<u8>, FileType)>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push((name.to_vec(), self.type_of(name, entry.file_type())));
            }
        }
        Ok(names)
    }

    fn type_of(&self, name: &[u8], listed: FileType) -> FileType {
        match listed {
            FileType::Unknown => {
                self.stat(name).map_or(listed, |stat| FileType::from_raw_mode(stat.st_mode))
            }
            known => known,
        }
    }

    pub(crate) fn own_stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }

    pub(crate) fn fd(&self) -> impl AsFd {
        &self.0
    }
}

/// Accepts only files that the store may have created: a regular file, and for writing only one
/// without another name, since that could be any file of the user.
fn checked(fd: OwnedFd, flags: OFlags) -> io::Result<(File, Stat)> {
    let stat = rustix::fs::fstat(&fd)?;
    let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !regular || writes && stat.st_nlink > 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of the cache"));
    }
    Ok((fd.into(), stat))
}

/// Takes the lock of an open file; `false` if it was held for longer than the limit.
pub(crate) fn lock(file: &File) -> io::Result<bool> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        if try_lock(file)? {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes the lock of an open file if it is free. Closing the file releases it, also when the
/// process is killed.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes a lock that others may share, unless it is held exclusively.
pub(crate) fn lock_shared(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::NonBlockingLockShared)?)
}

/// Whether the last use that is recorded in the atime was more than an hour ago.
pub(crate) fn is_use_due(stat: &Stat) -> bool {
    (Timestamp::now().secs - stat.st_atime).abs() >= USE_SECS
}

/// Records in the atime that a file was used now; at most once an hour.
pub(crate) fn note_use(file: &File, stat: &Stat) {
    if !is_use_due(stat) {
        return;
    }
    let atime = Some(Timestamp::now());
    // If it fails, the file seems older than it is.
    let _ = local::set_opened(file, &AttrChange { atime, ..AttrChange::default() });
}

/// Reads exactly `len` bytes from `offset`; `None` when the file ends before.
pub(crate) fn read_exact_at(file: &File, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; len];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_fd() -> (tempfile::TempDir, DirFd) {
        let dir = tempfile::tempdir().unwrap();
        let dir_fd = DirFd::at(dir.path()).unwrap();
        (dir, dir_fd)
    }

    #[test]
    fn links_and_special_files_in_the_store_are_refused() {
        let (dir, dir_fd) = dir_fd();
        std::fs::write(dir.path().join("mine"), "x").unwrap();
        std::fs::hard_link(dir.path().join("mine"), dir.path().join("second")).unwrap();
        std::os::unix::fs::symlink("mine", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink(".", dir.path().join("dir")).unwrap();
        rustix::fs::mknodat(dir_fd.fd(), "fifo", FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(dir_fd.read_only(b"link").is_err());
        assert!(dir_fd.read_only(b"fifo").is_err());
        assert!(dir_fd.read_only(b"dir").is_err());
        assert!(dir_fd.sub(b"dir").is_err());
        assert!(dir_fd.make_sub(b"dir").is_err());
        assert!(dir_fd.below(b"dir").is_err());
        assert!(dir_fd.file_below(b"dir/mine", OFlags::RDONLY).is_err());
        assert!(dir_fd.ensure(b"link").is_err());
        assert!(dir_fd.create(b"link").is_err());
        assert!(dir_fd.read_write(b"second").is_err(), "another name of a file");
        assert!(dir_fd.read_only(b"second").is_ok());
    }

    #[test]
    fn a_lock_ends_with_its_holder() {
        let (_dir, dir_fd) = dir_fd();
        let (first, _) = dir_fd.ensure(b"lock").unwrap();
        let (second, _) = dir_fd.ensure(b"lock").unwrap();
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        assert!(!lock(&second).unwrap(), "gives up");
        drop(first);
        assert!(lock(&second).unwrap());
    }

    #[test]
    fn a_use_is_noted_once_an_hour() {
        let (_dir, dir_fd) = dir_fd();
        let (file, stat) = dir_fd.ensure(b"file").unwrap();
        let long_ago = Some(Timestamp::from_secs(1000));
        let change = AttrChange { atime: long_ago, mtime: long_ago, ..AttrChange::default() };
        local::set_opened(&file, &change).unwrap();
        note_use(&file, &stat);
        assert_eq!(dir_fd.stat(b"file").unwrap().st_atime, 1000, "the hour is not over");
        note_use(&file, &dir_fd.stat(b"file").unwrap());
        let stat = dir_fd.stat(b"file").unwrap();
        assert!(stat.st_atime > 1000);
        assert_eq!(stat.st_mtime, 1000);
    }
}
