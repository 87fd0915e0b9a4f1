//! Handles of a [`Remote`] that are closed when they are dropped, so that a caller which is
//! cancelled or fails between an open and the use of its handle leaks nothing.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Dh, Fh, Remote, Result};

/// A handle that a [`Remote`] has opened.
pub trait OpenHandle: Copy + fmt::Debug {
    /// Closes it.
    fn close_on<R: Remote + ?Sized>(self, remote: &R);
}

impl OpenHandle for Fh {
    fn close_on<R: Remote + ?Sized>(self, remote: &R) {
        remote.close(self);
    }
}

impl OpenHandle for Dh {
    fn close_on<R: Remote + ?Sized>(self, remote: &R) {
        remote.closedir(self);
    }
}

/// A handle that is closed on drop, unless it was [taken](Guard::take) or
/// [finished](Guard::finish) before.
#[must_use]
pub struct Guard<R: Deref<Target: Remote>, H: OpenHandle> {
    remote: R,
    handle: H,
    is_over: AtomicBool,
}

/// A file handle of a borrowed remote.
pub type OpenGuard<'a> = Guard<&'a dyn Remote, Fh>;

/// A directory handle of a borrowed remote.
pub type DirGuard<'a> = Guard<&'a dyn Remote, Dh>;

/// A file handle that owns a share of its remote, as std's `OwnedFd` owns a descriptor.
pub type OwnedFh = Guard<Arc<dyn Remote>, Fh>;

/// A directory handle that owns a share of its remote.
pub type OwnedDh = Guard<Arc<dyn Remote>, Dh>;

impl<R: Deref<Target: Remote>, H: OpenHandle> Guard<R, H> {
    /// Guards a handle that `remote` has opened.
    pub fn new(remote: R, handle: H) -> Guard<R, H> {
        Guard { remote, handle, is_over: AtomicBool::new(false) }
    }

    /// Ends the guard: the caller has to close the handle.
    pub fn take(mut self) -> H {
        *self.is_over.get_mut() = true;
        self.handle
    }
}

impl<R: Deref<Target: Remote>> Guard<R, Fh> {
    /// The handle, still guarded.
    pub fn fh(&self) -> Fh {
        self.handle
    }

    /// Closes the handle now, and returns [the server's answer](Remote::finish). Operations that
    /// begin through the handle afterwards fail with `EBADF`. Only the first call closes; later
    /// calls return `Ok`.
    ///
    /// # Errors
    /// Those of [`Remote::finish`].
    pub async fn finish(&self) -> Result<()> {
        if self.is_over.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.remote.finish(self.handle).await
    }
}

impl<R: Deref<Target: Remote>> Guard<R, Dh> {
    /// The handle, still guarded.
    pub fn dh(&self) -> Dh {
        self.handle
    }
}

impl<R: Deref<Target: Remote>, H: OpenHandle> Drop for Guard<R, H> {
    fn drop(&mut self) {
        if !*self.is_over.get_mut() {
            self.handle.close_on(&*self.remote);
        }
    }
}

impl<R: Deref<Target: Remote>, H: OpenHandle> fmt::Debug for Guard<R, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.handle).finish()
    }
}
