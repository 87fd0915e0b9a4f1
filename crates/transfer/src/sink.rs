//! Files written into a local directory, by system calls that cannot leave it.
//!
//! For contents that do not come from a [`base::Remote`] (an archive), and for many small files,
//! where a change of threads for each costs too much: all calls block, so they belong on a thread
//! that may.
//!
//! Invariants:
//! 1. Directories are opened by `openat2`, beneath the root and through no link; the last component
//!    is never followed. A directory that is kept open is the one that was found.
//! 2. A file has a temporary name of its own, and only its owner may read it, until it is whole. It
//!    is renamed if that name is still the name of the file that was written. Dropped before, it is
//!    removed, or kept if it was created so.
//! 3. A file that another run may continue is locked (`flock`) while it is written.
//! 4. The number of directories kept open is bounded.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use base::{Attr, AttrChange, Errno, FileKind, Mutex, Name, RemotePath, Result, SetXattr};
use bytes::Bytes;
use local::{errno, open_beneath};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags, flock,
    fsetxattr, fstat, fsync, linkat, major, minor, mkdirat, openat, renameat, renameat_with,
    statat, symlinkat, unlinkat,
};

use crate::copy::parts;
use crate::setid;
use crate::temporary::{self, MachineRun};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Directories that are kept open: the files of one arrive together, from a few at a time.
const KEPT_DIRS: usize = 32;

/// What a finished file is to have.
#[derive(Clone, Debug, Default)]
pub struct Finish {
    /// Permission bits, `0o7777` at most. Set-ID bits of a file are left out, but for `set_ids`.
    pub perm: u32,
    /// The file keeps its set-ID bits if it has this owner and group then.
    pub set_ids: Option<(u32, u32)>,
    /// Owner and group, set before the permission bits. Refused by the system: they are left.
    pub owner: Option<(u32, u32)>,
    /// Time of last change. Without one it is now.
    pub mtime: Option<base::Timestamp>,
    /// Length in bytes, where the end was not written since it is a hole.
    pub size: Option<u64>,
    /// Extended attributes by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Write it to the disk. [`Sink::sync_dir`] does so for its name.
    pub fsync: bool,
    /// Replaces no entry: `EEXIST` if the name exists, perhaps because of a name collision.
    pub is_new: bool,
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
    /// Directories that were synced.
    #[cfg(test)]
    pub(crate) synced: Mutex<Vec<RemotePath>>,
}

/// A file that is not whole.
#[derive(Debug)]
pub struct Incoming {
    dir: Arc<OwnedFd>,
    temporary: Name,
    name: Name,
    /// There until it is closed to be renamed.
    file: Option<OwnedFd>,
    keep: bool,
}

/// A lock on a file: no other run writes to it until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Lock {
    /// The owner of the file.
    pub(crate) fn uid(&self) -> Result<u32> {
        Ok(fstat(&self.0).map_err(errno)?.st_uid)
    }
}

