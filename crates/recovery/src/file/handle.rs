//! One open handle.

use std::fmt;
use std::sync::Arc;

use base::{Errno, Fh, OpenFlags, Remote, Result};

use super::{OpenFile, Phase};

/// One of our handles.
pub(crate) struct Handle {
    pub(crate) number: u64,
    pub(crate) file: Arc<OpenFile>,
    pub(crate) flags: OpenFlags,
    inner: Arc<dyn Remote>,
}

/// A handle below that may be used now.
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

    /// What opens the file again, and nothing else.
    pub(crate) fn reopen_flags(&self) -> OpenFlags {
        OpenFlags { append: self.flags.append, ..OpenFlags::existing(self.flags.access) }
    }

    /// The handle below, if it may be used; `None` when it has to be opened again first.
    pub(crate) fn usable(&self) -> Result<Option<UsableHandle>> {
        usable(&self.file.lock(), self.number)
    }

    /// Whether what was asked through a handle below of this epoch has failed because the file was
    /// lost and opened again meanwhile.
    pub(crate) fn is_reopened_since(&self, epoch: u64) -> bool {
        self.file.lock().epoch != epoch
    }
}

/// The handle below of our handle with this number, if it may be used.
pub(crate) fn usable(state: &super::FileState, number: u64) -> Result<Option<UsableHandle>> {
    match state.phase {
        Phase::Dead => Err(Errno::ESTALE),
        Phase::Lost | Phase::Reopening => Ok(None),
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
        let inner = self.file.lock().inner_handles.remove(&self.number);
        if let Some(inner) = inner.filter(|inner| !inner.closed) {
            self.inner.close(inner.fh);
        }
    }
}
