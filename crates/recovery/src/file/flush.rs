//! Handles that a flush has closed on the server while they are open here.
//!
//! The program that wrote a file needs the server's answer to the close
//! ([`Remote::flush`](base::Remote::flush)). But the last close of a descriptor cannot be
//! recognised: it may have been duplicated or inherited. So each flush closes the inner handle. If
//! the outer handle is used again, the file is reopened for it and compared, as after a loss
//! (`reopen`). The other handles of the file are not affected.
//!
//! - A handle is marked before its close is sent. A call that finds the mark reopens the file
//!   first. A call that was too early gets `EBADF` from the inner remote, which sends nothing
//!   through a closed handle. It is repeated through the new handle. A change is retried; if a
//!   newer one has begun since, it is replayed as after a loss, which keeps the order.
//! - A file without a name cannot be reopened, so a flush does not close it. Before this mount
//!   removes or replaces a name, the closed handles of its file are reopened, and no flush closes
//!   them until the request has ended.
//! - While a lock is held or requested, no flush closes a handle of the file: the lock would end.
//! - A loss clears the mark: the file is reopened for all its handles.

use std::sync::Arc;

use base::{Errno, Fh, RemotePath, Result};

use super::{FileState, Handle, OpenFile, Phase};
use crate::Core;
use crate::reopen;

impl FileState {
    /// Whether a flush has closed this handle, so that its next user must reopen it.
    pub(crate) fn is_closed_by_flush(&self, number: u64) -> bool {
        self.phase == Phase::Open
            && self.inner_handles.get(&number).is_some_and(|inner| inner.closed)
    }

    /// Whether no unstable write has been acknowledged since the write verifier is known.
    fn lacks_write_verifier(&self) -> bool {
        let has_writes = !self.unstable.is_empty() || !self.log.is_idle();
        has_writes && self.write_verifier.is_none()
    }
}

impl Handle {
    /// As [`FileState::is_closed_by_flush`].
    pub(crate) fn is_closed_by_flush(&self) -> bool {
        self.file.lock().is_closed_by_flush(self.number)
    }

    /// Whether this error means that the inner handle was lost, or closed by a flush. Both are
    /// detected before anything is sent through it, unless the file has locks: then the server may
    /// have lost them, and have refused the last parts of a change.
    pub(crate) fn is_stale(&self, fh: Fh, errno: Errno) -> bool {
        let is_open = || {
            let state = self.file.lock();
            state
                .inner_handles
                .get(&self.number)
                .is_some_and(|inner| inner.fh == fh && !inner.closed)
        };
        errno == Errno::ESTALE || errno == Errno::EBADF && !is_open()
    }

    /// A call through the inner handle of this epoch has failed with `errno`, which [is
    /// stale](Handle::is_stale) or a loss.
    pub(crate) fn note_loss(&self, errno: Errno, epoch: u64) {
        // After `EBADF` only this handle has to be reopened.
        if errno != Errno::EBADF {
            self.file.mark_lost(epoch);
        }
    }

    /// The inner handle is about to be closed. `false` if it is closed already.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it must be `reopenable`, and has no name, or the name is being removed, or
    /// the file is locked.
    fn mark_closed(&self, fh: Fh, reopenable: bool) -> Result<bool> {
        let mut state = self.file.lock();
        if reopenable && (state.has_no_path() || state.removals > 0 || state.has_locks()) {
            return Err(Errno::EOPNOTSUPP);
        }
        let inner = state.inner_handles.get_mut(&self.number);
        let inner = inner.filter(|inner| inner.fh == fh && !inner.closed);
        Ok(inner.map(|inner| inner.closed = true).is_some())
    }

    /// The file was reopened for this handle, by requests that were sent in this epoch. `false` if
    /// `fh` may not be used: the file was lost in the meantime, and is reopened for all its
    /// handles.
    pub(crate) fn set_reopened(&self, fh: Fh, epoch: u64) -> bool {
        let mut state = self.file.lock();
        if state.epoch != epoch || !state.is_closed_by_flush(self.number) {
            return false;
        }
        let inner = state.inner_handles.get_mut(&self.number);
        inner.map(|inner| (inner.fh, inner.closed) = (fh, false)).is_some()
    }
}