impl Sink {
    /// Opens the directory. Links are followed, since the user has named it.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: impl AsRef<Path>) -> Result<Sink> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path.as_ref(), flags, Mode::empty()).map_err(errno)?;
        Ok(Sink {
            root: Arc::new(root),
            kept: Mutex::default(),
            #[cfg(test)]
            synced: Mutex::default(),
        })
    }

    /// Opens the directory of this path, following no link.
    pub(crate) fn dir(&self, path: &RemotePath) -> Result<Arc<OwnedFd>> {
        if path.is_root() {
            return Ok(self.root.clone());
        }
        {
            let mut kept = self.kept.lock();
            if let Some(at) = kept.iter().rposition(|(kept, _)| kept == path) {
                let found = kept.remove(at).expect("it was found there");
                let dir = found.1.clone();
                kept.push_back(found);
                return Ok(dir);
            }
        }
        let dir = open_beneath(&self.root, path.as_bytes(), DIRECTORY);
        let dir = Arc::new(dir.map_err(errno)?);
        let mut kept = self.kept.lock();
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
    /// Those of the system; `ELOOP` if a component of the path is a link.
    pub(crate) fn read_whole(&self, path: &RemotePath, size: u64) -> Result<Option<(Attr, Bytes)>> {
        use std::io::Read;
        let (dir, name) = self.place(path)?;
        // A pipe may have no writer.
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

    /// Device, inode and number of names of a file, if it can be learned.
    #[allow(clippy::unnecessary_cast, reason = "on some machines these are narrower")]
    pub(crate) fn identity(&self, path: &RemotePath) -> Option<(u64, u64, u64)> {
        let file = open_beneath(&self.root, path.as_bytes(), OFlags::PATH).ok()?;
        let stat = fstat(&file).ok()?;
        Some((stat.st_dev as u64, stat.st_ino as u64, stat.st_nlink as u64))
    }

    /// Major and minor number of a device.
    ///
    /// # Errors
    /// Those of the system; `ELOOP` if a component of the path is a link.
    pub(crate) fn device(&self, path: &RemotePath) -> Result<(u32, u32)> {
        let file = open_beneath(&self.root, path.as_bytes(), OFlags::PATH).map_err(errno)?;
        let device = fstat(&file).map_err(errno)?.st_rdev;
        Ok((major(device), minor(device)))
    }

    /// Begins the file `path`, a version of which with `attr` comes.
    ///
    /// # Errors
    /// Those of the system; `ELOOP` if a component of the path but the last is a link.
    pub fn begin(&self, path: &RemotePath, attr: &Attr) -> Result<Incoming> {
        self.begin_named(path, attr, 0)
    }

    /// As [`Sink::begin`], for a file that arrives in order. When it is dropped, it is kept for a
    /// later run to continue.
    ///
    /// # Errors
    /// As [`Sink::begin`].
    pub fn begin_lasting(&self, path: &RemotePath, attr: &Attr) -> Result<Incoming> {
        let mut incoming = self.begin_named(path, attr, temporary::SPAN_IN_ORDER)?;
        // Without a lock (not every file system has them) the check of the name is what is left.
        if let Some(file) = &incoming.file {
            let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
        }
        incoming.keep = true;
        Ok(incoming)
    }

    fn begin_named(&self, path: &RemotePath, attr: &Attr, span: u8) -> Result<Incoming> {
        let (dir, name) = self.place(path)?;
        let temporary = temporary::name(&name, attr, span, MachineRun::here());
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let file = openat(&dir, temporary.as_bytes(), flags, Mode::RUSR | Mode::WUSR);
        let file = Some(file.map_err(errno)?);
        Ok(Incoming { dir, temporary, name, file, keep: false })
    }

    /// Locks what another run has left at `path`, or is writing: `None` where it is at work, or
    /// where this is no file, or one that has further names.
    ///
    /// # Errors
    /// Those of the system; `ELOOP` if a component of the path is a link.
    pub(crate) fn lock(&self, path: &RemotePath) -> Result<Option<Lock>> {
        let (dir, name) = self.place(path)?;
        // For writing, since NFS locks nothing else. A pipe may have no reader.
        let flags =
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&dir, name.as_bytes(), flags, Mode::empty()).map_err(errno)?;
        // Not every file system has locks: other errors are passed over.
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(rustix::io::Errno::WOULDBLOCK) {
            return Ok(None);
        }
        let stat = fstat(&file).map_err(errno)?;
        let is_alone = regular(&stat).is_some() && stat.st_nlink == 1;
        Ok(is_alone.then_some(Lock(file)))
    }

    /// Whether `path` is the name of the file that is locked.
    ///
    /// # Errors
    /// The system's, but for a name that is not there.
    pub(crate) fn names(&self, path: &RemotePath, lock: &Lock) -> Result<bool> {
        let (dir, name) = self.place(path)?;
        is_name_of(&dir, &name, &lock.0)
    }

    /// Writes a whole file, which then has its name; with `sparse`, with holes instead of blocks of
    /// zeros. If another run renames the temporary file meanwhile, it is written again.
    ///
    /// # Errors
    /// Those of the system; then no part of the file exists.
    pub fn put(
        &self,
        path: &RemotePath,
        attr: &Attr,
        pieces: &[bytes::Bytes],
        finish: &Finish,
        sparse: bool,
    ) -> Result<Finished> {
        let once = || {
            let incoming = self.begin(path, attr)?;
            let mut end = 0;
            for piece in pieces {
                incoming.write_at(end, piece, sparse)?;
                end += piece.len() as u64;
            }
            incoming.finish(&Finish { size: sparse.then_some(end), ..finish.clone() })
        };
        match once() {
            Err(Errno::ESTALE) => once(),
            end => end,
        }
    }

    /// Creates a directory with mode 0700; one that exists is used as it is. Returns whether it was
    /// created.
    ///
    /// # Errors
    /// Those of the system; `ENOTDIR` if an entry of another kind has the name.
    pub fn make_dir(&self, path: &RemotePath) -> Result<bool> {
        let (dir, name) = self.place(path)?;
        match mkdirat(&dir, name.as_bytes(), Mode::RWXU) {
            Err(rustix::io::Errno::EXIST) => self.dir(path).map(|_| false),
            made => made.map(|()| true).map_err(errno),
        }
    }

    /// Makes a symbolic link, which replaces an entry of this name that is no directory. Of
    /// `finish`, only owner, extended attributes and time apply to links.
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
        let make = |temporary: &Name| symlinkat(target, &dir, temporary.as_bytes()).map_err(errno);
        let prepare = |made: &Name| apply_pinned(&pinned(&dir, made)?, finish, None);
        self.replacing((&dir, &name, finish.is_new), attr, make, prepare)
    }

    /// Makes `path`, which must not exist if `is_new`, a further name of `existing`, which must be
    /// in the directory too.
    ///
    /// # Errors
    /// The system's.
    pub fn hard_link(
        &self,
        existing: &RemotePath,
        path: &RemotePath,
        attr: &Attr,
        is_new: bool,
    ) -> Result<()> {
        let (from_dir, from) = self.place(existing)?;
        let (dir, name) = self.place(path)?;
        // Without `SYMLINK_FOLLOW` a link is not gone through.
        let flags = AtFlags::empty();
        let make = |temporary: &Name| {
            linkat(&from_dir, from.as_bytes(), &dir, temporary.as_bytes(), flags).map_err(errno)
        };
        let prepare = |_: &Name| Ok(Finished::default());
        self.replacing((&dir, &name, is_new), attr, make, prepare).map(drop)
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
        // With no rights before it has its owner.
        let make = |temporary: &Name| {
            let place = (dir.as_fd(), temporary.as_bytes());
            local::make_node(place, attr.kind, 0, (major(device), minor(device)))
        };
        let perm = Some(finish.perm & 0o1777);
        let prepare = |made: &Name| apply_pinned(&pinned(&dir, made)?, finish, perm);
        self.replacing((&dir, &name, finish.is_new), attr, make, prepare)
    }

    /// Creates an entry under a temporary name and renames it to `name`, which must not exist if
    /// `is_new`. If another run renames the temporary entry meanwhile, it is created once more.
    fn replacing(
        &self,
        (dir, name, is_new): (&OwnedFd, &Name, bool),
        attr: &Attr,
        make: impl Fn(&Name) -> Result<()>,
        prepare: impl Fn(&Name) -> Result<Finished>,
    ) -> Result<Finished> {
        let once = || -> Result<Result<Finished>> {
            let temporary = temporary::name(name, attr, 0, MachineRun::here());
            make(&temporary)?;
            let named = prepare(&temporary).and_then(|finished| {
                rename(dir, &temporary, name, is_new)?;
                Ok(finished)
            });
            // A rename between two names of one file does nothing, and leaves both.
            let _ = unlinkat(dir, temporary.as_bytes(), AtFlags::empty());
            Ok(named)
        };
        match once()? {
            Err(Errno::ENOENT) => once()?,
            end => end,
        }
    }

    /// Sets the mtime of an entry that is no directory.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn set_mtime(&self, path: &RemotePath, mtime: base::Timestamp) -> Result<()> {
        let (dir, name) = self.place(path)?;
        let change = AttrChange { mtime: Some(mtime), ..AttrChange::default() };
        local::set_pinned(&pinned(&dir, &name)?, &change)
    }

    /// Returns when the names in the directory are on the disk.
    ///
    /// # Errors
    /// The system's.
    pub fn sync_dir(&self, path: &RemotePath) -> Result<()> {
        fsync(self.open_dir(path)?).map_err(errno)?;
        #[cfg(test)]
        self.synced.lock().push(path.clone());
        Ok(())
    }

    fn open_dir(&self, path: &RemotePath) -> Result<OwnedFd> {
        let from_root = if path.is_root() { &b"."[..] } else { path.as_bytes() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open_beneath(&self.root, from_root, flags).map_err(errno)
    }

    /// Sets what a directory is to have, when everything in it is done.
    ///
    /// # Errors
    /// The system's.
    pub fn finish_dir(&self, path: &RemotePath, finish: &Finish) -> Result<Finished> {
        apply(&self.open_dir(path)?, finish)
    }
}

