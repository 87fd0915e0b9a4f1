//! What the server says when a file that was written is closed there.
//!
//! Where the server's file system writes back late (NFS, quotas), a failed write shows only in the
//! answer to CLOSE. The handle of a file that was written is finished when its last user is gone,
//! in the background: no application waits for that, so an error is for the log, for the next
//! fsync of others who have the file open, and for the exit code of the mount.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use base::{Errno, Fh, Lent, Remote};
use tokio::sync::Notify;

use crate::inode::Inode;
use crate::shared::Shared;

/// The handles that are being finished.
#[derive(Default)]
pub(crate) struct Closing {
    under_way: AtomicUsize,
    less: Notify,
}

impl Closing {
    fn begin(self: &Arc<Closing>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    /// Returns when none is left.
    pub(crate) async fn none(&self) {
        loop {
            let less = self.less.notified();
            tokio::pin!(less);
            // Registered before the look, so that nothing in between is missed.
            less.as_mut().enable();
            if self.under_way.load(Ordering::SeqCst) == 0 {
                return;
            }
            less.await;
        }
    }
}

/// One of them; over when dropped.
struct UnderWay(Arc<Closing>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.less.notify_waiters();
    }
}

/// A file was written through a handle; what it takes to finish that.
pub(crate) struct Written {
    shared: Weak<Shared>,
    inode: Weak<Inode>,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

impl Written {
    pub(crate) fn new(shared: Weak<Shared>, inode: &Arc<Inode>) -> Written {
        Written { shared, inode: Arc::downgrade(inode) }
    }

    /// Finishes the handle in the background.
    pub(crate) fn finish(self, remote: &Arc<dyn Remote>, fh: Fh) {
        let lent = Lent::new(remote.clone(), fh);
        // Without these the mount is over, and the handle is closed here.
        let (Some(shared), Ok(_)) = (self.shared.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let under_way = shared.closing.begin();
        shared.background.start(async move {
            if let Err(error) = lent.finish().await {
                self.failed(error);
            }
            drop(under_way);
        });
    }

    fn failed(&self, error: Errno) {
        let Some(shared) = self.shared.upgrade() else { return };
        let inode = self.inode.upgrade();
        let path = inode.as_ref().and_then(|inode| shared.path(inode.ino).ok());
        let path = path.map_or_else(|| "a removed file".to_owned(), |path| path.to_string());
        if matches!(error, Errno::EHOSTDOWN | Errno::ETIMEDOUT | Errno::ESTALE) {
            // Every write was acknowledged; only this answer is missing.
            tracing::warn!("{path}: what the server says to its close is not known: {error}");
            return;
        }
        tracing::error!("{path}: what was written is lost, says the server at its close: {error}");
        if let Some(inode) = inode {
            inode.state().write_failed(error);
        }
        *shared.lost_write.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}