impl OpenFile {
    /// The handles that a flush has closed.
    fn closed_handles(&self) -> Vec<Arc<Handle>> {
        let state = self.lock();
        let closed =
            state.inner_handles.iter().filter(|(number, _)| state.is_closed_by_flush(**number));
        closed.filter_map(|(_, inner)| inner.handle.upgrade()).collect()
    }
}

impl Core {
    /// Closes the inner handle, and returns the server's answer; `EOPNOTSUPP` for a file that could
    /// not be reopened.
    pub(crate) async fn flush(self: &Arc<Core>, fh: Fh) -> Result<()> {
        let handle = self.files.handle(fh)?;
        let file = &handle.file;
        self.wait_for_queue(file).await?;
        if file.has_no_path() {
            return Err(Errno::EOPNOTSUPP);
        }
        if !handle.is_closed_by_flush() {
            self.finish_inner(&handle, true).await?;
        }
        file.lock().take_deferred_error()
    }

    /// Closes the inner handle. If the connection is lost before the reply, the server has closed
    /// the file, but its answer is unknown: the file is reopened and compared, and the new handle
    /// is closed. A file without a name cannot be reopened, and no program can read its content any
    /// more.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the file must be `reopenable`, and is not.
    pub(crate) async fn finish_inner(
        self: &Arc<Core>,
        handle: &Arc<Handle>,
        reopenable: bool,
    ) -> Result<()> {
        let file = &handle.file;
        // Of writes before the verifier was known. The server has not restarted since if the
        // handle is open until then; afterwards nothing would prove that.
        let (epoch, is_lacking) = {
            let state = file.lock();
            (state.epoch, state.lacks_write_verifier())
        };
        let write_verifier = match is_lacking && self.write_verifier.may_be_available() {
            true => self.inner.write_verifier().await.ok().flatten(),
            false => None,
        };
        let finished =
            self.retry_with_handles([handle], |[fh]| match handle.mark_closed(fh, reopenable) {
                Ok(true) => self.inner.finish(fh),
                // Another caller has closed it, and gets the answer.
                Ok(false) => Box::pin(async { Ok(()) }),
                Err(errno) => Box::pin(async move { Err(errno) }),
            });
        match finished.await {
            Ok(()) => {
                let mut state = file.lock();
                // Not of a server that was lost meanwhile.
                if state.epoch == epoch
                    && !state.unstable.is_empty()
                    && state.write_verifier.is_none()
                {
                    state.write_verifier = write_verifier;
                }
                Ok(())
            }
            Err(Errno::ESTALE) if file.has_no_path() => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Reopens the file for this handle if a flush has closed it.
    pub(crate) async fn reopen_if_closed(self: &Arc<Core>, handle: &Arc<Handle>) -> Result<()> {
        match handle.is_closed_by_flush() {
            true => self.with_retry(|| Box::pin(self.reopen_closed(handle))).await,
            false => Ok(()),
        }
    }

    /// One attempt to reopen the file for a handle that a flush has closed.
    pub(crate) async fn reopen_closed(self: &Arc<Core>, handle: &Arc<Handle>) -> Result<()> {
        let _alone = handle.file.reopening.lock().await;
        match handle.is_closed_by_flush() {
            true => reopen::reopen_one(self, handle).await,
            false => Ok(()),
        }
    }

    /// The name is about to be removed or replaced: handles of its file that a flush has closed are
    /// reopened while that is possible. No flush closes them while the result exists.
    pub(crate) async fn begin_removal(self: &Arc<Core>, path: &RemotePath) -> Option<Removal> {
        let file = self.files.get(path)?;
        file.lock().removals += 1;
        let removal = Removal(file);
        for handle in removal.0.closed_handles() {
            // The users of the handle get the error.
            let _ = self.reopen_if_closed(&handle).await;
        }
        Some(removal)
    }
}

/// A request that removes or replaces the name of an open file; ended by drop.
#[must_use]
pub(crate) struct Removal(Arc<OpenFile>);

impl Drop for Removal {
    fn drop(&mut self) {
        self.0.lock().removals -= 1;
        self.0.attempt_ended.notify_waiters();
    }
}