/// Gives an entry its name. With `is_new` no entry is replaced.
fn rename(dir: &OwnedFd, from: &Name, to: &Name, is_new: bool) -> Result<()> {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    if is_new {
        match renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
            // Not every file system supports the flag.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                if statat(dir, to, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                    return Err(Errno::EEXIST);
                }
            }
            renamed => return renamed.map_err(errno),
        }
    }
    renameat(dir, from, dir, to).map_err(errno)
}

/// The attributes of a regular file; `None` of all else.
fn regular(stat: &rustix::fs::Stat) -> Option<Attr> {
    local::attr(stat).ok().filter(|attr| attr.kind == FileKind::Regular)
}

/// Whether the name is that of the open file.
fn is_name_of(dir: &OwnedFd, name: &Name, file: &OwnedFd) -> Result<bool> {
    let open = fstat(file).map_err(errno)?;
    match statat(dir, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (open.st_dev, open.st_ino)),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(error) => Err(errno(error)),
    }
}

/// Gives owner, extended attributes, permission bits and time to what must not be opened.
fn apply_pinned(made: &OwnedFd, finish: &Finish, perm: Option<u32>) -> Result<Finished> {
    let owner_refused = is_refused(local::set_pinned(made, &owner(finish)))?;
    let is_refused = |(name, value): &&(Vec<u8>, Vec<u8>)| {
        local::set_xattr(made, name, value, SetXattr::Either).is_err()
    };
    let xattrs_refused = finish.xattrs.iter().filter(is_refused).count();
    local::set_pinned(made, &AttrChange { perm, mtime: finish.mtime, ..AttrChange::default() })?;
    Ok(Finished { owner_refused, xattrs_refused })
}

