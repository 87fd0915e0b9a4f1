//! Opening and making files.
//!
//! LSTAT and OPEN go out back to back on one session, in this order, so that an open costs one
//! round trip and the attributes are never newer than what the handle shows. What must not happen
//! through a link is kept out of that first OPEN: a file is only ever made with EXCLUSIVE, which
//! follows none, and cut through the handle once LSTAT has said that it is a regular file.
//!
//! A file is made by OPEN and LSTAT, in this order, in one round trip too. What LSTAT tells is
//! taken for the new file's where a new file may have it: regular, empty, with no permission that
//! was not asked for. If another file has taken the name in between, it is one without content, so
//! nothing is shown of it. All else is asked of the handle.
//!
//! An OPEN of a named pipe makes OpenSSH's server wait for the pipe's other end and answer nothing
//! else meanwhile. Callers who have looked before never send one.

use std::sync::Arc;

use base::{Access, Attr, Create, Errno, FileKind, OpenFlags, Opened, RemotePath, Result};
use sftp::{Call, FileAttrs, StatusCode};

use crate::handles::{OpenFile, OpenHandle};
use crate::host::Host;
use crate::probe::Probe;
use crate::session::Session;
use crate::{attr, gather};

/// How often a file may appear and vanish between two requests before that is an error.
const RACES: usize = 4;

/// What a look and an open, sent together, have given.
type Looked = (sftp::Result<FileAttrs>, sftp::Result<OpenHandle>);

impl Host {
    pub(crate) async fn open_file(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let session = self.metadata().await?;
        let named = self.handles.named(path);
        let attempt = Attempt { host: self, session, path, flags };
        let (open, attr) = match flags.create {
            Create::Never => attempt.existing().await?,
            Create::IfAbsent(perm) => attempt.made_if_absent(perm).await?,
            Create::Exclusive(perm) => match attempt.made(perm).await? {
                Made::New(open, attr) => (open, attr),
                Made::Taken(_) => return Err(Errno::EEXIST),
            },
        };
        let fh = self.handles.add_file(OpenFile::new(open, named, flags));
        Ok(Opened { fh, attr })
    }

    /// LSTAT, or STAT where links are to be followed.
    pub(crate) fn look(&self, session: &Session, full: &[u8]) -> Call<FileAttrs> {
        match self.config().follow_symlinks {
            true => session.client.stat(full),
            false => session.client.lstat(full),
        }
    }
}

/// How an attempt to make a file went.
enum Made {
    New(OpenHandle, Attr),
    /// Something is there, with these attributes.
    Taken(Attr),
}

/// One open on its way.
struct Attempt<'a> {
    host: &'a Host,
    session: Arc<Session>,
    path: &'a RemotePath,
    flags: OpenFlags,
}

