//! Creating, renaming and removing names, and the recovery of such requests after a loss.
//!
//! These requests are not idempotent, so they are never repeated blindly. When the connection is
//! back, the names are checked, and this table decides.
//!
//! - *Before* is the state of a name when the request was sent: the last observation through this
//!   mount (`name_history`), or the expected attributes of an open file. Later observations may
//!   already show the effect of the request. For a file that was hard-linked through this mount,
//!   only its kind is known, because its other names may have changed it.
//! - *New* means created between sending the request and noticing its loss, by the server's clock;
//!   what was created later in the outage is of another client. If the request is sent again, *new*
//!   includes the time until the end of that. While the clock is unknown, it means created at the
//!   mtime of the parent directory.
//!
//! | request | observed now | result |
//! |---|---|---|
//! | creates a name | absent | sent again |
//! | creates a name | present, and present before | sent again (`EEXIST`) |
//! | mkdir | an empty new directory with no other permission bits than requested | done |
//! | exclusive create | an empty new file with no other permission bits than requested, or needed to open it | done, opened |
//! | symlink | a link with the same target | done |
//! | mknod | a new entry of the same type with no other permission bits than requested | done |
//! | link | a file with the attributes of the existing name | done |
//! | creates a name | anything else | `EEXIST` |
//! | unlink, rmdir, rename | absent, and absent before | sent again (`ENOENT`) |
//! | unlink, rmdir | absent | done |
//! | unlink | the state before, or an entry older than the request, or a directory | sent again |
//! | unlink | an entry not newer than the request, while the state before is unknown | sent again |
//! | rmdir | a directory that was not changed since the request, or has the mtime from before, or not a directory | sent again |
//! | unlink, rmdir | anything newer | unknown |
//! | rename | old name absent; the new name leads to what the old name was before | done |
//! | rename | old name absent, its state before unknown; the new name is not known to be unchanged | done |
//! | rename | both names lead to what the old name was before; the new name did not before | done |
//! | rename | the old name leads to what it was before | sent again |
//! | rename | old name present; the new name leads to what the old name was before | done |
//! | rename | old name present, its state before unknown; the new name is unchanged | sent again |
//! | rename | old name present; the new name absent, and not known to have been present before | sent again |
//! | rename | anything else, also neither name present | unknown |
//! | exchange | each name leads to what the other one was before, and not to what it was itself | done |
//! | exchange | one name leads to what it was before, and not to what the other one was; or one is absent | sent again |
//! | exchange | anything else | unknown |
//!
//! A new entry then gets the requested permission bits that the server's umask has removed. Not if
//! its directory may have a default access list, which is another reason for missing bits.
//!
//! The server may execute the lost request after the check, in particular if another gateway
//! answers the check at once. So if the repeated request fails as a request does that was already
//! executed (`EEXIST`, `ENOENT`), the names are checked once more.
//!
//! An exchange that is executed twice has no effect, and succeeds. So the names are checked a
//! second after the loss at the earliest.
//!
//! A name that cannot be checked (its path contains a loop of links) cannot be changed either. The
//! request is sent again for the server's own error.
//!
//! *Unknown* returns `EIO` and logs a line; no name is removed or replaced then.

mod active_renames;
mod outcome;

use std::sync::Arc;

use base::{
    AttrChange, Errno, FileKind, OpenFlags, Opened, Remote, RemotePath, RenameMode, Result,
    Timestamp,
};

use crate::Core;
use crate::change::PendingChange;
use crate::change_log::Change;
use crate::name_history::{NameState, Seq};
use crate::retry::{RemoteCall, Retry};
use crate::server_clock::RequestSpan;

pub(crate) use active_renames::ActiveRenames;

/// The outcome of a request without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The request is to be sent again.
    NotDone,
    /// The request has failed.
    Failed(Errno),
    /// The outcome cannot be determined, for this reason.
    Unknown(&'static str),
}

