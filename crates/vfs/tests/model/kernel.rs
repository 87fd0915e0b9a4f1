//! The kernel between a process and the [`Vfs`]: paths, links, open descriptors, and the checks
//! before a request.

use std::sync::Arc;

use base::{Access, AttrChange, Create, Errno, FileKind, OpenFlags, RenameMode, Result, Timestamp};
use bytes::Bytes;
use testkit::MemRemote;
use testkit::mem::Options;
use testkit::model::{Entry, FDS, Features, Stat, Subject};
use testkit::tree::Limits;
use tokio::runtime::Runtime;
use vfs::{Config, EntrySink, Handle, Ino, ListedEntry, LookupResult, OpenRequest, Vfs};

/// As in Linux.
const MAX_LINKS: usize = 40;

/// When the kernel forgets inodes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Memory {
    /// At the end of everything, so that the names of one file stay together.
    Long,
    /// After each call, except open files.
    Short,
}

/// A [`Vfs`] over a [`MemRemote`], as a process sees it.
pub(crate) struct Kernel {
    runtime: Runtime,
    vfs: Arc<Vfs>,
    remote: Arc<MemRemote>,
    memory: Memory,
    /// Lookups to give back after this call, or at the end.
    looked_up: Vec<Ino>,
    open: [Option<OpenFile>; FDS + 1],
}

#[derive(Clone, Copy)]
struct OpenFile {
    ino: Ino,
    handle: Handle,
    access: Access,
    append: bool,
}

/// Where a path ends.
struct Place {
    parent: Ino,
    /// The directories from the root to the parent.
    above: Vec<Ino>,
    name: Vec<u8>,
    /// The inode there, without following links.
    found: Option<vfs::Entry>,
}

struct Names(Vec<Entry>, u64);

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        if entry.name != b"." && entry.name != b".." {
            self.0.push((entry.name.to_vec(), entry.kind.unwrap()));
        }
        self.1 = entry.next_offset;
    }
}

impl Kernel {
    pub(crate) fn new(config: Config, memory: Memory, shows_inodes: bool) -> Kernel {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let limits = Limits { shows_inodes, ..Limits::default() };
        let remote = Arc::new(MemRemote::with(Options { limits, ..Options::default() }));
        remote.set_pending(true);
        let vfs = Arc::new(Vfs::new(remote.clone(), config));
        let open = [None; FDS + 1];
        Kernel { runtime, vfs, remote, memory, looked_up: Vec::new(), open }
    }

    /// Runs a call; its lookups are forgotten afterwards if memory is short. After `ESTALE` the
    /// kernel looks everything up once more.
    fn call<T>(&mut self, call: impl AsyncFn(&mut Process<'_>) -> Result<T>) -> Result<T> {
        let mut process = Process { vfs: &self.vfs, looked_up: &mut self.looked_up };
        let result = self.runtime.block_on(async {
            match call(&mut process).await {
                Err(Errno::ESTALE) => call(&mut process).await,
                result => result,
            }
        });
        if self.memory == Memory::Short {
            self.forget_all();
        }
        result
    }

    fn forget_all(&mut self) {
        for ino in self.looked_up.drain(..) {
            self.vfs.forget(ino, 1);
        }
    }

    fn file(&self, fd: usize) -> Result<OpenFile> {
        self.open[fd].ok_or(Errno::EBADF)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for fd in 0..self.open.len() {
            if self.open[fd].is_some() {
                let _ = self.close(fd);
            }
        }
        self.forget_all();
        if !std::thread::panicking() {
            self.vfs.end_background();
            self.runtime.block_on(self.vfs.drain());
            let left = (self.vfs.inodes(), self.vfs.handles(), self.remote.open_handles());
            assert_eq!(left, (1, 0, 0), "inodes, handles, handles of the remote");
        }
    }
}

/// A system call in progress.
struct Process<'a> {
    vfs: &'a Vfs,
    looked_up: &'a mut Vec<Ino>,
}

