//! Changing attributes.
//!
//! The protocol carries both owners or none, and both times or none; to change one of a pair, the
//! other is queried first. `attrs@sshoal` carries single times, with nanoseconds. SETSTAT follows
//! links; `lsetstat@openssh.com` does not, and is used for every kind of entry, because another user
//! of the server may put a link there at any time. Without it, LSTAT has to show first that the path
//! is not a link. A size is set by SETSTAT only, after an LSTAT.
//!
//! A server other than OpenSSH's gets size, owner, mode and times in requests of their own, sent
//! together: that of `github.com/pkg/sftp`, which rclone and others use, reads them in another order
//! than the protocol's, and sets garbage.

use std::sync::Arc;

use base::{Attr, AttrChange, Errno, Fh, FileKind, RemotePath, Result};
use sftp::codec::{ExactAttrs, Owner, Times};
use sftp::{Extension, FileAttrs};

use crate::handles::OpenHandle;
use crate::host::Host;
use crate::open::is_failure;
use crate::probe::Probe;
use crate::range_lock::WHOLE_FILE;
use crate::session::Session;
use crate::{attr, chunk_request, errno};

impl Host {
    pub(crate) async fn change_path(&self, path: &RemotePath, change: AttrChange) -> Result<()> {
        if change.is_empty() {
            return Ok(());
        }
        let session = self.metadata().await?;
        let full = session.path(path)?;
        // If links are shown as their targets, the target is changed. The root may be a link
        // itself.
        let follow = self.config().follow_symlinks || path.is_root();
        let by_lsetstat = session.offers(Extension::Lsetstat) && !follow;
        let exact = session.offers(Extension::Attrs);
        let must_look =
            needs_present(&change, exact) || change.size.is_some() || (!by_lsetstat && !follow);
        let present = if must_look {
            let stat =
                if follow { session.client.stat(&full) } else { session.client.lstat(&full) };
            match stat.await {
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
            // First, since it changes mtime, which may be set too.
            let resized = FileAttrs { size: Some(size), ..FileAttrs::default() };
            if let Err(error) = session.client.setstat(&full, resized).await {
                return Err(Probe(&session).setattr(&error, path, &change).await);
            }
        }
        let rest = AttrChange { size: None, ..change };
        if rest.is_empty() {
            return Ok(());
        }
        let attrs = to_wire(&rest, present.as_ref(), exact);
        if by_lsetstat {
            return change_without_following(&session, path, &full, (&rest, attrs)).await;
        }
        // LSTAT has reported the type, or links are followed.
        if kind == Some(FileKind::Symlink) {
            return Err(Errno::EOPNOTSUPP);
        }
        let calls = requests(&session, attrs).map(|attrs| session.client.setstat(&full, attrs));
        match base::join_in_order(calls).await.into_iter().collect() {
            Ok(()) => Ok(()),
            Err(error) => Err(Probe(&session).setattr(&error, path, &rest).await),
        }
    }

    pub(crate) async fn change_file(&self, fh: Fh, change: AttrChange) -> Result<()> {
        if change.is_empty() {
            return Ok(());
        }
        let file = self.file_to_change(fh)?;
        let OpenHandle { session, handle, .. } = &*file.open;
        if change.size.is_some_and(|size| i64::try_from(size).is_err()) {
            return Err(Errno::EFBIG);
        }
        let ticket = file.enter(WHOLE_FILE, true, Some(session.slot));
        let exact = session.offers(Extension::Attrs);
        let present = if needs_present(&change, exact) {
            ticket.ready().await;
            let attrs = session.client.fstat(handle).await;
            Some(attr::from_wire(&attrs.map_err(|error| errno::from_handle(&error))?)?)
        } else {
            None
        };
        // The server applies the size first.
        let attrs = to_wire(&change, present.as_ref(), exact);
        let calls = requests(session, attrs).map(|attrs| {
            move |open: &OpenHandle| open.session.client.fsetstat(&open.handle, attrs)
        });
        match chunk_request::change(&file.open, &self.pool.flow, ticket, calls).await {
            Ok(()) => Ok(()),
            Err(error) if error.bare_status() == Some(sftp::StatusCode::PERMISSION_DENIED) => {
                Err(Errno::EPERM)
            }
            Err(error) => Err(match change.size {
                Some(size) => {
                    Probe(session).resize(&error, handle, file.open_path.name(), size).await
                }
                None => Probe(session).handle(&error, handle, file.open_path.name(), 0).await,
            }),
        }
    }
}

/// By `lsetstat`; `attrs` is `change` in the protocol's form. If the server's system cannot set a
/// mode without following links (this needs /proc, which a chroot may lack), SETSTAT is used for a
/// path that is not a link.
pub(crate) async fn change_without_following(
    session: &Arc<Session>,
    path: &RemotePath,
    full: &[u8],
    (change, attrs): (&AttrChange, FileAttrs),
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
                    Err(error) => Err(Probe(session).setattr(&error, path, change).await),
                };
            }
            None => {}
        }
    }
    Err(Probe(session).setattr(&error, path, change).await)
}

/// The attributes of each request. Owner before mode, since it clears set-ID bits; times last.
fn requests(session: &Session, attrs: FileAttrs) -> impl Iterator<Item = FileAttrs> + use<> {
    // OpenSSH has the one since 8.0 and the other since 8.5; the helper has both.
    let may_combine = [Extension::Lsetstat, Extension::Limits].map(|it| session.offers(it));
    let none = FileAttrs::default();
    let requests = match may_combine {
        [false, false] => [
            FileAttrs { size: attrs.size, ..none },
            FileAttrs { owner: attrs.owner, ..none },
            FileAttrs { permissions: attrs.permissions, ..none },
            FileAttrs { times: attrs.times, exact: attrs.exact, ..none },
        ],
        _ => [attrs, none, none, none],
    };
    requests.into_iter().filter(move |attrs| *attrs != none)
}

/// Whether only one of a pair changes. With `exact`, the server takes single times.
fn needs_present(change: &AttrChange, exact: bool) -> bool {
    change.uid.is_some() != change.gid.is_some()
        || !exact && change.atime.is_some() != change.mtime.is_some()
}

/// The change in the protocol's form; the other value of a pair is taken from `present`. With
/// `exact`, times have nanoseconds.
fn to_wire(change: &AttrChange, present: Option<&Attr>, exact: bool) -> FileAttrs {
    let owner = (change.uid.is_some() || change.gid.is_some()).then(|| Owner {
        uid: change.uid.or(present.map(|attr| attr.uid)).unwrap_or(u32::MAX),
        gid: change.gid.or(present.map(|attr| attr.gid)).unwrap_or(u32::MAX),
    });
    let exact_attrs = ExactAttrs {
        touch: exact && change.touch,
        atime: change.atime.filter(|_| exact),
        mtime: change.mtime.filter(|_| exact),
        ..ExactAttrs::default()
    };
    let has_times = change.atime.is_some() || change.mtime.is_some();
    let times = (has_times && !exact).then(|| {
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
        exact: exact_attrs,
    }
}
