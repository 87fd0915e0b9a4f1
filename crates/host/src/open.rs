//! Opening and creating files.
//!
//! LSTAT and OPEN are sent back to back on one session, in this order, so that an open costs one
//! round trip and the attributes are never newer than the content that the handle shows. The first
//! OPEN never changes anything through a link: a file is created only with EXCLUSIVE, which follows
//! no link, and truncated through the handle, after LSTAT has reported a regular file. Where the
//! server refuses that, a second OPEN truncates, after another LSTAT: if a link takes the name within
//! this round trip, its target is truncated.
//!
//! A new file is created by OPEN and LSTAT, in this order, also in one round trip. The reply of
//! LSTAT is taken for the new file's if a new file may have these attributes: regular, empty,
//! without a permission that was not requested. If another file has taken the name in between, it
//! has no content, so nothing of it is shown. In all other cases the handle is queried.
//!
//! An OPEN of a named pipe blocks OpenSSH's server until the pipe's other end is opened, and no
//! other request is answered. Callers send none if they know that the name is one. If a pipe has
//! replaced the file since, the reply of LSTAT says so, and the session is given up soon if OPEN is
//! not answered.

use std::sync::Arc;

use base::{Access, Attr, Create, Errno, Fh, FileKind, OpenFlags, Opened, RemotePath, Result};
use sftp::{Call, FileAttrs, RemoteHandle, StatusCode};

use crate::handles::{OpenFile, OpenHandle};
use crate::host::Host;
use crate::probe::Probe;
use crate::session::{SILENT, Session};
use crate::{attr, pipelined};

/// Number of times that a file may appear and vanish between two requests before that is an error.
const MAX_RACES: usize = 4;

/// The replies to an LSTAT (or STAT) and an OPEN that were sent together.
type StatAndOpen = (sftp::Result<FileAttrs>, sftp::Result<OpenHandle>);

impl Host {
    pub(crate) async fn open_file(&self, path: &RemotePath, flags: OpenFlags) -> Result<Opened> {
        let session = self.metadata().await?;
        let open_path = self.handles.open_path(path);
        let attempt = Attempt { host: self, session, path, flags };
        let (open, attr) = match flags.create {
            Create::Never => attempt.open_existing().await?,
            Create::IfAbsent(perm) => attempt.open_or_create(perm).await?,
            Create::Exclusive(perm) => match attempt.create_new(perm).await? {
                Creation::New(open, attr) => (open, attr),
                Creation::Exists(_) => return Err(Errno::EEXIST),
            },
        };
        let fh = Fh(self.handles.files.add(OpenFile::new(open, open_path, flags)));
        Ok(Opened { fh, attr })
    }

    /// LSTAT, or STAT if links are followed.
    pub(crate) fn stat_unless_link(&self, session: &Session, full: &[u8]) -> Call<FileAttrs> {
        match self.config().follow_symlinks {
            true => session.client.stat(full),
            false => session.client.lstat(full),
        }
    }
}

/// The result of an attempt to create a file.
enum Creation {
    New(OpenHandle, Attr),
    /// The name exists, with these attributes.
    Exists(Attr),
}

/// One open in progress.
struct Attempt<'a> {
    host: &'a Host,
    session: Arc<Session>,
    path: &'a RemotePath,
    flags: OpenFlags,
}

