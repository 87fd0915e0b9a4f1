//! Making, moving and removing names, when the answer is lost.
//!
//! Such a request is never blindly sent again. When there is a connection again, the names are looked
//! at. *Before* is what was last seen of a name through us (`known`) when the request was sent, since
//! what is seen later may be its work, or what an open file must look like; of a file that was linked
//! here it is only the kind, since its other names lead to changes of it, too. *Fresh* means made
//! between the request and its loss, by the server's clock, or, as long as that is not known, at the
//! time at which the directory above was last changed.
//!
//! | request | what is there now | answer |
//! |---|---|---|
//! | any of those that make a name | nothing | sent again |
//! | any of those that make a name | something, and it was there before | sent again (`EEXIST`) |
//! | mkdir | an empty, fresh directory with no other permissions | done |
//! | open of a new file | an empty, fresh file with no other permissions | done, opened |
//! | symlink | a link with that target | done |
//! | link | a file with the attributes of the other name | done |
//! | any of those that make a name | something else | `EEXIST` |
//! | unlink, rmdir, rename | nothing, and nothing was there before | sent again (`ENOENT`) |
//! | unlink, rmdir | nothing | done |
//! | unlink | what was there before, or what is older than the request, or a directory | sent again |
//! | unlink | something, of which nothing was known, not newer than the request | sent again |
//! | rmdir | a directory not changed since the request, or of the same time as before, or no directory | sent again |
//! | unlink, rmdir | something newer | unknown |
//! | rename | not the old name, and at the new one what was at the old one | done |
//! | rename | not the old name, the old one was not known, and the new one is not known to be what it was | done |
//! | rename | what was at the old name is there | sent again |
//! | rename | at the old name something, at the new one what was at the old one | done |
//! | rename | at the old name something not known, at the new one what was there before | sent again |
//! | rename | anything else, also neither name | unknown |
//!
//! A request that was lost may be carried out a moment later than the look: by another gateway one is
//! quick to look. So when it is sent again, and the answer is what a request gets that has been
//! done already (`EEXIST`, `ENOENT`), there is one more look.
//!
//! Names that cannot be looked at (a path with a loop of links in it) cannot be changed either: such
//! a request is sent again, for the server's own error.
//!
//! *Unknown* is `EIO`, and a line in the log; nothing is removed or replaced then.

mod active_renames;
mod outcome;

use std::sync::Arc;

use base::{
    AttrChange, Errno, FileKind, OpenFlags, Opened, RemotePath, RenameMode, Result, Timestamp,
};

use crate::Core;
use crate::change::PendingChange;
use crate::change_log::Change;
use crate::connection::is_loss;
use crate::name_history::{NameState, Seq};
use crate::retry::{RemoteCall, Retry};
use crate::server_clock::RequestSpan;

pub(crate) use active_renames::ActiveRenames;

/// What became of a request whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// It is to be sent again.
    NotDone,
    /// It has failed.
    Failed(Errno),
    /// Nobody can tell, for this reason.
    Unknown(&'static str),
}

/// A request that changes names.
struct NameRequest<'a> {
    name: &'static str,
    path: &'a RemotePath,
    /// The other name that it concerns.
    other: Option<&'a RemotePath>,
    /// The server's answer when it has been done already.
    errno_if_done: Errno,
}

/// When a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAt {
    /// By our clock.
    pub(crate) time: Timestamp,
    seq: Seq,
}

/// A request whose answer was lost.
#[derive(Clone, Copy, Debug)]
struct InDoubt {
    span: RequestSpan,
    /// What was seen from here on may be the request's own work.
    seq: Seq,
}

impl SentAt {
    /// Now, after all that was seen so far.
    pub(crate) fn now(core: &Core) -> SentAt {
        SentAt { time: Timestamp::now(), seq: core.history.now() }
    }

    /// Its loss is noticed now.
    fn lost(self) -> InDoubt {
        InDoubt { span: RequestSpan::until_now(self.time), seq: self.seq }
    }
}

/// What became of an open of a new file.
enum CreateOutcome {
    Opened(Opened),
    Absent,
    Exists,
}

