//! What the server answers when a file that was written is closed there.
//!
//! Where the server's file system writes back late (NFS, quotas), a failed write shows only in the
//! answer to CLOSE. The first close of a descriptor through which something was written sends it right
//! behind the writes ([`Remote::flush`]), and returns the answer. Most files are closed once. Where
//! there is another user (a descriptor that was duplicated or inherited), the file is opened again for
//! that one, and then stays open: what is written later is finished when the last user is gone.
//! No application waits for that, so an error is for the log, for the next fsync of others who have
//! the file open, and for the exit code of the mount. The same holds for the answer to a close that
//! nobody waits for any more.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use base::{Errno, Fh, OwnedFh, Remote, Result};
use tokio::sync::{Notify, oneshot};

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
        let lent = OwnedFh::new(remote.clone(), fh);
        self.start(async move { lent.finish().await }, None);
    }

    /// Has the server close the file, as `asked`, and returns its answer. That is seen through when
    /// nobody waits for it any more.
    pub(crate) async fn close_there(
        self,
        asked: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.start(asked, Some(answer));
        // It ends without an answer only when the mount does.
        answered.await.unwrap_or(Ok(()))
    }

    /// Begins to ask the server, now. Its answer is for who waits for it, if anybody does.
    fn start(
        self,
        asked: impl Future<Output = Result<()>> + Send + 'static,
        waiting: Option<oneshot::Sender<Result<()>>>,
    ) {
        // Without these the mount is over, and the handle is closed when this is dropped.
        let (Some(shared), Ok(_)) = (self.shared.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let under_way = shared.closing.begin();
        let lost_write = shared.lost_write.clone();
        shared.background.start(async move {
            let answer = asked.await.or_else(|error| self.failed(error));
            let untold = match waiting {
                Some(waiting) => waiting.send(answer).err().unwrap_or(Ok(())),
                None => answer,
            };
            if let Err(error) = untold {
                *lost_write.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            drop(under_way);
        });
    }

    /// Logs an error of the server. `Ok` if it does not say that writes have failed.
    fn failed(&self, error: Errno) -> Result<()> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        if error == Errno::EOPNOTSUPP {
            // Where the file is not closed earlier, it is finished later.
            return Ok(());
        }
        let inode = self.inode.upgrade();
        let path = inode.as_ref().and_then(|inode| shared.path(inode.ino).ok());
        let path = path.map_or_else(|| "a removed file".to_owned(), |path| path.to_string());
        if matches!(error, Errno::EHOSTDOWN | Errno::ETIMEDOUT | Errno::ESTALE) {
            // Every write was acknowledged; only this answer is missing.
            tracing::warn!("{path}: the server's answer to its close is not known: {error}");
            return Ok(());
        }
        tracing::error!("{path}: the server reports at its close that writes have failed: {error}");
        if let Some(inode) = inode {
            inode.state().write_failed(error);
        }
        Err(error)
    }
}