impl Attempt<'_> {
    /// The protocol's flags, without those that create or truncate.
    fn wire_flags(&self) -> sftp::OpenFlags {
        // Truncation goes through the handle, which has to be open for writing.
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

    /// Sends LSTAT and OPEN, in one round trip.
    async fn stat_and_open(&self, flags: sftp::OpenFlags) -> Result<StatAndOpen> {
        let full = self.session.path(self.path)?;
        let stat = self.host.stat_unless_link(&self.session, &full);
        let mut open = self.session.client.open(&full, flags, FileAttrs::default());
        let stat = pipelined::first_of(stat, &mut open).await;
        let kind =
            stat.as_ref().ok().and_then(|attrs| attr::from_wire(attrs).ok()).map(|it| it.kind);
        let session = self.session.clone();
        let open = match kind.map_or(Ok(()), check_kind) {
            Ok(()) => open.await.map(|handle| OpenHandle::new(session, handle)),
            Err(errno) => self.unless_blocked(open).await.ok_or(errno)?,
        };
        Ok((stat, open))
    }

    /// The reply to an OPEN of something that is no regular file. `None` if it blocks the server;
    /// then the session has ended. It ends also if this caller gives up before, because the server
    /// answers no other one.
    async fn unless_blocked(
        &self,
        mut open: Call<RemoteHandle>,
    ) -> Option<sftp::Result<OpenHandle>> {
        let (session, path) = (self.session.clone(), self.path.clone());
        let name = self.host.config().name.clone();
        let waiting = tokio::spawn(async move {
            loop {
                if let Ok(reply) = tokio::time::timeout(SILENT, &mut open).await {
                    return Some(reply.map(|handle| OpenHandle::new(session, handle)));
                }
                let silent = session.client.activity().silent;
                if silent >= SILENT {
                    tracing::warn!(
                        "{name}: {path}: not a file any more, and its open blocks the server"
                    );
                    session.give_up(silent).await;
                    return None;
                }
            }
        });
        // An error is a panic, which is logged.
        waiting.await.ok().flatten()
    }

    fn probe(&self) -> Probe<'_> {
        Probe(&self.session)
    }

    async fn failed(&self, error: &sftp::Error) -> Errno {
        let open_handles = self.host.handles.open_on(self.session.slot);
        self.probe().open(error, self.path, open_handles).await
    }

    /// Opens an existing file.
    async fn open_existing(&self) -> Result<(OpenHandle, Attr)> {
        let (open, attr) = self.open_regular(self.wire_flags()).await?;
        if self.flags.truncate { self.truncate(open).await } else { Ok((open, attr)) }
    }

    /// Opens a regular file; its attributes are those before the OPEN.
    async fn open_regular(&self, flags: sftp::OpenFlags) -> Result<(OpenHandle, Attr)> {
        let (stat, open) = self.stat_and_open(flags).await?;
        let attr = self.regular(stat).await?;
        match open {
            Ok(open) => Ok((open, attr)),
            Err(error) => Err(self.failed(&error).await),
        }
    }

    /// The attributes in a reply to LSTAT, if they are of a regular file.
    async fn regular(&self, stat: sftp::Result<FileAttrs>) -> Result<Attr> {
        let attr = match stat {
            Ok(attrs) => attr::from_wire(&attrs)?,
            Err(error) => return Err(self.failed(&error).await),
        };
        check_kind(attr.kind)?;
        Ok(attr)
    }

    async fn truncate(&self, open: OpenHandle) -> Result<(OpenHandle, Attr)> {
        let client = &self.session.client;
        let empty = FileAttrs { size: Some(0), ..FileAttrs::default() };
        let (cut, after) =
            pipelined::both(client.fsetstat(&open.handle, empty), client.fstat(&open.handle)).await;
        if cut.as_ref().is_err_and(may_not_set) {
            drop(open);
            return self.open_truncating().await;
        }
        if let Err(error) = cut.and(after.as_ref().map(|_| ()).map_err(Clone::clone)) {
            return Err(self.probe().handle(&error, &open.handle, None, 0).await);
        }
        let attr = after.map_err(|_| Errno::EIO).and_then(|attrs| attr::from_wire(&attrs))?;
        Ok((open, attr))
    }

    /// Truncates by OPEN, which follows links: the name is checked once more before.
    async fn open_truncating(&self) -> Result<(OpenHandle, Attr)> {
        let full = self.session.path(self.path)?;
        self.regular(self.host.stat_unless_link(&self.session, &full).await).await?;
        let flags = self.wire_flags() | sftp::OpenFlags::TRUNCATE;
        let (open, _) = self.open_regular(flags).await?;
        let attrs = self.session.client.fstat(&open.handle).await;
        let attrs = attrs.map_err(|error| crate::errno::from_handle(&error))?;
        Ok((open, attr::from_wire(&attrs)?))
    }

    /// Creates the file, unless the name exists.
    async fn create_new(&self, perm: u32) -> Result<Creation> {
        let full = self.session.path(self.path)?;
        let make = self.wire_flags() | sftp::OpenFlags::CREATE | sftp::OpenFlags::EXCLUSIVE;
        let attrs = FileAttrs::with_permissions(perm & attr::PERM_BITS);
        let open = self.session.client.open(&full, make, attrs);
        let stat = self.host.stat_unless_link(&self.session, &full);
        let (open, stat) = pipelined::both_first_opens(open, stat).await;
        match (open, stat) {
            (Ok(handle), stat) => {
                let open = OpenHandle::new(self.session.clone(), handle);
                let attr = self.attrs_of_new(&open, stat, perm).await?;
                let attr = self.fix_permissions(&open, attr, perm).await?;
                Ok(Creation::New(open, attr))
            }
            (Err(error), _) if error.ends_connection() => Err(crate::errno::from_sftp(&error)),
            // It may have made the file that LSTAT reports.
            (Err(error @ sftp::Error::Unexpected(_)), _) => Err(crate::errno::from_sftp(&error)),
            (Err(_), Ok(attrs)) => Ok(Creation::Exists(attr::from_wire(&attrs)?)),
            (Err(error), Err(_)) => {
                let open_handles = self.host.handles.open_on(self.session.slot);
                Err(self.probe().create_open(&error, self.path, open_handles).await)
            }
        }
    }

    /// The attributes of a new file, given the reply to LSTAT of its name.
    async fn attrs_of_new(
        &self,
        open: &OpenHandle,
        stat: sftp::Result<FileAttrs>,
        perm: u32,
    ) -> Result<Attr> {
        let reported = stat.ok().and_then(|attrs| attr::from_wire(&attrs).ok());
        if let Some(attr) = reported.filter(|attr| may_be_new(attr, perm)) {
            return Ok(attr);
        }
        let attrs = self.session.client.fstat(&open.handle).await;
        attr::from_wire(&attrs.map_err(|error| crate::errno::from_handle(&error))?)
    }

    /// Sets the permission bits of a new file that the server's umask removed.
    async fn fix_permissions(&self, open: &OpenHandle, mut attr: Attr, perm: u32) -> Result<Attr> {
        if let Some(wanted) = missing_bits(perm, attr.perm)
            && !self.host.may_have_default_acl_above(&self.session, self.path).await?
        {
            let client = &self.session.client;
            let fixed = client.fsetstat(&open.handle, FileAttrs::with_permissions(wanted)).await;
            match fixed {
                Ok(()) => attr.perm = wanted,
                Err(error) if error.ends_connection() => {
                    return Err(crate::errno::from_sftp(&error));
                }
                // The server insists on fewer bits.
                Err(_) => {}
            }
        }
        Ok(attr)
    }

    /// Opens the file, or creates it if the name does not exist.
    async fn open_or_create(&self, perm: u32) -> Result<(OpenHandle, Attr)> {
        for _ in 0..MAX_RACES {
            match self.create_new(perm).await {
                Ok(Creation::New(open, attr)) => return Ok((open, attr)),
                Ok(Creation::Exists(attr)) => check_kind(attr.kind)?,
                // The file appeared between LSTAT and OPEN, or the name is a dangling link.
                Err(Errno::EEXIST) if !self.host.config().follow_symlinks => {}
                Err(errno) => return Err(errno),
            }
            match self.open_existing().await {
                Err(Errno::ENOENT) => {}
                other => return other,
            }
        }
        Err(Errno::EIO)
    }
}

