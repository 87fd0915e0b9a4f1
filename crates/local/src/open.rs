//! Opening files: regular ones, and nothing else.

use std::os::fd::OwnedFd;

use base::{Access, Attr, Create, Errno, OpenFlags, RemotePath, Result};
use rustix::fs::{AtFlags, Mode, OFlags, fcntl_setfl, fstat, openat, statat};

use crate::attr::{attr, errno, kind, refusal};
use crate::root::{Place, Root};

/// Opens the file, and tells its attributes as they were then.
pub(crate) fn open(root: &Root, path: &RemotePath, flags: OpenFlags) -> Result<(OwnedFd, Attr)> {
    if path.is_root() {
        return Err(match flags.create {
            Create::Exclusive(_) => Errno::EEXIST,
            _ => Errno::EISDIR,
        });
    }
    let place = root.place(path)?;
    refuse_special(&place, flags.create)?;
    let (native, mode) = native(flags);
    let fd = open_patiently(&place, native, mode)?;
    let found = fstat(&fd).map_err(errno)?;
    // It may have become something else since the look.
    if let Some(errno) = refusal(kind(&found)?) {
        return Err(errno);
    }
    // It was only to keep the open from waiting.
    fcntl_setfl(&fd, native & OFlags::APPEND).map_err(errno)?;
    Ok((fd, attr(&found)?))
}

/// An open of a device can have effects by itself, so there is a look first. What must not be
/// there needs none.
fn refuse_special(place: &Place<'_>, create: Create) -> Result<()> {
    if matches!(create, Create::Exclusive(_)) {
        return Ok(());
    }
    match statat(&place.dir, place.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => refusal(kind(&found)?).map_or(Ok(()), Err),
        Err(rustix::io::Errno::NOENT) if create != Create::Never => Ok(()),
        Err(error) => Err(errno(error)),
    }
}

/// `NONBLOCK` keeps a FIFO that takes the file's place from holding us, but it also makes an open
/// fail that would wait for somebody's lease (`fcntl(2)`). That one is worth waiting for.
fn open_patiently(place: &Place<'_>, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let open = |flags| openat(&place.dir, place.name(), flags, mode);
    match open(flags | OFlags::NONBLOCK) {
        Err(rustix::io::Errno::AGAIN) => {
            // Else it would be the FIFO that we wait for.
            refuse_special(place, Create::Never)?;
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
