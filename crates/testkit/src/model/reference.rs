//! The reference: a local file system as seen by a process on Linux.
//!
//! Names and inodes are [`Tree`]'s; this module adds what a process sees: following links at the
//! end of a path, open files, and the errnos of open files.
//!
//! Times: an operation sets [`RECENT`], which [`check`](super::check) compares with the time of the
//! run; [`UNKNOWN`] if POSIX leaves open whether the time changes.

use base::{AttrChange, Create, Errno, FileKind, OpenFlags, RenameMode, Result, Timestamp};

use super::journal::{Change, Effect};
use super::op::pattern;
use super::{Entry, FDS, Features, Op, Stat, Subject};
use crate::clock::ManualClock;
use crate::path;
use crate::tree::{Follow, Ino, Limits, OpenFile, Tree};

/// An mtime: some time since the run began.
pub(super) const RECENT: i64 = i64::MAX;

/// An mtime: unchanged, or [`RECENT`].
pub(super) const UNKNOWN: i64 = i64::MAX - 1;

/// The reference file system.
#[derive(Debug)]
pub struct Reference {
    tree: Tree,
    clock: ManualClock,
    umask: u32,
    open: [Option<OpenFile>; FDS + 1],
}

impl Reference {
    /// An empty file system, for processes with this umask.
    pub fn new(umask: u32) -> Reference {
        let clock = ManualClock::at(RECENT);
        let tree = Tree::new(clock.clone().into(), Limits::default());
        Reference { tree, clock, umask, open: [None; FDS + 1] }
    }

    /// Whether a file is open in this slot.
    pub fn is_open(&self, fd: usize) -> bool {
        self.open.get(fd).is_some_and(Option::is_some)
    }

    fn file(&self, fd: usize) -> Result<OpenFile> {
        self.open.get(fd).copied().flatten().ok_or(Errno::EBADF)
    }

    fn find(&self, at: &str, follow: Follow) -> Result<Ino> {
        self.tree.lookup(&path(at), follow)
    }

    /// The inode of an existing path, without following a link at its end.
    pub(super) fn ino(&self, at: &str) -> Ino {
        self.find(at, Follow::No).expect("a path of this tree")
    }

    /// All bytes of a file.
    pub(super) fn content(&self, ino: Ino) -> Vec<u8> {
        self.tree.read(ino, 0, self.tree.attr(ino).size).expect("a file")
    }

    /// The file whose open file is closed, or whose changes become binding, by an operation.
    pub(super) fn closing(&self, op: &Op) -> Option<Ino> {
        match *op {
            Op::Close { fd } | Op::Fsync { fd } => self.file(fd).ok().map(|file| file.ino),
            _ => None,
        }
    }

    /// The change of content by an operation that succeeds.
    pub(super) fn effect(&self, op: &Op) -> Option<Effect> {
        let (ino, slot, change) = match *op {
            Op::Pwrite { fd, offset, len, fill } => {
                let file = self.file(fd).and_then(OpenFile::to_write).ok()?;
                let offset = self.tree.offset_of_write(file, offset);
                (file.ino, Some(fd), Change::Bytes(offset, pattern(fill, len)))
            }
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (source, target) = (
                    self.file(from).and_then(OpenFile::to_read).ok()?,
                    self.file(to).and_then(OpenFile::to_write).ok()?,
                );
                let data = self.tree.read(source.ino, from_offset, len as u64).ok()?;
                (target.ino, Some(to), Change::Bytes(to_offset, data))
            }
            Op::Ftruncate { fd, size } => {
                (self.file(fd).and_then(OpenFile::to_write).ok()?.ino, Some(fd), Change::Size(size))
            }
            Op::Truncate { path, size } => {
                (self.find(path, Follow::Yes).ok()?, None, Change::Size(size))
            }
            Op::Open { fd, path, flags } if flags.truncate => {
                (self.find(path, Follow::Yes).ok()?, Some(fd), Change::Size(0))
            }
            _ => return None,
        };
        // A write of nothing does not extend the file to the offset.
        let is_nothing = matches!(&change, Change::Bytes(_, bytes) if bytes.is_empty());
        let is_file = self.tree.attr(ino).kind == FileKind::Regular;
        (is_file && !is_nothing).then_some(Effect { ino, slot, change })
    }

    /// The file that an operation has changed through a slot, and the slot.
    pub(super) fn changed(&self, op: &Op) -> Option<(Ino, usize)> {
        let slot = match *op {
            Op::Open { fd, flags, .. } if flags.truncate || flags.create != Create::Never => fd,
            Op::Pwrite { fd, .. }
            | Op::Ftruncate { fd, .. }
            | Op::Fchmod { fd, .. }
            | Op::Futimens { fd, .. }
            | Op::CopyRange { to: fd, .. } => fd,
            _ => return None,
        };
        Some((self.file(slot).ok()?.ino, slot))
    }

    fn stat_of(&self, ino: Ino) -> Stat {
        let attr = self.tree.attr(ino);
        Stat {
            kind: attr.kind,
            perm: attr.perm,
            size: attr.size,
            mtime: attr.mtime.secs,
            links: u64::from(self.tree.link_count(ino)),
        }
    }
}

fn perm_change(perm: u32) -> AttrChange {
    AttrChange { perm: Some(perm), ..AttrChange::default() }
}