/// The entry itself, opened only to be named.
fn pinned(dir: &OwnedFd, name: &Name) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name.as_bytes(), flags, Mode::empty()).map_err(errno)
}

/// Whether the system has refused the change (`EPERM`, `EINVAL`). Other errors are returned.
fn is_refused(set: Result<()>) -> Result<bool> {
    match set {
        Err(Errno::EPERM | Errno::EINVAL) => Ok(true),
        set => set.map(|()| false),
    }
}

/// Owner and group, if there are any.
fn owner(finish: &Finish) -> AttrChange {
    let (uid, gid) = finish.owner.unzip();
    AttrChange { uid, gid, ..AttrChange::default() }
}

/// Owner, then permission bits, which a change of owner takes bits from; times last.
fn apply(file: &OwnedFd, finish: &Finish) -> Result<Finished> {
    local::set_opened(file, &AttrChange { size: finish.size, ..AttrChange::default() })?;
    let owner_refused = is_refused(local::set_opened(file, &owner(finish)))?;
    let is_refused = |(name, value): &&(Vec<u8>, Vec<u8>)| {
        fsetxattr(file, &name[..], value, XattrFlags::empty()).is_err()
    };
    let xattrs_refused = finish.xattrs.iter().filter(is_refused).count();
    let perm = Some(perm(file, finish)?);
    local::set_opened(file, &AttrChange { perm, mtime: finish.mtime, ..AttrChange::default() })?;
    if finish.fsync {
        fsync(file).map_err(errno)?;
    }
    Ok(Finished { owner_refused, xattrs_refused })
}

/// The permission bits that an open file, which has its owner by now, may have.
fn perm(file: &OwnedFd, finish: &Finish) -> Result<u32> {
    let perm = finish.perm & 0o7777;
    if perm & setid::BITS == 0 {
        return Ok(perm);
    }
    let stat = fstat(file).map_err(errno)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => return Ok(setid::without(FileKind::Directory, perm)),
        _ => FileKind::Regular,
    };
    let now = (stat.st_uid, stat.st_gid);
    let kept = finish.set_ids.map_or(0, |owner| setid::kept(perm, owner, now));
    Ok(setid::without(kind, perm) | kept)
}

