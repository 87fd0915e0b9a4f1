//! Opening regular files, and nothing else.

use std::os::fd::OwnedFd;

use base::{Access, Attr, Create, Errno, OpenFlags, RemotePath, Result};
use rustix::fs::{AtFlags, Mode, OFlags, fcntl_setfl, fstat, openat, statat};

use crate::attr::{attr, errno, kind, open_error};
use crate::root::{Entry, Root};

/// Opens the file and returns its attributes.
pub(crate) fn open(root: &Root, path: &RemotePath, flags: OpenFlags) -> Result<(OwnedFd, Attr)> {
    let of_root = match flags.create {
        Create::Exclusive(_) => Errno::EEXIST,
        _ => Errno::EISDIR,
    };
    let entry = root.entry(path, of_root)?;
    refuse_special(&entry, flags.create)?;
    let (native, mode) = native(flags);
    let fd = open_waiting_for_lease(&entry, native, mode)?;
    let found = fstat(&fd).map_err(errno)?;
    // Another entry may have taken the name since the check.
    if let Some(errno) = open_error(kind(&found)?) {
        return Err(errno);
    }
    // `NONBLOCK` was needed for the open only.
    fcntl_setfl(&fd, native & OFlags::APPEND).map_err(errno)?;
    Ok((fd, attr(&found)?))
}

/// Opening a device can have effects by itself, so the type is checked first. An exclusive create
/// needs no check.
fn refuse_special(entry: &Entry<'_>, create: Create) -> Result<()> {
    if matches!(create, Create::Exclusive(_)) {
        return Ok(());
    }
    match statat(&entry.dir, entry.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => open_error(kind(&found)?).map_or(Ok(()), Err),
        Err(rustix::io::Errno::NOENT) if create != Create::Never => Ok(()),
        Err(error) => Err(errno(error)),
    }
}

/// `NONBLOCK` keeps the open from waiting for the other end of a FIFO that has taken the file's
/// place, but it also fails an open that would wait for another process's lease (`fcntl(2)`). That
/// open is repeated without it.
fn open_waiting_for_lease(entry: &Entry<'_>, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let open = |flags| openat(&entry.dir, entry.name(), flags, mode);
    match open(flags | OFlags::NONBLOCK) {
        Err(rustix::io::Errno::AGAIN) => {
            // Without this check the second open could wait for a FIFO.
            refuse_special(entry, Create::Never)?;
            open(flags).map_err(errno)
        }
        opened => opened.map_err(errno),
    }
}

fn native(flags: OpenFlags) -> (OFlags, Mode) {
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
    let mut native = access | create | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    native.set(OFlags::TRUNC, flags.truncate);
    native.set(OFlags::APPEND, flags.append);
    (native, Mode::from_raw_mode(perm & 0o7777))
}
