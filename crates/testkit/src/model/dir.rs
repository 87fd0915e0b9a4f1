//! A local directory as a [`Subject`]: plain system calls below it.
//!
//! On a local file system it verifies the reference; below a mount point it tests the mount.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Access, Create, Errno, FileKind, OpenFlags, RenameMode, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};

use super::{Entry, FDS, Features, Stat, Subject};

/// A directory under test; removed with its content when dropped, unless it existed before.
#[derive(Debug)]
pub struct DirSubject {
    root: PathBuf,
    is_removed: bool,
    features: Features,
    open: [Option<OwnedFd>; FDS + 1],
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

impl DirSubject {
    /// A new directory below `parent`. `link_counts`: see [`Features`].
    ///
    /// # Panics
    ///
    /// If it cannot be created, or `/proc` does not show this process's umask.
    pub fn below(parent: &Path, link_counts: bool) -> DirSubject {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = parent.join(format!("subject-{}-{number}", std::process::id()));
        fs::create_dir(&root).unwrap_or_else(|why| panic!("making {}: {why}", root.display()));
        let features = Features { link_counts, umask: umask() };
        DirSubject { root, is_removed: true, features, open: [const { None }; FDS + 1] }
    }

    /// An existing directory, which is kept. `link_counts`: see [`Features`].
    ///
    /// # Panics
    ///
    /// If `/proc` does not show this process's umask.
    pub fn existing(root: &Path, link_counts: bool) -> DirSubject {
        let features = Features { link_counts, umask: umask() };
        let open = [const { None }; FDS + 1];
        DirSubject { root: root.to_owned(), is_removed: false, features, open }
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn fd(&self, fd: usize) -> Result<&OwnedFd> {
        self.open.get(fd).and_then(Option::as_ref).ok_or(Errno::EBADF)
    }
}

impl Drop for DirSubject {
    fn drop(&mut self) {
        self.open = [const { None }; FDS + 1];
        if !self.is_removed {
            return;
        }
        let removed = fs::remove_dir_all(&self.root);
        // If the test is failing already, its own message is the important one.
        if !std::thread::panicking() {
            removed.unwrap_or_else(|why| panic!("removing {}: {why}", self.root.display()));
        }
    }
}

/// This process's umask, read without changing it as `umask(2)` would, since other threads create
/// files at the same time.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc shows this process");
    let value = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let value = value.and_then(|value| u32::from_str_radix(value.trim(), 8).ok());
    value.expect("/proc/self/status has the umask since Linux 4.7")
}

#[allow(clippy::unnecessary_cast, reason = "on some machines these fields are 32 bits wide")]
fn stat(stat: rustix::fs::Stat) -> Result<Stat> {
    Ok(Stat {
        kind: FileKind::from_mode(stat.st_mode).ok_or(Errno::EIO)?,
        perm: stat.st_mode & 0o7777,
        size: stat.st_size as u64,
        mtime: stat.st_mtime as i64,
        links: stat.st_nlink as u64,
    })
}

fn times(secs: i64) -> Timestamps {
    let time = Timespec { tv_sec: secs, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn link_flag(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn kind(kind: fs::FileType) -> FileKind {
    match kind {
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        kind if kind.is_fifo() => FileKind::Fifo,
        kind if kind.is_socket() => FileKind::Socket,
        kind if kind.is_block_device() => FileKind::BlockDevice,
        kind if kind.is_char_device() => FileKind::CharDevice,
        _ => FileKind::Regular,
    }
}

impl Subject for DirSubject {
    fn features(&self) -> Features {
        self.features
    }

    fn open(&mut self, fd: usize, path: &str, flags: OpenFlags) -> Result<()> {
        let access = match flags.access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        let (create, perm) = match flags.create {
            Create::Never => (OFlags::empty(), 0),
            Create::IfAbsent(perm) => (OFlags::CREATE, perm),
            Create::Exclusive(perm) => (OFlags::CREATE | OFlags::EXCL, perm),
        };
        let mut all = access | create | OFlags::CLOEXEC;
        all.set(OFlags::TRUNC, flags.truncate);
        all.set(OFlags::APPEND, flags.append);
        let mode = Mode::from_raw_mode(perm);
        let opened = rustix::fs::open(self.at(path), all, mode).map_err(errno)?;
        let found = stat(rustix::fs::fstat(&opened).map_err(errno)?)?;
        if found.kind == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        self.open[fd] = Some(opened);
        Ok(())
    }

    fn close(&mut self, fd: usize) -> Result<()> {
        let file = self.open.get_mut(fd).and_then(Option::take).ok_or(Errno::EBADF)?;
        // With its result, which dropping the descriptor would discard.
        nix::unistd::close(file).map_err(|error| Errno::from_raw(error as i32))
    }

    fn pread(&mut self, fd: usize, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let count = rustix::io::pread(self.fd(fd)?, &mut bytes[..], offset).map_err(errno)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn pwrite(&mut self, fd: usize, offset: u64, data: &[u8]) -> Result<usize> {
        rustix::io::pwrite(self.fd(fd)?, data, offset).map_err(errno)
    }

    fn ftruncate(&mut self, fd: usize, size: u64) -> Result<()> {
        rustix::fs::ftruncate(self.fd(fd)?, size).map_err(errno)
    }

    fn fstat(&mut self, fd: usize) -> Result<Stat> {
        stat(rustix::fs::fstat(self.fd(fd)?).map_err(errno)?)
    }

    fn fsync(&mut self, fd: usize) -> Result<()> {
        rustix::fs::fsync(self.fd(fd)?).map_err(errno)
    }

    fn fchmod(&mut self, fd: usize, perm: u32) -> Result<()> {
        rustix::fs::fchmod(self.fd(fd)?, Mode::from_raw_mode(perm)).map_err(errno)
    }

    fn futimens(&mut self, fd: usize, secs: i64) -> Result<()> {
        rustix::fs::futimens(self.fd(fd)?, &times(secs)).map_err(errno)
    }

    fn copy_range(
        &mut self,
        from: usize,
        mut from_offset: u64,
        to: usize,
        mut to_offset: u64,
        len: usize,
    ) -> Result<usize> {
        let (source, target) = (self.fd(from)?.as_fd(), self.fd(to)?.as_fd());
        // A copy within one file may make it longer; the new part is not copied again.
        let size = rustix::fs::fstat(source).map_err(errno)?.st_size as u64;
        let most = size.saturating_sub(from_offset).min(len as u64) as usize;
        let mut done = 0;
        loop {
            let (from, to) = (Some(&mut from_offset), Some(&mut to_offset));
            let count = rustix::fs::copy_file_range(source, from, target, to, len - done);
            done += count.map_err(errno)?;
            if count == Ok(0) || done >= most {
                return Ok(done);
            }
        }
    }

    fn truncate(&mut self, path: &str, size: u64) -> Result<()> {
        let size = i64::try_from(size).map_err(|_| Errno::EINVAL)?;
        // Not in `rustix`. An open and `ftruncate` would be another operation.
        nix::unistd::truncate(&self.at(path), size).map_err(|error| Errno::from_raw(error as i32))
    }

    fn mkdir(&mut self, path: &str, perm: u32) -> Result<()> {
        rustix::fs::mkdir(self.at(path), Mode::from_raw_mode(perm)).map_err(errno)
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        rustix::fs::rmdir(self.at(path)).map_err(errno)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        rustix::fs::unlink(self.at(path)).map_err(errno)
    }

    fn symlink(&mut self, target: &str, path: &str) -> Result<()> {
        rustix::fs::symlink(target, self.at(path)).map_err(errno)
    }

    fn readlink(&mut self, path: &str) -> Result<Vec<u8>> {
        let target = rustix::fs::readlink(self.at(path), Vec::new()).map_err(errno)?;
        Ok(target.into_bytes())
    }

    fn link(&mut self, existing: &str, new: &str) -> Result<()> {
        rustix::fs::link(self.at(existing), self.at(new)).map_err(errno)
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags).map_err(errno)
    }

    fn chmod(&mut self, path: &str, perm: u32) -> Result<()> {
        rustix::fs::chmod(self.at(path), Mode::from_raw_mode(perm)).map_err(errno)
    }

    fn utimens(&mut self, path: &str, secs: i64, follow: bool) -> Result<()> {
        let flags = link_flag(follow);
        rustix::fs::utimensat(CWD, self.at(path), &times(secs), flags).map_err(errno)
    }

    fn stat(&mut self, path: &str, follow: bool) -> Result<Stat> {
        stat(rustix::fs::statat(CWD, self.at(path), link_flag(follow)).map_err(errno)?)
    }

    fn readdir(&mut self, path: &str) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            let entry = entry?;
            let name = entry.file_name().as_bytes().to_vec();
            entries.push((name, kind(entry.file_type()?)));
        }
        Ok(entries)
    }
}
