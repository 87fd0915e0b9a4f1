//! Files written into a directory of this machine, by system calls that cannot leave it.
//!
//! For content that comes from elsewhere than a [`base::Remote`] (an archive), and for many small
//! files, where one hop to another thread for each is much: all calls here block, so they belong
//! on a thread where that does no harm.
//!
//! Invariants:
//! 1. Directories on the way are opened by `openat2`, beneath the root and through no link; the
//!    last name is never followed. A directory that is kept open is the one that was there.
//! 2. A file is made under a temporary name that must not exist, for its owner alone, and renamed
//!    when it is whole. Dropped before, it is removed, or kept if it was begun so.
//! 3. Directories kept open are bounded.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base::{Attr, Errno, FileKind, Name, RemotePath, Result};
use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, Uid,
    XattrFlags, chmod, chownat, fchmod, fchown, fsetxattr, fstat, ftruncate, futimens, linkat,
    mkdirat, mknodat, openat, openat2, renameat, symlinkat, unlinkat, utimensat,
};

use crate::temporary;

/// How every path is resolved.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Directories that are kept open: files of one come together, from a few at a time.
const KEPT_DIRS: usize = 32;

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// What a finished file is to have.
#[derive(Clone, Debug, Default)]
pub struct Finish {
    /// Permission bits, `0o7777` at most.
    pub perm: u32,
    /// Owner and group, set before the permission bits. Refused by the system: they are left.
    pub owner: Option<(u32, u32)>,
    /// Time of last change. Without one it is now.
    pub mtime: Option<base::Timestamp>,
    /// Length in bytes, where the end was not written since it is a hole.
    pub size: Option<u64>,
    /// Extended attributes by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// How a file was finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// The system refused owner and group.
    pub owner_refused: bool,
    /// Extended attributes that the system or the file system refused.
    pub xattrs_refused: usize,
}

/// A directory that opened files are kept for, most recently used last.
type Kept = VecDeque<(RemotePath, Arc<OwnedFd>)>;

/// A local directory to write into. See the [module](self).
#[derive(Debug)]
pub struct Sink {
    root: Arc<OwnedFd>,
    kept: Mutex<Kept>,
}

/// A file that is not whole.
#[derive(Debug)]
pub struct Incoming {
    dir: Arc<OwnedFd>,
    temporary: Name,
    name: Name,
    file: OwnedFd,
    /// Bytes written by [`Incoming::append`].
    end: u64,
    keep: bool,
}

impl Sink {
    /// Opens the directory; here links are followed, since it is the user who names it.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: impl AsRef<Path>) -> Result<Sink> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path.as_ref(), flags, Mode::empty()).map_err(errno)?;
        Ok(Sink { root: Arc::new(root), kept: Mutex::default() })
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of this path, through no link.
    fn dir(&self, path: &RemotePath) -> Result<Arc<OwnedFd>> {
        if path.is_root() {
            return Ok(self.root.clone());
        }
        {
            let mut kept = self.kept();
            if let Some(at) = kept.iter().rposition(|(kept, _)| kept == path) {
                let found = kept.remove(at).expect("it was found there");
                let dir = found.1.clone();
                kept.push_back(found);
                return Ok(dir);
            }
        }
        let dir = openat2(&self.root, path.as_bytes(), DIRECTORY, Mode::empty(), CONFINED);
        let dir = Arc::new(dir.map_err(errno)?);
        let mut kept = self.kept();
        let old = (kept.len() >= KEPT_DIRS).then(|| kept.pop_front());
        kept.push_back((path.clone(), dir.clone()));
        drop(kept);
        drop(old);
        Ok(dir)
    }