impl Core {
    /// Sends a request; if its answer is lost, `find_outcome` finds out what became of it.
    async fn send_and_resolve<'a>(
        self: &'a Arc<Core>,
        request: &NameRequest<'_>,
        call: impl Fn() -> RemoteCall<'a, ()> + Send + Sync,
        find_outcome: impl Fn(InDoubt) -> RemoteCall<'a, Outcome> + Send + Sync,
    ) -> Result<()> {
        self.wait_connected().await?;
        // What is known of open files stays known, though their last handles are closed meanwhile.
        let _files = [Some(request.path), request.other].map(|path| self.files.get(path?));
        let sent = SentAt::now(self);
        match call().await {
            Err(errno) if is_loss(errno) => {
                Box::pin(self.resolve_in_doubt(request, call, find_outcome, sent, errno)).await
            }
            answer => answer,
        }
    }

    async fn resolve_in_doubt<'a>(
        self: &'a Arc<Core>,
        request: &NameRequest<'_>,
        call: impl Fn() -> RemoteCall<'a, ()> + Send + Sync,
        find_outcome: impl Fn(InDoubt) -> RemoteCall<'a, Outcome> + Send + Sync,
        sent: SentAt,
        mut errno: Errno,
    ) -> Result<()> {
        let mut retry = Retry::new(self);
        // What the server said when it was sent again.
        let mut refusal = None;
        loop {
            retry.after_loss(errno).await?;
            let answer = loop {
                let outcome = match retry.within_deadline(find_outcome(sent.lost())).await {
                    Err(errno) if is_loss(errno) => break Err(errno),
                    // What cannot be looked at cannot be changed either: the server knows best why.
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
                match retry.within_deadline(call()).await {
                    Err(errno) if errno == request.errno_if_done => refusal = Some(errno),
                    answer => break answer,
                }
            };
            match answer {
                Err(lost) if retry.is_retryable(lost) => errno = lost,
                answer => return answer,
            }
        }
    }

    fn warn_unknown(&self, NameRequest { name, path, .. }: &NameRequest<'_>, why: &str) -> Errno {
        let host = &self.config.name;
        tracing::warn!(
            "{host}: {name} {path}: the connection was lost before the reply, and the outcome is \
             unknown: {why}"
        );
        Errno::EIO
    }

    pub(crate) async fn mkdir(self: &Arc<Core>, path: &RemotePath, perm: u32) -> Result<()> {
        let call = || self.inner.mkdir(path, perm);
        let find_outcome =
            |in_doubt| -> RemoteCall<'_, _> { Box::pin(self.mkdir_outcome(path, perm, in_doubt)) };
        self.send_and_resolve(
            &NameRequest { name: "mkdir", path, other: None, errno_if_done: Errno::EEXIST },
            call,
            find_outcome,
        )
        .await?;
        self.history.record(path, NameState::created(FileKind::Directory));
        Ok(())
    }

    pub(crate) async fn rmdir(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        let call = || self.inner.rmdir(path);
        let find_outcome =
            |in_doubt| -> RemoteCall<'_, _> { Box::pin(self.rmdir_outcome(path, in_doubt)) };
        self.send_and_resolve(
            &NameRequest { name: "rmdir", path, other: None, errno_if_done: Errno::ENOENT },
            call,
            find_outcome,
        )
        .await?;
        self.directories.removed(path);
        self.history.record(path, NameState::Absent);
        Ok(())
    }

    pub(crate) async fn unlink(self: &Arc<Core>, path: &RemotePath) -> Result<()> {
        self.reopen_before_removal(path).await;
        let call = || self.inner.unlink(path);
        let find_outcome =
            |in_doubt| -> RemoteCall<'_, _> { Box::pin(self.unlink_outcome(path, in_doubt)) };
        self.send_and_resolve(
            &NameRequest { name: "unlink", path, other: None, errno_if_done: Errno::ENOENT },
            call,
            find_outcome,
        )
        .await?;
        self.files.removed(path);
        self.history.record(path, NameState::Absent);
        Ok(())
    }

    pub(crate) async fn symlink(self: &Arc<Core>, target: &[u8], path: &RemotePath) -> Result<()> {
        let call = || self.inner.symlink(target, path);
        let find_outcome = |in_doubt| -> RemoteCall<'_, _> {
            Box::pin(self.symlink_outcome(target, path, in_doubt))
        };
        self.send_and_resolve(
            &NameRequest { name: "symlink", path, other: None, errno_if_done: Errno::EEXIST },
            call,
            find_outcome,
        )
        .await?;
        self.history.record(path, NameState::created(FileKind::Symlink));
        Ok(())
    }

    pub(crate) async fn link(
        self: &Arc<Core>,
        existing: &RemotePath,
        new: &RemotePath,
    ) -> Result<()> {
        let call = || self.inner.link(existing, new);
        let find_outcome = |in_doubt| -> RemoteCall<'_, _> {
            Box::pin(self.link_outcome(existing, new, in_doubt))
        };
        self.send_and_resolve(
            &NameRequest {
                name: "link",
                path: new,
                other: Some(existing),
                errno_if_done: Errno::EEXIST,
            },
            call,
            find_outcome,
        )
        .await?;
        self.history.record_link(existing, new);
        Ok(())
    }

    pub(crate) async fn rename(
        self: &Arc<Core>,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
    ) -> Result<()> {
        let call = || self.inner.rename(from, to, mode);
        let find_outcome =
            |in_doubt| -> RemoteCall<'_, _> { Box::pin(self.rename_outcome(from, to, in_doubt)) };
        self.reopen_before_removal(to).await;
        let _active = self.renames.begin(from, to);
        // What is open may have to be opened again before this is answered.
        self.files.begin_rename(from, to);
        match self
            .send_and_resolve(
                &NameRequest {
                    name: "rename",
                    path: from,
                    other: Some(to),
                    errno_if_done: Errno::ENOENT,
                },
                call,
                find_outcome,
            )
            .await
        {
            Ok(()) => {
                self.files.finish_rename(from, to);
                self.directories.renamed(from, to);
                self.history.record_rename(from, to);
                Ok(())
            }
            Err(errno) => {
                if errno != Errno::EIO && !is_loss(errno) {
                    self.files.abort_rename(from, to);
                }
                Err(errno)
            }
        }
    }

    /// Setting attributes may be repeated; a file that is open by this path may look either way
    /// meanwhile.
    pub(crate) async fn setattr(
        self: &Arc<Core>,
        path: &RemotePath,
        change: AttrChange,
    ) -> Result<()> {
        // Held also if nothing has it open: an open may begin before this is answered.
        let file = self.files.get_or_new(path);
        let pending =
            PendingChange::begin_without_handle(self, &file, Change::SetAttrByPath(change)).await?;
        self.with_retry(|| self.inner.setattr(path, change)).await?;
        pending.happened(self);
        self.history.record_setattr(path, change);
        Ok(())
    }

    /// The open of a new file, whose answer was lost.
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
        // When it was sent again, the server had it: perhaps from before.
        let (mut already_exists, mut skip_wait) = (false, false);
        loop {
            if !std::mem::take(&mut skip_wait) {
                retry.after_loss(errno).await?;
            }
            let found =
                match retry.within_deadline(self.create_outcome(path, flags, perm, in_doubt)).await
                {
                    Err(errno) if is_loss(errno) => Err(errno),
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
