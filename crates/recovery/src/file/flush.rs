//! Handles that a flush has closed below, while they are open here.
//!
//! What the server answers to a close is of interest to the program that has written the file
//! ([`Remote::flush`](base::Remote::flush)). But nobody says which of its closes is the last one: a
//! descriptor may have been duplicated or inherited. So a flush closes the handle below, and if there
//! is another user, the file is opened again for that one, and compared, as after a loss (`recover`).
//! The other handles of the file are not touched.
//!
//! - A handle is marked before its close is sent. What finds the mark opens the file again first; what
//!   has not seen it in time gets `EBADF` from below, and treats the handle as lost.
//! - A file that has no name cannot be opened again, and is not closed by a flush. Before this mount
//!   removes or replaces a name, what was closed is opened again.
//! - A loss ends the mark: the file is opened again for all its handles.

use std::sync::Arc;

use base::{Errno, Fh, RemotePath, Result};

use super::{FileState, Handle, OpenFile, Phase};
use crate::Core;
use crate::reopen;

impl FileState {
    /// Whether this handle was closed by a flush, and is to be opened again by who needs it.
    pub(crate) fn is_closed_by_flush(&self, number: u64) -> bool {
        self.phase == Phase::Open
            && self.inner_handles.get(&number).is_some_and(|inner| inner.closed)
    }
}

impl Handle {
    /// As [`FileState::is_closed_by_flush`].
    pub(crate) fn is_closed_by_flush(&self) -> bool {
        self.file.lock().is_closed_by_flush(self.number)
    }

    /// Whether this error says that the handle below is of no use, which is found before anything is
    /// sent through it: it was lost, or closed by a flush.
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

    /// The handle below is about to be closed. `false` if it is closed already.
    fn mark_closed(&self, fh: Fh) -> bool {
        let mut state = self.file.lock();
        let inner = state.inner_handles.get_mut(&self.number);
        let inner = inner.filter(|inner| inner.fh == fh && !inner.closed);
        inner.map(|inner| inner.closed = true).is_some()
    }

    /// The file was opened again for this handle. Gives the handle below back that is not needed any
    /// more.
    pub(crate) fn set_reopened(&self, fh: Fh) -> Option<Fh> {
        let mut state = self.file.lock();
        let epoch = state.epoch;
        match state.inner_handles.get_mut(&self.number) {
            Some(inner) if inner.closed => {
                (inner.fh, inner.epoch, inner.closed) = (fh, epoch, false);
                None
            }
            // It was lost and opened again meanwhile.
            _ => Some(fh),
        }
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
    /// Closes the handle below, and returns what the server answers; `EOPNOTSUPP` for a file that
    /// could not be opened again.
    pub(crate) async fn flush(self: &Arc<Core>, fh: Fh) -> Result<()> {
        let handle = self.files.handle(fh)?;
        let file = &handle.file;
        self.wait_for_queue(file).await?;
        if file.has_no_path() {
            return Err(Errno::EOPNOTSUPP);
        }
        if !handle.is_closed_by_flush() {
            self.finish_inner(&handle).await?;
        }
        // What was found to be lost when the file was opened again.
        file.lock().deferred_error.take().map_or(Ok(()), Err)
    }

    /// Closes the handle below. If the connection is lost before that is answered, the server has
    /// closed the file, and what it said is not known: the file is opened again and compared, and that
    /// handle is closed. A file without a name cannot be, and what is in it is of no use any more.
    pub(crate) async fn finish_inner(self: &Arc<Core>, handle: &Arc<Handle>) -> Result<()> {
        let finished = self.retry_with_handle(handle, |fh| match handle.mark_closed(fh) {
            true => self.inner.finish(fh),
            // By somebody who gets the answer.
            false => Box::pin(async { Ok(()) }),
        });
        match finished.await {
            Err(Errno::ESTALE) if handle.file.has_no_path() => Ok(()),
            finished => finished,
        }
    }

    /// Opens the file again for this handle if a flush has closed it.
    pub(crate) async fn reopen_if_closed(self: &Arc<Core>, handle: &Arc<Handle>) -> Result<()> {
        match handle.is_closed_by_flush() {
            true => self.with_retry(|| Box::pin(self.reopen_closed(handle))).await,
            false => Ok(()),
        }
    }

    /// One attempt of that.
    pub(crate) async fn reopen_closed(self: &Arc<Core>, handle: &Arc<Handle>) -> Result<()> {
        let _alone = handle.file.reopening.lock().await;
        match handle.is_closed_by_flush() {
            true => reopen::reopen_one(self, handle).await,
            false => Ok(()),
        }
    }

    /// This name is about to be removed, or to become another file's: what is open of its file and was
    /// closed by a flush is opened again, while that can be done.
    pub(crate) async fn reopen_before_removal(self: &Arc<Core>, path: &RemotePath) {
        let Some(file) = self.files.get(path) else { return };
        for handle in file.closed_handles() {
            // Its users get the error.
            let _ = self.reopen_if_closed(&handle).await;
        }
    }
}
