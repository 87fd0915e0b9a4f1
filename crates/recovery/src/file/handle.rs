//! One open handle.

use std::fmt;
use std::sync::Arc;

use base::{Errno, Fh, OpenFlags, Remote, Result};

use super::{Body, Phase};

/// One of our handles.
pub(crate) struct Handle {
    pub(crate) number: u64,
    pub(crate) body: Arc<Body>,
    pub(crate) flags: OpenFlags,
    inner: Arc<dyn Remote>,
}

/// A handle below that may be used now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usable {
    pub(crate) fh: Fh,
    pub(crate) epoch: u64,
}

impl Handle {
    pub(super) fn new(
        number: u64,
        body: Arc<Body>,
        flags: OpenFlags,
        inner: Arc<dyn Remote>,
    ) -> Handle {
        Handle { number, body, flags, inner }
    }

    /// What opens the file again, and nothing else.
    pub(crate) fn flags_again(&self) -> OpenFlags {
        OpenFlags { append: self.flags.append, ..OpenFlags::existing(self.flags.access) }
    }

    /// The handle below, if it may be used; `None` when it has to be opened again first.
    pub(crate) fn usable(&self) -> Result<Option<Usable>> {
        usable(&self.body.lock(), self.number)
    }

    /// Whether what was asked through a handle below of this epoch has failed because the file was
    /// lost and opened again meanwhile.
    pub(crate) fn is_newer_than(&self, epoch: u64) -> bool {
        self.body.lock().epoch != epoch
    }
}

/// The handle below of our handle with this number, if it may be used.
pub(crate) fn usable(state: &super::State, number: u64) -> Result<Option<Usable>> {
    match state.phase {
        Phase::Dead => Err(Errno::ESTALE),
        Phase::Lost | Phase::Opening => Ok(None),
        Phase::Open => {
            let slot = state.slots.get(&number).ok_or(Errno::EBADF)?;
            match slot.refused {
                Some(errno) => Err(errno),
                None if slot.closed => Ok(None),
                None => Ok(Some(Usable { fh: slot.fh, epoch: state.epoch })),
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
        let slot = self.body.lock().slots.remove(&self.number);
        if let Some(slot) = slot.filter(|slot| !slot.closed) {
            self.inner.close(slot.fh);
        }
    }
}