    /// Directory and last name of `path`.
    pub(crate) fn place(&self, path: &RemotePath) -> Result<(Arc<OwnedFd>, Name)> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok((self.dir(&parent)?, name)),
            _ => Err(Errno::EBUSY),
        }
    }

    /// A whole regular file of that size, with its attributes; `None` where it is something else by
    /// now, or changes while it is read.
    ///
    /// # Errors
    /// The system's; `ELOOP` where a link is on the way, or has the name.
    pub(crate) fn read_whole(&self, path: &RemotePath, size: u64) -> Result<Option<(Attr, Bytes)>> {
        use std::io::Read;
        let (dir, name) = self.place(path)?;
        // A pipe has nobody at its other end.
        let flags = OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&dir, name.as_bytes(), flags, Mode::empty()).map_err(errno)?;
        let Some(before) = regular(&fstat(&file).map_err(errno)?) else { return Ok(None) };
        if before.size != size {
            return Ok(None);
        }
        let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
        let mut file = std::fs::File::from(file);
        let read = (&mut file).take(size + 1).read_to_end(&mut content);
        let len = read.map_err(Errno::from)? as u64;
        let after = regular(&fstat(&file).map_err(errno)?);
        let is_same = after.is_some_and(|after| (after.size, after.mtime) == (len, before.mtime));
        Ok(is_same.then(|| (before, Bytes::from(content))))
    }

    /// Forgets directories that are kept open, as is needed when one was moved or replaced.
    pub fn forget_dirs(&self) {
        let old = std::mem::take(&mut *self.kept());
        drop(old);
    }

    /// Begins the file `path`, a version of which with `attr` comes. What an earlier run has left
    /// under the same temporary name is removed first.
    ///
    /// # Errors
    /// The system's; `ELOOP` where a link is on the way.
    pub fn begin(&self, path: &RemotePath, attr: &Attr) -> Result<Incoming> {
        self.begin_named(path, attr, 0)
    }

    /// As [`Sink::begin`], for a file that comes from its beginning to its end: what there is of it
    /// when it is dropped is kept, and a later run goes on with it.
    ///
    /// # Errors
    /// As [`Sink::begin`].
    pub fn begin_lasting(&self, path: &RemotePath, attr: &Attr) -> Result<Incoming> {
        let mut incoming = self.begin_named(path, attr, temporary::SPAN_IN_ORDER)?;
        incoming.keep = true;
        Ok(incoming)
    }

    fn begin_named(&self, path: &RemotePath, attr: &Attr, span: u8) -> Result<Incoming> {
        let (dir, name) = self.place(path)?;
        let temporary = temporary::name(&name, attr, span);
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let make = || openat(&dir, temporary.as_bytes(), flags, Mode::RUSR | Mode::WUSR);
        let file = anew(&dir, &temporary, make)?;
        Ok(Incoming { dir, temporary, name, file, end: 0, keep: false })
    }

    /// Writes a whole file that has its name when this returns; with `sparse`, with holes in the
    /// place of blocks of zeros.
    ///
    /// # Errors
    /// The system's; then there is nothing of it.
    pub fn put(
        &self,
        path: &RemotePath,
        attr: &Attr,
        pieces: &[bytes::Bytes],
        finish: &Finish,
        sparse: bool,
    ) -> Result<Finished> {
        let mut incoming = self.begin(path, attr)?;
        if !sparse {
            for piece in pieces {
                incoming.append(piece)?;
            }
            return incoming.finish(finish);
        }
        let mut end = 0;
        for piece in pieces {
            for (offset, part) in crate::copy::solid(end, piece) {
                incoming.write_at(offset, &part)?;
            }
            end += piece.len() as u64;
        }
        incoming.finish(&Finish { size: Some(end), ..finish.clone() })
    }

    /// Makes a directory for its owner alone; one that is there is as good.
    ///
    /// # Errors
    /// The system's; `ENOTDIR` where something else has the name.
    pub fn make_dir(&self, path: &RemotePath) -> Result<()> {
        let (dir, name) = self.place(path)?;
        match mkdirat(&dir, name.as_bytes(), Mode::RWXU) {
            Err(rustix::io::Errno::EXIST) => self.dir(path).map(drop),
            made => made.map_err(errno),
        }
    }

    /// Makes a symbolic link in the place of whatever has the name and is no directory. It gets
    /// owner and time; what else `finish` has is not for links.
    ///
    /// # Errors
    /// The system's.
    pub fn make_link(
        &self,
        path: &RemotePath,
        target: &[u8],
        attr: &Attr,
        finish: &Finish,
    ) -> Result<Finished> {
        let (dir, name) = self.place(path)?;
        let temporary = temporary::name(&name, attr, 0);
        let make = || symlinkat(target, &dir, temporary.as_bytes());
        self.replacing(&dir, &temporary, &name, make, |dir, made| dress(dir, made, finish))
    }

    /// Makes `path` a further name of `existing`, which must be in the directory too.
    ///
    /// # Errors
    /// The system's.
    pub fn hard_link(&self, existing: &RemotePath, path: &RemotePath, attr: &Attr) -> Result<()> {
        let (from_dir, from) = self.place(existing)?;
        let (dir, name) = self.place(path)?;
        let temporary = temporary::name(&name, attr, 0);
        // Without `SYMLINK_FOLLOW` a link is not gone through.
        let flags = AtFlags::empty();
        let make = || linkat(&from_dir, from.as_bytes(), &dir, temporary.as_bytes(), flags);
        self.replacing(&dir, &temporary, &name, make, |_, _| Ok(Finished::default()))?;
        // A rename between two names of one file does nothing.
        let _ = unlinkat(&dir, temporary.as_bytes(), AtFlags::empty());
        Ok(())
    }

    /// Makes a device, a pipe or a socket, with `device` as its number.
    ///
    /// # Errors
    /// The system's, which makes devices for root only; `EINVAL` for what is none.
    pub fn make_special(
        &self,
        path: &RemotePath,
        attr: &Attr,
        device: u64,
        finish: &Finish,
    ) -> Result<Finished> {
        let (dir, name) = self.place(path)?;
        let kind = match attr.kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::CharDevice => FileType::CharacterDevice,
            _ => return Err(Errno::EINVAL),
        };
        let temporary = temporary::name(&name, attr, 0);
        // Nobody's before it has its owner.
        let make = || mknodat(&dir, temporary.as_bytes(), kind, Mode::empty(), device);
        self.replacing(&dir, &temporary, &name, make, |dir, made| {
            let finished = dress(dir, made, finish)?;
            set_perm(dir, made, finish.perm)?;
            Ok(finished)
        })
    }

    /// Makes something under a temporary name and gives it its own.
    fn replacing(
        &self,
        dir: &OwnedFd,
        temporary: &Name,
        name: &Name,
        make: impl Fn() -> rustix::io::Result<()>,
        prepare: impl Fn(&OwnedFd, &Name) -> Result<Finished>,
    ) -> Result<Finished> {
        anew(dir, temporary, make)?;
        let named = prepare(dir, temporary).and_then(|finished| {
            renameat(dir, temporary.as_bytes(), dir, name.as_bytes()).map_err(errno)?;
            Ok(finished)
        });
        if named.is_err() {
            let _ = unlinkat(dir, temporary.as_bytes(), AtFlags::empty());
        }
        named
    }

    /// Sets what a directory is to have, when everything in it is done.
    ///
    /// # Errors
    /// The system's.
    pub fn finish_dir(&self, path: &RemotePath, finish: &Finish) -> Result<Finished> {
        let from_root = if path.is_root() { &b"."[..] } else { path.as_bytes() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = openat2(&self.root, from_root, flags, Mode::empty(), CONFINED).map_err(errno)?;
        apply(&dir, finish)
    }
}

