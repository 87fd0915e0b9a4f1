//! A file handle of a [`Remote`] that is given back when its last user is gone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Fh, Remote, Result};

/// An open file of `remote`: [closed](Remote::close) when this is dropped, unless it was
/// [finished](Lent::finish) before.
pub struct Lent {
    remote: Arc<dyn Remote>,
    fh: Fh,
    finished: AtomicBool,
}

impl Lent {
    /// Takes over a handle that `remote` has given.
    #[must_use]
    pub fn new(remote: Arc<dyn Remote>, fh: Fh) -> Lent {
        Lent { remote, fh, finished: AtomicBool::new(false) }
    }

    /// The handle.
    #[must_use]
    pub fn fh(&self) -> Fh {
        self.fh
    }

    /// Gives the handle back now, and returns [what the server answers](Remote::finish). Those who
    /// still have a share of this get `EBADF` for what they begin. Done once; `Ok` the next time.
    ///
    /// # Errors
    /// Those of [`Remote::finish`].
    pub async fn finish(&self) -> Result<()> {
        if self.finished.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.remote.finish(self.fh).await
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !*self.finished.get_mut() {
            self.remote.close(self.fh);
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.fh).finish()
    }
}
