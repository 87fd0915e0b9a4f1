//! Random operations on a local directory agree with the reference model, errno included.

use std::sync::Arc;

use base::{
    Access, Attr, AttrChange, Create, Errno, Fh, FileKind, Name, OpenFlags, Remote, RemotePath,
    RenameMode, Result, Timestamp,
};
use bytes::Bytes;
use local::Local;
use testkit::model::{Entry, FDS, Features, Runs, Stat, Subject, run};
use tokio::runtime::Runtime;

use super::{Real, parents};

/// Lists of up to 60 operations, as many as `SSHOAL_MODEL_LISTS` says.
fn runs() -> Runs {
    let lists = std::env::var("SSHOAL_MODEL_LISTS").ok().and_then(|lists| lists.parse().ok());
    Runs { lists: lists.unwrap_or(300), most_ops: 60 }
}

#[test]
fn a_local_directory_matches_the_model() {
    for parent in parents() {
        run(runs(), || Process::below(&parent));
    }
}

/// An empty read succeeded on a file that was open for writing only.
#[test]
fn regression_a_read_of_nothing_needs_the_right_too() {
    use testkit::model::{Op, check};
    let flags = OpenFlags { create: Create::IfAbsent(0o644), ..OpenFlags::existing(Access::Write) };
    let ops = [
        Op::Open { fd: 2, path: "a", flags },
        Op::Pread { fd: 2, offset: 0, len: 0 },
        Op::Pread { fd: 2, offset: 0, len: 1 },
    ];
    let mut process = Process::below(&std::env::temp_dir());
    check(&ops, &mut process).unwrap_or_else(|why| panic!("{why}"));
}

/// Linux's limit.
const MAX_LINKS: usize = 40;

/// The kernel's part between a process and the remote: resolving links, and checks before a call.
struct Process {
    runtime: Runtime,
    local: Arc<Local>,
    umask: u32,
    open: [Option<(Fh, Access)>; FDS + 1],
    _real: Real,
}

/// The directory and the last name of a path.
struct Place {
    at: RemotePath,
    /// The path ends in `.` or similar.
    is_directory_itself: bool,
    found: Option<Attr>,
}

impl Process {
    fn below(parent: &std::path::Path) -> Process {
        let real = Real::below(parent);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
        let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
        let open = [None; FDS + 1];
        Process { runtime, local: real.local.clone(), umask, open, _real: real }
    }

    fn file(&self, fd: usize) -> Result<Fh> {
        self.open[fd].map(|(fh, _)| fh).ok_or(Errno::EBADF)
    }

    fn call<T>(&self, call: impl AsyncFn(&Local) -> Result<T>) -> Result<T> {
        self.runtime.block_on(call(&self.local))
    }

    fn change(&self, path: &str, follow: bool, change: AttrChange) -> Result<()> {
        self.call(async |local| {
            let place = walk(local, path, follow).await?;
            place.found.ok_or(Errno::ENOENT)?;
            local.setattr(&place.at, change).await
        })
    }
}

fn split(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.rev().map(<[u8]>::to_vec).collect()
}

/// Resolves `path` up to its last name, and a link there if `follow`.
async fn walk(local: &Local, path: &str, follow: bool) -> Result<Place> {
    let mut left = split(path.as_bytes());
    let mut dir = RemotePath::root();
    let mut links = 0;
    loop {
        let Some(name) = left.pop() else {
            let found = Some(local.lstat(&dir).await?);
            return Ok(Place { at: dir, is_directory_itself: true, found });
        };
        if name == b"." {
            continue;
        }
        let at = dir.join(&Name::new(&name).unwrap());
        let found = match local.lstat(&at).await {
            Ok(attr) => Some(attr),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        let last = left.is_empty();
        match found {
            Some(attr) if attr.kind == FileKind::Symlink && (!last || follow) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::ELOOP);
                }
                left.extend(split(&local.readlink(&at).await?));
            }
            _ if last => return Ok(Place { at, is_directory_itself: false, found }),
            Some(attr) if attr.is_dir() => dir = at,
            Some(_) => return Err(Errno::ENOTDIR),
            None => return Err(Errno::ENOENT),
        }
    }
}

fn stat_of(attr: &Attr) -> Stat {
    let Attr { kind, perm, size, mtime, .. } = *attr;
    Stat { kind, perm, size, mtime: mtime.secs, links: 0 }
}

fn times(secs: i64) -> AttrChange {
    let time = Some(Timestamp::from_secs(secs));
    AttrChange { atime: time, mtime: time, ..AttrChange::default() }
}

impl Subject for Process {
    fn features(&self) -> Features {
        Features { link_counts: false, umask: self.umask }
    }

    fn open(&mut self, fd: usize, path: &str, flags: OpenFlags) -> Result<()> {
        let fh = self.call(async |local| {
            let exclusive = matches!(flags.create, Create::Exclusive(_));
            let place = walk(local, path, !exclusive).await?;
            Ok(local.open(&place.at, flags).await?.fh)
        })?;
        self.open[fd] = Some((fh, flags.access));
        Ok(())
    }