impl Incoming {
    /// Writes all of `data` at `offset`; with `sparse`, without its blocks of zeros.
    ///
    /// # Errors
    /// The system's; any part may be written.
    pub fn write_at(&self, offset: u64, data: &[u8], sparse: bool) -> Result<()> {
        let file = self.file.as_ref().ok_or(Errno::EBADF)?;
        for mut part in parts(offset, data, sparse) {
            while !part.is_empty() {
                let at = offset + part.start as u64;
                match rustix::io::pwrite(file, &data[part.clone()], at) {
                    Ok(0) => return Err(Errno::EIO),
                    Ok(count) => part.start += count,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(errno(error)),
                }
            }
        }
        Ok(())
    }

    /// Removes the file when it is dropped, however it was created.
    pub fn discard(&mut self) {
        self.keep = false;
    }

    /// Gives it what it is to have, and its name.
    ///
    /// # Errors
    /// Those of the system; then the old file is untouched. `EISDIR` if a directory has the name,
    /// and `ESTALE` if another run has renamed the temporary file.
    pub fn finish(mut self, finish: &Finish) -> Result<Finished> {
        let file = self.file.take().ok_or(Errno::EBADF)?;
        let finished = apply(&file, finish)?;
        if !is_name_of(&self.dir, &self.temporary, &file)? {
            self.keep = true;
            return Err(Errno::ESTALE);
        }
        // Keeps the lock until the file has its name.
        let _locked = file.try_clone()?;
        local::close(file)?;
        let renamed = rename(&self.dir, &self.temporary, &self.name, finish.is_new);
        // The file is complete, but its name is taken: it is not kept for a later run.
        self.keep &= renamed != Err(Errno::EEXIST);
        renamed?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::Timestamp;
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
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
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

    fn attr(size: u64) -> Attr {
        let time = Timestamp::from_secs(7);
        let kind = FileKind::Regular;
        Attr { kind, perm: 0o644, size, uid: 0, gid: 0, atime: time, mtime: time, inode: None }
    }

    fn temporary_in(dir: &Path) -> RemotePath {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names = names.filter(|name| name.to_string_lossy().contains(".sshoal-"));
        path(names.next().unwrap().to_str().unwrap())
    }

    #[test]
    fn what_is_being_written_is_locked_until_its_writer_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let sink = Sink::open(dir.path()).unwrap();
        let incoming = sink.begin_lasting(&path("f"), &attr(9)).unwrap();
        incoming.write_at(0, b"begun", false).unwrap();
        let left = temporary_in(dir.path());
        assert!(sink.lock(&left).unwrap().is_none(), "its writer is at work");
        drop(incoming);
        let lock = sink.lock(&left).unwrap().unwrap();
        assert!(sink.lock(&left).unwrap().is_none(), "somebody else has it");
        assert!(sink.names(&left, &lock).unwrap());
        fs::rename(dir.path().join(left.to_string()), dir.path().join("claimed")).unwrap();
        assert!(!sink.names(&left, &lock).unwrap());
        assert!(sink.names(&path("claimed"), &lock).unwrap());
        drop(lock);
        fs::hard_link(dir.path().join("claimed"), dir.path().join("another name")).unwrap();
        assert!(sink.lock(&path("claimed")).unwrap().is_none(), "it has another name");
    }

    #[test]
    fn a_file_that_was_taken_away_does_not_get_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let sink = Sink::open(dir.path()).unwrap();
        for replaced in [false, true] {
            let incoming = sink.begin(&path("f"), &attr(5)).unwrap();
            incoming.write_at(0, b"right", false).unwrap();
            let temporary = dir.path().join(temporary_in(dir.path()).to_string());
            fs::rename(&temporary, dir.path().join("taken")).unwrap();
            if replaced {
                fs::write(&temporary, "wrong").unwrap();
            }
            assert_eq!(incoming.finish(&Finish::default()), Err(Errno::ESTALE));
            assert!(!dir.path().join("f").exists());
        }
    }
}