/// A request that changes names. Without `perm`, the server decides the permissions of a directory.
#[derive(Clone, Copy)]
enum NameRequest<'a> {
    Mkdir { path: &'a RemotePath, perm: Option<u32> },
    Mknod { path: &'a RemotePath, kind: FileKind, perm: u32, device: (u32, u32) },
    Symlink { target: &'a [u8], path: &'a RemotePath },
    Link { existing: &'a RemotePath, new: &'a RemotePath },
    Rmdir { path: &'a RemotePath },
    Unlink { path: &'a RemotePath },
    Rename { from: &'a RemotePath, to: &'a RemotePath, mode: RenameMode },
}

impl<'a> NameRequest<'a> {
    fn send(self, inner: &'a dyn Remote) -> RemoteCall<'a, ()> {
        match self {
            NameRequest::Mkdir { path, perm: Some(perm) } => inner.mkdir(path, perm),
            NameRequest::Mkdir { path, perm: None } => inner.mkdir_default(path),
            NameRequest::Mknod { path, kind, perm, device } => {
                inner.mknod(path, kind, perm, device)
            }
            NameRequest::Symlink { target, path } => inner.symlink(target, path),
            NameRequest::Link { existing, new } => inner.link(existing, new),
            NameRequest::Rmdir { path } => inner.rmdir(path),
            NameRequest::Unlink { path } => inner.unlink(path),
            NameRequest::Rename { from, to, mode } => inner.rename(from, to, mode),
        }
    }

    /// The system call, the name that it creates, removes or renames, and the second name of a link
    /// or rename.
    fn names(self) -> (&'static str, &'a RemotePath, Option<&'a RemotePath>) {
        match self {
            NameRequest::Mkdir { path, .. } => ("mkdir", path, None),
            NameRequest::Mknod { path, .. } => ("mknod", path, None),
            NameRequest::Symlink { path, .. } => ("symlink", path, None),
            NameRequest::Link { existing, new } => ("link", new, Some(existing)),
            NameRequest::Rmdir { path } => ("rmdir", path, None),
            NameRequest::Unlink { path } => ("unlink", path, None),
            NameRequest::Rename { from, to, .. } => ("rename", from, Some(to)),
        }
    }

    /// The server's error if the request was already executed.
    fn errno_if_done(self) -> Errno {
        match self {
            NameRequest::Rmdir { .. } | NameRequest::Unlink { .. } | NameRequest::Rename { .. } => {
                Errno::ENOENT
            }
            _ => Errno::EEXIST,
        }
    }
}

/// When a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAt {
    /// By the local clock.
    pub(crate) time: Timestamp,
    seq: Seq,
}

/// A request without a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InDoubt {
    span: RequestSpan,
    /// Observations from here on may show the effect of the request.
    seq: Seq,
}

impl SentAt {
    /// Now, after all observations so far.
    pub(crate) fn now(core: &Core) -> SentAt {
        SentAt { time: Timestamp::now(), seq: core.history.now() }
    }

    /// The loss is noticed now.
    pub(crate) fn lost(self) -> InDoubt {
        InDoubt { span: RequestSpan::until_now(self.time), seq: self.seq }
    }
}

/// The outcome of a create.
pub(crate) enum CreateOutcome {
    Opened(Opened),
    Absent,
    Exists,
}

impl Core {
    /// Sends a request. If the reply is lost, its outcome is determined.
    async fn send_and_resolve(self: &Arc<Core>, request: NameRequest<'_>) -> Result<()> {
        self.wait_connected().await?;
        // Keeps the expected attributes of open files, even if their last handles are closed in the
        // meantime.
        let (_, path, other) = request.names();
        let _files = [Some(path), other].map(|path| self.files.get(path?));
        let sent = SentAt::now(self);
        match request.send(&*self.inner).await {
            Err(errno) if errno.is_loss() => {
                Box::pin(self.resolve_in_doubt(request, sent, errno)).await
            }
            answer => answer,
        }
    }

    async fn resolve_in_doubt(
        self: &Arc<Core>,
        request: NameRequest<'_>,
        sent: SentAt,
        mut errno: Errno,
    ) -> Result<()> {
        let mut retry = Retry::new(self);
        let mut in_doubt = sent.lost();
        // The server's error when the request was sent again.
        let mut refusal = None;
        loop {
            retry.after_loss(errno).await?;
            let answer = loop {
                let outcome = match retry.within_deadline(self.outcome(request, in_doubt)).await {
                    Err(errno) if errno.is_loss() => break Err(errno),
                    // A name that cannot be checked cannot be changed either: the server returns
                    // the exact error.
                    Err(_) => Outcome::NotDone,
                    Ok(outcome) => outcome,
                };
                match (outcome, refusal) {
                    (Outcome::Done, _) => return Ok(()),
                    (Outcome::NotDone, Some(errno)) | (Outcome::Failed(errno), _) => {
                        return Err(errno);
                    }
                    (Outcome::NotDone, None) => {}
                    (Outcome::Unknown(why), _) => return Err(self.warn_unknown(request, why)),
                }
                let answer = retry.within_deadline(request.send(&*self.inner)).await;
                in_doubt = sent.lost();
                match answer {
                    Err(errno) if errno == request.errno_if_done() => refusal = Some(errno),
                    answer => break answer,
                }
            };
            match answer {
                Err(lost) if retry.is_retryable(lost) => errno = lost,
                answer => return answer,
            }
        }
    }

    fn warn_unknown(&self, request: NameRequest<'_>, why: &str) -> Errno {
        let (host, (name, path, _)) = (&self.config.name, request.names());
        tracing::warn!(
            "{host}: {name} {path}: the connection was lost before the reply, and the outcome is \
             unknown: {why}"
        );
        Errno::EIO
    }

    pub(crate) async fn mkdir(
        self: &Arc<Core>,
        path: &RemotePath,
        perm: Option<u32>,
    ) -> Result<()> {
        self.send_and_resolve(NameRequest::Mkdir { path, perm }).await?;
        self.history.record(path, NameState::created(FileKind::Directory));
        Ok(())
    }

    pub(crate) async fn rmdir(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        self.send_and_resolve(NameRequest::Rmdir { path }).await?;
        self.directories.removed(path);
        self.history.record(path, NameState::Absent);
        Ok(())
    }

    pub(crate) async fn unlink(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        let _removal = self.begin_removal(path).await;
        self.send_and_resolve(NameRequest::Unlink { path }).await?;
        self.files.removed(path);
        self.history.record(path, NameState::Absent);
        Ok(())
    }

    pub(crate) async fn symlink(self: &Arc<Core>, target: &[u8], path: &RemotePath) -> Result<()> {
        self.send_and_resolve(NameRequest::Symlink { target, path }).await?;
        self.history.record(path, NameState::created(FileKind::Symlink));
        Ok(())
    }

    pub(crate) async fn mknod(
        self: &Arc<Core>,
        path: &RemotePath,
        kind: FileKind,
        perm: u32,
        device: (u32, u32),
    ) -> Result<()> {
        self.send_and_resolve(NameRequest::Mknod { path, kind, perm, device }).await?;
        self.history.record(path, NameState::created(kind));
        Ok(())
    }

    pub(crate) async fn link(
        self: &Arc<Core>,
        existing: &RemotePath,
        new: &RemotePath,
    ) -> Result<()> {
        self.send_and_resolve(NameRequest::Link { existing, new }).await?;
        self.history.record_link(existing, new);
        Ok(())
    }

    pub(crate) async fn rename(
        self: &Arc<Core>,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
    ) -> Result<()> {
        let _removal = self.begin_removal(to).await;
        let _active = self.renames.begin(from, to);
        // An open file may have to be reopened before the reply arrives.
        self.files.begin_rename(from, to, mode);
        match self.send_and_resolve(NameRequest::Rename { from, to, mode }).await {
            Ok(()) => {
                self.files.finish_rename(from, to, mode);
                self.directories.renamed(from, to, mode);
                match mode {
                    RenameMode::Exchange => self.history.record_exchange(from, to),
                    _ => self.history.record_rename(from, to),
                }
                Ok(())
            }
            Err(errno) => {
                if errno != Errno::EIO && !errno.is_loss() {
                    self.files.abort_rename(from, to, mode);
                }
                Err(errno)
            }
        }
    }

    /// Setting attributes is idempotent. A file that is open at this path may have either
    /// attributes in the meantime.
    pub(crate) async fn setattr(
        self: &Arc<Core>,
        path: &RemotePath,
        change: AttrChange,
    ) -> Result<()> {
        // Held even if the file is not open: an open may begin before the reply.
        let file = self.files.get_or_new(path);
        let pending =
            PendingChange::begin_without_handle(self, &file, Change::SetAttrByPath(change)).await?;
        self.with_retry(|| self.inner.setattr(path, change)).await?;
        pending.happened(self);
        self.history.record_setattr(path, change);
        Ok(())
    }

    /// Recovers an exclusive create without a reply.
    pub(crate) async fn create_in_doubt(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
        sent: SentAt,
        mut errno: Errno,
    ) -> Result<Opened> {
        let mut retry = Retry::new(self);
        let mut in_doubt = sent.lost();
        // The repeated create returned `EEXIST`: the file may have been there before.
        let (mut already_exists, mut skip_wait) = (false, false);
        loop {
            if !std::mem::take(&mut skip_wait) {
                retry.after_loss(errno).await?;
            }
            let found =
                match retry.within_deadline(self.create_outcome(path, flags, perm, in_doubt)).await
                {
                    Err(errno) if errno.is_loss() => Err(errno),
                    Err(_) => Ok(CreateOutcome::Absent),
                    found => found,
                };
            let answer = match found {
                Ok(CreateOutcome::Opened(opened)) => return Ok(opened),
                Ok(CreateOutcome::Exists) => return Err(Errno::EEXIST),
                Ok(CreateOutcome::Absent) => {
                    let answer = retry.within_deadline(self.inner.open(path, flags)).await;
                    in_doubt = sent.lost();
                    match answer {
                        Err(Errno::EEXIST) if !already_exists => {
                            (already_exists, skip_wait) = (true, true);
                            continue;
                        }
                        answer => answer,
                    }
                }
                Err(errno) => Err(errno),
            };
            match answer {
                Err(lost) if retry.is_retryable(lost) => errno = lost,
                answer => return answer,
            }
        }
    }
}
