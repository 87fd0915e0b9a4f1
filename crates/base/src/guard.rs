//! Handles of a [`Remote`] that are closed when they are dropped, so that a caller which is
//! cancelled or fails between an open and the use of its handle leaks nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Dh, Fh, Remote, Result};

/// A file handle that is [closed](Remote::close) on drop, unless it was [taken](OpenGuard::take).
#[must_use]
pub struct OpenGuard<'a> {
    remote: &'a dyn Remote,
    fh: Fh,
    is_taken: bool,
}

impl<'a> OpenGuard<'a> {
    /// Guards a handle that `remote` has opened.
    pub fn new(remote: &'a dyn Remote, fh: Fh) -> OpenGuard<'a> {
        OpenGuard { remote, fh, is_taken: false }
    }

    /// The handle, still guarded.
    pub fn fh(&self) -> Fh {
        self.fh
    }

    /// Ends the guard: the caller has to close the handle.
    pub fn take(mut self) -> Fh {
        self.is_taken = true;
        self.fh
    }
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.remote.close(self.fh);
        }
    }
}

/// A directory handle that is [closed](Remote::closedir) on drop, unless it was
/// [taken](DirGuard::take).
#[must_use]
pub struct DirGuard<'a> {
    remote: &'a dyn Remote,
    dh: Dh,
    is_taken: bool,
}

impl<'a> DirGuard<'a> {
    /// Guards a handle that `remote` has opened.
    pub fn new(remote: &'a dyn Remote, dh: Dh) -> DirGuard<'a> {
        DirGuard { remote, dh, is_taken: false }
    }

    /// The handle, still guarded.
    pub fn dh(&self) -> Dh {
        self.dh
    }

    /// Ends the guard: the caller has to close the handle.
    pub fn take(mut self) -> Dh {
        self.is_taken = true;
        self.dh
    }
}

impl Drop for DirGuard<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.remote.closedir(self.dh);
        }
    }
}

/// A file handle that owns a share of its remote, as std's `OwnedFd` owns a descriptor. It is
/// [closed](Remote::close) on drop, unless it was [finished](OwnedFh::finish) before.
pub struct OwnedFh {
    remote: Arc<dyn Remote>,
    fh: Fh,
    is_finished: AtomicBool,
}

impl OwnedFh {
    /// Takes ownership of a handle that `remote` has opened.
    pub fn new(remote: Arc<dyn Remote>, fh: Fh) -> OwnedFh {
        OwnedFh { remote, fh, is_finished: AtomicBool::new(false) }
    }

    /// The handle.
    pub fn fh(&self) -> Fh {
        self.fh
    }

    /// Closes the handle now, and returns [the server's answer](Remote::finish). Operations that
    /// begin through the handle afterwards fail with `EBADF`. Only the first call closes; later
    /// calls return `Ok`.
    ///
    /// # Errors
    /// Those of [`Remote::finish`].
    pub async fn finish(&self) -> Result<()> {
        if self.is_finished.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.remote.finish(self.fh).await
    }
}

impl Drop for OwnedFh {
    fn drop(&mut self) {
        if !*self.is_finished.get_mut() {
            self.remote.close(self.fh);
        }
    }
}

impl fmt::Debug for OwnedFh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedFh").field(&self.fh).finish()
    }
}

/// A directory handle that owns a share of its remote. It is [closed](Remote::closedir) on drop.
pub struct OwnedDh {
    remote: Arc<dyn Remote>,
    dh: Dh,
}

impl OwnedDh {
    /// Takes ownership of a handle that `remote` has opened.
    pub fn new(remote: Arc<dyn Remote>, dh: Dh) -> OwnedDh {
        OwnedDh { remote, dh }
    }

    /// The handle.
    pub fn dh(&self) -> Dh {
        self.dh
    }
}

impl Drop for OwnedDh {
    fn drop(&mut self) {
        self.remote.closedir(self.dh);
    }
}