/// The attributes of a regular file; `None` of all else.
fn regular(stat: &rustix::fs::Stat) -> Option<Attr> {
    let time = |secs, nanos| base::Timestamp { secs, nanos: nanos as u32 };
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then(|| Attr {
        kind: FileKind::Regular,
        perm: stat.st_mode & 0o7777,
        size: stat.st_size as u64,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
    })
}

/// Makes what must not exist; what an earlier run has left of the name is removed.
fn anew<T>(dir: &OwnedFd, temporary: &Name, make: impl Fn() -> rustix::io::Result<T>) -> Result<T> {
    match make() {
        Err(rustix::io::Errno::EXIST) => {
            unlinkat(dir, temporary.as_bytes(), AtFlags::empty()).map_err(errno)?;
            make().map_err(errno)
        }
        made => made.map_err(errno),
    }
}

/// Gives owner and time to what cannot be opened.
fn dress(dir: &OwnedFd, made: &Name, finish: &Finish) -> Result<Finished> {
    let mut finished = Finished::default();
    if let Some((uid, gid)) = finish.owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let set = chownat(dir, made.as_bytes(), uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        finished.owner_refused = is_refused(set)?;
    }
    if let Some(mtime) = finish.mtime {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        utimensat(dir, made.as_bytes(), &times(mtime), flags).map_err(errno)?;
    }
    Ok(finished)
}

/// Sets permission bits of what must not be opened, and through no link that somebody else has put
/// in its place.
fn set_perm(dir: &OwnedFd, made: &Name, perm: u32) -> Result<()> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = openat(dir, made.as_bytes(), flags, Mode::empty()).map_err(errno)?;
    let name = format!("/proc/self/fd/{}", held.as_raw_fd());
    match FileType::from_raw_mode(fstat(&held).map_err(errno)?.st_mode) {
        FileType::Symlink => Err(Errno::ELOOP),
        _ => chmod(name, Mode::from_raw_mode(perm & 0o7777)).map_err(errno),
    }
}