    fn close(&mut self, fd: usize) -> Result<()> {
        let fh = self.file(fd)?;
        let _within = self.runtime.enter();
        self.local.close(fh);
        self.open[fd] = None;
        Ok(())
    }

    fn pread(&mut self, fd: usize, offset: u64, len: usize) -> Result<Vec<u8>> {
        let fh = self.file(fd)?;
        let len = u32::try_from(len).unwrap();
        self.call(async |local| Ok(local.read(fh, offset, len).await?.to_vec()))
    }

    fn pwrite(&mut self, fd: usize, offset: u64, data: &[u8]) -> Result<usize> {
        let fh = self.file(fd)?;
        self.call(async |local| local.write(fh, offset, Bytes::copy_from_slice(data)).await)?;
        Ok(data.len())
    }

    fn ftruncate(&mut self, fd: usize, size: u64) -> Result<()> {
        let fh = self.file(fd)?;
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        self.call(async |local| local.fsetattr(fh, change).await)
    }

    fn fstat(&mut self, fd: usize) -> Result<Stat> {
        let fh = self.file(fd)?;
        self.call(async |local| local.fstat(fh).await.map(|attr| stat_of(&attr)))
    }

    fn fsync(&mut self, fd: usize) -> Result<()> {
        let fh = self.file(fd)?;
        self.call(async |local| local.fsync(fh).await)
    }

    fn fchmod(&mut self, fd: usize, perm: u32) -> Result<()> {
        let fh = self.file(fd)?;
        let change = AttrChange { perm: Some(perm), ..AttrChange::default() };
        self.call(async |local| local.fsetattr(fh, change).await)
    }

    fn futimens(&mut self, fd: usize, secs: i64) -> Result<()> {
        let fh = self.file(fd)?;
        self.call(async |local| local.fsetattr(fh, times(secs)).await)
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
        let size = self.fstat(from)?.size;
        let most = size.saturating_sub(from_offset).min(len as u64);
        self.call(async |local| {
            let mut done = 0;
            loop {
                let left = len as u64 - done;
                let (at, goal) = (from_offset + done, to_offset + done);
                let copied = local.copy((source, at), (target, goal), left).await?;
                done += copied;
                if copied == 0 || done >= most {
                    return Ok(done as usize);
                }
            }
        })
    }

    fn truncate(&mut self, path: &str, size: u64) -> Result<()> {
        self.change(path, true, AttrChange { size: Some(size), ..AttrChange::default() })
    }

    fn mkdir(&mut self, path: &str, perm: u32) -> Result<()> {
        self.call(async |local| {
            let place = walk(local, path, false).await?;
            local.mkdir(&place.at, perm).await
        })
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        self.call(async |local| local.rmdir(&walk(local, path, false).await?.at).await)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        self.call(async |local| local.unlink(&walk(local, path, false).await?.at).await)
    }

    fn symlink(&mut self, target: &str, path: &str) -> Result<()> {
        self.call(async |local| {
            let place = walk(local, path, false).await?;
            local.symlink(target.as_bytes(), &place.at).await
        })
    }

    fn readlink(&mut self, path: &str) -> Result<Vec<u8>> {
        self.call(async |local| local.readlink(&walk(local, path, false).await?.at).await)
    }

    fn link(&mut self, existing: &str, new: &str) -> Result<()> {
        self.call(async |local| {
            let from = walk(local, existing, false).await?;
            from.found.ok_or(Errno::ENOENT)?;
            let to = walk(local, new, false).await?;
            local.link(&from.at, &to.at).await
        })
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        self.call(async |local| {
            let from = walk(local, from, false).await?;
            let to = walk(local, to, false).await?;
            if from.is_directory_itself || to.is_directory_itself {
                return Err(Errno::EBUSY);
            }
            local.rename(&from.at, &to.at, mode).await
        })
    }

    fn chmod(&mut self, path: &str, perm: u32) -> Result<()> {
        self.change(path, true, AttrChange { perm: Some(perm), ..AttrChange::default() })
    }

    fn utimens(&mut self, path: &str, secs: i64, follow: bool) -> Result<()> {
        self.change(path, follow, times(secs))
    }

    fn stat(&mut self, path: &str, follow: bool) -> Result<Stat> {
        self.call(async |local| {
            let place = walk(local, path, follow).await?;
            place.found.as_ref().map(stat_of).ok_or(Errno::ENOENT)
        })
    }

    fn readdir(&mut self, path: &str) -> Result<Vec<Entry>> {
        self.call(async |local| {
            let place = walk(local, path, true).await?;
            place.found.ok_or(Errno::ENOENT)?;
            let dh = local.opendir(&place.at).await?;
            let mut entries = Vec::new();
            while let Some(batch) = local.readdir(dh).await? {
                entries.extend(
                    batch
                        .into_iter()
                        .map(|entry| (entry.name.as_bytes().to_vec(), entry.attr.unwrap().kind)),
                );
            }
            local.closedir(dh);
            Ok(entries)
        })
    }
}