impl Attempt<'_> {
    /// The flags on the wire, without those that make or cut.
    fn wire_flags(&self) -> sftp::OpenFlags {
        // Cutting goes through the handle, which has to be open for writing.
        let access = match self.flags.access {
            Access::Read if self.flags.truncate => Access::ReadWrite,
            access => access,
        };
        let access = match access {
            Access::Read => sftp::OpenFlags::READ,
            Access::Write => sftp::OpenFlags::WRITE,
            Access::ReadWrite => sftp::OpenFlags::READ | sftp::OpenFlags::WRITE,
        };
        if self.flags.append { access | sftp::OpenFlags::APPEND } else { access }
    }

    /// Looks and opens, in one round trip.
    async fn look_and_open(&self) -> Result<Looked> {
        let full = self.session.path(self.path)?;
        let look = self.host.look(&self.session, &full);
        let open = self.session.client.open(&full, self.wire_flags(), FileAttrs::default());
        let (look, open) = gather::both(look, open).await;
        let session = self.session.clone();
        Ok((look, open.map(|handle| OpenHandle::new(session, handle))))
    }

    fn probe(&self) -> Probe<'_> {
        Probe(&self.session)
    }

    async fn failed(&self, error: &sftp::Error) -> Errno {
        let open_handles = self.host.handles.open_on(self.session.slot);
        self.probe().open(error, self.path, open_handles).await
    }

    /// Opens what is there.
    async fn existing(&self) -> Result<(OpenHandle, Attr)> {
        let (look, open) = self.look_and_open().await?;
        let attr = match look {
            Ok(attrs) => attr::from_wire(&attrs)?,
            Err(error) => return Err(self.failed(&error).await),
        };
        check_kind(attr.kind)?;
        let open = match open {
            Ok(open) => open,
            Err(error) => return Err(self.failed(&error).await),
        };
        self.cut_if_asked(open, attr).await
    }

    async fn cut_if_asked(&self, open: OpenHandle, attr: Attr) -> Result<(OpenHandle, Attr)> {
        if !self.flags.truncate {
            return Ok((open, attr));
        }
        let client = &self.session.client;
        let empty = FileAttrs { size: Some(0), ..FileAttrs::default() };
        let (cut, after) =
            gather::both(client.fsetstat(&open.handle, empty), client.fstat(&open.handle)).await;
        if let Err(error) = cut.and(after.as_ref().map(|_| ()).map_err(Clone::clone)) {
            return Err(self.probe().handle(&error, &open.handle, None, 0).await);
        }
        let attr = after.map_err(|_| Errno::EIO).and_then(|attrs| attr::from_wire(&attrs))?;
        Ok((open, attr))
    }

    /// Makes the file, unless something is there.
    async fn made(&self, perm: u32) -> Result<Made> {
        let full = self.session.path(self.path)?;
        let make = self.wire_flags() | sftp::OpenFlags::CREATE | sftp::OpenFlags::EXCLUSIVE;
        let attrs = FileAttrs::with_permissions(perm & attr::PERM_BITS);
        let open = self.session.client.open(&full, make, attrs);
        let look = self.host.look(&self.session, &full);
        let (open, look) = gather::opening(open, look).await;
        match (open, look) {
            (Ok(handle), look) => {
                let open = OpenHandle::new(self.session.clone(), handle);
                let attr = self.of_new(&open, look, perm).await?;
                let attr = self.fix_permissions(&open, attr, perm).await?;
                Ok(Made::New(open, attr))
            }
            (Err(error), _) if error.ends_connection() => Err(crate::errno::from_sftp(&error)),
            (Err(_), Ok(attrs)) => Ok(Made::Taken(attr::from_wire(&attrs)?)),
            (Err(error), Err(_)) => {
                let open_handles = self.host.handles.open_on(self.session.slot);
                Err(self.probe().create_open(&error, self.path, open_handles).await)
            }
        }
    }

    /// The attributes of a new file, of whose name `look` was told.
    async fn of_new(
        &self,
        open: &OpenHandle,
        look: sftp::Result<FileAttrs>,
        perm: u32,
    ) -> Result<Attr> {
        let told = look.ok().and_then(|attrs| attr::from_wire(&attrs).ok());
        if let Some(attr) = told.filter(|attr| may_be_new(attr, perm)) {
            return Ok(attr);
        }
        let attrs = self.session.client.fstat(&open.handle).await;
        attr::from_wire(&attrs.map_err(|error| crate::errno::from_handle(&error))?)
    }

    /// Gives a new file with these attributes the bits that the server's umask took away.
    async fn fix_permissions(&self, open: &OpenHandle, mut attr: Attr, perm: u32) -> Result<Attr> {
        if let Some(wanted) = missing_bits(perm, attr.perm) {
            let client = &self.session.client;
            let fixed = client.fsetstat(&open.handle, FileAttrs::with_permissions(wanted)).await;
            match fixed {
                Ok(()) => attr.perm = wanted,
                Err(error) if error.ends_connection() => {
                    return Err(crate::errno::from_sftp(&error));
                }
                // A server that insists on fewer.
                Err(_) => {}
            }
        }
        Ok(attr)
    }

    /// Opens what is there, or makes it.
    async fn made_if_absent(&self, perm: u32) -> Result<(OpenHandle, Attr)> {
        for _ in 0..RACES {
            match self.made(perm).await {
                Ok(Made::New(open, attr)) => return Ok((open, attr)),
                Ok(Made::Taken(attr)) => check_kind(attr.kind)?,
                // It came between the look and the open, or it is a link that leads nowhere.
                Err(Errno::EEXIST) if !self.host.config().follow_symlinks => {}
                Err(errno) => return Err(errno),
            }
            match self.existing().await {
                Err(Errno::ENOENT) => {}
                other => return other,
            }
        }
        Err(Errno::EIO)
    }
}

/// What keeps a thing of this kind from being opened as a file.
fn check_kind(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR),
        FileKind::Symlink => Err(Errno::ELOOP),
        FileKind::Fifo | FileKind::Socket | FileKind::BlockDevice | FileKind::CharDevice => {
            Err(Errno::ENXIO)
        }
    }
}

/// Whether a file that was just made with these permission bits may have such attributes.
fn may_be_new(attr: &Attr, perm: u32) -> bool {
    attr.kind == FileKind::Regular && attr.size == 0 && attr.perm & !perm == 0
}

/// The permission bits to set when some of those `wanted` are not among those there `are`.
pub(crate) fn missing_bits(wanted: u32, are: u32) -> Option<u32> {
    let wanted = wanted & attr::PERM_BITS;
    (wanted & !are != 0).then_some(wanted | are)
}

/// Whether an error is the server's FAILURE, which says nothing.
pub(crate) fn is_failure(error: &sftp::Error) -> bool {
    error.status() == Some(StatusCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_content_or_more_permissions_is_no_new_file() {
        let time = base::Timestamp::default();
        let kind = FileKind::Regular;
        let attr = Attr { kind, perm: 0o640, size: 0, uid: 0, gid: 0, atime: time, mtime: time };
        assert!(may_be_new(&attr, 0o644) && may_be_new(&attr, 0o640));
        assert!(!may_be_new(&attr, 0o600));
        assert!(!may_be_new(&Attr { size: 1, ..attr }, 0o644));
        assert!(!may_be_new(&Attr { kind: FileKind::Symlink, ..attr }, 0o644));
    }

    #[test]
    fn only_missing_bits_are_set_and_none_is_taken_away() {
        assert_eq!(missing_bits(0o644, 0o644), None);
        assert_eq!(missing_bits(0o664, 0o644), Some(0o664));
        assert_eq!(missing_bits(0o755, 0o2755), None);
        assert_eq!(missing_bits(0o777, 0o2755), Some(0o2777));
        assert_eq!(missing_bits(0o100_644, 0o644), None);
    }
}
