//! Changes of attributes, by path and by handle.
//!
//! By path, the inode is opened with `O_PATH` first, and all parts of a change apply to that inode.
//! Its size and its permission bits cannot be set through such a descriptor: these go through
//! `/proc/self/fd`, as in libc.
//!
//! The order of the parts matters: a new size and a new owner clear set-id bits, and a new size
//! sets a new time.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use base::{AttrChange, Errno, FileKind, RemotePath, Result, Timestamp};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chmodat,
    chownat, fchmod, fchown, ftruncate, futimens, openat, utimensat,
};

use crate::attr::{errno, kind};
use crate::root::Root;

/// The present time of the system.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };

/// Changes the entry at `path`, a link itself.
pub(crate) fn by_path(root: &Root, path: &RemotePath, change: &AttrChange) -> Result<()> {
    set_pinned(&root.open_path(path)?, change)
}

/// Changes the entry that `pinned` is a descriptor of, opened with `O_PATH`. What a link does not
/// support is refused before any part is applied.
///
/// # Errors
/// Those of the system calls; `EOPNOTSUPP` for the permission bits of a link, and without `/proc`.
pub fn set_pinned(pinned: &OwnedFd, change: &AttrChange) -> Result<()> {
    set(pinned, change, false)
}

/// As [`set_pinned`], without waiting for another process's lease (`fcntl(2)`).
///
/// # Errors
/// `EAGAIN` if a new size would wait for a lease; then nothing was changed.
pub fn set_pinned_nowait(pinned: &OwnedFd, change: &AttrChange) -> Result<()> {
    set(pinned, change, true)
}

fn set(pinned: &OwnedFd, change: &AttrChange, nowait: bool) -> Result<()> {
    let kind = kind(&rustix::fs::fstat(pinned).map_err(errno)?)?;
    let owner = owner(change)?;
    if change.perm.is_some() && kind == FileKind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    if let Some(size) = change.size {
        resize(pinned.as_fd(), kind, size, nowait)?;
    }
    if let Some((uid, gid)) = owner {
        chownat(pinned, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
    }
    if let Some(perm) = change.perm {
        let mode = Mode::from_raw_mode(perm & 0o7777);
        chmodat(CWD, proc_fd_path(pinned.as_fd()), mode, AtFlags::empty()).map_err(proc_error)?;
    }
    set_times(change, |times| match utimensat(pinned, "", times, AtFlags::EMPTY_PATH) {
        // The flag is unknown before Linux 5.8.
        Err(rustix::io::Errno::INVAL) => set_times_by_proc(pinned, times),
        set => set.map_err(errno),
    })
}

/// Sets the times of `change` by `set`.
fn set_times(change: &AttrChange, set: impl Fn(&Timestamps) -> Result<()>) -> Result<()> {
    let Some(times) = times(change) else { return Ok(()) };
    match set(&times) {
        // The right to write is enough for that.
        Err(Errno::EPERM) if change.touch => {
            set(&Timestamps { last_access: NOW, last_modification: NOW })
        }
        set => set,
    }
}

/// Sets times of a link, too: `/proc/self/fd` leads to the link itself.
fn set_times_by_proc(pinned: &OwnedFd, times: &Timestamps) -> Result<()> {
    let path = proc_fd_path(pinned.as_fd());
    utimensat(CWD, path, times, AtFlags::empty()).map_err(proc_error)
}

/// Changes an open file.
///
/// # Errors
/// Those of the system calls.
pub fn set_opened(file: &impl AsFd, change: &AttrChange) -> Result<()> {
    let owner = owner(change)?;
    if let Some(size) = change.size {
        ftruncate(file, size).map_err(errno)?;
    }
    if let Some((uid, gid)) = owner {
        fchown(file, uid, gid).map_err(errno)?;
    }
    if let Some(perm) = change.perm {
        fchmod(file, Mode::from_raw_mode(perm & 0o7777)).map_err(errno)?;
    }
    set_times(change, |times| futimens(file, times).map_err(errno))
}

/// `truncate(2)` of a regular file.
fn resize(pinned: BorrowedFd<'_>, kind: FileKind, size: u64, nowait: bool) -> Result<()> {
    match kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    let mut flags = OFlags::WRONLY | OFlags::CLOEXEC;
    flags.set(OFlags::NONBLOCK, nowait);
    let file = openat(CWD, proc_fd_path(pinned), flags, Mode::empty()).map_err(proc_error)?;
    ftruncate(&file, size).map_err(errno)
}

pub(crate) fn proc_fd_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The inode is open, so it is `/proc` that is missing.
pub(crate) fn proc_error(error: rustix::io::Errno) -> Errno {
    match error {
        rustix::io::Errno::NOENT => Errno::EOPNOTSUPP,
        error => errno(error),
    }
}

/// `None` when neither changes. `u32::MAX` means "no change" to the system and is refused.
fn owner(change: &AttrChange) -> Result<Option<(Option<Uid>, Option<Gid>)>> {
    if change.uid == Some(u32::MAX) || change.gid == Some(u32::MAX) {
        return Err(Errno::EINVAL);
    }
    let owner = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
    Ok((owner != (None, None)).then_some(owner))
}

fn times(change: &AttrChange) -> Option<Timestamps> {
    if change.atime.is_none() && change.mtime.is_none() {
        return None;
    }
    let time = |time: Option<Timestamp>| match time {
        Some(time) => Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    };
    Some(Timestamps { last_access: time(change.atime), last_modification: time(change.mtime) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn times_of_each_kind_are_set_without_the_empty_path_too() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        let change = |secs| {
            let time = Some(Timestamp { secs, nanos: 5 });
            times(&AttrChange { atime: time, mtime: time, ..AttrChange::default() }).unwrap()
        };
        for (secs, path) in [(7, &file), (8, &link), (9, &dir.path().to_owned())] {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let pinned = openat(CWD, path, flags, Mode::empty()).unwrap();
            set_times_by_proc(&pinned, &change(secs)).unwrap();
            let set = std::fs::symlink_metadata(path).unwrap();
            assert_eq!((set.mtime(), set.mtime_nsec(), set.atime()), (secs, 5, secs));
        }
        assert_eq!(std::fs::metadata(&file).unwrap().mtime(), 7, "a link is not followed");
    }
}