/// Whether the system gives nothing away for this user.
fn is_refused(set: rustix::io::Result<()>) -> Result<bool> {
    match set {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::PERM | rustix::io::Errno::INVAL) => Ok(true),
        Err(error) => Err(errno(error)),
    }
}

fn times(mtime: base::Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}

/// Owner, then permission bits, which a change of owner takes bits from; times last.
fn apply(file: &OwnedFd, finish: &Finish) -> Result<Finished> {
    let mut finished = Finished::default();
    if let Some(size) = finish.size {
        ftruncate(file, size).map_err(errno)?;
    }
    if let Some((uid, gid)) = finish.owner {
        let set = fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        finished.owner_refused = is_refused(set)?;
    }
    for (name, value) in &finish.xattrs {
        if fsetxattr(file, &name[..], value, XattrFlags::empty()).is_err() {
            finished.xattrs_refused += 1;
        }
    }
    fchmod(file, Mode::from_raw_mode(finish.perm & 0o7777)).map_err(errno)?;
    if let Some(mtime) = finish.mtime {
        futimens(file, &times(mtime)).map_err(errno)?;
    }
    Ok(finished)
}

impl Incoming {
    /// Writes `data` behind what was appended before.
    ///
    /// # Errors
    /// The system's; any part may be written.
    pub fn append(&mut self, data: &[u8]) -> Result<()> {
        self.write_at(self.end, data)?;
        self.end += data.len() as u64;
        Ok(())
    }

    /// Leaves `len` bytes out behind what was appended before: a hole.
    pub fn skip(&mut self, len: u64) {
        self.end += len;
    }

    /// Bytes appended or skipped.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// The system's; any part may be written.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut written = 0;
        while written < data.len() {
            match rustix::io::pwrite(&self.file, &data[written..], offset + written as u64) {
                Ok(0) => return Err(Errno::EIO),
                Ok(count) => written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(())
    }

    /// Removes what there is of it when it is dropped, however it was begun.
    pub fn discard(&mut self) {
        self.keep = false;
    }

    /// Gives it what it is to have, and its name.
    ///
    /// # Errors
    /// The system's; then the old file is untouched. `EISDIR` where a directory has the name.
    pub fn finish(mut self, finish: &Finish) -> Result<Finished> {
        let finished = apply(&self.file, finish)?;
        renameat(&self.dir, self.temporary.as_bytes(), &self.dir, self.name.as_bytes())
            .map_err(errno)?;
        self.keep = true;
        Ok(finished)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.keep {
            let _ = unlinkat(self.dir.as_fd(), self.temporary.as_bytes(), AtFlags::empty());
        }
    }
}

/// What the system calls the file, for those who look for further names of it.
pub(crate) fn identity(root: &OwnedFd, path: &RemotePath) -> Option<(u64, u64, u64)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat2(root, path.as_bytes(), flags, Mode::empty(), CONFINED).ok()?;
    let stat = fstat(&file).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "on some machines these are narrower")]
    Some((stat.st_dev as u64, stat.st_ino as u64, stat.st_nlink as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use testkit::path;

    #[test]
    fn a_whole_file_is_read_if_it_is_the_one_that_was_meant() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("sub/dir")).unwrap();
        fs::write(at("sub/file"), "content").unwrap();
        fs::write(at("empty"), "").unwrap();
        fs::write(outside.path().join("file"), "content").unwrap();
        symlink(outside.path(), at("way")).unwrap();
        symlink("sub/file", at("link")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let sink = Sink::open(dir.path()).unwrap();
        let read = |name: &str, size| sink.read_whole(&path(name), size);
        let (attr, content) = read("sub/file", 7).unwrap().unwrap();
        assert_eq!((&content[..], attr.size, attr.kind), (&b"content"[..], 7, FileKind::Regular));
        assert_eq!(read("empty", 0).unwrap().unwrap().1.len(), 0);
        for size in [0, 6, 8] {
            assert_eq!(read("sub/file", size), Ok(None), "{size}");
        }
        // A pipe without a writer is not waited for.
        for other in ["sub/dir", "pipe"] {
            assert_eq!(read(other, 0), Ok(None), "{other}");
        }
        assert_eq!(read("link", 7), Err(Errno::ELOOP));
        assert!(matches!(read("way/file", 7), Err(Errno::ELOOP | Errno::ENOTDIR)));
        assert_eq!(read("absent", 7), Err(Errno::ENOENT));
    }
}