impl Process<'_> {
    async fn lookup(&mut self, parent: Ino, name: &[u8]) -> Result<Option<vfs::Entry>> {
        Ok(match self.vfs.lookup(parent, name).await? {
            LookupResult::Found(entry) => {
                self.looked_up.push(entry.ino);
                Some(entry)
            }
            LookupResult::Absent(_) => None,
        })
    }

    /// Walks to the last name of `path`, following links in between, and at its end if `follow`.
    async fn walk(&mut self, path: &str, follow: bool) -> Result<Place> {
        let mut left: Vec<Vec<u8>> = split(path.as_bytes());
        let mut dirs = vec![Ino::ROOT];
        let mut links = 0;
        loop {
            let dir = dirs[dirs.len() - 1];
            let Some(name) = left.pop() else {
                let stat = self.vfs.getattr(dir).await?;
                let found = Some(vfs::Entry { ino: dir, stat, ttl: stat.ttl });
                return Ok(Place { parent: dir, above: dirs, name: b".".to_vec(), found });
            };
            if name == b"." || name == b".." {
                if name == b".." && dirs.len() > 1 {
                    dirs.pop();
                }
                continue;
            }
            let found = self.lookup(dir, &name).await?;
            let last = left.is_empty();
            match found {
                Some(entry) if entry.stat.attr.kind == FileKind::Symlink && (!last || follow) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    let target = self.vfs.readlink(entry.ino).await?;
                    if target.starts_with(b"/") {
                        return Err(Errno::ENOENT);
                    }
                    left.extend(split(&target));
                }
                _ if last => return Ok(Place { parent: dir, above: dirs, name, found }),
                Some(entry) if entry.stat.attr.is_dir() => dirs.push(entry.ino),
                Some(_) => return Err(Errno::ENOTDIR),
                None => return Err(Errno::ENOENT),
            }
        }
    }

    async fn existing(&mut self, path: &str, follow: bool) -> Result<vfs::Entry> {
        self.walk(path, follow).await?.found.ok_or(Errno::ENOENT)
    }

    /// Where a new file is to be created.
    async fn vacant(&mut self, path: &str) -> Result<Place> {
        let place = self.walk(path, false).await?;
        if place.found.is_some() { Err(Errno::EEXIST) } else { Ok(place) }
    }

    async fn change(&mut self, path: &str, follow: bool, change: AttrChange) -> Result<()> {
        let entry = self.existing(path, follow).await?;
        self.vfs.setattr(entry.ino, change, None).await.map(drop)
    }
}

/// The names of a path, last first.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.rev().map(<[u8]>::to_vec).collect()
}

fn stat_of(stat: &vfs::Stat) -> Stat {
    Stat {
        kind: stat.attr.kind,
        perm: stat.attr.perm,
        size: stat.attr.size,
        mtime: stat.attr.mtime.secs,
        links: u64::from(stat.nlink),
    }
}

fn times(secs: i64) -> AttrChange {
    let time = Some(Timestamp::from_secs(secs));
    AttrChange { atime: time, mtime: time, ..AttrChange::default() }
}

impl Subject for Kernel {
    fn features(&self) -> Features {
        Features { link_counts: self.memory == Memory::Long, umask: 0 }
    }

    fn open(&mut self, fd: usize, path: &str, flags: OpenFlags) -> Result<()> {
        let request = OpenRequest {
            access: flags.access,
            append: flags.append,
            truncate: flags.truncate,
            direct: false,
            sync: false,
        };
        let (ino, opened) = self.call(async |process| {
            let exclusive = matches!(flags.create, Create::Exclusive(_));
            let place = process.walk(path, !exclusive).await?;
            match (place.found, flags.create) {
                (Some(_), Create::Exclusive(_)) => Err(Errno::EEXIST),
                (Some(entry), _) if entry.stat.attr.is_dir() => Err(Errno::EISDIR),
                (Some(entry), _) => {
                    let opened = process.vfs.open(entry.ino, request).await?;
                    process.looked_up.retain_one(entry.ino);
                    Ok((entry.ino, opened))
                }
                (None, Create::Never) => Err(Errno::ENOENT),
                (None, Create::IfAbsent(perm) | Create::Exclusive(perm)) => {
                    let (entry, opened) = process
                        .vfs
                        .create(place.parent, &place.name, perm, exclusive, request)
                        .await?;
                    // Its lookup belongs to the open file now.
                    Ok((entry.ino, opened))
                }
            }
        })?;
        let OpenFlags { access, append, .. } = flags;
        self.open[fd] = Some(OpenFile { ino, handle: opened.handle, access, append });
        Ok(())
    }

    fn close(&mut self, fd: usize) -> Result<()> {
        let file = self.file(fd)?;
        let flushed = self.runtime.block_on(self.vfs.flush(file.handle));
        self.vfs.release(file.handle);
        self.vfs.forget(file.ino, 1);
        self.open[fd] = None;
        flushed
    }

