//! Changing attributes.
//!
//! The wire has both owners or none, and both times or none, so to change one of a pair the other
//! is looked up first. SETSTAT follows links; `lsetstat@openssh.com` does not, and where it is
//! missing LSTAT has to say first that the path is no link.

use std::sync::Arc;

use base::{Attr, AttrChange, Errno, Fh, FileKind, RemotePath, Result};
use sftp::codec::{Owner, Times};
use sftp::{Extension, FileAttrs};

use crate::handles::OpenHandle;
use crate::host::Host;
use crate::open::is_failure;
use crate::order::EVERYTHING;
use crate::piece::{Piece, Route, SetAttrs};
use crate::probe::Probe;
use crate::session::Session;
use crate::{attr, errno, piece};

impl Host {
    pub(crate) async fn change_path(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        if change.is_empty() {
            return Ok(());
        }
        let session = self.metadata().await?;
        let full = session.path(path)?;
        // What is shown in a link's stead is what is changed. The root may be a link itself.
        let follow = self.config().follow_symlinks || path.is_root();
        let by_lsetstat = session.offers(Extension::Lsetstat) && !follow;
        let must_look =
            needs_present(&change) || change.size.is_some() || (!by_lsetstat && !follow);
        let present = if must_look {
            let look =
                if follow { session.client.stat(&full) } else { session.client.lstat(&full) };
            match look.await {
                Ok(attrs) => Some(attr::from_wire(&attrs)?),
                Err(error) => return Err(Probe(&session).general(&error, path).await),
            }
        } else {
            None
        };
        let kind = present.map(|attr| attr.kind);
        if let Some(size) = change.size {
            match kind {
                Some(FileKind::Regular) | None => {}
                Some(FileKind::Directory) => return Err(Errno::EISDIR),
                Some(FileKind::Symlink) => return Err(Errno::ELOOP),
                Some(_) => return Err(Errno::EINVAL),
            }
            if i64::try_from(size).is_err() {
                return Err(Errno::EFBIG);
            }
            // First, since it changes the time of change, which may be set too.
            let resized = FileAttrs { size: Some(size), ..FileAttrs::default() };
            if let Err(error) = session.client.setstat(&full, resized).await {
                return Err(Probe(&session).setattr(&error, path, Some(size)).await);
            }
        }
        let rest = AttrChange { size: None, ..change };
        if rest.is_empty() {
            return Ok(());
        }
        let attrs = to_wire(&rest, present.as_ref());
        if by_lsetstat && kind != Some(FileKind::Regular) {
            return change_without_following(&session, path, &full, attrs).await;
        }
        // Looked at above, or links are meant to be followed.
        if kind == Some(FileKind::Symlink) {
            return Err(Errno::EOPNOTSUPP);
        }
        match session.client.setstat(&full, attrs).await {
            Ok(()) => Ok(()),
            Err(error) => Err(Probe(&session).setattr(&error, path, None).await),
        }
    }

    pub(crate) async fn change_file(&self, fh: Fh, change: AttrChange) -> Result<()> {
        if change.is_empty() {
            return Ok(());
        }
        let file = self.live_file(fh).await?;
        let OpenHandle { session, handle, .. } = &*file.open;
        if change.size.is_some_and(|size| i64::try_from(size).is_err()) {
            return Err(Errno::EFBIG);
        }
        let turn = file.enter(EVERYTHING, true, Some(session.slot));
        let present = if needs_present(&change) {
            turn.come().await;
            let attrs = session.client.fstat(handle).await;
            Some(attr::from_wire(&attrs.map_err(|error| errno::from_handle(&error))?)?)
        } else {
            None
        };
        // The server applies the size first.
        let ask = SetAttrs(to_wire(&change, present.as_ref()));
        let route = Route::One(file.open.clone());
        let piece = Piece::new(ask, route, &self.pool.gates, Some(turn.clone()));
        match piece::one(Some(turn), piece).await.1 {
            Ok(()) => Ok(()),
            Err(error) if error.status() == Some(sftp::StatusCode::PERMISSION_DENIED) => {
                Err(Errno::EPERM)
            }
            Err(error) => Err(match change.size {
                Some(size) => Probe(session).resize(&error, handle, file.named.name(), size).await,
                None => Probe(session).handle(&error, handle, file.named.name(), 0).await,
            }),
        }
    }
}

/// By `lsetstat`. Where the server's system cannot set a mode without following (it needs /proc
/// for that, which a chroot may lack), what is no link is changed by SETSTAT.
async fn change_without_following(
    session: &Arc<Session>,
    path: &RemotePath,
    full: &[u8],
    attrs: FileAttrs,
) -> Result<()> {
    let error = match session.client.lsetstat(full, attrs).await {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    if is_failure(&error) && attrs.permissions.is_some() {
        let kind = session.client.lstat(full).await.ok().and_then(|attrs| attr::kind(&attrs));
        match kind {
            Some(FileKind::Symlink) => return Err(Errno::EOPNOTSUPP),
            Some(_) => {
                return match session.client.setstat(full, attrs).await {
                    Ok(()) => Ok(()),
                    Err(error) => Err(Probe(session).setattr(&error, path, None).await),
                };
            }
            None => {}
        }
    }
    Err(Probe(session).setattr(&error, path, None).await)
}

/// Whether only one of a pair changes.
fn needs_present(change: &AttrChange) -> bool {
    change.uid.is_some() != change.gid.is_some() || change.atime.is_some() != change.mtime.is_some()
}

/// The change as the wire has it, the other of a pair taken from what is there.
fn to_wire(change: &AttrChange, present: Option<&Attr>) -> FileAttrs {
    let owner = (change.uid.is_some() || change.gid.is_some()).then(|| Owner {
        uid: change.uid.or(present.map(|attr| attr.uid)).unwrap_or(u32::MAX),
        gid: change.gid.or(present.map(|attr| attr.gid)).unwrap_or(u32::MAX),
    });
    let times = (change.atime.is_some() || change.mtime.is_some()).then(|| {
        let time = |new: Option<_>, old: Option<_>| new.or(old).map_or(0, attr::seconds);
        Times {
            atime: time(change.atime, present.map(|attr| attr.atime)),
            mtime: time(change.mtime, present.map(|attr| attr.mtime)),
        }
    });
    FileAttrs {
        size: change.size,
        owner,
        permissions: change.perm.map(|perm| perm & attr::PERM_BITS),
        times,
    }
}
