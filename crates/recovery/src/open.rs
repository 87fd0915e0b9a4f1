//! Opening files.
//!
//! An interrupted open may be repeated: a file that it created exists, a file that it truncated is
//! empty. An exclusive create must check whether it has created the file (`name_ops`). So must an
//! open that is refused when it is repeated: it may have created a file whose mode refuses opens.
//! Any other one that may create a file checks it for the permission bits of the file.

use std::sync::Arc;

use base::{Create, Errno, Mutex, OpenFlags, OpenGuard, Opened, RemotePath, Result};

use crate::Core;
use crate::expected_attrs::ExpectedAttrs;
use crate::file::OpenFiles;
use crate::name_history::NameState;
use crate::name_ops::{CreateOutcome, SentAt};
use crate::reopen::needed_perm;
use crate::retry::RemoteCall;

/// Attempts to open a file that is removed, renamed or replaced in the meantime.
const MAX_OPENS: u32 = 8;

impl Core {
    pub(crate) async fn open(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
    ) -> Result<Opened> {
        let is_new = matches!(flags.create, Create::Exclusive(_));
        for attempt in 1.. {
            let may_retry = !is_new && attempt < MAX_OPENS;
            if let Some(opened) = self.open_once(path, flags, may_retry).await? {
                return Ok(opened);
            }
        }
        unreachable!("the last attempt takes what it finds")
    }

    /// One attempt. `None` if this mount removed, renamed or replaced the file in the meantime and
    /// `may_retry` is set: the reply does not show which file was opened.
    async fn open_once(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        may_retry: bool,
    ) -> Result<Option<Opened>> {
        let mut before = self.files.begin_open(self, path, flags).await?;
        let is_new = matches!(flags.create, Create::Exclusive(_));
        let requested = self.history.now();
        let opened = match flags.create {
            Create::Exclusive(perm) => self.open_new(path, flags, perm).await,
            Create::IfAbsent(perm) => self.open_or_create(path, flags, perm).await,
            Create::Never => self.with_retry(|| self.inner.open(path, flags)).await,
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(errno) => {
                if errno == Errno::ENOENT {
                    self.history.record_reply(path, NameState::Absent, requested);
                }
                if !errno.is_loss() && errno != Errno::EIO {
                    OpenFiles::abort_open(before);
                }
                return Err(errno);
            }
        };
        if may_retry && (before.has_no_path() || self.renames.affects(path)) {
            self.inner.close(opened.fh);
            // The file may have been truncated.
            drop(before);
            self.bounded_wait(self.renames.wait_until_ended(path)).await?;
            return Ok(None);
        }
        if is_new && self.renames.affects(path) {
            // The file that had the name was renamed already; its state is kept by its new name.
            let guard = OpenGuard::new(&*self.inner, opened.fh);
            OpenFiles::abort_open(before);
            self.bounded_wait(self.renames.wait_until_ended(path)).await?;
            let existing = OpenFlags { truncate: false, ..flags };
            before = self.files.begin_open(self, path, existing).await?;
            let _ = guard.take();
        }
        let seen = NameState::Present(ExpectedAttrs::of(&opened.attr));
        match flags.create == Create::Never && !flags.truncate {
            true => self.history.record_reply(path, seen, requested),
            false => self.history.record(path, seen),
        }
        let fh = self.files.finish_open(self, path, flags, &opened, before).await;
        Ok(Some(Opened { fh, ..opened }))
    }

    /// Opens a file, or creates one.
    async fn open_or_create(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<Opened> {
        self.wait_connected().await?;
        let sent = SentAt::now(self);
        match self.inner.open(path, flags).await {
            Err(errno) if errno.is_loss() => {
                Box::pin(self.open_or_create_in_doubt(path, flags, perm, sent, errno)).await
            }
            answer => answer,
        }
    }

    /// Repeats an open without a reply, which may have created the file. Its mode may refuse opens.
    async fn open_or_create_in_doubt(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
        sent: SentAt,
        errno: Errno,
    ) -> Result<Opened> {
        let in_doubt = &Mutex::new(sent.lost());
        let open_again = || -> RemoteCall<'_, Opened> {
            Box::pin(async move {
                let before = *in_doubt.lock();
                let opened = self.open_or_create_again(path, flags, perm, before).await;
                if opened.as_ref().is_err_and(|errno| errno.is_loss()) {
                    *in_doubt.lock() = sent.lost();
                }
                opened
            })
        };
        let is_protected = needed_perm(flags.access) & !perm != 0;
        match self.retry_until_done(Some(errno), open_again).await {
            Err(Errno::EACCES) if is_protected => {}
            opened => return opened,
        }
        let in_doubt = *in_doubt.lock();
        let outcome =
            self.with_retry(|| Box::pin(self.create_outcome(path, flags, perm, in_doubt)));
        match outcome.await? {
            CreateOutcome::Opened(opened) => Ok(opened),
            CreateOutcome::Absent | CreateOutcome::Exists => Err(Errno::EACCES),
        }
    }

    async fn open_new(
        self: &Arc<Core>,
        path: &RemotePath,
        flags: OpenFlags,
        perm: u32,
    ) -> Result<Opened> {
        self.wait_connected().await?;
        let sent = SentAt::now(self);
        match self.inner.open(path, flags).await {
            Err(errno) if errno.is_loss() => {
                Box::pin(self.create_in_doubt(path, flags, perm, sent, errno)).await
            }
            Ok(opened) => {
                self.clock.learn(opened.attr.mtime, sent.time);
                Ok(opened)
            }
            Err(errno) => Err(errno),
        }
    }
}