    /// Approaches the position in steps and continues from there, like a sequential reader.
    fn pread(&mut self, fd: usize, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.file(fd)?;
        let step = len.div_ceil(2).max(1);
        self.runtime.block_on(async {
            let read = async |at: u64, len: usize| {
                let data = self.vfs.read(file.handle, at, u32::try_from(len).unwrap()).await;
                data.map(|data| data.to_vec())
            };
            let mut before = offset.saturating_sub(3 * step as u64);
            while before < offset {
                let len = step.min((offset - before) as usize);
                read(before, len).await?;
                before += len as u64;
            }
            let mut all = Vec::new();
            loop {
                let wanted = step.min(len - all.len());
                let got = read(offset + all.len() as u64, wanted).await?;
                let ended = got.len() < wanted;
                all.extend(got);
                if ended || all.len() == len {
                    return Ok(all);
                }
            }
        })
    }

    /// In up to four pieces, like a reader with a small buffer.
    fn pwrite(&mut self, fd: usize, offset: u64, data: &[u8]) -> Result<usize> {
        let file = self.file(fd)?;
        if !file.access.writes() {
            return Err(Errno::EBADF);
        }
        if data.is_empty() {
            return Ok(0);
        }
        self.runtime.block_on(async {
            let mut offset = match file.append {
                true => self.vfs.getattr(file.ino).await?.attr.size,
                false => offset,
            };
            for piece in data.chunks(data.len().div_ceil(4)) {
                let bytes = Bytes::copy_from_slice(piece);
                self.vfs.write(file.handle, offset, bytes).await?;
                offset += piece.len() as u64;
            }
            Ok(data.len())
        })
    }

    fn ftruncate(&mut self, fd: usize, size: u64) -> Result<()> {
        let file = self.file(fd)?;
        if !file.access.writes() {
            return Err(Errno::EINVAL);
        }
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        self.runtime.block_on(self.vfs.setattr(file.ino, change, Some(file.handle))).map(drop)
    }

    fn fstat(&mut self, fd: usize) -> Result<Stat> {
        let file = self.file(fd)?;
        let stat = self.runtime.block_on(self.vfs.getattr(file.ino))?;
        Ok(stat_of(&stat))
    }

    fn fsync(&mut self, fd: usize) -> Result<()> {
        let file = self.file(fd)?;
        self.runtime.block_on(self.vfs.fsync(file.handle))
    }

    fn fchmod(&mut self, fd: usize, perm: u32) -> Result<()> {
        let file = self.file(fd)?;
        let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
        self.runtime.block_on(self.vfs.setattr(file.ino, change, None)).map(drop)
    }

    fn futimens(&mut self, fd: usize, secs: i64) -> Result<()> {
        let file = self.file(fd)?;
        self.runtime.block_on(self.vfs.setattr(file.ino, times(secs), Some(file.handle))).map(drop)
    }

