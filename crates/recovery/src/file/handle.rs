//! One outer handle.

use std::fmt;
use std::sync::Arc;

use base::{Errno, Fh, OpenFlags, Remote, Result};

use super::{OpenFile, Phase};

/// An outer handle: the caller of this crate knows its number.
pub(crate) struct Handle {
    pub(crate) number: u64,
    pub(crate) file: Arc<OpenFile>,
    pub(crate) flags: OpenFlags,
    inner: Arc<dyn Remote>,
}

/// An inner handle that may be used now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsableHandle {
    pub(crate) fh: Fh,
    pub(crate) epoch: u64,
}

impl Handle {
    pub(super) fn new(
        number: u64,
        file: Arc<OpenFile>,
        flags: OpenFlags,
        inner: Arc<dyn Remote>,
    ) -> Handle {
        Handle { number, file, flags, inner }
    }

    /// The flags to reopen the file: without creating or truncating it.
    pub(crate) fn reopen_flags(&self) -> OpenFlags {
        OpenFlags { append: self.flags.append, ..OpenFlags::existing(self.flags.access) }
    }

    /// The inner handle if it may be used; `None` if the file must be reopened first.
    pub(crate) fn usable(&self) -> Result<Option<UsableHandle>> {
        usable(&self.file.lock(), self.number)
    }

    /// Whether the file was lost since this epoch, so that an error of its inner handle is void.
    pub(crate) fn is_reopened_since(&self, epoch: u64) -> bool {
        self.file.lock().epoch != epoch
    }
}

/// The inner handle of the outer handle with this number, if it may be used.
pub(crate) fn usable(state: &super::FileState, number: u64) -> Result<Option<UsableHandle>> {
    match state.phase {
        // The holder of a lock learns that it has lost it.
        Phase::Dead if state.has_any_lost_lock() => Err(Errno::EIO),
        Phase::Dead => Err(Errno::ESTALE),
        Phase::Lost | Phase::Reopening => Ok(None),
        Phase::Open if state.has_lost_lock(number) => Err(Errno::EIO),
        Phase::Open => {
            let inner = state.inner_handles.get(&number).ok_or(Errno::EBADF)?;
            match inner.refused {
                Some(errno) => Err(errno),
                None if inner.closed => Ok(None),
                None => Ok(Some(UsableHandle { fh: inner.fh, epoch: state.epoch })),
            }
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.number).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let inner = {
            let mut state = self.file.lock();
            state.remove_locks_of(self.number);
            state.inner_handles.remove(&self.number)
        };
        if let Some(inner) = inner.filter(|inner| !inner.closed) {
            self.inner.close(inner.fh);
        }
    }
}