/// The error for a file type that cannot be opened as a file.
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

/// Whether a file just created with these permission bits may have such attributes.
fn may_be_new(attr: &Attr, perm: u32) -> bool {
    attr.kind == FileKind::Regular && attr.size == 0 && attr.perm & !perm == 0
}

/// The permission bits to set, if some of `wanted` are not among those the file has (`are`).
pub(crate) fn missing_bits(wanted: u32, are: u32) -> Option<u32> {
    let wanted = wanted & attr::PERM_BITS;
    (wanted & !are != 0).then_some(wanted | are)
}

/// Whether the server refuses FSETSTAT, as OpenSSH's does with `-P fsetstat`.
fn may_not_set(error: &sftp::Error) -> bool {
    let refusals = [StatusCode::PERMISSION_DENIED, StatusCode::OP_UNSUPPORTED];
    error.bare_status().is_some_and(|code| refusals.contains(&code))
}

/// Whether an error is the server's unspecific FAILURE.
pub(crate) fn is_failure(error: &sftp::Error) -> bool {
    error.bare_status() == Some(StatusCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_content_or_more_permissions_is_not_new() {
        let time = base::Timestamp::default();
        let kind = FileKind::Regular;
        let attr = Attr {
            kind,
            perm: 0o640,
            size: 0,
            uid: 0,
            gid: 0,
            atime: time,
            mtime: time,
            inode: None,
        };
        assert!(may_be_new(&attr, 0o644) && may_be_new(&attr, 0o640));
        assert!(!may_be_new(&attr, 0o600));
        assert!(!may_be_new(&Attr { size: 1, ..attr }, 0o644));
        assert!(!may_be_new(&Attr { kind: FileKind::Symlink, ..attr }, 0o644));
    }

    #[test]
    fn only_missing_bits_are_set_and_none_is_removed() {
        assert_eq!(missing_bits(0o644, 0o644), None);
        assert_eq!(missing_bits(0o664, 0o644), Some(0o664));
        assert_eq!(missing_bits(0o755, 0o2755), None);
        assert_eq!(missing_bits(0o777, 0o2755), Some(0o2777));
        assert_eq!(missing_bits(0o100_644, 0o644), None);
    }
}