fn time_change(secs: i64) -> AttrChange {
    let time = Some(Timestamp::from_secs(secs));
    AttrChange { atime: time, mtime: time, ..AttrChange::default() }
}

fn follow_if(follow: bool) -> Follow {
    if follow { Follow::Yes } else { Follow::No }
}

impl Subject for Reference {
    fn features(&self) -> Features {
        Features { link_counts: true, umask: self.umask }
    }

    fn open(&mut self, fd: usize, at: &str, flags: OpenFlags) -> Result<()> {
        self.open[fd] = Some(self.tree.open(&path(at), Follow::Yes, flags, self.umask)?);
        Ok(())
    }

    fn close(&mut self, fd: usize) -> Result<()> {
        let file = self.file(fd)?;
        self.open[fd] = None;
        self.tree.release(file.ino);
        Ok(())
    }

    fn pread(&mut self, fd: usize, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.file(fd)?.to_read()?;
        self.tree.read(file.ino, offset, len as u64)
    }

    fn pwrite(&mut self, fd: usize, offset: u64, data: &[u8]) -> Result<usize> {
        let file = self.file(fd)?.to_write()?;
        self.tree.write(file.ino, self.tree.offset_of_write(file, offset), data)?;
        Ok(data.len())
    }

    fn ftruncate(&mut self, fd: usize, size: u64) -> Result<()> {
        let file = self.file(fd)?;
        if !file.access.writes() {
            return Err(Errno::EINVAL);
        }
        self.tree.set_size(file.ino, size)
    }

    fn fstat(&mut self, fd: usize) -> Result<Stat> {
        Ok(self.stat_of(self.file(fd)?.ino))
    }

    fn fsync(&mut self, fd: usize) -> Result<()> {
        self.file(fd).map(drop)
    }

    fn fchmod(&mut self, fd: usize, perm: u32) -> Result<()> {
        let file = self.file(fd)?;
        self.tree.set_attr(file.ino, &perm_change(perm))
    }

    fn futimens(&mut self, fd: usize, secs: i64) -> Result<()> {
        let file = self.file(fd)?;
        self.tree.set_attr(file.ino, &time_change(secs))
    }

    /// `EINVAL` if the ranges overlap in one file, after the length was limited by the source;
    /// `EBADF` for a file opened to append (copy_file_range(2)).
    fn copy_range(
        &mut self,
        from: usize,
        from_offset: u64,
        to: usize,
        to_offset: u64,
        len: usize,
    ) -> Result<usize> {
        let (source, target) = (self.file(from)?.to_read()?, self.file(to)?.to_copy_to()?);
        let data = self.tree.read(source.ino, from_offset, len as u64)?;
        let count = data.len() as u64;
        let overlap = to_offset + count > from_offset && to_offset < from_offset + count;
        if source.ino == target.ino && overlap {
            return Err(Errno::EINVAL);
        }
        self.tree.write(target.ino, to_offset, &data)?;
        Ok(data.len())
    }

    fn truncate(&mut self, at: &str, size: u64) -> Result<()> {
        let ino = self.find(at, Follow::Yes)?;
        if self.tree.attr(ino).size == size {
            // POSIX requires a new mtime also if the size is unchanged; Linux sets none by path
            // (but does by descriptor).
            self.clock.set(UNKNOWN);
        }
        let result = self.tree.set_size(ino, size);
        self.clock.set(RECENT);
        result
    }

    fn mkdir(&mut self, at: &str, perm: u32) -> Result<()> {
        self.tree.mkdir(&path(at), perm & !self.umask).map(drop)
    }

    fn rmdir(&mut self, at: &str) -> Result<()> {
        self.tree.rmdir(&path(at))
    }

    fn unlink(&mut self, at: &str) -> Result<()> {
        self.tree.unlink(&path(at))
    }

    fn symlink(&mut self, target: &str, at: &str) -> Result<()> {
        self.tree.symlink(target.as_bytes(), &path(at)).map(drop)
    }

    fn readlink(&mut self, at: &str) -> Result<Vec<u8>> {
        let ino = self.find(at, Follow::No)?;
        self.tree.target(ino)
    }

    fn link(&mut self, existing: &str, new: &str) -> Result<()> {
        self.tree.link(&path(existing), &path(new))
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        self.tree.rename(&path(from), &path(to), mode)
    }

    fn chmod(&mut self, at: &str, perm: u32) -> Result<()> {
        let ino = self.find(at, Follow::Yes)?;
        self.tree.set_attr(ino, &perm_change(perm))
    }

    fn utimens(&mut self, at: &str, secs: i64, follow: bool) -> Result<()> {
        let ino = self.find(at, follow_if(follow))?;
        self.tree.set_attr(ino, &time_change(secs))
    }

    fn stat(&mut self, at: &str, follow: bool) -> Result<Stat> {
        Ok(self.stat_of(self.find(at, follow_if(follow))?))
    }

    fn readdir(&mut self, at: &str) -> Result<Vec<Entry>> {
        let ino = self.find(at, Follow::Yes)?;
        let entries = self.tree.list(ino)?.into_iter();
        Ok(entries
            .map(|(name, ino)| (name.as_bytes().to_vec(), self.tree.attr(ino).kind))
            .collect())
    }
}