    fn copy_range(
        &mut self,
        from: usize,
        from_offset: u64,
        to: usize,
        to_offset: u64,
        len: usize,
    ) -> Result<usize> {
        let (source, target) = (self.file(from)?, self.file(to)?);
        if !source.access.reads() || !target.access.writes() || target.append {
            return Err(Errno::EBADF);
        }
        let size = self.fstat(from)?.size;
        let len = usize::try_from(size.saturating_sub(from_offset)).unwrap().min(len);
        let from_end = from_offset + len as u64;
        let to_end = to_offset + len as u64;
        if source.ino == target.ino && from_offset < to_end && to_offset < from_end && len > 0 {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while done < len {
            let at = (from_offset + done as u64, to_offset + done as u64);
            let copied = self.runtime.block_on(self.vfs.copy_file_range(
                (source.handle, at.0),
                (target.handle, at.1),
                (len - done) as u64,
            ));
            done += match copied {
                Ok(0) => break,
                Ok(copied) => usize::try_from(copied).unwrap(),
                // The kernel then copies by itself.
                Err(Errno::EOPNOTSUPP) => {
                    let data = self.pread(from, at.0, len - done)?;
                    self.pwrite(to, at.1, &data)?
                }
                Err(error) => return Err(error),
            };
        }
        Ok(done)
    }

    fn truncate(&mut self, path: &str, size: u64) -> Result<()> {
        self.call(async |process| {
            let entry = process.existing(path, true).await?;
            match entry.stat.attr.kind {
                FileKind::Regular => {
                    let change = AttrChange { size: Some(size), ..AttrChange::default() };
                    process.vfs.setattr(entry.ino, change, None).await.map(drop)
                }
                FileKind::Directory => Err(Errno::EISDIR),
                _ => Err(Errno::EINVAL),
            }
        })
    }

    fn mkdir(&mut self, path: &str, perm: u32) -> Result<()> {
        self.call(async |process| {
            let place = process.vacant(path).await?;
            let entry = process.vfs.mkdir(place.parent, &place.name, perm).await?;
            process.looked_up.push(entry.ino);
            Ok(())
        })
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        self.call(async |process| {
            let place = process.walk(path, false).await?;
            match place.found {
                Some(_) if place.name == b"." => Err(Errno::EBUSY),
                Some(entry) if entry.stat.attr.is_dir() => {
                    process.vfs.rmdir(place.parent, &place.name).await
                }
                Some(_) => Err(Errno::ENOTDIR),
                None => Err(Errno::ENOENT),
            }
        })
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        self.call(async |process| {
            let place = process.walk(path, false).await?;
            match place.found {
                Some(entry) if entry.stat.attr.is_dir() => Err(Errno::EISDIR),
                Some(_) => process.vfs.unlink(place.parent, &place.name).await,
                None => Err(Errno::ENOENT),
            }
        })
    }

    fn symlink(&mut self, target: &str, path: &str) -> Result<()> {
        self.call(async |process| {
            if target.is_empty() {
                return Err(Errno::ENOENT);
            }
            let place = process.vacant(path).await?;
            let made = process.vfs.symlink(place.parent, &place.name, target.as_bytes()).await?;
            process.looked_up.push(made.ino);
            Ok(())
        })
    }

    fn readlink(&mut self, path: &str) -> Result<Vec<u8>> {
        self.call(async |process| {
            let entry = process.existing(path, false).await?;
            match entry.stat.attr.kind {
                FileKind::Symlink => process.vfs.readlink(entry.ino).await,
                _ => Err(Errno::EINVAL),
            }
        })
    }

    fn link(&mut self, existing: &str, new: &str) -> Result<()> {
        self.call(async |process| {
            let entry = process.existing(existing, false).await?;
            let place = process.vacant(new).await?;
            if entry.stat.attr.is_dir() {
                return Err(Errno::EPERM);
            }
            let made = process.vfs.link(entry.ino, place.parent, &place.name).await?;
            process.looked_up.push(made.ino);
            Ok(())
        })
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        self.call(async |process| {
            let source = process.walk(from, false).await?;
            let target = process.walk(to, false).await?;
            if source.name == b"." || target.name == b"." {
                return Err(Errno::EBUSY);
            }
            let Some(moved) = source.found else { return Err(Errno::ENOENT) };
            if target.found.is_some() && mode == RenameMode::NoReplace {
                return Err(Errno::EEXIST);
            }
            if target.above.contains(&moved.ino) {
                return Err(Errno::EINVAL);
            }
            if let Some(replaced) = target.found {
                if source.above.contains(&replaced.ino) {
                    return Err(Errno::ENOTEMPTY);
                }
                if replaced.ino == moved.ino {
                    return Ok(());
                }
                match (moved.stat.attr.is_dir(), replaced.stat.attr.is_dir()) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
            let from = (source.parent, &source.name[..]);
            process.vfs.rename(from, (target.parent, &target.name[..]), mode).await
        })
    }

    fn chmod(&mut self, path: &str, perm: u32) -> Result<()> {
        let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
        self.call(async |process| process.change(path, true, change).await)
    }

    fn utimens(&mut self, path: &str, secs: i64, follow: bool) -> Result<()> {
        self.call(async |process| process.change(path, follow, times(secs)).await)
    }

    fn stat(&mut self, path: &str, follow: bool) -> Result<Stat> {
        self.call(async |process| {
            let entry = process.existing(path, follow).await?;
            Ok(stat_of(&entry.stat))
        })
    }

    fn readdir(&mut self, path: &str) -> Result<Vec<Entry>> {
        self.call(async |process| {
            let entry = process.existing(path, true).await?;
            if !entry.stat.attr.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            let handle = process.vfs.opendir(entry.ino).await?;
            let mut names = Names(Vec::new(), 0);
            let listed = loop {
                let before = names.1;
                match process.vfs.readdir(handle, before, false, &mut names).await {
                    Ok(_) if names.1 == before => break Ok(()),
                    Ok(_) => {}
                    Err(error) => break Err(error),
                }
            };
            process.vfs.releasedir(handle);
            listed.map(|()| names.0)
        })
    }
}

/// Lookups that are given back later.
trait LookedUp {
    /// Takes one lookup of `ino` out, because another owner holds it now.
    fn retain_one(&mut self, ino: Ino);
}

impl LookedUp for Vec<Ino> {
    fn retain_one(&mut self, ino: Ino) {
        let at = self.iter().rposition(|looked_up| *looked_up == ino).expect("it was looked up");
        self.remove(at);
    }
}
